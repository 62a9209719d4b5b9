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

use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;

use crate::error::DataError;
use crate::order;
use crate::pack::{self, Capacity};
use crate::rng::SplitMix;

/// How large an update is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateSize {
    /// Exactly this many clips, chosen so that updates have about equally many frames.
    Clips(usize),
    /// At most this many frames, and at least 95 % of it where the clips allow.
    Frames(u64),
}

/// One use of a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Draw {
    /// Index of the clip in the lengths given.
    pub clip: u32,
    /// Which use of the clip it is, from 0: with the clip it identifies a random draw. It is the epoch where each has one use in one.
    pub epoch: u32,
}

/// Updates by frames stop at this share of their size: micro-batches packed to the last frame hardly exist.
const HIGHEST_FILL: f64 = 0.985;
/// Clips that may be preferred to the next in order, but no more than half of all: with a few clips, none may wait for
/// many epochs.
const LOOK_AHEAD: usize = 96;
/// Memory of a sequence that does not depend on the number of clips.
const FIXED_BYTES: u64 = 8 << 10;

/// The endless sequence of updates.
#[derive(Clone)]
pub struct Updates {
    frames: Vec<u32>,
    /// Uses of each clip in an epoch, on average; none: each has one.
    shares: Vec<f32>,
    /// Frames of an epoch, on average.
    total: u64,
    size: UpdateSize,
    seed: u64,
    waiting: VecDeque<Draw>,
    epoch: u32,
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
    /// Starts the sequence of updates; `frames` are the lengths of the clips to train on, and `weights` how often each is in relation to
    /// the others, of which there are as many or, where all are alike, none.
    pub fn new(frames: &[u32], weights: &[f32], size: UpdateSize, seed: u64) -> Result<Self, DataError> {
        if frames.is_empty() || frames.contains(&0) {
            return Err(DataError::Packing("no clips, or clips without frames, to form updates of".into()));
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
            return Err(DataError::Packing("weights are not numbers above 0, one of each clip".into()));
        }
        let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        let shares: Vec<f32> =
            weights.iter().map(|w| (f64::from(*w) * frames.len() as f64 / sum) as f32).collect();
        let share = |i: usize| shares.get(i).map_or(1.0, |s| f64::from(*s));
        Ok(Self {
            total: frames.iter().enumerate().map(|(i, n)| f64::from(*n) * share(i)).sum::<f64>() as u64,
            shares,
            frames: frames.to_vec(),
            size,
            seed,
            waiting: VecDeque::new(),
            epoch: 0,
            done: 0,
            sample: OnceLock::new(),
        })
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
            UpdateSize::Clips(n) => (n as u64 * self.total).div_ceil(self.frames.len() as u64),
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
        let longest = self.frames.iter().copied().max().unwrap_or(0);
        if longest > requested {
            // Perhaps not in the first updates, but it will come.
            pack::pack(&self.frames, capacity(requested))?;
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
            first.map(|update| update.iter().map(|d| self.frames[d.clip as usize]).collect()).collect()
        })
    }

    /// Returns this sequence from its start.
    fn restarted(&self) -> Self {
        let (frames, size, seed, total) = (self.frames.clone(), self.size, self.seed, self.total);
        let (shares, waiting, sample) = (self.shares.clone(), VecDeque::new(), OnceLock::new());
        Self { frames, shares, total, size, seed, waiting, epoch: 0, done: 0, sample }
    }

    /// Returns the number of updates that go once, or `epochs` times, through the clips; rounded up.
    pub fn per_epochs(&self, epochs: f64) -> u64 {
        (self.per_epoch() * epochs).ceil().max(1.0) as u64
    }

    /// Returns the number of updates that go once through the clips; not whole where they do not divide them.
    pub fn per_epoch(&self) -> f64 {
        match self.size {
            UpdateSize::Clips(n) => self.frames.len() as f64 / n as f64,
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
            let lengths: Vec<u32> = update.iter().map(|d| self.frames[d.clip as usize]).collect();
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
    pub fn at(
        frames: &[u32],
        weights: &[f32],
        size: UpdateSize,
        seed: u64,
        n: u64,
    ) -> Result<Self, DataError> {
        let mut updates = Self::new(frames, weights, size, seed)?;
        while updates.done < n {
            updates.next();
        }
        Ok(updates)
    }

    /// Makes sure that `n` clips wait.
    fn fetch(&mut self, n: usize) {
        while self.waiting.len() < n {
            let epoch = self.epoch;
            let mut rng = SplitMix::keyed("epoch", self.seed, u64::from(epoch));
            if self.shares.is_empty() {
                let clips = order::epoch(&self.frames, &mut rng);
                self.waiting.extend(clips.into_iter().map(|clip| Draw { clip, epoch }));
            } else {
                let uses: Vec<Draw> =
                    (0..self.frames.len() as u32).flat_map(|clip| self.uses(clip, epoch)).collect();
                let lengths: Vec<u32> = uses.iter().map(|of| self.frames[of.clip as usize]).collect();
                let order = order::epoch(&lengths, &mut rng);
                self.waiting.extend(order.into_iter().map(|i| uses[i as usize]));
            }
            self.epoch += 1;
        }
    }

    /// Returns the uses of a clip in an epoch: those between two multiples of its share, each rounded down from a place of its own, so that
    /// clips of one share do not all have their uses in the same epochs.
    fn uses(&self, clip: u32, epoch: u32) -> impl Iterator<Item = Draw> + use<> {
        let (share, place) = self.share(clip);
        let until = |epoch: u32| (f64::from(epoch) * share + place) as u32;
        (until(epoch)..until(epoch + 1)).map(move |epoch| Draw { clip, epoch })
    }

    fn share(&self, clip: u32) -> (f64, f64) {
        let mut rng = SplitMix::keyed("weights", self.seed, u64::from(clip));
        let place = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
        (f64::from(self.shares[clip as usize]), place)
    }

    /// Returns the epoch of a use.
    pub fn epoch_of(&self, of: Draw) -> u32 {
        if self.shares.is_empty() {
            return of.epoch;
        }
        let (share, place) = self.share(of.clip);
        (((f64::from(of.epoch) + 1.0 - place) / share).ceil() as u32).saturating_sub(1)
    }

    fn look_ahead(&self) -> usize {
        (self.frames.len() / 2).clamp(2, LOOK_AHEAD)
    }

    fn frames_of(&self, draw: Draw) -> u64 {
        u64::from(self.frames[draw.clip as usize])
    }

    /// Takes one or two of the next clips that come nearest to `wanted` frames without exceeding it.
    fn nearest(&mut self, wanted: u64) -> Vec<usize> {
        let ahead = self.look_ahead();
        self.fetch(ahead);
        let sizes: Vec<u64> = self.waiting.iter().take(ahead).map(|&d| self.frames_of(d)).collect();
        let mut best = (0, Vec::new());
        for (i, &one) in sizes.iter().enumerate() {
            if one <= wanted && one > best.0 {
                best = (one, vec![i]);
            }
            for (j, &two) in sizes.iter().enumerate().skip(i + 1) {
                if one + two <= wanted && one + two > best.0 {
                    best = (one + two, vec![i, j]);
                }
            }
        }
        best.1
    }

    /// Exchanges clips of the later half of `update` for waiting ones until its frames are near `target`. What is put
    /// back comes first in the next update, in the half that stays.
    fn balance(&mut self, update: &mut [Draw], target: u64) {
        const ROUNDS: usize = 4;
        let ahead = self.look_ahead();
        self.fetch(ahead);
        let mut sum: u64 = update.iter().map(|&d| self.frames_of(d)).sum();
        let mut returned = Vec::new();
        // What is put back must fit into the half that stays.
        for _ in 0..ROUNDS.min(update.len() / 2) {
            let mut best = (sum.abs_diff(target), None);
            for (i, &out) in update.iter().enumerate().skip(update.len().div_ceil(2)) {
                for (j, &back) in self.waiting.iter().take(ahead).enumerate() {
                    let miss = (sum - self.frames_of(out) + self.frames_of(back)).abs_diff(target);
                    if miss < best.0 {
                        best = (miss, Some((i, j)));
                    }
                }
            }
            let (_, Some((i, j))) = best else { break };
            let Some(back) = self.waiting.remove(j) else {
                break;
            };
            sum = sum - self.frames_of(update[i]) + self.frames_of(back);
            returned.push(std::mem::replace(&mut update[i], back));
        }
        for draw in returned {
            self.waiting.push_front(draw);
        }
    }

    /// Takes waiting clips by ascending position.
    fn take(&mut self, places: &[usize], out: &mut Vec<Draw>) {
        for &i in places.iter().rev() {
            out.extend(self.waiting.remove(i));
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
            self.fetch(n);
            update.extend(self.waiting.drain(..n));
            self.balance(&mut update, target);
        } else {
            let limit = ((target as f64 * HIGHEST_FILL) as u64).max(1);
            let mut sum = 0;
            loop {
                self.fetch(1);
                let next = self.frames_of(self.waiting[0]);
                // A clip longer than the size is an update of its own.
                if sum > 0 && sum + next > limit {
                    break;
                }
                sum += next;
                update.extend(self.waiting.pop_front());
            }
            let places = self.nearest(limit.saturating_sub(sum));
            self.take(&places, &mut update);
        }
        self.done += 1;
        Some(update)
    }
}
