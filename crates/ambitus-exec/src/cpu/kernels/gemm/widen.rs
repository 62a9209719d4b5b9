//! Products of 16-bit operands and into 16-bit results. Everything is computed in `f32`: operands are widened while they are packed,
//! or packed in pairs where the processor multiplies bf16; results are rounded once.

use super::super::half::{Half, RowsMut};
use super::{Operand, gemm, gemm_workspace, pack, small};
use crate::cpu::kernels::scratch::{Scratch, padded};
use crate::cpu::kernels::simd::Simd;
use crate::cpu::kernels::{Mat, MatMut, Pool, Stage};

/// Columns of one panel that are widened at a time.
const DEPTH: usize = 64;
/// Widest panel of any instruction set.
const WIDTH: usize = 32;

/// How 16-bit elements become those of panels.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    /// What they are.
    pub half: Half,
    /// Two of a row are one element, as they are; else each is widened.
    pub pairs: bool,
    /// As [`super::pack`] takes them.
    pub step: usize,
    pub ld: usize,
    pub panel: usize,
}

impl Packed {
    /// [`super::pack`] of 16-bit data.
    ///
    /// # Safety
    /// As there; the largest index must have been checked.
    #[inline(always)]
    pub unsafe fn write<S: Simd>(self, s: S, data: &[u16], from: Operand, to: *mut f32) {
        let Operand { rows, cols, rs, cs, .. } = from;
        let Packed { step, ld, panel, .. } = self;
        let each = if self.pairs { 2 } else { 1 };
        let depth = cols.div_ceil(each);
        if rs == 1 {
            let mut stage = Stage::new();
            for p in 0..depth {
                let row = stage.floats(rows);
                self.across(s, &data[each * p * cs..], rows, (each * p + 1 < cols).then_some(cs), row);
                // SAFETY: `row` holds `rows` floats; column p of the panels begins there.
                unsafe { pack::strip(s, row.as_ptr(), 0, 1, rows, step, ld, panel, to.add(p * ld)) };
            }
            return;
        }
        let mut wide = [0.0; WIDTH * DEPTH];
        for p in (0..depth).step_by(DEPTH) {
            let n = DEPTH.min(depth - p);
            let (first, cols) = (each * p, (each * n).min(cols - each * p));
            for (r, row) in wide.chunks_exact_mut(DEPTH).enumerate().take(rows) {
                let x = &data[r * rs + first * cs..];
                if cs == 1 {
                    self.along(s, &x[..cols], &mut row[..n]);
                } else {
                    let mut one = [0; 2];
                    for (i, to) in row[..n].iter_mut().enumerate() {
                        let some = each.min(cols - each * i);
                        one[1] = 0;
                        (0..some).for_each(|q| one[q] = x[(each * i + q) * cs]);
                        self.along(s, &one[..some], std::slice::from_mut(to));
                    }
                }
            }
            // SAFETY: `wide` holds rows x n; rows p.. of the panel begin there, and it holds them all.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to.add(p * ld), n * ld);
                pack::panel(s, wide.as_ptr(), 1, DEPTH, n, rows, ld, to);
            }
        }
    }

    /// Elements of consecutive ones of a row; of an odd number of them, the last pair ends with 0.
    #[inline(always)]
    fn along<S: Simd>(self, s: S, x: &[u16], to: &mut [f32]) {
        if !self.pairs {
            return self.half.widen(s.isa(), x, to);
        }
        let (pairs, last) = x.as_chunks::<2>();
        to.iter_mut().zip(pairs).for_each(|(to, [a, b])| *to = pair(*a, *b));
        if let [last] = last {
            to[pairs.len()] = pair(*last, 0);
        }
    }

    /// Elements of `n` rows that lie beside each other, of one column, or of two that are `cs` apart.
    #[inline(always)]
    fn across<S: Simd>(self, s: S, x: &[u16], n: usize, cs: Option<usize>, to: &mut [f32]) {
        match (self.pairs, cs) {
            (false, _) => self.half.widen(s.isa(), &x[..n], to),
            (true, None) => to.iter_mut().zip(&x[..n]).for_each(|(to, a)| *to = pair(*a, 0)),
            (true, Some(cs)) => {
                to.iter_mut().zip(&x[..n]).zip(&x[cs..][..n]).for_each(|((to, a), b)| *to = pair(*a, *b));
            }
        }
    }
}

/// Returns two bf16 as an element, the first in its low half.
#[inline(always)]
fn pair(first: u16, second: u16) -> f32 {
    f32::from_bits(u32::from(first) | u32::from(second) << 16)
}

/// Rows and columns of the `f32` band in which a part of a 16-bit result is summed over all of k: 2 MiB. Each operand is
/// packed once for each band that it meets.
const BAND: (usize, usize) = (512, 1024);

/// Returns the floats of workspace of [`gemm_narrow`].
pub fn gemm_narrow_workspace(m: usize, n: usize, k: usize, threads: usize) -> usize {
    let (rows, cols) = (m.min(BAND.0), n.min(BAND.1));
    gemm_workspace(rows, cols, k, threads) + 2 * padded(rows * cols)
}

/// Multiplies as [`gemm`] with alpha 1, into a result of any float type, rounded once after the whole sum.
#[allow(clippy::too_many_arguments)]
pub fn gemm_narrow(
    pool: &Pool,
    a: Operand,
    b: Operand,
    beta: f32,
    c: RowsMut,
    bias: Option<&[f32]>,
    ws: &mut [f32],
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    let (half, mut c) = match c {
        RowsMut::F32(c) => return gemm(pool, 1.0, a, b, beta, c, bias, ws),
        RowsMut::Half(half, c) => (half, c),
    };
    assert!(b.rows == k && c.rows == m && c.cols == n, "gemm: [{m}, {n}] into [{}, {}]", c.rows, c.cols);
    if small::run(pool, 1.0, a, b, beta, &mut RowsMut::Half(half, c.reborrow()), bias, ws) {
        return;
    }
    let isa = pool.isa();
    let mut scratch = Scratch::new(ws);
    let band = scratch.take(BAND.0.min(m) * BAND.1.min(n));
    let ws = scratch.rest();
    for m0 in (0..m).step_by(BAND.0) {
        let rows = BAND.0.min(m - m0);
        for n0 in (0..n).step_by(BAND.1) {
            let cols = BAND.1.min(n - n0);
            let band = &mut band[..rows * cols];
            if beta != 0.0 {
                for (r, row) in band.chunks_exact_mut(cols).enumerate() {
                    // SAFETY: nothing else refers to c here.
                    half.widen(isa, unsafe { c.part_shared(m0 + r, n0, cols) }, row);
                }
            }
            let (a, b) = (a.block((m0, rows), (0, k)), b.block((0, k), (n0, cols)));
            let bias = bias.map(|bias| &bias[n0..n0 + cols]);
            gemm(pool, 1.0, a, b, beta, MatMut::dense(band, rows, cols), bias, ws);
            let band = Mat::dense(band, rows, cols);
            pool.run(rows.div_ceil(ROWS), |i| {
                for r in i * ROWS..rows.min((i + 1) * ROWS) {
                    // SAFETY: every row of the band belongs to one task.
                    half.narrow(isa, band.row(r), unsafe { c.part_shared(m0 + r, n0, cols) });
                }
            });
        }
    }
}

/// Rows per task of rounding.
const ROWS: usize = 16;
