//! What a run needs, phase by phase, and whether it fits.
//!
//! The arena is allocated and touched once, so every phase after `load` holds all of it. What a phase adds to the arena
//! (staging, loader buffers) is a row of its own. The largest phase decides.

mod draft;
mod phases;
mod planning;
mod spoken;

pub use draft::Draft;
pub use phases::{PICTURE_BYTES, phase};
pub(crate) use planning::PLANNER_BYTES;
use planning::planning;
pub(crate) use planning::{REFUSAL_BYTES, SEARCH_BYTES};
pub use planning::{is_long, is_long_within, require_planning};
pub use spoken::{HeardBytes, SpokenBytes};

use crate::parts::PlannedParts;
use crate::session::{self, SessionOptions};
use ambitus_comm::local;
use ambitus_compile::passes::lora::adapted_module;
use ambitus_compile::plan::report::{self, Exchange};
use ambitus_exec::cpu::CpuExecutor;
use ambitus_families::error::RunError;
use ambitus_families::weights::STAGING_BYTES;
use ambitus_ir::plan::{PlannedSession, program_bytes};
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session, StateDecl, StateKind};
use ambitus_models::{Capacity, Model};
use ambitus_recipe::size::ByteSize;
use serde::Serialize;
use std::sync::Arc;

/// Bytes that reading or writing weights needs in addition to the arena: the bytes of a piece and its values.
pub const LOAD_BYTES: u64 = 3 * STAGING_BYTES as u64;
/// How many times the programs of a run are in memory while it is planned: what plans have in common, those that are tried side
/// by side, their lifetimes, offsets and costs. By what is left to choose: nothing; what is recomputed, or the micro-batch; other
/// options. Measured: 3.3, 5.6 and 6.6.
pub const PLANNED_AT_ONCE: [u64; 3] = [4, 6, 7];
/// Resident bytes of the program while data is prepared, before anything was planned. Measured like [`PROCESS_BYTES`].
pub const START_BYTES: u64 = if cfg!(debug_assertions) { 16 << 20 } else { 12 << 20 };
/// How many times a long model's programs are in memory while a refusal looks for what would fit. Measured: 9.3.
const LONG_AT_ONCE: u64 = 10;
/// Bytes of memory that a byte of the page tables describes.
pub(crate) const OF_PAGE_TABLE: u64 = 512;
/// Resident bytes of the program itself: code and data pages, allocator, main thread, reports. Measured; see
/// `docs/decisions/0005-process-bytes.md`.
pub const PROCESS_BYTES: u64 = if cfg!(debug_assertions) { 18 << 20 } else { 15 << 20 };
/// Resident bytes of one worker thread: touched stack and the pool's queues.
pub const THREAD_BYTES: u64 = 1 << 19;
/// Resident bytes of a rank that is a thread of this process, besides its arena, loader and staging: two threads (it and its
/// loader) and the kernels that its executor binds. Measured like [`PROCESS_BYTES`].
pub const RANK_BYTES: u64 = 3 << 20;

/// What a run takes of the budget's memory besides its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Held from start to end: the process, or the card's context and kernels.
    pub fixed_bytes: u64,
    /// Loader and staging count too: they are in the same memory.
    pub with_host: bool,
    /// Ranks in that memory, each with its own arena, loader and staging.
    pub ranks: usize,
}

impl Beside {
    /// Returns what each rank has of a budget for its arena. Unbounded if all ranks share one memory: there the sum decides.
    pub fn room_of_rank(self, budget: u64) -> u64 {
        if self.ranks > 1 { u64::MAX } else { budget.saturating_sub(self.fixed_bytes) }
    }
}

