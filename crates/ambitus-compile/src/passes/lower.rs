//! Lower: replaces ops for which the target has no kernel by their decomposition.
//!
//! Before: `%5 = grn(%1, %2, %3, %4)`. After: the core ops of its page, with the same provenance and phase.
//!
//! Every target has kernels for the core ops and for those that overwrite states: a decomposition makes new values, and
//! a state has to stay on its bytes.

use super::{Numerics, Pass};
use ambitus_ir::target::Target;
use ambitus_ir::{Builder, Phase, Program, Session, ValueId};
use std::collections::HashMap;

/// The pass.
pub struct Lower<'t> {
    /// Where the program will run.
    pub target: &'t dyn Target,
}

impl Pass for Lower<'_> {
    fn name(&self) -> &'static str {
        "lower"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Reordered
    }

    /// # Panics
    /// When the target lacks an op that has no decomposition.
    fn run(&self, session: &mut Session, mut p: Program) -> Program {
        // A decomposition may use fused ops in turn.
        while p.instrs.iter().any(|i| !self.target.has_kernel(&i.op)) {
            let work = std::mem::take(&mut p.instrs);
            let mut with: HashMap<ValueId, ValueId> = HashMap::new();
            let mut b = Builder::resume(session, p, Phase::Forward);
            for mut instr in work {
                for v in &mut instr.inputs {
                    *v = with.get(v).copied().unwrap_or(*v);
                }
                if self.target.has_kernel(&instr.op) {
                    b.append(instr);
                    continue;
                }
                let def = instr.op.def();
                let core = b.derived(&instr.origin, instr.origin.phase, |b| {
                    def.donates().is_empty().then(|| def.decompose(b, &instr.inputs)).flatten()
                });
                let Some(values) = core else {
                    panic!(
                        "target {} lacks the op {}, which cannot be lowered",
                        self.target.name(),
                        instr.op.name()
                    );
                };
                with.extend(instr.outputs.iter().copied().zip(values));
            }
            p = b.finish();
            super::simplify::substitute(&mut p, &with);
        }
        p
    }
}
