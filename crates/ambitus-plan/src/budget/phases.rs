//! Peaks phase by phase, and what the highest is made of.

use super::{
    Categories, LOAD_BYTES, OF_PAGE_TABLE, Phase, ProgramBytes, START_BYTES, Shape, loader_bytes, planning,
    preparing,
};
use crate::session::{self, program};
use ambitus_compile::passes::lora::{A, adapted_module};
use ambitus_compile::pipeline::{Player, Trained};
use ambitus_compile::plan::report;
use ambitus_data::griffin_lim::GriffinLim;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{StateDecl, StateKind};
use ambitus_models::{Capacity, Model};
use std::collections::HashMap;

/// Bound on the memory of drawing and writing one picture, beyond its input, for up to 10,000 validations: canvas, compressor
/// and file.
pub const PICTURE_BYTES: u64 = 5 << 20;
/// Bytes of the sound of a sample and of its picture, one after the other, besides the sample.
const DRAWING_BYTES: u64 = if GriffinLim::BYTES > PICTURE_BYTES { GriffinLim::BYTES } else { PICTURE_BYTES };

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
    /// The held-out clip is drawn; samples are spoken.
    pub const SAMPLE: &str = "sample";
    /// What was spoken is heard by another model, which has its own arena on the processor.
    pub const HEAR: &str = "hear";
    /// A checkpoint is written.
    pub const SAVE: &str = "save";
    /// The arena is allocated and filled from a checkpoint.
    pub const RESUME: &str = "resume";
    /// The arena is gone; the model is written as the original project loads it.
    pub const EXPORT: &str = "export";
    /// The arena is gone; pictures and sounds are made.
    pub const RESULTS: &str = "results";
}

/// What the budget holds of a run besides its arena, of all ranks in this process. On a card only the context counts: the rest is
/// in the host's memory, not in the budget's.
pub(super) struct Around {
    with_host: bool,
    /// The process with its programs and what it holds of its data, or a card's context.
    process: u64,
    /// While the data is prepared.
    prepare: u64,
    /// While the run is planned.
    pub plan: u64,
    /// Bytes besides the process and the arena.
    load: u64,
    run: u64,
    evaluate: u64,
    sample: u64,
    /// 0: nothing is heard.
    hear: u64,
    save: u64,
    /// Bytes besides the process: the arena is gone.
    export: u64,
    results: u64,
}

impl Around {
    /// Counts what a run holds around its arena. `states`: of the whole model, or of any rank if all are alike; `programs`: all
    /// in this process.
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
            if adapters { session::layout(&*shape.model, &shape.session).ok().flatten() } else { None };
        let merging =
            layout.map_or_else(|| merge_bytes(states), |layout| merge_bytes(&layout.tensors(states)));
        let sampled = shape.session.sample;
        let spoken = shape.spoken;
        let speaks = shape.session.speech.is_some();
        let speaking = if speaks { loader + spoken.speaking - spoken.resting } else { 0 };
        let hearing = if speaks && spoken.hearing > 0 { loader + spoken.hearing } else { 0 };
        Around {
            with_host: shape.beside.with_host,
            process: shape.beside.fixed_bytes + of_ranks(1, programs.running() + shape.held_bytes()),
            prepare: preparing(shape),
            plan: planning(shape, shape.planned_at_once, programs.planned.max(shape.looked_at_bytes)),
            load: each(LOAD_BYTES),
            run: each(loader),
            evaluate: each(loader + if shape.session.evaluate { evaluate } else { 0 }),
            sample: each(sampled.map_or(0, |c| sampling(&*shape.model, c)).max(speaking)),
            hear: each(hearing),
            save: each(loader + LOAD_BYTES),
            // After training only the first rank works.
            export: of_ranks(1, LOAD_BYTES + merging),
            results: of_ranks(1, results(&*shape.model, sampled)),
        }
    }

    /// Returns the most bytes besides the process and an arena.
    fn beside_arena(&self) -> u64 {
        [self.load, self.run, self.evaluate, self.sample, self.hear, self.save].into_iter().fold(0, u64::max)
    }

    /// Returns the bytes of arenas of `bytes` together, with their page tables if these are the host's.
    fn arenas(&self, bytes: u64) -> u64 {
        bytes + if self.with_host { bytes / OF_PAGE_TABLE } else { 0 }
    }

    /// Returns the peak with arenas of `arenas` bytes together.
    pub fn peak(&self, arenas: u64) -> u64 {
        self.running(arenas).max(self.without_arena())
    }

    /// Returns the peak of the phases that have an arena, with arenas of `arenas` bytes together.
    pub fn running(&self, arenas: u64) -> u64 {
        self.process + self.beside_arena() + self.arenas(arenas)
    }

    /// Returns what arenas may take of a budget.
    pub fn room(&self, budget: u64) -> u64 {
        let left = budget.saturating_sub(self.process + self.beside_arena());
        match self.with_host {
            true => (u128::from(left) * u128::from(OF_PAGE_TABLE) / u128::from(OF_PAGE_TABLE + 1)) as u64,
            false => left,
        }
    }

    /// Returns the peak of the phases that have no arena.
    fn without_arena(&self) -> u64 {
        self.prepare.max(self.plan).max(self.process + self.export.max(self.results))
    }
}

