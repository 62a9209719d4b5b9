//! Accumulate: gradients leave the program in states, so that several micro-batches make one update.
//!
//! Before: `%d = ...; output grad.w %d`. After: state `grad.w`, and right where each contribution to the gradient is formed
//! `%g1 = accumulate(%g0, %d, %beta)`; the input `beta` is 0 in an update's first micro-batch and 1 after.
//!
//! A parameter that is used several times has a sum of contributions as its gradient; each is accumulated as it appears, so
//! none is kept waiting for the others.
//!
//! With `several_only`, a gradient of one contribution stays an output: [`super::in_backward`] takes it from there. One of
//! several contributions lives through most of backward anyway, as it waits for its last, so a state costs it nothing.

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::ops::elementwise::BinaryKind;
use ambitus_ir::{Builder, Op, Phase, Program, Session, StateKind, TensorType, ValueId};
use std::collections::HashMap;

/// The pass.
pub struct Accumulate {
    /// Leave gradients of a single contribution as outputs.
    pub several_only: bool,
}

/// Prefix of gradient outputs and states.
pub const GRAD: &str = "grad.";

/// Input that says whether a micro-batch is an update's first.
pub const BETA: &str = "beta";

/// Which values are sums of contributions to a gradient.
pub(super) struct Sums {
    defs: Vec<Option<usize>>,
    readers: Vec<usize>,
}

impl Sums {
    /// Finds the sums of a program.
    pub fn of(p: &Program) -> Sums {
        let mut readers = vec![0usize; p.types.len()];
        p.instrs.iter().flat_map(|i| &i.inputs).for_each(|v| readers[v.index()] += 1);
        p.outputs.iter().for_each(|o| readers[o.value.index()] += 1);
        Sums { defs: p.definitions(), readers }
    }

    /// Returns the instruction that makes a value.
    pub fn made(&self, v: ValueId) -> Option<usize> {
        self.defs[v.index()]
    }

    /// Returns the instructions that form a gradient from its contributions, and these: the leaves of its tree of sums.
    pub fn leaves(&self, p: &Program, grad: ValueId) -> (Vec<usize>, Vec<ValueId>) {
        let (mut stack, mut sums, mut leaves) = (vec![grad], Vec::new(), Vec::new());
        while let Some(v) = stack.pop() {
            let sum = self.defs[v.index()].filter(|&d| {
                let instr = &p.instrs[d];
                let add = matches!(&instr.op, Op::Binary(b) if b.kind == BinaryKind::Add);
                add && instr.origin.phase == Phase::Backward && self.readers[v.index()] == 1
            });
            match sum {
                Some(d) => {
                    sums.push(d);
                    stack.extend(&p.instrs[d].inputs);
                }
                None => leaves.push(v),
            }
        }
        (sums, leaves)
    }
}

impl Pass for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Reordered
    }

    fn run(&self, session: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let all = Sums::of(&p);
        let mut grads: Vec<ambitus_ir::Output> = Vec::new();
        let mut parts: HashMap<ValueId, Vec<usize>> = HashMap::new();
        let mut dropped = vec![false; p.instrs.len()];
        for out in std::mem::take(&mut p.outputs) {
            if !out.name.starts_with(GRAD) {
                p.outputs.push(out);
                continue;
            }
            let (sums, leaves) = all.leaves(&p, out.value);
            if self.several_only && leaves.len() == 1 {
                p.outputs.push(out);
                continue;
            }
            sums.into_iter().for_each(|d| dropped[d] = true);
            leaves.into_iter().for_each(|v| parts.entry(v).or_default().push(grads.len()));
            grads.push(out);
        }
        if grads.is_empty() {
            return Ok(p);
        }

        let instrs = std::mem::take(&mut p.instrs);
        let mut b = Builder::resume(session, p, Phase::Backward);
        let beta = b.input(BETA, TensorType::f32(&[1]));
        let mut started = vec![false; grads.len()];
        let mut one = None;
        for (instr, dropped) in instrs.into_iter().zip(dropped) {
            if dropped {
                continue;
            }
            let (made, origin) = (instr.outputs.clone(), instr.origin.clone());
            let targets = |v: &ValueId| parts.get(v).cloned().unwrap_or_default();
            let mut sums: Vec<(ValueId, usize, bool)> = Vec::new();
            for v in made {
                let started = |k| (v, k, !std::mem::replace(&mut started[k], true));
                sums.extend(targets(&v).into_iter().map(started));
            }
            // The factor of later contributions stands before the op that makes them, which may then add in place.
            if one.is_none() && sums.iter().any(|(_, _, first)| !first) {
                let ty = TensorType::f32(&[1]);
                one = Some(b.derived(&origin, Phase::Backward, |b| b.fill(ty, 1.0)));
            }
            b.append(instr);
            for (v, k, first) in sums {
                let (id, g) = b.declare(&grads[k].name, b.ty(v), StateKind::Gradient);
                let factor = one.filter(|_| !first).unwrap_or(beta);
                let g = b.derived(&origin, Phase::Backward, |b| b.accumulate(g, v, factor));
                b.give_back(id, g);
            }
        }
        Ok(b.finish())
    }
}
