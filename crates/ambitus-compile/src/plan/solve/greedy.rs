//! One pass over the buffers in a given order, each put into a gap that those before it leave.

use std::array::from_fn;
use std::ops::ControlFlow;

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
    /// Returns the length of the lifetime in ranks.
    pub(super) fn length(&self) -> u64 {
        u64::from(self.last - self.first) + 1
    }

    /// Returns the bytes times ranks.
    pub(super) fn area(&self) -> u128 {
        u128::from(self.size) * u128::from(self.length())
    }

    pub(super) fn meets(&self, other: &Item) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns `at` rounded up to the item's alignment.
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

impl Placed {
    #[inline]
    fn meets(&self, item: &Item) -> bool {
        (self.first <= item.last) & (item.first <= self.last)
    }
}

/// Some placed items in order of offset.
#[derive(Clone, Default)]
struct Chunk {
    placed: Vec<Placed>,
    /// The highest end.
    end: u64,
}

impl Chunk {
    fn insert(&mut self, placed: Placed) {
        self.end = self.end.max(placed.end);
        self.placed.insert(self.placed.partition_point(|p| p.offset < placed.offset), placed);
    }

    /// Moves the upper half into an empty chunk.
    fn split_into(&mut self, upper: &mut Chunk) {
        upper.placed.extend(self.placed.drain(self.placed.len() / 2..));
        for half in [self, upper] {
            half.end = half.placed.iter().map(|p| p.end).max().unwrap_or(0);
        }
    }
}

/// Placed items in order of offset, in chunks: to put one in moves a chunk's worth, not half of all.
#[derive(Clone, Default)]
struct Sorted {
    chunks: Vec<Chunk>,
    /// Emptied chunks: a solver makes many passes.
    spare: Vec<Chunk>,
    len: usize,
}

impl Sorted {
    /// A chunk that grows beyond this is split.
    const CHUNK: usize = 128;

    fn clear(&mut self) {
        for chunk in &mut self.chunks {
            chunk.placed.clear();
            chunk.end = 0;
        }
        self.spare.append(&mut self.chunks);
        self.len = 0;
    }

    fn iter(&self) -> impl Iterator<Item = &Placed> {
        self.chunks.iter().flat_map(|chunk| &chunk.placed)
    }

    fn insert(&mut self, placed: Placed) {
        self.len += 1;
        let at =
            self.chunks.partition_point(|chunk| chunk.placed[0].offset < placed.offset).saturating_sub(1);
        if self.chunks.is_empty() {
            self.chunks.push(self.spare.pop().unwrap_or_default());
        }
        let chunk = &mut self.chunks[at];
        chunk.insert(placed);
        if chunk.placed.len() > Self::CHUNK {
            let mut upper = self.spare.pop().unwrap_or_default();
            chunk.split_into(&mut upper);
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
    /// Looks at a placed item so far: what the passes cost, whatever the machine.
    pub looks: u64,
}

impl<'a> Placer<'a> {
    pub(super) fn new(items: &'a [Item]) -> Self {
        let ranks = items.iter().map(|i| i.last + 1).max().unwrap_or(0);
        // 64 to 128 buckets: enough to tell the blocks of a model apart, few enough for long items.
        let shift = (ranks / 64).checked_ilog2().unwrap_or(0);
        let buckets = vec![Sorted::default(); (ranks >> shift) as usize + 1];
        Self { items, all: Sorted::default(), buckets, shift, looks: 0 }
    }

    /// Follows a recipe, writing each item's offset; returns the height.
    pub(super) fn run(&mut self, recipe: &Recipe, ceiling: u64, offsets: &mut [u64]) -> u64 {
        self.clear();
        let mut height = 0;
        for &i in &recipe.order {
            let item = &self.items[i as usize];
            let top = recipe.down.get(i as usize).is_some_and(|&down| down).then_some(ceiling);
            offsets[i as usize] = self.find(item, top);
            height = height.max(self.put(i, offsets));
        }
        height
    }

    /// Leaves `fixed` where they are and puts each of `rest` as low as it fits, writing its offset; returns the height.
    pub(super) fn around(&mut self, fixed: &[u32], rest: &[u32], offsets: &mut [u64]) -> u64 {
        self.clear();
        let mut height = fixed.iter().map(|&i| self.put(i, offsets)).max().unwrap_or(0);
        for &i in rest {
            offsets[i as usize] = self.find(&self.items[i as usize], None);
            height = height.max(self.put(i, offsets));
        }
        height
    }

    fn clear(&mut self) {
        self.all.clear();
        self.buckets.iter_mut().for_each(Sorted::clear);
    }

    /// Puts an item where `offsets` say; returns its end.
    fn put(&mut self, i: u32, offsets: &[u64]) -> u64 {
        let (item, offset) = (&self.items[i as usize], offsets[i as usize]);
        let end = offset + item.size;
        self.insert(Placed { offset, end, first: item.first, last: item.last });
        end
    }

    fn find(&mut self, item: &Item, top: Option<u64>) -> u64 {
        let gap = Gap { item, top, free: 0, lowest: None, highest: None };
        let (from, to) = ((item.first >> self.shift) as usize, (item.last >> self.shift) as usize);
        if from == to || to - from >= FEW_BUCKETS {
            let placed = if from == to { &self.buckets[from] } else { &self.all };
            self.looks += placed.len as u64;
            return gap.among(placed.chunks.iter(), |gap, chunk| gap.look_at(chunk));
        }
        let (buckets, shift) = (&self.buckets[from..=to], self.shift);
        self.looks += buckets.iter().map(|bucket| bucket.len as u64).sum::<u64>();
        // Merges the buckets' runs; an item that is in several counts where it is first met.
        let mut runs: [_; FEW_BUCKETS] = from_fn(|k| {
            let counts = move |p: &&Placed| k == 0 || (p.first >> shift) as usize == from + k;
            let run = buckets.get(k).into_iter().flat_map(Sorted::iter);
            run.filter(move |p| p.meets(item) && counts(p)).peekable()
        });
        let merged = std::iter::from_fn(|| {
            let heads = runs.iter_mut().enumerate().filter_map(|(k, run)| Some((run.peek()?.offset, k)));
            let (_, k) = heads.min()?;
            runs[k].next()
        });
        gap.among(merged, Gap::look)
    }

    fn insert(&mut self, placed: Placed) {
        self.all.insert(placed);
        let (from, to) = ((placed.first >> self.shift) as usize, (placed.last >> self.shift) as usize);
        self.buckets[from..=to].iter_mut().for_each(|bucket| bucket.insert(placed));
    }
}

/// Where an item goes among those that are placed: the lowest offset that fits; with `top`, the highest that ends at or below
/// it, if any does.
struct Gap<'a> {
    item: &'a Item,
    top: Option<u64>,
    /// One past the occupied bytes so far, as the item is aligned.
    free: u64,
    lowest: Option<u64>,
    highest: Option<u64>,
}

impl Gap<'_> {
    /// `placed` in order of offset, whatever their times: items, or chunks of them.
    fn among<P>(
        mut self,
        mut placed: impl Iterator<Item = P>,
        look: impl Fn(&mut Self, P) -> ControlFlow<()>,
    ) -> u64 {
        if placed.try_for_each(|p| look(&mut self, p)).is_break() {
            return self.free;
        }
        let Gap { item, top, free, lowest, mut highest } = self;
        if let Some(top) = top.filter(|&top| free + item.size <= top) {
            highest = Some((top - item.size) & !(item.align - 1));
        }
        highest.or(lowest).unwrap_or(free)
    }

