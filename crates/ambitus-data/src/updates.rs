//! Which clips train together in which update.
//!
//! The clips form an endless stream: epoch after epoch, each all of them in a seeded random order in which every stretch
//! has its share of the long and of the short (`order.rs`). Updates are cut from that stream, across the ends of epochs, so
//! no update is a small rest. Each takes clips from the front until its size is reached; the last places go to those of the
//! next few clips that bring it closest to its size, and what was passed over comes first in the next update. So every clip
//! is used once per epoch, and all updates are nearly equally large and nearly alike, which is what lets them fill their
//! micro-batches. The list depends on the lengths, the size, the seed and the number of the update alone: not on
//! micro-batches, threads or ranks.
//!
//! Clips may have weights. An epoch then has about as many uses as there are clips, and each clip its share of them: of 2.5 uses in an
//! epoch two or three, of 0.2 one in every fifth.
//!
//! Clips of several data sets are as many streams, which take turns as the sets' weights say (`updates/turns.rs`). What is passed over or
//! goes to a last place never changes the turns, so any stretch has of every set its share of clips, to within one of two sets.

mod stream;
mod turns;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::error::DataError;
use crate::pack::{self, Capacity};
use stream::{Clips, Stream};
use turns::Turns;

/// How large an update is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateSize {
    /// Exactly this many clips, chosen so that updates have about equally many frames.
    Clips(usize),
    /// At most this many frames, and at least 95 % of it where the clips allow.
    Frames(u64),
}

/// The clips to train on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Drawn<'a> {
    /// Length of each.
    pub frames: &'a [u32],
    /// How often each is, in relation to the others of its data set; nothing where all are alike.
    pub weights: &'a [f32],
    /// The data sets whose clips these are, one after another; nothing where there is one.
    pub sets: &'a [Set],
}

/// One of several data sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Set {
    /// Its clips.
    pub clips: usize,
    /// How many of the clips of an update are its own, in relation to the other sets.
    pub weight: f64,
}

/// One use of a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Draw {
    /// Index of the clip in the lengths given.
    pub clip: u32,
    /// Which use of the clip it is, from 0: with the clip it identifies a random draw. It is the epoch of its set where each has one use
    /// in one.
    pub epoch: u32,
}

/// Updates by frames stop at this share of their size: micro-batches packed to the last frame hardly exist.
const HIGHEST_FILL: f64 = 0.985;
/// Memory of a sequence that does not depend on the number of clips.
const FIXED_BYTES: u64 = 8 << 10;

/// The endless sequence of updates.
#[derive(Clone)]
pub struct Updates {
    clips: Clips,
    /// One of each set.
    streams: Vec<Stream>,
    /// Which of them is next.
    turns: Turns,
    /// Frames of an epoch, on average.
    total: u64,
    size: UpdateSize,
    done: u64,
    /// [`Updates::sample`], once it was asked for.
    sample: OnceLock<Vec<Vec<u32>>>,
}

/// Returns the number of micro-batches that these updates take in all.
fn batches(updates: &[Vec<u32>], capacity: Capacity) -> Result<u64, DataError> {
    /// From this number of clips on a simple packing is as good, and the exact one would take minutes.
    const MANY: usize = 64;
    let of = |update: &Vec<u32>| match update.len() {
        MANY.. => Ok(pack::quick(update, capacity) as u64),
        _ => Ok(pack::pack(update, capacity)?.len() as u64),
    };
    updates.iter().map(of).sum()
}

impl Updates {
    /// Starts the sequence of updates.
    ///
    /// # Errors
    /// No clips, or some without frames; an update of nothing; weights that are not numbers above 0; sets that are not of these clips.
    pub fn new(drawn: &Drawn<'_>, size: UpdateSize, seed: u64) -> Result<Self, DataError> {
        let Drawn { frames, weights, sets } = *drawn;
        let refused = |why: &str| Err(DataError::Packing(why.to_owned()));
        if frames.is_empty() || frames.contains(&0) {
            return refused("no clips, or clips without frames, to form updates of");
        }
        let valid = match size {
            UpdateSize::Clips(n) => n > 0,
            UpdateSize::Frames(n) => n > 0,
        };
        if !valid {
            return Err(DataError::Packing(format!("an update of {size:?} cannot be formed")));
        }
        let sound = weights.iter().all(|w| w.is_finite() && *w > 0.0);
        if !(sound && (weights.is_empty() || weights.len() == frames.len())) {
            return refused("weights are not numbers above 0, one of each clip");
        }
        let one = [Set { clips: frames.len(), weight: 1.0 }];
        let sets = if sets.is_empty() { &one[..] } else { sets };
        let sound = sets.iter().all(|set| set.clips > 0 && set.weight.is_finite() && set.weight > 0.0);
        if !sound || sets.iter().map(|set| set.clips).sum::<usize>() != frames.len() {
            return refused("data sets are not of these clips, each with some and a weight above 0");
        }
        let turns = Turns::new(sets);
        let clips = Clips::new(frames, weights, sets, seed);
        let streams: Vec<Stream> = Stream::of(sets);
        let of_set = |(s, stream): (usize, &Stream)| {
            let of_all = turns.share(s) * frames.len() as f64 / stream.clips().len() as f64;
            stream.clips().map(|i| f64::from(frames[i]) * clips.share(i)).sum::<f64>() * of_all
        };
        let total = streams.iter().enumerate().map(of_set).sum::<f64>() as u64;
        Ok(Self { clips, streams, turns, total, size, done: 0, sample: OnceLock::new() })
    }

