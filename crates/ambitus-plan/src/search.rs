//! The search: of the plans that fit a budget, the one with the most frames per second.
//!
//! What the recipe leaves open is tried in every combination with everything kept for backward. How much has to be recomputed
//! then follows from the bytes that are missing ([`cheapest`]). For the fastest few, offsets are tried, with more or less
//! recomputed until they just fit. So the choice rests on predicted seconds, but whether it fits does not. What is chosen is
//! planned in full, with offsets as low as can be found.

mod candidate;
mod explain;
mod host_room;
mod rows;
mod stems;

use crate::budget::PLANNED_AT_ONCE;
use crate::budget::{Draft, MicroBatch, RunPlan, Shape, is_long};
use crate::placement::Placement;
use crate::threads::side_by_side;
use crate::variants::Variant;
use ambitus_compile::passes::Numerics;
use ambitus_compile::passes::policy::{Blocks, Value, cheapest};
use ambitus_families::error::RunError;
use ambitus_ir::target::{Packed, Target};
use std::cmp::Ordering;

pub use candidate::{Candidate, Verdict};
pub use explain::explain;
pub use host_room::HostRoom;
pub use rows::{largest, most_rows};
pub use stems::{Known, Stems};

/// Candidates whose offsets are tried at a time.
const FEW: usize = 3;
/// Tries of one candidate at most, from the estimate to the least that has to be recomputed.
const CORRECTIONS: usize = 5;
/// The try from which on more is recomputed by halves, if tries so far were too little.
const HALVING: usize = 3;
/// The share by which a prediction must be better to leave the usual micro-batch.
const WORTH: f64 = 0.01;

/// What the recipe leaves to the search.
#[derive(Clone, Debug)]
pub struct Free {
    /// What is recomputed in backward.
    pub checkpoint: bool,
    /// Micro-batches that may be taken; the first is the usual one.
    pub micro_batches: Vec<MicroBatch>,
    /// Other options that may be taken, one of these at a time.
    pub variants: Vec<Variant>,
    /// What may wait in the host's memory.
    pub host_room: HostRoom,
}

impl Free {
    /// Returns how many times programs are in memory while these are tried.
    pub fn planned_at_once(&self) -> u64 {
        let some = self.checkpoint || self.micro_batches.len() > 1;
        PLANNED_AT_ONCE[if self.variants.is_empty() { usize::from(some) } else { 2 }]
    }
}

/// What came of a search.
pub struct Search {
    /// The plan that was chosen; where nothing fits, that of the candidate which needs least.
    pub plan: RunPlan,
    /// Its options, if they differ from the given ones.
    pub variant: Option<Variant>,
    /// Everything that was tried: the chosen one, what is slower, what does not fit.
    pub candidates: Vec<Candidate>,
}

impl Search {
    /// Returns whether the plan can be run.
    pub fn fits(&self) -> bool {
        self.candidates.first().is_some_and(|c| c.verdict.fits())
    }
}

/// What a search chose, before it is planned as low as can be.
pub struct Chosen<'t> {
    /// What is run.
    pub shape: Shape,
    /// Its options, if they differ from the given ones.
    pub variant: Option<Variant>,
    /// Everything that was tried, the chosen one first.
    candidates: Vec<Candidate>,
    /// What it has to fit.
    budget: u64,
    host_room: HostRoom,
    stems: Stems<'t>,
}

impl Chosen<'_> {
    /// Returns whether the plan can be run, as the search saw it: by live bytes, where nothing was left to choose.
    pub fn fits(&self) -> bool {
        self.candidates.first().is_some_and(|c| c.verdict.fits())
    }

    /// Returns the peak as the search saw it.
    pub fn peak_bytes(&self) -> u64 {
        self.candidates.first().map_or(u64::MAX, |c| c.peak_bytes)
    }

    /// Plans. Offsets that were good enough for the budget are made as low as can be.
    ///
    /// # Errors
    /// As [`RunPlan::new`].
    pub fn plan(self) -> Result<Search, RunError> {
        let Chosen { shape, variant, mut candidates, budget, host_room, stems } = self;
        let plan = stems.into_plan(shape)?;
        if let Some(first) = candidates.first_mut() {
            first.peak_bytes = plan.peak_bytes;
            first.verdict = match host_room.verdict((plan.peak_bytes, plan.host_bytes()), budget) {
                Verdict::Slower => Verdict::Chosen,
                refused => refused,
            };
        }
        Ok(Search { plan, variant, candidates })
    }
}

/// Searches for the fastest plan within `budget`, and plans it. `shape` has the options that are given, and the usual ones for what is left
/// open.
///
/// # Errors
/// As [`RunPlan::new`]. It is not an error if nothing fits.
pub fn search(shape: &Shape, free: &Free, budget: u64, target: &dyn Target) -> Result<Search, RunError> {
    choose(shape, free, budget, Stems::of(target))?.plan()
}

