//! Where every tensor lies in which flat: what loading, saving and reports go by.

use super::{Sharding, Units};
use crate::CompileError;
use crate::optimizer::Optimizer;
use crate::passes::{Numerics, Pass};
use ambitus_ir::ops::collective::Mesh;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::ops::optim::PARTIAL;
use ambitus_ir::{DType, Op, Program, Session, Shape, StateDecl, StateId, StateKind, TensorType, ValueId};
use std::collections::HashMap;
use std::ops::Range;

/// Tensors begin at multiples of this many elements: blocks of 8-bit moments and vectors of 16 bytes hold one tensor's.
const ALIGN: usize = 256;

/// What tells the flats of a unit apart, in their order: three kinds that decay, the same without decay, two that are frozen.
const KINDS: [&str; 8] = [
    "matrices",
    "small_matrices",
    "vectors",
    "undecayed_matrices",
    "undecayed_small_matrices",
    "undecayed_vectors",
    "frozen_matrices",
    "frozen_vectors",
];
/// The first kind without decay, and the first that is frozen.
const UNDECAYED: usize = 3;
const FROZEN: usize = 6;

/// A tensor of the model in a flat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its axes.
    pub shape: Shape,
    /// Its first element in the flat.
    pub at: usize,
}

impl Tensor {
    /// Returns its elements in the flat.
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.shape.elements()
    }
}

/// Tensors of a unit that are alike in all that is said here and in their weight decay, one after another; gaps and the end are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flat {
    /// Name of the state that holds a rank's shard of it.
    pub name: String,
    /// What is gathered with it.
    pub unit: String,
    /// Training updates it.
    pub trainable: bool,
    /// Its tensors have two axes or more: precisions and moments of few bits treat these otherwise than vectors, and tell them
    /// by the axes of the state.
    pub matrices: bool,
    /// Its tensors are trained matrices of few elements, which the optimizer treats otherwise than larger ones.
    pub small: bool,
    /// Elements, padded so that each rank's piece has as many: whole partial sums of a trained one.
    pub elements: usize,
    /// Its tensors, in order.
    pub tensors: Vec<Tensor>,
}

impl Flat {
    /// Returns the elements that are no tensor's.
    pub fn padding(&self) -> usize {
        self.elements - self.tensors.iter().map(|t| t.shape.elements()).sum::<usize>()
    }

    /// Returns the type of a rank's shard: `[pieces, elements of a piece]` of matrices, else `[elements]`.
    pub fn shard(&self, mesh: Mesh) -> TensorType {
        if self.matrices {
            TensorType::f32(&[mesh.replicas(), self.elements / mesh.ranks])
        } else {
            TensorType::f32(&[self.elements / mesh.shard])
        }
    }

    /// Returns the elements of the flat that a rank holds.
    pub fn held(&self, mesh: Mesh, rank: usize) -> Range<usize> {
        let n = self.elements / mesh.shard;
        let at = mesh.shard_of(rank) * n;
        at..at + n
    }

    /// Returns the provenance of its collectives: inside its unit.
    pub(super) fn path(&self) -> String {
        let kind = self.name.rsplit_once('.').map_or("", |(_, kind)| kind);
        format!("{}.{kind}", self.unit)
    }

    /// Returns the state of its shard.
    pub(super) fn declare(&self, session: &mut Session, mesh: Mesh) -> StateId {
        session.state(&self.name).unwrap_or_else(|| {
            session.declare(StateDecl {
                name: self.name.clone(),
                ty: self.shard(mesh),
                kind: StateKind::Parameter,
                trainable: self.trainable,
                home: Space::Device,
            })
        })
    }
}

/// Every flat of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What it was made for.
    pub sharding: Sharding,
    /// The flats, unit by unit in the order of first use.
    pub flats: Vec<Flat>,
    /// Units that follow each other in time; others are used alongside them.
    pub(super) chain: Vec<String>,
    /// Flat and tensor by the tensor's name.
    index: HashMap<String, (usize, usize)>,
}

