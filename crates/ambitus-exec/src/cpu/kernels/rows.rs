//! Row operations: embedding, column sums, row factors, concatenation, sinusoids.

use super::map::{Map, map_slices};
use super::math::sin_cos;
use super::pool::DisjointMut;
use super::scratch::{SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};
use super::tiles::{reduce, tile, tiles};
use super::{Mat, MatMut, Pool, Rows, Stage};

/// Table rows per task of a scatter.
const SCATTER: usize = 128;

/// `out[t] = table[idx[t]]`; a negative index gives a zero row. Panics on an index beyond the table.
pub fn gather_rows(pool: &Pool, table: Mat, idx: &[i32], out: MatMut) {
    assert!(idx.len() == out.rows && table.cols == out.cols);
    check_indices(idx, table.rows);
    pool.run(tiles(out.rows), |i| {
        for t in tile(out.rows, i) {
            // SAFETY: one task per row.
            let out = unsafe { out.row_shared(t) };
            match usize::try_from(idx[t]) {
                Ok(row) => out.copy_from_slice(table.row(row)),
                Err(_) => out.fill(0.0),
            }
        }
    });
}

fn check_indices(idx: &[i32], rows: usize) {
    if let Some(bad) = idx.iter().find(|&&i| i >= 0 && i as usize >= rows) {
        panic!("row index {bad} in a table of {rows} rows");
    }
}

/// Gradient of [`gather_rows`]: `dtable = acc * dtable`, then `dtable[idx[t] - first] += dy[t]` in the order of t; indices outside the table are left out.
pub fn scatter_add_rows<'a>(
    pool: &Pool,
    (idx, first): (&[i32], usize),
    dy: impl Into<Rows<'a>>,
    acc: f32,
    dtable: MatMut,
) {
    let dy = dy.into();
    assert!((idx.len(), dtable.cols) == dy.shape());
    let isa = pool.isa();
    pool.run(dtable.rows.div_ceil(SCATTER), |i| {
        let own = i * SCATTER..dtable.rows.min((i + 1) * SCATTER);
        for r in own.clone() {
            // SAFETY: one task per table row.
            let row = unsafe { dtable.row_shared(r) };
            if acc == 0.0 {
                row.fill(0.0);
            } else if acc != 1.0 {
                row.iter_mut().for_each(|v| *v *= acc);
            }
        }
        let mut stage = Stage::new();
        for (t, &r) in idx.iter().enumerate() {
            let row = usize::try_from(r).ok().and_then(|r| r.checked_sub(first));
            if let Some(row) = row.filter(|row| own.contains(row)) {
                // SAFETY: one task per table row.
                add_row(isa, dy.row(isa, t, &mut stage), unsafe { dtable.row_shared(row) });
            }
        }
    });
}

dispatch! { fn add_row(x: &[f32], sum: &mut [f32]) = add_row_body }

#[inline(always)]
fn add_row_body<S: Simd>(s: S, x: &[f32], sum: &mut [f32]) {
    each_vector!(S, sum.len(), |at| {
        let v = s.add(at.load(s, x), at.load(s, sum));
        at.store(s, sum, v);
    });
}

/// Returns the floats of workspace of [`column_sum`].
pub fn column_sum_workspace(rows: usize, cols: usize) -> usize {
    tiles(rows) * padded(cols) + SLACK
}

/// `out[c] = acc * out[c] + Σ_t x[t, c]` (gradient of a bias).
pub fn column_sum<'a>(pool: &Pool, x: impl Into<Rows<'a>>, acc: f32, out: &mut [f32], ws: &mut [f32]) {
    let x = x.into();
    let (rows, cols) = x.shape();
    let (isa, count, stride) = (pool.isa(), tiles(rows), padded(cols));
    let partial = DisjointMut::new(Scratch::new(ws).take(count * stride));
    pool.run(count, |i| {
        // SAFETY: one tile per task.
        let sum = unsafe { partial.slice(i * stride, cols) };
        sum.fill(0.0);
        let mut stage = Stage::new();
        for t in tile(rows, i) {
            add_row(isa, x.row(isa, t, &mut stage), sum);
        }
    });
    // SAFETY: the tasks are over.
    let partial = unsafe { partial.slice(0, count * stride) };
    reduce(pool, partial, stride, count, acc, &mut out[..cols]);
}

