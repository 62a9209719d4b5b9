//! Shard: ranks share parameters, gradients and optimizer states, and are given whole tensors while they compute with them
//! (ZeRO, arXiv 1910.02054; PyTorch FSDP, arXiv 2304.11277).
//!
//! Before, on every rank: `%3 = linear(%0, %w, %b); ...; %70 = matmul(%60, %w); ...; output grad.w %81; output grad.b %82`.
//! After, with the tensors of a unit in one *flat* for matrices and one for vectors, of which the rank holds shards:
//!
//! ```text
//! %10, %11 = all_gather_start(%flat) {parts=[0[16,8]]}; %12 = collective_done(%flat, %10, %11); ... the same for %b ...
//! %3 = linear(%0, %12, %15); ...; %70 = matmul(%60, %12); ...
//! %90, %91 = reduce_scatter_start(%81) {parts=[0[16,8]]}; %92 = collective_done(%81, %90, %91); output grad.flat %92
//! ```
//!
//! What comes after (accumulate, policy, checkpoint, offload, the update) sees flats as parameters. A *unit* is a block, or a
//! module outside the blocks, or modules of a given number of parameters together ([`Units`]). It is gathered before the first
//! instruction that reads it and once more where others were computed in between; its gradients are summed when all of a
//! stretch are there. With [`Sharding::regather`] backward gathers again (FULL_SHARD): the gather is tagged, and `checkpoint`
//! clones it; else the tensors live until backward is through (SHARD_GRAD_OP). Parameters that are only read as 16 bits are
//! cast as shards and gathered so.
//!
//! Sums are over all ranks in their order, in fp32, for each micro-batch, whoever holds what: gradients have the same bits for
//! every strategy and all units at one number of ranks. Where shards have replicas, the summed pieces are gathered among these.
//!
//! The pass never moves what computes, and knows neither which rank it is nor how ranks talk: all run the same program.
//! A replicated run (`Strategy::None`) is a mesh of shards that are whole: its gathers are copies out of the flat.

mod layout;
mod prefetch;
mod uses;

pub use layout::{Flat, Flats, Layout, Tensor};
pub use prefetch::{Backward, Prefetch};

use super::accumulate::GRAD;
use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::ops::collective::{
    AllGatherStart, GATHER, Group, Mesh, Part, Parts, REDUCE, ReduceScatterStart,
};
use ambitus_ir::{Builder, Instr, Origin, Phase, Program, Session, TensorType, ValueId};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use uses::{Gather, Reduction, Uses};

/// What is gathered together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// Each of the model's repeated blocks, and each module outside them.
    #[default]
    Blocks,
    /// Modules, in the order of their use, until they have this number of parameters.
    Parameters(usize),
}

impl fmt::Display for Units {
    /// Writes the units as they are typed: `block`, or a number of parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Units::Blocks => f.pad("block"),
            Units::Parameters(n) => n.fmt(f),
        }
    }
}

impl FromStr for Units {
    type Err = String;

    fn from_str(text: &str) -> Result<Units, String> {
        match text {
            "block" => Ok(Units::Blocks),
            n => n.parse().map(Units::Parameters).map_err(|_| {
                format!("`{text}` is not block, or the parameters of a unit as a number, e.g. 100000000")
            }),
        }
    }
}

/// Who holds what, by the names that others use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// All ranks share everything, and gather again in backward (FULL_SHARD, ZeRO-3).
    Full,
    /// All ranks share everything; gathered tensors stay until backward is through (SHARD_GRAD_OP).
    GradOp,
    /// Every rank has everything (NO_SHARD, data parallel).
    None,
    /// `Full` in groups of this number of ranks, which are replicas of each other (HYBRID_SHARD).
    Hybrid(usize),
    /// `GradOp` in groups of this number of ranks, which are replicas of each other.
    HybridGradOp(usize),
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strategy::Full => f.pad("full"),
            Strategy::GradOp => f.pad("grad_op"),
            Strategy::None => f.pad("none"),
            Strategy::Hybrid(n) => write!(f, "hybrid:{n}"),
            Strategy::HybridGradOp(n) => write!(f, "hybrid_grad_op:{n}"),
        }
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Strategy, String> {
        let bad = || format!("`{text}` is not full, grad_op, none, hybrid:RANKS or hybrid_grad_op:RANKS");
        let ranks = |n: &str| n.parse().ok().filter(|n| *n > 0).ok_or_else(bad);
        match text.split_once(':') {
            None if text == "full" => Ok(Strategy::Full),
            None if text == "grad_op" => Ok(Strategy::GradOp),
            None if text == "none" => Ok(Strategy::None),
            Some(("hybrid", n)) => ranks(n).map(Strategy::Hybrid),
            Some(("hybrid_grad_op", n)) => ranks(n).map(Strategy::HybridGradOp),
            _ => Err(bad()),
        }
    }
}