impl Layout {
    /// Returns the layout of the parameters of a forward program, which knows what is used where and what is trained. Frozen
    /// tensors that together are less than one piece for each rank stay as they are. What the optimizer treats otherwise lies in
    /// flats of its own: trained matrices of few elements ([`Optimizer::few`]) and tensors that do not decay.
    pub fn of(
        session: &Session,
        forward: &Program,
        sharding: Sharding,
        optimizer: Option<&Optimizer>,
    ) -> Layout {
        let (units, chain) = units(session, forward, sharding.units);
        let mut layout = Layout { sharding, flats: Vec::new(), chain, index: HashMap::new() };
        let few = optimizer.map_or(0, Optimizer::few);
        let decays = |name: &str| optimizer.is_none_or(|o| o.decay(name) == o.rule.weight_decay());
        let kind = |decl: &StateDecl| match (decl.trainable, decl.ty.shape.len() > 1) {
            (false, matrix) => FROZEN + usize::from(!matrix),
            (true, matrix) => {
                let small = usize::from(decl.ty.shape.elements() < few);
                let alike = if matrix { small } else { 2 };
                if decays(&decl.name) { alike } else { UNDECAYED + alike }
            }
        };
        let mut groups: Vec<(String, [Vec<&StateDecl>; KINDS.len()])> = Vec::new();
        for (decl, unit) in units {
            let at = groups.iter().position(|g| g.0 == unit).unwrap_or_else(|| {
                groups.push((unit, Default::default()));
                groups.len() - 1
            });
            groups[at].1[kind(decl)].push(decl);
        }
        for (unit, kinds) in groups {
            for (kind, tensors) in kinds.into_iter().enumerate() {
                layout.push(&unit, kind, &tensors);
            }
        }
        layout
    }

    fn push(&mut self, unit: &str, kind: usize, decls: &[&StateDecl]) {
        let trainable = kind < FROZEN;
        let mut end = 0usize;
        let tensors: Vec<Tensor> = decls
            .iter()
            .map(|d| {
                let at = end.next_multiple_of(ALIGN);
                end = at + d.ty.shape.elements();
                Tensor { name: d.name.clone(), shape: d.ty.shape, at }
            })
            .collect();
        let step = if trainable { PARTIAL } else { ALIGN } * self.sharding.mesh.ranks;
        if end == 0 || (!trainable && end < step) {
            return;
        }
        for (k, t) in tensors.iter().enumerate() {
            self.index.insert(t.name.clone(), (self.flats.len(), k));
        }
        self.flats.push(Flat {
            name: format!("shard.{unit}.{}", KINDS[kind]),
            unit: unit.to_owned(),
            trainable,
            matrices: !KINDS[kind].ends_with("vectors"),
            small: kind % UNDECAYED == 1 && trainable,
            elements: end.next_multiple_of(step),
            tensors,
        });
    }

    /// Returns the ranks.
    pub fn mesh(&self) -> Mesh {
        self.sharding.mesh
    }

    /// Returns the flat and the tensor of a name.
    pub fn find(&self, tensor: &str) -> Option<(&Flat, &Tensor)> {
        let (flat, at) = self.place(tensor)?;
        Some((&self.flats[flat], &self.flats[flat].tensors[at]))
    }

    /// Returns a flat by the name of its state.
    pub fn flat(&self, state: &str) -> Option<&Flat> {
        self.flats.iter().find(|f| f.name == state)
    }

    pub(super) fn place(&self, tensor: &str) -> Option<(usize, usize)> {
        self.index.get(tensor).copied()
    }

    /// Returns every unit, in order, and the sum of what `bytes` says of its flats.
    pub fn units(&self, bytes: impl Fn(&Flat) -> u64) -> Vec<(&str, u64)> {
        let mut units: Vec<(&str, u64)> = Vec::new();
        for flat in &self.flats {
            match units.iter_mut().find(|u| u.0 == flat.unit) {
                Some(unit) => unit.1 += bytes(flat),
                None => units.push((&flat.unit, bytes(flat))),
            }
        }
        units
    }

    /// Returns the states of a session with the tensors of flats in the place of these: what a model's files hold.
    pub fn tensors(&self, states: &[StateDecl]) -> Vec<StateDecl> {
        let one = |s: &StateDecl| match self.flat(&s.name) {
            None => vec![s.clone()],
            Some(flat) => {
                let of = |t: &Tensor| {
                    let ty = TensorType::new(s.ty.dtype, &t.shape);
                    StateDecl { name: t.name.clone(), ty, ..s.clone() }
                };
                flat.tensors.iter().map(of).collect()
            }
        };
        states.iter().flat_map(one).collect()
    }

