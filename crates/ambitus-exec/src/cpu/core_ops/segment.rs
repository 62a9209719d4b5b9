//! Ops on segment tables, and the small tables of sinusoids and frequencies.

use super::elementwise::word;
use super::rows;
use crate::cpu::kernels::{DisjointMut, Pool, Rows, Stage, segment, segment_of};
use crate::cpu::operand::Element;
use ambitus_ir::TensorType;
use ambitus_ir::ops::index::{Sinusoid, SinusoidKind};

/// The segment of every row, or -1.
pub fn ids(seg: &[i32], out: &mut [f32]) {
    out.fill(word(-1));
    for s in 0..seg.len() - 1 {
        out[segment(seg, s)].fill(word(s as i32));
    }
}

/// Every row's index within its segment, 0 for rows of none.
pub fn positions(seg: &[i32], out: &mut [f32]) {
    out.fill(0.0);
    for s in 0..seg.len() - 1 {
        out[segment(seg, s)].iter_mut().enumerate().for_each(|(i, o)| *o = i as f32);
    }
}

/// out[t, :] = table[segment of t, :], zero for rows of no segment.
pub fn broadcast<E: Element>(
    pool: &Pool,
    table: TensorType,
    ty: TensorType,
    x: &[E],
    seg: &[i32],
    out: &mut [E],
) {
    rows(pool, ty, out, |t, out| match segment_of(seg, t) {
        Some(s) => out.copy_from_slice(&x[s * table.pitch..][..out.len()]),
        None => out.fill(E::default()),
    });
}

/// out[s, :] = sum of the rows of segment s, in order; `ty` is the result's type.
pub fn sum(pool: &Pool, ty: TensorType, x: Rows, seg: &[i32], out: &mut [f32]) {
    /// Columns of one task.
    const SPAN: usize = 64;
    let (cols, pitch) = (ty.shape.cols(), ty.pitch);
    let parts = cols.div_ceil(SPAN);
    let shared = DisjointMut::new(out);
    pool.run(ty.shape.rows() * parts, |i| {
        let (s, c) = (i / parts, i % parts * SPAN);
        let n = SPAN.min(cols - c);
        let pad = if c + n == cols { pitch - cols } else { 0 };
        // SAFETY: a task's part of a row is its own; the last part takes the pad.
        let (out, pad) = unsafe { shared.slice(s * pitch + c, n + pad) }.split_at_mut(n);
        pad.fill(0.0);
        out.fill(0.0);
        let mut stage = Stage::new();
        for t in segment(seg, s) {
            let row = x.part(pool.isa(), t, c, n, &mut stage);
            out.iter_mut().zip(row).for_each(|(o, &x)| *o += x);
        }
    });
}

/// Frequencies of a [`Sinusoid`], each step rounded to f32 as its documentation says.
pub fn frequencies(op: &Sinusoid) -> Vec<f32> {
    let half = op.half;
    let base = f64::from(op.base);
    let one = |i: usize| match op.kind {
        SinusoidKind::SinCos => {
            let step = (-base.ln() / (half as f64 - 1.0)) as f32;
            f64::from(i as f32 * step).exp() as f32
        }
        SinusoidKind::CosSin => 1.0 / base.powf(f64::from(i as f32 / half as f32)) as f32,
    };
    (0..half).map(one).collect()
}

/// Inverse frequencies base^(-2i / dim), in double precision, rounded once.
pub fn rotary_frequencies(dim: usize, base: f64, out: &mut [f32]) {
    for (i, o) in out.iter_mut().enumerate() {
        *o = base.powf(-((2 * i) as f64) / dim as f64) as f32;
    }
}
