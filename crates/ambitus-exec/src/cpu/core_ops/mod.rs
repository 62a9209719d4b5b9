//! Kernels of the core ops: plain loops over fixed pieces, parallel, the same bits at any thread count.
//!
//! Slices here are a value's whole storage, pads included; results' pads are written as zero. Movement ops copy
//! elements of a width whatever they mean, so they serve all types alike. Arithmetic is `f32`; [`narrow`] brings 16-bit
//! values to it.

pub mod elementwise;
pub mod flat;
pub mod in_place;
pub mod layout;
pub mod narrow;
pub mod reduce;
pub mod segment;

use super::kernels::{DisjointMut, Pool};
use super::operand::Element;
use ambitus_ir::TensorType;

/// Elements of one task. Fixed, so that cuts never depend on the number of threads.
pub const TILE: usize = 16 * 1024;

/// Cuts a result into runs of elements that follow each other and calls `body(start, run)` for each, `start` the run's
/// index in storage; pads are zeroed here.
pub fn pieces<E: Element>(pool: &Pool, ty: TensorType, out: &mut [E], body: impl Fn(usize, &mut [E]) + Sync) {
    let (rows, cols, pitch) = (ty.shape.rows(), ty.shape.cols(), ty.pitch);
    let shared = DisjointMut::new(out);
    if ty.is_dense() {
        let len = rows * cols;
        return pool.run(len.div_ceil(TILE), |i| {
            let start = i * TILE;
            // SAFETY: one piece per task.
            body(start, unsafe { shared.slice(start, TILE.min(len - start)) });
        });
    }
    let step = (TILE / pitch).max(1);
    pool.run(rows.div_ceil(step), |i| {
        for r in i * step..rows.min((i + 1) * step) {
            // SAFETY: every row belongs to one task.
            let (row, pad) = unsafe { shared.slice(r * pitch, pitch) }.split_at_mut(cols);
            pad.fill(E::default());
            body(r * pitch, row);
        }
    });
}

/// Calls `body(r, row)` for every row of the last axis; pads are zeroed here.
pub fn rows<E: Element>(pool: &Pool, ty: TensorType, out: &mut [E], body: impl Fn(usize, &mut [E]) + Sync) {
    let (cols, pitch) = (ty.shape.cols(), ty.pitch);
    runs_of_rows(pool, ty, out, |first, out| {
        for (i, row) in out.chunks_exact_mut(pitch).enumerate() {
            let (row, pad) = row.split_at_mut(cols);
            pad.fill(E::default());
            body(first + i, row);
        }
    });
}

/// Calls `body(r, rows)` for runs of neighbouring rows of the last axis with their pads, which are its to zero; r is a run's first.
pub fn runs_of_rows<E: Element>(
    pool: &Pool,
    ty: TensorType,
    out: &mut [E],
    body: impl Fn(usize, &mut [E]) + Sync,
) {
    let (rows, pitch) = (ty.shape.rows(), ty.pitch);
    if pitch == 0 {
        return;
    }
    let shared = DisjointMut::new(out);
    let step = (TILE / pitch).max(1);
    pool.run(rows.div_ceil(step), |i| {
        let first = i * step;
        // SAFETY: every row belongs to one task.
        body(first, unsafe { shared.slice(first * pitch, step.min(rows - first) * pitch) });
    });
}
