//! Products with few rows (m <= 8): limited by reading B once, so B is not packed.

use super::micro::{Left, Right, Store, block, nr};
use super::{Data, Operand, Shared};
use crate::cpu::kernels::simd::{Simd, dispatch};
use crate::cpu::kernels::{MatMut, Pool};

/// Most rows of this path.
const ROWS: usize = 8;
/// Columns of C per task.
const COLS: usize = 128;

/// Computes the product if it has few rows and a layout this path knows; false leaves c untouched.
pub(super) fn run(
    pool: &Pool,
    alpha: f32,
    a: Operand,
    b: Operand,
    beta: f32,
    c: &MatMut,
    bias: Option<&[f32]>,
) -> bool {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    let (Data::F32(a_data), Data::F32(b_data)) = (a.data, b.data) else { return false };
    if m > ROWS || a.cs != 1 || k == 0 || !(b.rs == 1 || b.cs == 1) {
        return false;
    }
    let isa = pool.isa();
    let (ldc, out) = (c.pitch, Shared(c.ptr()));
    pool.run(n.div_ceil(COLS), |i| {
        let j = i * COLS;
        let task = Task {
            m,
            n: COLS.min(n - j),
            k,
            a: a_data,
            lda: a.rs,
            b: b_data.get(j * b.cs..).unwrap_or(&[]),
            ldb: if b.rs == 1 { b.cs } else { b.rs },
            bias: bias.map(|bias| &bias[j..]),
            alpha,
            beta,
            ldc,
        };
        // SAFETY: tasks own disjoint columns of c; (0, j) is inside it.
        let c = Shared(unsafe { out.get().add(j) });
        if b.rs == 1 {
            dots(isa, task, c);
        } else {
            rows(isa, task, c);
        }
    });
    true
}

/// Some columns of the product.
#[derive(Clone, Copy)]
struct Task<'a> {
    m: usize,
    n: usize,
    k: usize,
    a: &'a [f32],
    lda: usize,
    b: &'a [f32],
    ldb: usize,
    bias: Option<&'a [f32]>,
    alpha: f32,
    beta: f32,
    ldc: usize,
}

dispatch! {
    /// B contiguous along k: every element of C is a dot product of two rows.
    fn dots(t: Task, c: Shared) = dots_body
}

#[inline(always)]
fn dots_body<S: Simd>(s: S, t: Task, c: Shared) {
    let mut i = 0;
    while i < t.m {
        let rows = 4.min(t.m - i);
        let mut j = 0;
        while j < t.n {
            let cols = 2.min(t.n - j);
            match (rows, cols) {
                (4, 2) => dot_tile::<S, 4, 2>(s, &t, i, j, c),
                (3, 2) => dot_tile::<S, 3, 2>(s, &t, i, j, c),
                (2, 2) => dot_tile::<S, 2, 2>(s, &t, i, j, c),
                (1, 2) => dot_tile::<S, 1, 2>(s, &t, i, j, c),
                (4, _) => dot_tile::<S, 4, 1>(s, &t, i, j, c),
                (3, _) => dot_tile::<S, 3, 1>(s, &t, i, j, c),
                (2, _) => dot_tile::<S, 2, 1>(s, &t, i, j, c),
                _ => dot_tile::<S, 1, 1>(s, &t, i, j, c),
            }
            j += cols;
        }
        i += rows;
    }
}

#[inline(always)]
fn dot_tile<S: Simd, const M: usize, const N: usize>(s: S, t: &Task, i: usize, j: usize, c: Shared) {
    let a: [&[f32]; M] = std::array::from_fn(|r| &t.a[(i + r) * t.lda..][..t.k]);
    let b: [&[f32]; N] = std::array::from_fn(|r| &t.b[(j + r) * t.ldb..][..t.k]);
    let mut acc = [[s.zero(); N]; M];
    let full = t.k / S::LANES * S::LANES;
    for p in (0..full).step_by(S::LANES) {
        // SAFETY: p + LANES <= full <= k, the length of every slice.
        let bv: [S::V; N] = std::array::from_fn(|r| unsafe { s.load_ptr(b[r].as_ptr().add(p)) });
        for (row, a) in acc.iter_mut().zip(&a) {
            // SAFETY: as above.
            let av = unsafe { s.load_ptr(a.as_ptr().add(p)) };
            for (x, &y) in row.iter_mut().zip(&bv) {
                *x = s.fma(av, y, *x);
            }
        }
    }
    if full < t.k {
        let bv: [S::V; N] = std::array::from_fn(|r| s.load_part(&b[r][full..]));
        for (row, a) in acc.iter_mut().zip(&a) {
            let av = s.load_part(&a[full..]);
            for (x, &y) in row.iter_mut().zip(&bv) {
                *x = s.fma(av, y, *x);
            }
        }
    }
    for (r, row) in acc.into_iter().enumerate() {
        for (q, v) in row.into_iter().enumerate() {
            let mut v = t.alpha * s.sum(v) + t.bias.map_or(0.0, |bias| bias[j + q]);
            // SAFETY: row i + r < m and column j + q < n of this task's part of C.
            unsafe {
                let p = c.get().add((i + r) * t.ldc + j + q);
                if t.beta != 0.0 {
                    v += t.beta * *p;
                }
                *p = v;
            }
        }
    }
}

dispatch! {
    /// B contiguous along n: the microkernel on B in place, two panels of it packed nowhere.
    fn rows(t: Task, c: Shared) = rows_body
}

#[inline(always)]
fn rows_body<S: Simd>(s: S, t: Task, c: Shared) {
    let nr = nr::<S>();
    let whole = t.n / nr * nr;
    assert!((t.k - 1) * t.ldb + t.n <= t.b.len() && (t.m - 1) * t.lda + t.k <= t.a.len());
    let bias = t.bias.map_or(std::ptr::null(), |bias| bias[..t.n].as_ptr());
    let store = Store { alpha: t.alpha, beta: t.beta, bias };
    let left = Left { ptr: t.a.as_ptr(), ld: t.lda };
    let right = Right { ptr: t.b.as_ptr(), ld: t.ldb, panel: nr };
    // SAFETY: operands were checked above (whole panels only), C is this task's.
    unsafe { block::<S, false>(s, t.m, whole, t.k, left, right, c.get(), t.ldc, store) };
    for j in whole..t.n {
        for i in 0..t.m {
            let a = &t.a[i * t.lda..][..t.k];
            let sum: f32 = a.iter().enumerate().map(|(p, &x)| x * t.b[p * t.ldb + j]).sum();
            let mut v = t.alpha * sum + t.bias.map_or(0.0, |bias| bias[j]);
            // SAFETY: (i, j) is in this task's part of C.
            unsafe {
                let p = c.get().add(i * t.ldc + j);
                if t.beta != 0.0 {
                    v += t.beta * *p;
                }
                *p = v;
            }
        }
    }
}