/// Everything that decides a run's bytes.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The model.
    pub model: Arc<dyn Model>,
    /// The session.
    pub session: SessionOptions,
    /// What the budget holds besides the arena.
    pub beside: Beside,
    /// Rows of an update, on average.
    pub update_rows: usize,
    /// Rows of a clip, for attention's time: the sum of squared lengths over the sum of lengths.
    pub clip_rows: f64,
    /// Micro-batches of an update, of all ranks together.
    pub micro_batches: usize,
    /// Most bytes of the process while the data is prepared.
    pub prepare_bytes: u64,
    /// How many times its programs are in memory while it is planned.
    pub planned_at_once: u64,
    /// Bytes of programs of the largest plan that was looked at, with everything kept: a pipeline of more micro-batches has longer ones
    /// than the plan that is chosen.
    pub looked_at_bytes: u64,
    /// Bytes of data that the run holds while it trains, of all ranks in this process.
    pub data_bytes: u64,
    /// Bytes of what is spoken while it trains: read when the data is there, whether or not it is spoken then.
    pub spoken: SpokenBytes,
}

impl Shape {
    /// Returns this run with more or fewer rows in a micro-batch.
    pub fn with_capacity(&self, capacity: Capacity) -> Shape {
        let mut shape = self.clone();
        let before = self.session.capacity;
        shape.session.capacity = capacity;
        shape.session.whole_updates &= capacity.rows >= before.rows && capacity.clips >= before.clips;
        shape.micro_batches = (self.micro_batches * before.rows).div_ceil(capacity.rows).max(1);
        shape
    }

    /// Returns this run with another micro-batch.
    pub fn with(&self, micro_batch: &MicroBatch) -> Shape {
        let mut shape = self.clone();
        shape.session.capacity = micro_batch.capacity;
        shape.session.whole_updates = micro_batch.whole_updates && self.model.players().len() == 1;
        shape.micro_batches = micro_batch.count;
        shape
    }

    /// Returns the bytes that the run holds of its data, and of what speaks while that rests.
    pub fn held_bytes(&self) -> u64 {
        self.data_bytes + if self.session.speech.is_some() { self.spoken.resting } else { 0 }
    }

    /// Returns the number of an update's micro-batches that each rank computes: those that share a model take them in turns, and the
    /// last of some may be empty; those with a part of it have all.
    pub fn micro_batches_of_rank(&self) -> usize {
        let ranks = self.session.sharding.map_or(1, |s| s.mesh.ranks);
        self.micro_batches.div_ceil(ranks).max(1)
    }
}

/// A micro-batch that may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// Its sizes.
    pub capacity: Capacity,
    /// Micro-batches of an update, on average.
    pub count: usize,
    /// No update of the run has more than one on each rank.
    pub whole_updates: bool,
}

/// One phase's peak.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// One of [`phase`].
    pub name: &'static str,
    /// Most resident bytes of the process.
    pub peak_bytes: u64,
    /// Of these, bytes that the phase really uses; the rest of the arena waits for other phases.
    pub in_use_bytes: u64,
}

impl Phase {
    /// Returns whether the arena is there.
    pub fn has_arena(&self) -> bool {
        ![phase::PREPARE, phase::PLAN, phase::EXPORT, phase::RESULTS].contains(&self.name)
    }
}

/// Bytes at the instant of the highest peak; they sum to it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct Categories {
    pub parameters: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub ema: u64,
    pub activations: u64,
    pub workspace: u64,
    pub io: u64,
    pub process: u64,
}

impl Categories {
    /// Returns the names and bytes, in the order of reports.
    pub fn rows(&self) -> [(&'static str, u64); 8] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("ema", self.ema),
            ("activations", self.activations),
            ("workspace", self.workspace),
            ("io", self.io),
            ("process", self.process),
        ]
    }

    /// Returns the largest first, as one line.
    pub fn line(&self) -> String {
        let mut rows = self.rows().to_vec();
        rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let shown: Vec<String> = rows
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(name, bytes)| format!("{name} {}", ByteSize(*bytes)))
            .collect();
        shown.join(" · ")
    }
}

