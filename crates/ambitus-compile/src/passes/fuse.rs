//! Fuse: an accumulation into a state swallows the op that forms the addend, where that op can add in place.
//!
//! Before: `%d = matmul(%dy, %x) {ta}; %g1 = accumulate(%g0, %d, %beta)`.
//! After: `%g1 = matmul(%dy, %x, %g0, %beta) {ta, acc}`: no temporary the size of the weight.

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::target::Target;
use ambitus_ir::{Op, Program, Session};

/// The pass.
pub struct Fuse<'t> {
    /// Where the program will run: it must have the kernel that adds in place.
    pub target: &'t dyn Target,
}

impl Pass for Fuse<'_> {
    fn name(&self) -> &'static str {
        "fuse"
    }

    /// Declares `Reordered`: one rounding fewer per element.
    fn numerics(&self) -> Numerics {
        Numerics::Reordered
    }

    fn run(&self, _: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let defs = p.definitions();
        let mut readers = vec![0usize; p.types.len()];
        p.instrs.iter().flat_map(|i| &i.inputs).for_each(|v| readers[v.index()] += 1);
        p.outputs.iter().for_each(|o| readers[o.value.index()] += 1);
        let mut gone = vec![false; p.instrs.len()];
        for (at, gone) in gone.iter_mut().enumerate() {
            let Op::Accumulate(_) = p.instrs[at].op else { continue };
            let &[acc, addend, beta] = p.instrs[at].inputs.as_slice() else { continue };
            let Some(from) = defs[addend.index()].filter(|_| readers[addend.index()] == 1) else {
                continue;
            };
            let Some(k) = p.instrs[from].outputs.iter().position(|v| *v == addend) else { continue };
            let op = p.instrs[from].op.def().accumulating(k);
            let Some(op) = op else { continue };
            let (mut x, mut y) = p.signature(&p.instrs[from]);
            x.extend([p.ty(acc), p.ty(beta)]);
            y[k] = p.ty(acc);
            // The sum must have the accumulator's type before it can be formed there.
            if op.def().infer(&x).as_ref() != Ok(&y) || !self.target.has_kernel(&op, &x, &y) {
                continue;
            }
            // The accumulator and beta must exist where the addend is formed.
            let early = |v: ambitus_ir::ValueId| defs[v.index()].is_none_or(|d| d < from);
            if !early(acc) || !early(beta) {
                continue;
            }
            let result = p.instrs[at].outputs[0];
            let maker = &mut p.instrs[from];
            maker.op = op;
            maker.inputs.extend([acc, beta]);
            maker.outputs[k] = result;
            *gone = true;
        }
        let mut gone = gone.into_iter();
        p.instrs.retain(|_| !gone.next().unwrap_or(false));
        Ok(p)
    }
}
