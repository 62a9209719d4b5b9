//! Residual connection with a per-segment gate (AdaLN-zero, Peebles & Xie, arXiv 2212.09748).

use super::pool::DisjointMut;
use super::scratch::{SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};
use super::tiles::{SegmentTiles, reduce_segments};
use super::{Mat, MatMut, Pool, Rows, RowsMut, Stage};

dispatch! { fn forward_row(x: &[f32], y: &[f32], gate: &[f32], out: &mut [f32]) = forward_row_body }

#[inline(always)]
fn forward_row_body<S: Simd>(s: S, x: &[f32], y: &[f32], gate: &[f32], out: &mut [f32]) {
    each_vector!(S, out.len(), |at| {
        let v = s.fma(at.load(s, gate), at.load(s, y), at.load(s, x));
        at.store(s, out, v);
    });
}

dispatch! { fn grad_row(y: &[f32], gate: &[f32], dout: &[f32], dy: &mut [f32], dgate: &mut [f32]) = grad_row_body }

#[inline(always)]
fn grad_row_body<S: Simd>(s: S, y: &[f32], gate: &[f32], dout: &[f32], dy: &mut [f32], dgate: &mut [f32]) {
    each_vector!(S, dy.len(), |at| {
        let d = at.load(s, dout);
        at.store(s, dy, s.mul(at.load(s, gate), d));
        let sum = s.fma(d, at.load(s, y), at.load(s, dgate));
        at.store(s, dgate, sum);
    });
}

/// `out = x + gate[s] * y`; x, y, out `[T, D]`, gate `[S, D]` by the row's segment s. Rows of no segment are 0.
pub fn gated_residual(pool: &Pool, x: Mat, y: Mat, gate: Mat, seg: &[i32], out: MatMut) {
    let st = SegmentTiles::new(seg, x.rows);
    let shape = (x.rows, x.cols);
    assert!((y.rows, y.cols) == shape && (out.rows, out.cols) == shape);
    assert!((gate.rows, gate.cols) == (st.segments(), x.cols));
    let isa = pool.isa();
    pool.run(st.all(), |i| {
        let (s, rows) = st.get(i);
        for t in rows {
            // SAFETY: one task per row.
            let out = unsafe { out.row_shared(t) };
            match s {
                Some(s) => forward_row(isa, x.row(t), y.row(t), gate.row(s), out),
                None => out.fill(0.0),
            }
        }
    });
}

/// Returns the floats of workspace of [`gated_residual_grad`].
pub fn gated_residual_grad_workspace(rows: usize, segments: usize, cols: usize) -> usize {
    padded(SegmentTiles::most(rows, segments) * padded(cols)) + SLACK
}

/// Gradients of [`gated_residual`]: `dy = gate[s] * dout` (0 for rows of no segment), `dgate[s] = Σ_t dout * y`. (dx is dout.)
#[allow(clippy::too_many_arguments)]
pub fn gated_residual_grad<'a>(
    pool: &Pool,
    y: impl Into<Rows<'a>>,
    gate: Mat,
    seg: &[i32],
    dout: impl Into<Rows<'a>>,
    dy: impl Into<RowsMut<'a>>,
    dgate: impl Into<RowsMut<'a>>,
    ws: &mut [f32],
) {
    let (y, dout, dy, dgate) = (y.into(), dout.into(), dy.into(), dgate.into());
    let (rows, d) = y.shape();
    let st = SegmentTiles::new(seg, rows);
    assert!(dout.shape() == (rows, d) && dy.shape() == (rows, d));
    assert!((gate.rows, gate.cols) == (st.segments(), d) && dgate.shape() == (st.segments(), d));
    let (isa, stride) = (pool.isa(), padded(d));
    let most = SegmentTiles::most(rows, st.segments()) * stride;
    let partial = DisjointMut::new(Scratch::new(ws).take(most));
    pool.run(st.all(), |i| {
        let (s, rows) = st.get(i);
        let mut s0 = Stage::new();
        let mut s1 = Stage::new();
        let mut s2 = Stage::new();
        let Some(s) = s else {
            // SAFETY: one task per row.
            rows.for_each(|t| unsafe { dy.write(isa, t, &mut s2, |dy| dy.fill(0.0)) });
            return;
        };
        // SAFETY: one partial row per tile, one tile per task.
        let sum = unsafe { partial.slice(i * stride, d) };
        sum.fill(0.0);
        for t in rows {
            let (y, dout) = (y.row(isa, t, &mut s0), dout.row(isa, t, &mut s1));
            // SAFETY: one task per row.
            unsafe { dy.write(isa, t, &mut s2, |dy| grad_row(isa, y, gate.row(s), dout, dy, sum)) };
        }
    });
    // SAFETY: the tasks are over.
    reduce_segments(pool, st, unsafe { partial.slice(0, most) }, stride, dgate);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::segment_of;
    use crate::cpu::kernels::testing::{Rng, check};

    /// Sums of up to a hundred fp32 products of order 1.
    const TOL: f32 = 1e-5;

    #[test]
    fn forward_and_gradient() {
        let mut rng = Rng::new(41);
        let (rows, d, segments) = (200, 21, 4);
        let seg = [0, 70, 70, 150, 190];
        let (x, y, dout) = (rng.vec(rows * d), rng.vec(rows * d), rng.vec(rows * d));
        let gate = rng.vec(segments * d);
        let (mut out, mut dy) = (vec![0.0; rows * d], vec![0.0; rows * d]);
        let mut dgate = vec![0f64; segments * d];
        for t in 0..rows {
            let Some(s) = segment_of(&seg, t) else { continue };
            for c in 0..d {
                let (i, g) = (t * d + c, s * d + c);
                out[i] = x[i] + gate[g] * y[i];
                dy[i] = gate[g] * dout[i];
                dgate[g] += dout[i] as f64 * y[i] as f64;
            }
        }
        let dgate: Vec<f32> = dgate.iter().map(|&v| v as f32).collect();
        check(&[out, dy, dgate].concat(), TOL, "gated residual", |pool| {
            let mut all = [vec![f32::NAN; rows * d], vec![f32::NAN; rows * d], vec![f32::NAN; segments * d]];
            let [out, dy, dgate] = &mut all;
            let m = |v| Mat::dense(v, rows, d);
            let gm = Mat::dense(&gate, segments, d);
            gated_residual(pool, m(&x), m(&y), gm, &seg, MatMut::dense(out, rows, d));
            let mut ws = vec![f32::NAN; gated_residual_grad_workspace(rows, segments, d)];
            let (dy, dgate) = (MatMut::dense(dy, rows, d), MatMut::dense(dgate, segments, d));
            gated_residual_grad(pool, m(&y), gm, &seg, m(&dout), dy, dgate, &mut ws);
            all.concat()
        });
    }
}
