//! The search: of the plans that fit a budget, the one with the most frames per second.
//!
//! What the recipe leaves open is tried in combinations that may be the best, with everything kept for backward. How much has to
//! be recomputed then follows from the bytes that are missing ([`cheapest`](ambitus_compile::passes::policy::cheapest)). For the
//! fastest few, offsets are tried, with more or less recomputed until they just fit. So the choice rests on predicted seconds, but
//! whether it fits does not. What is chosen is planned in full, with offsets as low as can be found.

mod candidate;
mod explain;
mod host_room;
mod lattice;
mod point;
mod points;
mod rows;
mod stems;

use crate::budget::{MicroBatch, PLANNED_AT_ONCE, RunPlan, Shape};
use crate::change::Change;
use crate::threads::side_by_side;
use crate::variants::Variant;
use ambitus_families::error::RunError;
use ambitus_ir::target::Target;
use ambitus_recipe::recipe::Offload;
use point::{Fitted, Point};
use points::{others, points};
use std::cmp::Ordering;

pub use candidate::{Candidate, Verdict};
pub use explain::{explain, lines};
pub use host_room::HostRoom;
pub(crate) use lattice::lattice;
pub(crate) use point::Choice;
pub use rows::{largest, most_rows};
pub use stems::{Known, Stems};

/// Candidates whose offsets are tried at a time.
const FEW: usize = 3;
/// What a plan may be lower than is foreseen, of a budget: one part in this.
const FAR: u64 = 32;

/// What the recipe leaves to the search.
#[derive(Clone, Debug)]
pub struct Free {
    /// What is recomputed in backward.
    pub checkpoint: bool,
    /// Micro-batches that may be taken; the first is the usual one.
    pub micro_batches: Vec<MicroBatch>,
    /// Options of other numbers that may be taken, one of these at a time, with or without an offload.
    pub variants: Vec<Variant>,
    /// What may wait in the host's memory, one of these at a time.
    pub offloads: Vec<Offload>,
    /// The room for it.
    pub host_room: HostRoom,
}

impl Free {
    /// Returns how many times programs are in memory while these are tried.
    pub fn planned_at_once(&self) -> u64 {
        let some = self.checkpoint || self.micro_batches.len() > 1;
        let others = !self.variants.is_empty() || !self.offloads.is_empty();
        PLANNED_AT_ONCE[if others { 2 } else { usize::from(some) }]
    }
}

/// What came of a search.
pub struct Search {
    /// The plan that was chosen; where nothing fits, that of the candidate which needs least.
    pub plan: RunPlan,
    /// Its options that differ from the given ones, besides what is recomputed and the micro-batch.
    pub taken: Change,
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
    /// Its options that differ from the given ones, besides what is recomputed and the micro-batch.
    pub taken: Change,
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
        let Chosen { shape, taken, mut candidates, budget, host_room, stems } = self;
        let plan = stems.into_plan(shape)?;
        if let Some(first) = candidates.first_mut() {
            first.peak_bytes = plan.peak_bytes;
            first.verdict = match host_room.verdict((plan.peak_bytes, plan.host_bytes()), budget) {
                Verdict::Slower => Verdict::Chosen,
                refused => refused,
            };
        }
        Ok(Search { plan, taken, candidates })
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
    let host_room = free.host_room;
    let mut points = points(shape, free, budget, &stems)?;
    // Nothing is left to choose, and the plan in full decides whether it fits.
    if !free.checkpoint && points.len() == 1 && free.offloads.is_empty() && free.variants.is_empty() {
        let Point { choice, planned, .. } = points[0];
        let candidates = vec![Candidate { planned: true, ..points[0].estimated(budget) }];
        let shape = Shape { looked_at_bytes: planned, ..points.swap_remove(0).shape };
        return Ok(Chosen { shape, taken: choice.taken(), candidates, budget, host_room, stems });
    }
    let mut fitted = fit_best(&mut points, 0, budget, &stems)?;
    // An estimate may be wrong: before anything is refused, what was left out is tried.
    if !fitted.iter().any(|(at, plan)| points[*at].fits(plan, budget)) {
        let tried = points.len();
        points = others(shape, free, budget, &stems, points)?;
        fitted.extend(fit_best(&mut points, tried, budget, &stems)?);
    }
    let mut candidates: Vec<Candidate> = points.iter().map(|p| p.estimated(budget)).collect();
    for (at, plan) in &fitted {
        let bytes = (plan.steps, plan.peak_bytes, plan.host_bytes);
        candidates[*at] = Candidate { planned: true, ..points[*at].candidate(bytes, plan.seconds, budget) };
    }
    let order = |a: &(usize, Fitted), b: &(usize, Fitted)| {
        let [of_a, of_b] = [&candidates[a.0], &candidates[b.0]];
        let [cost_a, cost_b] = [a, b].map(|(at, plan)| points[*at].worth * plan.seconds);
        let smaller = of_a.peak_bytes.cmp(&of_b.peak_bytes);
        let by = if of_a.verdict.fits() { cost_a.total_cmp(&cost_b) } else { smaller };
        of_a.verdict.cmp(&of_b.verdict).then(by)
    };
    let best = (0..fitted.len()).min_by(|a, b| order(&fitted[*a], &fitted[*b])).unwrap_or(0);
    let (at, Fitted { shape, steps, .. }) = fitted.swap_remove(best);
    let mut first = candidates.swap_remove(at);
    if first.verdict == Verdict::Slower {
        first.verdict = Verdict::Chosen;
    }
    candidates.extend(with_more_memory(&points, (at, steps), &first, budget));
    candidates.sort_by(Candidate::before);
    candidates.insert(0, first);
    let taken = points[at].choice.taken();
    Ok(Chosen { shape, taken, candidates, budget, host_room, stems })
}

