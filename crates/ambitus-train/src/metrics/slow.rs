//! Why a step took long, in one line.

use super::{duration, median};
use serde::{Deserialize, Serialize};

/// What is known about one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepFacts {
    /// Updates done, this one included.
    pub update: u64,
    /// Wall time.
    pub seconds: f64,
    /// Of it, waiting for data.
    pub loader_wait_seconds: f64,
    /// Of it, writing checkpoints.
    pub saving_seconds: f64,
    /// Processor time of all threads, seconds.
    pub cpu_seconds: f64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Times a thread lost its core to another.
    pub involuntary_switches: u64,
    /// Micro-batches run.
    pub micro_batches: u64,
}

/// Steps that the running median is taken over.
const WINDOW: usize = 64;
/// Steps before a median means anything.
const LEAST: usize = 5;
/// A step this many times the median is explained.
const SLOW: f64 = 2.0;
/// Seconds above the median below which a step is not explained.
const NOTICED: f64 = 0.5;
/// A cause explains a step if it took this share of the time above the median.
const SHARE: f64 = 0.5;
/// A disk read on the way to a page: what even a fast disk needs.
const FAULT_SECONDS: f64 = 1e-4;

/// Seconds that were lost, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// Writing checkpoints.
    pub saving: f64,
    /// Above the median, in slow steps whose pages came back from disk.
    pub paging: f64,
    /// Above the median, in slow steps that did not get the cores.
    pub cores: f64,
}

impl Lost {
    /// Returns both together.
    pub fn and(self, other: Lost) -> Lost {
        Lost {
            saving: self.saving + other.saving,
            paging: self.paging + other.paging,
            cores: self.cores + other.cores,
        }
    }
}

/// Why a step was slow.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cause {
    Data,
    Saving,
    Paging,
    /// It had more micro-batches than this.
    Larger(f64),
    /// Usual times that a thread loses its core.
    Cores(f64),
    Host,
    Clock,
}

/// The last steps, and how many were slow. Allocates nothing after its creation, but for an explanation.
#[derive(Clone, Debug)]
pub struct SlowSteps {
    last: [StepFacts; WINDOW],
    seen: usize,
    slow: u64,
    lost: Lost,
}

impl Default for SlowSteps {
    fn default() -> SlowSteps {
        SlowSteps { last: [StepFacts::default(); WINDOW], seen: 0, slow: 0, lost: Lost::default() }
    }
}

impl SlowSteps {
    /// Adds a step; returns a line if it took over twice the running median, and noticeably longer.
    pub fn observe(&mut self, step: &StepFacts) -> Option<String> {
        let known = &self.last[..self.seen.min(WINDOW)];
        let usual = |of: fn(&StepFacts) -> f64| {
            let mut sorted = [0.0; WINDOW];
            let sorted = &mut sorted[..known.len()];
            sorted.iter_mut().zip(known).for_each(|(x, s)| *x = of(s));
            sorted.sort_unstable_by(f64::total_cmp);
            median(sorted).unwrap_or(0.0)
        };
        let seconds = usual(|s| s.seconds);
        let slow = known.len() >= LEAST && step.seconds > SLOW * seconds;
        let above = step.seconds - seconds;
        let cause = slow.then(|| cause(step, above, &usual));
        let line = cause.filter(|_| above >= NOTICED).map(|cause| {
            let times = step.seconds / seconds.max(f64::MIN_POSITIVE);
            let (took, median, cause) = (short(step.seconds), short(seconds), words(cause, step));
            format!("update {} took {took}, {times:.1} x the median of {median}: {cause}", step.update)
        });
        match cause {
            Some(Cause::Paging) => self.lost.paging += above,
            Some(Cause::Cores(_) | Cause::Host) => self.lost.cores += above,
            _ => {}
        }
        self.slow += u64::from(slow);
        self.last[self.seen % WINDOW] = *step;
        self.seen += 1;
        line
    }

    /// Returns the number of steps that were over twice the median so far.
    pub fn count(&self) -> u64 {
        self.slow
    }

    /// Adds the seconds of a checkpoint.
    pub fn saved(&mut self, seconds: f64) {
        self.lost.saving += seconds;
    }

    /// Returns what was lost so far.
    pub fn lost(&self) -> Lost {
        self.lost
    }
}

/// Returns a time for people, also a short one.
pub fn short(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.2} s"),
        s => duration(s),
    }
}

/// Returns the cause that covers the time `above` the median; told apart by what the step did differently from the usual one.
fn cause(step: &StepFacts, above: f64, usual: &dyn Fn(fn(&StepFacts) -> f64) -> f64) -> Cause {
    let wait = step.loader_wait_seconds - usual(|s| s.loader_wait_seconds);
    if wait >= SHARE * above {
        return Cause::Data;
    }
    if step.saving_seconds >= SHARE * above {
        return Cause::Saving;
    }
    let faults = step.major_faults as f64;
    if faults - usual(|s| s.major_faults as f64) > 0.0 && faults * FAULT_SECONDS >= SHARE * 0.1 * above {
        return Cause::Paging;
    }
    let micro = usual(|s| s.micro_batches as f64);
    if step.micro_batches as f64 >= 1.5 * micro && micro > 0.0 {
        return Cause::Larger(micro);
    }
    let switches = usual(|s| s.involuntary_switches as f64);
    let cpu = usual(|s| s.cpu_seconds);
    if step.involuntary_switches as f64 > SLOW * switches.max(1.0) {
        return Cause::Cores(switches);
    }
    if cpu > 0.0 && step.cpu_seconds < SLOW * cpu { Cause::Host } else { Cause::Clock }
}