    /// Looks at each of a chunk, unless all end below what is occupied. Where the last of them begins too low for the item to fit
    /// before it, so do all: then only the highest end counts, which needs no order.
    fn look_at(&mut self, chunk: &Chunk) -> ControlFlow<()> {
        if chunk.end <= self.free {
            return ControlFlow::Continue(());
        }
        let placed = &chunk.placed[..];
        if placed.last().is_some_and(|p| self.free + self.item.size <= p.offset) {
            return placed.iter().try_for_each(|p| self.look(p));
        }
        let end = |p: &Placed| if p.meets(self.item) { p.end } else { 0 };
        let (fours, rest) = placed.as_chunks();
        let highest = |most: [u64; 4], four: &[Placed; 4]| from_fn(|k| most[k].max(end(&four[k])));
        let most = fours.iter().fold([0; 4], highest).into_iter().chain(rest.iter().map(end)).max();
        self.free = self.free.max(self.item.up(most.unwrap_or(0)));
        ControlFlow::Continue(())
    }

    /// Breaks where the item goes to `free`. Most of a solver's time: whether the two meet in time is a coin's throw, so
    /// nothing branches on that alone.
    #[inline]
    fn look(&mut self, p: &Placed) -> ControlFlow<()> {
        let meets = p.meets(self.item);
        if meets & (self.free + self.item.size <= p.offset) {
            let Some(top) = self.top else { return ControlFlow::Break(()) };
            self.lowest = self.lowest.or(Some(self.free));
            let end = p.offset.min(top);
            if self.free + self.item.size <= end {
                self.highest = Some((end - self.item.size) & !(self.item.align - 1));
            }
        }
        let end = if meets { p.end } else { 0 };
        // `free` is aligned, so what ends below it stays below it.
        self.free = self.free.max(self.item.up(end));
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buckets and chunks only save looks: every item lies where a search of all those before it puts it.
    #[test]
    fn items_go_where_a_plain_search_puts_them() {
        let mut state = 7u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let items: Vec<Item> = (0..3000)
            .map(|_| {
                let (first, length) = (draw(4000) as u32, [2, 60, 900][draw(3) as usize]);
                let align = 64 << draw(2);
                Item { first, last: first + draw(length) as u32, size: align * (1 + draw(40)), align }
            })
            .collect();
        let recipe = Recipe {
            order: (0..items.len() as u32).collect(),
            down: items.iter().map(|_| draw(4) == 0).collect(),
        };
        let ceiling = 200_000;
        let mut offsets = vec![0; items.len()];
        Placer::new(&items).run(&recipe, ceiling, &mut offsets);
        let mut placed: Vec<Placed> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            let top = recipe.down[i].then_some(ceiling);
            let gap = Gap { item, top, free: 0, lowest: None, highest: None };
            let offset = gap.among(placed.iter(), Gap::look);
            assert_eq!(offsets[i], offset, "item {i}: {item:?}");
            let at = placed.partition_point(|p| p.offset < offset);
            let end = offset + item.size;
            placed.insert(at, Placed { offset, end, first: item.first, last: item.last });
        }
    }
}