struct ScaleBy(f32);
impl Map<1, 1> for ScaleBy {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [x]: [S::V; 1], _: [S::V; 1]) -> [S::V; 1] {
        [s.mul(x, s.splat(self.0))]
    }
}

/// `out[t] = factors[t] * x[t]`; a factor 0 gives 0 also for x that is not finite.
pub fn scale_rows(pool: &Pool, x: Mat, factors: &[f32], out: MatMut) {
    assert!((x.rows, x.cols) == (out.rows, out.cols) && factors.len() == x.rows);
    let isa = pool.isa();
    pool.run(tiles(x.rows), |i| {
        for t in tile(x.rows, i) {
            // SAFETY: one task per row.
            let out = unsafe { out.row_shared(t) };
            if factors[t] == 0.0 {
                out.fill(0.0);
            } else {
                map_slices(isa, &ScaleBy(factors[t]), [x.row(t)], [out]);
            }
        }
    });
}

/// Lays the parts' columns side by side: out [T, Σ cols]. One part copies; a part may be a column range ([`Mat::cols_range`]).
pub fn concat_cols(pool: &Pool, parts: &[Mat], out: MatMut) {
    let cols: usize = parts.iter().map(|p| p.cols).sum();
    assert!(cols == out.cols && parts.iter().all(|p| p.rows == out.rows));
    pool.run(tiles(out.rows), |i| {
        for t in tile(out.rows, i) {
            // SAFETY: one task per row.
            let mut rest = unsafe { out.row_shared(t) };
            for part in parts {
                let (to, after) = rest.split_at_mut(part.cols);
                to.copy_from_slice(part.row(t));
                rest = after;
            }
        }
    });
}

/// Order of the halves of a sinusoid row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinusoidOrder {
    /// `[sin | cos]`
    SinCos,
    /// `[cos | sin]`
    CosSin,
}

/// `out[t] = [sin(p f) | cos(p f)]` (or the other order) of position p = `positions[t]` and every frequency f; out `[T, 2 F]`, |p f| < 9000.
pub fn sinusoid(pool: &Pool, positions: &[f32], freqs: &[f32], order: SinusoidOrder, out: MatMut) {
    assert!(out.rows == positions.len() && out.cols == 2 * freqs.len());
    let isa = pool.isa();
    pool.run(tiles(out.rows), |i| {
        for t in tile(out.rows, i) {
            // SAFETY: one task per row.
            let row = unsafe { out.row_shared(t) };
            let (left, right) = row.split_at_mut(freqs.len());
            match order {
                SinusoidOrder::SinCos => sinusoid_row(isa, positions[t], freqs, left, right),
                SinusoidOrder::CosSin => sinusoid_row(isa, positions[t], freqs, right, left),
            }
        }
    });
}

dispatch! { fn sinusoid_row(p: f32, freqs: &[f32], sin: &mut [f32], cos: &mut [f32]) = sinusoid_row_body }

