//! Copies operands into the panels the microkernel reads.

use super::micro::nr;
use crate::cpu::kernels::simd::Simd;

/// Packs k rows of columns `0..n` (n <= NR) of B into one panel `[k][NR]`, zeros beyond n. Element (p, j) is `b[p * rs + j * cs]`.
///
/// # Safety
/// `b` must be readable at those elements.
#[inline(always)]
pub unsafe fn pack_b<S: Simd>(s: S, b: *const f32, rs: usize, cs: usize, k: usize, n: usize, to: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { panel(s, b, rs, cs, k, n, nr::<S>(), to) }
}

/// Packs one panel `[k][width]`: element (p, j) is `x[p * rs + j * cs]` for j below n, 0 from there on.
///
/// # Safety
/// `x` must be readable at those elements.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn panel<S: Simd>(
    s: S,
    x: *const f32,
    rs: usize,
    cs: usize,
    k: usize,
    n: usize,
    width: usize,
    panel: &mut [f32],
) {
    let panel = &mut panel[..k * width];
    // SAFETY: reads are those the caller promised; writes stay in `panel`, whose length was just checked.
    unsafe {
        if cs == 1 {
            strip(s, x, rs, k, n, width, width, 0, panel.as_mut_ptr());
            return;
        }
        let (k8, n8) = if rs == 1 { (k / 8 * 8, n / 8 * 8) } else { (0, 0) };
        for p in (0..k8).step_by(8) {
            for j in (0..n8).step_by(8) {
                let to = panel.as_mut_ptr().add(p * width + j);
                s.transpose8(x.add(p + j * cs), cs, to, width);
            }
        }
        for (p, row) in panel.chunks_exact_mut(width).enumerate() {
            let done = if p < k8 { n8 } else { 0 };
            for (j, v) in row.iter_mut().enumerate().skip(done) {
                *v = if j < n { *x.add(p * rs + j * cs) } else { 0.0 };
            }
        }
    }
}

/// Packs `depth` rows of `n` contiguous floats into panels of `step` columns, `panel` floats apart, whose rows are `ld` floats (whole
/// vectors, so that stores fill cache lines): the columns after the panel's own, then zeros.
///
/// # Safety
/// `x` must be readable for `depth` rows of n floats, `stride` apart; `to` writable for rows `0..depth` of every panel.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn strip<S: Simd>(
    s: S,
    x: *const f32,
    stride: usize,
    depth: usize,
    n: usize,
    step: usize,
    ld: usize,
    panel: usize,
    to: *mut f32,
) {
    for p in 0..depth {
        let mut to = to.wrapping_add(p * ld);
        for j in (0..n).step_by(step) {
            for v in (0..ld).step_by(S::LANES) {
                // SAFETY: reads stay below n, writes in row p of a panel, whose ld is a multiple of LANES.
                unsafe {
                    let (x, left) = (x.add(p * stride + j).wrapping_add(v), n.saturating_sub(j + v));
                    let row = if left >= S::LANES { s.load_ptr(x) } else { s.load_part_ptr(x, left) };
                    s.store_ptr(to.add(v), row);
                }
            }
            to = to.wrapping_add(panel);
        }
    }
}
