//! Exact search: can some items be put, among all others where they are, below a limit?
//!
//! A depth-first search over *canonical* placements, in which no item can move down: they are built
//! by placing items in order of offset, each at the lowest offset that those before leave it (Moffitt,
//! "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS
//! 2023). If there is any placement there is a canonical one, so the search is complete.

use super::greedy::Item;

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A placement; the offsets were written.
    Placement,
    /// Proof that there is none.
    Nothing,
    /// The budget ended first.
    OutOfBudget,
}

/// One moving item.
struct Mover {
    item: Item,
    /// Where it is, once it is placed.
    offset: u64,
    /// The lowest offset at which the fixed items and the placed movers leave room; never falls on
    /// the way down the tree.
    lowest: u64,
    placed: bool,
    /// Ranges of the fixed items it meets in time, merged, by ascending start.
    fixed: Vec<(u64, u64)>,
    /// Movers it meets in time.
    meets: Vec<usize>,
    /// Instants (indices into `Search::instants`) at which it is live: `from..to`.
    from: usize,
    to: usize,
}

/// An instant at which the movers' needs are compared with the room left.
struct Instant {
    /// Movers live here.
    live: Vec<usize>,
    /// Ranges of the fixed items live here, merged, by ascending start, with the bytes that they take
    /// from this range up to the limit.
    fixed: Vec<(u64, u64, u64)>,
    /// Bytes of the movers live here that are not placed.
    need: u64,
    /// One past the highest byte of the placed movers live here.
    top: u64,
}

/// What placing a mover changed: the lowest offsets of others, and the tops of its instants.
struct Undo {
    lowest: Vec<(usize, u64)>,
    tops: Vec<u64>,
}

struct Search {
    movers: Vec<Mover>,
    instants: Vec<Instant>,
    limit: u64,
    /// Looks at a mover left before the search gives up.
    budget: u64,
    /// Looks that one step of the search takes.
    price: u64,
}

/// Searches for offsets of the `moving` items (ascending indices without repetition) at which all end at or
/// below `limit`, the other items staying at `offsets`. Takes what it spends from `budget`, counted in
/// looks at a mover. `key` ranks movers that can go equally low: the smallest goes first.
pub(super) fn search<K: Ord>(
    items: &[Item],
    moving: &[u32],
    offsets: &mut [u64],
    limit: u64,
    budget: &mut u64,
    key: impl Fn(u32) -> K,
) -> Found {
    // Setting up looks at every item for each mover, for what it meets and for its first instant.
    let Some(rest) = budget.checked_sub(2 * (items.len() * moving.len()) as u64) else {
        return Found::OutOfBudget;
    };
    let mut moving = moving.to_vec();
    moving.sort_by_key(|&i| (key(i), i));
    let mut search = Search::new(items, &moving, offsets, limit, rest);
    let found = if search.hopeless(0) { Found::Nothing } else { search.descend(moving.len(), 0, 0) };
    *budget = search.budget;
    if found == Found::Placement {
        for (&i, mover) in moving.iter().zip(&search.movers) {
            offsets[i as usize] = mover.offset;
        }
    }
    found
}

