//! The GEMM microkernel and the loop over microtiles of one cache-sized block.
//!
//! The structure is that of BLIS (Van Zee & van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015):
//! an MR x NR tile of C stays in registers while k advances; B comes as packed panels of NR columns. A is not copied when it is
//! contiguous along k: its MR rows are MR sequential streams.

use crate::cpu::kernels::simd::{Simd, dispatch};

/// Vectors per panel of B: a panel has `NV * LANES` columns.
pub const NV: usize = 2;

/// Most floats of any vector.
const LANES_MAX: usize = 16;

/// Returns the columns of a packed panel of B.
pub const fn nr<S: Simd>() -> usize {
    NV * S::LANES
}

/// What becomes of a product: `C = alpha * AB + beta * C + bias`.
#[derive(Clone, Copy)]
pub struct Store {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the old C; 0 does not read it.
    pub beta: f32,
    /// Null, or one float per column of the block.
    pub bias: *const f32,
}

impl Store {
    /// `C = AB`
    pub const SET: Store = Store { alpha: 1.0, beta: 0.0, bias: std::ptr::null() };
    /// `C += AB`
    pub const ADD: Store = Store { beta: 1.0, ..Store::SET };
}

/// The left operand of a block: element (i, p) is `ptr[i * ld + p]`, or with `COL` `ptr[i + p * ld]`.
#[derive(Clone, Copy)]
pub struct Left {
    /// Element (0, 0).
    pub ptr: *const f32,
    /// Stride of the other index.
    pub ld: usize,
}

/// Packed panels of B: element (p, j) is `ptr[(j / NR) * panel + p * ld + j % NR]`.
#[derive(Clone, Copy)]
pub struct Right {
    /// Element (0, 0).
    pub ptr: *const f32,
    /// From one row of a panel to the next; NR when packed.
    pub ld: usize,
    /// From one panel to the next.
    pub panel: usize,
}

/// One microtile: `MR_` rows, `n <= NR` columns. `NV_` vectors are computed.
///
/// # Safety
/// A must be readable for MR_ x k, B for k rows of `NV_ * LANES`, C writable (readable if beta != 0) for MR_ x n, bias for n.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn tile<S: Simd, const MR_: usize, const NV_: usize, const COL: bool, const PAIRS: bool>(
    s: S,
    k: usize,
    a: Left,
    b: Right,
    c: *mut f32,
    ldc: usize,
    n: usize,
    store: Store,
) {
    // SAFETY: all accesses are those the caller promised.
    unsafe {
        let mut acc = [[s.zero(); NV_]; MR_];
        let mut bp = b.ptr;
        let mut ap = a.ptr;
        let step = if COL { a.ld } else { 1 };
        for i in 0..MR_ {
            s.prefetch(c.add(i * ldc));
            s.prefetch(c.add(i * ldc + n - 1));
        }
        for _ in 0..k {
            let mut bv = [s.zero(); NV_];
            for (j, v) in bv.iter_mut().enumerate() {
                *v = s.load_ptr(bp.add(j * S::LANES));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                // Pairs of bf16 are aligned as bf16.
                let av = s.splat(ap.add(if COL { i } else { i * a.ld }).read_unaligned());
                for (x, &y) in row.iter_mut().zip(&bv) {
                    *x = if PAIRS { s.add_pairs(av, y, *x) } else { s.fma(av, y, *x) };
                }
            }
            bp = bp.add(b.ld);
            ap = ap.add(step);
        }
        if n == NV_ * S::LANES {
            // Straight-line code: accumulators go from registers to C.
            let alpha = s.splat(store.alpha);
            let mut bias = [s.zero(); NV_];
            if !store.bias.is_null() {
                for (j, v) in bias.iter_mut().enumerate() {
                    *v = s.load_ptr(store.bias.add(j * S::LANES));
                }
            }
            if store.beta == 0.0 {
                for (i, row) in acc.iter().enumerate() {
                    for (j, &v) in row.iter().enumerate() {
                        let p = c.add(i * ldc + j * S::LANES);
                        s.store_ptr(p, s.fma(alpha, v, bias[j]));
                    }
                }
            } else {
                let beta = s.splat(store.beta);
                for (i, row) in acc.iter().enumerate() {
                    for (j, &v) in row.iter().enumerate() {
                        let p = c.add(i * ldc + j * S::LANES);
                        let v = s.fma(alpha, v, bias[j]);
                        s.store_ptr(p, s.fma(beta, s.load_ptr(p), v));
                    }
                }
            }
        } else {
            let mut out = [[[0.0f32; LANES_MAX]; NV_]; MR_];
            for (i, row) in acc.iter().enumerate() {
                for (j, &v) in row.iter().enumerate() {
                    s.store_ptr(out[i][j].as_mut_ptr(), v);
                }
            }
            for (i, row) in out.iter().enumerate() {
                for j in 0..n {
                    let mut v = store.alpha * row[j / S::LANES][j % S::LANES];
                    if !store.bias.is_null() {
                        v += *store.bias.add(j);
                    }
                    let p = c.add(i * ldc + j);
                    if store.beta != 0.0 {
                        v += store.beta * *p;
                    }
                    *p = v;
                }
            }
        }
    }
}

