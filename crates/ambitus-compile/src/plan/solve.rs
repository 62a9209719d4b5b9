//! Assigns offsets: greedy passes in a few orders, then repair, then ejection, then exact search of what is small.
//!
//! Deterministic: every search is bounded by counts, never by time, and ties break by index. All
//! constants below trade time for height; none of them touches correctness.

mod eject;
mod exact;
mod greedy;

use std::cmp::Reverse;

use super::problem::{Problem, Solution, live_bound};
use eject::Weight;
use exact::{Found, search};
use greedy::{Item, Placer, Recipe};

/// Heights within one part in this of the bound end the greedy passes: what is left is below the
/// granularity of any decision that rests on a plan.
const CLOSE: u64 = 1000;
/// Heights within one part in this of the bound are not searched any further.
const GOOD: u64 = 100;
/// Long-lived, for the recipes that treat such items apart: at least this part of the timeline.
const LONG: u64 = 64;
/// Looks at a placed item that the greedy passes may spend, and that repair may. A pass over the 6,000
/// buffers of a large model takes one to eight million, some milliseconds.
const GREEDY_LOOKS: u64 = 200_000_000;
const REPAIR_LOOKS: u64 = 20_000_000;
/// The best recipes that repair starts from.
const REPAIR_STARTS: usize = 4;
/// Passes after which repair of one recipe that did not get lower ends.
const REPAIR_PATIENCE: usize = 12;
/// Problems up to this size are searched as a whole; up to `PROOF`, until the height is proven least.
const WHOLE: usize = 512;
const PROOF: usize = 64;
/// Ejection costs most: heights within one part in this of the bound are left to the other searches.
const FAIR: u64 = 64;
/// Looks at an item that ejection may spend, about a second, and for one limit with one kind of weight.
const EJECT_LOOKS: u64 = 160_000_000;
const EJECT_SHARE: u64 = 16_000_000;
/// Below this bound, in bytes, ejecting is not worth the work.
const EJECT_FROM: u64 = 256 << 10;
/// It leaves items of one part in this of the bound out; they go around the others.
const EJECT_SMALL: u64 = 1 << 12;
/// A limit that is not reached gives way to one this much less far down, at least.
const EJECT_LEAST: u64 = 16;
/// Looks at an item that exact searches may spend, and those of a small problem.
const SEARCH_LOOKS: u64 = 20_000_000;
const PROOF_LOOKS: u64 = 10_000_000;

/// Finds an offset for each buffer such that no two that are live together share bytes.
///
/// The height is at least [`live_bound`]; for a handful of buffers it is the least possible.
pub fn solve(problem: &Problem) -> Solution {
    solve_within(problem, Aim::Height(0))
}

/// How low a placement is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// As low as can be found, but a height within this is not made lower.
    Height(u64),
    /// A height as in [`Aim::Height`], by passes and repair alone: for a placement that is solved in full once it is chosen.
    About(u64),
    /// Any height: one pass, for a placement that decides nothing.
    Any,
}

/// Solves a problem with less work than [`solve`] where `aim` allows it.
pub fn solve_within(problem: &Problem, aim: Aim) -> Solution {
    let (bound, peak) = live_bound(problem);
    let (items, names, peak) = rank(problem, peak);
    let mut solver = Solver::new(&items, bound, aim);
    solver.greedy(peak);
    // Of models of hundreds of blocks a pass takes seconds.
    let quick = solver.placer.looks <= solver.tried.len() as u64 * REPAIR_LOOKS;
    if quick && !solver.is_good() {
        solver.repair();
    }
    if !matches!(aim, Aim::About(_)) || items.len() <= PROOF {
        if quick && bound >= EJECT_FROM {
            solver.eject();
        }
        solver.search();
    }
    // Empty buffers stay at 0.
    let mut offsets = vec![0; problem.buffers().len()];
    for (&name, &offset) in names.iter().zip(&solver.offsets) {
        offsets[name] = offset;
    }
    Solution { offsets, height: solver.height }
}

/// Returns the buffers that own bytes, their indices, and the rank of the instant `peak`.
fn rank(problem: &Problem, peak: u32) -> (Vec<Item>, Vec<usize>, u32) {
    let solid = || problem.buffers().iter().enumerate().filter(|(_, b)| b.size > 0);
    let mut firsts: Vec<u32> = solid().map(|(_, b)| b.first).collect();
    firsts.sort_unstable();
    firsts.dedup();
    // Buffers are counted in 32 bits, so ranks fit.
    let rank = |at: u32| firsts.partition_point(|&first| first <= at).saturating_sub(1) as u32;
    let item = |(name, b): (usize, &super::problem::Buffer)| {
        let item = Item { first: rank(b.first), last: rank(b.last), size: b.footprint(), align: b.align };
        (item, name)
    };
    let (items, names) = solid().map(item).unzip();
    (items, names, rank(peak))
}

