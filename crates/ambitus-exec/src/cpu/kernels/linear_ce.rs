//! Linear layer and cross-entropy in one walk over row tiles: at most one tile of logits exists, and its gradient takes its
//! place. Or in two walks over the classes, some of them at a time, with the same bits: sums over classes are formed over
//! [`CLASSES`] at a time, in order, and products have the same shapes.

use super::gemm::{Operand, gemm, gemm_workspace};
use super::loss::ordered_sum;
use super::math::exp_softmax;
use super::pool::DisjointMut;
use super::scratch::{LINE, SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};
use super::{Mat, MatMut, Pool};
use ambitus_ir::ops::head::CLASSES;

/// The usual label that is not scored; so is every other negative one.
pub const IGNORE: i32 = -100;

/// A linear head over all of its classes, or some.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// `[T, D]`
    pub x: Mat<'a>,
    /// `[V, D]`, or those rows that are here.
    pub w: Mat<'a>,
    /// `[T]` below V (panics on others).
    pub labels: &'a [i32],
    /// The class of w's first row.
    pub first: usize,
    /// V.
    pub of: usize,
    /// Rows of logits that exist at a time.
    pub tile: usize,
}

/// Where the gradients go.
pub struct CrossEntropyGrad<'a> {
    /// `[T, D]`
    pub dx: MatMut<'a>,
    /// Of classes that are here `[V, D]`, `dw = acc * dw + Σ`, where it is wanted.
    pub dw: Option<MatMut<'a>>,
    /// Factor of the old dw.
    pub acc: f32,
    /// Factor of both gradients: the upstream gradient of the loss.
    pub scale: f32,
}

/// Of a row: its largest logit, the sum of e^(logit - largest), and its label's logit. Zeros where it is not scored.
pub type Sums = [f32; 3];

/// Before any class.
const NO_CLASS: Sums = [f32::NEG_INFINITY, 0.0, 0.0];

/// Returns the row pitch of the logits: an odd number of cache lines, so that rows do not share cache sets when the vocabulary
/// is a power of two.
fn logits_pitch(classes: usize) -> usize {
    (classes.div_ceil(LINE) | 1) * LINE
}

/// Returns the floats of workspace of [`linear_cross_entropy`], and of [`head_sums`] and [`head_grad`], with `classes` classes.
pub fn linear_cross_entropy_workspace(
    rows: usize,
    dim: usize,
    classes: usize,
    tile_rows: usize,
    threads: usize,
) -> usize {
    let tile = tile_rows.clamp(1, rows.max(1));
    // The last block's products may need more than a whole one's: blocks are even parts of a size.
    let blocks = [CLASSES.min(classes), classes % CLASSES];
    let most = [tile, rows % tile]
        .into_iter()
        .flat_map(|n| blocks.map(|c| [(n, c, dim), (n, dim, c), (c, dim, n)]))
        .flatten()
        .map(|(m, n, k)| gemm_workspace(m, n, k, threads))
        .max()
        .unwrap_or(0);
    padded(tile * logits_pitch(classes)) + padded(rows) + most + SLACK
}

impl<'a> Head<'a> {
    fn check(&self) {
        assert!(self.w.cols == self.x.cols && self.labels.len() == self.x.rows);
        if let Some(bad) = self.labels.iter().find(|&&l| l >= 0 && l as usize >= self.of) {
            panic!("label {bad} of {} classes", self.of);
        }
    }

