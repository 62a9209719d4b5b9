//! Simplify: equal pure instructions become one; a loss that its gradient op forms anyway is taken from there; once there are
//! gradients, a detached value is the value.
//!
//! Before: `%3 = fill{0}` `%9 = fill{0}`. After: `%3` for both. Before: `%4 = detach(%3)`. After: `%3` for `%4`.
//!
//! Never merges across the forward/recompute mark: that would bring back the memory that recomputing freed.

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::{Instr, Op, Phase, Program, Session, ValueId};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The pass.
pub struct Simplify {
    /// Gradients are still to come: detached values stay apart.
    pub before_autodiff: bool,
}

/// Replaces values by others, everywhere.
pub(super) fn substitute(p: &mut Program, with: &HashMap<ValueId, ValueId>) {
    if with.is_empty() {
        return;
    }
    let get = |v: &mut ValueId| {
        while let Some(&w) = with.get(v) {
            *v = w;
        }
    };
    p.instrs.iter_mut().flat_map(|i| i.inputs.iter_mut()).for_each(get);
    p.outputs.iter_mut().for_each(|o| get(&mut o.value));
    p.states.iter_mut().for_each(|s| get(&mut s.leaves));
}

impl Pass for Simplify {
    fn name(&self) -> &'static str {
        "simplify"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, _: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let mut with = if self.before_autodiff { HashMap::new() } else { detached(&p) };
        // By the hash of name and operands.
        let mut seen: HashMap<u64, Vec<usize>> = HashMap::new();
        for i in 0..p.instrs.len() {
            let instr = &mut p.instrs[i];
            for v in &mut instr.inputs {
                while let Some(&w) = with.get(v) {
                    *v = w;
                }
            }
            let props = instr.op.def().props();
            let pure = instr.op.def().donates().is_empty() && !props.starts && !props.waits;
            let replaced = instr.outputs.iter().any(|v| with.contains_key(v));
            if !pure || replaced || instr.origin.phase == Phase::Recompute {
                continue;
            }
            let mut key = DefaultHasher::new();
            (instr.op.name(), &instr.inputs).hash(&mut key);
            let alike = seen.entry(key.finish()).or_default();
            match alike.iter().find(|first| same(&p.instrs[**first], &p.instrs[i])) {
                None => alike.push(i),
                Some(&first) => {
                    let pairs = p.instrs[i].outputs.iter().zip(&p.instrs[first].outputs);
                    with.extend(pairs.map(|(a, b)| (*a, *b)));
                }
            }
        }
        let heads = losses_from_gradients(&p);
        let moved = !heads.is_empty();
        with.extend(heads);
        substitute(&mut p, &with);
        if moved {
            in_order(&mut p);
        }
        Ok(super::dead::removed(p))
    }
}

/// Returns detached values with what they are. An output has bytes of its own, so it stays one where its operand is another output,
/// an input or a state; and so does what is still there when its operand may have been overwritten.
fn detached(p: &Program) -> HashMap<ValueId, ValueId> {
    let mut own: HashSet<ValueId> = p.inputs.iter().map(|i| i.value).collect();
    own.extend(p.states.iter().map(|s| s.enters));
    own.extend(p.outputs.iter().map(|o| o.value));
    let mut overwritten: HashSet<ValueId> = HashSet::new();
    for instr in &p.instrs {
        overwritten.extend(instr.op.def().donates().iter().map(|(from, _)| instr.inputs[*from]));
    }
    let outputs: HashSet<ValueId> = p.outputs.iter().map(|o| o.value).collect();
    let mut with = HashMap::new();
    for instr in p.instrs.iter().filter(|i| i.op.def().detaches()) {
        let (mut x, y) = (instr.inputs[0], instr.outputs[0]);
        while let Some(&w) = with.get(&x) {
            x = w;
        }
        let given_out = outputs.contains(&y);
        if overwritten.contains(&x) || (given_out && !own.insert(x)) {
            continue;
        }
        with.insert(y, x);
    }
    with
}

/// Returns whether they compute the same bits. Attributes are compared as text too: 0 and -0 are equal numbers.
fn same(a: &Instr, b: &Instr) -> bool {
    a.op == b.op && a.inputs == b.inputs && a.op.attrs() == b.op.attrs()
}

/// Returns pairs of a forward's loss and that of its gradient op. A cross-entropy head then walks its tiles once, in the
/// gradient op, which gives the loss as well. Pairs whose gradient depends on the loss are left alone.
fn losses_from_gradients(p: &Program) -> Vec<(ValueId, ValueId)> {
    let mut pairs = Vec::new();
    for (f, forward) in p.instrs.iter().enumerate() {
        let Op::LinearCrossEntropy(_) = forward.op else { continue };
        let is_gradient = |i: &&Instr| {
            matches!(i.op, Op::LinearCrossEntropyGrad(_)) && i.inputs[..4] == forward.inputs[..4]
        };
        let Some(gradient) = p.instrs[f..].iter().find(is_gradient) else { continue };
        let mut from_loss: HashSet<ValueId> = forward.outputs.iter().copied().collect();
        for instr in &p.instrs[f..] {
            if instr.inputs.iter().any(|v| from_loss.contains(v)) {
                from_loss.extend(&instr.outputs);
            }
        }
        if !from_loss.contains(&gradient.outputs[0]) {
            pairs.push((forward.outputs[0], gradient.outputs[0]));
        }
    }
    pairs
}

/// Moves instructions whose operands are made later to just after these.
fn in_order(p: &mut Program) {
    let mut made = vec![false; p.types.len()];
    let entries = p.inputs.iter().map(|i| i.value).chain(p.states.iter().map(|s| s.enters));
    entries.for_each(|v| made[v.index()] = true);
    let mut waiting: Vec<Instr> = Vec::new();
    let mut sorted = Vec::with_capacity(p.instrs.len());
    for instr in std::mem::take(&mut p.instrs) {
        waiting.push(instr);
        while let Some(at) = waiting.iter().position(|i| i.inputs.iter().all(|v| made[v.index()])) {
            let ready = waiting.remove(at);
            ready.outputs.iter().for_each(|v| made[v.index()] = true);
            sorted.push(ready);
        }
    }
    p.instrs = sorted;
}
