//! The progress line.

use super::Pace;
use std::fmt;

use ambitus_recipe::size::ByteSize;

/// Share of the time that waiting for data takes before it is said.
const WAITS: f64 = 0.05;

/// A moment of a run. Prints as
/// `update 120/2000 · loss 0.5123 · 12 min left · best 0.4987 · 1840 frames/s · memory 1.21 of 1.50 GiB · epoch 3.2`: what a narrow
/// terminal leaves out comes last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Updates done.
    pub update: u64,
    /// Updates of the run.
    pub updates: u64,
    /// Passes over the data done.
    pub epoch: f64,
    /// Loss and speed.
    pub pace: Pace,
    /// The lowest validation loss, once there is one.
    pub best: Option<f64>,
    /// What a row of the model is: frames, tokens.
    pub unit: &'a str,
    /// The run goes on, so that time is left.
    pub goes_on: bool,
    /// Resident bytes, if they can be read.
    pub rss_bytes: Option<u64>,
    /// The budget.
    pub budget_bytes: u64,
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { update, updates, epoch, pace, unit, .. } = self;
        let width = updates.to_string().len();
        write!(f, "update {update:>width$}/{updates} · loss {:.4}", pace.loss())?;
        if self.goes_on {
            let left = updates.saturating_sub(*update) as f64 * pace.step_seconds();
            write!(f, " · {} left", duration(left))?;
        }
        if let Some(best) = self.best {
            write!(f, " · best {best:.4}")?;
        }
        write!(f, " · {:.0} {unit}/s", pace.rows_per_second())?;
        if pace.waiting() >= WAITS {
            write!(f, " · waits for data {:.0} % of the time", 100.0 * pace.waiting())?;
        }
        if let Some(rss) = self.rss_bytes {
            let (used, budget) = (ByteSize(rss).to_string(), ByteSize(self.budget_bytes).to_string());
            match (used.split_once(' '), budget.split_once(' ')) {
                (Some((used, unit)), Some((_, same))) if unit == same => {
                    write!(f, " · memory {used} of {budget}")?
                }
                _ => write!(f, " · memory {used} of {budget}")?,
            }
        }
        write!(f, " · epoch {epoch:.1}")
    }
}

/// Returns the seconds as people say them: `45 s`, `12 min`, `1 h 05 min`, `2 d 3 h`.
pub fn duration(seconds: f64) -> String {
    // Rounding first, so that 59.7 s is a minute and not "60 s"; what is not a time at all is not guessed.
    if !(0.0..1e15).contains(&seconds) {
        return "?".to_owned();
    }
    let s = seconds.round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..600 => format!("{} min {:02} s", s / 60, s % 60),
        600..3600 => format!("{} min", (s + 30) / 60),
        3600..86_400 => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Update, sample_update};

    #[test]
    fn the_line_reads_well() {
        let mut pace = Pace::default();
        pace.add(&Update { loss: 0.512_34, frames: 920, step_seconds: 0.5, ..sample_update(12) });
        let mut p = Progress {
            update: 12,
            updates: 200,
            epoch: 1.25,
            pace,
            best: Some(0.498_72),
            unit: "frames",
            goes_on: true,
            rss_bytes: Some(1_300_000_000),
            budget_bytes: 3 << 29,
        };
        let line = "update  12/200 · loss 0.5123 · 1 min 34 s left · best 0.4987 · 1840 frames/s · memory 1.21 of 1.50 GiB · epoch 1.2";
        assert_eq!(p.to_string(), line);
        (p.rss_bytes, p.best, p.unit) = (Some(300 << 20), None, "tokens");
        assert!(p.to_string().contains(" left · 1840 tokens/s · memory 300 MiB of 1.50 GiB"));
        p.pace.add(&Update { frames: 920, loader_wait_seconds: 0.2, step_seconds: 0.5, ..sample_update(13) });
        assert!(p.to_string().contains(" · 1840 tokens/s · waits for data 21 % of the time · memory"), "{p}");
        p.pace = Pace::default();
        assert!(p.to_string().contains(" · ? left · "));
        p.goes_on = false;
        assert!(!p.to_string().contains("left"));
    }

    #[test]
    fn times_are_said_as_people_do() {
        for (seconds, text) in [
            (0.2, "0 s"),
            (59.7, "1 min 00 s"),
            (754.0, "13 min"),
            (3900.0, "1 h 05 min"),
            (200_000.0, "2 d 7 h"),
            (-1.0, "?"),
            (f64::INFINITY, "?"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
