//! A combination of options, and how much of it has to be recomputed to fit.

use super::{Candidate, Free, HostRoom, Stems, Verdict};
use crate::budget::{Draft, MicroBatch, Shape, is_long};
use crate::change::Change;
use crate::placement::Placement;
use crate::variants::Variant;
use ambitus_compile::passes::Numerics;
use ambitus_compile::passes::policy::{Blocks, Value, cheapest};
use ambitus_families::error::RunError;
use ambitus_ir::StateKind;
use ambitus_ir::target::Packed;
use ambitus_recipe::recipe::Offload;

/// Tries of one candidate at most, from the estimate to the least that has to be recomputed.
const CORRECTIONS: usize = 5;
/// The try from which on more is recomputed by halves, if tries so far were too little.
const HALVING: usize = 3;
/// What is freed by recomputing may be more than is foreseen, by one part in this.
const UNSURE: u64 = 16;
/// The share by which a prediction must be better to leave the usual micro-batch.
pub(super) const WORTH: f64 = 0.01;

/// What a combination takes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Choice<'f> {
    pub micro_batch: MicroBatch,
    pub variant: Option<&'f Variant>,
    pub offload: Option<&'f Offload>,
    /// All blocks are recomputed, and nothing less is tried.
    pub all_blocks: bool,
}

impl<'f> Choice<'f> {
    /// Returns what is given, with a micro-batch.
    pub fn of(micro_batch: MicroBatch) -> Choice<'f> {
        Choice { micro_batch, variant: None, offload: None, all_blocks: false }
    }

    /// Returns what it changes of the options that are given.
    pub fn taken(&self) -> Change {
        let change = self.variant.map_or_else(Change::default, |v| v.change.clone());
        Change { offload: self.offload.cloned(), ..change }
    }
}

/// A combination with everything kept, and what could be recomputed: *steps* are pairs of a value and a block, cheapest
/// value first.
pub(super) struct Point<'f> {
    pub choice: Choice<'f>,
    pub shape: Shape,
    /// With everything kept, by live bytes.
    pub peak: u64,
    /// Of the host's memory, with everything kept.
    host: u64,
    host_room: HostRoom,
    /// Bytes of programs with everything kept.
    programs: u64,
    /// Of these, before they are bound.
    pub planned: u64,
    /// Of the longest program.
    pub instructions: usize,
    /// With everything kept.
    seconds: f64,
    /// Bytes of moments, averages, gradients and parameters.
    state_bytes: [u64; 4],
    /// By how much its seconds count for more, as its numbers are not those of the options that are given.
    pub worth: f64,
    /// Its micro-batch is the usual one, or the only one that its options can have.
    usual: bool,
    values: Vec<Value>,
    pub blocks: usize,
    /// [`Draft::copies`].
    copies: f64,
    /// How the model is placed where that may still be with fewer micro-batches at a time.
    fewer: Option<Placement>,
}

/// A combination whose offsets were tried. What was compiled is gone: of programs as long as a deep model's there is never more in
/// memory than [`Stems`] and the threads have.
pub(super) struct Fitted {
    /// Steps that are recomputed.
    pub steps: usize,
    pub shape: Shape,
    /// The peak; where even live bytes are too many, theirs.
    pub peak_bytes: u64,
    /// [`Draft::least_bytes`].
    least_bytes: u64,
    /// [`Draft::running_bytes`].
    running_bytes: u64,
    /// [`Draft::planning_bytes`].
    planning_bytes: u64,
    /// [`Draft::programs_bytes`].
    programs: u64,
    /// Of the host's memory.
    pub host_bytes: u64,
    /// Predicted, of an update.
    pub seconds: f64,
}

impl Fitted {
    pub fn of(draft: Draft, steps: usize, budget: u64, stems: &Stems<'_>) -> Fitted {
        let peak_bytes = draft.peak_within(budget, &stems.heights);
        let (host_bytes, seconds) = (draft.host_bytes(), draft.step_seconds(stems.target));
        let (running_bytes, planning_bytes) = (draft.running_bytes(), draft.planning_bytes());
        Fitted {
            steps,
            peak_bytes,
            least_bytes: draft.least_bytes,
            running_bytes,
            planning_bytes,
            programs: draft.programs_bytes(),
            host_bytes,
            seconds,
            shape: draft.shape,
        }
    }
}

