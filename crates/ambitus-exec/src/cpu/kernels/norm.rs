//! Layer norm (Ba et al., arXiv 1607.06450), RMS norm (Zhang & Sennrich, arXiv 1910.07467) and layer norm with per-segment
//! modulation (AdaLN, Peebles & Xie, arXiv 2212.09748).
//!
//! Gradients recompute the statistics from x. With x̂ the normalised row and g = dy ∘ factor:
//! `dx = rstd (g - mean(g) - x̂ mean(g x̂))` (RMS norm: without mean(g)).

use super::pool::DisjointMut;
use super::scratch::{SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};
use super::tiles::{SegmentTiles, reduce, reduce_segments, tile, tiles};
use super::{Mat, Pool, Rows, RowsMut, Stage};

/// What a normalised row is multiplied with and shifted by.
#[derive(Clone, Copy)]
struct Affine<'a> {
    /// Factor per column; None is 1.
    factor: Option<&'a [f32]>,
    /// Added to the factor (1 for modulation tables, which hold the difference from 1).
    plus: f32,
    shift: Option<&'a [f32]>,
    eps: f32,
    /// Layer norm; false for RMS norm.
    center: bool,
}

#[inline(always)]
fn factor_at<S: Simd>(s: S, affine: &Affine, at: impl At<S>) -> S::V {
    match affine.factor {
        Some(f) => s.add(at.load(s, f), s.splat(affine.plus)),
        None => s.splat(1.0),
    }
}

/// Returns the mean and 1 / √(variance + eps) in two passes; the mean is 0 for RMS norm.
#[inline(always)]
fn stats<S: Simd>(s: S, x: &[f32], affine: &Affine) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = if affine.center {
        let mut sum = s.zero();
        each_vector!(S, x.len(), |at| {
            sum = s.add(sum, at.load(s, x));
        });
        s.sum(sum) / n
    } else {
        0.0
    };
    let m = s.splat(mean);
    let mut square = s.zero();
    each_vector!(S, x.len(), |at| {
        let d = at.keep(s, s.sub(at.load(s, x), m));
        square = s.fma(d, d, square);
    });
    (mean, 1.0 / (s.sum(square) / n + affine.eps).sqrt())
}

dispatch! { fn norm_row(x: &[f32], affine: &Affine, out: &mut [f32]) = norm_row_body }

#[inline(always)]
fn norm_row_body<S: Simd>(s: S, x: &[f32], affine: &Affine, out: &mut [f32]) {
    let (mean, rstd) = stats(s, x, affine);
    let (m, r) = (s.splat(mean), s.splat(rstd));
    each_vector!(S, x.len(), |at| {
        let norm = s.mul(s.sub(at.load(s, x), m), r);
        let y = s.mul(norm, factor_at(s, affine, at));
        let y = match affine.shift {
            Some(shift) => s.add(y, at.load(s, shift)),
            None => y,
        };
        at.store(s, out, y);
    });
}

dispatch! {
    /// dx of one row; adds its dy ∘ x̂ and dy to `dfactor` and `dshift`, where they are not empty.
    fn grad_row(x: &[f32], dy: &[f32], affine: &Affine, dx: &mut [f32], dfactor: &mut [f32], dshift: &mut [f32]) = grad_row_body
}

#[inline(always)]
fn grad_row_body<S: Simd>(
    s: S,
    x: &[f32],
    dy: &[f32],
    affine: &Affine,
    dx: &mut [f32],
    dfactor: &mut [f32],
    dshift: &mut [f32],
) {
    let n = x.len();
    let (mean, rstd) = stats(s, x, affine);
    let (m, r) = (s.splat(mean), s.splat(rstd));
    let (mut sum, mut dot) = (s.zero(), s.zero());
    each_vector!(S, n, |at| {
        let g = s.mul(at.load(s, dy), factor_at(s, affine, at));
        let norm = s.mul(s.sub(at.load(s, x), m), r);
        sum = s.add(sum, g);
        dot = s.fma(g, norm, dot);
    });
    let mean_g = s.splat(if affine.center { s.sum(sum) / n as f32 } else { 0.0 });
    let mean_dot = s.splat(s.sum(dot) / n as f32);
    each_vector!(S, n, |at| {
        let d = at.load(s, dy);
        let g = s.mul(d, factor_at(s, affine, at));
        let norm = s.mul(s.sub(at.load(s, x), m), r);
        let v = s.fnma(norm, mean_dot, s.sub(g, mean_g));
        at.store(s, dx, s.mul(v, r));
        if !dfactor.is_empty() {
            let sum = s.fma(d, norm, at.load(s, dfactor));
            at.store(s, dfactor, sum);
        }
        if !dshift.is_empty() {
            let sum = s.add(d, at.load(s, dshift));
            at.store(s, dshift, sum);
        }
    });
}