    /// Returns the elements that are no tensor's, of a rank's shards.
    pub fn padding(&self) -> usize {
        self.flats.iter().map(Flat::padding).sum::<usize>() / self.mesh().shard
    }
}

/// The pass that takes the tensors that flats replaced out of a session, when all its programs are sharded.
#[derive(Clone, Copy, Debug)]
pub struct Flats<'l> {
    /// Where every tensor lies.
    pub layout: &'l Layout,
}

impl Pass for Flats<'_> {
    fn name(&self) -> &'static str {
        "flats"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    /// # Panics
    /// When a program still reads a tensor.
    fn declare(&self, session: &mut Session) {
        drop_tensors(session, self.layout);
    }

    /// Leaves programs as they are.
    fn run(&self, _: &mut Session, p: Program) -> Result<Program, CompileError> {
        Ok(p)
    }
}

fn drop_tensors(session: &mut Session, layout: &Layout) {
    let mut now = Vec::with_capacity(session.states.len());
    let mut kept = Vec::new();
    for decl in std::mem::take(&mut session.states) {
        let gone = decl.kind == StateKind::Parameter && layout.find(&decl.name).is_some();
        now.push((!gone).then_some(StateId(kept.len() as u32)));
        if !gone {
            kept.push(decl);
        }
    }
    session.states = kept;
    for used in session.programs.iter_mut().flat_map(|p| &mut p.states) {
        used.state = now[used.state.index()].expect("every program is sharded");
    }
}

/// Returns the unit of every parameter, in the order of first use, and the units that follow each other.
fn units<'s>(session: &'s Session, p: &Program, units: Units) -> (Vec<(&'s StateDecl, String)>, Vec<String>) {
    let used = p.states.iter().map(|u| (u.enters, &session.states[u.state.index()]));
    let parameters: Vec<(ValueId, &StateDecl)> =
        used.filter(|(_, s)| s.kind == StateKind::Parameter && s.ty.dtype == DType::F32).collect();
    let least = match units {
        Units::Blocks => return by_block(&parameters, p),
        Units::Parameters(least) => least,
    };
    let mut out: Vec<(&StateDecl, String)> = Vec::new();
    let (mut chain, mut count) = (Vec::<String>::new(), usize::MAX);
    let mut before = "";
    for (_, decl) in parameters {
        let module = decl.name.rsplit_once('.').map_or(decl.name.as_str(), |(module, _)| module);
        if count >= least && module != before {
            chain.push(module.to_owned());
            count = 0;
        }
        before = module;
        count = count.saturating_add(decl.ty.shape.elements());
        out.push((decl, chain.last().cloned().unwrap_or_default()));
    }
    (out, chain)
}

fn by_block<'s>(
    parameters: &[(ValueId, &'s StateDecl)],
    p: &Program,
) -> (Vec<(&'s StateDecl, String)>, Vec<String>) {
    // The block of all readers, through casts: `Some(None)` where they are outside or in several.
    let mut block: HashMap<ValueId, Option<usize>> = HashMap::new();
    let mut stands_for: HashMap<ValueId, ValueId> = parameters.iter().map(|(v, _)| (*v, *v)).collect();
    for instr in &p.instrs {
        for v in &instr.inputs {
            let Some(&parameter) = stands_for.get(v) else { continue };
            if let Op::Cast(_) = instr.op {
                stands_for.insert(instr.outputs[0], parameter);
                continue;
            }
            let here = p.block_of(instr);
            block.entry(parameter).and_modify(|b| *b = b.filter(|b| Some(*b) == here)).or_insert(here);
        }
    }
    // Blocks are `<root>.<name>.<index>`.
    let root = p.blocks.first().map_or("", |b| {
        let name = b.rsplit_once('.').map_or("", |(name, _)| name);
        name.rsplit_once('.').map_or("", |(root, _)| root)
    });
    let outside = |name: &str| {
        let inner = name.strip_prefix(root).and_then(|n| n.strip_prefix('.')).filter(|_| !root.is_empty());
        let head = name.len() - inner.unwrap_or(name).len();
        let child = name[head..].split('.').next().unwrap_or("");
        name[..head + child.len()].to_owned()
    };
    let unit = |(v, decl): &(ValueId, &'s StateDecl)| {
        let inside = block.get(v).copied().flatten();
        (*decl, inside.map_or_else(|| outside(&decl.name), |b| p.blocks[b].clone()))
    };
    (parameters.iter().map(unit).collect(), p.blocks.clone())
}
