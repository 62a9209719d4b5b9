//! Local search by ejection: what sticks out of a limit is put below it where least is in the way, and what was in the way is put
//! elsewhere in turn (Nagata and Bräysy, "A powerful route minimization heuristic for the vehicle routing problem with time
//! windows", 2009). An item that found no gap weighs more from then on, so that the search does not go in circles.

use super::greedy::Item;

/// What an item weighs before it was in the way. Each solves problems on which the other takes long.
#[derive(Clone, Copy, Debug)]
pub(super) enum Weight {
    Size,
    Area,
}

impl Weight {
    pub(super) const ALL: [Self; 2] = [Self::Size, Self::Area];

    /// Returns the weights of all items, as parts of the heaviest.
    fn of(self, items: &[Item]) -> Vec<i64> {
        let own = |i: &Item| match self {
            Weight::Size => u128::from(i.size),
            Weight::Area => i.area(),
        };
        // Of 2^20; areas are below 2^96.
        let unit = (items.iter().map(own).max().unwrap_or(0) >> 20) + 1;
        items.iter().map(|i| i64::try_from(own(i) / unit).unwrap_or(i64::MAX >> 43) + 1).collect()
    }
}

/// Times after which an item that finds no gap gets no heavier: all weights add up in 64 bits.
const MOST_TIMES: i64 = 1000;

struct Search<'a> {
    items: &'a [Item],
    offsets: Vec<u64>,
    placed: Vec<bool>,
    weights: Vec<i64>,
    /// How often an item found no gap, and one.
    times: Vec<i64>,
    /// Of items that were put once, those that they meet in time.
    meets: Vec<Vec<u32>>,
    /// Items that have no place: the last goes first.
    waiting: Vec<u32>,
    /// Of the item that is put: those in its way, where how much more is in its way, and where it could be.
    near: Vec<u32>,
    edges: Vec<(u64, i64)>,
    spots: Vec<u64>,
}

/// Moves items until all end at or below `limit`; `None` when `looks`, from which it takes what it spends, are over before.
pub(super) fn pull_under(
    items: &[Item],
    offsets: &[u64],
    limit: u64,
    weight: Weight,
    looks: &mut u64,
) -> Option<Vec<u64>> {
    let placed: Vec<bool> = items.iter().zip(offsets).map(|(i, at)| at + i.size <= limit).collect();
    let mut search = Search {
        items,
        offsets: offsets.to_vec(),
        placed,
        weights: weight.of(items),
        times: vec![1; items.len()],
        meets: vec![Vec::new(); items.len()],
        waiting: Vec::new(),
        near: Vec::new(),
        edges: Vec::new(),
        spots: Vec::new(),
    };
    search.waiting.extend((0..).take(items.len()).filter(|i| !search.placed[*i as usize]));
    search.waiting.sort_by_key(|&i| items[i as usize].size);
    while let Some(i) = search.waiting.pop() {
        let item = &items[i as usize];
        let meets = &mut search.meets[i as usize];
        if meets.is_empty() {
            meets.extend((0..).take(items.len()).filter(|&o| o != i && items[o as usize].meets(item)));
            *looks = looks.checked_sub(items.len() as u64)?;
        }
        // Sorting those that are near is most of the work.
        *looks = looks.checked_sub(1 + 8 * meets.len() as u64)?;
        let top = limit.checked_sub(item.size)? & !(item.align - 1);
        search.put(i, item, top);
    }
    Some(search.offsets)
}

impl Search<'_> {
    /// Puts an item at or below `top` where least is in the way; what is waits.
    fn put(&mut self, i: u32, item: &Item, top: u64) {
        self.near.clear();
        self.near.extend(self.meets[i as usize].iter().filter(|o| self.placed[**o as usize]));
        self.edges.clear();
        self.spots.clear();
        self.spots.extend([0, top]);
        for &o in &self.near {
            let (start, times) = (self.offsets[o as usize], self.times[o as usize]);
            let end = start + self.items[o as usize].size;
            let weight = times * times * self.weights[o as usize];
            self.edges.extend([((start + 1).saturating_sub(item.size), weight), (end, -weight)]);
            let below = start.checked_sub(item.size).map(|at| at & !(item.align - 1));
            self.spots.extend(below.into_iter().chain([item.up(end)]).filter(|at| *at <= top));
        }
        self.edges.sort_unstable();
        self.spots.sort_unstable();
        let (mut least, mut spot) = (i64::MAX, 0);
        let (mut in_the_way, mut edges) = (0, self.edges.iter().peekable());
        for &at in &self.spots {
            while let Some((_, weight)) = edges.next_if(|edge| edge.0 <= at) {
                in_the_way += weight;
            }
            if in_the_way < least {
                (least, spot) = (in_the_way, at);
            }
        }
        if least > 0 {
            self.times[i as usize] = (self.times[i as usize] + 1).min(MOST_TIMES);
            let first = self.waiting.len();
            for &o in &self.near {
                let start = self.offsets[o as usize];
                if start < spot + item.size && spot < start + self.items[o as usize].size {
                    self.placed[o as usize] = false;
                    self.waiting.push(o);
                }
            }
            self.waiting[first..].sort_by_key(|&o| self.items[o as usize].size);
        }
        self.offsets[i as usize] = spot;
        self.placed[i as usize] = true;
    }
}
