//! Pure bf16: parameters of two and more axes are kept in bf16 alone, without an fp32 copy ("master weights"). Two bytes a
//! parameter instead of four; what bf16 cannot hold of an update is rounded stochastically
//! ([`narrow`](ambitus_ir::ops::narrow)), so that small steps arrive on average. Vectors (biases, norms, frequencies) are few
//! bytes and stay fp32.
//!
//! Before: `%1 = state w (f32); %2 = linear(%0, %1); %9 = cast(%1) {to=bf16}`. After: `%1 = state w (bf16);
//! %c = cast(%1) {to=f32}; %2 = linear(%0, %c)`, and `%1` in the place of `%9`.
//!
//! Every reader gets a cast of its own: one that served forward and backward would be an fp32 copy that lives between them.
//! So the pass runs after autodiff (gradients are fp32) and after whatever merges equal instructions. It never changes a
//! program that writes parameters: updates, also those in backward, are built after it and take parameters as they are.

use super::simplify::substitute;
use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::ops::elementwise::Cast;
use ambitus_ir::{Builder, DType, Op, Origin, Phase, Program, Session, StateKind, TensorType, ValueId};
use std::collections::HashMap;

/// Redeclares the parameters of a session in bf16. Comes after the session's forward programs are built, which see fp32.
pub fn declare(session: &mut Session) {
    let narrow = |s: &&mut ambitus_ir::StateDecl| s.kind == StateKind::Parameter && s.ty.shape.len() > 1;
    for s in session.states.iter_mut().filter(narrow) {
        s.ty = TensorType::new(DType::BF16, &s.ty.shape);
    }
}

/// The pass: makes a program read states as they are declared.
#[derive(Clone, Copy, Debug)]
pub struct Pure;

impl Pass for Pure {
    fn name(&self) -> &'static str {
        "pure"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Changed
    }

    fn declare(&self, session: &mut Session) {
        declare(session);
    }

    fn run(&self, session: &mut Session, p: Program) -> Result<Program, CompileError> {
        Ok(as_declared(session, p))
    }
}

/// Reads states whose declared type differs from the program's through casts, one for every reader; casts back to the declared
/// type vanish.
pub(crate) fn as_declared(session: &mut Session, mut p: Program) -> Program {
    let mut was: HashMap<ValueId, DType> = HashMap::new();
    for used in &p.states {
        let declared = session.states[used.state.index()].ty;
        let here = &mut p.types[used.enters.index()];
        if *here != declared {
            debug_assert_eq!(used.enters, used.leaves, "only states that are read change their type");
            was.insert(used.enters, here.dtype);
            *here = declared;
        }
    }
    if was.is_empty() {
        return p;
    }
    let instrs = std::mem::take(&mut p.instrs);
    let mut with: HashMap<ValueId, ValueId> = HashMap::new();
    // What starts read, by token: their dones name the same.
    let mut started: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
    let mut b = Builder::resume(session, p, Phase::Forward);
    for mut instr in instrs {
        if let (Op::Cast(op), [x]) = (&instr.op, &instr.inputs[..])
            && was.contains_key(x)
            && op.to == b.ty(*x).dtype
        {
            with.insert(instr.outputs[0], *x);
            continue;
        }
        let props = instr.op.def().props();
        let begun = instr.inputs.last().filter(|_| props.waits).and_then(|token| started.get(token)).cloned();
        for (k, v) in instr.inputs.iter_mut().enumerate() {
            if let Some(same) = begun.as_ref().and_then(|all| all.get(k)) {
                *v = *same;
            } else if let Some(to) = was.get(v) {
                // By the operand: a clone's cast is its original's.
                let path = format!("{}.cast.{k}", instr.origin.path).into();
                let origin = Origin { path, phase: instr.origin.phase };
                *v = b.push_at(Cast { to: *to }.into(), &[*v], origin)[0];
            }
        }
        if let (true, Some(token)) = (props.starts, instr.outputs.last()) {
            started.insert(*token, instr.inputs.clone());
        }
        b.append(instr);
    }
    let mut p = b.finish();
    substitute(&mut p, &with);
    p
}
