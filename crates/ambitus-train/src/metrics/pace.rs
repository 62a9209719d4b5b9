//! What of single updates is too restless to be read, as means over the last of them.

use super::Update;

/// Weight of the newest update in a mean: each earlier one has 0.95 times that of the next, so that about the last 20 count.
const NEWEST: f64 = 0.05;

/// A mean of numbers of which the newest weigh most. Numbers that are not finite are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, x: f64) {
        if x.is_finite() {
            self.sum += NEWEST * (x - self.sum);
            self.weight += NEWEST * (1.0 - self.weight);
        }
    }

    /// Returns the mean, as if there were nothing before the first number; not a number before there is one.
    fn get(self) -> f64 {
        self.sum / self.weight
    }
}

/// Loss and speed of a run by now. They follow from the lines of its log alone, so a resumed run goes on with them, and whoever reads
/// the log has the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    loss: Mean,
    seconds: Mean,
    waits: Mean,
    rows: Mean,
}

impl Pace {
    /// Adds the next update of the log. Allocates nothing.
    pub fn add(&mut self, u: &Update) {
        self.loss.add(u.loss);
        self.seconds.add(u.step_seconds);
        self.waits.add(u.loader_wait_seconds);
        self.rows.add(u.frames as f64);
    }

    /// Returns the loss.
    pub fn loss(&self) -> f64 {
        self.loss.get()
    }

    /// Returns the seconds of an update.
    pub fn step_seconds(&self) -> f64 {
        self.seconds.get()
    }

    /// Returns the share of that time in which updates wait for data.
    pub fn waiting(&self) -> f64 {
        self.waits.get() / self.seconds.get()
    }

    /// Returns the rows that are computed on in a second of updates.
    pub fn rows_per_second(&self) -> f64 {
        self.rows.get() / self.seconds.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::sample_update;

    #[test]
    fn means_begin_with_the_first_update_and_follow_the_last() {
        let mut pace = Pace::default();
        assert!(pace.loss().is_nan() && pace.step_seconds().is_nan());
        let of = |loss, step_seconds| Update { loss, step_seconds, ..sample_update(1) };
        pace.add(&of(8.0, 0.5));
        assert!((pace.loss() - 8.0).abs() < 1e-12 && (pace.rows_per_second() - 1800.0).abs() < 1e-9);
        // One step that took long, and one without a loss, move little.
        (0..100).for_each(|_| pace.add(&of(2.0, 0.5)));
        pace.add(&of(f64::NAN, 5.0));
        assert!((pace.loss() - 2.0).abs() < 0.05, "{}", pace.loss());
        assert!((0.7..0.8).contains(&pace.step_seconds()), "{}", pace.step_seconds());
        // What lasts is followed.
        (0..60).for_each(|_| pace.add(&of(1.0, 5.0)));
        assert!((pace.loss() - 1.0).abs() < 0.06 && (4.7..5.0).contains(&pace.step_seconds()));
    }
}
