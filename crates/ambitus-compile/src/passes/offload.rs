//! Offload: states and activations that wait in the host's memory, and are on the device for as long as they are used.
//!
//! Before: `%9 = linear(%8, %1) fwd; ...; %70 = matmul(%60, %1) bwd; ...; %90 = accumulate(%2, %80, %3)`. After, with the
//! weight %1 and the gradient %2 at home on the host:
//!
//! ```text
//! %100, %101 = copy_start(%1) {to=device}; ... %102 = copy_done(%1, %100, %101); %9 = linear(%8, %102) fwd; ...
//! %103, %104 = copy_start(%1) {to=device}; ... %105 = copy_done(%1, %103, %104); %70 = matmul(%60, %105) bwd; ...
//! %108 = copy_done(%2, %106, %107); %90 = accumulate(%108, %80, %3)
//! %109, %110 = store_start(%90, %2); ... %111 = copy_done(%90, %109, %110); state grad leaves %111
//! ```
//!
//! A tensor is fetched before each cluster of its uses, so that forward and backward have copies of their own and nothing
//! stays on the device in between, and stored after the last instruction of a cluster that overwrites it. Fetches run ahead
//! of their use by one group of them, stores end when the next group but one begins: the device holds a few groups, none
//! of them larger than the largest set of tensors that one instruction needs. An activation is stored after its last use in
//! forward and fetched for backward.
//!
//! Copies move bytes and compute nothing: bit-equal on and off. Counters and small tensors stay, and so does a state that
//! some program has as an output. The pass runs last, on programs whose order is final; it never moves what computes.

mod cut;
mod stream;

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::{Instr, Phase, Program, Session, StateDecl, StateKind, ValueId};
use stream::{Stretch, Uses};

/// Queue of the fetches.
pub const FETCH: u32 = 0;
/// Queue of the stores: the link works both ways at once.
pub const STORE: u32 = 1;

/// Tensors below this many bytes are not worth a copy: all biases and norms of a model together are a thousandth of it.
const LEAST: u64 = 8 << 10;

/// Uses at most this many instructions apart share one fetch. A layer's gradients, with what is recomputed for them and an
/// update in backward, stand within 30; a block's forward and its backward do not.
const NEAR: usize = 32;

/// Bytes of fp32 of a part of a large tensor. Two sets of parts are fetched or used and as many are stored at a time: of AdamW with
/// moments in fp32 under a GiB. A card's link needs some MiB to be at its full rate.
const PART: u64 = 64 << 20;

/// Which activations wait on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// None.
    #[default]
    Nothing,
    /// What one block hands to the next: all that is kept where every block is recomputed.
    Blocks,
    /// All that forward makes and backward reads.
    All,
}

/// What waits on the host; also the pass, for states whose homes it declares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offload {
    /// Weights.
    pub parameters: bool,
    /// Accumulated gradients.
    pub gradients: bool,
    /// Share of the bytes of those optimizer states that can move, 0 to 1: whole tensors in the order of their declaration
    /// until it is reached.
    pub optimizer: f64,
    /// Moving averages.
    pub ema: bool,
    /// Activations.
    pub activations: Kept,
    /// Tensors of fewer bytes stay.
    pub least: u64,
    /// Uses at most this many instructions apart share one fetch.
    pub near: usize,
    /// Most bytes, in fp32, of a part in which larger tensors are transferred, if all that uses them can be done part by part.
    pub part: u64,
}

impl Default for Offload {
    fn default() -> Offload {
        Offload {
            parameters: false,
            gradients: false,
            optimizer: 0.0,
            ema: false,
            activations: Kept::Nothing,
            least: LEAST,
            near: NEAR,
            part: PART,
        }
    }
}

impl Offload {
    /// Offloads everything.
    pub fn all() -> Offload {
        let activations = Kept::All;
        Offload {
            parameters: true,
            gradients: true,
            optimizer: 1.0,
            ema: true,
            activations,
            ..Offload::default()
        }
    }