/// `rows` rows (at most S::MR) of one panel.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn tile_rows<S: Simd, const NV_: usize, const COL: bool, const PAIRS: bool>(
    s: S,
    rows: usize,
    k: usize,
    a: Left,
    b: Right,
    c: *mut f32,
    ldc: usize,
    n: usize,
    store: Store,
) {
    macro_rules! pick {
        ($($m:literal)*) => {
            match rows {
                // SAFETY: the caller's promise. Sizes above S::MR are compiled out.
                $($m if $m <= S::MR => unsafe { tile::<S, $m, NV_, COL, PAIRS>(s, k, a, b, c, ldc, n, store) },)*
                _ => unreachable!("microtile of {rows} rows"),
            }
        };
    }
    pick!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}

/// A block: C[m, n] from A[m, k] and panels of B. Panels go outermost, so one panel stays in the first-level cache while A passes.
/// It is one function per instruction set, not inlined, so that all kernels share the microtiles' code.
///
/// # Safety
/// A must be readable for m x k, B for ceil(n / NR) panels of k rows, C writable (readable if beta != 0) for m x n with row stride
/// `ldc`, bias for n. The last panel is read for its full NR columns, or for LANES if n leaves at most LANES.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn block<S: Simd, const COL: bool>(
    s: S,
    m: usize,
    n: usize,
    k: usize,
    a: Left,
    b: Right,
    c: *mut f32,
    ldc: usize,
    store: Store,
) {
    let args = Block { m, n, k, a, b, c, ldc, store };
    if COL {
        run_cols(s.isa(), &args);
    } else {
        run_rows(s.isa(), &args);
    }
}

/// Arguments of [`block`]; made only there, under its promise.
struct Block {
    m: usize,
    n: usize,
    k: usize,
    a: Left,
    b: Right,
    c: *mut f32,
    ldc: usize,
    store: Store,
}

dispatch! { fn run_rows(args: &Block) = run_block::<_, false, false> }
dispatch! { fn run_cols(args: &Block) = run_block::<_, true, false> }

/// [`block`] of pairs of bf16, where [`crate::cpu::kernels::Isa::multiplies_bf16`] (panics elsewhere): k counts pairs, an element of A
/// and B is one.
///
/// # Safety
/// As [`block`].
#[allow(clippy::too_many_arguments)]
pub unsafe fn block_of_pairs<S: Simd, const COL: bool>(
    s: S,
    m: usize,
    n: usize,
    k: usize,
    a: Left,
    b: Right,
    c: *mut f32,
    ldc: usize,
    store: Store,
) {
    assert!(s.isa().multiplies_bf16());
    let args = Block { m, n, k, a, b, c, ldc, store };
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,avx512f,avx512dq,avx512vl,avx512bf16")]
        fn run<const COL: bool>(args: &Block) {
            // SAFETY: these are the features the token stands for.
            let s = unsafe { crate::cpu::kernels::x86::Avx512::new() };
            run_block::<_, COL, true>(s, args);
        }
        // SAFETY: they were just asked for.
        unsafe { run::<COL>(&args) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = args;
}

#[inline(always)]
fn run_block<S: Simd, const COL: bool, const PAIRS: bool>(s: S, args: &Block) {
    let Block { m, n, k, a, b, c, ldc, store } = *args;
    let nr = nr::<S>();
    let mut j = 0;
    while j < n {
        let width = nr.min(n - j);
        // SAFETY: j < n, i < m below: inside what the caller promised.
        unsafe {
            let bj = Right { ptr: b.ptr.add(j / nr * b.panel), ..b };
            let store =
                Store { bias: if store.bias.is_null() { store.bias } else { store.bias.add(j) }, ..store };
            let mut i = 0;
            while i < m {
                let rows = S::MR.min(m - i);
                let ai = Left { ptr: a.ptr.add(if COL { i } else { i * a.ld }), ..a };
                let ci = c.add(i * ldc + j);
                if width > S::LANES {
                    tile_rows::<S, NV, COL, PAIRS>(s, rows, k, ai, bj, ci, ldc, width, store);
                } else {
                    tile_rows::<S, 1, COL, PAIRS>(s, rows, k, ai, bj, ci, ldc, width, store);
                }
                i += rows;
            }
        }
        j += width;
    }
}
