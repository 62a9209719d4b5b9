//! Programs and sessions: the data model of a training run.

use crate::ops::Op;
use crate::ops::copy::Space;
use crate::tensor::TensorType;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;

/// A value of one program: defined once, by an input, a state or an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A state of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

impl ValueId {
    /// Returns the index into [`Program::types`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl StateId {
    /// Returns the index into [`Session::states`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// What a state holds; also the category under which its bytes are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    /// A weight of the model.
    Parameter,
    /// The accumulated gradient of a trainable parameter.
    Gradient,
    /// First or second moment of the optimizer.
    Optimizer,
    /// Exponential moving average of a parameter.
    Ema,
    /// Counters and scales, one element each.
    Counter,
    /// Keys and values of what was read and written so far: of generation. They last until a program runs that uses none.
    Cache,
}

impl StateKind {
    /// Every kind with its name in the text form.
    pub const ALL: [(StateKind, &'static str); 6] = [
        (StateKind::Parameter, "parameter"),
        (StateKind::Gradient, "gradient"),
        (StateKind::Optimizer, "optimizer"),
        (StateKind::Ema, "ema"),
        (StateKind::Counter, "counter"),
        (StateKind::Cache, "cache"),
    ];

    /// Returns the name in the text form.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(k, _)| *k == self).map_or("", |(_, n)| n)
    }
}

/// Bytes that outlive a program run; the only thing that is ever overwritten.
#[derive(Clone, Debug, PartialEq)]
pub struct StateDecl {
    /// Unique name; a parameter's is its name in the checkpoint.
    pub name: String,
    /// Element type, shape, pitch.
    pub ty: TensorType,
    /// What it holds.
    pub kind: StateKind,
    /// A parameter that training updates.
    pub trainable: bool,
    /// Where its bytes are between runs; only copies touch those of the host.
    pub home: Space,
}

/// Which part of a step an instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Built by the model.
    Forward,
    /// Made by autodiff.
    Backward,
    /// A clone of a forward instruction, run again inside backward. No pass merges it with its original.
    Recompute,
    /// Optimizer, EMA, gradient norms.
    Update,
}

impl Phase {
    /// Every phase with its mark in the text form.
    pub const ALL: [(Phase, &'static str); 4] = [
        (Phase::Forward, "fwd"),
        (Phase::Backward, "bwd"),
        (Phase::Recompute, "recompute"),
        (Phase::Update, "update"),
    ];

    /// Returns the mark in the text form.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(k, _)| *k == self).map_or("", |(_, n)| n)
    }
}

/// Where an instruction comes from. Survives every pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Provenance path, e.g. `transformer_blocks.3.attn.attention`. A gradient carries the path of its forward op. Shared:
    /// every pass hands it on.
    pub path: Arc<str>,
    /// Part of the step.
    pub phase: Phase,
}

impl Origin {
    /// Returns the stable op id: the first 8 bytes (FNV-1a) of the path. Keys random numbers; equal for an op, its gradient and
    /// its recompute clone, on every rank and under every plan.
    pub fn op_id(&self) -> u64 {
        let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        self.path.bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }
}

/// One operation on named values.
#[derive(Clone, Debug, PartialEq)]
pub struct Instr {
    /// The operation with its attributes.
    pub op: Op,
    /// Operands.
    pub inputs: Vec<ValueId>,
    /// Results, defined here.
    pub outputs: Vec<ValueId>,
    /// Provenance.
    pub origin: Origin,
}

/// A value that the host writes before a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Name, unique in the program.
    pub name: String,
    /// The value it defines.
    pub value: ValueId,
}

/// A value that the host may read after a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Name, unique in the program.
    pub name: String,
    /// The value read.
    pub value: ValueId,
}

/// A state, or a part of one, taken into a program and given back on the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateUse {
    /// Which state.
    pub state: StateId,
    /// Its first element here, row-major without pads. What follows has the type of `enters`: the state's own, or of some
    /// whole rows, or of some elements in a line ([`TensorType::has_part`]).
    pub first: usize,
    /// Its value on entry.
    pub enters: ValueId,
    /// Its value on exit; equal to `enters` when the program only reads it.
    pub leaves: ValueId,
}