impl<'f> Point<'f> {
    pub fn new(
        shape: &Shape,
        choice: Choice<'f>,
        free: &Free,
        stems: &Stems<'_>,
    ) -> Result<Point<'f>, RunError> {
        let mut shape = shape.with(&choice.micro_batch);
        let checkpoint = free.checkpoint;
        let mut fewer = None;
        if checkpoint {
            shape.session.checkpoint = if choice.all_blocks { Blocks::All } else { Blocks::None };
            // Values are recomputed first; fewer micro-batches at a time are for where all of that is not enough.
            if let Some(placement) = &mut shape.session.placement {
                fewer = placement.in_flight.is_none().then(|| placement.clone());
                placement.in_flight = Some(placement.in_flight(choice.micro_batch.count));
            }
        }
        let taken = choice.taken();
        taken.to_session(&mut shape.session);
        // What waits on the host shares the rest with what does not.
        let draft =
            if choice.offload.is_some() { stems.draft(shape)? } else { stems.draft_of_size(shape)? };
        let micro = draft.micro().filter(|_| checkpoint && !choice.all_blocks);
        let target = Packed { target: stems.target, rows: draft.shape.clip_rows };
        let values = micro.map_or(Vec::new(), |p| cheapest(p, &target));
        let blocks = micro.map_or(1, |p| p.blocks.len().max(1));
        let own = choice.variant.is_some_and(|v| v.micro_batch.is_some());
        let usual = own || choice.micro_batch == free.micro_batches[0];
        Ok(Point {
            choice,
            peak: draft.least_bytes,
            host: draft.host_bytes(),
            host_room: free.host_room,
            programs: draft.programs_bytes(),
            planned: draft.planned_programs_bytes(),
            instructions: draft.instructions(),
            seconds: draft.step_seconds(stems.target),
            state_bytes: [StateKind::Optimizer, StateKind::Ema, StateKind::Gradient, StateKind::Parameter]
                .map(|kind| draft.state_bytes(kind)),
            worth: 1.0 + taken.worth() + if usual { 0.0 } else { WORTH },
            usual,
            values,
            blocks,
            copies: draft.copies(),
            fewer,
            shape: draft.shape,
        })
    }

    /// Returns its cost with everything kept: seconds, and by how much they count for more.
    pub fn least_cost(&self) -> f64 {
        self.worth * self.seconds
    }

    /// Returns the number of micro-batches of an update.
    pub fn count(&self) -> usize {
        self.choice.micro_batch.count
    }

    /// Returns the peak with all steps.
    pub fn least_peak(&self) -> u64 {
        self.peak.saturating_sub(self.freed(self.steps()))
    }

    /// Returns the most bytes that an offload of states frees.
    pub fn moved(&self, offload: &Offload) -> u64 {
        let [optimizer, ema, gradients, parameters] = self.state_bytes;
        let some = |on: bool, bytes: u64| if on { bytes } else { 0 };
        // A share of the moments is of whole tensors: it may be nearly all.
        some(offload.optimizer > 0.0, optimizer)
            + some(offload.ema, ema)
            + some(offload.gradients, gradients)
            + some(offload.parameters, parameters)
    }

    /// Returns its cost as it should fit; infinite, where it should not.
    pub fn cost(&self, budget: u64) -> f64 {
        let (steps, _) = self.estimate(budget);
        if self.expected(budget).fits() { self.worth * self.seconds(steps) } else { f64::INFINITY }
    }

    /// Returns what it does to numbers.
    fn numerics(&self) -> Numerics {
        self.choice.taken().numerics().max(if self.usual { Numerics::Exact } else { Numerics::Reordered })
    }

    /// Returns it as it should fit.
    pub fn estimated(&self, budget: u64) -> Candidate {
        let (steps, peak) = self.estimate(budget);
        let candidate = self.candidate((steps, peak, self.host), self.seconds(steps), budget);
        Candidate { verdict: self.expected(budget), ..candidate }
    }

    /// Returns it with everything kept, if something of it can be recomputed, for more memory than the budget.
    pub fn kept(&self, budget: u64) -> Option<Candidate> {
        // Offsets may need more than live bytes.
        let peak = self.peak.max(budget.saturating_add(1));
        let could_be = self.steps() > 0 && self.host_room.holds(self.host, peak);
        could_be.then(|| self.candidate((0, peak, self.host), self.seconds, budget))
    }

    /// Returns what should become of it; near the edge it has to be tried.
    fn expected(&self, budget: u64) -> Verdict {
        let (steps, peak) = self.estimate(budget);
        let unsure = self.freed(steps) / UNSURE;
        let peak = if peak > budget && peak - budget <= unsure { budget } else { peak };
        self.host_room.verdict((peak, self.host), budget)
    }

    /// Returns all steps.
    pub fn steps(&self) -> usize {
        self.values.len() * self.blocks
    }

    /// Returns the compiler's option for `steps` steps.
    pub fn checkpoint(&self, steps: usize) -> Blocks {
        match steps {
            0 if self.choice.all_blocks => Blocks::All,
            0 => Blocks::None,
            n => Blocks::Cheapest { values: n / self.blocks, blocks: n % self.blocks },
        }
    }

    /// Returns, for each value, the share of blocks that `steps` recompute.
    fn made_again(&self, steps: usize) -> impl Iterator<Item = (&Value, f64)> {
        let share = move |i: usize| {
            steps.saturating_sub(i * self.blocks).min(self.blocks) as f64 / self.blocks as f64
        };
        self.values.iter().enumerate().map(move |(i, v)| (v, share(i)))
    }

    /// Returns the bytes that `steps` should free, of all ranks in this process.
    fn freed(&self, steps: usize) -> u64 {
        let of_rank: u64 = self.made_again(steps).map(|(v, share)| (v.bytes as f64 * share) as u64).sum();
        (self.copies * of_rank as f64) as u64
    }

    /// Returns the fewest steps that should free `bytes`; all of them if none suffice.
    fn freeing(&self, bytes: u64) -> usize {
        (0..self.steps()).find(|n| self.freed(*n) >= bytes).unwrap_or(self.steps())
    }

    /// Predicts the seconds of an update with `steps`.
    fn seconds(&self, steps: usize) -> f64 {
        let again: f64 = self.made_again(steps).map(|(v, share)| v.seconds * share).sum();
        self.seconds + self.shape.micro_batches_of_rank() as f64 * again
    }

    /// Returns the steps that should fit, and the peak with them.
    fn estimate(&self, budget: u64) -> (usize, u64) {
        let steps = self.freeing(self.peak.saturating_sub(budget));
        (steps, self.peak.saturating_sub(self.freed(steps)))
    }

    /// Returns a candidate. `bytes`: steps, the peak and what is offloaded.
    pub fn candidate(&self, bytes: (usize, u64, u64), seconds: f64, budget: u64) -> Candidate {
        let (steps, peak_bytes, host) = bytes;
        let mut options = Vec::new();
        if steps > 0 || self.choice.all_blocks {
            options.push(format!("--checkpoint {}", self.checkpoint(steps)));
        }
        options.extend(self.choice.variant.map(|v| v.options.clone()));
        options.extend(self.choice.offload.map(|o| format!("--offload {o}")));
        if !self.usual {
            options.push(format!("--micro-batch {}", self.shape.session.capacity.rows));
        }
        Candidate {
            options: options.join(" "),
            numerics: self.numerics(),
            peak_bytes,
            seconds,
            planned: false,
            verdict: self.host_room.verdict((peak_bytes, host), budget),
        }
    }

    /// Returns whether what was tried can be run.
    pub fn fits(&self, plan: &Fitted, budget: u64) -> bool {
        plan.peak_bytes <= budget && self.host_room.holds(plan.host_bytes, plan.peak_bytes)
    }

    /// Tries offsets with more or with fewer steps until it just fits; with all steps where it does not.
    pub fn fit(&self, budget: u64, stems: &Stems<'_>) -> Result<Fitted, RunError> {
        // Steps that are known to be too few, and the fewest that are known to be enough.
        let mut few: Option<usize> = None;
        let mut enough: Option<Fitted> = None;
        let mut steps = self.estimate(budget).0;
        for round in 1.. {
            let mut shape = self.shape.clone();
            if steps > 0 {
                shape.session.checkpoint = self.checkpoint(steps);
            }
            let plan = Fitted::of(stems.draft(shape)?, steps, budget, stems);
            let least = plan.least_bytes;
            let freed = self.freed(steps);
            let next = if plan.peak_bytes <= budget {
                enough = Some(plan);
                self.freeing(freed.saturating_sub(budget - least)).max(few.map_or(0, |n| n + 1))
            } else if plan.planning_bytes > budget && self.fewer.is_none() && is_long(&self.shape) {
                // More steps only make programs longer; fewer are of use where the run has bytes to spare.
                let next = self.freeing((freed + plan.running_bytes).saturating_sub(budget));
                let next = next.max(few.map_or(0, |n| n + 1));
                if plan.running_bytes > budget || next >= steps || round >= CORRECTIONS {
                    return Ok(plan);
                }
                next
            } else {
                let missing = least.saturating_sub(budget);
                few = Some(steps);
                if steps == self.steps() {
                    if let Some(fitting) = self.with_fewer(&plan, budget, stems)? {
                        return Ok(fitting);
                    }
                    let Some(placement) = &self.fewer else { return Ok(plan) };
                    let mut shape = plan.shape;
                    shape.session.placement = Some(placement.clone());
                    return Ok(Fitted::of(stems.draft(shape)?, steps, budget, stems));
                }
                let most = enough.as_ref().map_or(self.steps(), |plan| plan.steps - 1);
                // The last round must fit if anything does.
                let last = enough.is_none() && round + 1 >= CORRECTIONS;
                // Where what is missing says too little, by halves.
                let half = if round >= HALVING { steps + most.saturating_sub(steps) / 2 } else { 0 };
                if last { most } else { self.freeing(freed + missing).max(steps + 1).max(half).min(most) }
            };
            let known =
                few.is_some_and(|n| next <= n) || enough.as_ref().is_some_and(|plan| next >= plan.steps);
            if known || round >= CORRECTIONS {
                break;
            }
            steps = next;
        }
        Ok(enough.expect("the last round took every step, or returned"))
    }

    /// Returns a plan that fits with fewer than `all` steps, which do not: what is recomputed takes programs too, so that the
    /// last steps may cost more than they free, by these programs at most, as often as they are in memory.
    fn with_fewer(&self, all: &Fitted, budget: u64, stems: &Stems<'_>) -> Result<Option<Fitted>, RunError> {
        let programs = all.shape.planned_at_once * all.programs.saturating_sub(self.programs);
        if all.peak_bytes - budget > programs {
            return Ok(None);
        }
        let draft = |steps: usize| {
            let mut shape = self.shape.clone();
            shape.session.checkpoint = self.checkpoint(steps);
            stems.draft(shape)
        };
        // Whole values, and from the best of these by halves.
        let bytes = |steps: usize| Ok::<_, RunError>((draft(steps)?.least_bytes, steps));
        let mut best = (all.least_bytes, self.steps());
        for value in 0..self.values.len() {
            best = best.min(bytes(value * self.blocks)?);
        }
        for by in std::iter::successors(Some(self.blocks / 2), |by| Some(by / 2)).take_while(|by| *by > 0) {
            loop {
                let (fewer, more) = (best.1.saturating_sub(by), (best.1 + by).min(self.steps()));
                let next = bytes(fewer)?.min(bytes(more)?);
                if next.0 >= best.0 {
                    break;
                }
                best = next;
            }
        }
        if best.0 > budget {
            return Ok(None);
        }
        let plan = Fitted::of(draft(best.1)?, best.1, budget, stems);
        Ok(Some(plan).filter(|plan| plan.peak_bytes <= budget))
    }
}
