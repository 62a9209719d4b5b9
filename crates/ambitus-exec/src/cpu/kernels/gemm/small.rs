//! Products with few rows (m <= 8), such as those of a step of decoding: limited by reading B once, so B is not packed, and bf16 is
//! widened in registers. An element of C is one sum whose order depends on k only, so a row has the same bits beside any others.

use super::micro::{Left, Right, Store, block, nr};
use super::{Data, Operand, Shared};
use crate::cpu::kernels::half::{Half, RowsMut, Stage};
use crate::cpu::kernels::scratch::{LINE, SLACK, Scratch, padded};
use crate::cpu::kernels::simd::{Simd, Stored, dispatch};
use crate::cpu::kernels::{Isa, MatMut, Pool};

/// Most rows of this path.
const ROWS: usize = 8;
/// Columns of C per task.
const COLS: usize = 128;
/// Rows of B from those that are read to those that are asked for.
const AHEAD: usize = 8;

/// Returns the floats of workspace in which a left operand of 16 bits is widened for this path.
pub fn few_rows_workspace(m: usize, k: usize) -> usize {
    if m > ROWS { 0 } else { padded(m * k) + SLACK }
}

/// Computes the product if it has few rows, and a layout and types that this path knows; false leaves c untouched.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    pool: &Pool,
    alpha: f32,
    a: Operand,
    b: Operand,
    beta: f32,
    c: &mut RowsMut,
    bias: Option<&[f32]>,
    ws: &mut [f32],
) -> bool {
    let (m, k) = (a.rows, a.cols);
    if m > ROWS || a.cs != 1 || k == 0 {
        return false;
    }
    if b.rs != 1 {
        let (Data::F32(a_data), Data::F32(b_data), RowsMut::F32(c)) = (a.data, b.data, c) else {
            return false;
        };
        let task = Task { m, n: b.cols, k, a: a_data, lda: a.rs, b: b_data, ldb: b.rs, bias, alpha, beta };
        return b.cs == 1 && in_place(pool, task, c);
    }
    let (a_data, lda) = match (a.data, b.data) {
        (_, Data::Half(Half::F16, _)) => return false,
        (Data::F32(data), _) => (data, a.rs),
        (Data::Half(..), _) if ws.len() < few_rows_workspace(m, k) => return false,
        (Data::Half(half, data), _) => {
            let wide = Scratch::new(ws).take(m * k);
            for (r, row) in wide.chunks_exact_mut(k).enumerate() {
                half.widen(pool.isa(), &data[r * a.rs..][..k], row);
            }
            (&*wide, k)
        }
    };
    match b.data {
        Data::F32(b_data) => {
            let task = Task { m, n: b.cols, k, a: a_data, lda, b: b_data, ldb: b.cs, bias, alpha, beta };
            by_columns(pool, task, c, dots_f32);
        }
        Data::Half(_, b_data) => {
            let task = Task { m, n: b.cols, k, a: a_data, lda, b: b_data, ldb: b.cs, bias, alpha, beta };
            by_columns(pool, task, c, dots_bf16);
        }
    }
    true
}

/// The product, or some columns of it.
#[derive(Clone, Copy)]
struct Task<'a, E = f32> {
    m: usize,
    n: usize,
    k: usize,
    a: &'a [f32],
    lda: usize,
    b: &'a [E],
    ldb: usize,
    bias: Option<&'a [f32]>,
    alpha: f32,
    beta: f32,
}

impl<'a, E> Task<'a, E> {
    /// The columns of a task, whose elements of B begin `at`.
    fn part(&self, j: usize, at: usize) -> Task<'a, E> {
        let (b, bias) = (self.b.get(at..).unwrap_or(&[]), self.bias.map(|bias| &bias[j..]));
        Task { n: COLS.min(self.n - j), b, bias, ..*self }
    }
}

/// Sums of a task's columns.
type Sums = [[f32; COLS]; ROWS];