/// How a session is shared among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// The ranks, and how many hold one copy.
    pub mesh: Mesh,
    /// Backward gathers again what forward had; else it is kept.
    pub regather: bool,
    /// What is gathered together.
    pub units: Units,
    /// Which gathers start ahead of their use.
    pub prefetch: Prefetch,
}

impl Sharding {
    /// Returns the strategy.
    pub fn strategy(&self) -> Strategy {
        let Mesh { ranks, shard } = self.mesh;
        match (shard, self.regather) {
            (1, _) => Strategy::None,
            (n, true) if n == ranks => Strategy::Full,
            (n, false) if n == ranks => Strategy::GradOp,
            (n, true) => Strategy::Hybrid(n),
            (n, false) => Strategy::HybridGradOp(n),
        }
    }

    /// Returns `strategy` for `ranks` ranks.
    ///
    /// # Errors
    /// Groups that do not divide the ranks.
    pub fn new(strategy: Strategy, ranks: usize) -> Result<Sharding, String> {
        let (shard, regather) = match strategy {
            Strategy::Full => (ranks, true),
            Strategy::GradOp => (ranks, false),
            // What is copied out of the flat may be so again: at most two units are there twice.
            Strategy::None => (1, true),
            Strategy::Hybrid(n) => (n, true),
            Strategy::HybridGradOp(n) => (n, false),
        };
        let mesh = Mesh::new(ranks, shard)
            .ok_or_else(|| format!("{ranks} ranks are not whole groups of {shard}: take a divisor"))?;
        Ok(Sharding { mesh, regather, units: Units::default(), prefetch: Prefetch::default() })
    }
}

/// The pass.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'l> {
    /// Where every tensor lies.
    pub layout: &'l Layout,
}

impl Pass for Shard<'_> {
    fn name(&self) -> &'static str {
        "shard"
    }

    /// Against one rank; strategies among each other are exact.
    fn numerics(&self) -> Numerics {
        Numerics::Reordered
    }

    fn run(&self, session: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let uses = Uses::of(self.layout, session, &p);
        let flats: Vec<_> =
            self.layout.flats.iter().map(|f| f.declare(session, self.layout.mesh())).collect();
        let trained = |name: &str| name.strip_prefix(GRAD).is_some_and(|t| self.layout.find(t).is_some());
        p.outputs.retain(|o| !trained(&o.name));
        p.states.retain(|u| self.layout.find(&session.states[u.state.index()].name).is_none());
        let instrs = std::mem::take(&mut p.instrs);
        let mut w = Writer {
            layout: self.layout,
            b: Builder::resume(session, p, Phase::Forward),
            gathered: HashMap::new(),
            sums: vec![None; flats.len()],
        };
        let (mut gathers, mut reductions) =
            (uses.gathers.iter().enumerate().peekable(), uses.reductions.iter().peekable());
        for (i, mut instr) in instrs.into_iter().enumerate() {
            while let Some((k, gather)) = gathers.next_if(|(_, g)| g.at <= i) {
                let flat = w.b.state(flats[gather.flat]);
                w.gather(k, gather, flat);
            }
            if uses.dropped[i] {
                continue;
            }
            for v in &mut instr.inputs {
                if let Some(read) = uses.reads.get(&(i, *v)) {
                    *v = w.gathered[read];
                }
            }
            w.b.append(instr);
            while let Some(reduction) = reductions.next_if(|r| r.at <= i) {
                w.reduce(reduction);
            }
        }
        let Writer { mut b, sums, .. } = w;
        for (flat, sum) in self.layout.flats.iter().zip(sums) {
            if let Some(value) = sum {
                b.output(&format!("{GRAD}{}", flat.name), value);
            }
        }
        Ok(b.finish())
    }
}

/// The program with collectives in it.
struct Writer<'s, 'l> {
    layout: &'l Layout,
    b: Builder<'s>,
    /// Whole tensors, by gather and tensor.
    gathered: HashMap<(usize, usize), ValueId>,
    /// Summed gradients by flat, so far.
    sums: Vec<Option<ValueId>>,
}

impl Writer<'_, '_> {
    fn parts(&self, flat: usize, tensors: impl Iterator<Item = usize>) -> Parts {
        let all = &self.layout.flats[flat].tensors;
        Parts(tensors.map(|t| Part { at: all[t].at, shape: all[t].shape }).collect())
    }

