//! Checkpoint: values tagged for recomputation are recomputed inside backward, right before their first reader there.
//!
//! Before: `%5 = layer_norm(%1) fwd; ...; %9 = matmul(%8, %5) bwd`. After:
//! `%5 = layer_norm(%1) fwd; ...; %20 = layer_norm(%1) recompute; %9 = matmul(%8, %20) bwd`, and `%5` dies in forward.
//!
//! A clone keeps its original's op, kernel, path and random key, so the numbers are the same bits
//! (Chen et al., arXiv 1604.06174, for whole blocks).

use super::policy::{self, Blocks};
use super::shard::{self, Sharding};
use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::target::Target;
use ambitus_ir::{Instr, Origin, Phase, Program, Session, ValueId};
use std::collections::HashMap;

/// What policies tag is recomputed: the pass as the pipeline has it.
pub struct Recompute<'a> {
    /// What of the blocks is recomputed.
    pub blocks: &'a Blocks,
    /// How ranks share parameters, which says what backward gathers again.
    pub sharding: Option<&'a Sharding>,
    /// Says how long recomputing takes.
    pub target: &'a dyn Target,
}

impl Pass for Recompute<'_> {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, session: &mut Session, p: Program) -> Result<Program, CompileError> {
        let mut recompute = policy::tag(&p, self.blocks, self.target);
        if let Some(sharding) = self.sharding {
            shard::tag(&p, sharding, &mut recompute);
        }
        Checkpoint { recompute }.run(session, p)
    }
}

/// The pass, obeying any tags.
pub struct Checkpoint {
    /// For every instruction: make its results again in backward.
    pub recompute: Vec<bool>,
}

impl Pass for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, _: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let originals = std::mem::take(&mut p.instrs);
        let defs = {
            let mut at = vec![None; p.types.len()];
            for (i, instr) in originals.iter().enumerate() {
                instr.outputs.iter().for_each(|v| at[v.index()] = Some(i));
            }
            at
        };
        let tagged = originals.iter().zip(&self.recompute);
        let tagged = tagged.map(|(instr, again)| again.then(|| instr.clone())).collect();
        let mut cloner = Cloner { tagged, defs, p, made: HashMap::new() };
        for mut instr in originals {
            if instr.origin.phase == Phase::Backward {
                for v in &mut instr.inputs {
                    *v = cloner.fresh(*v);
                }
            }
            cloner.p.instrs.push(instr);
        }
        Ok(cloner.p)
    }
}

struct Cloner {
    /// By instruction; those that are recomputed.
    tagged: Vec<Option<Instr>>,
    defs: Vec<Option<usize>>,
    p: Program,
    made: HashMap<ValueId, ValueId>,
}

impl Cloner {
    /// Returns the value to read in backward in place of `v`: itself, or a clone's result.
    fn fresh(&mut self, v: ValueId) -> ValueId {
        if let Some(&w) = self.made.get(&v) {
            return w;
        }
        let at = self.defs.get(v.index()).copied().flatten();
        let Some(original) = at.and_then(|at| self.tagged[at].clone()) else {
            return v;
        };
        let inputs = original.inputs.iter().map(|x| self.fresh(*x)).collect();
        let outputs: Vec<ValueId> =
            original.outputs.iter().map(|o| self.p.new_value(self.p.ty(*o))).collect();
        let origin = Origin { path: original.origin.path, phase: Phase::Recompute };
        self.p.instrs.push(Instr { op: original.op, inputs, outputs: outputs.clone(), origin });
        self.made.extend(original.outputs.into_iter().zip(outputs));
        self.made[&v]
    }
}
