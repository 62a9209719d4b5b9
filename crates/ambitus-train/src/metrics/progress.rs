//! The progress line.

use std::fmt;

use ambitus_recipe::size::ByteSize;

/// A moment of a run. Prints as
/// `update 120/2000 · loss 0.5123 · 12 min left · 1840 frames/s · memory 1.21 of 1.50 GiB · epoch 3.2`: what a narrow terminal
/// leaves out comes last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Updates done.
    pub update: u64,
    /// Updates of the run.
    pub updates: u64,
    /// Passes over the data done.
    pub epoch: f64,
    /// The loss, smoothed or not.
    pub loss: f64,
    /// Mel frames per second.
    pub frames_per_second: f64,
    /// Resident bytes, if they can be read.
    pub rss_bytes: Option<u64>,
    /// The budget.
    pub budget_bytes: u64,
    /// Seconds of one update, for the time left.
    pub step_seconds: f64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { update, updates, epoch, loss, frames_per_second, .. } = self;
        let width = updates.to_string().len();
        let left = duration(updates.saturating_sub(*update) as f64 * self.step_seconds);
        write!(
            f,
            "update {update:>width$}/{updates} · loss {loss:.4} · {left} left · {frames_per_second:.0} frames/s"
        )?;
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

    #[test]
    fn the_line_reads_well() {
        let mut p = Progress {
            update: 12,
            updates: 200,
            epoch: 1.25,
            loss: 0.512_34,
            frames_per_second: 1839.6,
            rss_bytes: Some(1_300_000_000),
            budget_bytes: 3 << 29,
            step_seconds: 0.5,
        };
        let line = "update  12/200 · loss 0.5123 · 1 min 34 s left · 1840 frames/s · memory 1.21 of 1.50 GiB · epoch 1.2";
        assert_eq!(p.to_string(), line);
        p.rss_bytes = Some(300 << 20);
        assert!(p.to_string().contains("memory 300 MiB of 1.50 GiB"));
        p.step_seconds = f64::NAN;
        assert!(p.to_string().contains(" · ? left · "));
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
