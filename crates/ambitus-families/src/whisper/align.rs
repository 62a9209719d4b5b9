//! When words are said: the attention of heads that look at what is said, and the cheapest path through it (dynamic time warping).
//!
//! As the package's `timing.py` computes them (20250625): softmax over the window's states that are sound, then each state's values
//! less their mean over tokens, by their standard deviation; a median over neighbouring states; the mean of heads.

/// Scores of one head: `[T, N]`, of which the first `sound` states count.
pub(super) struct Scores<'a> {
    /// Row-major.
    pub values: &'a [f32],
    /// T.
    pub tokens: usize,
    /// N.
    pub states: usize,
    /// States that are sound.
    pub sound: usize,
}

/// Adds a head's weights `[T, sound]` to their sum.
pub(super) fn add_head(scores: &Scores<'_>, median: usize, sum: &mut [f64]) {
    let Scores { values, tokens, states, sound } = *scores;
    let mut weights: Vec<f64> = Vec::with_capacity(tokens * sound);
    for row in values.chunks(states).take(tokens) {
        let row = &row[..sound];
        let high = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e = row.iter().map(|x| f64::from(x - high).exp());
        let all: f64 = e.clone().sum();
        weights.extend(e.map(|x| x / all));
    }
    for state in 0..sound {
        let column = |weights: &[f64]| (0..tokens).map(|t| weights[t * sound + state]).collect::<Vec<f64>>();
        let column = column(&weights);
        let mean = column.iter().sum::<f64>() / tokens as f64;
        let spread = (column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / tokens as f64).sqrt();
        for (t, x) in column.iter().enumerate() {
            // A state that no token looks at says nothing.
            weights[t * sound + state] = if spread > 0.0 { (x - mean) / spread } else { 0.0 };
        }
    }
    let mut near = vec![0.0; median];
    for (row, sum) in weights.chunks(sound).zip(sum.chunks_mut(sound)) {
        sum.iter_mut().enumerate().for_each(|(i, to)| *to += median_at(row, i, &mut near));
    }
}

/// Returns the median of as many values around one as `near` has room for, reflected at the ends; of fewer the value itself.
fn median_at(row: &[f64], i: usize, near: &mut [f64]) -> f64 {
    let pad = near.len() / 2;
    if row.len() <= pad {
        return row[i];
    }
    let last = row.len() - 1;
    let place = |k: usize| {
        // Of i + k - pad.
        let at = (i + k).abs_diff(pad);
        if i + k >= pad && at > last { 2 * last - at } else { at }
    };
    near.iter_mut().enumerate().for_each(|(k, to)| *to = row[place(k)]);
    near.sort_unstable_by(f64::total_cmp);
    near[pad]
}

/// Returns at which state each row of `[rows, columns]` begins on the path from the first to the last that has the highest sum. Of equal
/// steps, along both is taken only where it is best alone, then along rows, else along states; sums are in f32, as the package's are.
pub(super) fn path(weights: &[f64], columns: usize) -> Vec<usize> {
    let rows = weights.len() / columns;
    const BOTH: u8 = 0;
    const ROW: u8 = 1;
    const STATE: u8 = 2;
    let mut steps = vec![STATE; (rows + 1) * (columns + 1)];
    (1..=rows).for_each(|i| steps[i * (columns + 1)] = ROW);
    let mut before = vec![f32::INFINITY; columns + 1];
    before[0] = 0.0;
    for i in 1..=rows {
        let mut costs = vec![f32::INFINITY; columns + 1];
        for j in 1..=columns {
            let (both, row, state) = (before[j - 1], before[j], costs[j - 1]);
            let (cost, step) = if both < row && both < state {
                (both, BOTH)
            } else if row < both && row < state {
                (row, ROW)
            } else {
                (state, STATE)
            };
            costs[j] = (f64::from(cost) - weights[(i - 1) * columns + j - 1]) as f32;
            steps[i * (columns + 1) + j] = step;
        }
        before = costs;
    }
    let mut begins = vec![0; rows];
    let (mut i, mut j) = (rows, columns);
    while i > 0 || j > 0 {
        if i > 0 {
            // Overwritten until the row's first state.
            begins[i - 1] = j.saturating_sub(1);
        }
        match steps[i * (columns + 1) + j] {
            BOTH => (i, j) = (i - 1, j - 1),
            ROW => i -= 1,
            _ => j -= 1,
        }
    }
    begins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_follows_what_is_high() {
        // Rows look at states 0 and 1, 2, and 3 to 5.
        let high = [(0, 0), (0, 1), (1, 2), (2, 3), (2, 4), (2, 5)];
        for (low, begins) in [(-1.0, [0, 2, 3]), (0.0, [0, 1, 2])] {
            let mut weights = vec![low; 18];
            high.iter().for_each(|(i, j)| weights[i * 6 + j] = 1.0);
            // What costs nothing is walked through, as by the package's `dtw_cpu`, which gave these.
            assert_eq!(path(&weights, 6), begins);
        }
        // More rows than states.
        assert_eq!(path(&[0.0; 3], 1), [0, 0, 0]);
    }

    #[test]
    fn medians_reflect_at_the_ends() {
        let row = [5.0, 1.0, 2.0, 9.0];
        let all: Vec<f64> = (0..4).map(|i| median_at(&row, i, &mut [0.0; 3])).collect();
        assert_eq!(all, [1.0, 2.0, 2.0, 2.0]);
        assert_eq!(median_at(&row[..1], 0, &mut [0.0; 3]), 5.0);
    }
}