/// B contiguous along k: every element of C is a dot product of two rows.
fn by_columns<E: Stored>(pool: &Pool, whole: Task<E>, c: &RowsMut, dots: fn(Isa, &Task<E>, &mut Sums)) {
    let isa = pool.isa();
    pool.run(whole.n.div_ceil(COLS), |i| {
        let j = i * COLS;
        let t = whole.part(j, j * whole.ldb);
        let mut sums = [[0.0; COLS]; ROWS];
        dots(isa, &t, &mut sums);
        for (r, sums) in sums.iter_mut().enumerate().take(t.m) {
            let sums = &mut sums[..t.n];
            for (q, v) in sums.iter_mut().enumerate() {
                *v = t.alpha * *v + t.bias.map_or(0.0, |bias| bias[q]);
            }
            // SAFETY: tasks own disjoint columns of c, which hold something where beta is not 0.
            unsafe {
                if t.beta != 0.0 {
                    let mut stage = Stage::new();
                    let old = c.old(isa, r, j, t.n, &mut stage);
                    sums.iter_mut().zip(old).for_each(|(v, old)| *v += t.beta * old);
                }
                c.put(isa, r, j, sums);
            }
        }
    });
}

dispatch! { fn dots_f32(t: &Task, sums: &mut Sums) = dots_body }
dispatch! { fn dots_bf16(t: &Task<u16>, sums: &mut Sums) = dots_body }

#[inline(always)]
fn dots_body<S: Simd, E: Stored>(s: S, t: &Task<E>, sums: &mut Sums) {
    // One row of A: four rows of B at once, so that an addition does not wait for the one before it. More rows of A: as the registers
    // allow, each pair of rows of B while it is in the first-level cache.
    if t.m == 1 {
        let fours = t.n / 4 * 4;
        (0..fours).step_by(4).for_each(|j| dot_tile::<S, E, 1, 4>(s, t, 0, j, sums));
        (fours..t.n).for_each(|j| dot_tile::<S, E, 1, 1>(s, t, 0, j, sums));
        return;
    }
    let mut j = 0;
    while j < t.n {
        let cols = 2.min(t.n - j);
        for i in (0..t.m).step_by(4) {
            match (4.min(t.m - i), cols) {
                (4, 2) => dot_tile::<S, E, 4, 2>(s, t, i, j, sums),
                (3, 2) => dot_tile::<S, E, 3, 2>(s, t, i, j, sums),
                (2, 2) => dot_tile::<S, E, 2, 2>(s, t, i, j, sums),
                (1, 2) => dot_tile::<S, E, 1, 2>(s, t, i, j, sums),
                (4, _) => dot_tile::<S, E, 4, 1>(s, t, i, j, sums),
                (3, _) => dot_tile::<S, E, 3, 1>(s, t, i, j, sums),
                (2, _) => dot_tile::<S, E, 2, 1>(s, t, i, j, sums),
                _ => dot_tile::<S, E, 1, 1>(s, t, i, j, sums),
            }
        }
        j += cols;
    }
}

#[inline(always)]
fn dot_tile<S: Simd, E: Stored, const M: usize, const N: usize>(
    s: S,
    t: &Task<E>,
    i: usize,
    j: usize,
    sums: &mut Sums,
) {
    let a: [&[f32]; M] = std::array::from_fn(|r| &t.a[(i + r) * t.lda..][..t.k]);
    let b: [&[E]; N] = std::array::from_fn(|r| &t.b[(j + r) * t.ldb..][..t.k]);
    let mut acc = [[s.zero(); N]; M];
    // A cache line of each row of B at a time, and as many of later rows are asked for, since short streams are not foreseen: one after
    // another where they lie, which memory gives faster than lines of several rows in turn.
    let line = LINE * size_of::<f32>() / size_of::<E>();
    let mut p = 0;
    while p + line <= t.k {
        if i == 0 {
            let later = b[0].as_ptr().wrapping_add(AHEAD * t.ldb + N * p);
            (0..N).for_each(|q| s.prefetch(later.wrapping_add(q * line).cast()));
        }
        for p in (p..p + line).step_by(S::LANES) {
            // SAFETY: a line is whole vectors, and ends within k, the length of every slice.
            unsafe { step(s, &a, &b, p, &mut acc) };
        }
        p += line;
    }
    while p + S::LANES <= t.k {
        // SAFETY: as above.
        unsafe { step(s, &a, &b, p, &mut acc) };
        p += S::LANES;
    }
    if p < t.k {
        let bv: [S::V; N] = std::array::from_fn(|q| E::load_part(s, &b[q][p..]));
        for (row, a) in acc.iter_mut().zip(&a) {
            let av = s.load_part(&a[p..]);
            row.iter_mut().zip(&bv).for_each(|(x, y)| *x = s.fma(av, *y, *x));
        }
    }
    for (r, row) in acc.into_iter().enumerate() {
        for (q, v) in row.into_iter().enumerate() {
            sums[i + r][j + q] = s.sum(v);
        }
    }
}

