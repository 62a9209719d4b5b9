//! Rows before casts: of a table that is stored in another type, only the rows that are looked up are cast. The same numbers, and no
//! copy of the whole table in every step of a generation.
//!
//! Before: `%2 = cast(%table) {to=f32}; %3 = gather(%2, %ids)`. After: `%4 = gather(%table, %ids); %3 = cast(%4) {to=f32}`.
//!
//! Training keeps the order of its programs, which plans depend on; there such a copy is one of many.

use super::dead::removed;
use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::{Builder, Instr, Op, Origin, Phase, Program, Session, ValueId};
use std::collections::HashMap;

/// The pass.
pub struct Rows;

impl Pass for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, session: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let mut casts: HashMap<ValueId, (ValueId, Op)> = HashMap::new();
        let instrs = std::mem::take(&mut p.instrs);
        let mut b = Builder::resume(session, p, Phase::Forward);
        for instr in instrs {
            if let (Op::Cast(_), [from], [to]) = (&instr.op, &instr.inputs[..], &instr.outputs[..]) {
                casts.insert(*to, (*from, instr.op.clone()));
            }
            // The ids are a look-up's other operand; a part's has a third.
            let table = matches!((&instr.op, instr.inputs.len()), (Op::Gather(_), 2))
                .then(|| casts.get(&instr.inputs[0]));
            let Some((table, cast)) = table.flatten() else {
                b.append(instr);
                continue;
            };
            let Instr { op, inputs, outputs, origin } = instr;
            let path = format!("{}.rows", origin.path).into();
            let rows = b.push_at(op, &[*table, inputs[1]], Origin { path, phase: origin.phase });
            b.append(Instr { op: cast.clone(), inputs: rows, outputs, origin });
        }
        Ok(removed(b.finish()))
    }
}