fn norm(pool: &Pool, x: Rows, affine: Affine, out: RowsMut) {
    let (rows, _) = x.shape();
    assert!(x.shape() == out.shape());
    let isa = pool.isa();
    pool.run(tiles(rows), |i| {
        let mut from = Stage::new();
        let mut to = Stage::new();
        for t in tile(rows, i) {
            let x = x.row(isa, t, &mut from);
            // SAFETY: one task per row.
            unsafe { out.write(isa, t, &mut to, |out| norm_row(isa, x, &affine, out)) };
        }
    });
}

/// `out = (x - mean) / √(var + eps) * gamma + beta`; x `[T, D]`, gamma and beta `[D]`.
pub fn layer_norm<'a>(
    pool: &Pool,
    x: impl Into<Rows<'a>>,
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
    eps: f32,
    out: impl Into<RowsMut<'a>>,
) {
    let x = x.into();
    let (_, d) = x.shape();
    let affine =
        Affine { factor: gamma.map(|g| &g[..d]), plus: 0.0, shift: beta.map(|b| &b[..d]), eps, center: true };
    norm(pool, x, affine, out.into());
}

/// `out = x / √(mean(x²) + eps) * gamma`; x `[T, D]`, gamma `[D]`.
pub fn rms_norm<'a>(
    pool: &Pool,
    x: impl Into<Rows<'a>>,
    gamma: &[f32],
    eps: f32,
    out: impl Into<RowsMut<'a>>,
) {
    let x = x.into();
    let factor = Some(&gamma[..x.shape().1]);
    norm(pool, x, Affine { factor, plus: 0.0, shift: None, eps, center: false }, out.into());
}

/// Returns the floats of workspace of [`layer_norm_grad`].
pub fn layer_norm_grad_workspace(rows: usize, cols: usize) -> usize {
    2 * padded(tiles(rows) * padded(cols)) + SLACK
}

/// Returns the floats of workspace of [`rms_norm_grad`].
pub fn rms_norm_grad_workspace(rows: usize, cols: usize) -> usize {
    layer_norm_grad_workspace(rows, cols)
}

/// Gradients of [`layer_norm`]: dx `[T, D]`, and `d = acc * d + Σ_t` for gamma and beta where asked for.
#[allow(clippy::too_many_arguments)]
pub fn layer_norm_grad<'a>(
    pool: &Pool,
    x: impl Into<Rows<'a>>,
    gamma: Option<&[f32]>,
    eps: f32,
    dy: impl Into<Rows<'a>>,
    dx: impl Into<RowsMut<'a>>,
    acc: f32,
    dgamma: Option<&mut [f32]>,
    dbeta: Option<&mut [f32]>,
    ws: &mut [f32],
) {
    let x = x.into();
    let factor = gamma.map(|g| &g[..x.shape().1]);
    let affine = Affine { factor, plus: 0.0, shift: None, eps, center: true };
    norm_grad(pool, x, affine, dy.into(), dx.into(), acc, dgamma, dbeta, ws);
}

/// Gradients of [`rms_norm`].
#[allow(clippy::too_many_arguments)]
pub fn rms_norm_grad<'a>(
    pool: &Pool,
    x: impl Into<Rows<'a>>,
    gamma: &[f32],
    eps: f32,
    dy: impl Into<Rows<'a>>,
    dx: impl Into<RowsMut<'a>>,
    acc: f32,
    dgamma: Option<&mut [f32]>,
    ws: &mut [f32],
) {
    let x = x.into();
    let factor = Some(&gamma[..x.shape().1]);
    let affine = Affine { factor, plus: 0.0, shift: None, eps, center: false };
    norm_grad(pool, x, affine, dy.into(), dx.into(), acc, dgamma, None, ws);
}

