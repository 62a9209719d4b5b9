//! Packing the clips of one update into as few micro-batches as possible.
//!
//! A micro-batch has two capacities, frames and clips (segments); clips are laid end to end, so only sums count. This is
//! bin packing with a cardinality limit. Best-fit decreasing and best-fit in the given order are tried first; if they
//! need more micro-batches than the sums do, a local search tries every smaller number: from the most even distribution
//! it moves and exchanges clips (one for one, two for one) as long as that reduces what lies over the capacities, with a
//! few seeded disturbances when it is stuck. The result depends on nothing but the arguments.

use crate::error::DataError;
use crate::rng::SplitMix;

/// What one micro-batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Frames.
    pub frames: u32,
    /// Clips.
    pub clips: usize,
}

/// Packs clips into micro-batches, each a list of indices into `frames` (ascending), together all of them once. Returns the
/// fewest that were found, never more than best-fit needs. A clip longer than the capacity is an error that gives its index.
pub fn pack(frames: &[u32], capacity: Capacity) -> Result<Vec<Vec<usize>>, DataError> {
    if capacity.clips == 0 && !frames.is_empty() {
        return Err(DataError::Packing("a micro-batch of no clips".into()));
    }
    if let Some((i, &n)) = frames.iter().enumerate().find(|(_, n)| **n > capacity.frames) {
        return Err(DataError::Packing(format!(
            "clip {i} has {n} frames ({:.1} s), more than the micro-batch of {}; raise --micro-batch to at least {n} or \
             lower the longest clip that is allowed",
            crate::mel::seconds(u64::from(n)),
            capacity.frames
        )));
    }
    let in_order: Vec<usize> = (0..frames.len()).collect();
    let mut descending = in_order.clone();
    descending.sort_by_key(|&i| (std::cmp::Reverse(frames[i]), i));
    let mut best = best_fit(frames, &descending, capacity);
    let other = best_fit(frames, &in_order, capacity);
    if other.len() < best.len() {
        best = other;
    }
    let least = least(frames, capacity);
    for bins in least..best.len() {
        if let Some(found) = Search::new(frames, &descending, capacity, bins).run() {
            best = found;
            break;
        }
    }
    for batch in &mut best {
        batch.sort_unstable();
    }
    Ok(best)
}

/// Returns the most bytes of packing `clips` clips, with the result: two orders of them, two packings, and the search's own.
pub const fn bytes_of(clips: usize) -> u64 {
    // Micro-batches are vectors that grow by doubling, at worst of one clip each.
    (clips * (3 * size_of::<usize>() + 3 * (size_of::<(u32, Vec<usize>)>() + 4 * size_of::<usize>()))) as u64
}

/// Returns the share of the frames of `batches` micro-batches that hold a clip.
pub fn fill(frames: &[u32], batches: &[Vec<usize>], capacity: Capacity) -> f64 {
    let used: u64 = batches.iter().flatten().map(|&i| u64::from(frames[i])).sum();
    used as f64 / (batches.len().max(1) as f64 * f64::from(capacity.frames))
}

/// Returns the number of micro-batches that the sums alone demand.
pub(crate) fn least(frames: &[u32], capacity: Capacity) -> usize {
    let total: u64 = frames.iter().map(|&n| u64::from(n)).sum();
    let by_frames = total.div_ceil(u64::from(capacity.frames.max(1))) as usize;
    by_frames.max(frames.len().div_ceil(capacity.clips.max(1)))
}

/// Returns the number of micro-batches that best-fit decreasing takes; no clip may be longer than the capacity.
pub(crate) fn quick(frames: &[u32], capacity: Capacity) -> usize {
    let mut order: Vec<usize> = (0..frames.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(frames[i]));
    best_fit(frames, &order, capacity).len()
}

fn best_fit(frames: &[u32], order: &[usize], capacity: Capacity) -> Vec<Vec<usize>> {
    let mut bins: Vec<(u32, Vec<usize>)> = Vec::new();
    for &i in order {
        let fitting = bins
            .iter_mut()
            .filter(|(left, clips)| *left >= frames[i] && clips.len() < capacity.clips)
            .min_by_key(|(left, _)| *left);
        match fitting {
            Some((left, clips)) => {
                *left -= frames[i];
                clips.push(i);
            }
            None => bins.push((capacity.frames - frames[i], vec![i])),
        }
    }
    bins.into_iter().map(|(_, clips)| clips).collect()
}

/// Search for a packing into a given number of bins.
struct Search<'a> {
    frames: &'a [u32],
    capacity: Capacity,
    bins: Vec<Vec<usize>>,
    loads: Vec<i64>,
    rng: SplitMix,
}

/// Exchanges looked at in one search; bounds the time for very large updates.
const MAX_WORK: u64 = 1_000_000;
const DISTURBANCES: usize = 40;
/// Bins that an overfull one exchanges with: those with the most room.
const EMPTIEST: usize = 16;