    /// Returns true when nothing waits on the host.
    pub fn is_none(&self) -> bool {
        let Offload { least, near, part, .. } = *self;
        let none = Offload { least, near, part, ..Offload::default() };
        *self == none
    }

    /// Gives the states of a session whose programs are all there their homes.
    fn give_homes(&self, session: &mut Session) {
        let mut moves: Vec<bool> = session.states.iter().map(|s| s.ty.bytes() >= self.least).collect();
        for p in &session.programs {
            let uses = Uses::of(p, self.near);
            for used in &p.states {
                let read = |v: &ValueId| p.outputs.iter().any(|o| o.value == *v);
                moves[used.state.index()] &= !uses.chain(used.enters).iter().any(read);
            }
        }
        let movable = session.states.iter_mut().zip(moves).filter(|(_, moves)| *moves).map(|(s, _)| s);
        let movable: Vec<&mut StateDecl> = movable.collect();
        let optimizer = movable.iter().filter(|s| s.kind == StateKind::Optimizer);
        let mut wanted = self.optimizer * optimizer.map(|s| s.ty.bytes() as f64).sum::<f64>();
        for s in movable {
            let picked = match s.kind {
                StateKind::Parameter => self.parameters,
                StateKind::Gradient => self.gradients,
                StateKind::Optimizer => wanted > 0.0,
                StateKind::Ema => self.ema,
                StateKind::Counter | StateKind::Cache => false,
            };
            if picked {
                s.home = Space::Host;
                if s.kind == StateKind::Optimizer {
                    wanted -= s.ty.bytes() as f64;
                }
            }
        }
    }
}

impl Pass for Offload {
    fn name(&self) -> &'static str {
        "offload"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn declare(&self, session: &mut Session) {
        self.give_homes(session);
    }

    fn run(&self, session: &mut Session, p: Program) -> Result<Program, CompileError> {
        let p = cut::cut(session, p, self.part);
        let uses = Uses::of(&p, self.near);
        let on_host = |k: &usize| session.states[p.states[*k].state.index()].home == Space::Host;
        let states = (0..p.states.len()).filter(on_host).map(|k| uses.of_state(k, &p));
        let kept = self.kept(&p).into_iter().filter_map(|v| uses.of_activation(v, &p));
        let stretches: Vec<Vec<Stretch>> = states.chain(kept).collect();
        if stretches.iter().all(Vec::is_empty) {
            return Ok(p);
        }
        Ok(stream::rewrite(session, p, stretches))
    }
}

impl Offload {
    /// Returns the values made by forward that may wait on the host.
    fn kept(&self, p: &Program) -> Vec<ValueId> {
        if self.activations == Kept::Nothing {
            return Vec::new();
        }
        let is_forward = |i: &Instr| i.origin.phase == Phase::Forward;
        let forward = p.instrs.iter().filter(|i| is_forward(i));
        let large = |v: &ValueId| p.ty(*v).bytes() >= self.least && p.outputs.iter().all(|o| o.value != *v);
        let made: Vec<ValueId> = forward
            .filter(|i| i.op.def().donates().is_empty())
            .flat_map(|i| i.outputs.iter().copied().filter(large))
            .collect();
        if self.activations == Kept::All {
            return made;
        }
        let mut made_in = vec![None; p.types.len()];
        let mut handed_on = vec![false; p.types.len()];
        for (instr, block) in p.instrs.iter().zip(p.blocks_of()).filter(|(i, _)| is_forward(i)) {
            for v in &instr.inputs {
                handed_on[v.index()] |= made_in[v.index()].is_some_and(|b| Some(b) != block);
            }
            instr.outputs.iter().for_each(|v| made_in[v.index()] = block);
        }
        made.into_iter().filter(|v| handed_on[v.index()]).collect()
    }
}
