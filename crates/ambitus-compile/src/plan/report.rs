//! What a plan says: what lives when, and what the work costs.

use super::timelines::elapsed;
use ambitus_ir::ops::collective;
use ambitus_ir::plan::{Live, PlannedProgram, PlannedSession, Region};
use ambitus_ir::target::{Target, share_of_pairs};
use ambitus_ir::{Cost, Instr, Op, Phase, Program, StateKind, TensorType, ValueId};
use std::collections::{BTreeMap, HashSet};

/// Transient bytes in use at one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Values.
    pub activations: u64,
    /// Gradients that another program applies.
    pub gradients: u64,
    /// Scratch of the running instruction.
    pub workspace: u64,
}

/// Returns the transient bytes in use at every instruction.
pub fn timeline(p: &PlannedProgram) -> Vec<Usage> {
    let passing: HashSet<ValueId> = p.program.states.iter().map(|used| used.enters).collect();
    // What begins at an instruction, and what ended before it.
    let mut change = vec![[Usage::default(); 2]; p.program.instrs.len() + 1];
    for live in &p.lives {
        for (at, way) in [(live.first as usize, 0), (live.last as usize + 1, 1)] {
            let usage = &mut change[at][way];
            match live.value {
                Some(v) if passing.contains(&v) => usage.gradients += live.place.bytes,
                Some(_) => usage.activations += live.place.bytes,
                None => usage.workspace += live.place.bytes,
            }
        }
    }
    change.pop();
    let step = |now: &mut Usage, [begins, ended]: [Usage; 2]| {
        now.activations = now.activations + begins.activations - ended.activations;
        now.gradients = now.gradients + begins.gradients - ended.gradients;
        now.workspace = now.workspace + begins.workspace - ended.workspace;
        Some(*now)
    };
    change.into_iter().scan(Usage::default(), step).collect()
}

/// Returns the bytes of all states of a kind that are at home in the arena, each rounded up as it lies there.
pub fn state_bytes(s: &PlannedSession, kind: StateKind) -> u64 {
    let places = s.session.states.iter().zip(&s.states);
    places
        .filter(|(d, a)| d.kind == kind && a.region == Region::State)
        .map(|(_, a)| a.bytes.next_multiple_of(ambitus_ir::TensorType::ALIGN))
        .sum()
}

/// Returns the bytes of all gradients that lie in the transient region.
pub fn passing_gradients(s: &PlannedSession) -> u64 {
    let states = s.session.states.iter().zip(&s.states);
    let passing = states.filter(|(d, a)| d.kind == StateKind::Gradient && a.region == Region::Transient);
    passing.map(|(_, a)| a.bytes).sum()
}

/// Returns the transient bytes of gradients at the program's peak: those that backward has made and no update has applied yet.
/// Gradients that are kept in states for the whole session are not counted.
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
    // States among the stretches.
    let (at, states) = (p.peak_at as u32, program.states.iter().map(|used| used.enters));
    let states: HashSet<ValueId> = states.collect();
    let passing = p.lives.iter().filter(|l| l.first <= at && at <= l.last);
    let passing = passing.filter(|l| l.value.is_some_and(|v| states.contains(&v)));
    live.extend(passing.map(|l| (l.place.offset, l.place.bytes)));
    live.values().sum()
}

/// Returns the work of one run of a program over packed clips of `rows` each (see [`share_of_pairs`]).
pub fn cost(p: &Program, rows: f64) -> Cost {
    let mut sum = Cost::default();
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for instr in &p.instrs {
        p.signature_into(instr, &mut x, &mut y);
        let cost = instr.op.cost(&x, &y);
        sum.flops += share_of_pairs(&instr.op, &x, rows) * cost.flops;
        sum.bytes += cost.bytes;
    }
    sum
}

/// Returns the predicted seconds of one run of a program on a target. Copies and collectives of one queue run one after
/// another, alongside what stands between start and done where the target can; only what a done waits for counts.
pub fn seconds(p: &Program, target: &dyn Target) -> f64 {
    elapsed(p, target, &|instr, x, y| target.seconds(&instr.op, x, y))
}

/// What ranks exchange in one run of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exchange {
    /// Seconds that collectives take in all.
    pub seconds: f64,
    /// Of these, what computing waits for.
    pub exposed: f64,
    /// Bytes that a rank gets and that are summed for it, at most.
    pub bytes: f64,
}

/// Returns the predicted exchange of one run of a program on a target.
pub fn exchange(p: &Program, target: &dyn Target) -> Exchange {
    let mut out = Exchange::default();
    let collective = |instr: &Instr| collective::ranks(&instr.op).is_some_and(|ranks| ranks > 1);
    for instr in p.instrs.iter().filter(|i| collective(i)) {
        let (x, y) = p.signature(instr);
        let bytes = |t: &[TensorType]| t.iter().map(|t| t.bytes()).sum::<u64>();
        out.bytes += bytes(&x).max(bytes(&y)) as f64;
        out.seconds += target.seconds(&instr.op, &x, &y);
    }
    if out == Exchange::default() {
        return out;
    }
    let without = elapsed(p, target, &|instr, x, y| match collective(instr) {
        true => 0.0,
        false => target.seconds(&instr.op, x, y),
    });
    out.exposed = seconds(p, target) - without;
    out
}

/// Returns the transient bytes at a program's peak of whole tensors: those that ranks gathered, and gradients that are to be
/// summed.
pub fn unsharded(p: &PlannedProgram) -> (u64, u64) {
    let (mut gathered, mut gradients) = (BTreeMap::new(), BTreeMap::new());
    let (at, made) = (p.peak_at as u32, p.program.definitions());
    for instr in &p.program.instrs {
        let (live, values) = match instr.op {
            Op::AllGatherStart(_) => (&mut gathered, &instr.outputs),
            Op::ReduceScatterStart(_) => (&mut gradients, &instr.inputs),
            _ => continue,
        };
        for v in values {
            let (Some(made), place) = (made[v.index()], p.place(*v)) else { continue };
            let there = |l: &&Live| {
                let over = |i: u32| l.first <= i && i <= l.last;
                l.place.offset == place.offset && over(at) && over(made as u32)
            };
            live.extend(p.lives.iter().find(there).map(|l| (l.place.offset, l.place.bytes)));
        }
    }
    (gathered.values().sum(), gradients.values().sum())
}

/// Returns the provenance of the instruction at which most bytes live, as people read it:
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
