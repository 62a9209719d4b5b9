//! Kernels that cannot overwrite an operand, made to: each piece of the old content is staged on the stack first. The same
//! kernel does the arithmetic, so results have the same bits whether a plan shares bytes or not.

use super::{pieces, rows};
use crate::cpu::kernels::{DisjointMut, Pool};
use ambitus_ir::TensorType;

/// Elements staged at a time: 16 KiB of stack.
const STAGE: usize = 4096;

/// Calls `body(start, old, new)` for pieces of a result, `start` their index in storage, `old` what they held.
pub fn staged(pool: &Pool, ty: TensorType, out: &mut [f32], body: impl Fn(usize, &[f32], &mut [f32]) + Sync) {
    pieces(pool, ty, out, |start, out| {
        let mut stage = [0.0; STAGE];
        for (i, out) in out.chunks_mut(STAGE).enumerate() {
            let old = &mut stage[..out.len()];
            old.copy_from_slice(out);
            body(start + i * STAGE, old, out);
        }
    });
}

/// Runs `body(start, old a, old b, new a, new b)` for two results of one type. See [`staged`].
pub fn staged_pair(
    pool: &Pool,
    ty: TensorType,
    a: &mut [f32],
    b: &mut [f32],
    body: impl Fn(usize, [&[f32]; 2], [&mut [f32]; 2]) + Sync,
) {
    let shared = DisjointMut::new(b);
    pieces(pool, ty, a, |start, a| {
        let mut stage = [[0.0; STAGE]; 2];
        for (i, a) in a.chunks_mut(STAGE).enumerate() {
            let start = start + i * STAGE;
            // SAFETY: pieces of a are disjoint, and so are the same stretches of b.
            let b = unsafe { shared.slice(start, a.len()) };
            let [old_a, old_b] = stage.each_mut().map(|s| &mut s[..a.len()]);
            old_a.copy_from_slice(a);
            old_b.copy_from_slice(b);
            body(start, [old_a, old_b], [a, b]);
        }
    });
    if !ty.is_dense() {
        let shared = &shared;
        let (cols, pitch) = (ty.shape.cols(), ty.pitch);
        // SAFETY: the pads of one row per call, after the walk above.
        (0..ty.shape.rows()).for_each(|r| unsafe { shared.slice(r * pitch + cols, pitch - cols) }.fill(0.0));
    }
}

/// Runs `body(row, first column, old, new)` row by row. See [`staged`].
pub fn staged_rows(
    pool: &Pool,
    ty: TensorType,
    out: &mut [f32],
    body: impl Fn(usize, usize, &[f32], &mut [f32]) + Sync,
) {
    rows(pool, ty, out, |r, out| {
        let mut stage = [0.0; STAGE];
        for (i, out) in out.chunks_mut(STAGE).enumerate() {
            let old = &mut stage[..out.len()];
            old.copy_from_slice(out);
            body(r, i * STAGE, old, out);
        }
    });
}
