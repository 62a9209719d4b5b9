//! Depthwise convolution: one channel per group, vectors run over channels.

use super::Conv1d;
use crate::cpu::kernels::pool::DisjointMut;
use crate::cpu::kernels::scratch::{Scratch, padded};
use crate::cpu::kernels::simd::{At, Simd, dispatch, each_vector};
use crate::cpu::kernels::tiles::{SegmentTiles, reduce};
use crate::cpu::kernels::{Mat, MatMut, Pool, segment};

/// Returns the floats of the transposed weights, the summed gradient, or the partial gradients per tile.
pub fn workspace(spec: &Conv1d, rows: usize, segments: usize) -> usize {
    let taps = spec.kernel * padded(spec.cin);
    taps + padded(SegmentTiles::most(rows, segments) * taps)
}

/// The convolution; `reversed` takes the taps from the last.
#[allow(clippy::too_many_arguments)]
pub fn forward(
    pool: &Pool,
    x: Mat,
    seg: &[i32],
    w: &[f32],
    bias: Option<&[f32]>,
    spec: &Conv1d,
    reversed: bool,
    out: MatMut,
    mut scratch: Scratch,
) {
    let st = SegmentTiles::new(seg, x.rows);
    let (isa, c, k) = (pool.isa(), spec.cin, spec.kernel);
    let stride = padded(c);
    // [k, c]
    let taps = scratch.take(k * stride);
    for (j, row) in taps.chunks_exact_mut(stride).enumerate() {
        let j = if reversed { k - 1 - j } else { j };
        for (i, v) in row[..c].iter_mut().enumerate() {
            *v = w[i * k + j];
        }
    }
    let taps = Mat::new(taps, k, c, stride);
    pool.run(st.all(), |i| {
        let (s, rows) = st.get(i);
        for t in rows {
            // SAFETY: one task per row.
            let out = unsafe { out.row_shared(t) };
            match s {
                None => out.fill(0.0),
                Some(s) => {
                    let near = Window::of(spec, &segment(seg, s), t);
                    forward_row(isa, x, near, taps, bias, out);
                }
            }
        }
    });
}

/// The taps whose row is inside the segment: tap `first + i` meets row `row + i`, for i below `n`.
#[derive(Clone, Copy)]
struct Window {
    first: usize,
    row: usize,
    n: usize,
}

impl Window {
    fn of(spec: &Conv1d, inside: &std::ops::Range<usize>, t: usize) -> Self {
        let first = (inside.start + spec.pad_left).saturating_sub(t);
        let row = t + first - spec.pad_left;
        let n = (spec.kernel - first).min(inside.end - row);
        Window { first, row, n }
    }
}

dispatch! { fn forward_row(x: Mat, near: Window, taps: Mat, bias: Option<&[f32]>, out: &mut [f32]) = forward_row_body }

#[inline(always)]
fn forward_row_body<S: Simd>(s: S, x: Mat, near: Window, taps: Mat, bias: Option<&[f32]>, out: &mut [f32]) {
    each_vector!(S, out.len(), |at| {
        let mut sum = match bias {
            Some(bias) => at.load(s, bias),
            None => s.zero(),
        };
        for i in 0..near.n {
            let w = at.load(s, taps.row(near.first + i));
            sum = s.fma(at.load(s, x.row(near.row + i)), w, sum);
        }
        at.store(s, out, sum);
    });
}

#[allow(clippy::too_many_arguments)]
pub fn grad_weight(
    pool: &Pool,
    x: Mat,
    dy: Mat,
    seg: &[i32],
    spec: &Conv1d,
    acc: f32,
    dw: &mut [f32],
    mut scratch: Scratch,
) {
    let st = SegmentTiles::new(seg, x.rows);
    let (isa, c, k) = (pool.isa(), spec.cin, spec.kernel);
    let stride = padded(c);
    let size = k * stride;
    let sum = scratch.take(size);
    let partial = DisjointMut::new(scratch.take(st.inside() * size));
    pool.run(st.inside(), |i| {
        let (Some(s), rows) = st.get(i) else { return };
        // SAFETY: one tile's partial sums per task.
        let part = unsafe { partial.slice(i * size, size) };
        part.fill(0.0);
        for t in rows {
            let near = Window::of(spec, &segment(seg, s), t);
            grad_weight_row(isa, x, near, dy.row(t), part, stride);
        }
    });
    // SAFETY: the tasks are over.
    let partial = unsafe { partial.slice(0, st.inside() * size) };
    reduce(pool, partial, size, st.inside(), 0.0, sum);
    for (i, taps) in dw.chunks_exact_mut(k).enumerate() {
        for (j, v) in taps.iter_mut().enumerate() {
            let g = sum[j * stride + i];
            *v = if acc == 0.0 { g } else { acc * *v + g };
        }
    }
}

dispatch! { fn grad_weight_row(x: Mat, near: Window, dy: &[f32], sums: &mut [f32], stride: usize) = grad_weight_row_body }

#[inline(always)]
fn grad_weight_row_body<S: Simd>(s: S, x: Mat, near: Window, dy: &[f32], sums: &mut [f32], stride: usize) {
    for i in 0..near.n {
        let sum = &mut sums[(near.first + i) * stride..][..dy.len()];
        let row = x.row(near.row + i);
        each_vector!(S, dy.len(), |at| {
            let v = s.fma(at.load(s, dy), at.load(s, row), at.load(s, sum));
            at.store(s, sum, v);
        });
    }
}
