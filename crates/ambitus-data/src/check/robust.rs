//! Statistics that a few odd values do not move.

/// Fewer values say nothing of what is usual.
pub(super) const FEWEST: usize = 8;

/// Returns the value that this share of all does not exceed, or none of none.
pub(super) fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len().saturating_sub(1)) as f64 * share;
    let (low, high) = (*sorted.get(at.floor() as usize)?, sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// What is usual among values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual {
    /// Their median.
    pub(super) middle: f64,
    /// Their deviation, as that of a normal distribution is from the median of distances.
    pub(super) spread: f64,
}

impl Usual {
    /// Of enough values.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        if values.len() < FEWEST {
            return None;
        }
        let middle = quantile(values, 0.5)?;
        let off: Vec<f64> = values.iter().map(|x| (x - middle).abs()).collect();
        Some(Self { middle, spread: 1.4826 * quantile(&off, 0.5)? })
    }

    /// Returns how many deviations, of at least `least`, a value is above the middle.
    pub(super) fn above(self, x: f64, least: f64) -> f64 {
        (x - self.middle) / self.spread.max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_values_move_little() {
        let mut values: Vec<f64> = (0..99).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.25), Some(24.5));
        let before = Usual::of(&values).expect("enough");
        values.extend([1e9, -1e9]);
        let usual = Usual::of(&values).expect("enough");
        assert!((usual.middle - before.middle).abs() < 1.0 && (usual.spread - before.spread).abs() < 2.0);
        assert!(
            usual.above(1e9, 1.0) > 1e6 && Usual::of(&values[..7]).is_none() && quantile(&[], 0.5).is_none()
        );
    }
}