/// A straight line of instructions over values with fixed shapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Name: `micro`, `update`, `ema`, `evaluate`, `sample`, ...
    pub name: String,
    /// Type of every value, by [`ValueId`].
    pub types: Vec<TensorType>,
    /// Host inputs.
    pub inputs: Vec<Input>,
    /// States used.
    pub states: Vec<StateUse>,
    /// Instructions in order.
    pub instrs: Vec<Instr>,
    /// Host outputs.
    pub outputs: Vec<Output>,
    /// Provenance prefixes of the model's repeated blocks, first to last (e.g. `transformer.transformer_blocks.0`):
    /// the units of activation checkpointing, and later of sharding. Part of the text form.
    pub blocks: Vec<String>,
}

impl Program {
    /// Returns the block that an instruction belongs to, as an index into [`Program::blocks`].
    pub fn block_of(&self, instr: &Instr) -> Option<usize> {
        (0..self.blocks.len()).find(|b| self.is_in_block(instr, *b))
    }

    /// [`Program::block_of`] for every instruction.
    pub fn blocks_of(&self) -> Vec<Option<usize>> {
        // Neighbours are mostly of one block.
        let mut last = None;
        let block = |instr: &Instr| {
            last = last.filter(|b| self.is_in_block(instr, *b)).or_else(|| self.block_of(instr));
            last
        };
        self.instrs.iter().map(block).collect()
    }

    fn is_in_block(&self, instr: &Instr, block: usize) -> bool {
        let rest = instr.origin.path.strip_prefix(self.blocks[block].as_str());
        rest.is_some_and(|rest| rest.starts_with('.'))
    }

    /// Returns the type of a value.
    pub fn ty(&self, v: ValueId) -> TensorType {
        self.types[v.index()]
    }

    /// Returns a new, not yet defined value.
    pub fn new_value(&mut self, ty: TensorType) -> ValueId {
        self.types.push(ty);
        ValueId(self.types.len() as u32 - 1)
    }

    /// Returns the value of an output by name.
    pub fn output(&self, name: &str) -> Option<ValueId> {
        self.outputs.iter().find(|o| o.name == name).map(|o| o.value)
    }

    /// Returns the value of an input by name.
    pub fn input(&self, name: &str) -> Option<ValueId> {
        self.inputs.iter().find(|i| i.name == name).map(|i| i.value)
    }

    /// For every value, the index of the instruction that defines it (`None` for inputs and states).
    pub fn definitions(&self) -> Vec<Option<usize>> {
        let mut at = vec![None; self.types.len()];
        for (i, instr) in self.instrs.iter().enumerate() {
            for v in &instr.outputs {
                at[v.index()] = Some(i);
            }
        }
        at
    }

    /// Operand and result types of an instruction.
    pub fn signature(&self, instr: &Instr) -> (Vec<TensorType>, Vec<TensorType>) {
        let (mut x, mut y) = (Vec::new(), Vec::new());
        self.signature_into(instr, &mut x, &mut y);
        (x, y)
    }

    /// [`Program::signature`] in the place of what `x` and `y` hold: for walks over all instructions.
    pub fn signature_into(&self, instr: &Instr, x: &mut Vec<TensorType>, y: &mut Vec<TensorType>) {
        for (types, values) in [(x, &instr.inputs), (y, &instr.outputs)] {
            types.clear();
            types.extend(values.iter().map(|v| self.ty(*v)));
        }
    }
}

/// All programs of a run over one set of states.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// Declared states. A name does not change once it is there.
    pub states: Vec<StateDecl>,
    /// Programs, in the order of their first use.
    pub programs: Vec<Program>,
    /// The states that [`Session::declare`] declared, by the hash of their names. A model has thousands, and every pass and
    /// program looks some up.
    declared: HashMap<u64, StateId>,
}

impl PartialEq for Session {
    fn eq(&self, other: &Session) -> bool {
        self.states == other.states && self.programs == other.programs
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}

impl Session {
    /// Declares a state.
    pub fn declare(&mut self, decl: StateDecl) -> StateId {
        let id = StateId(self.states.len() as u32);
        self.declared.insert(hash(&decl.name), id);
        self.states.push(decl);
        id
    }

    /// Returns a state by name.
    pub fn state(&self, name: &str) -> Option<StateId> {
        match self.declared.get(&hash(name)) {
            Some(id) if self.states.get(id.index()).is_some_and(|s| s.name == name) => Some(*id),
            None if self.declared.len() == self.states.len() => None,
            // States that were put in otherwise, or two names of one hash.
            _ => self.states.iter().position(|s| s.name == name).map(|at| StateId(at as u32)),
        }
    }

    /// Returns its states alone.
    pub fn without_programs(&self) -> Session {
        Session { states: self.states.clone(), programs: Vec::new(), declared: self.declared.clone() }
    }

    /// Returns a program by name.
    pub fn program(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|p| p.name == name)
    }
}