#[allow(clippy::too_many_arguments)]
fn norm_grad(
    pool: &Pool,
    x: Rows,
    affine: Affine,
    dy: Rows,
    dx: RowsMut,
    acc: f32,
    dfactor: Option<&mut [f32]>,
    dshift: Option<&mut [f32]>,
    ws: &mut [f32],
) {
    let (rows, d) = x.shape();
    assert!((rows, d) == dy.shape() && (rows, d) == dx.shape());
    let (isa, count, stride) = (pool.isa(), tiles(rows), padded(d));
    let mut scratch = Scratch::new(ws);
    let width = |wanted: bool| if wanted { d } else { 0 };
    let (wf, wsh) = (width(dfactor.is_some()), width(dshift.is_some()));
    let factors = DisjointMut::new(scratch.take(count * stride));
    let shifts = DisjointMut::new(scratch.take(count * stride));
    pool.run(count, |i| {
        // SAFETY: one partial row per tile, one tile per task.
        let (df, ds) = unsafe { (factors.slice(i * stride, wf), shifts.slice(i * stride, wsh)) };
        df.fill(0.0);
        ds.fill(0.0);
        let mut s0 = Stage::new();
        let mut s1 = Stage::new();
        let mut s2 = Stage::new();
        for t in tile(rows, i) {
            let (x, dy) = (x.row(isa, t, &mut s0), dy.row(isa, t, &mut s1));
            // SAFETY: rows of different tiles are disjoint.
            unsafe { dx.write(isa, t, &mut s2, |dx| grad_row(isa, x, dy, &affine, dx, df, ds)) };
        }
    });
    // SAFETY: the tasks are over.
    let (factors, shifts) = unsafe { (factors.slice(0, count * stride), shifts.slice(0, count * stride)) };
    if let Some(out) = dfactor {
        reduce(pool, factors, stride, count, acc, &mut out[..d]);
    }
    if let Some(out) = dshift {
        reduce(pool, shifts, stride, count, acc, &mut out[..d]);
    }
}

/// `out = norm(x) * (1 + scale[s]) + shift[s]` with the layer norm of x `[T, D]` without affine, and tables scale, shift `[S, D]` of
/// each row's segment s. Rows of no segment are 0.
pub fn ada_layer_norm<'a>(
    pool: &Pool,
    x: impl Into<Rows<'a>>,
    seg: &[i32],
    scale: Mat,
    shift: Mat,
    eps: f32,
    out: impl Into<RowsMut<'a>>,
) {
    let (x, out) = (x.into(), out.into());
    let (rows, d) = x.shape();
    let st = SegmentTiles::new(seg, rows);
    let table = (st.segments(), d);
    assert!(x.shape() == out.shape());
    assert!((scale.rows, scale.cols) == table && (shift.rows, shift.cols) == table);
    let isa = pool.isa();
    pool.run(st.all(), |i| {
        let (s, rows) = st.get(i);
        let mut from = Stage::new();
        let mut to = Stage::new();
        for t in rows {
            let norm = |out: &mut [f32]| match s {
                None => out.fill(0.0),
                Some(s) => {
                    let affine = Affine {
                        factor: Some(scale.row(s)),
                        plus: 1.0,
                        shift: Some(shift.row(s)),
                        eps,
                        center: true,
                    };
                    norm_row(isa, x.row(isa, t, &mut from), &affine, out);
                }
            };
            // SAFETY: one task per row.
            unsafe { out.write(isa, t, &mut to, norm) };
        }
    });
}

/// Returns the floats of workspace of [`ada_layer_norm_grad`].
pub fn ada_layer_norm_grad_workspace(rows: usize, segments: usize, cols: usize) -> usize {
    2 * padded(SegmentTiles::most(rows, segments) * padded(cols)) + SLACK
}

