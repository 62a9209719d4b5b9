//! Linear layer and cross-entropy in one walk over row tiles: at most one tile of logits exists, and its gradient takes its place.

use super::gemm::{Operand, gemm, gemm_workspace};
use super::loss::ordered_sum;
use super::math::exp_softmax;
use super::pool::DisjointMut;
use super::scratch::{LINE, SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};
use super::{Mat, MatMut, Pool};

/// The usual label that is not scored; so is every other negative one.
pub const IGNORE: i32 = -100;

/// Where the gradients go.
pub struct CrossEntropyGrad<'a> {
    /// `[T, D]`
    pub dx: MatMut<'a>,
    /// `[V, D]`, `dw = acc * dw + Σ`, where it is wanted.
    pub dw: Option<MatMut<'a>>,
    /// Factor of the old dw.
    pub acc: f32,
    /// Factor of both gradients: the upstream gradient of the loss.
    pub scale: f32,
}

/// Row pitch of the logits: an odd number of cache lines, so that rows do not share cache sets when the vocabulary is a power of two.
fn logits_pitch(vocab: usize) -> usize {
    (vocab.div_ceil(LINE) | 1) * LINE
}

/// Floats of workspace of [`linear_cross_entropy`].
pub fn linear_cross_entropy_workspace(
    rows: usize,
    dim: usize,
    vocab: usize,
    tile_rows: usize,
    threads: usize,
) -> usize {
    let tile = tile_rows.clamp(1, rows.max(1));
    // The last tile's products may need more than a whole tile's: blocks are even parts of a size.
    let most = [tile, rows % tile]
        .into_iter()
        .flat_map(|n| [(n, vocab, dim), (n, dim, vocab), (vocab, dim, n)])
        .map(|(m, n, k)| gemm_workspace(m, n, k, threads))
        .max()
        .unwrap_or(0);
    padded(tile * logits_pitch(vocab)) + padded(rows) + most + SLACK
}

/// `inv_norm * Σ_{t: labels[t] >= 0} -ln softmax(x wᵀ)[t, labels[t]]`, and its gradients where asked for.
///
/// x `[T, D]`, w `[V, D]`, labels `[T]` below V (panics on others). `tile_rows` rows of logits exist at a time.
#[allow(clippy::too_many_arguments)]
pub fn linear_cross_entropy(
    pool: &Pool,
    x: Mat,
    w: Mat,
    labels: &[i32],
    inv_norm: f32,
    tile_rows: usize,
    grad: Option<CrossEntropyGrad>,
    ws: &mut [f32],
) -> f32 {
    let (rows, vocab) = (x.rows, w.rows);
    assert!(w.cols == x.cols && labels.len() == rows);
    if let Some(bad) = labels.iter().find(|&&l| l >= 0 && l as usize >= vocab) {
        panic!("label {bad} of {vocab} classes");
    }
    let tile = tile_rows.clamp(1, rows.max(1));
    let (isa, pitch) = (pool.isa(), logits_pitch(vocab));
    let mut scratch = Scratch::new(ws);
    let logits = scratch.take(tile * pitch);
    let losses = scratch.take(rows);
    let ws = scratch.rest();
    let (mut grad, mut acc, mut factor) = (grad, 1.0, None);
    if let Some(grad) = &grad {
        assert!((grad.dx.rows, grad.dx.cols) == (rows, x.cols));
        assert!(grad.dw.as_ref().is_none_or(|dw| (dw.rows, dw.cols) == (vocab, x.cols)));
        acc = grad.acc;
        factor = Some(grad.scale * inv_norm);
    }
    for first in (0..rows).step_by(tile) {
        let n = tile.min(rows - first);
        let part = x.rows_range(first..first + n);
        let out = MatMut::new(logits, n, vocab, pitch);
        gemm(pool, 1.0, Operand::new(part), Operand::new(w).t(), 0.0, out, None, ws);
        let (shared, losses) = (DisjointMut::new(logits), DisjointMut::new(losses));
        pool.run(n, |i| {
            let t = first + i;
            // SAFETY: one row per task.
            let (row, loss) = unsafe { (shared.slice(i * pitch, vocab), losses.slice(t, 1)) };
            loss[0] = if labels[t] < 0 {
                row.fill(0.0);
                0.0
            } else {
                softmax_row(isa, row, labels[t] as usize, factor)
            };
        });
        if let Some(grad) = &mut grad {
            let d = Operand::new(Mat::new(logits, n, vocab, pitch));
            let dx = grad.dx.reborrow().rows_range(first..first + n);
            gemm(pool, 1.0, d, Operand::new(w), 0.0, dx, None, ws);
            if let Some(dw) = &mut grad.dw {
                gemm(pool, 1.0, d.t(), Operand::new(part), acc, dw.reborrow(), None, ws);
                acc = 1.0;
            }
        }
    }
    if rows == 0
        && let Some(CrossEntropyGrad { dw: Some(dw), .. }) = grad
    {
        // An empty product still applies `acc`.
        let none = |r, c| Operand::strided(&[], r, c, 0, 0);
        gemm(pool, 1.0, none(vocab, 0), none(0, x.cols), acc, dw, None, ws);
    }
    inv_norm * ordered_sum(losses)
}

dispatch! {
    /// The row's loss; with a factor, the row becomes (softmax - onehot) * factor.
    fn softmax_row(row: &mut [f32], label: usize, factor: Option<f32>) -> f32 = softmax_row_body
}