/// Returns peaks in legal order, of the ranks `here`.
pub(super) fn phases(around: &Around, here: &[&PlannedSession], players: &[Player]) -> Vec<Phase> {
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
    let running = |name, beside: u64, programs: &[&str]| {
        let of_players = players.iter().flat_map(|player| programs.iter().map(|kind| player.program(kind)));
        let names: Vec<String> = of_players.chain(programs.iter().map(|&p| p.to_owned())).collect();
        let most =
            |p: &PlannedSession| names.iter().filter_map(|n| p.program(n)).map(|p| p.transient_bytes).max();
        let there = here.iter().any(|p| most(p).is_some());
        there.then(|| phase(name, beside, held + sum(&|p| most(p).unwrap_or(0))))
    };
    let mut out = vec![
        before(phase::PREPARE, around.prepare),
        before(phase::PLAN, around.plan),
        phase(phase::LOAD, around.load, of_states),
    ];
    out.extend(running(phase::MICRO, around.run, &[program::MICRO, program::PIPELINE]));
    out.extend(running(phase::UPDATE, around.run, &[program::UPDATE, program::EMA]));
    out.extend(running(phase::EVALUATE, around.evaluate, &[program::EVALUATE, program::EVALUATE_EMA]));
    let spoken = here.iter().flat_map(|p| &p.programs).map(|p| &*p.program.name);
    let spoken = spoken.filter(|name| name.starts_with(program::SAY));
    let samples: Vec<&str> = [program::SAMPLE, program::SAMPLE_EMA].into_iter().chain(spoken).collect();
    out.extend(running(phase::SAMPLE, around.sample, &samples));
    if around.hear > 0 {
        out.push(phase(phase::HEAR, around.hear, of_states));
    }
    out.push(phase(phase::SAVE, around.save, of_states));
    out.push(phase(phase::RESUME, around.load, of_states));
    out.push(before(phase::EXPORT, process + around.export));
    out.push(before(phase::RESULTS, process + around.results));
    out
}

/// Returns the bytes on the host while a clip is sampled with a program of `capacity`: what is given and generated, inputs for
/// both clips of a step, and what comes back.
fn sampling(model: &dyn Model, capacity: Capacity) -> u64 {
    let clip = model.clip_bytes(capacity.rows.div_ceil(2));
    model.layout(capacity).bytes() + 3 * clip + 3 * model.clip_bytes(capacity.rows)
}

/// Returns the bytes that the results of a run take, once its arena is gone: three samples of a clip, one of them as it is
/// read, and one picture or sound at a time. `sampled`: of the program that sampled it.
fn results(model: &dyn Model, sampled: Option<Capacity>) -> u64 {
    DRAWING_BYTES + sampled.map_or(0, |c| 4 * model.clip_bytes(c.rows.div_ceil(2)))
}

/// Returns the bytes of the host's memory that merging takes besides what reading takes: the largest adapter, and a row in double
/// precision.
fn merge_bytes(states: &[StateDecl]) -> u64 {
    let mut by_module: HashMap<&str, u64> = HashMap::new();
    for s in states {
        let Some(module) = adapted_module(&s.name).filter(|_| s.kind == StateKind::Parameter) else {
            continue;
        };
        let row = if s.name.ends_with(A) { 8 * s.ty.shape.cols() as u64 } else { 0 };
        *by_module.entry(module).or_default() += 4 * s.ty.shape.elements() as u64 + row;
    }
    by_module.into_values().max().unwrap_or(0)
}

/// Returns what the peak of `top` is made of.
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
        let top = planned.highest();
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
    // The rest lies outside the arena (loader, staging) or in its slots.
    c.io = peak - c.rows().iter().map(|(_, bytes)| bytes).sum::<u64>();
    c
}
