//! Peaks phase by phase, and what the highest is made of.

use super::{Categories, PREPARE, Phase, Shape, beside_arena, preparing, process};
use crate::session::program;
use ambitus_compile::plan::report;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{StateDecl, StateKind};

/// Peaks in legal order, of the ranks `here`; `states`: of the whole model, or of a rank like all.
pub(super) fn phases(shape: &Shape, here: &[&PlannedSession], states: &[StateDecl]) -> Vec<Phase> {
    let process = process(shape);
    let sum = |of: &dyn Fn(&PlannedSession) -> u64| here.iter().map(|p| of(p)).sum::<u64>();
    let arena = sum(&PlannedSession::arena_bytes);
    let prepare = preparing(shape);
    let [staging, loader, exporting] = beside_arena(shape, states);
    let of_states = sum(&|p| p.state_bytes);
    let held = sum(&|p| p.state_bytes + p.slot_bytes * p.slots as u64);
    let phase = |name, beside: u64, used: u64| Phase {
        name,
        peak_bytes: process + beside + arena,
        in_use_bytes: process + beside + used,
    };
    let running = |name, programs: [&str; 2]| {
        let most = |p: &PlannedSession| {
            programs.iter().filter_map(|n| p.program(n)).map(|p| p.transient_bytes).max()
        };
        let there = here.iter().any(|p| most(p).is_some());
        there.then(|| phase(name, loader, held + sum(&|p| most(p).unwrap_or(0))))
    };
    let mut out = vec![Phase { name: PREPARE, peak_bytes: prepare, in_use_bytes: prepare }];
    out.push(phase("load", staging, of_states));
    out.extend(running("micro", [program::MICRO, program::PIPELINE]));
    out.extend(running("update", [program::UPDATE, program::EMA]));
    out.extend(running("evaluate", [program::EVALUATE, program::EVALUATE_EMA]));
    out.extend(running("sample", [program::SAMPLE, program::SAMPLE_EMA]));
    out.push(phase("save", loader, of_states));
    out.push(phase("resume", staging, of_states));
    out.push(phase("export", exporting, of_states));
    out
}

/// `preparing`: the peak is in `prepare`, when no arena exists yet.
pub(super) fn categories(shape: &Shape, here: &[&PlannedSession], peak: u64, preparing: bool) -> Categories {
    if preparing {
        let process = shape.beside.fixed_bytes;
        return Categories { process, io: peak - process, ..Categories::default() };
    }
    let mut c = Categories { process: process(shape), ..Categories::default() };
    for planned in here {
        let of = |kind| report::state_bytes(planned, kind);
        let top = planned.programs.iter().max_by_key(|p| p.transient_bytes);
        let workspace =
            top.map_or(0, |p| report::timeline(p).get(p.peak_at).map_or(0, |usage| usage.workspace));
        // Of an update in backward: those that are made and not yet applied.
        let live_gradients = top.map_or(0, report::live_gradients);
        c.parameters += of(StateKind::Parameter);
        c.gradients += of(StateKind::Gradient) + live_gradients;
        c.optimizer += of(StateKind::Optimizer) + of(StateKind::Counter);
        c.ema += of(StateKind::Ema);
        c.activations += planned.transient_bytes - workspace - live_gradients;
        c.workspace += workspace;
    }
    // The rest lies beside the arena (loader, staging) or in its slots.
    c.io = peak - c.rows().iter().map(|(_, bytes)| bytes).sum::<u64>();
    c
}
