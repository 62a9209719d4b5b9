//! Unroll: an update's micro-batches in one program: all forwards, then all backwards, each in order.
//!
//! Before: `%g1 = accumulate(%g0, %d, %beta)` of one micro-batch with inputs `mel`, `beta` and output `loss`. After: inputs
//! `mel@0`, `mel@1`, .., `beta`, outputs `loss@0`, ..; the first micro-batch's sums start from `beta` times the state, each later
//! one's from the one before it: the same bits as one program after another.
//!
//! Alone it costs memory, as what forward keeps of every micro-batch lives at once. It is for [`place`](super::place): its
//! ranks work on different micro-batches at a time. The head and the loss are part of backward: their logits live once.

use super::accumulate::BETA;
use ambitus_ir::{Builder, Input, Instr, Output, Phase, Program, Session, TensorType, ValueId};

/// What of the unrolled program an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Of which micro-batch.
    pub micro_batch: usize,
    /// Of its second half: the head, the loss and backward.
    pub backward: bool,
}

/// Returns a program of `count` micro-batches, of the finished program of one; and what each of its instructions is.
pub fn unroll(session: &mut Session, p: &Program, count: usize) -> (Program, Vec<Step>) {
    let blocks = p.blocks_of();
    let backward = p.instrs.iter().position(|i| i.origin.phase == Phase::Backward).unwrap_or(p.instrs.len());
    let split = (0..backward).rev().find(|i| blocks[*i].is_some()).map_or(backward, |i| i + 1);
    let mut out = Program { name: p.name.clone(), blocks: p.blocks.clone(), ..Program::default() };
    let mut value = |ty| out.new_value(ty);
    // By micro-batch: the value in place of each.
    let mut maps: Vec<Vec<ValueId>> = Vec::with_capacity(count);
    for _ in 0..count {
        maps.push(p.types.iter().map(|ty| value(*ty)).collect());
    }
    for used in &p.states {
        for k in 1..count {
            maps[k][used.enters.index()] = match used.enters == used.leaves {
                true => maps[0][used.enters.index()],
                false => maps[k - 1][used.leaves.index()],
            };
        }
        let mut used = *used;
        (used.enters, used.leaves) = (maps[0][used.enters.index()], maps[count - 1][used.leaves.index()]);
        out.states.push(used);
    }
    for input in &p.inputs {
        let shared = input.name == BETA;
        for (k, map) in maps.iter().enumerate().take(if shared { 1 } else { count }) {
            let name = if shared { input.name.clone() } else { of(&input.name, k) };
            out.inputs.push(Input { name, value: map[input.value.index()] });
        }
    }
    if let (Some(beta), true) = (p.input(BETA), count > 1) {
        let mut b = Builder::resume(session, out, Phase::Backward);
        let one = b.fill(TensorType::f32(&[1]), 1.0);
        out = b.finish();
        maps[1..].iter_mut().for_each(|map| map[beta.index()] = one);
    }
    let mut steps = vec![Step { micro_batch: 0, backward: false }; out.instrs.len()];
    for (part, backward) in [(0..split, false), (split..p.instrs.len(), true)] {
        for (micro_batch, map) in maps.iter().enumerate() {
            steps.extend(part.clone().map(|_| Step { micro_batch, backward }));
            let of = |values: &[ValueId]| values.iter().map(|v| map[v.index()]).collect();
            out.instrs.extend(p.instrs[part.clone()].iter().map(|i| Instr {
                op: i.op.clone(),
                inputs: of(&i.inputs),
                outputs: of(&i.outputs),
                origin: i.origin.clone(),
            }));
        }
    }
    for (k, map) in maps.iter().enumerate() {
        let one = |o: &Output| Output { name: of(&o.name, k), value: map[o.value.index()] };
        out.outputs.extend(p.outputs.iter().map(one));
    }
    (out, steps)
}

/// Returns the name of an input or output of one of the micro-batches.
pub fn of(name: &str, micro_batch: usize) -> String {
    format!("{name}@{micro_batch}")
}