#[inline(always)]
fn sinusoid_row_body<S: Simd>(s: S, p: f32, freqs: &[f32], sin: &mut [f32], cos: &mut [f32]) {
    let p = s.splat(p);
    each_vector!(S, freqs.len(), |at| {
        let (a, b) = sin_cos(s, s.mul(p, at.load(s, freqs)));
        at.store(s, sin, a);
        at.store(s, cos, b);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, check};

    /// Sums of up to a few hundred fp32 terms of order 1.
    const TOL: f32 = 1e-5;

    #[test]
    fn embedding_and_its_gradient() {
        let mut rng = Rng::new(81);
        let (v, d, t) = (300, 13, 150);
        let idx: Vec<i32> = (0..t)
            .map(|i| if i % 7 == 0 { -1 } else { rng.below(if i < 50 { 3 } else { v }) as i32 })
            .collect();
        let (table, dy, grad0) = (rng.vec(v * d), rng.vec(t * d), rng.vec(v * d));
        for acc in [0.0, 1.0, 0.5] {
            let mut rows = vec![0.0; t * d];
            let mut grad: Vec<f32> = grad0.iter().map(|g| g * acc).collect();
            for (i, &row) in idx.iter().enumerate().filter(|(_, r)| **r >= 0) {
                for c in 0..d {
                    rows[i * d + c] = table[row as usize * d + c];
                    grad[row as usize * d + c] += dy[i * d + c];
                }
            }
            check(&[rows, grad].concat(), TOL, "embedding", |pool| {
                let mut rows = vec![f32::NAN; t * d];
                let mut grad = if acc == 0.0 { vec![f32::NAN; v * d] } else { grad0.clone() };
                gather_rows(pool, Mat::dense(&table, v, d), &idx, MatMut::dense(&mut rows, t, d));
                scatter_add_rows(pool, (&idx, 0), Mat::dense(&dy, t, d), acc, MatMut::dense(&mut grad, v, d));
                [rows, grad].concat()
            });
        }
    }

    #[test]
    fn sums_factors_and_columns() {
        let mut rng = Rng::new(82);
        let (t, d, pitch) = (201, 19, 24);
        let (x, f, sum0) = (rng.vec(t * pitch), rng.vec(t), rng.vec(d));
        let sum = (0..d).map(|c| 0.5 * sum0[c] + (0..t).map(|r| x[r * pitch + c] as f64).sum::<f64>() as f32);
        let mut scaled = vec![0.0; t * pitch];
        let mut joined = vec![0.0; t * pitch];
        for r in 0..t {
            for c in 0..d {
                scaled[r * pitch + c] = f[r] * x[r * pitch + c];
                joined[r * pitch + (c + d - 6) % d] = x[r * pitch + c];
            }
        }
        let want = [sum.collect(), scaled, joined].concat();
        check(&want, TOL, "rows", |pool| {
            let xm = Mat::new(&x, t, d, pitch);
            let mut sum = sum0.clone();
            let mut ws = vec![f32::NAN; column_sum_workspace(t, d)];
            column_sum(pool, xm, 0.5, &mut sum, &mut ws);
            let (mut scaled, mut joined) = (vec![f32::NAN; t * pitch], vec![f32::NAN; t * pitch]);
            scale_rows(pool, xm, &f, MatMut::new(&mut scaled, t, d, pitch));
            let parts = [xm.cols_range(6..d), xm.cols_range(0..6)];
            concat_cols(pool, &parts, MatMut::new(&mut joined, t, d, pitch));
            [sum, scaled, joined].concat()
        });
    }

    #[test]
    fn sinusoids() {
        let freqs: Vec<f32> = (0..21).map(|i| 1e4f32.powf(-i as f32 / 20.0)).collect();
        let positions = [0.0, 0.5, 1.0, 77.0, 1000.0];
        let angle = |p: f32, f: f32| (p * f) as f64;
        for order in [SinusoidOrder::SinCos, SinusoidOrder::CosSin] {
            let want: Vec<f32> = positions
                .iter()
                .flat_map(|&p| {
                    let sin = freqs.iter().map(move |&f| angle(p, f).sin() as f32);
                    let cos = freqs.iter().map(move |&f| angle(p, f).cos() as f32);
                    match order {
                        SinusoidOrder::SinCos => sin.chain(cos).collect::<Vec<f32>>(),
                        SinusoidOrder::CosSin => cos.chain(sin).collect(),
                    }
                })
                .collect();
            check(&want, 1e-6, "sinusoid", |pool| {
                let mut out = vec![f32::NAN; 5 * 42];
                sinusoid(pool, &positions, &freqs, order, MatMut::dense(&mut out, 5, 42));
                out
            });
        }
    }
}