/// Gradients of [`ada_layer_norm`]: dx `[T, D]` (0 for rows of no segment), dscale and dshift `[S, D]`.
#[allow(clippy::too_many_arguments)]
pub fn ada_layer_norm_grad<'a>(
    pool: &Pool,
    x: impl Into<Rows<'a>>,
    seg: &[i32],
    scale: Mat,
    eps: f32,
    dy: impl Into<Rows<'a>>,
    dx: impl Into<RowsMut<'a>>,
    dscale: impl Into<RowsMut<'a>>,
    dshift: impl Into<RowsMut<'a>>,
    ws: &mut [f32],
) {
    let (x, dy, dx, dscale, dshift) = (x.into(), dy.into(), dx.into(), dscale.into(), dshift.into());
    let (rows, d) = x.shape();
    let st = SegmentTiles::new(seg, rows);
    let table = (st.segments(), d);
    assert!((rows, d) == dy.shape() && (rows, d) == dx.shape());
    assert!((scale.rows, scale.cols) == table && dscale.shape() == table && dshift.shape() == table);
    let (isa, stride) = (pool.isa(), padded(d));
    let most = SegmentTiles::most(rows, table.0) * stride;
    let mut scratch = Scratch::new(ws);
    let scales = DisjointMut::new(scratch.take(most));
    let shifts = DisjointMut::new(scratch.take(most));
    pool.run(st.all(), |i| {
        let (s, rows) = st.get(i);
        let mut s0 = Stage::new();
        let mut s1 = Stage::new();
        let mut s2 = Stage::new();
        let Some(s) = s else {
            // SAFETY: one task per row.
            rows.for_each(|t| unsafe { dx.write(isa, t, &mut s2, |dx| dx.fill(0.0)) });
            return;
        };
        // SAFETY: one partial row per tile, one tile per task.
        let (df, ds) = unsafe { (scales.slice(i * stride, d), shifts.slice(i * stride, d)) };
        df.fill(0.0);
        ds.fill(0.0);
        let affine = Affine { factor: Some(scale.row(s)), plus: 1.0, shift: None, eps, center: true };
        for t in rows {
            let (x, dy) = (x.row(isa, t, &mut s0), dy.row(isa, t, &mut s1));
            // SAFETY: one task per row.
            unsafe { dx.write(isa, t, &mut s2, |dx| grad_row(isa, x, dy, &affine, dx, df, ds)) };
        }
    });
    // SAFETY: the tasks are over.
    let (scales, shifts) = unsafe { (scales.slice(0, most), shifts.slice(0, most)) };
    reduce_segments(pool, st, scales, stride, dscale);
    reduce_segments(pool, st, shifts, stride, dshift);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::MatMut;
    use crate::cpu::kernels::segment_of;
    use crate::cpu::kernels::testing::{Rng, check};

    /// Sums of up to a few hundred fp32 terms of order 1.
    const TOL: f32 = 2e-5;
    const EPS: f32 = 1e-6;

    /// One row in f64: y, dx, x̂.
    fn row(x: &[f32], dy: &[f32], factor: &[f64], shift: &[f64], center: bool) -> [Vec<f64>; 3] {
        let n = x.len() as f64;
        let x: Vec<f64> = x.iter().map(|&x| x as f64).collect();
        let mean = if center { x.iter().sum::<f64>() / n } else { 0.0 };
        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let rstd = 1.0 / (var + EPS as f64).sqrt();
        let hat: Vec<f64> = x.iter().map(|x| (x - mean) * rstd).collect();
        let y = (0..x.len()).map(|i| hat[i] * factor[i] + shift[i]).collect();
        let g: Vec<f64> = (0..x.len()).map(|i| dy[i] as f64 * factor[i]).collect();
        let mean_g = if center { g.iter().sum::<f64>() / n } else { 0.0 };
        let dot = g.iter().zip(&hat).map(|(a, b)| a * b).sum::<f64>() / n;
        let dx = (0..x.len()).map(|i| rstd * (g[i] - mean_g - hat[i] * dot)).collect();
        [y, dx, hat]
    }

    fn f32s(x: &[f64]) -> Vec<f32> {
        x.iter().map(|&x| x as f32).collect()
    }

    #[test]
    fn layer_and_rms_norm() {
        let mut rng = Rng::new(31);
        for (rows, d, center) in [(150, 37, true), (70, 64, false), (3, 5, true), (1, 1, false)] {
            let x: Vec<f32> = rng.vec(rows * d).iter().map(|x| x * 3.0 + 1.0).collect();
            let (dy, gamma, beta) = (rng.vec(rows * d), rng.vec(d), rng.vec(d));
            let (dg0, db0) = (rng.vec(d), rng.vec(d));
            let wide = |v: &[f32]| v.iter().map(|&v| v as f64).collect::<Vec<f64>>();
            let shift = if center { wide(&beta) } else { vec![0.0; d] };
            let (mut y, mut dx) = (Vec::new(), Vec::new());
            let mut dg: Vec<f64> = wide(&dg0).iter().map(|v| 0.5 * v).collect();
            let mut db: Vec<f64> = wide(&db0).iter().map(|v| 0.5 * v).collect();
            for t in 0..rows {
                let (xr, dyr) = (&x[t * d..][..d], &dy[t * d..][..d]);
                let [yr, dxr, hat] = row(xr, dyr, &wide(&gamma), &shift, center);
                y.extend(yr);
                dx.extend(dxr);
                for i in 0..d {
                    dg[i] += dyr[i] as f64 * hat[i];
                    db[i] += dyr[i] as f64;
                }
            }
            let mut want = [y, dx, dg].concat();
            if center {
                want.extend(db);
            }
            check(&f32s(&want), TOL, &format!("norm {rows}x{d} {center}"), |pool| {
                let (mut y, mut dx) = (vec![f32::NAN; rows * d], vec![f32::NAN; rows * d]);
                let mut dg = dg0.clone();
                let mut ws = vec![f32::NAN; layer_norm_grad_workspace(rows, d)];
                let (xm, dym) = (Mat::dense(&x, rows, d), Mat::dense(&dy, rows, d));
                let (ym, dxm) = (MatMut::dense(&mut y, rows, d), MatMut::dense(&mut dx, rows, d));
                if center {
                    layer_norm(pool, xm, Some(&gamma), Some(&beta), EPS, ym);
                    let (mut dgamma, mut dbeta) = (dg0.clone(), db0.clone());
                    let (dg, db) = (Some(&mut dgamma[..]), Some(&mut dbeta[..]));
                    layer_norm_grad(pool, xm, Some(&gamma), EPS, dym, dxm, 0.5, dg, db, &mut ws);
                    [y, dx, dgamma, dbeta].concat()
                } else {
                    rms_norm(pool, xm, &gamma, EPS, ym);
                    rms_norm_grad(pool, xm, &gamma, EPS, dym, dxm, 0.5, Some(&mut dg), &mut ws);
                    [y, dx, dg].concat()
                }
            });
        }
    }

    #[test]
    fn modulated() {
        let mut rng = Rng::new(32);
        let (rows, d, segments) = (230, 35, 5);
        let seg = [0, 0, 90, 91, 91, 220];
        let (x, dy) = (rng.vec(rows * d), rng.vec(rows * d));
        // Scale and shift are columns of one table.
        let table = rng.vec(segments * 2 * d);
        let (mut y, mut dx) = (vec![0.0; rows * d], vec![0.0; rows * d]);
        let mut grads = vec![0.0; segments * 2 * d];
        for t in 0..rows {
            let Some(s) = segment_of(&seg, t) else { continue };
            let mods = &table[s * 2 * d..][..2 * d];
            let factor: Vec<f64> = mods[..d].iter().map(|&v| 1.0 + v as f64).collect();
            let shift: Vec<f64> = mods[d..].iter().map(|&v| v as f64).collect();
            let dyr = &dy[t * d..][..d];
            let [yr, dxr, hat] = row(&x[t * d..][..d], dyr, &factor, &shift, true);
            y[t * d..][..d].copy_from_slice(&yr);
            dx[t * d..][..d].copy_from_slice(&dxr);
            for i in 0..d {
                grads[s * 2 * d + i] += dyr[i] as f64 * hat[i];
                grads[s * 2 * d + d + i] += dyr[i] as f64;
            }
        }
        check(&f32s(&[y, dx, grads].concat()), TOL, "modulated", |pool| {
            let (mut y, mut dx) = (vec![f32::NAN; rows * d], vec![f32::NAN; rows * d]);
            let mut grads = vec![f32::NAN; segments * 2 * d];
            let (xm, dym) = (Mat::dense(&x, rows, d), Mat::dense(&dy, rows, d));
            let all = Mat::dense(&table, segments, 2 * d);
            let (scale, shift) = (all.cols_range(0..d), all.cols_range(d..2 * d));
            ada_layer_norm(pool, xm, &seg, scale, shift, EPS, MatMut::dense(&mut y, rows, d));
            let (ds, dsh) = MatMut::dense(&mut grads, segments, 2 * d).split_cols(d);
            let mut ws = vec![f32::NAN; ada_layer_norm_grad_workspace(rows, segments, d)];
            let dxm = MatMut::dense(&mut dx, rows, d);
            ada_layer_norm_grad(pool, xm, &seg, scale, EPS, dym, dxm, ds, dsh, &mut ws);
            [y, dx, grads].concat()
        });
    }
}
