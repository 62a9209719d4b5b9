//! Simplify: equal pure instructions become one; a loss that its gradient op forms anyway is taken from there.
//!
//! Before: `%3 = fill{0}` `%9 = fill{0}`. After: `%3` for both.
//!
//! Never merges across the forward/recompute mark: that would bring back the memory that recomputing freed.

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::{Instr, Op, Phase, Program, Session, ValueId};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The pass.
pub struct Simplify;

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
        let mut with: HashMap<ValueId, ValueId> = HashMap::new();
        // By the hash of name and operands.
        let mut seen: HashMap<u64, Vec<usize>> = HashMap::new();
        for i in 0..p.instrs.len() {
            let instr = &mut p.instrs[i];
            for v in &mut instr.inputs {
                if let Some(&w) = with.get(v) {
                    *v = w;
                }
            }
            let props = instr.op.def().props();
            let pure = instr.op.def().donates().is_empty() && !props.starts && !props.waits;
            if !pure || instr.origin.phase == Phase::Recompute {
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