#[inline(always)]
fn softmax_row_body<S: Simd>(s: S, row: &mut [f32], label: usize, factor: Option<f32>) -> f32 {
    let n = row.len();
    let mut top = s.splat(f32::NEG_INFINITY);
    let whole = n / S::LANES * S::LANES;
    for x in row[..whole].chunks_exact(S::LANES) {
        top = s.max(top, s.load(x));
    }
    let max = row[whole..].iter().copied().fold(s.max_lane(top), f32::max);
    let (m, target) = (s.splat(max), row[label]);
    let mut sum = s.zero();
    each_vector!(S, n, |at| {
        let e = exp_softmax(s, s.sub(at.load(s, row), m));
        sum = s.add(sum, at.keep(s, e));
        at.store(s, row, e);
    });
    let sum = s.sum(sum);
    if let Some(factor) = factor {
        let f = s.splat(factor / sum);
        each_vector!(S, n, |at| {
            let v = s.mul(at.load(s, row), f);
            at.store(s, row, v);
        });
        row[label] -= factor;
    }
    sum.ln() + max - target
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, check};

    /// Products of up to a few dozen fp32 terms.
    const TOL: f32 = 1e-5;

    /// Blocks of a product are not monotonic in its sizes: depth 513 is cut in two, depth 512 is not.
    #[test]
    fn a_short_last_tile_has_enough_workspace() {
        let (t, d, v, tile) = (1025, 64, 600, 513);
        let mut rng = Rng::new(122);
        let (x, w) = (rng.vec(t * d), rng.vec(v * d));
        let labels: Vec<i32> = (0..t).map(|_| rng.below(v) as i32).collect();
        let pool = Pool::new(1).unwrap();
        let (mut dx, mut dw) = (vec![f32::NAN; t * d], vec![f32::NAN; v * d]);
        let mut ws = vec![f32::NAN; linear_cross_entropy_workspace(t, d, v, tile, 1)];
        let (xm, wm) = (Mat::dense(&x, t, d), Mat::dense(&w, v, d));
        let grad = CrossEntropyGrad {
            scale: 1.0,
            dx: MatMut::dense(&mut dx, t, d),
            dw: Some(MatMut::dense(&mut dw, v, d)),
            acc: 0.0,
        };
        let loss = linear_cross_entropy(&pool, xm, wm, &labels, 1.0 / t as f32, tile, Some(grad), &mut ws);
        assert!(loss.is_finite() && dx.iter().chain(&dw).all(|g| g.is_finite()));
    }

    #[test]
    fn loss_and_gradients() {
        let mut rng = Rng::new(121);
        for (t, d, v, tile, acc) in
            [(50, 13, 101, 16, 0.5), (20, 8, 33, 100, 0.0), (7, 3, 5, 1, 1.0), (0, 3, 5, 4, 0.5)]
        {
            let (x, w, dw0) = (rng.vec(t * d), rng.vec(v * d), rng.vec(v * d));
            let labels: Vec<i32> =
                (0..t).map(|i| if i % 5 == 0 { IGNORE } else { rng.below(v) as i32 }).collect();
            let inv = 1.0 / t.max(1) as f32;
            let mut dx = vec![0f64; t * d];
            let mut dw: Vec<f64> = dw0.iter().map(|&v| (acc * v) as f64).collect();
            let mut loss = 0.0;
            for (r, &label) in labels.iter().enumerate().filter(|(_, l)| **l != IGNORE) {
                let logit: Vec<f64> =
                    (0..v).map(|j| (0..d).map(|e| x[r * d + e] as f64 * w[j * d + e] as f64).sum()).collect();
                let sum: f64 = logit.iter().map(|l| l.exp()).sum();
                loss += sum.ln() - logit[label as usize];
                for j in 0..v {
                    let g = (logit[j].exp() / sum - (j == label as usize) as u8 as f64) * 0.5 * inv as f64;
                    for e in 0..d {
                        dx[r * d + e] += g * w[j * d + e] as f64;
                        dw[j * d + e] += g * x[r * d + e] as f64;
                    }
                }
            }
            let want: Vec<f32> =
                [dx, dw, vec![loss * inv as f64; 2]].concat().iter().map(|&v| v as f32).collect();
            check(&want, TOL, &format!("cross-entropy {t} {v} {tile}"), |pool| {
                let (mut dx, mut dw) = (vec![f32::NAN; t * d], dw0.clone());
                if acc == 0.0 {
                    dw.fill(f32::NAN);
                }
                let size = linear_cross_entropy_workspace(t, d, v, tile, pool.threads());
                let mut ws = vec![f32::NAN; size];
                let (xm, wm) = (Mat::dense(&x, t, d), Mat::dense(&w, v, d));
                let grad = CrossEntropyGrad {
                    scale: 0.5,
                    dx: MatMut::dense(&mut dx, t, d),
                    dw: Some(MatMut::dense(&mut dw, v, d)),
                    acc,
                };
                let with = linear_cross_entropy(pool, xm, wm, &labels, inv, tile, Some(grad), &mut ws);
                let without = linear_cross_entropy(pool, xm, wm, &labels, inv, tile, None, &mut ws);
                [dx, dw, vec![with, without]].concat()
            });
        }
    }
}
