//! The clips of one data set, epoch after epoch.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Draw, Set};
use crate::order;
use crate::rng::SplitMix;

/// Clips that may be preferred to the next in order, but no more than half of all: with a few clips, none may wait for
/// many epochs.
const LOOK_AHEAD: usize = 96;

/// What is known of all clips.
#[derive(Clone)]
pub(super) struct Clips {
    pub frames: Vec<u32>,
    /// Uses of each clip in an epoch of its set, on average; none: each has one.
    shares: Vec<f32>,
    seed: u64,
}

impl Clips {
    pub fn new(frames: &[u32], weights: &[f32], sets: &[Set], seed: u64) -> Clips {
        let mut shares = Vec::new();
        let mut rest = weights;
        for set in sets {
            // Without weights there is nothing to part.
            let (own, others) = rest.split_at(set.clips.min(rest.len()));
            let sum: f64 = own.iter().map(|w| f64::from(*w)).sum();
            shares.extend(own.iter().map(|w| (f64::from(*w) * set.clips as f64 / sum) as f32));
            rest = others;
        }
        Clips { frames: frames.to_vec(), shares, seed }
    }

    /// Returns the uses of a clip in an epoch of its set, on average.
    pub fn share(&self, clip: usize) -> f64 {
        self.shares.get(clip).map_or(1.0, |share| f64::from(*share))
    }

    /// Returns the uses of a clip in an epoch: those between two multiples of its share, each rounded down from a place of its own, so that
    /// clips of one share do not all have their uses in the same epochs.
    fn uses(&self, clip: u32, epoch: u32) -> impl Iterator<Item = Draw> + use<> {
        let (share, place) = self.share_and_place(clip);
        let until = |epoch: u32| (f64::from(epoch) * share + place) as u32;
        (until(epoch)..until(epoch + 1)).map(move |epoch| Draw { clip, epoch })
    }

    fn share_and_place(&self, clip: u32) -> (f64, f64) {
        let mut rng = SplitMix::keyed("weights", self.seed, u64::from(clip));
        let place = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
        (self.share(clip as usize), place)
    }

    /// Returns the epoch, of its set, of a use.
    pub fn epoch_of(&self, of: Draw) -> u32 {
        if self.shares.is_empty() {
            return of.epoch;
        }
        let (share, place) = self.share_and_place(of.clip);
        (((f64::from(of.epoch) + 1.0 - place) / share).ceil() as u32).saturating_sub(1)
    }
}

/// The endless stream of a set's clips.
#[derive(Clone)]
pub(super) struct Stream {
    /// Number of the set.
    set: usize,
    clips: Range<usize>,
    waiting: VecDeque<Draw>,
    epoch: u32,
}

impl Stream {
    /// Returns the streams of sets whose clips come one after another.
    pub fn of(sets: &[Set]) -> Vec<Stream> {
        let mut end = 0;
        let each = sets.iter().enumerate().map(|(set, of)| {
            let start = end;
            end += of.clips;
            Stream { set, clips: start..end, waiting: VecDeque::new(), epoch: 0 }
        });
        each.collect()
    }

    /// Returns this stream from its start.
    pub fn restarted(&self) -> Stream {
        Stream { set: self.set, clips: self.clips(), waiting: VecDeque::new(), epoch: 0 }
    }

    /// Returns which clips are the set's.
    pub fn clips(&self) -> Range<usize> {
        self.clips.clone()
    }

    pub fn look_ahead(&self) -> usize {
        (self.clips.len() / 2).clamp(2, LOOK_AHEAD)
    }

    /// Makes sure that `n` clips wait.
    pub fn fetch(&mut self, n: usize, clips: &Clips) {
        while self.waiting.len() < n {
            let epoch = self.epoch;
            // The first set has the order that it has alone.
            let purpose =
                if self.set == 0 { "epoch".to_owned() } else { format!("epoch of set {}", self.set) };
            let mut rng = SplitMix::keyed(&purpose, clips.seed, u64::from(epoch));
            let first = self.clips.start as u32;
            if clips.shares.is_empty() {
                let order = order::epoch(&clips.frames[self.clips()], &mut rng);
                self.waiting.extend(order.into_iter().map(|i| Draw { clip: first + i, epoch }));
            } else {
                let own = first..self.clips.end as u32;
                let uses: Vec<Draw> = own.flat_map(|clip| clips.uses(clip, epoch)).collect();
                let lengths: Vec<u32> = uses.iter().map(|of| clips.frames[of.clip as usize]).collect();
                let order = order::epoch(&lengths, &mut rng);
                self.waiting.extend(order.into_iter().map(|i| uses[i as usize]));
            }
            self.epoch += 1;
        }
    }

    /// Returns the clips that wait.
    pub fn waiting(&self) -> impl Iterator<Item = Draw> + '_ {
        self.waiting.iter().copied()
    }

    /// Returns the next clip, which stays.
    pub fn peek(&mut self, clips: &Clips) -> Option<Draw> {
        self.fetch(1, clips);
        self.waiting.front().copied()
    }

    /// Takes the next clip.
    pub fn next(&mut self, clips: &Clips) -> Option<Draw> {
        self.fetch(1, clips);
        self.waiting.pop_front()
    }

    /// Takes a clip that waits.
    pub fn remove(&mut self, place: usize) -> Option<Draw> {
        self.waiting.remove(place)
    }

    /// Makes a clip the next.
    pub fn put_back(&mut self, draw: Draw) {
        self.waiting.push_front(draw);
    }
}
