//! Global response normalisation (Woo et al., ConvNeXt V2, arXiv 2301.00808) over the rows of each segment:
//! `G[s, c] = ‖x[s, :, c]‖₂`, `N = G / (mean_c G + 1e-6)`, `y = gamma (x N) + beta + x`.
//!
//! Gradient: with B = Σ_t dy x and dN = gamma B, `dG = dN / M - mean_c(dN G) / M²` (M = mean_c G + 1e-6), so
//! `dx = dy (1 + gamma N) + x dG / G`, `dgamma = Σ_s N B`, `dbeta = Σ_t dy`.

use super::pool::DisjointMut;
use super::scratch::{SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};
use super::tiles::{SegmentTiles, add_parts, reduce};
use super::{Isa, Mat, MatMut, Pool};

const EPS: f32 = 1e-6;
/// Partial sums of a tile: squares of x, dy x, dy.
const PARTS: usize = 3;
/// Rows kept per segment: 1 + gamma N, dG / G, Σ dy, N B.
const KEPT: usize = 4;

/// Returns the floats of workspace of [`grn`] and [`grn_grad`].
pub fn grn_workspace(rows: usize, segments: usize, cols: usize) -> usize {
    (PARTS * SegmentTiles::most(rows, segments) + KEPT * segments) * padded(cols) + SLACK
}

/// `y = gamma (x N) + beta + x`; x, out `[T, C]`, gamma, beta `[C]`. Rows of no segment become 0.
pub fn grn(pool: &Pool, x: Mat, seg: &[i32], gamma: &[f32], beta: &[f32], out: MatMut, ws: &mut [f32]) {
    let c = x.cols;
    assert!((x.rows, c) == (out.rows, out.cols));
    let (gamma, beta, isa) = (&gamma[..c], &beta[..c], pool.isa());
    let t = Tables::new(x, seg, ws);
    t.sum_tiles(pool, x, None);
    pool.run(t.tiles.segments(), |s| t.finish(isa, s, gamma, false));
    pool.run(t.tiles.all(), |i| {
        let (s, rows) = t.tiles.get(i);
        for r in rows {
            // SAFETY: one task per row.
            let out = unsafe { out.row_shared(r) };
            match s {
                None => out.fill(0.0),
                // SAFETY: the segment's rows are only read from here on.
                Some(s) => forward_row(isa, x.row(r), unsafe { t.kept(s, 0) }, beta, out),
            }
        }
    });
}

/// Gradients of [`grn`]: dx `[T, C]` (0 for rows of no segment); `d = acc * d + Σ` for gamma and beta.
#[allow(clippy::too_many_arguments)]
pub fn grn_grad(
    pool: &Pool,
    x: Mat,
    seg: &[i32],
    gamma: &[f32],
    dy: Mat,
    dx: MatMut,
    acc: f32,
    dgamma: &mut [f32],
    dbeta: &mut [f32],
    ws: &mut [f32],
) {
    let c = x.cols;
    assert!((x.rows, c) == (dy.rows, dy.cols) && (x.rows, c) == (dx.rows, dx.cols));
    let (gamma, isa) = (&gamma[..c], pool.isa());
    let t = Tables::new(x, seg, ws);
    t.sum_tiles(pool, x, Some(dy));
    pool.run(t.tiles.segments(), |s| t.finish(isa, s, gamma, true));
    pool.run(t.tiles.all(), |i| {
        let (s, rows) = t.tiles.get(i);
        for r in rows {
            // SAFETY: one task per row.
            let dx = unsafe { dx.row_shared(r) };
            let Some(s) = s else {
                dx.fill(0.0);
                continue;
            };
            // SAFETY: the segment's rows are only read from here on.
            let (factor, pull) = unsafe { (t.kept(s, 0), t.kept(s, 1)) };
            grad_row(isa, x.row(r), dy.row(r), factor, pull, dx);
        }
    });
    let segments = t.tiles.segments();
    // SAFETY: the tasks are over.
    let kept: &[f32] = unsafe { t.kept.slice(0, KEPT * segments * t.stride) };
    let row = |i: usize| kept.get(i * t.stride..).unwrap_or(&[]);
    reduce(pool, row(3), KEPT * t.stride, segments, acc, &mut dgamma[..c]);
    reduce(pool, row(2), KEPT * t.stride, segments, acc, &mut dbeta[..c]);
}

struct Tables<'a> {
    tiles: SegmentTiles<'a>,
    cols: usize,
    stride: usize,
    partial: DisjointMut<'a>,
    kept: DisjointMut<'a>,
}