    /// (first, number) of the rows of every tile.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rows, tile) = (self.x.rows, self.tile.clamp(1, self.x.rows.max(1)));
        (0..rows).step_by(tile).map(move |first| (first, tile.min(rows - first)))
    }

    /// Returns the rows of w that are multiplied at a time; of none, one block of none.
    fn blocks(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let n = self.w.rows;
        (0..n.max(1)).step_by(CLASSES).map(move |first| first..n.min(first + CLASSES))
    }

    fn pitch(&self) -> usize {
        logits_pitch(self.w.rows)
    }

    /// The logits of a tile, `[n, classes here]`.
    fn logits(&self, pool: &Pool, (first, n): (usize, usize), out: &mut [f32], ws: &mut [f32]) {
        let x = Operand::new(self.x.rows_range(first..first + n));
        for block in self.blocks() {
            let w = Operand::new(self.w.rows_range(block.clone())).t();
            let out = MatMut::view(&mut out[block.start..], n, block.len(), self.pitch());
            gemm(pool, 1.0, x, w, 0.0, out, None, ws);
        }
    }

    /// Adds a tile's share to the gradients, from the gradient of its logits. `more`: there are classes before these.
    fn backward(
        &self,
        pool: &Pool,
        (first, n): (usize, usize),
        g: &[f32],
        grad: &mut CrossEntropyGrad<'_>,
        more: bool,
        ws: &mut [f32],
    ) {
        let x = Operand::new(self.x.rows_range(first..first + n));
        for block in self.blocks() {
            let g = Operand::strided(&g[block.start..], n, block.len(), self.pitch(), 1);
            let beta = if block.start > 0 || more { 1.0 } else { 0.0 };
            let dx = grad.dx.reborrow().rows_range(first..first + n);
            gemm(pool, 1.0, g, Operand::new(self.w.rows_range(block.clone())), beta, dx, None, ws);
            if let Some(dw) = &mut grad.dw {
                let acc = if first == 0 { grad.acc } else { 1.0 };
                gemm(pool, 1.0, g.t(), x, acc, dw.reborrow().rows_range(block), None, ws);
            }
        }
    }

    /// The gradient of no rows: an empty product still applies `acc`.
    fn without_rows(&self, pool: &Pool, grad: CrossEntropyGrad<'_>, ws: &mut [f32]) {
        if let (0, Some(dw)) = (self.x.rows, grad.dw) {
            let none = |r, c| Operand::strided(&[], r, c, 0, 0);
            gemm(pool, 1.0, none(self.w.rows, 0), none(0, self.x.cols), grad.acc, dw, None, ws);
        }
    }

    /// Returns the place of row t's label in its row of logits, where it is here.
    fn own(&self, t: usize) -> Option<usize> {
        let label = usize::try_from(self.labels[t]).ok()?;
        label.checked_sub(self.first).filter(|own| *own < self.w.rows)
    }

    fn scored(&self, t: usize) -> bool {
        self.labels[t] >= 0
    }
}

/// `inv_norm * Σ_{t: labels[t] >= 0} -ln softmax(x wᵀ)[t, labels[t]]` over all classes, and its gradients where asked for.
pub fn linear_cross_entropy(
    pool: &Pool,
    head: Head<'_>,
    inv_norm: f32,
    grad: Option<CrossEntropyGrad>,
    ws: &mut [f32],
) -> f32 {
    head.check();
    assert!(head.w.rows == head.of);
    let (isa, rows, classes, pitch) = (pool.isa(), head.x.rows, head.of, head.pitch());
    let mut scratch = Scratch::new(ws);
    let logits = scratch.take(head.tile.clamp(1, rows.max(1)) * pitch);
    let losses = scratch.take(rows);
    let ws = scratch.rest();
    let mut grad = grad;
    if let Some(grad) = &grad {
        assert!((grad.dx.rows, grad.dx.cols) == (rows, head.x.cols));
        assert!(grad.dw.as_ref().is_none_or(|dw| (dw.rows, dw.cols) == (classes, head.x.cols)));
    }
    let factor = grad.as_ref().map(|grad| grad.scale * inv_norm);
    for tile in head.tiles() {
        head.logits(pool, tile, logits, ws);
        let (shared, losses) = (DisjointMut::new(logits), DisjointMut::new(losses));
        pool.run(tile.1, |i| {
            let t = tile.0 + i;
            // SAFETY: one row per task.
            let (row, loss) = unsafe { (shared.slice(i * pitch, classes), losses.slice(t, 1)) };
            let mut sums = NO_CLASS;
            if head.scored(t) {
                row_sums(isa, row, head.own(t), &mut sums);
            }
            loss[0] = if head.scored(t) { row_loss(sums) } else { 0.0 };
            if let Some(factor) = factor {
                row_grad(isa, row, head.scored(t).then_some((sums, head.own(t))), factor);
            }
        });
        if let Some(grad) = &mut grad {
            head.backward(pool, tile, logits, grad, false, ws);
        }
    }
    if let Some(grad) = grad {
        head.without_rows(pool, grad, ws);
    }
    inv_norm * ordered_sum(losses.iter().copied())
}

