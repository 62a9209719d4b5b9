//! Peaks phase by phase, and what the highest is made of.

use super::{
    Categories, OF_PAGE_TABLE, Phase, ProgramBytes, START_BYTES, Shape, loader_bytes, planning, preparing,
};
use crate::export::merge_bytes;
use crate::load::LOAD_BYTES;
use crate::session::{self, program};
use crate::{finish, sample};
use ambitus_compile::pipeline::Trained;
use ambitus_compile::plan::report;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{StateDecl, StateKind};

/// Names of the phases, in legal order.
pub mod phase {
    /// Clips are read, checked and cached.
    pub const PREPARE: &str = "prepare";
    /// What the run computes is compiled and planned.
    pub const PLAN: &str = "plan";
    /// The arena is allocated and filled with the model.
    pub const LOAD: &str = "load";
    /// Forward and backward; the whole update, where that is in backward.
    pub const MICRO: &str = "micro";
    /// The optimizer and the average.
    pub const UPDATE: &str = "update";
    /// A validation.
    pub const EVALUATE: &str = "evaluate";
    /// The held-out clip is drawn.
    pub const SAMPLE: &str = "sample";
    /// A checkpoint is written.
    pub const SAVE: &str = "save";
    /// The arena is allocated and filled from a checkpoint.
    pub const RESUME: &str = "resume";
    /// The arena is gone; the model is written as the original project loads it.
    pub const EXPORT: &str = "export";
    /// The arena is gone; pictures and sounds are made.
    pub const RESULTS: &str = "results";
}

/// What the budget holds of a run beside its arena, of all ranks in this process. On a card all of it but the context is in the
/// host's memory, not in the budget's.
pub(super) struct Around {
    with_host: bool,
    /// The process with its programs and what it holds of its data, or a card's context.
    process: u64,
    /// While the data is prepared.
    prepare: u64,
    /// While the run is planned.
    pub plan: u64,
    /// Beside the process and the arena.
    load: u64,
    run: u64,
    evaluate: u64,
    sample: u64,
    save: u64,
    /// Beside the process: the arena is gone.
    export: u64,
    results: u64,
}

impl Around {
    /// `states`: of the whole model, or of a rank like all; `programs`: all in this process.
    pub fn of(shape: &Shape, states: &[StateDecl], programs: ProgramBytes) -> Around {
        let of_ranks = |n: usize, bytes: u64| if shape.beside.with_host { n as u64 * bytes } else { 0 };
        let each = |bytes| of_ranks(shape.beside.ranks, bytes);
        let capacity = shape.session.capacity;
        let loader = loader_bytes(shape);
        // A batch of its own, while the loader fills the next.
        let evaluate = shape.model.layout(capacity).bytes() + 2 * shape.model.clip_bytes(capacity.rows);
        let adapters =
            matches!(shape.session.trained, Trained::Adapters(_)) && shape.session.sharding.is_some();
        // Of flats, the tensors in them.
        let layout =
            if adapters { session::layout(&shape.model, &shape.session).ok().flatten() } else { None };
        let merging =
            layout.map_or_else(|| merge_bytes(states), |layout| merge_bytes(&layout.tensors(states)));
        let sampled = shape.session.sample;
        Around {
            with_host: shape.beside.with_host,
            process: shape.beside.fixed_bytes + of_ranks(1, programs.running() + shape.data_bytes),
            prepare: preparing(shape),
            plan: planning(shape, shape.planned_at_once, programs.planned),
            load: each(LOAD_BYTES),
            run: each(loader),
            evaluate: each(loader + if shape.session.evaluate { evaluate } else { 0 }),
            sample: each(sampled.map_or(0, |c| sample::bytes(&shape.model, c))),
            save: each(loader + LOAD_BYTES),
            // What is left of a run the first rank does.
            export: of_ranks(1, LOAD_BYTES + merging),
            results: of_ranks(1, finish::bytes(&shape.model, sampled)),
        }
    }

