//! Ops that move elements.

use super::elementwise::word;
use super::{pieces, rows, runs_of_rows};
use crate::cpu::kernels::{DisjointMut, Pool};
use crate::cpu::operand::{Element, contiguous};
use ambitus_ir::{DType, Shape, TensorType};

/// A copy between two values seen as `outer` groups of rows: in each group, `rows` rows of `cols` elements.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    outer: usize,
    rows: usize,
    cols: usize,
    from: Side,
    to: Side,
}

/// Where a [`Block`]'s rows lie in one of the two values.
#[derive(Clone, Copy, Debug)]
struct Side {
    pitch: usize,
    /// Rows from one group to the next.
    step: usize,
    row: usize,
    col: usize,
    /// Elements written after `cols` (zeros), when the block holds a row's end.
    pad: usize,
}

/// Returns the (groups, rows in a group, elements in a row) of a part of a value along `axis`, `len` long.
fn groups(ty: TensorType, axis: usize, len: usize) -> (usize, usize, usize) {
    let rank = ty.shape.len();
    let outer: usize = ty.shape[..axis].iter().product();
    if axis + 1 == rank {
        (1, outer, len)
    } else {
        let inner: usize = ty.shape[axis + 1..rank - 1].iter().product();
        (outer, len * inner, ty.shape.cols())
    }
}

/// Returns where the part that starts at `start` along `axis` lies in a value.
fn side(ty: TensorType, axis: usize, start: usize, len: usize) -> Side {
    let rank = ty.shape.len();
    if axis + 1 == rank {
        let ends = start + len == ty.shape.cols();
        let pad = if ends { ty.pitch - ty.shape.cols() } else { 0 };
        Side { pitch: ty.pitch, step: 0, row: 0, col: start, pad }
    } else {
        let inner: usize = ty.shape[axis + 1..rank - 1].iter().product();
        let pad = ty.pitch - ty.shape.cols();
        Side { pitch: ty.pitch, step: ty.shape[axis] * inner, row: start * inner, col: 0, pad }
    }
}

impl Block {
    /// y = x[.., start.., ..] along `axis`.
    pub fn slice(x: TensorType, y: TensorType, axis: usize, start: usize) -> Block {
        let len = y.shape[axis];
        let (outer, rows, cols) = groups(y, axis, len);
        Block { outer, rows, cols, from: side(x, axis, start, len), to: side(y, axis, 0, len) }
    }

    /// y[.., start.., ..] = x along `axis`.
    pub fn insert(x: TensorType, y: TensorType, axis: usize, start: usize) -> Block {
        let len = x.shape[axis];
        let (outer, rows, cols) = groups(x, axis, len);
        Block { outer, rows, cols, from: side(x, axis, 0, len), to: side(y, axis, start, len) }
    }

    /// Copies; pads that the block reaches are zeroed.
    pub fn run<E: Element>(&self, pool: &Pool, x: &[E], y: &mut [E]) {
        let Block { outer, rows, cols, from, to } = *self;
        let shared = DisjointMut::new(y);
        let step = (super::TILE / to.pitch.max(1)).max(1);
        pool.run((outer * rows).div_ceil(step), |i| {
            for r in i * step..(outer * rows).min((i + 1) * step) {
                let (group, r) = (r / rows, r % rows);
                let at = |s: &Side| (group * s.step + s.row + r) * s.pitch + s.col;
                // SAFETY: every row belongs to one task, and parts of a row to one block.
                let row = unsafe { shared.slice(at(&to), cols + to.pad) };
                let (row, pad) = row.split_at_mut(cols);
                pad.fill(E::default());
                row.copy_from_slice(&x[at(&from)..][..cols]);
            }
        });
    }
}

