//! Reductions.

use super::{TILE, rows};
use crate::cpu::kernels::{DisjointMut, Pool};
use ambitus_ir::TensorType;
use ambitus_ir::ops::optim::PARTIAL;
use ambitus_ir::ops::reduce::ReduceKind;

/// Lanes of a sum: fixed, whatever the processor.
const LANES: usize = 16;

/// Returns the sum of `g` over a run, in fixed lanes that are added in double precision.
fn lanes(x: &[f32], g: impl Fn(f32) -> f32) -> f64 {
    let mut acc = [0.0f32; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        acc.iter_mut().zip(block).for_each(|(a, &x)| *a += g(x));
    }
    acc.iter_mut().zip(rest).for_each(|(a, &x)| *a += g(x));
    acc.iter().map(|&a| f64::from(a)).sum()
}

/// Combines along one axis of x, which keeps length 1 in the result (of type `ty`).
pub fn reduce(
    pool: &Pool,
    kind: ReduceKind,
    axis: usize,
    from: TensorType,
    ty: TensorType,
    x: &[f32],
    out: &mut [f32],
) {
    let rank = from.shape.len();
    let (cols, pitch) = (from.shape.cols(), from.pitch);
    if axis + 1 == rank {
        return rows(pool, ty, out, |r, out| {
            let row = &x[r * pitch..][..cols];
            out[0] = match kind {
                // Runs of a tile, so that long rows keep their precision.
                ReduceKind::Sum => row.chunks(PARTIAL).map(|run| lanes(run, |x| x)).sum::<f64>() as f32,
                ReduceKind::Max => row.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            };
        });
    }
    let inner: usize = from.shape[axis + 1..rank - 1].iter().product();
    let len = from.shape[axis];
    // Columns are cut too: a sum over rows has few results.
    let span = (TILE / len.max(1)).next_multiple_of(LANES).min(cols.max(1));
    let (parts, out_pitch) = (cols.div_ceil(span), ty.pitch);
    let shared = DisjointMut::new(out);
    pool.run(ty.shape.rows() * parts, |i| {
        let (r, c) = (i / parts, i % parts * span);
        let n = span.min(cols - c);
        let pad = if c + n == cols { out_pitch - cols } else { 0 };
        // SAFETY: a task's part of a row is its own; the last part takes the pad.
        let (out, pad) = unsafe { shared.slice(r * out_pitch + c, n + pad) }.split_at_mut(n);
        pad.fill(0.0);
        let (group, q) = (r / inner, r % inner);
        out.fill(match kind {
            ReduceKind::Sum => 0.0,
            ReduceKind::Max => f32::NEG_INFINITY,
        });
        for k in 0..len {
            let row = &x[((group * len + k) * inner + q) * pitch + c..][..n];
            match kind {
                ReduceKind::Sum => out.iter_mut().zip(row).for_each(|(o, &x)| *o += x),
                ReduceKind::Max => out.iter_mut().zip(row).for_each(|(o, &x)| *o = o.max(x)),
            }
        }
    });
}

/// Sums of squares of consecutive runs of [`PARTIAL`] elements, row-major without pads.
pub fn sum_squares(pool: &Pool, from: TensorType, x: &[f32], out: &mut [f32]) {
    let (cols, pitch, n) = (from.shape.cols(), from.pitch, from.shape.elements());
    let square = |x: f32| x * x;
    let shared = DisjointMut::new(out);
    let step = TILE / PARTIAL;
    let parts = n.div_ceil(PARTIAL);
    pool.run(parts.div_ceil(step), |i| {
        for part in i * step..parts.min((i + 1) * step) {
            let (mut at, end) = (part * PARTIAL, n.min((part + 1) * PARTIAL));
            let mut sum = 0.0;
            while at < end {
                let run = if pitch == cols { end - at } else { (cols - at % cols).min(end - at) };
                sum += lanes(&x[at / cols * pitch + at % cols..][..run], square);
                at += run;
            }
            // SAFETY: every partial sum belongs to one task.
            unsafe { shared.slice(part, 1)[0] = sum as f32 };
        }
    });
}

/// Returns the sum of all elements, row by row, in double precision.
pub fn total(from: TensorType, x: &[f32]) -> f64 {
    let (cols, pitch) = (from.shape.cols(), from.pitch);
    let row = |r: usize| x[r * pitch..][..cols].iter().map(|&x| f64::from(x)).sum::<f64>();
    (0..from.shape.rows()).map(row).sum()
}
