//! The whole space of options that a refusal may propose, and the searches in it: for the least that any combination needs, and
//! for the smallest changes of numbers that fit.
//!
//! What changes numbers is a [`Set`]: one level of each [`Dim`]ension. Every level has a bit, a higher one for a larger change.
//! A set is a smaller change than another if its bits are the smaller number: the largest level decides. What does not change
//! numbers ([`Helpers`]: what is recomputed, what is offloaded, micro-batches of one clip) is tried with each set, by the bytes
//! that live at once, which are a lower bound of any plan. Every named change was planned in full, by applying its options.

mod plans;

use super::dims::{Dim, PARTS, offload};
use super::{Named, Proposals};
use crate::asked::Asked;
use crate::budget::{Draft, MicroBatch, PLANNED_AT_ONCE, SpokenBytes};
use crate::change::Change;
use crate::data::Data;
use crate::device::Device;
use crate::samples;
use crate::search::{Chosen, Free, Stems, choose};
use crate::session::Spoken;
use crate::sizes::Sizes;
use crate::threads::side_by_side;
use crate::variants;
use ambitus_compile::passes::Numerics;
use ambitus_compile::passes::policy::{Blocks, cheapest};
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_families::prepare::Limit;
use ambitus_ir::target::Packed;
use ambitus_recipe::recipe::{MicroBatch as Size, Offload, Samples, Settled, UpdateAt};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of sets whose compiled parts are kept: more would take memory that was not planned.
const KEPT: usize = 3;
/// Everything waits on the host, and everything but activations.
const OFFLOADS: [u8; 2] = [(1 << PARTS) - 1, (1 << (PARTS - 1)) - 1];
/// Where the descent to the least begins: from each of [`OFFLOADS`], from states so small that copying them takes more bytes of
/// programs than it frees, and from nothing.
const STARTS: [Option<u8>; 6] =
    [Some(OFFLOADS[0]), Some(OFFLOADS[1]), Some(0b11000), Some(0b01000), Some(0), None];
/// Combinations that are planned in full where the least of all does not fit.
const EDGE: usize = 8;
/// What a plan in full may be lower than a search saw: one part in this.
const LITTLE: u64 = 20;
/// A larger change is worth naming where it is faster by more than this.
const WORTH: f64 = 0.01;

/// The level of each dimension; 0: as the recipe has it.
type Set = Vec<usize>;
/// What speaks while it trains, and its bytes.
type Speaks = (Option<Spoken>, SpokenBytes);

/// What changes no number, but for the order of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Helpers {
    again: Again,
    /// What waits on the host, as bits of [`offload`]; `None`: as the recipe has it.
    offload: Option<u8>,
    /// A micro-batch is a whole update, so that no gradient is kept; not as small as can be.
    whole: bool,
}

/// What is recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Again {
    Nothing,
    /// Every value that may be.
    Values,
    Blocks,
}

/// A combination, with the bytes that live at once in it.
#[derive(Clone)]
struct Point {
    bytes: u64,
    set: Set,
    helpers: Helpers,
}

/// A set as it is asked for, with what its plans share.
struct At<'r> {
    set: Set,
    change: Change,
    asked: Asked,
    /// The smallest micro-batch.
    least: MicroBatch,
    /// The smallest that is a whole update, where that is another.
    whole: Option<MicroBatch>,
    stems: Stems<'r>,
}

/// What is refused, and where.
pub(super) struct Space<'r> {
    model: &'r ModelDir,
    asked: &'r Asked,
    data: &'r Data,
    device: &'r Device,
    budget: u64,
    dims: Vec<Dim>,
    /// What every combination has.
    always: Change,
    found: Mutex<Found<'r>>,
}

/// What is known already.
#[derive(Default)]
struct Found<'r> {
    bytes: HashMap<(Set, Helpers), u64>,
    fits: HashMap<(Set, bool), Option<Helpers>>,
    /// By longest clip, and whether updates are whole.
    sizes: HashMap<(usize, bool), Option<Sizes>>,
    /// What speaks, where clips end at a limit.
    spoken: Vec<(Limit, Option<Speaks>)>,
    recent: Vec<Arc<At<'r>>>,
}