/// Returns what is faster than the chosen point with everything kept, and does not fit: the smaller the slower. The chosen one recomputes
/// in `steps`.
fn with_more_memory(
    points: &[Point<'_>],
    (at, steps): (usize, usize),
    chosen: &Candidate,
    budget: u64,
) -> Vec<Candidate> {
    let recomputes = |(i, p): &(usize, &Point<'_>)| p.peak > budget || *i == at && steps > 0;
    let kept = points.iter().enumerate().filter(recomputes).filter_map(|(_, p)| p.kept(budget));
    let mut kept: Vec<Candidate> = kept.collect();
    kept.sort_by(|a, b| a.peak_bytes.cmp(&b.peak_bytes).then(a.seconds.total_cmp(&b.seconds)));
    let mut fastest = chosen.seconds;
    kept.retain(|c| {
        let faster = c.seconds < fastest;
        fastest = fastest.min(c.seconds);
        faster
    });
    kept
}

/// Tries offsets of the points from `first` on, a few of the best at a time until one fits; returns these.
fn fit_best(
    points: &mut [Point<'_>],
    first: usize,
    budget: u64,
    stems: &Stems<'_>,
) -> Result<Vec<(usize, Fitted)>, RunError> {
    let looked_at = points.iter().map(|p| p.planned).fold(0, u64::max);
    points.iter_mut().for_each(|p| p.shape.looked_at_bytes = looked_at);
    let mut tried: Vec<(usize, Candidate)> =
        points.iter().map(|p| p.estimated(budget)).enumerate().skip(first).collect();
    let cost = |(at, c): &(usize, Candidate)| points[*at].worth * c.seconds;
    tried.sort_by(|a, b| {
        let by_cost = if a.1.verdict.fits() { cost(a).total_cmp(&cost(b)) } else { Ordering::Equal };
        a.1.verdict.cmp(&b.1.verdict).then(by_cost).then_with(|| a.1.before(&b.1))
    });
    let mut fitted: Vec<(usize, Fitted)> = Vec::new();
    // What should be far too large is not tried when something else was.
    let far = |(_, c): &(usize, Candidate)| !c.verdict.fits() && c.peak_bytes > budget + budget / FAR;
    for some in tried.chunks(FEW) {
        if !fitted.is_empty() && some.iter().all(far) {
            break;
        }
        fitted.extend(side_by_side(some, |(at, _)| Ok((*at, points[*at].fit(budget, stems)?)))?);
        if fitted.iter().any(|(at, plan)| points[*at].fits(plan, budget)) {
            break;
        }
    }
    Ok(fitted)
}

#[cfg(test)]
mod tests;
