//! Matrix product: `C = beta * C + alpha * op(A) op(B) + bias`, any strides.

pub(crate) mod micro;
pub(crate) mod pack;
mod small;
#[cfg(test)]
mod tests;

use super::pool::DisjointMut;
use super::scratch::{SLACK, Scratch, padded};
use super::simd::{Simd, dispatch};
use super::{Isa, Mat, MatMut, Pool};
use micro::{Left, Right, Store, block, nr};

/// A GEMM operand: element (r, c) is `data[r * rs + c * cs]`. Rows may overlap (`rs < cols`), as in the windows of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    data: &'a [f32],
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    rs: usize,
    cs: usize,
}

impl<'a> Operand<'a> {
    /// A matrix as it is.
    pub fn new(mat: Mat<'a>) -> Self {
        Self::strided(mat.data, mat.rows, mat.cols, mat.pitch, 1)
    }

    /// Its transpose.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs, ..self }
    }

    /// Any strides; panics when `data` does not hold every element.
    pub fn strided(data: &'a [f32], rows: usize, cols: usize, rs: usize, cs: usize) -> Self {
        if rows > 0 && cols > 0 {
            assert!(
                (rows - 1) * rs + (cols - 1) * cs < data.len(),
                "operand {rows}x{cols} with strides {rs}, {cs} over {} elements",
                data.len()
            );
        }
        Self { data, rows, cols, rs, cs }
    }
}

/// Sizes of the cache blocks. They depend on shapes and instruction set only, so results do not depend on the thread count.
#[derive(Clone, Copy)]
struct Blocks {
    mr: usize,
    nr: usize,
    /// Rows of A packed at a time, a multiple of MR.
    mc: usize,
    /// Depth of a block.
    kc: usize,
    /// Columns of B packed at a time, a multiple of NR.
    nc: usize,
    /// Rows and columns of one task.
    mb: usize,
    nb: usize,
}

/// Depth of a block at most: a panel of B (kc x NR) stays in the first or second-level cache.
const KC: usize = 512;
/// Rows of A and columns of B packed at a time at most (bounds the workspace).
const MC: usize = 2048;
const NC: usize = 2048;
/// Rows and columns of C per task at most.
const MB: usize = 64;
const NB: usize = 256;

/// Splits `n` into the fewest equal parts of at most `most`, rounded up to a multiple of `unit`.
fn even(n: usize, most: usize, unit: usize) -> usize {
    if n == 0 {
        return unit;
    }
    n.div_ceil(n.div_ceil(most)).next_multiple_of(unit)
}

impl Blocks {
    fn of(isa: Isa, m: usize, n: usize, k: usize) -> Self {
        let (mr, nr) = tile_size(isa);
        Blocks {
            mr,
            nr,
            mc: even(m, MC, mr),
            kc: even(k, KC, 8),
            nc: even(n, NC, nr),
            mb: even(m, MB, mr),
            nb: even(n, NB, nr),
        }
    }

    fn b_floats(&self) -> usize {
        self.kc * self.nc
    }

    fn floats(&self) -> usize {
        padded(self.b_floats()) + padded(self.kc * self.mc) + SLACK
    }
}

dispatch! {
    /// MR and NR.
    fn tile_size() -> (usize, usize) = tile_size_of
}

#[inline(always)]
fn tile_size_of<S: Simd>(_: S) -> (usize, usize) {
    (S::MR, nr::<S>())
}

/// Floats of workspace for a product of these sizes, under any strides, instruction set and thread count.
pub fn gemm_workspace(m: usize, n: usize, k: usize, _threads: usize) -> usize {
    Isa::available().iter().map(|&isa| Blocks::of(isa, m, n, k).floats()).max().unwrap_or(0)
}