/// A planned run.
pub struct RunPlan {
    /// What was planned.
    pub shape: Shape,
    /// Every byte of the arena; if ranks have their own sessions, of the largest.
    pub planned: Arc<PlannedSession>,
    /// The sessions of all ranks, if the model is placed on them.
    pub parts: Option<PlannedParts>,
    /// Peaks in legal order.
    pub phases: Vec<Phase>,
    /// At the highest peak.
    pub categories: Categories,
    /// The highest peak: the smallest budget that is accepted with these options.
    pub peak_bytes: u64,
    /// Arithmetic of one update.
    pub step_flops: f64,
    /// Predicted seconds of one update.
    pub step_seconds: f64,
    /// What ranks exchange in one update.
    pub exchange: Exchange,
    /// What is held besides the arena.
    around: phases::Around,
    /// Host bytes of the programs.
    programs: ProgramBytes,
}

/// Returns the sessions of the ranks in the memory that the budget bounds.
fn here<'p>(
    shape: &Shape,
    largest: &'p PlannedSession,
    parts: Option<&'p [Arc<PlannedSession>]>,
) -> Vec<&'p PlannedSession> {
    match (parts, shape.beside.ranks) {
        (Some(parts), n) if n > 1 => parts.iter().map(|p| &**p).collect(),
        (_, n) => vec![largest; n],
    }
}

impl RunPlan {
    /// Compiles and plans. Reads no file.
    ///
    /// # Errors
    /// A model that cannot be trained.
    pub fn new(shape: Shape, target: &dyn Target) -> Result<RunPlan, RunError> {
        Ok(Draft::new(shape, target)?.plan(target))
    }

    /// Returns the peak if no byte of the arena were lost between values. See [`Draft::least_bytes`].
    pub fn least_bytes(&self) -> u64 {
        let bound = |p: &PlannedSession| p.programs.iter().map(|p| p.live_bound_bytes).max().unwrap_or(0);
        let least = |p: &&PlannedSession| p.arena_bytes() - p.transient_bytes + bound(p);
        self.around.peak(self.here().iter().map(least).sum())
    }

    /// Returns whether a refusal of a long model may plan another combination within the budget.
    pub fn has_room_for_another(&self, budget: u64) -> bool {
        planning(&self.shape, LONG_AT_ONCE, self.programs.planned) <= budget
    }

    /// Returns the host bytes of a run whose arena is a card's, at most.
    pub fn host_process_bytes(&self, threads: usize) -> u64 {
        host_bytes(&self.shape, threads) + self.programs.running()
    }

    /// Returns the bytes of the host arenas of all ranks in this process.
    pub fn host_bytes(&self) -> u64 {
        self.here().iter().map(|p| p.host_bytes).sum()
    }

    /// Returns the sessions of the ranks in the memory that the budget bounds.
    pub fn here(&self) -> Vec<&PlannedSession> {
        here(&self.shape, &self.planned, self.parts.as_ref().map(|p| &*p.ranks))
    }

    /// Takes the sessions of `ranks` ranks, for executors. What is left here are states, inputs, outputs and bytes.
    pub fn take_sessions(&mut self, ranks: usize) -> Vec<Arc<PlannedSession>> {
        let take = |p: &mut Arc<PlannedSession>| {
            let outside = Arc::new(p.without_instructions());
            std::mem::replace(p, outside)
        };
        let own = take(&mut self.planned);
        match &mut self.parts {
            Some(parts) => parts.ranks.iter_mut().map(take).collect(),
            None => vec![own; ranks],
        }
    }

    /// Returns the sessions that together hold one copy of the model: any rank's if all are alike, all ranks' if each has a part.
    pub fn whole(&self) -> Vec<&PlannedSession> {
        match &self.parts {
            Some(parts) => parts.ranks.iter().map(|p| &**p).collect(),
            None => vec![&self.planned],
        }
    }

    /// Returns the elements of all parameters of a kind, of the whole model.
    pub fn parameters(&self, trainable_only: bool) -> u64 {
        let layout = session::layout(&*self.shape.model, &self.shape.session).ok().flatten();
        let of = |planned: &&PlannedSession| {
            let states = &planned.session.states;
            let tensors = layout.as_ref().map(|l| l.tensors(states));
            session::parameter_count(tensors.as_ref().unwrap_or(states), trainable_only)
        };
        self.whole().iter().map(of).sum()
    }