/// Sorts ranges and joins those that touch.
fn merge(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

impl Search {
    fn new(items: &[Item], moving: &[u32], offsets: &[u64], limit: u64, budget: u64) -> Self {
        let mut moves = vec![false; items.len()];
        moving.iter().for_each(|&i| moves[i as usize] = true);
        let fixed = |meets: &dyn Fn(&Item) -> bool| {
            let fixed = items.iter().zip(offsets).zip(&moves);
            let met = fixed.filter(|&((item, &at), &moves)| !moves && at < limit && meets(item));
            merge(met.map(|((item, &at), _)| (at, at + item.size)).collect())
        };
        let mut firsts: Vec<u32> = moving.iter().map(|&i| items[i as usize].first).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let mut movers: Vec<Mover> = Vec::with_capacity(moving.len());
        for &i in moving {
            let item = items[i as usize];
            let meets =
                (0..moving.len()).filter(|&j| moving[j] != i && items[moving[j] as usize].meets(&item));
            movers.push(Mover {
                item,
                offset: 0,
                lowest: 0,
                placed: false,
                fixed: fixed(&|other| other.meets(&item)),
                meets: meets.collect(),
                from: firsts.partition_point(|&f| f < item.first),
                to: firsts.partition_point(|&f| f <= item.last),
            });
        }
        let mut instants: Vec<Instant> = Vec::with_capacity(firsts.len());
        for &at in &firsts {
            let live = |item: &Item| item.first <= at && at <= item.last;
            let mut ranges: Vec<_> = fixed(&live).into_iter().map(|(start, end)| (start, end, 0)).collect();
            let mut above = 0;
            for (start, end, taken) in ranges.iter_mut().rev() {
                above += (*end).min(limit) - *start;
                *taken = above;
            }
            let live: Vec<usize> = (0..movers.len()).filter(|&m| live(&movers[m].item)).collect();
            let need = live.iter().map(|&m| movers[m].item.size).sum();
            instants.push(Instant { live, fixed: ranges, need, top: 0 });
        }
        let price = (movers.len() + instants.iter().map(|i| i.live.len()).sum::<usize>()) as u64;
        let mut search = Self { movers, instants, limit, budget, price };
        for m in 0..search.movers.len() {
            search.movers[m].lowest = search.lowest(m);
        }
        search
    }

    /// Returns the lowest offset at which mover `m` meets no fixed item and no placed mover.
    fn lowest(&self, m: usize) -> u64 {
        let mover = &self.movers[m];
        let item = &mover.item;
        let mut at = mover.lowest;
        let mut next = mover.fixed.partition_point(|&(_, end)| end <= at);
        loop {
            while let Some(&(_, end)) = mover.fixed.get(next).filter(|&&(start, _)| start < at + item.size) {
                at = at.max(item.up(end));
                next += 1;
            }
            let blocking = mover
                .meets
                .iter()
                .map(|&o| &self.movers[o])
                .filter(|o| o.placed && o.offset < at + item.size && at < o.offset + o.item.size);
            match blocking.map(|o| o.offset + o.item.size).max() {
                Some(end) => at = item.up(end),
                None => return at,
            }
        }
    }

    /// Returns whether some instant lacks room for the movers that are not placed, which all go at `level` or
    /// above, or one of these cannot end below the limit.
    fn hopeless(&self, level: u64) -> bool {
        let out = |m: &Mover| !m.placed && m.lowest.max(level) + m.item.size > self.limit;
        self.movers.iter().any(out)
            || self.instants.iter().any(|instant| {
                if instant.need == 0 {
                    return false;
                }
                let unplaced = instant.live.iter().map(|&m| &self.movers[m]).filter(|m| !m.placed);
                let lowest = unplaced.map(|m| m.lowest).min().unwrap_or(0);
                // Placed movers start at or below `level`, so what shares an instant goes above them.
                let floor = lowest.max(instant.top).max(level);
                let next = instant.fixed.partition_point(|&(_, end, _)| end <= floor);
                let taken = instant
                    .fixed
                    .get(next)
                    .map_or(0, |&(start, _, taken)| taken - floor.saturating_sub(start));
                instant.need + taken + floor > self.limit
            })
    }

    /// Places the `left` movers that are not placed, in order of (offset, index) from (`level`, `last`).
    fn descend(&mut self, left: usize, level: u64, last: usize) -> Found {
        if left == 0 {
            return Found::Placement;
        }
        let unplaced = || self.movers.iter().enumerate().filter(|(_, m)| !m.placed);
        // A mover at or above the end of another that could still go below it is not canonical: later
        // ones go above it too, so that other one could move down.
        let ceiling = unplaced().map(|(_, m)| m.lowest + m.item.size).min().unwrap_or(0);
        let mut next: Vec<(u64, usize)> = unplaced()
            .map(|(i, m)| (m.lowest, i))
            .filter(|&(lowest, i)| lowest < ceiling && (lowest, i) >= (level, last))
            .collect();
        next.sort_unstable();
        for (offset, m) in next {
            let Some(rest) = self.budget.checked_sub(self.price) else {
                return Found::OutOfBudget;
            };
            self.budget = rest;
            let undo = self.place(m, offset);
            if !self.hopeless(offset) {
                let found = self.descend(left - 1, offset, m);
                if found != Found::Nothing {
                    return found;
                }
            }
            self.take_back(m, undo);
        }
        Found::Nothing
    }

    /// Places mover `m` and returns what it changed.
    fn place(&mut self, m: usize, offset: u64) -> Undo {
        let Mover { item, from, to, .. } = self.movers[m];
        let end = offset + item.size;
        self.movers[m].offset = offset;
        self.movers[m].placed = true;
        let mut lowest = Vec::new();
        for k in 0..self.movers[m].meets.len() {
            let o = self.movers[m].meets[k];
            let other = &self.movers[o];
            if !other.placed && other.lowest < end && offset < other.lowest + other.item.size {
                lowest.push((o, other.lowest));
                self.movers[o].lowest = self.lowest(o);
            }
        }
        let instants = &mut self.instants[from..to];
        let tops = instants.iter().map(|i| i.top).collect();
        for instant in instants {
            instant.need -= item.size;
            instant.top = instant.top.max(end);
        }
        Undo { lowest, tops }
    }

    fn take_back(&mut self, m: usize, Undo { lowest, tops }: Undo) {
        let Mover { item, from, to, .. } = self.movers[m];
        self.movers[m].placed = false;
        for (o, was) in lowest {
            self.movers[o].lowest = was;
        }
        for (instant, was) in self.instants[from..to].iter_mut().zip(tops) {
            instant.need += item.size;
            instant.top = was;
        }
    }
}
