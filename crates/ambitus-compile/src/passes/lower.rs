//! Lower: replaces ops for which the target has no kernel by their decomposition.
//!
//! Before: `%5 = grn(%1, %2, %3, %4)`. After: the core ops of its page, with the same provenance and phase.

use super::{Numerics, Pass};
use ambitus_ir::target::Target;
use ambitus_ir::{Builder, Program, Session, ValueId};
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

    fn run(&self, session: &mut Session, mut p: Program) -> Program {
        let mut work: Vec<_> = std::mem::take(&mut p.instrs);
        while work.iter().any(|i| !self.target.has_kernel(&i.op)) {
            let mut with: HashMap<ValueId, ValueId> = HashMap::new();
            let phase = ambitus_ir::Phase::Forward;
            let mut b = Builder::resume(session, std::mem::take(&mut p), phase);
            for mut instr in work {
                for v in &mut instr.inputs {
                    *v = with.get(v).copied().unwrap_or(*v);
                }
                let lowered = if self.target.has_kernel(&instr.op) {
                    None
                } else {
                    let phase = instr.origin.phase;
                    let def = instr.op.def();
                    b.derived(&instr.origin, phase, |b| def.decompose(b, &instr.inputs))
                };
                match lowered {
                    Some(values) => with.extend(instr.outputs.iter().copied().zip(values)),
                    None => b.append(instr),
                }
            }
            p = b.finish();
            super::simplify::substitute(&mut p, &with);
            work = std::mem::take(&mut p.instrs);
            let stuck = work.iter().find(|i| {
                !self.target.has_kernel(&i.op) && {
                    let mut scratch = Session::default();
                    let mut probe = Builder::new(&mut scratch, "probe");
                    let x: Vec<_> = i.inputs.iter().map(|v| probe.input(&v.to_string(), p.ty(*v))).collect();
                    i.op.def().decompose(&mut probe, &x).is_none()
                }
            });
            assert!(
                stuck.is_none(),
                "target {} lacks the core op {}",
                self.target.name(),
                stuck.map_or("", |i| i.op.name())
            );
        }
        p.instrs = work;
        p
    }
}
