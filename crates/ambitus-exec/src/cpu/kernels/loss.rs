//! Masked mean squared error.

use super::map::{Map, map_slices};
use super::pool::DisjointMut;
use super::scratch::{SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};
use super::{Mat, MatMut, Pool};

/// Elements of a partial sum: at least one row, else as many as fit.
const PARTIAL: usize = 4096;

fn rows_per_partial(cols: usize) -> usize {
    (PARTIAL / cols.max(1)).max(1)
}

/// Returns the sum with compensation (Neumaier 1974), in order.
pub fn ordered_sum(x: impl IntoIterator<Item = f32>) -> f32 {
    let (mut sum, mut lost) = (0.0f32, 0.0f32);
    for v in x {
        let t = sum + v;
        lost += if sum.abs() >= v.abs() { (sum - t) + v } else { (v - t) + sum };
        sum = t;
    }
    let total = sum + lost;
    // Infinite or NaN terms make the compensation meaningless.
    if total.is_nan() { sum } else { total }
}

/// Returns the floats of workspace of [`masked_mse`].
pub fn masked_mse_workspace(rows: usize, cols: usize) -> usize {
    padded(rows.div_ceil(rows_per_partial(cols))) + SLACK
}

/// `inv_norm * Σ_t mask[t] Σ_c (pred - target)²`; pred, target `[T, C]`, mask `[T]`. Rows of weight 0 are not read.
pub fn masked_mse(pool: &Pool, pred: Mat, target: Mat, mask: &[f32], inv_norm: f32, ws: &mut [f32]) -> f32 {
    assert!((pred.rows, pred.cols) == (target.rows, target.cols) && mask.len() == pred.rows);
    let (isa, per) = (pool.isa(), rows_per_partial(pred.cols));
    let count = pred.rows.div_ceil(per);
    let partial = DisjointMut::new(Scratch::new(ws).take(count));
    pool.run(count, |i| {
        let rows = i * per..pred.rows.min((i + 1) * per);
        let terms =
            rows.filter(|&t| mask[t] != 0.0).map(|t| mask[t] * distance(isa, pred.row(t), target.row(t)));
        // SAFETY: one element per task.
        unsafe { partial.slice(i, 1)[0] = terms.sum() };
    });
    // SAFETY: the tasks are over.
    inv_norm * ordered_sum(unsafe { partial.slice(0, count) }.iter().copied())
}

dispatch! { fn distance(x: &[f32], y: &[f32]) -> f32 = distance_body }

#[inline(always)]
fn distance_body<S: Simd>(s: S, x: &[f32], y: &[f32]) -> f32 {
    let mut sum = s.zero();
    each_vector!(S, x.len(), |at| {
        let d = s.sub(at.load(s, x), at.load(s, y));
        sum = s.fma(d, d, sum);
    });
    s.sum(sum)
}

struct Difference(f32);
impl Map<2, 1> for Difference {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [x, y]: [S::V; 2], _: [S::V; 1]) -> [S::V; 1] {
        [s.mul(s.sub(x, y), s.splat(self.0))]
    }
}

/// Gradient of [`masked_mse`]: `dpred = 2 inv_norm mask (pred - target)`, 0 on rows of weight 0. (Multiply inv_norm by the upstream gradient.)
pub fn masked_mse_grad(pool: &Pool, pred: Mat, target: Mat, mask: &[f32], inv_norm: f32, dpred: MatMut) {
    let shape = (pred.rows, pred.cols);
    assert!(shape == (target.rows, target.cols) && shape == (dpred.rows, dpred.cols));
    assert!(mask.len() == pred.rows);
    let (isa, per) = (pool.isa(), rows_per_partial(pred.cols));
    pool.run(pred.rows.div_ceil(per), |i| {
        let rows = i * per..pred.rows.min((i + 1) * per);
        for (t, &weight) in rows.clone().zip(&mask[rows]) {
            // SAFETY: one task per row.
            let out = unsafe { dpred.row_shared(t) };
            if weight == 0.0 {
                out.fill(0.0);
            } else {
                let f = Difference(2.0 * inv_norm * mask[t]);
                map_slices(isa, &f, [pred.row(t), target.row(t)], [out]);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, check};

    #[test]
    fn loss_and_gradient() {
        let mut rng = Rng::new(101);
        for (t, c, pitch) in [(300, 100, 112), (5, 5000, 5000), (0, 3, 3)] {
            let (x, y) = (rng.vec(t * pitch), rng.vec(t * pitch));
            let mask: Vec<f32> = (0..t).map(|_| rng.below(3) as f32).collect();
            let inv = 1.0 / (t * c).max(1) as f32;
            let mut want = vec![0.0; t * pitch + 1];
            let mut sum = 0.0;
            for (r, &weight) in mask.iter().enumerate() {
                for i in r * pitch..r * pitch + c {
                    let d = x[i] as f64 - y[i] as f64;
                    sum += weight as f64 * d * d;
                    want[i] = (2.0 * inv as f64 * weight as f64 * d) as f32;
                }
            }
            want[t * pitch] = (sum * inv as f64) as f32;
            // The loss is a sum of positive terms: relative error of a few ulp.
            check(&want, 1e-6, "masked mse", |pool| {
                let mut out = vec![f32::NAN; t * pitch];
                let (xm, ym) = (Mat::new(&x, t, c, pitch), Mat::new(&y, t, c, pitch));
                let mut ws = vec![f32::NAN; masked_mse_workspace(t, c)];
                let loss = masked_mse(pool, xm, ym, &mask, inv, &mut ws);
                masked_mse_grad(pool, xm, ym, &mask, inv, MatMut::new(&mut out, t, c, pitch));
                out.push(loss);
                out
            });
        }
    }

    #[test]
    fn compensated_sum() {
        let x: Vec<f32> = std::iter::once(1e8).chain((0..1000).map(|_| 1.0)).chain([-1e8]).collect();
        assert_eq!(ordered_sum(x), 1000.0);
        assert_eq!(ordered_sum([f32::INFINITY, 1.0]), f32::INFINITY);
        assert!(ordered_sum([f32::NAN, 1.0]).is_nan());
    }
}