/// Copies elements in row-major order to other axes.
pub fn reshape<E: Element>(pool: &Pool, from: TensorType, ty: TensorType, x: &[E], out: &mut [E]) {
    // What follows each other is one long row, however short those of its shape are.
    let whole = (from.shape.elements(), from.shape.elements());
    let (cols, pitch) = if contiguous(from) { whole } else { (from.shape.cols(), from.pitch) };
    pieces(pool, ty, out, |start, out| {
        let mut at = start / ty.pitch.max(1) * ty.shape.cols() + start % ty.pitch.max(1);
        let mut out = out;
        while !out.is_empty() {
            let (r, c) = (at / cols, at % cols);
            let n = out.len().min(cols - c);
            let (now, rest) = out.split_at_mut(n);
            now.copy_from_slice(&x[r * pitch + c..][..n]);
            at += n;
            out = rest;
        }
    });
}

/// Reshapes in place, where the result starts on the operand's first byte: `data` holds the longer of the two.
pub fn reshape_in_place<E: Element>(from: TensorType, ty: TensorType, data: &mut [E]) {
    // To dense, first row first: elements only move down. Then to the new pitch, last row first: they only move up.
    let n = from.shape.elements();
    if !contiguous(from) {
        let (cols, pitch) = (from.shape.cols(), from.pitch);
        (1..from.shape.rows()).for_each(|r| data.copy_within(r * pitch..r * pitch + cols, r * cols));
    }
    let (rows, cols, pitch) = (ty.shape.rows(), ty.shape.cols(), ty.pitch);
    if ty.is_dense() || n == 0 {
        return;
    }
    for r in (0..rows).rev() {
        data.copy_within(r * cols..(r + 1) * cols, r * pitch);
        data[r * pitch + cols..(r + 1) * pitch].fill(E::default());
    }
}

/// Distances in storage between neighbours along each axis.
fn strides(ty: TensorType) -> [usize; Shape::MAX_RANK] {
    let rank = ty.shape.len();
    let mut strides = [0; Shape::MAX_RANK];
    let mut step = 1;
    for axis in (0..rank).rev() {
        strides[axis] = step;
        step *= if axis + 1 == rank { ty.pitch } else { ty.shape[axis] };
    }
    strides
}

/// out[i] = x at the strides `by` of each of out's axes.
fn strided<E: Element>(pool: &Pool, ty: TensorType, by: [usize; Shape::MAX_RANK], x: &[E], out: &mut [E]) {
    let last = ty.shape.len().saturating_sub(1);
    runs_of_rows(pool, ty, out, |first, out| {
        // The place of the first row; those of the others are counted on from it.
        let (mut left, mut base, mut place) = (first, 0, [0; Shape::MAX_RANK]);
        for axis in (0..last).rev() {
            place[axis] = left % ty.shape[axis];
            base += place[axis] * by[axis];
            left /= ty.shape[axis];
        }
        for out in out.chunks_exact_mut(ty.pitch) {
            let (row, pad) = out.split_at_mut(ty.shape.cols());
            pad.fill(E::default());
            match by[last] {
                0 => row.fill(x[base]),
                1 => row.copy_from_slice(&x[base..][..row.len()]),
                step => row.iter_mut().zip(x[base..].iter().step_by(step)).for_each(|(o, x)| *o = *x),
            }
            for axis in (0..last).rev() {
                place[axis] += 1;
                base += by[axis];
                if place[axis] < ty.shape[axis] {
                    break;
                }
                base -= by[axis] * ty.shape[axis];
                place[axis] = 0;
            }
        }
    });
}

/// out's axis i is x's axis `axes[i]`.
pub fn permute<E: Element>(
    pool: &Pool,
    axes: &[usize],
    from: TensorType,
    ty: TensorType,
    x: &[E],
    out: &mut [E],
) {
    let all = strides(from);
    let mut by = [0; Shape::MAX_RANK];
    for (to, &axis) in by.iter_mut().zip(axes) {
        *to = all[axis];
    }
    strided(pool, ty, by, x, out);
}

/// Axes of length 1 repeated.
pub fn broadcast<E: Element>(pool: &Pool, from: TensorType, ty: TensorType, x: &[E], out: &mut [E]) {
    let mut by = strides(from);
    for (axis, step) in by.iter_mut().enumerate().take(ty.shape.len()) {
        if from.shape[axis] == 1 && ty.shape[axis] != 1 {
            *step = 0;
        }
    }
    strided(pool, ty, by, x, out);
}