/// Every row's [`Sums`] over the classes up to the last of these; those before are in `sums`, where there are some.
pub fn head_sums(pool: &Pool, head: Head<'_>, sums: &mut [f32], ws: &mut [f32]) {
    head.check();
    let (isa, classes, pitch) = (pool.isa(), head.w.rows, head.pitch());
    let mut scratch = Scratch::new(ws);
    let logits = scratch.take(head.tile.clamp(1, head.x.rows.max(1)) * pitch);
    let ws = scratch.rest();
    let sums = DisjointMut::new(sums);
    for tile in head.tiles() {
        head.logits(pool, tile, logits, ws);
        let shared = DisjointMut::new(logits);
        pool.run(tile.1, |i| {
            let t = tile.0 + i;
            // SAFETY: one row per task.
            let (row, all) = unsafe { (shared.slice(i * pitch, classes), sums.slice(3 * t, 3)) };
            let mut own: Sums = match (head.scored(t), head.first) {
                (false, _) => [0.0; 3],
                (true, 0) => NO_CLASS,
                (true, _) => [all[0], all[1], all[2]],
            };
            if head.scored(t) {
                row_sums(isa, row, head.own(t), &mut own);
            }
            all.copy_from_slice(&own);
        });
    }
}

/// [`linear_cross_entropy`]'s value from the sums over all classes.
pub fn head_loss(labels: &[i32], sums: &[f32], inv_norm: f32) -> f32 {
    let (rows, _) = sums.as_chunks::<3>();
    let losses = labels.iter().zip(rows).map(|(l, sums)| if *l < 0 { 0.0 } else { row_loss(*sums) });
    inv_norm * ordered_sum(losses)
}

/// [`linear_cross_entropy`]'s gradients of some classes, from the sums over all. dx is that of the classes before, where there are
/// some, and they are added to it.
pub fn head_grad(
    pool: &Pool,
    head: Head<'_>,
    sums: &[f32],
    inv_norm: f32,
    mut grad: CrossEntropyGrad,
    ws: &mut [f32],
) {
    head.check();
    let (isa, classes, pitch) = (pool.isa(), head.w.rows, head.pitch());
    let mut scratch = Scratch::new(ws);
    let logits = scratch.take(head.tile.clamp(1, head.x.rows.max(1)) * pitch);
    let ws = scratch.rest();
    let factor = grad.scale * inv_norm;
    for tile in head.tiles() {
        head.logits(pool, tile, logits, ws);
        let shared = DisjointMut::new(logits);
        pool.run(tile.1, |i| {
            let t = tile.0 + i;
            // SAFETY: one row per task.
            let row = unsafe { shared.slice(i * pitch, classes) };
            let all = [sums[3 * t], sums[3 * t + 1], sums[3 * t + 2]];
            row_grad(isa, row, head.scored(t).then_some((all, head.own(t))), factor);
        });
        head.backward(pool, tile, logits, &mut grad, head.first > 0, ws);
    }
    head.without_rows(pool, grad, ws);
}

fn row_loss([max, sum, own]: Sums) -> f32 {
    sum.ln() + max - own
}

dispatch! {
    /// Updates a row's sums over its logits, whose label is at `own`.
    fn row_sums(row: &[f32], own: Option<usize>, sums: &mut Sums) = row_sums_body
}

#[inline(always)]
fn row_sums_body<S: Simd>(s: S, row: &[f32], own: Option<usize>, sums: &mut Sums) {
    for block in row.chunks(CLASSES) {
        let n = block.len();
        let mut top = s.splat(f32::NEG_INFINITY);
        let whole = n / S::LANES * S::LANES;
        for x in block[..whole].chunks_exact(S::LANES) {
            top = s.max(top, s.load(x));
        }
        let max = block[whole..].iter().copied().fold(s.max_lane(top), f32::max).max(sums[0]);
        let m = s.splat(max);
        let mut sum = s.zero();
        each_vector!(S, n, |at| {
            let e = exp_softmax(s, s.sub(at.load(s, block), m));
            sum = s.add(sum, at.keep(s, e));
        });
        let down = exp_softmax(s, s.splat(sums[0] - max));
        sums[1] = sums[1] * s.max_lane(down) + s.sum(sum);
        sums[0] = max;
    }
    if let Some(own) = own {
        sums[2] = row[own];
    }
}