/// Returns the items by a key, then by index.
fn ordered<K: Ord>(items: &[Item], key: impl Fn(&Item) -> K) -> Vec<u32> {
    let mut order: Vec<u32> = (0..).take(items.len()).collect();
    order.sort_by_key(|&i| key(&items[i as usize]));
    order
}

struct Solver<'a> {
    items: &'a [Item],
    bound: u64,
    aim: Aim,
    placer: Placer<'a>,
    /// The lowest placement so far, its height, and what was tried, with the heights.
    offsets: Vec<u64>,
    height: u64,
    tried: Vec<(u64, Recipe)>,
    scratch: Vec<u64>,
}

impl<'a> Solver<'a> {
    fn new(items: &'a [Item], bound: u64, aim: Aim) -> Self {
        let offsets = vec![0; items.len()];
        let scratch = offsets.clone();
        let height = if items.is_empty() { 0 } else { u64::MAX };
        Self { items, bound, aim, placer: Placer::new(items), offsets, height, tried: Vec::new(), scratch }
    }

    fn is_close(&self) -> bool {
        self.is_within(self.bound / CLOSE)
    }

    fn is_good(&self) -> bool {
        self.is_within(self.bound / GOOD)
    }

    /// Returns whether the height is low enough, or within `bytes` of the bound.
    fn is_within(&self, bytes: u64) -> bool {
        match self.aim {
            Aim::Height(enough) | Aim::About(enough) => self.height <= (self.bound + bytes).max(enough),
            Aim::Any => self.height < u64::MAX,
        }
    }

    /// Runs a recipe and keeps the placement if it is lower.
    fn run(&mut self, recipe: &Recipe) -> u64 {
        let height = self.placer.run(recipe, self.bound, &mut self.scratch);
        if height < self.height {
            self.height = height;
            self.offsets.copy_from_slice(&self.scratch);
        }
        height
    }

    /// Runs one pass per recipe, until one is close to the bound.
    fn greedy(&mut self, peak: u32) {
        let span = self.items.iter().map(|i| u64::from(i.last) + 1).max().unwrap_or(0);
        let items = self.items;
        let by_length = || ordered(items, |i| (Reverse((i.length(), i.size)), i.first));
        let up = |order| Recipe { order, down: Vec::new() };
        let quarter = |k: u64| u32::try_from(span * k / 4).unwrap_or(u32::MAX);
        // Two stacks: activations die as gradients are born. If both grew from the bottom, the one
        // would leave gaps that the other does not fit; so what lives long and is born late hangs
        // from the ceiling.
        let two = |late: u32| {
            let down = |i: &Item| i.first > late && i.length() * LONG > span;
            Recipe { order: by_length(), down: items.iter().map(down).collect() }
        };
        let recipes: [&dyn Fn() -> Recipe; 9] = [
            &|| up(ordered(items, |i| (Reverse((i.size, i.length())), i.first))),
            &|| two(peak),
            &|| two(quarter(1)),
            &|| two(quarter(2)),
            // What lives long in order of birth, so that what dies last lies lowest.
            &|| {
                up(ordered(items, |i| match i.length() * LONG >= span {
                    true => (0, u64::from(i.first), Reverse((i.length(), i.size))),
                    false => (1, 0, Reverse((i.size, i.length()))),
                }))
            },
            &|| up(by_length()),
            &|| up(ordered(items, |i| (Reverse(i.last), Reverse((i.size, i.length()))))),
            &|| up(ordered(items, |i| (i.first, Reverse((i.size, i.length()))))),
            &|| up(ordered(items, |i| (Reverse(i.area()), i.first))),
        ];
        for recipe in recipes {
            if self.is_close() || self.placer.looks > GREEDY_LOOKS {
                return;
            }
            let recipe = recipe();
            let height = self.run(&recipe);
            self.tried.push((height, recipe));
        }
    }

    /// Repeats the best recipes with the items that stuck out above the bound moved to the front
    /// ("squeaky wheel" optimisation, Joslin and Clements 1999).
    fn repair(&mut self) {
        let end_looks = self.placer.looks + REPAIR_LOOKS;
        self.tried.sort_by_key(|&(height, _)| height);
        for (mut least, mut recipe) in std::mem::take(&mut self.tried).into_iter().take(REPAIR_STARTS) {
            let mut patience = REPAIR_PATIENCE;
            self.placer.run(&recipe, self.bound, &mut self.scratch);
            while self.placer.looks < end_looks && patience > 0 && !self.is_close() {
                let end = |i: u32| self.scratch[i as usize] + self.items[i as usize].size;
                recipe.order.sort_by_key(|&i| end(i) <= self.bound);
                let height = self.run(&recipe);
                patience = if height < least { REPAIR_PATIENCE } else { patience - 1 };
                least = least.min(height);
            }
        }
    }