/// x in reverse order along `axis`.
pub fn reverse<E: Element>(pool: &Pool, axis: usize, ty: TensorType, x: &[E], out: &mut [E]) {
    let (rank, n) = (ty.shape.len(), ty.shape[axis]);
    rows(pool, ty, out, |r, out| {
        if axis + 1 == rank {
            let from = &x[r * ty.pitch..][..out.len()];
            out.iter_mut().zip(from.iter().rev()).for_each(|(o, x)| *o = *x);
        } else {
            let inner: usize = ty.shape[axis + 1..rank - 1].iter().product();
            let at = r / inner % n;
            let from = r + (n - 1) * inner - 2 * at * inner;
            out.copy_from_slice(&x[from * ty.pitch..][..out.len()]);
        }
    });
}

/// 0, 1, 2, ... along `axis`.
pub fn iota(pool: &Pool, axis: usize, ty: TensorType, out: &mut [f32]) {
    let number = |i: usize| if ty.dtype == DType::I32 { word(i as i32) } else { i as f32 };
    let rank = ty.shape.len();
    rows(pool, ty, out, |r, out| {
        if axis + 1 == rank {
            out.iter_mut().enumerate().for_each(|(i, o)| *o = number(i));
        } else {
            let inner: usize = ty.shape[axis + 1..rank - 1].iter().product();
            out.fill(number(r / inner % ty.shape[axis]));
        }
    });
}

/// What a gathered row is where its id is outside.
pub enum Outside<'a, E> {
    /// Zeros.
    Zero,
    /// What is there.
    Kept,
    /// The row of this, which has the result's type.
    Of(&'a [E]),
}

/// out[t, :] = table[ids[t] - first, :].
pub fn gather<E: Element>(
    pool: &Pool,
    (table, first): (TensorType, usize),
    ty: TensorType,
    (x, outside): (&[E], Outside<'_, E>),
    ids: &[i32],
    out: &mut [E],
) {
    rows(pool, ty, out, |r, out| {
        let id = usize::try_from(ids[r]).ok().and_then(|id| id.checked_sub(first));
        match (id.filter(|id| *id < table.shape[0]), &outside) {
            (Some(id), _) => out.copy_from_slice(&x[id * table.pitch..][..out.len()]),
            (None, Outside::Zero) => out.fill(E::default()),
            (None, Outside::Kept) => {}
            (None, Outside::Of(before)) => out.copy_from_slice(&before[r * ty.pitch..][..out.len()]),
        }
    });
}

/// out[at[t], :] = x[t, :], where there is such a row.
pub fn write_rows<E: Element>((from, x): (TensorType, &[E]), at: &[i32], (to, out): (TensorType, &mut [E])) {
    let cols = from.shape.cols();
    for (t, at) in at.iter().enumerate() {
        if let Some(r) = usize::try_from(*at).ok().filter(|r| *r < to.shape[0]) {
            out[r * to.pitch..][..cols].copy_from_slice(&x[t * from.pitch..][..cols]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(ty: TensorType) -> Vec<f32> {
        let mut data = vec![0.0; ty.bytes() as usize / 4];
        for i in 0..ty.shape.elements() {
            data[i / ty.shape.cols() * ty.pitch + i % ty.shape.cols()] = 1.0 + i as f32;
        }
        data
    }

    #[test]
    fn reshape_agrees_in_and_out_of_place_for_all_pitches() {
        let pool = Pool::new(1).unwrap();
        let shapes: [&[usize]; 7] = [&[210], &[2, 105], &[3, 70], &[6, 35], &[70, 3], &[1, 210], &[5, 6, 7]];
        for from in shapes.map(TensorType::f32) {
            for to in shapes.map(TensorType::f32) {
                let mut out = vec![f32::NAN; to.bytes() as usize / 4];
                reshape(&pool, from, to, &storage(from), &mut out);
                assert_eq!(out, storage(to), "{from} to {to}");
                let mut data = storage(from);
                data.resize((from.bytes().max(to.bytes()) / 4) as usize, f32::NAN);
                reshape_in_place(from, to, &mut data);
                assert_eq!(data[..out.len()], out, "{from} to {to} in place");
            }
        }
    }
}