    /// Returns the name of the phase with the highest peak.
    pub fn highest_phase(&self) -> &'static str {
        highest(&self.phases).map_or("", |p| p.name)
    }

    /// Returns the name of the phase with the highest peak; while the model runs, also the place in it where most bytes live.
    pub fn peak_place(&self) -> String {
        let highest = highest(&self.phases);
        let (top, has_arena) = highest.map_or(("", false), |p| (p.name, p.has_arena()));
        let running = self.planned.highest();
        match running {
            Some(p) if [phase::MICRO, phase::UPDATE, phase::EVALUATE, phase::SAMPLE].contains(&top) => {
                format!("{} at {}", p.program.name, report::peak_place(p))
            }
            Some(p) if has_arena => {
                format!(
                    "{top}, in addition to the arena that {} needs at {}",
                    p.program.name,
                    report::peak_place(p)
                )
            }
            _ => top.to_owned(),
        }
    }

    /// Returns the bytes that do not depend on the length of the audio, and bytes for one more second of it in a micro-batch.
    ///
    /// # Errors
    /// As [`RunPlan::new`].
    pub fn slope(&self, target: &dyn Target) -> Result<(u64, u64), RunError> {
        let cap = self.shape.session.capacity;
        let per_second = self.shape.model.rows().per_second;
        let more = (per_second * 4.0) as usize;
        let longer = Capacity { rows: cap.rows + more, ..cap };
        // By live bytes, of which plans are within a few hundredths.
        let longer = Draft::new(self.shape.with_capacity(longer), target)?;
        let per_row = longer.least_bytes.saturating_sub(self.least_bytes()) as f64 / more as f64;
        let fixed = self.peak_bytes as f64 - per_row * cap.rows as f64;
        Ok((fixed.max(0.0) as u64, (per_row * per_second) as u64))
    }

    /// Returns what the reference package's training in fp32 or with autocast takes for the same micro-batch, by the family's
    /// arithmetic ([`Model::original_bytes`]); on a card it has the same context.
    pub fn as_original_runs_it(&self) -> u64 {
        let whole = self.whole();
        let states = whole.iter().flat_map(|p| &p.session.states);
        let of_model = |s: &&StateDecl| s.kind == StateKind::Parameter && adapted_module(&s.name).is_none();
        let parameters = states.filter(of_model).map(|s| s.ty.shape.elements() as u64).sum();
        let mixed = self.shape.session.precision.narrow().is_some();
        let own = self.shape.model.original_bytes(parameters, self.shape.session.capacity.rows, mixed);
        // Of replicas (DDP, `gradient_as_bucket_view` as it is by default) gradients are also in buckets.
        let replicated = self.shape.session.sharding.is_some_and(|s| s.mesh.shard == 1);
        let own = own + if replicated { 4 * self.parameters(true) } else { 0 };
        // On a card it has a context as well.
        let beside = self.shape.beside;
        own + if beside.with_host { 0 } else { beside.fixed_bytes }
    }

    /// Returns the fields of `plan --json`.
    pub fn json(&self, budget: u64) -> serde_json::Value {
        let micros = session::planned_micros(&self.planned, &*self.shape.model);
        serde_json::json!({
            "fits": self.peak_bytes <= budget,
            "budget_bytes": budget,
            "minimum_budget_bytes": self.peak_bytes,
            "peak_bytes": self.peak_bytes,
            "arena_bytes": self.planned.arena_bytes(),
            "state_bytes": self.planned.state_bytes,
            "transient_bytes": self.planned.transient_bytes,
            "live_bound_bytes": self.planned.programs.iter().map(|p| p.live_bound_bytes).max(),
            "programs": self.planned.programs.iter().map(|p| serde_json::json!({
                "name": p.program.name,
                "transient_bytes": p.transient_bytes,
                "live_bound_bytes": p.live_bound_bytes,
                "instructions": p.program.instrs.len(),
            })).collect::<Vec<_>>(),
            "phases": self.phases,
            "categories": self.categories,
            "peak_in": self.peak_place(),
            "tokens_per_step": self.shape.update_rows,
            "micro_batch": { self.shape.model.rows().unit: self.shape.session.capacity.rows, "clips": self.shape.session.capacity.clips },
            "micro_batches": self.shape.micro_batches_of_rank(),
            "parameters": self.parameters(false),
            "trained_parameters": self.parameters(true),
            "instructions_per_micro_batch": micros.iter().map(|p| p.program.instrs.len()).sum::<usize>(),
            "as_original_bytes": self.as_original_runs_it(),
            "step_flops": self.step_flops,
            "step_seconds": self.step_seconds,
        })
    }
}