impl<'a> Tables<'a> {
    fn new(x: Mat, seg: &'a [i32], ws: &'a mut [f32]) -> Self {
        let tiles = SegmentTiles::new(seg, x.rows);
        let stride = padded(x.cols);
        let mut scratch = Scratch::new(ws);
        Self {
            tiles,
            cols: x.cols,
            stride,
            partial: DisjointMut::new(scratch.take(PARTS * tiles.inside() * stride)),
            kept: DisjointMut::new(scratch.take(KEPT * tiles.segments() * stride)),
        }
    }

    /// # Safety
    /// The row must not be written while others use it.
    unsafe fn kept(&self, s: usize, which: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.kept.slice((KEPT * s + which) * self.stride, self.cols) }
    }

    fn sum_tiles(&self, pool: &Pool, x: Mat, dy: Option<Mat>) {
        let isa = pool.isa();
        pool.run(self.tiles.inside(), |i| {
            // SAFETY: one tile per task.
            let parts = unsafe { self.partial.slice(PARTS * i * self.stride, PARTS * self.stride) };
            parts.fill(0.0);
            for r in self.tiles.get(i).1 {
                sum_row(isa, x.row(r), dy.map(|dy| dy.row(r)), parts, self.stride);
            }
        });
    }

    /// Sums the tiles of segment `s` and computes what is kept of it.
    fn finish(&self, isa: Isa, s: usize, gamma: &[f32], gradient: bool) {
        let (of, stride) = (self.tiles.of(s), self.stride);
        // SAFETY: tiles are finished; one task per segment writes its kept rows.
        let (partial, [a, b, sums, nb]) = unsafe {
            (
                &*self.partial.slice(0, PARTS * self.tiles.inside() * stride),
                [0, 1, 2, 3].map(|which| self.kept(s, which)),
            )
        };
        let part = |which: usize| partial.get((PARTS * of.start + which) * stride..).unwrap_or(&[]);
        add_parts(isa, part(0), PARTS * stride, of.len(), 0.0, a);
        a.iter_mut().for_each(|v| *v = v.sqrt());
        let cols = self.cols as f32;
        let mean = a.iter().sum::<f32>() / cols + EPS;
        if gradient {
            add_parts(isa, part(1), PARTS * stride, of.len(), 0.0, b);
            add_parts(isa, part(2), PARTS * stride, of.len(), 0.0, sums);
            let pull: f32 = (0..self.cols).map(|c| gamma[c] * b[c] * a[c]).sum();
            let pull = pull / cols / (mean * mean);
            for c in 0..self.cols {
                nb[c] = a[c] / mean * b[c];
                let dg = gamma[c] * b[c] / mean - pull;
                b[c] = if a[c] > 0.0 { dg / a[c] } else { 0.0 };
            }
        }
        for (g, gamma) in a.iter_mut().zip(gamma) {
            *g = 1.0 + gamma * (*g / mean);
        }
    }
}

dispatch! { fn sum_row(x: &[f32], dy: Option<&[f32]>, parts: &mut [f32], stride: usize) = sum_row_body }

#[inline(always)]
fn sum_row_body<S: Simd>(s: S, x: &[f32], dy: Option<&[f32]>, parts: &mut [f32], stride: usize) {
    let n = x.len();
    let (squares, rest) = parts.split_at_mut(stride);
    let (dots, sums) = rest.split_at_mut(stride);
    let (squares, dots, sums) = (&mut squares[..n], &mut dots[..n], &mut sums[..n]);
    each_vector!(S, n, |at| {
        let v = at.load(s, x);
        let sum = s.fma(v, v, at.load(s, squares));
        at.store(s, squares, sum);
        if let Some(dy) = dy {
            let d = at.load(s, dy);
            let sum = s.fma(d, v, at.load(s, dots));
            at.store(s, dots, sum);
            let sum = s.add(d, at.load(s, sums));
            at.store(s, sums, sum);
        }
    });
}

dispatch! { fn forward_row(x: &[f32], factor: &[f32], beta: &[f32], out: &mut [f32]) = forward_row_body }

#[inline(always)]
fn forward_row_body<S: Simd>(s: S, x: &[f32], factor: &[f32], beta: &[f32], out: &mut [f32]) {
    each_vector!(S, out.len(), |at| {
        let y = s.fma(at.load(s, x), at.load(s, factor), at.load(s, beta));
        at.store(s, out, y);
    });
}