    /// Pulls what sticks out of lower and lower limits under them.
    fn eject(&mut self) {
        let near = self.bound + self.bound / GOOD;
        let goal = if let Aim::Height(enough) = self.aim { near.max(enough) } else { near };
        let (mut looks, mut part) = (EJECT_LOOKS, 1);
        let (large, small): (Vec<u32>, Vec<u32>) = (0..)
            .take(self.items.len())
            .partition(|&i| self.items[i as usize].size > self.bound / EJECT_SMALL);
        let items: Vec<Item> = large.iter().map(|&i| self.items[i as usize]).collect();
        while !self.is_within(self.bound / FAIR) && part <= EJECT_LEAST {
            let limit = self.height - (self.height - goal).div_ceil(part);
            let offsets: Vec<u64> = large.iter().map(|&i| self.offsets[i as usize]).collect();
            let found = Weight::ALL.into_iter().find_map(|weight| {
                let mut given = EJECT_SHARE.min(looks);
                looks -= given;
                let found = eject::pull_under(&items, &offsets, limit, weight, &mut given);
                looks += given;
                found
            });
            let before = self.height;
            if let Some(found) = found {
                let mut offsets = self.offsets.clone();
                large.iter().zip(found).for_each(|(&i, at)| offsets[i as usize] = at);
                if self.placer.around(&large, &small, &mut offsets) < before {
                    self.keep(offsets);
                }
            }
            part = if self.height < before { 1 } else { 2 * part };
        }
    }

    /// Runs exact searches, within a common budget.
    fn search(&mut self) {
        let small = self.items.len() <= PROOF;
        if !small && (self.is_good() || self.items.len() > WHOLE) {
            return;
        }
        let search = Searcher::new(self.items);
        let mut looks = if small { PROOF_LOOKS } else { SEARCH_LOOKS };
        if small && self.aim != Aim::Any {
            self.search_whole(&search, &mut looks);
        } else if !small {
            self.search_bound(&search, &mut looks);
        }
    }

    /// Moves all items to try for the bound itself.
    fn search_bound(&mut self, search: &Searcher, looks: &mut u64) {
        let all: Vec<u32> = (0..).take(self.items.len()).collect();
        for preference in Preference::ALL {
            let mut given = *looks / 3;
            *looks -= given;
            let mut offsets = self.offsets.clone();
            let found = search.run(&all, &mut offsets, self.bound, &mut given, preference);
            *looks += given;
            match found {
                Found::Placement => return self.keep(offsets),
                Found::Nothing => return,
                Found::OutOfBudget => {}
            }
        }
    }

    /// Lowers a small problem as far as it goes: first straight to the bound, then step by step.
    fn search_whole(&mut self, search: &Searcher, looks: &mut u64) {
        if self.height > self.bound {
            self.search_bound(search, looks);
        }
        let all: Vec<u32> = (0..).take(self.items.len()).collect();
        while self.height > self.bound {
            let mut offsets = self.offsets.clone();
            match search.run(&all, &mut offsets, self.height - 1, looks, Preference::Length) {
                Found::Placement => self.keep(offsets),
                Found::Nothing | Found::OutOfBudget => return,
            }
        }
    }

    fn keep(&mut self, offsets: Vec<u64>) {
        let ends = self.items.iter().zip(&offsets).map(|(item, offset)| offset + item.size);
        self.height = ends.max().unwrap_or(0);
        self.offsets = offsets;
    }
}

/// Which of the items that live through equally full instants an exact search tries first. Either
/// solves problems on which the other runs out of its budget.
#[derive(Clone, Copy, Debug)]
enum Preference {
    Length,
    Area,
}

impl Preference {
    const ALL: [Self; 2] = [Self::Length, Self::Area];
}

/// Exact search over one set of items.
struct Searcher<'a> {
    items: &'a [Item],
    /// The most bytes live at any instant of each item's life.
    crowd: Vec<u64>,
}

impl<'a> Searcher<'a> {
    fn new(items: &'a [Item]) -> Self {
        let ranks = items.iter().map(|i| i.last as usize + 1).max().unwrap_or(0);
        let mut change = vec![(0u64, 0u64); ranks + 1];
        for item in items {
            change[item.first as usize].0 += item.size;
            change[item.last as usize + 1].1 += item.size;
        }
        let live: Vec<u64> = change
            .iter()
            .scan(0, |live, (born, dead)| {
                *live = *live + born - dead;
                Some(*live)
            })
            .collect();
        let crowd = |i: &Item| live[i.first as usize..=i.last as usize].iter().copied().max().unwrap_or(0);
        Self { items, crowd: items.iter().map(crowd).collect() }
    }

    fn run(
        &self,
        moving: &[u32],
        offsets: &mut [u64],
        limit: u64,
        looks: &mut u64,
        preference: Preference,
    ) -> Found {
        search(self.items, moving, offsets, limit, looks, |i| {
            let item = &self.items[i as usize];
            let (length, area) = (u128::from(item.length()), item.area());
            Reverse(match preference {
                Preference::Length => (self.crowd[i as usize], length, area),
                Preference::Area => (self.crowd[i as usize], area, length),
            })
        })
    }
}
