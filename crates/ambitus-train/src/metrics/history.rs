//! What a run remembers of its updates, in bounded memory.

use super::{Curves, Pace, Summary, Update, median};
use crate::pictures::Curve;

/// Step times that a median is taken of, at most.
const STEPS: usize = 4096;

/// Sums over the updates of a run, the curve of their losses, and step times of some of them.
#[derive(Clone, Debug)]
pub struct History {
    /// Updates of the whole run.
    of: u64,
    /// Number of the last update, and passes over the data by then.
    last: (u64, f64),
    /// Mean losses of the first and the last tenth: how many are finite, and their sum.
    tenths: [(u64, f64); 2],
    seconds: f64,
    loader_wait: f64,
    frames: u64,
    /// Of all micro-batches that were run.
    capacity: f64,
    skipped: u64,
    /// Page faults that waited for a disk.
    faults: u64,
    /// Seconds of every `every`-th update.
    steps: Vec<f64>,
    every: u64,
    /// Losses by update.
    pub losses: Curve,
    /// All numbers by update.
    pub curves: Curves,
    /// The newest.
    pub pace: Pace,
}

impl History {
    /// Returns an empty history of a run of `updates` updates.
    pub fn new(updates: u64) -> History {
        History {
            of: updates,
            last: (0, 0.0),
            tenths: [(0, 0.0); 2],
            seconds: 0.0,
            loader_wait: 0.0,
            frames: 0,
            capacity: 0.0,
            skipped: 0,
            faults: 0,
            steps: Vec::with_capacity(STEPS),
            every: 1,
            losses: Curve::new(updates),
            curves: Curves::default(),
            pace: Pace::default(),
        }
    }

    /// Adds the next update of the log. Allocates nothing.
    pub fn add(&mut self, u: &Update) {
        let tenth = self.of.div_ceil(10);
        let of_tenth = [u.update <= tenth, u.update > self.of.saturating_sub(tenth)];
        for ((n, sum), _) in self.tenths.iter_mut().zip(of_tenth).filter(|(_, is)| *is && u.loss.is_finite())
        {
            *n += 1;
            *sum += u.loss;
        }
        self.seconds += u.step_seconds;
        self.loader_wait += u.loader_wait_seconds;
        self.frames += u.frames;
        if u.fill > 0.0 {
            self.capacity += u.frames as f64 / u.fill;
        }
        self.skipped += u64::from(!u.applied);
        self.faults += u.page_faults_major;
        if u.update.is_multiple_of(self.every) {
            if self.steps.len() == STEPS {
                // Every second of them stays.
                let mut at = 0;
                self.steps.retain(|_| {
                    at += 1;
                    at % 2 == 0
                });
                self.every *= 2;
            }
            if u.update.is_multiple_of(self.every) {
                self.steps.push(u.step_seconds);
            }
        }
        self.losses.add(u.update, u.loss);
        self.curves.add(u);
        self.pace.add(u);
        self.last = (u.update, u.epoch);
    }

    /// Returns the fields of a summary that follow from the log: counts, speed, losses, waiting. The log is the whole run's,
    /// across resumes.
    pub fn summary(&self) -> Summary {
        let mut steps = self.steps.clone();
        steps.sort_by(f64::total_cmp);
        let done = self.last.0;
        let mean = |(n, sum): (u64, f64)| (n > 0).then(|| sum / n as f64);
        Summary {
            updates: self.last.0,
            epochs: self.last.1,
            tokens_per_second: (self.seconds > 0.0).then(|| self.frames as f64 / self.seconds),
            step_seconds_median: median(&steps),
            loss_first: mean(self.tenths[0]),
            // Of a run that ended early, of the updates that it did.
            loss_last: mean(self.tenths[1]).or_else(|| self.losses.mean(done - done.div_ceil(10), done)),
            packing_fill: (self.capacity > 0.0).then(|| self.frames as f64 / self.capacity),
            frames: self.frames,
            skipped_updates: self.skipped,
            update_seconds: self.seconds,
            loader_wait_seconds: self.loader_wait,
            page_faults_major: self.faults,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Summary::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::sample_update;

    fn of(log: &[Update]) -> History {
        let mut history = History::new(log.len() as u64);
        log.iter().for_each(|u| history.add(u));
        history
    }

    #[test]
    fn a_summary_follows_from_the_log() {
        let mut log: Vec<Update> = (1..=20).map(sample_update).collect();
        log[19].loss = f64::NAN;
        log[19].applied = false;
        log[4].step_seconds = 9.5;
        log[4].page_faults_major = 7;
        let s = of(&log).summary();
        assert_eq!((s.updates, s.frames, s.skipped_updates), (20, 18_000, 1));
        assert_eq!(s.step_seconds_median, Some(0.5));
        assert_eq!((s.update_seconds, s.page_faults_major), (19.0, 7));
        assert!((s.tokens_per_second.unwrap() - 18_000.0 / 19.0).abs() < 1e-9);
        assert_eq!(s.loss_first, Some(0.75));
        assert_eq!(s.loss_last, Some(1.0 / 19.0));
        assert!((s.packing_fill.unwrap() - 0.9).abs() < 1e-12);
        let empty = of(&[]).summary();
        assert_eq!((empty.updates, empty.loss_first, empty.tokens_per_second), (0, None, None));
    }

    #[test]
    fn a_run_that_ends_early_has_a_last_loss_too() {
        let mut history = History::new(1000);
        (1..=20).for_each(|n| history.add(&sample_update(n)));
        let s = history.summary();
        assert_eq!((s.updates, s.loss_last), (20, Some((1.0 / 19.0 + 1.0 / 20.0) / 2.0)));
    }

    /// A million updates take what a few thousand do, and say the same.
    #[test]
    fn a_long_run_is_remembered_in_few_bytes() {
        let n = 1_000_000;
        let mut history = History::new(n);
        for update in 1..=n {
            let seconds = if update % 3 == 0 { 2.0 } else { 1.0 + update as f64 * 1e-9 };
            history.add(&Update { step_seconds: seconds, ..sample_update(update) });
        }
        assert!(history.steps.len() <= STEPS && history.steps.capacity() == STEPS);
        assert!(history.losses.columns() <= 1000, "{}", history.losses.columns());
        let s = history.summary();
        assert_eq!((s.updates, s.frames), (n, 900 * n));
        assert!((s.step_seconds_median.unwrap() - 1.0).abs() < 0.01, "{:?}", s.step_seconds_median);
    }
}