dispatch! {
    /// Logits become (softmax - onehot) * factor, or zeros in a row that is not scored.
    fn row_grad(row: &mut [f32], of: Option<(Sums, Option<usize>)>, factor: f32) = row_grad_body
}

#[inline(always)]
fn row_grad_body<S: Simd>(s: S, row: &mut [f32], of: Option<(Sums, Option<usize>)>, factor: f32) {
    let Some(([max, sum, _], own)) = of else {
        return row.fill(0.0);
    };
    let (m, f) = (s.splat(max), s.splat(factor / sum));
    each_vector!(S, row.len(), |at| {
        let e = exp_softmax(s, s.sub(at.load(s, row), m));
        let v = s.mul(e, f);
        at.store(s, row, v);
    });
    if let Some(own) = own {
        row[own] -= factor;
    }
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
        let head = Head { x: xm, w: wm, labels: &labels, first: 0, of: v, tile };
        let loss = linear_cross_entropy(&pool, head, 1.0 / t as f32, Some(grad), &mut ws);
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
                let head = Head { x: xm, w: wm, labels: &labels, first: 0, of: v, tile };
                let with = linear_cross_entropy(pool, head, inv, Some(grad), &mut ws);
                let without = linear_cross_entropy(pool, head, inv, None, &mut ws);
                [dx, dw, vec![with, without]].concat()
            });
        }
    }

    #[test]
    fn some_classes_at_a_time_have_the_same_bits() {
        let mut rng = Rng::new(123);
        for (t, d, v, tile, acc) in [(37, 24, 2500, 16, 0.5), (5, 16, 3072, 9, 0.0), (0, 8, 1500, 4, 0.5)] {
            let (x, w, dw0) = (rng.vec(t * d), rng.vec(v * d), rng.vec(v * d));
            let labels: Vec<i32> =
                (0..t).map(|i| if i % 5 == 0 { IGNORE } else { rng.below(v) as i32 }).collect();
            let pool = Pool::new(2).unwrap();
            let mut ws = vec![f32::NAN; linear_cross_entropy_workspace(t, d, v, tile, 2)];
            let (xm, wm) = (Mat::dense(&x, t, d), Mat::dense(&w, v, d));
            let (mut dx, mut dw) = (vec![f32::NAN; t * d], dw0.clone());
            let whole = Head { x: xm, w: wm, labels: &labels, first: 0, of: v, tile };
            let (dxm, dwm) = (MatMut::dense(&mut dx, t, d), MatMut::dense(&mut dw, v, d));
            let grad = CrossEntropyGrad { scale: 0.5, dx: dxm, dw: Some(dwm), acc };
            let loss = linear_cross_entropy(&pool, whole, 0.25, Some(grad), &mut ws);
            for part in [CLASSES, 2 * CLASSES] {
                let (mut sums, mut dx1, mut dw1) =
                    (vec![f32::NAN; 3 * t], vec![f32::NAN; t * d], dw0.clone());
                let of = |first: usize| Head { w: wm.rows_range(first..v.min(first + part)), first, ..whole };
                for first in (0..v).step_by(part) {
                    head_sums(&pool, of(first), &mut sums, &mut ws);
                }
                assert_eq!(head_loss(&labels, &sums, 0.25).to_bits(), loss.to_bits());
                for first in (0..v).step_by(part) {
                    let head = of(first);
                    let dw = MatMut::dense(&mut dw1[first * d..][..head.w.rows * d], head.w.rows, d);
                    let grad =
                        CrossEntropyGrad { scale: 0.5, dx: MatMut::dense(&mut dx1, t, d), dw: Some(dw), acc };
                    head_grad(&pool, head, &sums, 0.25, grad, &mut ws);
                }
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!((bits(&dx), bits(&dw)), (bits(&dx1), bits(&dw1)), "{t} {v} {part}");
            }
        }
    }
}
