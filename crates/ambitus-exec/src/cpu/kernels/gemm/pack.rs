//! Copies operands into the panels the microkernel reads.

use super::micro::nr;
use crate::cpu::kernels::simd::Simd;

/// Packs k rows of columns `0..n` (n <= NR) of B into one panel `[k][NR]`, zeros beyond n. Element (p, j) is `b[p * rs + j * cs]`.
///
/// # Safety
/// `b` must be readable at those elements.
#[inline(always)]
pub unsafe fn pack_b<S: Simd>(
    s: S,
    b: *const f32,
    rs: usize,
    cs: usize,
    k: usize,
    n: usize,
    panel: &mut [f32],
) {
    let nr = nr::<S>();
    let panel = &mut panel[..k * nr];
    // SAFETY: reads are those the caller promised; writes stay in `panel`, whose length was just checked.
    unsafe {
        if cs == 1 && n == nr {
            for (p, row) in panel.chunks_exact_mut(nr).enumerate() {
                for (j, part) in row.chunks_exact_mut(S::LANES).enumerate() {
                    s.store(part, s.load_ptr(b.add(p * rs + j * S::LANES)));
                }
            }
        } else if rs == 1 {
            let (k8, n8) = (k / 8 * 8, n / 8 * 8);
            for p in (0..k8).step_by(8) {
                for j in (0..n8).step_by(8) {
                    let to = panel.as_mut_ptr().add(p * nr + j);
                    s.transpose8(b.add(p + j * cs), cs, to, nr);
                }
            }
            for (p, row) in panel.chunks_exact_mut(nr).enumerate() {
                let done = if p < k8 { n8 } else { 0 };
                for (j, x) in row.iter_mut().enumerate().skip(done) {
                    *x = if j < n { *b.add(p + j * cs) } else { 0.0 };
                }
            }
        } else {
            for (p, row) in panel.chunks_exact_mut(nr).enumerate() {
                for (j, x) in row.iter_mut().enumerate() {
                    *x = if j < n { *b.add(p * rs + j * cs) } else { 0.0 };
                }
            }
        }
    }
}

/// Packs rows `0..m` (m <= MR) of A into one panel `[k][MR]`; lanes beyond m are left as they are. Element (i, p) is
/// `a[i * rs + p * cs]`.
///
/// # Safety
/// `a` must be readable at those elements.
#[inline(always)]
pub unsafe fn pack_a<S: Simd>(a: *const f32, rs: usize, cs: usize, m: usize, k: usize, panel: &mut [f32]) {
    for (p, row) in panel[..k * S::MR].chunks_exact_mut(S::MR).enumerate() {
        // SAFETY: reads are those the caller promised.
        unsafe {
            if rs == 1 && m == S::MR {
                std::ptr::copy_nonoverlapping(a.add(p * cs), row.as_mut_ptr(), S::MR);
            } else {
                for (i, x) in row.iter_mut().enumerate().take(m) {
                    *x = *a.add(i * rs + p * cs);
                }
            }
        }
    }
}
