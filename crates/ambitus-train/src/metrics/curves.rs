//! How a run's numbers went, in bounded memory however long it is.

use super::Update;

/// Columns that updates are gathered in, at most. Where they are full, each has twice the updates from then on.
pub const COLUMNS: usize = 512;

/// What is gathered of every update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// The loss.
    Loss,
    /// The learning rate.
    Rate,
    /// The norm of the gradients before clipping.
    Norm,
    /// Seconds of the update.
    Seconds,
    /// Of these, waiting for data.
    Wait,
    /// Rows per second.
    Speed,
    /// Resident bytes of the process.
    Resident,
}

const SERIES: usize = 7;

/// What a number was over the updates of a column; those that are not finite are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    sum: f64,
    count: u32,
    /// The lowest.
    pub low: f32,
    /// The highest.
    pub high: f32,
}

impl Span {
    const EMPTY: Span = Span { sum: 0.0, count: 0, low: f32::INFINITY, high: f32::NEG_INFINITY };

    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.sum += value;
            self.count += 1;
            self.low = self.low.min(value as f32);
            self.high = self.high.max(value as f32);
        }
    }

    fn join(&mut self, other: Span) {
        self.sum += other.sum;
        self.count += other.count;
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
    }

    /// Returns the mean; `None` where no number was finite.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// Neighbouring updates.
#[derive(Clone, Copy, Debug)]
struct Column {
    first: u64,
    last: u64,
    spans: [Span; SERIES],
}

/// The numbers of a run's updates, gathered in columns.
#[derive(Clone, Debug)]
pub struct Curves {
    columns: Vec<Column>,
    /// Updates of a column.
    each: u64,
}

impl Default for Curves {
    fn default() -> Curves {
        Curves { columns: Vec::with_capacity(COLUMNS), each: 1 }
    }
}

impl Curves {
    /// Adds the next update. Allocates nothing.
    pub fn add(&mut self, u: &Update) {
        let at = u.update / self.each;
        if self.columns.last().is_none_or(|c| c.first / self.each < at) {
            if self.columns.len() == COLUMNS {
                self.halve();
                return self.add(u);
            }
            self.columns.push(Column { first: u.update, last: u.update, spans: [Span::EMPTY; SERIES] });
        }
        let Some(column) = self.columns.last_mut() else { return };
        column.last = u.update;
        let values = [
            u.loss,
            u.learning_rate,
            u.grad_norm,
            u.step_seconds,
            u.loader_wait_seconds,
            u.frames_per_second,
            u.rss_bytes as f64,
        ];
        column.spans.iter_mut().zip(values).for_each(|(span, value)| span.add(value));
    }

    /// Joins columns in pairs.
    fn halve(&mut self) {
        self.each *= 2;
        let mut kept = 0;
        for i in 0..self.columns.len() {
            let column = self.columns[i];
            match self.columns[..kept].last_mut() {
                Some(before) if before.first / self.each == column.first / self.each => {
                    before.last = column.last;
                    before.spans.iter_mut().zip(column.spans).for_each(|(span, other)| span.join(other));
                }
                _ => {
                    self.columns[kept] = column;
                    kept += 1;
                }
            }
        }
        self.columns.truncate(kept);
    }

    /// Returns the columns of a series: the middle of their updates, and what the number was in them.
    pub fn of(&self, series: Series) -> impl DoubleEndedIterator<Item = (f64, Span)> + Clone {
        let middle = |c: &Column| (c.first as f64 + c.last as f64) / 2.0;
        self.columns.iter().map(move |c| (middle(c), c.spans[series as usize]))
    }

    /// Returns the number of the last update; 0 before there is one.
    pub fn last(&self) -> u64 {
        self.columns.last().map_or(0, |c| c.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::sample_update;

    /// However many updates there are, no column is lost, and none has numbers of others.
    #[test]
    fn any_number_of_updates_is_gathered_in_few_columns() {
        for n in [0_u64, 1, 511, 512, 513, 5_000, 100_000] {
            let mut curves = Curves::default();
            for update in 1..=n {
                let loss = if update % 7 == 0 { f64::NAN } else { update as f64 };
                curves.add(&Update { loss, ..sample_update(update) });
            }
            let all: Vec<_> = curves.of(Series::Loss).collect();
            assert!(
                all.len() <= COLUMNS && all.len() as u64 >= n.min(COLUMNS as u64 / 2),
                "{n}: {}",
                all.len()
            );
            assert_eq!(curves.columns.capacity(), COLUMNS);
            assert_eq!(curves.last(), n);
            let counted: u64 = all.iter().map(|(_, span)| u64::from(span.count)).sum();
            assert_eq!(counted, n - n / 7);
            for (at, span) in all {
                // The mean of numbers that are their own positions lies among them.
                let mean = span.mean().unwrap_or(at);
                assert!(f64::from(span.low) <= mean && mean <= f64::from(span.high) || span.count == 0);
                assert!((mean - at).abs() <= curves.each as f64, "{n}: {mean} at {at}");
            }
        }
    }

    #[test]
    fn the_highest_of_many_is_not_lost() {
        let mut curves = Curves::default();
        for update in 1..=50_000 {
            let loss = if update == 31_234 { 99.0 } else { 1.0 };
            curves.add(&Update { loss, ..sample_update(update) });
        }
        assert!(curves.of(Series::Loss).any(|(_, span)| span.high == 99.0));
    }
}
