//! 16-bit elements: how they become `f32` and back, and matrices whose rows are read and written as `f32` whatever they
//! are stored as.
//!
//! Kernels compute in `f32`. A row stored in 16 bits is widened into a [`Stage`] on the task's stack, or rounded from one
//! to its place, once (to nearest, ties to even); a row of `f32` is used where it lies.

use super::simd::{Simd, dispatch};
use super::{Isa, Mat, MatMut};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use std::mem::MaybeUninit;

/// A 16-bit element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
}

impl Half {
    /// to = x, exactly.
    #[inline]
    pub fn widen(self, isa: Isa, x: &[u16], to: &mut [f32]) {
        let x = &x[..to.len()];
        match self {
            Half::Bf16 => widen_bf16(isa, x, to),
            Half::F16 => x.reinterpret_cast::<half::f16>().convert_to_f32_slice(to),
        }
    }

    /// to = x, rounded to nearest, ties to even.
    #[inline]
    pub fn narrow(self, isa: Isa, x: &[f32], to: &mut [u16]) {
        let x = &x[..to.len()];
        match self {
            Half::Bf16 => narrow_bf16(isa, x, to),
            Half::F16 => to.reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(x),
        }
    }

    /// One number's bits.
    pub fn bits(self, x: f32) -> u16 {
        match self {
            Half::Bf16 => bf16_bits(x),
            Half::F16 => half::f16::from_f32(x).to_bits(),
        }
    }
}

dispatch! { fn widen_bf16(x: &[u16], to: &mut [f32]) = widen_bf16_body }
dispatch! { fn narrow_bf16(x: &[f32], to: &mut [u16]) = narrow_bf16_body }

#[inline(always)]
fn widen_bf16_body<S: Simd>(_: S, x: &[u16], to: &mut [f32]) {
    to.iter_mut().zip(x).for_each(|(to, &x)| *to = f32::from_bits(u32::from(x) << 16));
}

#[inline(always)]
fn narrow_bf16_body<S: Simd>(_: S, x: &[f32], to: &mut [u16]) {
    to.iter_mut().zip(x).for_each(|(to, &x)| *to = bf16_bits(x));
}

/// Without branches, so that loops become vectors. NaN stays NaN, whatever its low bits.
#[inline(always)]
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    ((if x.is_nan() { bits | 0x0040_0000 } else { rounded }) >> 16) as u16
}

/// Most columns of a row that a [`Stage`] holds: 32 KiB.
pub const WIDEST: usize = 8192;

/// `f32` room for one row, on the stack. Nothing is written before it is asked for.
pub struct Stage {
    room: MaybeUninit<[f32; WIDEST]>,
    /// Elements written so far, from the first.
    ready: usize,
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::new()
    }
}

impl Stage {
    /// Returns an empty stage.
    #[inline(always)]
    pub fn new() -> Stage {
        Stage { room: MaybeUninit::uninit(), ready: 0 }
    }

    /// `n` numbers of any value. Panics above [`WIDEST`].
    #[inline(always)]
    pub fn floats(&mut self, n: usize) -> &mut [f32] {
        assert!(n <= WIDEST);
        let room = self.room.as_mut_ptr().cast::<f32>();
        if self.ready < n {
            // SAFETY: n <= WIDEST.
            unsafe { room.add(self.ready).write_bytes(0, n - self.ready) };
            self.ready = n;
        }
        // SAFETY: the first `ready` elements, so these, are initialised.
        unsafe { std::slice::from_raw_parts_mut(room, n) }
    }
}