/// Returns a cause for people.
fn words(cause: Cause, step: &StepFacts) -> String {
    match cause {
        Cause::Data => format!(
            "it waited {} for data (slow disk, or clips being decoded)",
            short(step.loader_wait_seconds)
        ),
        Cause::Saving => format!("a checkpoint was written meanwhile ({})", short(step.saving_seconds)),
        Cause::Paging => {
            format!("{} pages came back from disk: the machine is short of memory", step.major_faults)
        }
        Cause::Larger(usual) => format!("it had {} micro-batches instead of {usual:.0}", step.micro_batches),
        Cause::Cores(usual) => format!(
            "other programs took the cores ({} times, usually {usual:.0}); `ambitus doctor` lists them",
            step.involuntary_switches
        ),
        Cause::Host => "the process did not get the cores: other load on the machine, or its host".to_owned(),
        Cause::Clock => {
            "the cores were slower than usual: other load on shared cores or caches, or a lower clock"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: StepFacts = StepFacts {
        update: 1,
        seconds: 1.0,
        loader_wait_seconds: 0.01,
        saving_seconds: 0.0,
        cpu_seconds: 2.0,
        major_faults: 0,
        involuntary_switches: 10,
        micro_batches: 2,
    };

    fn explained(step: StepFacts) -> String {
        let mut slow = SlowSteps::default();
        for _ in 0..100 {
            assert_eq!(slow.observe(&USUAL), None);
        }
        let line = slow.observe(&StepFacts { update: 101, ..step }).unwrap();
        assert_eq!(slow.count(), 1);
        assert_eq!(slow.observe(&USUAL), None);
        assert!(line.starts_with("update 101 took ") && line.lines().count() == 1, "{line}");
        line
    }

    #[test]
    fn each_cause_has_its_line() {
        let slow = StepFacts { seconds: 3.0, ..USUAL };
        for (step, words) in [
            (StepFacts { loader_wait_seconds: 1.9, ..slow }, "it waited 1.90 s for data"),
            (StepFacts { saving_seconds: 1.5, ..slow }, "a checkpoint was written"),
            (StepFacts { major_faults: 4000, ..slow }, "4000 pages came back from disk"),
            (StepFacts { micro_batches: 6, cpu_seconds: 6.0, ..slow }, "6 micro-batches instead of 2"),
            (
                StepFacts { involuntary_switches: 900, ..slow },
                "other programs took the cores (900 times, usually 10)",
            ),
            (slow, "did not get the cores"),
            (StepFacts { cpu_seconds: 6.0, ..slow }, "a lower clock"),
        ] {
            let line = explained(step);
            assert!(line.contains(words) && line.contains("3.0 x the median of 1.00 s"), "{line}");
        }
    }

    /// Also what is too short to be explained: of many such steps it is much.
    #[test]
    fn what_is_lost_is_summed_by_cause() {
        let mut slow = SlowSteps::default();
        (0..100).for_each(|_| assert_eq!(slow.observe(&USUAL), None));
        let three = StepFacts { seconds: 3.0, ..USUAL };
        slow.observe(&StepFacts { major_faults: 4000, ..three });
        slow.observe(&StepFacts { seconds: 2.25, involuntary_switches: 900, ..USUAL });
        slow.observe(&three);
        // Of causes that have a name of their own in the log, or none.
        slow.observe(&StepFacts { loader_wait_seconds: 1.9, ..three });
        slow.observe(&StepFacts { cpu_seconds: 6.0, ..three });
        slow.saved(0.5);
        slow.saved(0.25);
        let lost = Lost { saving: 0.75, paging: 2.0, cores: 3.25 };
        assert_eq!(slow.lost(), lost);
        assert_eq!(lost.and(lost), Lost { saving: 1.5, paging: 4.0, cores: 6.5 });
        let quick = StepFacts { seconds: 0.1, ..USUAL };
        let mut slow = SlowSteps::default();
        (0..100).for_each(|_| assert_eq!(slow.observe(&quick), None));
        assert_eq!(slow.observe(&StepFacts { seconds: 0.35, ..USUAL }), None);
        assert!((slow.lost().cores - 0.25).abs() < 1e-9);
    }

    #[test]
    fn what_nobody_notices_is_counted_and_not_explained() {
        let quick = StepFacts { seconds: 0.1, ..USUAL };
        let mut slow = SlowSteps::default();
        (0..100).for_each(|_| assert_eq!(slow.observe(&quick), None));
        assert_eq!(slow.observe(&StepFacts { seconds: 0.59, ..USUAL }), None);
        assert!(slow.observe(&StepFacts { seconds: 0.61, ..USUAL }).is_some());
        assert_eq!(slow.count(), 2);
    }

    #[test]
    fn the_first_steps_are_not_judged() {
        let mut slow = SlowSteps::default();
        for i in 0..LEAST {
            assert_eq!(slow.observe(&StepFacts { seconds: 10_f64.powi(i as i32), ..USUAL }), None);
        }
    }
}