    /// The most beside the process and an arena.
    fn beside_arena(&self) -> u64 {
        [self.load, self.run, self.evaluate, self.sample, self.save].into_iter().fold(0, u64::max)
    }

    /// Arenas of so many bytes together, with their page tables where these are the host's.
    fn arenas(&self, bytes: u64) -> u64 {
        bytes + if self.with_host { bytes / OF_PAGE_TABLE } else { 0 }
    }

    /// The peak with arenas of so many bytes together.
    pub fn peak(&self, arenas: u64) -> u64 {
        self.running(arenas).max(self.without_arena())
    }

    /// The peak of the phases that have an arena, with arenas of so many bytes together.
    pub fn running(&self, arenas: u64) -> u64 {
        self.process + self.beside_arena() + self.arenas(arenas)
    }

    /// What arenas may take of a budget.
    pub fn room(&self, budget: u64) -> u64 {
        let left = budget.saturating_sub(self.process + self.beside_arena());
        match self.with_host {
            true => (u128::from(left) * u128::from(OF_PAGE_TABLE) / u128::from(OF_PAGE_TABLE + 1)) as u64,
            false => left,
        }
    }

    /// The peak of the phases that have no arena.
    fn without_arena(&self) -> u64 {
        self.prepare.max(self.plan).max(self.process + self.export.max(self.results))
    }
}

/// Peaks in legal order, of the ranks `here`.
pub(super) fn phases(around: &Around, here: &[&PlannedSession]) -> Vec<Phase> {
    let sum = |of: &dyn Fn(&PlannedSession) -> u64| here.iter().map(|p| of(p)).sum::<u64>();
    let arena = sum(&PlannedSession::arena_bytes);
    let of_states = sum(&|p| p.state_bytes);
    let held = sum(&|p| p.state_bytes + p.slot_bytes * p.slots as u64);
    let process = around.process;
    let phase = |name, beside: u64, used: u64| Phase {
        name,
        peak_bytes: process + beside + around.arenas(arena),
        in_use_bytes: process + beside + around.arenas(used),
    };
    let before = |name, bytes| Phase { name, peak_bytes: bytes, in_use_bytes: bytes };
    let running = |name, beside: u64, programs: [&str; 2]| {
        let most = |p: &PlannedSession| {
            programs.iter().filter_map(|n| p.program(n)).map(|p| p.transient_bytes).max()
        };
        let there = here.iter().any(|p| most(p).is_some());
        there.then(|| phase(name, beside, held + sum(&|p| most(p).unwrap_or(0))))
    };
    let mut out = vec![
        before(phase::PREPARE, around.prepare),
        before(phase::PLAN, around.plan),
        phase(phase::LOAD, around.load, of_states),
    ];
    out.extend(running(phase::MICRO, around.run, [program::MICRO, program::PIPELINE]));
    out.extend(running(phase::UPDATE, around.run, [program::UPDATE, program::EMA]));
    out.extend(running(phase::EVALUATE, around.evaluate, [program::EVALUATE, program::EVALUATE_EMA]));
    out.extend(running(phase::SAMPLE, around.sample, [program::SAMPLE, program::SAMPLE_EMA]));
    out.push(phase(phase::SAVE, around.save, of_states));
    out.push(phase(phase::RESUME, around.load, of_states));
    out.push(before(phase::EXPORT, process + around.export));
    out.push(before(phase::RESULTS, process + around.results));
    out
}

/// What the peak of `top` is made of.
pub(super) fn categories(around: &Around, here: &[&PlannedSession], top: &Phase) -> Categories {
    let peak = top.peak_bytes;
    let early = [phase::PREPARE, phase::PLAN].contains(&top.name);
    let process = if early { START_BYTES.min(peak) } else { around.process };
    let mut c = Categories { process, ..Categories::default() };
    if !top.has_arena() {
        return Categories { io: peak - process, ..c };
    }
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