/// A matrix to read as `f32` rows.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Stored so.
    F32(Mat<'a>),
    /// Stored in 16 bits.
    Half(Half, Mat<'a, u16>),
}

impl<'a> From<Mat<'a>> for Rows<'a> {
    fn from(mat: Mat<'a>) -> Rows<'a> {
        Rows::F32(mat)
    }
}

impl<'a> Rows<'a> {
    /// (rows, columns).
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Rows::F32(m) => (m.rows, m.cols),
            Rows::Half(_, m) => (m.rows, m.cols),
        }
    }

    /// Returns columns `c..c + n` of row `r`, widened into the stage where they are not `f32`.
    #[inline(always)]
    pub fn part<'s>(self, isa: Isa, r: usize, c: usize, n: usize, stage: &'s mut Stage) -> &'s [f32]
    where
        'a: 's,
    {
        match self {
            Rows::F32(m) => &m.row(r)[c..][..n],
            Rows::Half(half, m) => {
                let to = stage.floats(n);
                half.widen(isa, &m.row(r)[c..][..n], to);
                to
            }
        }
    }

    /// Returns row `r`, widened into the stage where it is not `f32`.
    #[inline(always)]
    pub fn row<'s>(self, isa: Isa, r: usize, stage: &'s mut Stage) -> &'s [f32]
    where
        'a: 's,
    {
        match self {
            Rows::F32(m) => m.row(r),
            Rows::Half(_, m) => self.part(isa, r, 0, m.cols, stage),
        }
    }

    /// Returns the rows `range`.
    pub fn rows_range(&self, range: std::ops::Range<usize>) -> Rows<'a> {
        match self {
            Rows::F32(m) => Rows::F32(m.rows_range(range)),
            Rows::Half(half, m) => Rows::Half(*half, m.rows_range(range)),
        }
    }

    /// Returns the rows `r..r + n` of the columns `c..c + d` as a matrix: this one's own `f32`, or widened into `to` row by row.
    /// Gives the matrix and the row and column in it at which they begin.
    pub(super) fn tile<'s>(
        &self,
        isa: Isa,
        (r, n): (usize, usize),
        (c, d): (usize, usize),
        to: &'s mut [f32],
    ) -> (Mat<'s>, usize, usize)
    where
        'a: 's,
    {
        match self {
            Rows::F32(m) => (*m, r, c),
            Rows::Half(half, m) => {
                let to = &mut to[..n * d];
                for (i, to) in to.chunks_exact_mut(d.max(1)).enumerate() {
                    half.widen(isa, &m.row(r + i)[c..][..d], to);
                }
                (Mat::dense(to, n, d), 0, 0)
            }
        }
    }

    /// Returns true for rows of 16 bits.
    pub fn is_half(&self) -> bool {
        matches!(self, Rows::Half(..))
    }
}

