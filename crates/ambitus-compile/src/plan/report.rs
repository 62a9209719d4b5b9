//! What a plan says: what lives when, and what the work costs.

use ambitus_ir::plan::{PlannedProgram, PlannedSession, Region};
use ambitus_ir::target::{Target, share_of_pairs};
use ambitus_ir::{Cost, Phase, StateKind, ValueId};
use std::collections::BTreeMap;

/// Transient bytes in use at one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Values.
    pub activations: u64,
    /// Scratch of the running instruction.
    pub workspace: u64,
}

/// Transient bytes in use at every instruction.
pub fn timeline(p: &PlannedProgram) -> Vec<Usage> {
    let mut at = vec![Usage::default(); p.program.instrs.len()];
    for live in &p.lives {
        for usage in &mut at[live.first as usize..=live.last as usize] {
            match live.value {
                Some(_) => usage.activations += live.place.bytes,
                None => usage.workspace += live.place.bytes,
            }
        }
    }
    at
}

/// Bytes of all states of a kind that are at home in the arena, each rounded up as it lies there.
pub fn state_bytes(s: &PlannedSession, kind: StateKind) -> u64 {
    let places = s.session.states.iter().zip(&s.states);
    places
        .filter(|(d, a)| d.kind == kind && a.region == Region::State)
        .map(|(_, a)| a.bytes.next_multiple_of(ambitus_ir::TensorType::ALIGN))
        .sum()
}

/// Transient bytes of gradients at the program's peak: what backward has made and an update is still to apply. Gradients
/// in states are not counted.
pub fn live_gradients(p: &PlannedProgram) -> u64 {
    let program = &p.program;
    let made = program.definitions();
    let backward = |v: ValueId| {
        // Fetched weights and moments are not gradients.
        let computed = |d: &usize| program.instrs[*d].op.def().queue().is_none();
        made[v.index()].filter(|d| program.instrs[*d].origin.phase == Phase::Backward).filter(computed)
    };
    let mut live = BTreeMap::new();
    for (i, instr) in program.instrs.iter().enumerate() {
        if instr.origin.phase != Phase::Update || i < p.peak_at {
            continue;
        }
        for v in instr.inputs.iter().filter(|v| backward(**v).is_some_and(|d| d <= p.peak_at)) {
            let place = p.place(*v);
            if place.region == Region::Transient {
                live.insert(place.offset, place.bytes);
            }
        }
    }
    live.values().sum()
}

/// Work of one run of a program over packed clips of so many `rows` (see [`share_of_pairs`]).
pub fn cost(p: &PlannedProgram, rows: f64) -> Cost {
    let mut sum = Cost::default();
    for instr in &p.program.instrs {
        let (x, y) = p.program.signature(instr);
        let cost = instr.op.cost(&x, &y);
        sum.flops += share_of_pairs(&instr.op, &x, rows) * cost.flops;
        sum.bytes += cost.bytes;
    }
    sum
}

/// Predicted seconds of one run of a program on a target. Copies of one queue run one after another, beside what stands
/// between start and done where the target can; only what a done waits for counts.
pub fn seconds(p: &PlannedProgram, target: &dyn Target) -> f64 {
    let mut now = 0.0;
    let mut queues: BTreeMap<u32, f64> = BTreeMap::new();
    let mut ready: BTreeMap<ValueId, f64> = BTreeMap::new();
    for instr in &p.program.instrs {
        let (x, y) = p.program.signature(instr);
        let def = instr.op.def();
        let takes = target.seconds(&instr.op, &x, &y);
        match def.queue().filter(|_| target.copies_beside()) {
            Some(queue) if def.props().starts => {
                let free = queues.entry(queue).or_insert(0.0);
                *free = free.max(now) + takes;
                // By token, the last of both.
                ready.extend(instr.outputs.last().map(|token| (*token, *free)));
            }
            Some(_) => {
                let at = instr.inputs.last().and_then(|token| ready.get(token));
                now = at.map_or(now, |at| now.max(*at));
            }
            None => now += takes,
        }
    }
    now
}

/// The provenance of the instruction at which most bytes live, as people read it:
/// `transformer_blocks.5 backward`.
pub fn peak_place(p: &PlannedProgram) -> String {
    let Some(instr) = p.program.instrs.get(p.peak_at) else {
        return p.program.name.clone();
    };
    let block = p.program.block_of(instr).map(|b| p.program.blocks[b].clone());
    let scope = || instr.origin.path.rsplit_once('.').map_or("", |(s, _)| s).to_owned();
    let direction = match instr.origin.phase {
        ambitus_ir::Phase::Forward => "forward",
        ambitus_ir::Phase::Backward | ambitus_ir::Phase::Recompute => "backward",
        ambitus_ir::Phase::Update => "update",
    };
    let place = block.unwrap_or_else(scope);
    format!("{} {direction}", place.strip_prefix("transformer.").unwrap_or(&place))
}