/// Chooses the fastest plan within `budget`, without planning it in full as [`search`] does. Fails as it does.
pub fn choose<'t>(shape: &Shape, free: &Free, budget: u64, stems: Stems<'t>) -> Result<Chosen<'t>, RunError> {
    let usual = free.micro_batches.iter().take(1);
    let given: Vec<Choice> =
        free.micro_batches.iter().map(|m| Choice { micro_batch: m, variant: None }).collect();
    let point = |c: &Choice<'_>| Point::new(shape, c, free, &stems);
    let mut points: Vec<Point> = side_by_side(&given, point)?;
    // What is exact only saves memory and costs time: it is of use where memory is short, and where the same without it
    // is faster than everything that should fit.
    let short = points.first().is_none_or(|p| p.peak > budget);
    let estimates = points.iter().map(|p| (p, p.estimate(budget)));
    let fitting = estimates.filter(|(_, (_, peak))| *peak <= budget).map(|(p, (steps, _))| p.seconds(steps));
    let best = fitting.fold(f64::INFINITY, f64::min);
    let least = free.micro_batches.iter().enumerate().skip(1).min_by_key(|(_, m)| m.capacity.rows);
    let sizes: Vec<(f64, &MicroBatch)> = usual
        .enumerate()
        .chain(least.filter(|_| short))
        .map(|(at, micro_batch)| (points[at].seconds(0), micro_batch))
        .collect();
    let of_use = |v: &Variant, seconds: f64| v.numerics == Numerics::Changed || (short && seconds < best);
    let varied: Vec<Choice> = free
        .variants
        .iter()
        .flat_map(|v| sizes.iter().filter(|s| of_use(v, s.0)).map(move |s| (s.1, v)))
        .map(|(micro_batch, variant)| Choice { micro_batch, variant: Some(variant) })
        .collect();
    points.extend(side_by_side(&varied, point)?);
    let looked_at = points.iter().map(|p| p.planned).fold(0, u64::max);
    points.iter_mut().for_each(|p| p.shape.looked_at_bytes = looked_at);
    let mut tried: Vec<(usize, Candidate)> = points
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let (steps, peak) = p.estimate(budget);
            (i, p.candidate((steps, peak, p.host), p.seconds(steps), budget))
        })
        .collect();
    tried.sort_by(|(_, a), (_, b)| a.before(b));
    let host_room = free.host_room;
    // Nothing is left to choose, and the plan in full decides whether it fits.
    if !free.checkpoint && points.len() == 1 {
        let Point { shape, variant, .. } = points.swap_remove(0);
        let candidates = tried.into_iter().map(|(_, c)| Candidate { planned: true, ..c }).collect();
        return Ok(Chosen { shape, variant, candidates, budget, host_room, stems });
    }
    let mut fitted: Vec<Fitted> = Vec::new();
    // An estimate may be wrong: nothing is refused while there is something that was not planned.
    while fitted.is_empty()
        || (fitted.len() < tried.len()
            && !fitted.iter().zip(&tried).any(|(plan, (i, _))| points[*i].fits(plan, budget)))
    {
        let next = &tried[fitted.len()..tried.len().min(fitted.len() + FEW)];
        fitted.extend(side_by_side(next, |(i, _)| points[*i].fit(budget, &stems))?);
    }
    let few = fitted.len();
    let mut plans = Vec::with_capacity(few);
    for ((i, candidate), plan) in tried.iter_mut().zip(fitted) {
        let worth = if points[*i].usual { 1.0 } else { 1.0 + WORTH };
        let bytes = (plan.steps, plan.peak_bytes, plan.host_bytes);
        *candidate = points[*i].candidate(bytes, plan.seconds, budget);
        candidate.planned = true;
        plans.push((worth * plan.seconds, plan));
    }
    let mut best = 0;
    for at in 1..few {
        let order = tried[at].1.verdict.cmp(&tried[best].1.verdict);
        let faster = plans[at].0.total_cmp(&plans[best].0);
        let smaller = tried[at].1.peak_bytes.cmp(&tried[best].1.peak_bytes);
        let by = if tried[at].1.verdict.fits() { faster } else { smaller };
        if order.then(by) == Ordering::Less {
            best = at;
        }
    }
    if tried[best].1.verdict == Verdict::Slower {
        tried[best].1.verdict = Verdict::Chosen;
    }
    let shape = plans.swap_remove(best).1.shape;
    let Point { variant, .. } = points.swap_remove(tried[best].0);
    let first = tried.swap_remove(best).1;
    let mut candidates: Vec<Candidate> = tried.into_iter().map(|(_, c)| c).collect();
    candidates.sort_by(Candidate::before);
    candidates.insert(0, first);
    Ok(Chosen { shape, variant, candidates, budget, host_room, stems })
}