/// `c = beta * c + alpha * a b (+ bias on every row)`; a [m, k], b [k, n], c [m, n], bias [n]. `beta == 0` does not read c.
#[allow(clippy::too_many_arguments)]
pub fn gemm(
    pool: &Pool,
    alpha: f32,
    a: Operand,
    b: Operand,
    beta: f32,
    mut c: MatMut,
    bias: Option<&[f32]>,
    ws: &mut [f32],
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert!(
        b.rows == k && c.rows == m && c.cols == n,
        "gemm: [{m}, {k}] x [{}, {n}] into [{}, {}]",
        b.rows,
        c.rows,
        c.cols
    );
    let bias = bias.map(|bias| &bias[..n]);
    c.zero_pads();
    if m == 0 || n == 0 {
        return;
    }
    let isa = pool.isa();
    if small::run(pool, alpha, a, b, beta, &c, bias) {
        return;
    }
    let t = Blocks::of(isa, m, n, k);
    let mut scratch = Scratch::new(ws);
    let shared_b = DisjointMut::new(scratch.take(t.b_floats()));
    let shared_a = DisjointMut::new(scratch.take(t.kc * t.mc));
    // A contiguous along k is read in place.
    let packs_a = a.cs != 1;
    let ldc = c.pitch;
    let c_ptr = Shared(c.ptr());
    let mut k0 = 0;
    loop {
        let kc = t.kc.min(k - k0);
        let store = Store { alpha, beta: if k0 == 0 { beta } else { 1.0 }, bias: std::ptr::null() };
        let bias = bias.filter(|_| k0 + kc == k);
        for n0 in (0..n).step_by(t.nc) {
            let nc = t.nc.min(n - n0);
            for m0 in (0..m).step_by(t.mc) {
                let mc = t.mc.min(m - m0);
                let b_panels = if m0 == 0 { nc.div_ceil(t.nr) } else { 0 };
                let a_panels = if packs_a { mc.div_ceil(t.mr) } else { 0 };
                pool.run(b_panels + a_panels, |i| {
                    if i < b_panels {
                        let j = i * t.nr;
                        // SAFETY: one panel per task.
                        let panel = unsafe { shared_b.slice(j * kc, kc * t.nr) };
                        let part = b.part(k0, n0 + j);
                        pack_b(isa, part, b.rs, b.cs, kc, t.nr.min(nc - j), panel);
                    } else {
                        let r = (i - b_panels) * t.mr;
                        // SAFETY: one panel per task.
                        let panel = unsafe { shared_a.slice(r * kc, kc * t.mr) };
                        let part = a.part(m0 + r, k0);
                        pack_a(isa, part, a.rs, a.cs, t.mr.min(mc - r), kc, panel);
                    }
                });
                let (rows, cols) = (mc.div_ceil(t.mb), nc.div_ceil(t.nb));
                // SAFETY: packing is over and nothing writes the panels until the next round.
                let packed: (&[f32], &[f32]) = unsafe {
                    let a_len = if packs_a { mc.next_multiple_of(t.mr) * kc } else { 0 };
                    (shared_b.slice(0, nc.next_multiple_of(t.nr) * kc), shared_a.slice(0, a_len))
                };
                pool.run(rows * cols, |i| {
                    // Row by row within a strip of columns: the strip's panels stay in the second-level cache.
                    let (r, j) = (i % rows * t.mb, i / rows * t.nb);
                    let job = Job {
                        rows: t.mb.min(mc - r),
                        cols: t.nb.min(nc - j),
                        k: kc,
                        a: if packs_a { &packed.1[r * kc..] } else { a.part(m0 + r, k0) },
                        lda: if packs_a { None } else { Some(a.rs) },
                        b: &packed.0[j * kc..],
                        ldc,
                    };
                    let store =
                        Store { bias: bias.map_or(std::ptr::null(), |b| b[n0 + j..].as_ptr()), ..store };
                    // SAFETY: element (m0 + r, n0 + j) is inside c, and tasks own disjoint rectangles of it.
                    unsafe {
                        let c = Shared(c_ptr.get().add((m0 + r) * ldc + n0 + j));
                        run_job(isa, job, c, store);
                    }
                });
            }
        }
        k0 += kc;
        if k0 >= k {
            break;
        }
    }
}

