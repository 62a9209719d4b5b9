//! Update in backward: every gradient is clipped and applied where it is final, and dies there (LOMO, arXiv 2306.09782;
//! "optimizer in backward").
//!
//! Before: `%d = matmul(%dy, %x) {ta}; %dx = matmul(%dy, %w); ...; output grad.w %d`. After:
//! `%d = matmul(%dy, %x) {ta}; %dx = matmul(%dy, %w); %w1, %m1, %v1 = adamw(%w, %d, %m, %v, ...); ...`, and no state
//! `grad.w`: its bytes are free for the rest of backward.
//!
//! An update stands behind the last instruction that makes its gradient or reads the old weight: the layer's own dx, other
//! uses of a tied weight, recompute clones. So the pass runs when all of them are there, after `checkpoint`. A gradient of
//! several contributions was accumulated in a state; it is applied from there.
//!
//! The program is a whole update: legal with one micro-batch per update only, and without anything that must know all
//! gradients before the first is applied (clipping by the global norm, a dynamic loss scale). What that means for a gradient
//! that is not finite, and for the counter, is said at `PerTensor`. Bit-equal to
//! [`optimizer::update_per_tensor`](crate::optimizer::update_per_tensor) after the `micro` program.

use super::accumulate::GRAD;
use super::{Numerics, Pass};
use crate::CompileError;
use crate::optimizer::{Optimizer, PerTensor};
use ambitus_ir::{Builder, Phase, Program, Session, StateId, StateKind, ValueId};

/// The pass.
#[derive(Clone, Debug)]
pub struct InBackward<'a> {
    /// What applies gradients.
    pub optimizer: &'a Optimizer,
    /// Name of the state that counts updates.
    pub step: String,
}

impl Pass for InBackward<'_> {
    fn name(&self) -> &'static str {
        "in_backward"
    }

    /// Against the update program with the same rule of clipping.
    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, session: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let trained = gradients(session, &mut p);
        // The last instruction that makes or reads each value.
        let mut last = vec![0; p.types.len()];
        for (i, instr) in p.instrs.iter().enumerate() {
            instr.inputs.iter().chain(&instr.outputs).for_each(|v| last[v.index()] = i);
        }
        let mut made = vec![0; p.types.len()];
        p.definitions().iter().enumerate().for_each(|(v, at)| made[v] = at.unwrap_or(0));
        let mut due = vec![Vec::new(); p.instrs.len()];
        for (k, (param, grad)) in trained.iter().enumerate() {
            let used = p.states.iter().find(|u| u.state == *param);
            let read = used.map_or(0, |u| last[u.leaves.index()]);
            due[read.max(made[grad.index()])].push(k);
        }

        let instrs = std::mem::take(&mut p.instrs);
        let mut b = Builder::resume(session, p, Phase::Update);
        let rule = PerTensor::begin(&mut b, &self.step, self.optimizer);
        let mut squares = vec![None; trained.len()];
        for (instr, due) in instrs.into_iter().zip(due) {
            b.append(instr);
            for k in due {
                squares[k] = Some(rule.update(&mut b, trained[k].0, trained[k].1));
            }
        }
        rule.end(&mut b, &squares.into_iter().flatten().collect::<Vec<_>>());
        Ok(b.finish())
    }
}

/// Takes the program's gradients, with their parameters, in the order in which these were declared: outputs, which end
/// here, and states.
fn gradients(session: &Session, p: &mut Program) -> Vec<(StateId, ValueId)> {
    let parameter = |gradient: &str| gradient.strip_prefix(GRAD).and_then(|name| session.state(name));
    let mut out = Vec::new();
    p.outputs.retain(|o| {
        let param = parameter(&o.name);
        out.extend(param.map(|param| (param, o.value)));
        param.is_none()
    });
    for used in &p.states {
        let decl = &session.states[used.state.index()];
        if decl.kind == StateKind::Gradient {
            out.extend(parameter(&decl.name).map(|param| (param, used.leaves)));
        }
    }
    out.sort_by_key(|(param, _)| *param);
    out
}