impl<'r> Space<'r> {
    pub fn new(refused: Proposals<'r>, dims: Vec<Dim>) -> Space<'r> {
        let Proposals { model, asked, data, device, budget } = refused;
        // What they take is not known before clips are prepared.
        let wanted = matches!(asked.recipe.samples, Some(Samples::Of(_)));
        let always = Change { no_samples: wanted && data.prepared().is_none(), ..Change::default() };
        Space { model, asked, data, device, budget, dims, always, found: Mutex::default() }
    }

    /// Returns at most `most` changes that fit. The smallest change of numbers comes first, then each larger one that is a single
    /// option or faster than those before it, with the fastest options that leave numbers as they are. Clips are left out only if
    /// nothing else fits.
    pub fn smallest(&self, most: usize) -> Vec<Named> {
        // A card's budget is its own. In this process's memory what waits on the host frees nothing of the machine's: without it
        // first.
        let mut out = self.by_size(self.device.is_card(), most);
        if !self.device.is_card() {
            let more = self.by_size(true, if out.is_empty() { most } else { 1 });
            let exact = |n: &Named| n.numerics == Numerics::Exact;
            let new = |n: &Named| exact(n) && out.iter().all(|o| o.options != n.options);
            let more: Vec<Named> = more.into_iter().filter(|n| out.is_empty() || new(n)).collect();
            out.truncate(most - more.len().min(1));
            out.extend(more);
            // Those of a kind stay in their order.
            out.sort_by_key(|n| n.numerics);
        }
        out
    }

    /// Returns [`Space::smallest`], with more offloaded than the recipe says if `offloads`.
    fn by_size(&self, offloads: bool, most: usize) -> Vec<Named> {
        let mut out: Vec<Named> = Vec::new();
        let add = |out: &mut Vec<Named>, named: Option<Named>, single: &str| {
            let faster = |n: &Named| out.iter().all(|o| n.seconds < (1.0 - WORTH) * o.seconds);
            out.extend(named.filter(|n| n.options == single || faster(n)));
        };
        let (as_given, recipe) = (vec![0; self.dims.len()], &self.asked.recipe);
        if let Some(at) = self.at(&as_given) {
            let single = self.always.options(recipe);
            add(&mut out, self.fastest(&at, false, offloads), &single);
            add(&mut out, self.fastest(&at, true, offloads), &single);
        }
        // With more that may be changed, more fits.
        let tops = self.tops();
        let first = tops.partition_point(|top| self.is_too_little(*top, offloads));
        let mut done = vec![false; self.dims.len()];
        for (dim, level) in tops.into_iter().skip(first) {
            let change = &self.dims[dim].levels[level - 1].change;
            if out.len() >= most || (!out.is_empty() && change.limit.is_some_and(|limit| limit.loses)) {
                break;
            }
            if !done[dim]
                && let Some((set, helpers)) = self.with_top((dim, level), offloads)
            {
                // A larger one of a kind is no help where a smaller one is enough by itself.
                done[dim] = set.iter().sum::<usize>() == level;
                let single = self.always.with(change).options(recipe);
                add(&mut out, self.named(&set, &helpers, offloads), &single);
            }
        }
        out.truncate(most);
        out
    }

    /// Returns every level, the smallest change first.
    fn tops(&self) -> Vec<(usize, usize)> {
        let of =
            |(d, dim): (usize, &Dim)| (1..=dim.levels.len()).map(move |level| (d, level)).collect::<Vec<_>>();
        let mut tops: Vec<(usize, usize)> = self.dims.iter().enumerate().flat_map(of).collect();
        tops.sort_by_key(|(d, level)| self.dims[*d].bit(*level));
        tops
    }

    /// Returns the combination that needs least, whether it fits or not.
    pub fn least(&self) -> Option<Named> {
        let mut sets = self.strongest(u32::MAX, None);
        // Where none of these can stand, one of its levels is at fault.
        let without = |d: usize| sets.iter().map(move |set| with_level(set, d, 0)).collect::<Vec<Set>>();
        let others: Vec<Set> = (0..self.dims.len()).flat_map(without).collect();
        sets.extend(others);
        // An update in backward is one micro-batch: without it much else may save that does not with it, and no single step leads
        // from one to the other.
        let whole =
            |set: &&Set| !self.dims.iter().zip(*set).any(|(dim, level)| dim.is_update() && *level > 0);
        let apart = sets.iter().filter(whole).cloned().collect();
        let found = [sets, apart].into_iter().filter_map(|sets| self.begin(&STARTS, sets));
        self.as_found(&found.map(|start| self.descend(start)).min_by_key(|best| best.bytes)?)
    }

    /// Returns the least that single steps from a combination lead to, without what saves nothing in it.
    fn descend(&self, start: Point) -> Point {
        let mut best = start;
        // What should never add bytes is looked at last: its programs may.
        let better =
            |best: &Point, all: bool| self.best(self.neighbours(best, all)).filter(|b| b.bytes < best.bytes);
        while let Some(next) = better(&best, false).or_else(|| better(&best, true)) {
            best = next;
        }
        self.simplify(&mut best);
        best
    }

    /// Returns the combination of everything that saves, except adapters: their programs may take more than they save of
    /// states. It is the only combination that is tried for a long model.
    pub fn only(&self) -> Option<Named> {
        let adapts = |set: &Set| self.dims.iter().zip(set).any(|(dim, level)| *level > 0 && dim.is_lora());
        let sets = self.strongest(u32::MAX, None).into_iter().filter(|set| !adapts(set)).collect();
        self.as_found(&self.begin(&STARTS[..1], sets)?)
    }

    /// Returns the best start of the first set that can stand together with what is asked for.
    fn begin(&self, starts: &[Option<u8>], sets: Vec<Set>) -> Option<Point> {
        sets.into_iter().find_map(|set| {
            let at = self.at(&set)?;
            let of = |helpers| (set.clone(), helpers);
            self.best(at.recomputed(starts).into_iter().map(of).collect())
        })
    }

    fn as_found(&self, best: &Point) -> Option<Named> {
        let change = self.explicit(&*self.at(&best.set)?, best.helpers)?;
        self.applied(&change, true)
    }

    /// Returns a combination that fits, of those that were looked at and whose live bytes do: at the edge, offsets decide.
    pub fn at_the_edge(&self) -> Option<Named> {
        let mut some: Vec<(u64, Set, Helpers)> = self
            .found()
            .bytes
            .iter()
            .filter(|(_, bytes)| **bytes <= self.budget)
            .map(|((set, helpers), bytes)| (*bytes, set.clone(), *helpers))
            .collect();
        some.sort_by_key(|(bytes, set, _)| (*bytes, set.clone()));
        let fitting =
            |(_, set, helpers): (u64, Set, Helpers)| self.fitting(&self.explicit(&*self.at(&set)?, helpers)?);
        some.into_iter().take(EDGE).find_map(fitting)
    }

    /// Returns the smallest of some.
    fn best(&self, some: Vec<(Set, Helpers)>) -> Option<Point> {
        let of = |(set, helpers): &(Set, Helpers)| {
            Ok(Point { bytes: self.bytes(set, *helpers), set: set.clone(), helpers: *helpers })
        };
        let points = side_by_side(&some, of).ok()?;
        points.into_iter().filter(|p| p.bytes < u64::MAX).min_by_key(|p| p.bytes)
    }

    /// Returns what differs from a combination in one option; `all`: also in shorter clips, narrower moments and no average, of
    /// which less is never fewer states or activations.
    fn neighbours(&self, Point { set, helpers, .. }: &Point, all: bool) -> Vec<(Set, Helpers)> {
        let mut out = Vec::new();
        for (d, dim) in self.dims.iter().enumerate().filter(|(_, dim)| all || dim.may_add()) {
            let others = (0..=dim.levels.len()).filter(|level| *level != set[d]);
            out.extend(others.map(|level| (with_level(set, d, level), *helpers)));
        }
        let again = [Again::Nothing, Again::Values, Again::Blocks].map(|again| Helpers { again, ..*helpers });
        let flipped = (0..PARTS).map(|bit| Some(helpers.offload.unwrap_or(0) ^ (1 << bit)));
        let offload = flipped.chain([None]).map(|offload| Helpers { offload, ..*helpers });
        let whole = Helpers { whole: !helpers.whole, ..*helpers };
        let all = again.into_iter().chain(offload).chain([whole]);
        out.extend(all.filter(|h| h != helpers).map(|h| (set.clone(), h)));
        out
    }

    /// Leaves out what saves nothing, the largest change first.
    fn simplify(&self, best: &mut Point) {
        let bytes = best.bytes;
        let as_good = |set: &Set, helpers: Helpers| self.bytes(set, helpers) <= bytes;
        let mut order: Vec<usize> = (0..self.dims.len()).collect();
        order.sort_by_key(|d| Reverse(self.dims[*d].bit(best.set[*d])));
        for d in order {
            let lower =
                (0..best.set[d]).find(|level| as_good(&with_level(&best.set, d, *level), best.helpers));
            best.set[d] = lower.unwrap_or(best.set[d]);
        }
        let less = |now: Helpers, less: Helpers| if as_good(&best.set, less) { less } else { now };
        let mut now = less(best.helpers, Helpers { offload: None, ..best.helpers });
        for bit in (0..PARTS).rev() {
            let offload = now.offload.map(|parts| parts & !(1 << bit));
            now = less(now, Helpers { offload, ..now });
        }
        if now.again == Again::Blocks {
            now = less(now, Helpers { again: Again::Values, ..now });
        }
        best.helpers = less(now, Helpers { again: Again::Nothing, ..now });
    }

    /// Sets of all changes up to one of so large a bit; of those that may also add bytes, with and without. `with`: what all have.
    fn strongest(&self, bit: u32, with: Option<(usize, usize)>) -> Vec<Set> {
        let none = vec![0; self.dims.len()];
        let mut sets = vec![with.map_or(none.clone(), |(dim, level)| with_level(&none, dim, level))];
        for (d, dim) in self.dims.iter().enumerate().filter(|(d, _)| with.is_none_or(|(dim, _)| dim != *d)) {
            let most = dim.levels.iter().filter(|l| l.bit <= bit).count();
            let ways = dim.extremes(most);
            sets = sets.iter().flat_map(|set| ways.iter().map(|way| with_level(set, d, *way))).collect();
        }
        sets
    }

    /// Returns whether nothing fits that changes no more than this level.
    fn is_too_little(&self, (dim, level): (usize, usize), offloads: bool) -> bool {
        let sets = self.strongest(self.dims[dim].bit(level), None);
        sets.iter().all(|set| self.fits(set, offloads).is_none())
    }

    /// Returns the smallest set whose largest change is this, and helpers with which it fits.
    fn with_top(&self, (dim, level): (usize, usize), offloads: bool) -> Option<(Set, Helpers)> {
        let bit = self.dims[dim].bit(level);
        let alone = with_level(&vec![0; self.dims.len()], dim, level);
        let all = std::iter::once(alone).chain(self.strongest(bit, Some((dim, level))));
        let (mut helpers, mut set) =
            all.into_iter().find_map(|set| Some((self.fits(&set, offloads)?, set)))?;
        let mut others: Vec<usize> = (0..self.dims.len()).filter(|d| *d != dim).collect();
        others.sort_by_key(|d| Reverse(self.dims[*d].bit(set[*d])));
        for d in others {
            let smaller = (0..set[d]).map(|level| with_level(&set, d, level));
            let fitting = smaller.into_iter().find_map(|set| Some((self.fits(&set, offloads)?, set)));
            (helpers, set) = fitting.unwrap_or((helpers, set));
        }
        Some((set, helpers))
    }

    /// Returns helpers with which a set fits the budget.
    fn fits(&self, set: &Set, offloads: bool) -> Option<Helpers> {
        let key = (set.clone(), offloads);
        if let Some(known) = self.found().fits.get(&key) {
            return *known;
        }
        let offload = OFFLOADS.into_iter().filter(|_| offloads).map(Some);
        let offload: Vec<Option<u8>> = [None].into_iter().chain(offload).collect();
        let found = self.at(set).and_then(|at| {
            let some = at.recomputed(&offload);
            let fits = side_by_side(&some, |h| Ok(self.fits_with(&at, *h))).ok()?;
            some.into_iter().zip(fits).find(|(_, fits)| *fits).map(|(h, _)| h)
        });
        self.found().fits.insert(key, found);
        found
    }

    fn fits_with(&self, at: &At<'_>, helpers: Helpers) -> bool {
        let Some(draft) = self.draft(at, helpers) else { return false };
        let peak = draft.peak_within(self.budget, &at.stems.heights);
        peak <= self.budget && at.asked.host_room(self.device).holds(draft.host_bytes(), peak)
    }

    /// Returns the bytes that live at once in a combination; of one that cannot be, or that the host has no room for, more than
    /// any.
    fn bytes(&self, set: &Set, helpers: Helpers) -> u64 {
        let key = (set.clone(), helpers);
        if let Some(bytes) = self.found().bytes.get(&key) {
            return *bytes;
        }
        let bytes = self.at(set).and_then(|at| {
            let draft = self.draft(&at, helpers)?;
            let room = at.asked.host_room(self.device);
            room.holds(draft.host_bytes(), draft.least_bytes).then_some(draft.least_bytes)
        });
        let bytes = bytes.unwrap_or(u64::MAX);
        self.found().bytes.insert(key, bytes);
        bytes
    }

    /// Returns a set with the fastest helpers; those that are known to fit, where none are found.
    fn named(&self, set: &Set, known: &Helpers, offloads: bool) -> Option<Named> {
        let at = self.at(set)?;
        // What the recipe leaves open is searched where the options are applied.
        let alone = || self.fitting(&at.change);
        let exact =
            || self.fastest(&at, false, offloads).filter(|_| at.change.numerics() < Numerics::Reordered);
        let known = || self.fitting(&self.explicit(&at, *known)?);
        alone().or_else(exact).or_else(|| self.fastest(&at, true, offloads)).or_else(known)
    }

    /// Returns a set with the fastest options that leave numbers as they are, `reordered` sums too.
    fn fastest(&self, at: &At<'_>, reordered: bool, offloads: bool) -> Option<Named> {
        let given = self.asked.recipe.offload.as_ref();
        let forms = variants::offloads(at.asked.recipe.ema.is_kept())
            .into_iter()
            .chain(given.map(|_| Offload::default()));
        let offloads = forms.filter(|o| offloads && Some(o) != given).collect();
        let mut micro_batches = at.asked.micro_batches.clone();
        micro_batches.truncate(if reordered { usize::MAX } else { 1 });
        let host_room = at.asked.host_room(self.device);
        let free = Free { checkpoint: true, micro_batches, variants: Vec::new(), offloads, host_room };
        let found = choose(&at.asked.shape, &free, self.budget, Stems::of(self.device.target())).ok()?;
        found.fits().then(|| self.fitting(&self.differing(at, &found))).flatten()
    }

    /// Returns what a plan that was found has otherwise than the recipe.
    fn differing(&self, at: &At<'_>, found: &Chosen<'_>) -> Change {
        let given = &self.asked.recipe;
        let session = &found.shape.session;
        let usual = given.checkpoint.as_ref().map_or(Blocks::None, |c| c.0.clone());
        let rows = session.capacity.rows;
        let other = match given.micro_batch.frames {
            Some(_) => rows != self.asked.shape.session.capacity.rows,
            None => rows != at.asked.micro_batches[0].capacity.rows,
        };
        Change {
            checkpoint: Some(session.checkpoint.clone()).filter(|blocks| *blocks != usual),
            offload: found.taken.offload.clone().or(at.change.offload.clone()),
            micro_batch: Some(rows).filter(|_| other),
            ..at.change.clone()
        }
    }

    /// Returns what applying options word for word comes to, where it fits.
    fn fitting(&self, change: &Change) -> Option<Named> {
        self.applied(change, false)
    }

    /// Returns what applying options word for word comes to; also where it does not fit, if `anyway`.
    fn applied(&self, change: &Change, anyway: bool) -> Option<Named> {
        let mut recipe = self.asked.recipe.recipe().clone();
        let options = change.options(&recipe);
        change.to_recipe(&mut recipe);
        let recipe = recipe.settled(&self.asked.defaults);
        recipe.validate().ok()?;
        let sizes = self.measured(&recipe, change.limit).ok()?;
        let asked = self.asked_for(&recipe, &sizes, change.limit)?;
        let chosen = asked.choose(self.device, self.budget).ok()?;
        // The plan in full may take a little less than the search saw.
        let hopeless = chosen.peak_bytes() > self.budget + self.budget / LITTLE;
        if !chosen.fits() && hopeless && !anyway {
            return None;
        }
        let plan = chosen.plan().ok()?.plan;
        let (peak_bytes, host_bytes, seconds) = (plan.peak_bytes, plan.host_bytes(), plan.step_seconds);
        let fits = peak_bytes <= self.budget && asked.host_room(self.device).holds(host_bytes, peak_bytes);
        if !fits && !anyway {
            return None;
        }
        Some(Named { options, peak_bytes, host_bytes, seconds, numerics: change.numerics() })
    }

    fn found(&self) -> MutexGuard<'_, Found<'r>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl At<'_> {
    /// Returns helpers that recompute all blocks, with each kind of offload and of micro-batch.
    fn recomputed(&self, offload: &[Option<u8>]) -> Vec<Helpers> {
        let of =
            |whole| move |offload: &Option<u8>| Helpers { again: Again::Blocks, offload: *offload, whole };
        let whole = self.whole.iter().flat_map(|_| offload.iter().map(of(true)));
        offload.iter().map(of(false)).chain(whole).collect()
    }

    /// Returns the micro-batch of a combination; `None` if there is none of its kind.
    fn micro_batch(&self, helpers: Helpers) -> Option<MicroBatch> {
        if helpers.whole { self.whole } else { Some(self.least) }
    }
}

fn with_level(set: &Set, dim: usize, level: usize) -> Set {
    let mut set = set.clone();
    set[dim] = level;
    set
}
