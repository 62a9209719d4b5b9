//! A layer of a long short-term memory (Hochreiter & Schmidhuber, 1997), row by row: each reads all of the recurrent weights, and
//! that is what its time is set by.

use super::gemm::{Operand, gemm};
use super::map::{Map, map_slices};
use super::math::{sigmoid, tanh};
use super::scratch::{SLACK, Scratch, padded};
use super::simd::Simd;
use super::{Mat, MatMut, Pool, check_segments, segment};

/// Returns the floats of workspace of [`lstm`] with H = `hidden`.
pub fn lstm_workspace(hidden: usize) -> usize {
    padded(4 * hidden) + SLACK
}

/// For the rows of each segment in turn, from its row of `start` (h, c `[S, H]`): z = x + w h in parts i, f, g, o;
/// c = σ(f) c + σ(i) tanh(g), y = h = σ(o) tanh(c). x `[T, 4H]`, w `[4H, H]`, y `[T, H]`; `end`: h and c behind each segment's last row.
/// Rows of no segment are 0.
#[allow(clippy::too_many_arguments)]
pub fn lstm(
    pool: &Pool,
    x: Mat,
    w: Mat,
    start: [Mat; 2],
    seg: &[i32],
    mut y: MatMut,
    end: [MatMut; 2],
    ws: &mut [f32],
) {
    let (rows, hidden) = (y.rows, y.cols);
    let segments = check_segments(seg, rows);
    assert!(
        (x.rows, x.cols) == (rows, 4 * hidden) && (w.rows, w.cols) == (4 * hidden, hidden),
        "lstm: shapes"
    );
    assert!(start.iter().all(|t| (t.rows, t.cols) == (segments, hidden)), "lstm: states");
    let z = Scratch::new(ws).take(4 * hidden);
    let [mut all_h, mut all_c] = end;
    for s in 0..segments {
        let (h, c) = (all_h.row_mut(s), all_c.row_mut(s));
        h.copy_from_slice(start[0].row(s));
        c.copy_from_slice(start[1].row(s));
        for t in segment(seg, s) {
            z.copy_from_slice(x.row(t));
            // One row: w is read where it lies, and no workspace is needed.
            let before = Operand::new(Mat::dense(h, 1, hidden));
            gemm(pool, 1.0, before, Operand::new(w).t(), 1.0, MatMut::dense(z, 1, 4 * hidden), None, &mut []);
            let gate = |i: usize| &z[i * hidden..][..hidden];
            map_slices(pool.isa(), &Cell, [gate(0), gate(1), gate(2), gate(3)], [h, c]);
            y.row_mut(t).copy_from_slice(h);
        }
    }
    (seg[segments] as usize..rows).for_each(|t| y.row_mut(t).fill(0.0));
}

/// (h, c) of the gates i, f, g, o and what they were.
struct Cell;

impl Map<4, 2> for Cell {
    const UPDATES: bool = true;
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [i, f, g, o]: [S::V; 4], [_, c]: [S::V; 2]) -> [S::V; 2] {
        let new = s.mul(sigmoid(s, i), tanh(s, g));
        let c = s.fma(sigmoid(s, f), c, new);
        [s.mul(sigmoid(s, o), tanh(s, c)), c]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, check};

    /// The formulas in f64. Returns y, h and c, one after another.
    fn plain(x: &[f32], w: &[f32], start: [&[f32]; 2], seg: &[i32], rows: usize, hidden: usize) -> Vec<f32> {
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let (x, w, [mut h, mut c]) = (wide(x), wide(w), start.map(wide));
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut y = vec![0.0; rows * hidden];
        for (s, ends) in seg.windows(2).enumerate() {
            let (h, c) = (&mut h[s * hidden..][..hidden], &mut c[s * hidden..][..hidden]);
            for t in ends[0] as usize..ends[1] as usize {
                let dot = |row: usize| (0..hidden).map(|k| w[row * hidden + k] * h[k]).sum::<f64>();
                let z: Vec<f64> = (0..4 * hidden).map(|row| x[t * 4 * hidden + row] + dot(row)).collect();
                for k in 0..hidden {
                    let [i, f, g, o] = [0, 1, 2, 3].map(|part| z[part * hidden + k]);
                    c[k] = sigmoid(f) * c[k] + sigmoid(i) * g.tanh();
                    h[k] = sigmoid(o) * c[k].tanh();
                }
                y[t * hidden..][..hidden].copy_from_slice(h);
            }
        }
        [y, h, c].concat().into_iter().map(|x| x as f32).collect()
    }

    #[test]
    fn rows_follow_one_another_within_their_segment() {
        let mut rng = Rng::new(31);
        for (rows, hidden, seg) in
            [(9, 5, vec![0, 9]), (12, 37, vec![0, 4, 4, 11]), (3, 1, vec![0, 0]), (7, 130, vec![0, 7])]
        {
            let segments = seg.len() - 1;
            let (x, w) = (rng.vec(rows * 4 * hidden), rng.vec(4 * hidden * hidden));
            let (h, c) = (rng.vec(segments * hidden), rng.vec(segments * hidden));
            let want = plain(&x, &w, [&h, &c], &seg, rows, hidden);
            // A few units in the last place of a sum of 130 products, over rows that feed each other.
            check(&want, 1e-5, &format!("{rows} x {hidden}"), |pool| {
                let mut y = vec![f32::NAN; rows * hidden];
                let mut end = [0, 1].map(|_| vec![f32::NAN; segments * hidden]);
                let mut ws = vec![f32::NAN; lstm_workspace(hidden)];
                let [new_h, new_c] = end.each_mut().map(|x| MatMut::dense(x, segments, hidden));
                let start = [&h, &c].map(|x| Mat::dense(x, segments, hidden));
                let (x, w) = (Mat::dense(&x, rows, 4 * hidden), Mat::dense(&w, 4 * hidden, hidden));
                let out = MatMut::dense(&mut y, rows, hidden);
                lstm(pool, x, w, start, &seg, out, [new_h, new_c], &mut ws);
                [&y[..], &end[0], &end[1]].concat()
            });
        }
    }

    /// A sequence in two runs has the bits of one.
    #[test]
    fn states_go_on() {
        let (mut rng, pool, hidden) = (Rng::new(32), Pool::new(2).unwrap(), 24);
        let (x, w) = (rng.vec(20 * 4 * hidden), rng.vec(4 * hidden * hidden));
        let run = |rows: std::ops::Range<usize>, start: [Vec<f32>; 2]| {
            let n = rows.len();
            let (mut y, mut end) = (vec![0.0; n * hidden], [0, 1].map(|_| vec![0.0; hidden]));
            let ends = end.each_mut().map(|x| MatMut::dense(x, 1, hidden));
            let mut ws = vec![0.0; lstm_workspace(hidden)];
            let x = Mat::dense(&x, 20, 4 * hidden).rows_range(rows);
            let (w, start) =
                (Mat::dense(&w, 4 * hidden, hidden), [0, 1].map(|i| Mat::dense(&start[i], 1, hidden)));
            lstm(&pool, x, w, start, &[0, n as i32], MatMut::dense(&mut y, n, hidden), ends, &mut ws);
            (y, end)
        };
        let zeros = [0, 1].map(|_| vec![0.0; hidden]);
        let (whole, end) = run(0..20, zeros.clone());
        let (first, state) = run(0..13, zeros);
        let (second, last) = run(13..20, state);
        assert_eq!([first, second].concat(), whole);
        assert_eq!(last, end);
    }
}