    /// Returns the most bytes that the sequence of `clips` clips takes: lengths, the clips that wait (up to two epochs, in a queue
    /// that grows by doubling), and an epoch while it is ordered. Where they have weights an epoch may have twice as many uses, and its
    /// uses and their lengths are listed while they are ordered.
    pub const fn bytes_of(clips: usize, weighted: bool) -> u64 {
        let alike = 4 * size_of::<u32>() + 3 * size_of::<Draw>();
        let clip = if weighted { 3 * alike + size_of::<f32>() } else { alike };
        (clips * clip) as u64 + FIXED_BYTES
    }

    /// Returns the number of frames of an update: the bound by frames, the mean by clips.
    pub fn target_frames(&self) -> u64 {
        match self.size {
            UpdateSize::Frames(n) => n,
            UpdateSize::Clips(n) => (n as u64 * self.total).div_ceil(self.clips.frames.len() as u64),
        }
    }

    /// Returns the frame capacity to plan for micro-batches of at most `requested` frames (and `clips` clips): between half of
    /// it and all of it, the largest with which the first updates take nearly the fewest planned frames. Eight thousand
    /// frames in micro-batches of 1,500 become six of about 1,360 instead of five and a third, and five and a half
    /// clips of equal length become five; the work is less or the same, and so is the memory. An error names a clip
    /// longer than `requested`.
    pub fn micro_batch(&self, requested: u32, clips: usize) -> Result<u32, DataError> {
        const STEPS: u32 = 50;
        const TRIED: usize = 8;
        /// Planned frames over the fewest possible that a larger micro-batch is worth.
        const WORTH: f64 = 1.01;
        let capacity = |frames: u32| Capacity { frames, clips };
        let longest = self.clips.frames.iter().copied().max().unwrap_or(0);
        if longest > requested {
            // Perhaps not in the first updates, but it will come.
            pack::pack(&self.clips.frames, capacity(requested))?;
        }
        let sample = self.sample();
        let lowest = (requested / 2).max(longest);
        let candidates: Vec<u32> = (0..=STEPS)
            .map(|i| requested - (u64::from(requested - lowest) * u64::from(i) / u64::from(STEPS)) as u32)
            .collect();
        // What sums allow and what best-fit reaches bound the search on both sides; the best of either are tried.
        let mut tried = vec![requested];
        for count in [pack::least as fn(&[u32], Capacity) -> usize, pack::quick] {
            let mut ranked: Vec<(u64, u32)> = candidates
                .iter()
                .map(|&c| {
                    let batches: usize = sample.iter().map(|update| count(update, capacity(c))).sum();
                    (batches as u64 * u64::from(c), c)
                })
                .collect();
            ranked.sort_by_key(|&(planned, c)| (planned, std::cmp::Reverse(c)));
            tried.extend(ranked.into_iter().take(TRIED).map(|(_, c)| c));
        }
        // Some are asked for twice, and packing is all of the work.
        let mut known: HashMap<u32, u64> = HashMap::new();
        let mut batches = |c: u32| -> Result<u64, DataError> {
            if let Some(&n) = known.get(&c) {
                return Ok(n);
            }
            let n = batches(sample, capacity(c))?;
            known.insert(c, n);
            Ok(n)
        };
        let mut planned = Vec::new();
        for c in tried {
            planned.push((batches(c)? * u64::from(c), c));
        }
        let fewest = planned.iter().map(|&(frames, _)| frames).min().unwrap_or(0);
        let good = planned.iter().filter(|&&(frames, _)| frames as f64 <= WORTH * fewest as f64);
        let mut high = good.map(|&(_, c)| c).max().unwrap_or(requested);
        // And down as far as that takes no more micro-batches.
        let count = batches(high)?;
        let mut low = (high - high / 8).max(longest);
        while high - low > requested / 400 {
            let middle = low + (high - low) / 2;
            if batches(middle)? <= count {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(high)
    }

    /// Returns the number of micro-batches of an update, on average over the first ones.
    ///
    /// # Errors
    /// A clip longer than the capacity.
    pub fn micro_batches(&self, capacity: Capacity) -> Result<f64, DataError> {
        let sample = self.sample();
        Ok(batches(sample, capacity)? as f64 / sample.len().max(1) as f64)
    }

    /// Returns the lengths of the clips of the first updates: enough that one which needs one micro-batch more is among them.
    fn sample(&self) -> &[Vec<u32>] {
        const SAMPLED: usize = 24;
        self.sample.get_or_init(|| {
            let first = self.restarted().take(SAMPLED);
            first.map(|update| update.iter().map(|d| self.clips.frames[d.clip as usize]).collect()).collect()
        })
    }

    /// Returns this sequence from its start.
    fn restarted(&self) -> Self {
        let streams = self.streams.iter().map(Stream::restarted).collect();
        let (clips, turns, sample) = (self.clips.clone(), self.turns.restarted(), OnceLock::new());
        Self { clips, streams, turns, total: self.total, size: self.size, done: 0, sample }
    }

    /// Returns the number of updates that go once, or `epochs` times, through the clips; rounded up.
    pub fn per_epochs(&self, epochs: f64) -> u64 {
        (self.per_epoch() * epochs).ceil().max(1.0) as u64
    }

    /// Returns the number of updates that go once through the clips; not whole where they do not divide them.
    pub fn per_epoch(&self) -> f64 {
        match self.size {
            UpdateSize::Clips(n) => self.clips.frames.len() as f64 / n as f64,
            _ => self.total as f64 / (self.target_frames() as f64 * HIGHEST_FILL),
        }
    }

    /// Returns the frames of the largest of the first `n` updates, and clips of the one with the most: what a micro-batch holds
    /// that is a whole update.
    pub fn largest(&self, n: u64) -> Result<(u64, usize), DataError> {
        let mut most = (0, 0);
        for update in self.restarted().take(n as usize) {
            let frames = update.iter().map(|&d| self.frames_of(d)).sum::<u64>();
            most = (most.0.max(frames), most.1.max(update.len()));
        }
        Ok(most)
    }

    /// Returns whether each of the first `n` updates takes at most `most` micro-batches.
    ///
    /// # Errors
    /// A clip longer than the capacity.
    pub fn take_at_most(&self, n: u64, most: usize, capacity: Capacity) -> Result<bool, DataError> {
        for update in self.restarted().take(n as usize) {
            let lengths: Vec<u32> = update.iter().map(|d| self.clips.frames[d.clip as usize]).collect();
            // What packs is never worse than what is quick.
            if pack::quick(&lengths, capacity) > most && pack::pack(&lengths, capacity)?.len() > most {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the number of the update that [`next`](Iterator::next) returns.
    pub fn position(&self) -> u64 {
        self.done
    }

    /// Returns the sequence from update `n` on. Forming updates is cheap, so it is gone through from the start.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn at(drawn: &Drawn<'_>, size: UpdateSize, seed: u64, n: u64) -> Result<Self, DataError> {
        let mut updates = Self::new(drawn, size, seed)?;
        while updates.done < n {
            updates.next();
        }
        Ok(updates)
    }

    /// Returns the epoch of a use: of all clips, as many as there are.
    pub fn epoch_of(&self, of: Draw) -> u32 {
        let epoch = self.clips.epoch_of(of);
        if self.streams.len() == 1 {
            return epoch;
        }
        let set = self.set_of(of);
        let epochs =
            self.streams[set].clips().len() as f64 / (self.turns.share(set) * self.clips.frames.len() as f64);
        (f64::from(epoch) * epochs) as u32
    }

    /// Returns how many uses are of each data set; nothing where there is one.
    pub fn of_sets(&self, uses: &[Draw]) -> Vec<u32> {
        if self.streams.len() == 1 {
            return Vec::new();
        }
        let mut counts = vec![0; self.streams.len()];
        uses.iter().for_each(|draw| counts[self.set_of(*draw)] += 1);
        counts
    }

    /// Returns the set of a use.
    fn set_of(&self, draw: Draw) -> usize {
        self.streams.partition_point(|stream| stream.clips().end <= draw.clip as usize)
    }

    fn frames_of(&self, draw: Draw) -> u64 {
        u64::from(self.clips.frames[draw.clip as usize])
    }

    /// Returns the frames of those clips of a set that may be preferred to its next.
    fn ahead(&mut self, set: usize) -> Vec<u64> {
        let stream = &mut self.streams[set];
        let ahead = stream.look_ahead();
        stream.fetch(ahead, &self.clips);
        self.streams[set].waiting().take(ahead).map(|d| self.frames_of(d)).collect()
    }

    /// Takes the clip whose turn it is.
    fn advance(&mut self, update: &mut Vec<Draw>) {
        let set = self.turns.take();
        update.extend(self.streams[set].next(&self.clips));
    }

    /// Takes one or two of the next clips, of the sets whose turn it is, that come nearest to `wanted` frames without exceeding it.
    fn fill(&mut self, wanted: u64, update: &mut Vec<Draw>) {
        let [first, second] = self.turns.next_two();
        let (ones, twos) = (self.ahead(first), self.ahead(second));
        let mut best = (0, None);
        for (i, &one) in ones.iter().enumerate() {
            if one <= wanted && one > best.0 {
                best = (one, Some((i, None)));
            }
            for (j, &two) in twos.iter().enumerate().skip(if first == second { i + 1 } else { 0 }) {
                if one + two <= wanted && one + two > best.0 {
                    best = (one + two, Some((i, Some(j))));
                }
            }
        }
        let Some((i, j)) = best.1 else { return };
        self.turns.take();
        // The later first: of one set it lies behind the other.
        if let Some(j) = j {
            self.turns.take();
            update.extend(self.streams[second].remove(j));
        }
        update.extend(self.streams[first].remove(i));
    }

    /// Exchanges clips of the later half of each set's in `update` for waiting ones of the set until its frames are near `target`. What is
    /// put back comes first in the next update, in the half that stays.
    fn balance(&mut self, update: &mut [Draw], target: u64) {
        const ROUNDS: usize = 4;
        let sets: Vec<usize> = update.iter().map(|&draw| self.set_of(draw)).collect();
        let mut counts = vec![0usize; self.streams.len()];
        sets.iter().for_each(|set| counts[*set] += 1);
        let mut seen = vec![0usize; counts.len()];
        let mut is_later = |i: &usize| {
            seen[sets[*i]] += 1;
            seen[sets[*i]] > counts[sets[*i]].div_ceil(2)
        };
        let later: Vec<usize> = (0..update.len()).filter(|i| is_later(i)).collect();
        let ahead: Vec<usize> = self.streams.iter().map(Stream::look_ahead).collect();
        self.streams.iter_mut().zip(&ahead).for_each(|(stream, n)| stream.fetch(*n, &self.clips));
        let mut sum: u64 = update.iter().map(|&d| self.frames_of(d)).sum();
        let mut returned: Vec<(usize, Draw)> = Vec::new();
        for _ in 0..ROUNDS {
            let mut best = (sum.abs_diff(target), None);
            for &i in &later {
                let set = sets[i];
                // What is put back must fit into the half that stays.
                if returned.iter().filter(|of| of.0 == set).count() >= counts[set] / 2 {
                    continue;
                }
                for (j, back) in self.streams[set].waiting().take(ahead[set]).enumerate() {
                    let miss = (sum - self.frames_of(update[i]) + self.frames_of(back)).abs_diff(target);
                    if miss < best.0 {
                        best = (miss, Some((i, j)));
                    }
                }
            }
            let (_, Some((i, j))) = best else { break };
            let Some(back) = self.streams[sets[i]].remove(j) else { break };
            sum = sum - self.frames_of(update[i]) + self.frames_of(back);
            returned.push((sets[i], std::mem::replace(&mut update[i], back)));
        }
        for (set, draw) in returned {
            self.streams[set].put_back(draw);
        }
    }
}

impl Iterator for Updates {
    type Item = Vec<Draw>;

    /// Returns the next update; never empty, and there is always one.
    fn next(&mut self) -> Option<Vec<Draw>> {
        let mut update = Vec::new();
        let target = self.target_frames();
        if let UpdateSize::Clips(n) = self.size {
            (0..n).for_each(|_| self.advance(&mut update));
            self.balance(&mut update, target);
        } else {
            let limit = ((target as f64 * HIGHEST_FILL) as u64).max(1);
            let mut sum = 0;
            loop {
                let [set, _] = self.turns.next_two();
                let Some(next) = self.streams[set].peek(&self.clips) else { break };
                let next = self.frames_of(next);
                // A clip longer than the size is an update of its own.
                if sum > 0 && sum + next > limit {
                    break;
                }
                sum += next;
                self.advance(&mut update);
            }
            self.fill(limit.saturating_sub(sum), &mut update);
        }
        self.done += 1;
        Some(update)
    }
}