impl<'a> Operand<'a> {
    /// The elements from (r, c) on.
    fn part(&self, r: usize, c: usize) -> &'a [f32] {
        self.data.get(r * self.rs + c * self.cs..).unwrap_or(&[])
    }
}

/// A pointer tasks may share; each writes its own rectangle.
#[derive(Clone, Copy)]
struct Shared(*mut f32);
// SAFETY: dereferenced only in tasks that own disjoint elements.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

dispatch! {
    fn pack_b(b: &[f32], rs: usize, cs: usize, k: usize, n: usize, panel: &mut [f32]) = pack_b_body
}

#[inline(always)]
fn pack_b_body<S: Simd>(s: S, b: &[f32], rs: usize, cs: usize, k: usize, n: usize, panel: &mut [f32]) {
    assert!(k == 0 || (k - 1) * rs + (n - 1) * cs < b.len());
    // SAFETY: the largest index was just checked.
    unsafe { pack::pack_b(s, b.as_ptr(), rs, cs, k, n, panel) }
}

dispatch! {
    fn pack_a(a: &[f32], rs: usize, cs: usize, m: usize, k: usize, panel: &mut [f32]) = pack_a_body
}

#[inline(always)]
fn pack_a_body<S: Simd>(_: S, a: &[f32], rs: usize, cs: usize, m: usize, k: usize, panel: &mut [f32]) {
    assert!(k == 0 || (m - 1) * rs + (k - 1) * cs < a.len());
    // SAFETY: the largest index was just checked.
    unsafe { pack::pack_a::<S>(a.as_ptr(), rs, cs, m, k, panel) }
}

/// One task's rectangle of C.
#[derive(Clone, Copy)]
struct Job<'a> {
    rows: usize,
    cols: usize,
    k: usize,
    a: &'a [f32],
    /// Row stride of A read in place, or None for packed panels.
    lda: Option<usize>,
    b: &'a [f32],
    ldc: usize,
}

dispatch! {
    /// `c` must be exclusive to this job and cover its rectangle.
    fn run_job(job: Job, c: Shared, store: Store) = run_job_body
}

#[inline(always)]
fn run_job_body<S: Simd>(s: S, job: Job, c: Shared, store: Store) {
    let Job { rows, cols, k, ldc, .. } = job;
    let (mr, nr) = (S::MR, nr::<S>());
    assert!(job.b.len() >= cols.next_multiple_of(nr) * k);
    let right = Right { ptr: job.b.as_ptr(), ld: nr, panel: nr * k };
    match job.lda {
        Some(ld) => {
            assert!(k == 0 || (rows - 1) * ld + k <= job.a.len());
            let left = Left { ptr: job.a.as_ptr(), ld };
            // SAFETY: operands were checked above, C is the caller's promise.
            unsafe { block::<S, false>(s, rows, cols, k, left, right, c.get(), ldc, store) }
        }
        None => {
            assert!(job.a.len() >= rows.next_multiple_of(mr) * k);
            // Panels of A go outermost here would re-read B from the second-level cache; instead every panel of B meets all of A's.
            for j in (0..cols).step_by(nr) {
                for i in (0..rows).step_by(mr) {
                    // SAFETY: operands were checked above, C is the caller's promise.
                    unsafe {
                        let left = Left { ptr: job.a.as_ptr().add(i * k), ld: mr };
                        let right = Right { ptr: job.b.as_ptr().add(j * k), ..right };
                        let bias = if store.bias.is_null() { store.bias } else { store.bias.add(j) };
                        let (m, n) = (mr.min(rows - i), nr.min(cols - j));
                        let to = c.get().add(i * ldc + j);
                        block::<S, true>(s, m, n, k, left, right, to, ldc, Store { bias, ..store });
                    }
                }
            }
        }
    }
}
