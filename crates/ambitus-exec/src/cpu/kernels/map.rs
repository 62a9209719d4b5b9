//! Elementwise kernels: one function on vectors, applied to matrices or flat slices.

use super::pool::DisjointMut;
use super::simd::{At, IsaKind, Portable, Simd, each_vector};
use super::{Isa, Mat, MatMut, Pool};

/// An elementwise function of I inputs and O outputs.
pub trait Map<const I: usize, const O: usize>: Sync {
    /// Whether the old values of the outputs are passed to `call` (else zeros).
    const UPDATES: bool = false;
    /// Returns the function on one vector of each.
    fn call<S: Simd>(&self, s: S, inputs: [S::V; I], old: [S::V; O]) -> [S::V; O];
}

/// Elements per task.
const CHUNK: usize = 16 * 1024;

/// Applies `f` to slices of equal length.
pub fn map_slices<M: Map<I, O>, const I: usize, const O: usize>(
    isa: Isa,
    f: &M,
    inputs: [&[f32]; I],
    outputs: [&mut [f32]; O],
) {
    match isa.0 {
        IsaKind::Portable => body(Portable, f, inputs, outputs),
        #[cfg(target_arch = "x86_64")]
        IsaKind::Avx2 => {
            #[target_feature(enable = "avx2,fma")]
            fn inner<M: Map<I, O>, const I: usize, const O: usize>(
                f: &M,
                inputs: [&[f32]; I],
                outputs: [&mut [f32]; O],
            ) {
                // SAFETY: these are the features the token stands for.
                body(unsafe { super::x86::Avx2::new() }, f, inputs, outputs)
            }
            // SAFETY: this Isa value exists only where the features were detected.
            unsafe { inner(f, inputs, outputs) }
        }
        #[cfg(target_arch = "x86_64")]
        IsaKind::Avx512 => {
            #[target_feature(enable = "avx2,fma,avx512f,avx512dq,avx512vl")]
            fn inner<M: Map<I, O>, const I: usize, const O: usize>(
                f: &M,
                inputs: [&[f32]; I],
                outputs: [&mut [f32]; O],
            ) {
                // SAFETY: these are the features the token stands for.
                body(unsafe { super::x86::Avx512::new() }, f, inputs, outputs)
            }
            // SAFETY: this Isa value exists only where the features were detected.
            unsafe { inner(f, inputs, outputs) }
        }
    }
}

/// Maps slices inside a function that has chosen its instruction set. See [`map_slices`].
#[inline(always)]
pub(super) fn body<S: Simd, M: Map<I, O>, const I: usize, const O: usize>(
    s: S,
    f: &M,
    inputs: [&[f32]; I],
    mut outputs: [&mut [f32]; O],
) {
    let n = outputs[0].len();
    assert!(inputs.iter().all(|x| x.len() == n) && outputs.iter().all(|x| x.len() == n));
    each_vector!(S, n, |at| {
        let mut x = [s.zero(); I];
        for (v, x) in x.iter_mut().zip(&inputs) {
            *v = at.load(s, x);
        }
        let mut old = [s.zero(); O];
        if M::UPDATES {
            for (v, x) in old.iter_mut().zip(&outputs) {
                *v = at.load(s, x);
            }
        }
        let y = f.call(s, x, old);
        for (out, y) in outputs.iter_mut().zip(y) {
            at.store(s, out, y);
        }
    });
}

/// Applies `f` to matrices of equal shape.
pub fn map_mats<M: Map<I, O>, const I: usize, const O: usize>(
    pool: &Pool,
    f: &M,
    inputs: [Mat; I],
    outputs: [MatMut; O],
) {
    let (rows, cols) = (outputs[0].rows, outputs[0].cols);
    assert!(
        inputs.iter().all(|x| (x.rows, x.cols) == (rows, cols))
            && outputs.iter().all(|x| (x.rows, x.cols) == (rows, cols)),
        "elementwise operands differ in shape"
    );
    let isa = pool.isa();
    let per_task = (CHUNK / cols.max(1)).max(1);
    pool.run(rows.div_ceil(per_task), |i| {
        for r in i * per_task..rows.min((i + 1) * per_task) {
            let inputs = inputs.map(|x| x.row(r));
            // SAFETY: one task per row.
            let outputs = outputs.each_ref().map(|x| unsafe { x.row_shared(r) });
            map_slices(isa, f, inputs, outputs);
        }
    });
}

/// Applies `f` to flat slices of equal length, in parallel.
pub fn map_flat<M: Map<I, O>, const I: usize, const O: usize>(
    pool: &Pool,
    f: &M,
    inputs: [&[f32]; I],
    outputs: [&mut [f32]; O],
) {
    let n = outputs[0].len();
    assert!(inputs.iter().all(|x| x.len() == n) && outputs.iter().all(|x| x.len() == n));
    let isa = pool.isa();
    let outputs = outputs.map(DisjointMut::new);
    pool.run(n.div_ceil(CHUNK), |i| {
        let (start, len) = (i * CHUNK, CHUNK.min(n - i * CHUNK));
        let inputs = inputs.map(|x| &x[start..start + len]);
        // SAFETY: tasks take disjoint chunks.
        let outputs = outputs.map(|x| unsafe { x.slice(start, len) });
        map_slices(isa, f, inputs, outputs);
    });
}