impl<'a> Search<'a> {
    /// Starts with the longest clips first, each into the emptiest bin that has a place.
    fn new(frames: &'a [u32], descending: &[usize], capacity: Capacity, bins: usize) -> Self {
        let mut search = Self {
            frames,
            capacity,
            bins: vec![Vec::new(); bins],
            loads: vec![0; bins],
            rng: SplitMix::keyed("pack", bins as u64, frames.len() as u64),
        };
        for &i in descending {
            let b = (0..bins)
                .filter(|&b| search.bins[b].len() < capacity.clips)
                .min_by_key(|&b| (search.loads[b], b))
                .expect("as many places as clips, by the lower bound");
            search.put(b, i);
        }
        search
    }

    fn put(&mut self, bin: usize, clip: usize) {
        self.bins[bin].push(clip);
        self.loads[bin] += i64::from(self.frames[clip]);
    }

    fn over(&self, load: i64) -> i64 {
        (load - i64::from(self.capacity.frames)).max(0)
    }

    fn run(mut self) -> Option<Vec<Vec<usize>>> {
        let mut work = 0;
        for _ in 0..=DISTURBANCES {
            loop {
                let worst = (0..self.bins.len()).max_by_key(|&b| (self.loads[b], b))?;
                if self.over(self.loads[worst]) == 0 {
                    return Some(self.bins);
                }
                if work > MAX_WORK || !self.improve(worst, &mut work) {
                    break;
                }
            }
            if work > MAX_WORK {
                break;
            }
            self.disturb();
        }
        None
    }

    /// Makes the exchange between bin `a` and any other that lowers the overload most; false if none does.
    fn improve(&mut self, a: usize, work: &mut u64) -> bool {
        let mut best = (0i64, None);
        let mut others: Vec<usize> = (0..self.bins.len()).filter(|&b| b != a).collect();
        others.sort_by_key(|&b| (self.loads[b], b));
        others.truncate(EMPTIEST);
        for b in others {
            let before = self.over(self.loads[a]) + self.over(self.loads[b]);
            let gives = self.choices(a);
            let takes = self.choices(b);
            let room = self.capacity.clips;
            for give in &gives {
                for take in &takes {
                    *work += 1;
                    let (out, back) = (give.count(), take.count());
                    if out + back == 0
                        || self.bins[a].len() + back - out > room
                        || self.bins[b].len() + out - back > room
                    {
                        continue;
                    }
                    let moved = give.frames - take.frames;
                    let after = self.over(self.loads[a] - moved) + self.over(self.loads[b] + moved);
                    if before - after > best.0 {
                        best = (before - after, Some((b, *give, *take)));
                    }
                }
            }
        }
        let Some((b, give, take)) = best.1 else {
            return false;
        };
        for clip in give.clips.into_iter().flatten() {
            self.shift(a, b, clip);
        }
        for clip in take.clips.into_iter().flatten() {
            self.shift(b, a, clip);
        }
        true
    }

    /// Returns the choices of a bin: nothing, each clip, and each pair of a small bin.
    fn choices(&self, bin: usize) -> Vec<Choice> {
        const PAIRS_UP_TO: usize = 24;
        let clips = &self.bins[bin];
        let size = |i: usize| i64::from(self.frames[i]);
        let mut out = vec![Choice::default()];
        out.extend(clips.iter().map(|&i| Choice { clips: [Some(i), None], frames: size(i) }));
        if clips.len() <= PAIRS_UP_TO {
            for (n, &i) in clips.iter().enumerate() {
                out.extend(
                    clips[n + 1..]
                        .iter()
                        .map(|&j| Choice { clips: [Some(i), Some(j)], frames: size(i) + size(j) }),
                );
            }
        }
        out
    }

    fn shift(&mut self, from: usize, to: usize, clip: usize) {
        self.bins[from].retain(|&i| i != clip);
        self.loads[from] -= i64::from(self.frames[clip]);
        self.put(to, clip);
    }

    /// Exchanges a few random clips.
    fn disturb(&mut self) {
        for _ in 0..3 {
            let (a, b) = (self.rng.below(self.bins.len()), self.rng.below(self.bins.len()));
            if a == b || self.bins[a].is_empty() || self.bins[b].is_empty() {
                continue;
            }
            let (i, j) = (self.rng.below(self.bins[a].len()), self.rng.below(self.bins[b].len()));
            let (i, j) = (self.bins[a][i], self.bins[b][j]);
            self.shift(a, b, i);
            self.shift(b, a, j);
        }
    }
}

/// Up to two clips of a bin.
#[derive(Clone, Copy, Default)]
struct Choice {
    clips: [Option<usize>; 2],
    frames: i64,
}

impl Choice {
    fn count(&self) -> usize {
        self.clips.iter().flatten().count()
    }
}