/// What a combination takes.
struct Choice<'f> {
    micro_batch: &'f MicroBatch,
    variant: Option<&'f Variant>,
}

/// A combination with everything kept, and what could be recomputed: *steps* are pairs of a value and a block, cheapest
/// value first.
struct Point {
    shape: Shape,
    usual: bool,
    variant: Option<Variant>,
    /// With everything kept, by live bytes.
    peak: u64,
    /// Of the host's memory, with everything kept.
    host: u64,
    host_room: HostRoom,
    /// Bytes of programs with everything kept.
    programs: u64,
    /// Of these, before they are bound.
    planned: u64,
    /// With everything kept.
    seconds: f64,
    values: Vec<Value>,
    blocks: usize,
    /// [`Draft::copies`].
    copies: f64,
    /// How the model is placed where that may still be with fewer micro-batches at a time.
    fewer: Option<Placement>,
}

/// A combination whose offsets were tried. What was compiled is gone: of programs as long as a deep model's there is never more in
/// memory than [`Stems`] and the threads have.
struct Fitted {
    /// Steps that are recomputed.
    steps: usize,
    shape: Shape,
    /// The peak; where even live bytes are too many, theirs.
    peak_bytes: u64,
    /// [`Draft::least_bytes`].
    least_bytes: u64,
    /// [`Draft::running_bytes`].
    running_bytes: u64,
    /// [`Draft::planning_bytes`].
    planning_bytes: u64,
    /// [`Draft::programs_bytes`].
    programs: u64,
    /// Of the host's memory.
    host_bytes: u64,
    /// Predicted, of an update.
    seconds: f64,
}

impl Fitted {
    fn of(draft: Draft, steps: usize, budget: u64, stems: &Stems<'_>) -> Fitted {
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

impl Point {
    fn new(shape: &Shape, choice: &Choice<'_>, free: &Free, stems: &Stems<'_>) -> Result<Point, RunError> {
        let mut shape = shape.with(choice.micro_batch);
        let checkpoint = free.checkpoint;
        let mut fewer = None;
        if checkpoint {
            shape.session.checkpoint = Blocks::None;
            // Values are recomputed first; fewer micro-batches at a time are for where all of that is not enough.
            if let Some(placement) = &mut shape.session.placement {
                fewer = placement.in_flight.is_none().then(|| placement.clone());
                placement.in_flight = Some(placement.in_flight(choice.micro_batch.count));
            }
        }
        if let Some(variant) = choice.variant {
            variant.to_session(&mut shape.session);
        }
        let draft = stems.draft_of_size(shape)?;
        let micro = draft.micro().filter(|_| checkpoint);
        let target = Packed { target: stems.target, rows: draft.shape.clip_rows };
        let values = micro.map_or(Vec::new(), |p| cheapest(p, &target));
        let blocks = micro.map_or(1, |p| p.blocks.len().max(1));
        Ok(Point {
            usual: *choice.micro_batch == free.micro_batches[0],
            variant: choice.variant.cloned(),
            peak: draft.least_bytes,
            host: draft.host_bytes(),
            host_room: free.host_room,
            programs: draft.programs_bytes(),
            planned: draft.planned_programs_bytes(),
            seconds: draft.step_seconds(stems.target),
            values,
            blocks,
            copies: draft.copies(),
            fewer,
            shape: draft.shape,
        })
    }

    /// Returns all steps.
    fn steps(&self) -> usize {
        self.values.len() * self.blocks
    }

    /// Returns the compiler's option for `steps` steps.
    fn checkpoint(&self, steps: usize) -> Blocks {
        match steps {
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
    fn candidate(&self, bytes: (usize, u64, u64), seconds: f64, budget: u64) -> Candidate {
        let (steps, peak_bytes, host) = bytes;
        let mut options = Vec::new();
        if steps > 0 {
            options.push(format!("--checkpoint {}", self.checkpoint(steps)));
        }
        let (mut numerics, usual) = (Numerics::Exact, self.usual);
        if let Some(variant) = &self.variant {
            options.push(variant.options.clone());
            numerics = variant.numerics;
        }
        if !usual {
            options.push(format!("--micro-batch {}", self.shape.session.capacity.rows));
            numerics = numerics.max(Numerics::Reordered);
        }
        Candidate {
            options: options.join(" "),
            numerics,
            peak_bytes,
            seconds,
            planned: false,
            verdict: self.host_room.verdict((peak_bytes, host), budget),
        }
    }

    /// Returns whether what was tried can be run.
    fn fits(&self, plan: &Fitted, budget: u64) -> bool {
        plan.peak_bytes <= budget && self.host_room.holds(plan.host_bytes, plan.peak_bytes)
    }

    /// Tries offsets with more or with fewer steps until it just fits; with all steps where it does not.
    fn fit(&self, budget: u64, stems: &Stems<'_>) -> Result<Fitted, RunError> {
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

#[cfg(test)]
mod tests;