/// Adds one vector's products.
///
/// # Safety
/// `p + S::LANES` must be within every slice.
#[inline(always)]
unsafe fn step<S: Simd, E: Stored, const M: usize, const N: usize>(
    s: S,
    a: &[&[f32]; M],
    b: &[&[E]; N],
    p: usize,
    acc: &mut [[S::V; N]; M],
) {
    // SAFETY: the caller's promise.
    let bv: [S::V; N] = std::array::from_fn(|q| unsafe { E::load_ptr(s, b[q].as_ptr().add(p)) });
    for (row, a) in acc.iter_mut().zip(a) {
        // SAFETY: as above.
        let av = unsafe { s.load_ptr(a.as_ptr().add(p)) };
        row.iter_mut().zip(&bv).for_each(|(x, y)| *x = s.fma(av, *y, *x));
    }
}

/// B contiguous along n, all of `f32`: the microkernel on B as it lies. Always true.
fn in_place(pool: &Pool, whole: Task, c: &mut MatMut) -> bool {
    let (isa, ldc, out) = (pool.isa(), c.pitch, Shared(c.ptr()));
    pool.run(whole.n.div_ceil(COLS), |i| {
        let j = i * COLS;
        // SAFETY: tasks own disjoint columns of c; (0, j) is inside it.
        let c = Shared(unsafe { out.get().add(j) });
        rows(isa, &whole.part(j, j), c, ldc);
    });
    true
}

dispatch! { fn rows(t: &Task, c: Shared, ldc: usize) = rows_body }

#[inline(always)]
fn rows_body<S: Simd>(s: S, t: &Task, c: Shared, ldc: usize) {
    let nr = nr::<S>();
    let whole = t.n / nr * nr;
    assert!((t.k - 1) * t.ldb + t.n <= t.b.len() && (t.m - 1) * t.lda + t.k <= t.a.len());
    let bias = t.bias.map_or(std::ptr::null(), |bias| bias[..t.n].as_ptr());
    let store = Store { alpha: t.alpha, beta: t.beta, bias };
    let left = Left { ptr: t.a.as_ptr(), ld: t.lda };
    let right = Right { ptr: t.b.as_ptr(), ld: t.ldb, panel: nr };
    // SAFETY: operands were checked above (whole panels only), C is this task's.
    unsafe { block::<S, false>(s, t.m, whole, t.k, left, right, c.get(), ldc, store) };
    for j in whole..t.n {
        for i in 0..t.m {
            let a = &t.a[i * t.lda..][..t.k];
            let sum: f32 = a.iter().enumerate().map(|(p, &x)| x * t.b[p * t.ldb + j]).sum();
            let mut v = t.alpha * sum + t.bias.map_or(0.0, |bias| bias[j]);
            // SAFETY: (i, j) is in this task's part of C.
            unsafe {
                let p = c.get().add(i * ldc + j);
                if t.beta != 0.0 {
                    v += t.beta * *p;
                }
                *p = v;
            }
        }
    }
}