dispatch! { fn grad_row(x: &[f32], dy: &[f32], factor: &[f32], pull: &[f32], dx: &mut [f32]) = grad_row_body }

#[inline(always)]
fn grad_row_body<S: Simd>(s: S, x: &[f32], dy: &[f32], factor: &[f32], pull: &[f32], dx: &mut [f32]) {
    each_vector!(S, dx.len(), |at| {
        let own = s.mul(at.load(s, dy), at.load(s, factor));
        at.store(s, dx, s.fma(at.load(s, x), at.load(s, pull), own));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::segment;
    use crate::cpu::kernels::testing::{Rng, check};

    /// Sums of up to a few hundred fp32 terms of order 1.
    const TOL: f32 = 5e-5;

    fn forward(x: &[f64], rows: usize, c: usize, gamma: &[f32], beta: &[f32], seg: &[i32]) -> Vec<f64> {
        let mut y = vec![0.0; rows * c];
        for s in 0..seg.len() - 1 {
            let g: Vec<f64> =
                (0..c).map(|j| segment(seg, s).map(|t| x[t * c + j].powi(2)).sum::<f64>().sqrt()).collect();
            let mean = g.iter().sum::<f64>() / c as f64 + EPS as f64;
            for t in segment(seg, s) {
                for j in 0..c {
                    let v = x[t * c + j];
                    y[t * c + j] = gamma[j] as f64 * v * g[j] / mean + beta[j] as f64 + v;
                }
            }
        }
        y
    }

    #[test]
    fn forward_and_gradient() {
        let mut rng = Rng::new(71);
        let (rows, c) = (120, 21);
        let seg = [0, 0, 70, 73, 73, 110];
        let mut x = rng.vec(rows * c);
        // A silent channel in one segment: the norm's gradient there is taken as 0.
        (70..73).for_each(|t| x[t * c + 4] = 0.0);
        let (gamma, beta, dy) = (rng.vec(c), rng.vec(c), rng.vec(rows * c));
        let (dg0, db0) = (rng.vec(c), rng.vec(c));
        let wide: Vec<f64> = x.iter().map(|&v| v as f64).collect();
        let run = |x: &[f64], gamma: &[f32], beta: &[f32]| forward(x, rows, c, gamma, beta, &seg);
        let y = run(&wide, &gamma, &beta);
        let loss = |y: &[f64]| y.iter().zip(&dy).map(|(a, b)| a * *b as f64).sum::<f64>();
        // The loss is smooth: central differences in f64 are exact to 1e-8 here; gamma and beta enter linearly.
        let h = 1e-5;
        let mut dx = vec![0.0; rows * c];
        for (i, d) in dx.iter_mut().enumerate() {
            if i / c >= 70 && i / c < 73 && i % c == 4 {
                continue;
            }
            let at = |v: f64| {
                let mut x = wide.clone();
                x[i] += v;
                loss(&run(&x, &gamma, &beta))
            };
            *d = (at(h) - at(-h)) / (2.0 * h);
        }
        for t in 70..73 {
            // dy (1 + gamma N) with N = 0.
            dx[t * c + 4] = dy[t * c + 4] as f64;
        }
        let base = loss(&y);
        let unit = |v: &[f32], j: usize| {
            let mut v = v.to_vec();
            v[j] += 1.0;
            v
        };
        let dg = (0..c).map(|j| 0.5 * dg0[j] as f64 + loss(&run(&wide, &unit(&gamma, j), &beta)) - base);
        let db = (0..c).map(|j| 0.5 * db0[j] as f64 + loss(&run(&wide, &gamma, &unit(&beta, j))) - base);
        let want: Vec<f32> =
            y.iter().copied().chain(dx.iter().copied()).chain(dg).chain(db).map(|v| v as f32).collect();
        check(&want, TOL, "grn", |pool| {
            let (mut y, mut dx) = (vec![f32::NAN; rows * c], vec![f32::NAN; rows * c]);
            let (mut dg, mut db) = (dg0.clone(), db0.clone());
            let mut ws = vec![f32::NAN; grn_workspace(rows, 5, c)];
            let (xm, dym) = (Mat::dense(&x, rows, c), Mat::dense(&dy, rows, c));
            grn(pool, xm, &seg, &gamma, &beta, MatMut::dense(&mut y, rows, c), &mut ws);
            let dxm = MatMut::dense(&mut dx, rows, c);
            grn_grad(pool, xm, &seg, &gamma, dym, dxm, 0.5, &mut dg, &mut db, &mut ws);
            [y, dx, dg, db].concat()
        });
    }
}
