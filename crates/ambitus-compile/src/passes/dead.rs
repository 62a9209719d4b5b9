//! Dead code: removes instructions whose results nothing reads.
//!
//! Before: `%4 = add(%1, %2)` without a reader. After: nothing.

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::{Program, Session};

/// The pass.
pub struct Dead;

impl Pass for Dead {
    fn name(&self) -> &'static str {
        "dead"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, _: &mut Session, p: Program) -> Result<Program, CompileError> {
        Ok(removed(p))
    }
}

/// Returns the program without them.
pub(super) fn removed(mut p: Program) -> Program {
    let mut live = vec![false; p.types.len()];
    let roots = p.outputs.iter().map(|o| o.value).chain(p.states.iter().map(|s| s.leaves));
    for v in roots {
        live[v.index()] = true;
    }
    let mut keep = vec![false; p.instrs.len()];
    for (i, instr) in p.instrs.iter().enumerate().rev() {
        if instr.outputs.iter().any(|v| live[v.index()]) {
            keep[i] = true;
            for v in &instr.inputs {
                live[v.index()] = true;
            }
        }
    }
    let mut at = keep.iter();
    p.instrs.retain(|_| *at.next().unwrap_or(&true));
    p
}
