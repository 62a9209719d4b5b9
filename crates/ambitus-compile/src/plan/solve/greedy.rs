//! One pass over the buffers in a given order, each put into a gap that those before it leave.

/// A buffer as the solver sees it: its footprint, and its lifetime in ranks of first instants.
///
/// Two buffers are live together if and only if they are at the later of their first instants, so the
/// other instants of a timeline carry no information.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Rank of the first instant among the distinct first instants.
    pub first: u32,
    /// Rank of the latest distinct first instant at or before the last instant.
    pub last: u32,
    /// Footprint in bytes, not zero.
    pub size: u64,
    /// Alignment in bytes.
    pub align: u64,
}

impl Item {
    /// Length of the lifetime in ranks.
    pub(super) fn length(&self) -> u64 {
        u64::from(self.last - self.first) + 1
    }

    /// Bytes times ranks.
    pub(super) fn area(&self) -> u128 {
        u128::from(self.size) * u128::from(self.length())
    }

    pub(super) fn meets(&self, other: &Item) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// `at` rounded up to the item's alignment.
    pub(super) fn up(&self, at: u64) -> u64 {
        (at + self.align - 1) & !(self.align - 1)
    }
}

/// A way to place all items: one by one in `order`, each as low as it fits; but those in `down` as
/// high below a ceiling as they fit, if they do.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub order: Vec<u32>,
    /// By item; empty if none goes down.
    pub down: Vec<bool>,
}

#[derive(Clone, Copy)]
struct Placed {
    offset: u64,
    end: u64,
    first: u32,
    last: u32,
}

/// Placed items in order of offset, in chunks: to put one in moves a chunk's worth, not half of all.
#[derive(Clone, Default)]
struct Sorted {
    chunks: Vec<Vec<Placed>>,
    len: usize,
}

impl Sorted {
    /// A chunk that grows beyond this is split.
    const CHUNK: usize = 128;

    fn clear(&mut self) {
        self.chunks.clear();
        self.len = 0;
    }

    fn iter(&self) -> impl Iterator<Item = &Placed> {
        self.chunks.iter().flatten()
    }

    fn insert(&mut self, placed: Placed) {
        self.len += 1;
        let before = |p: &Placed| p.offset < placed.offset;
        let at = self.chunks.partition_point(|chunk| before(&chunk[0])).saturating_sub(1);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(vec![placed]);
            return;
        };
        chunk.insert(chunk.partition_point(before), placed);
        if chunk.len() > Self::CHUNK {
            let upper = chunk.split_off(Self::CHUNK / 2);
            self.chunks.insert(at + 1, upper);
        }
    }
}

/// Items that touch more buckets than this are compared with every placed item.
const FEW_BUCKETS: usize = 4;

/// The items placed so far: all in order of offset, and again per bucket of time, so that the many
/// short-lived items are compared with those of their own time only.
pub(super) struct Placer<'a> {
    items: &'a [Item],
    all: Sorted,
    buckets: Vec<Sorted>,
    /// A rank's bucket is the rank shifted right by this.
    shift: u32,
    near: Vec<(u64, u64)>,
    /// Looks at a placed item so far: what the passes cost, whatever the machine.
    pub looks: u64,
}

impl<'a> Placer<'a> {
    pub(super) fn new(items: &'a [Item]) -> Self {
        let ranks = items.iter().map(|i| i.last + 1).max().unwrap_or(0);
        // 64 to 128 buckets: enough to tell the blocks of a model apart, few enough for long items.
        let shift = (ranks / 64).checked_ilog2().unwrap_or(0);
        let buckets = vec![Sorted::default(); (ranks >> shift) as usize + 1];
        Self { items, all: Sorted::default(), buckets, shift, near: Vec::new(), looks: 0 }
    }

    /// Follows a recipe, writing each item's offset; returns the height.
    pub(super) fn run(&mut self, recipe: &Recipe, ceiling: u64, offsets: &mut [u64]) -> u64 {
        self.all.clear();
        self.buckets.iter_mut().for_each(Sorted::clear);
        let mut height = 0;
        for &i in &recipe.order {
            let item = &self.items[i as usize];
            let top = recipe.down.get(i as usize).is_some_and(|&down| down).then_some(ceiling);
            let offset = self.find(item, top);
            let end = offset + item.size;
            self.insert(Placed { offset, end, first: item.first, last: item.last });
            offsets[i as usize] = offset;
            height = height.max(end);
        }
        height
    }

    fn find(&mut self, item: &Item, top: Option<u64>) -> u64 {
        let meets = |p: &&Placed| p.first <= item.last && item.first <= p.last;
        let range = |p: &Placed| (p.offset, p.end);
        let (from, to) = ((item.first >> self.shift) as usize, (item.last >> self.shift) as usize);
        if from == to {
            self.looks += self.buckets[from].len as u64;
            return gap(item, top, self.buckets[from].iter().filter(meets).map(range));
        }
        if to - from >= FEW_BUCKETS {
            self.looks += self.all.len as u64;
            return gap(item, top, self.all.iter().filter(meets).map(range));
        }
        self.near.clear();
        for bucket in &self.buckets[from..=to] {
            self.looks += bucket.len as u64;
            self.near.extend(bucket.iter().filter(meets).map(range));
        }
        // The stable sort merges the buckets' sorted runs; an item met twice does no harm.
        self.near.sort();
        gap(item, top, self.near.iter().copied())
    }

    fn insert(&mut self, placed: Placed) {
        self.all.insert(placed);
        let (from, to) = ((placed.first >> self.shift) as usize, (placed.last >> self.shift) as usize);
        self.buckets[from..=to].iter_mut().for_each(|bucket| bucket.insert(placed));
    }
}

/// Where `item` goes among the occupied ranges, given by ascending start: the lowest offset that
/// fits; with `top`, the highest that ends at or below `top`, if any does.
fn gap(item: &Item, top: Option<u64>, taken: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut lowest = None;
    let mut highest = None;
    let mut free = 0u64;
    for (start, end) in taken {
        if free + item.size <= start {
            let Some(top) = top else { return free };
            lowest = lowest.or(Some(free));
            let end = start.min(top);
            if free + item.size <= end {
                highest = Some((end - item.size) & !(item.align - 1));
            }
        }
        if end > free {
            free = item.up(end);
        }
    }
    if let Some(top) = top.filter(|&top| free + item.size <= top) {
        highest = Some((top - item.size) & !(item.align - 1));
    }
    highest.or(lowest).unwrap_or(free)
}