/// Returns [`Shape::clip_rows`] of clips of these lengths.
pub fn clip_rows(lengths: impl Iterator<Item = f64>) -> f64 {
    let (squares, sum) = lengths.fold((0.0, 0.0), |(squares, sum), n| (squares + n * n, sum + n));
    if sum > 0.0 { squares / sum } else { 1.0 }
}

/// Returns the phase with the highest peak; of equal ones (a card's arena is all taken from `load` on) the first that uses most.
fn highest(phases: &[Phase]) -> Option<&Phase> {
    phases.iter().rev().max_by_key(|p| (p.peak_bytes, p.in_use_bytes))
}

/// Returns the bytes that the process holds whatever it does.
pub fn process_bytes(threads: usize) -> u64 {
    PROCESS_BYTES + THREAD_BYTES * threads as u64
}

/// Returns the bytes that ranks in one process take together besides what each has of the plan: their threads, and what they
/// exchange through. None of a single rank.
pub fn ranks_bytes(ranks: usize) -> u64 {
    if ranks > 1 { ranks as u64 * RANK_BYTES + local::world_bytes(ranks) } else { 0 }
}

/// Returns the bytes of the loader: three batches (in use, ready, being filled) and one clip with its file image.
fn loader_bytes(shape: &Shape) -> u64 {
    let cap = shape.session.capacity;
    3 * shape.model.layout(cap).bytes() + 2 * shape.model.clip_bytes(cap.rows)
}

/// Returns the host bytes of a run whose arena is a card's, at most: the process but for its programs, and what waits for the
/// card or comes from it.
pub fn host_bytes(shape: &Shape, threads: usize) -> u64 {
    let hearing = if shape.session.speech.is_some() { shape.spoken.hearing } else { 0 };
    let running = process_bytes(threads) + shape.held_bytes() + loader_bytes(shape) + LOAD_BYTES.max(hearing);
    running.max(shape.prepare_bytes)
}

/// Bytes of the process that programs take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramBytes {
    /// As they are planned.
    pub planned: u64,
    /// Bound by executors.
    bound: u64,
}

impl ProgramBytes {
    /// Returns the bytes of a session and `executors` executors.
    pub fn of(session: &Session, executors: usize) -> ProgramBytes {
        let sum = |of: &dyn Fn(&Program) -> u64| session.programs.iter().map(of).sum::<u64>();
        let bound = executors as u64 * sum(&CpuExecutor::program_bytes);
        ProgramBytes { planned: sum(&program_bytes), bound }
    }

    /// Returns the bytes while the session runs. The allocator keeps the bytes of what was planned, though the executor that
    /// binds it drops it.
    pub fn running(self) -> u64 {
        self.planned + self.bound
    }
}

/// Returns what the budget holds while the data is prepared, before there is an arena.
fn preparing(shape: &Shape) -> u64 {
    let reading = match shape.spoken.reading {
        0 => 0,
        bytes => START_BYTES + shape.data_bytes + bytes,
    };
    if shape.beside.with_host { shape.prepare_bytes.max(reading) } else { shape.beside.fixed_bytes }
}