/// A matrix to write as `f32` rows.
#[derive(Debug)]
pub enum RowsMut<'a> {
    /// Stored so.
    F32(MatMut<'a>),
    /// Stored in 16 bits: a row is rounded when it is complete.
    Half(Half, MatMut<'a, u16>),
}

impl<'a> From<MatMut<'a>> for RowsMut<'a> {
    fn from(mat: MatMut<'a>) -> RowsMut<'a> {
        RowsMut::F32(mat)
    }
}

impl<'a> RowsMut<'a> {
    /// Returns the rows `range`.
    pub fn rows_range(self, range: std::ops::Range<usize>) -> RowsMut<'a> {
        match self {
            RowsMut::F32(m) => RowsMut::F32(m.rows_range(range)),
            RowsMut::Half(half, m) => RowsMut::Half(half, m.rows_range(range)),
        }
    }

    /// (rows, columns).
    pub fn shape(&self) -> (usize, usize) {
        match self {
            RowsMut::F32(m) => (m.rows, m.cols),
            RowsMut::Half(_, m) => (m.rows, m.cols),
        }
    }

    /// Returns true for rows of 16 bits.
    pub fn is_half(&self) -> bool {
        matches!(self, RowsMut::Half(..))
    }

    /// Lets `body` write all of row `r`, and zeroes the row's pads. What `body` finds there is the row's old content in
    /// `f32`, anything in 16 bits.
    ///
    /// # Safety
    /// No other live slice may cover this row, and no other task may write it.
    #[inline(always)]
    pub(super) unsafe fn write(&self, isa: Isa, r: usize, stage: &mut Stage, body: impl FnOnce(&mut [f32])) {
        match self {
            // SAFETY: the caller's promise.
            RowsMut::F32(m) => body(unsafe { m.row_shared(r) }),
            RowsMut::Half(half, m) => {
                let row = stage.floats(m.cols);
                body(row);
                // SAFETY: the caller's promise.
                half.narrow(isa, row, unsafe { m.row_shared(r) });
            }
        }
    }

    /// Writes columns from `c` on of row `r`; with the last column, also zeroes the pads.
    ///
    /// # Safety
    /// No other live slice may cover these elements.
    pub(in crate::cpu) unsafe fn put(&self, isa: Isa, r: usize, c: usize, x: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                RowsMut::F32(m) => m.part_shared(r, c, x.len()).copy_from_slice(x),
                RowsMut::Half(half, m) => half.narrow(isa, x, m.part_shared(r, c, x.len())),
            }
        }
    }

    /// Returns what columns `c..c + n` of row `r` hold, in the stage.
    ///
    /// # Safety
    /// No other task may write these elements meanwhile, and they must have been written.
    pub(in crate::cpu) unsafe fn old<'s>(
        &self,
        isa: Isa,
        r: usize,
        c: usize,
        n: usize,
        stage: &'s mut Stage,
    ) -> &'s [f32] {
        let to = stage.floats(n);
        // SAFETY: the caller's promise; pads are the tasks' that write the last columns.
        unsafe {
            match self {
                RowsMut::F32(m) => to.copy_from_slice(m.part_shared(r, c, n)),
                RowsMut::Half(half, m) => half.widen(isa, m.part_shared(r, c, n), to),
            }
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 16-bit number comes back, and every `f32` is rounded as the `half` crate's scalar code rounds it.
    #[test]
    fn all_numbers_widen_and_round() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut state = 1u32;
        let near =
            |bits: &u16| [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| u32::from(*bits) << 16 | low);
        let mut floats: Vec<f32> = all.iter().flat_map(near).map(f32::from_bits).collect();
        floats.extend((0..100_000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(state)
        }));
        for isa in Isa::available() {
            let check = |half: Half, scalar: &dyn Fn(f32) -> u16, wide: &dyn Fn(u16) -> f32| {
                let mut f = vec![0.0; all.len()];
                half.widen(*isa, &all, &mut f);
                let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                assert!(f.iter().zip(&all).all(|(f, x)| same(*f, wide(*x))), "{half:?} widens");
                let mut back = vec![0; floats.len()];
                half.narrow(*isa, &floats, &mut back);
                for (bits, x) in back.iter().zip(&floats) {
                    assert!(*bits == scalar(*x) && *bits == half.bits(*x), "{half:?}: {x} is {bits:x}");
                }
            };
            check(Half::Bf16, &|x| half::bf16::from_f32(x).to_bits(), &|x| half::bf16::from_bits(x).to_f32());
            check(Half::F16, &|x| half::f16::from_f32(x).to_bits(), &|x| half::f16::from_bits(x).to_f32());
        }
    }

    #[test]
    fn rows_are_read_and_written_in_any_type() {
        let isa = Isa::best();
        let (x, mut out) = ([0x3f80u16, 0x4000, 7, 0xc040, 0x3f00, 7], [9u16; 6]);
        let rows = Rows::Half(Half::Bf16, Mat::new(&x, 2, 2, 3));
        let to = RowsMut::Half(Half::Bf16, MatMut::new(&mut out, 2, 2, 3));
        let (mut a, mut b) = (Stage::new(), Stage::new());
        for r in 0..2 {
            let row = rows.row(isa, r, &mut a);
            assert_eq!(row, [[1.0, 2.0], [-3.0, 0.5]][r]);
            // SAFETY: one row at a time.
            unsafe { to.write(isa, r, &mut b, |y| y.copy_from_slice(row)) };
        }
        assert_eq!(rows.part(isa, 1, 1, 1, &mut a), [0.5]);
        assert_eq!(out, [0x3f80, 0x4000, 0, 0xc040, 0x3f00, 0]);
    }
}
