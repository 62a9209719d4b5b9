//! Reverse-mode differentiation of a straight-line program.
//!
//! Before: `... output loss %9`. After: these, then backward instructions, and for every trainable parameter `w` of the
//! program an output `grad.w` with its gradient. Each op states its own rule ([`OpDef::vjp`](ambitus_ir::OpDef::vjp)).
//!
//! A gradient is of its value's type, rounded where a rule gives f32 for a 16-bit value; ops that only move numbers hand f32
//! on, so that a parameter behind a cast gets it whole. Gradients of parameters are f32, whatever the model computes in.
//! Backward begins from 1, or from the session's loss scale where there is one.

use crate::CompileError;
use crate::passes::precision::LOSS_SCALE;
use crate::passes::{Numerics, Pass};
use crate::player::Player;
use ambitus_ir::ops::Vjp;
use ambitus_ir::{Builder, DType, Instr, Output, Phase, Program, Session, StateDecl, StateKind, ValueId};
use std::collections::HashMap;

/// The pass.
pub struct Autodiff<'a> {
    /// Whose parameters get gradients.
    pub player: &'a Player,
}

impl Pass for Autodiff<'_> {
    fn name(&self) -> &'static str {
        "autodiff"
    }

    /// Declares that forward does not change.
    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, session: &mut Session, p: Program) -> Result<Program, CompileError> {
        differentiate_for(session, p, &|s| self.player.has(s))
    }
}

/// Appends the backward of `loss` to a forward program.
///
/// # Errors
/// No loss, an op without gradient on the way to a trainable parameter, or trainable parameters that the loss does not
/// depend on, all by name.
pub fn differentiate(session: &mut Session, program: Program) -> Result<Program, CompileError> {
    differentiate_for(session, program, &|_| true)
}

/// Differentiates with respect to the trainable parameters that `trains` picks; the others are constants. Two programs of one
/// session may train different parts, as a generator and its discriminator do. See [`differentiate`].
///
/// # Errors
/// As [`differentiate`].
pub fn differentiate_for(
    session: &mut Session,
    program: Program,
    trains: &dyn Fn(&StateDecl) -> bool,
) -> Result<Program, CompileError> {
    let loss = program.output("loss").ok_or_else(|| CompileError::NoLoss(program.name.clone()))?;
    let trainable: Vec<(ValueId, String)> = program
        .states
        .iter()
        .map(|u| (u.enters, &session.states[u.state.index()]))
        .filter(|(_, s)| s.kind == StateKind::Parameter && s.trainable && trains(s))
        .map(|(v, s)| (v, s.name.clone()))
        .collect();

    // Values that depend on a trainable parameter, other than as constants: only these get gradients.
    let mut depends = vec![false; program.types.len()];
    for (v, _) in &trainable {
        depends[v.index()] = true;
    }
    for instr in &program.instrs {
        if !instr.op.def().detaches() && instr.inputs.iter().any(|v| depends[v.index()]) {
            for v in &instr.outputs {
                depends[v.index()] = true;
            }
        }
    }

    let forward = program.instrs.clone();
    let mut b = Builder::resume(session, program, Phase::Backward);
    let mut grads: HashMap<ValueId, ValueId> = HashMap::new();
    let seed = match b.session().state(LOSS_SCALE) {
        Some(scale) => b.state(scale),
        None => b.scope("loss", |b| b.fill_like(loss, 1.0)),
    };
    grads.insert(loss, seed);
    for instr in forward.iter().rev() {
        let dy: Vec<Option<ValueId>> = instr.outputs.iter().map(|v| grads.get(v).copied()).collect();
        let need: Vec<bool> = instr.inputs.iter().map(|v| depends[v.index()]).collect();
        if dy.iter().all(Option::is_none) || !need.contains(&true) {
            continue;
        }
        let dy = rounded(&mut b, instr, dy);
        let vjp = Vjp { x: &instr.inputs, y: &instr.outputs, dy: &dy, need: &need };
        let made =
            b.derived(&instr.origin, Phase::Backward, |b| instr.op.def().vjp(b, &vjp)).map_err(|why| {
                CompileError::NoGradient {
                    path: instr.origin.path.to_string(),
                    why: format!("{} {why}", instr.op.name()),
                }
            })?;
        for ((x, dx), need) in instr.inputs.iter().zip(made).zip(&need) {
            let (Some(dx), true) = (dx, need) else { continue };
            let sum = match grads.get(x) {
                None => dx,
                Some(&old) => b.derived(&instr.origin, Phase::Backward, |b| sum(b, old, dx)),
            };
            grads.insert(*x, sum);
        }
    }
    for (v, _) in &trainable {
        if let Some(g) = grads.get_mut(v) {
            *g = b.scope("loss", |b| b.as_dtype(*g, DType::F32));
        }
    }
    let mut program = b.finish();
    let mut cut = Vec::new();
    for (v, name) in trainable {
        match grads.get(&v) {
            Some(&value) => program.outputs.push(Output { name: format!("grad.{name}"), value }),
            None => cut.push(name),
        }
    }
    if cut.is_empty() { Ok(program) } else { Err(CompileError::NoPath(cut)) }
}

/// Returns the gradients of an instruction's results in the types of these, but for ops that hand on what they get.
fn rounded(b: &mut Builder<'_>, instr: &Instr, dy: Vec<Option<ValueId>>) -> Vec<Option<ValueId>> {
    if instr.op.def().conducts() {
        return dy;
    }
    let one = |(dy, y): (Option<ValueId>, &ValueId)| {
        let dtype = b.ty(*y).dtype;
        dy.map(|dy| b.derived(&instr.origin, Phase::Backward, |b| b.as_dtype(dy, dtype)))
    };
    dy.into_iter().zip(&instr.outputs).map(one).collect()
}

/// Returns the sum of two gradients of one value; in f32 where they differ in type.
fn sum(b: &mut Builder<'_>, p: ValueId, q: ValueId) -> ValueId {
    if b.ty(p).dtype == b.ty(q).dtype {
        return b.add(p, q);
    }
    let (p, q) = (b.as_dtype(p, DType::F32), b.as_dtype(q, DType::F32));
    b.add(p, q)
}