    fn gather(&mut self, k: usize, gather: &Gather, shard: ValueId) {
        let flat = &self.layout.flats[gather.flat];
        let (mesh, parts) = (self.layout.mesh(), self.parts(gather.flat, gather.tensors.iter().copied()));
        let op = AllGatherStart { queue: GATHER, mesh, group: Group::Shard, parts };
        let origin = Origin { path: flat.path().into(), phase: gather.phase };
        let made = self.b.derived(&origin, gather.phase, |b| {
            let shard = b.as_dtype(shard, gather.dtype);
            b.all_gather(shard, op)
        });
        self.gathered.extend(gather.tensors.iter().zip(made).map(|(t, v)| ((k, *t), v)));
    }

    fn reduce(&mut self, reduction: &Reduction) {
        let (flat, mesh) = (&self.layout.flats[reduction.flat], self.layout.mesh());
        let parts = self.parts(reduction.flat, reduction.tensors.iter().map(|t| t.0));
        let shard = flat.shard(mesh);
        let alone = mesh.replicas() == 1;
        let whole = TensorType::f32(&[flat.elements / mesh.ranks]);
        let piece = if alone { shard.shape } else { whole.shape };
        let origin = Origin { path: flat.path().into(), phase: Phase::Backward };
        let sums = &mut self.sums[reduction.flat];
        self.b.derived(&origin, Phase::Backward, |b| {
            let full = reduction.tensors.iter().map(|(_, leaves)| {
                let sum = leaves.iter().copied().reduce(|x, y| b.add(x, y));
                sum.expect("a gradient has a contribution")
            });
            let full: Vec<ValueId> = full.collect();
            let op = ReduceScatterStart { queue: REDUCE, mesh, parts, piece };
            let mut sum = b.reduce_scatter(&full, op);
            if !alone {
                let parts = Parts(vec![Part { at: 0, shape: shard.shape }]);
                let op = AllGatherStart { queue: REDUCE, mesh, group: Group::Replica, parts };
                sum = b.all_gather(sum, op)[0];
            }
            // Sums of sums are undone by `accumulate`, which adds each where it appears.
            *sums = Some(sums.map_or(sum, |before| b.add(before, sum)));
        });
    }
}

/// Returns whether an instruction is a gather of a whole tensor for computing, or its done.
fn gathers(instr: &Instr) -> bool {
    instr.op.def().queue() == Some(GATHER)
}

/// Tags gathers of forward that backward recomputes: those between whose last use there and whose first use in backward
/// something else is gathered. `tags`: one for each instruction of a program before `checkpoint`.
pub fn tag(p: &Program, sharding: &Sharding, tags: &mut [bool]) {
    if !sharding.regather {
        return;
    }
    let (mut last_forward, mut first_backward) = (vec![0; p.types.len()], vec![usize::MAX; p.types.len()]);
    for (i, instr) in p.instrs.iter().enumerate().filter(|(_, i)| !i.op.def().props().waits) {
        for v in instr.inputs.iter().map(|v| v.index()) {
            match instr.origin.phase {
                Phase::Forward => last_forward[v] = i,
                _ => first_backward[v] = first_backward[v].min(i),
            }
        }
    }
    let starts: Vec<usize> = (0..p.instrs.len())
        .filter(|i| gathers(&p.instrs[*i]) && p.instrs[*i].op.def().props().starts)
        .collect();
    let mut started: HashMap<ValueId, usize> = HashMap::new();
    for (i, instr) in p.instrs.iter().enumerate() {
        let (Some(token), true) = (instr.outputs.last(), gathers(instr)) else { continue };
        if instr.op.def().props().starts {
            started.insert(*token, i);
            continue;
        }
        let results = || instr.outputs.iter().map(|v| v.index());
        let last = results().map(|v| last_forward[v]).max().unwrap_or(i).max(i);
        let first = results().map(|v| first_backward[v]).min().unwrap_or(usize::MAX);
        let next = starts.partition_point(|s| *s <= last);
        let other = starts.get(next).is_some_and(|s| *s < first);
        let start = instr.inputs.last().and_then(|token| started.get(token));
        if let (Phase::Forward, true, Some(start)) = (instr.origin.phase, other, start) {
            tags[i] = true;
            tags[*start] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_it_is_written() {
        for text in ["full", "grad_op", "none", "hybrid:2", "hybrid_grad_op:4"] {
            assert_eq!(text.parse::<Strategy>().map(|s| s.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "FULL", "hybrid", "hybrid:", "hybrid:0", "hybrid:-1", "full:2", "none:1"] {
            assert!(text.parse::<Strategy>().is_err(), "{text}");
        }
        for text in ["block", "1000"] {
            assert_eq!(text.parse::<Units>().map(|s| s.to_string()), Ok(text.to_owned()));
        }
        assert!("blocks".parse::<Units>().is_err());
        assert!(Sharding::new(Strategy::Hybrid(3), 4).is_err());
    }
}
