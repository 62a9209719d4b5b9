//! The programs that end an update: gradient norm, clipping, AdamW, and the moving average.

use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::optim::{AdamW, Lerp};
use ambitus_ir::{Builder, Phase, Program, Session, StateDecl, StateId, StateKind, TensorType};

/// Name of the state that counts applied updates, f32 `[1]`.
pub const STEP: &str = "step";

/// Trainable parameters of the group with their gradient states, in declaration order.
fn trained(session: &Session, group: &dyn Fn(&StateDecl) -> bool) -> Vec<(StateId, StateId)> {
    let ids = (0..session.states.len() as u32).map(StateId);
    ids.filter_map(|id| {
        let s = &session.states[id.index()];
        let trained = s.kind == StateKind::Parameter && s.trainable && group(s);
        let grad = session.state(&format!("grad.{}", s.name))?;
        trained.then_some((id, grad))
    })
    .collect()
}

fn start<'s>(session: &'s mut Session, name: &str) -> Builder<'s> {
    let program = Program { name: name.to_owned(), ..Program::default() };
    Builder::resume(session, program, Phase::Update)
}

/// `update`: clips by global norm and applies AdamW, all of it selected by `apply`, which is computed here: every
/// gradient is finite.
///
/// Inputs `lr` `[1]` and `clip` `[1]` (largest norm; infinite for none). Outputs `grad_norm`, `apply`, `step` `[1]`.
/// The clip factor is min(1, clip / (norm + 1e-6)), as `torch.nn.utils.clip_grad_norm_`.
pub fn update(session: &mut Session, adamw: &AdamW) -> Program {
    update_for(session, "update", STEP, adamw, &|_| true)
}

/// As [`update`], for the parameters of one group, under a program name and a counter of its own.
pub fn update_for(
    session: &mut Session,
    name: &str,
    step: &str,
    adamw: &AdamW,
    group: &dyn Fn(&StateDecl) -> bool,
) -> Program {
    let trained = trained(session, group);
    let mut b = start(session, name);
    let lr = b.input("lr", TensorType::f32(&[1]));
    let clip = b.input("clip", TensorType::f32(&[1]));
    let grads: Vec<_> = trained.iter().map(|(_, g)| b.state(*g)).collect();
    let total = b.sum_of_squares(&grads);
    let apply = b.unary(UnaryKind::IsFinite, total);
    let norm = b.unary(UnaryKind::Sqrt, total);
    let tiny = b.fill_like(norm, 1e-6);
    let padded = b.add(norm, tiny);
    let ratio = b.div(clip, padded);
    let one = b.fill_like(norm, 1.0);
    let coef = b.binary(BinaryKind::Min, ratio, one);
    let (step_id, step) = b.declare(step, TensorType::f32(&[1]), StateKind::Counter);
    // `apply` is 0 or 1: the counter moves by exactly that.
    let next = b.accumulate(step, apply, one);
    b.give_back(step_id, next);
    for ((param, _), grad) in trained.iter().zip(&grads) {
        let decl = b.session().states[param.index()].clone();
        b.scope(&decl.name, |b| {
            let w = b.state(*param);
            let (m_id, m) = b.declare(&format!("exp_avg.{}", decl.name), decl.ty, StateKind::Optimizer);
            let (v_id, v) = b.declare(&format!("exp_avg_sq.{}", decl.name), decl.ty, StateKind::Optimizer);
            let new = b.push(adamw.clone(), &[w, *grad, m, v, lr, coef, next, apply]);
            b.give_back(*param, new[0]);
            b.give_back(m_id, new[1]);
            b.give_back(v_id, new[2]);
        });
    }
    b.output("grad_norm", norm);
    b.output("apply", apply);
    b.output("step", next);
    b.finish()
}

/// `ema`: average = average + (1 - decay) * (weight - average) for every trainable parameter. Inputs `decay` `[1]`.
pub fn ema(session: &mut Session) -> Program {
    let trained = trained(session, &|_| true);
    let mut b = start(session, "ema");
    let decay = b.input("decay", TensorType::f32(&[1]));
    let apply = b.fill_like(decay, 1.0);
    for (param, _) in trained {
        let decl = b.session().states[param.index()].clone();
        b.scope(&decl.name, |b| {
            let w = b.state(param);
            let (id, e) = b.declare(&format!("ema.{}", decl.name), decl.ty, StateKind::Ema);
            let new = b.push1(Lerp {}, &[e, w, decay, apply]);
            b.give_back(id, new);
        });
    }
    b.finish()
}

/// The same program reading the averages instead of the trainable parameters.
pub fn on_averages(session: &Session, program: &Program, name: &str) -> Program {
    let mut p = program.clone();
    name.clone_into(&mut p.name);
    for used in &mut p.states {
        let decl = &session.states[used.state.index()];
        if let Some(id) = session.state(&format!("ema.{}", decl.name)) {
            used.state = id;
        }
    }
    p
}
