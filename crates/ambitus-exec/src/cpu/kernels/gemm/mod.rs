//! Matrix product: `C = beta * C + alpha * op(A) op(B) + bias`, any strides.

pub(crate) mod micro;
pub(crate) mod pack;
mod small;
#[cfg(test)]
mod tests;
mod widen;

use super::pool::DisjointMut;
use super::scratch::{LINE, SLACK, Scratch, padded};
use super::simd::{Simd, dispatch};
use super::{Half, Isa, MatMut, Pool, Rows, RowsMut};
use micro::{Left, Right, Store, block, block_of_pairs, nr};
pub use small::few_rows_workspace;
pub use widen::{gemm_narrow, gemm_narrow_workspace};

/// A GEMM operand: element (r, c) is `data[r * rs + c * cs]`. Rows may overlap (`rs < cols`), as in the windows of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    data: Data<'a>,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    rs: usize,
    cs: usize,
}

/// An operand's elements. Those of 16 bits are widened where they are packed.
#[derive(Clone, Copy, Debug)]
enum Data<'a> {
    F32(&'a [f32]),
    Half(Half, &'a [u16]),
}

impl<'a> Data<'a> {
    fn len(&self) -> usize {
        match self {
            Data::F32(x) => x.len(),
            Data::Half(_, x) => x.len(),
        }
    }

    /// Returns the elements from `at` on.
    fn from(&self, at: usize) -> Data<'a> {
        match self {
            Data::F32(x) => Data::F32(x.get(at..).unwrap_or(&[])),
            Data::Half(half, x) => Data::Half(*half, x.get(at..).unwrap_or(&[])),
        }
    }
}

impl<'a> Operand<'a> {
    /// Returns a matrix as it is.
    pub fn new(mat: impl Into<Rows<'a>>) -> Self {
        match mat.into() {
            Rows::F32(m) => Self::of(Data::F32(m.data), m.rows, m.cols, m.pitch, 1),
            Rows::Half(half, m) => Self::of(Data::Half(half, m.data), m.rows, m.cols, m.pitch, 1),
        }
    }

    /// Returns its transpose.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs, ..self }
    }

    /// Any strides; panics when `data` does not hold every element.
    pub fn strided(data: &'a [f32], rows: usize, cols: usize, rs: usize, cs: usize) -> Self {
        Self::of(Data::F32(data), rows, cols, rs, cs)
    }

    fn of(data: Data<'a>, rows: usize, cols: usize, rs: usize, cs: usize) -> Self {
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
    /// Floats of a row of a packed panel of A: a whole vector, of which MR count.
    ld: usize,
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

/// Depth of a block at most, per float of a vector: a strip of B (kc x NB) stays in the second-level cache, which is larger (1 to 2 MiB)
/// where vectors are.
const KC: usize = 32;
/// Rows of A and columns of B packed at a time at most (bounds the workspace).
const MC: usize = 512;
const NC: usize = 2048;
/// Rows and columns of C per task at most: small, so that threads end together.
const MB: usize = 32;
const NB: usize = 256;

/// Depth per packing task where rows of the depth are contiguous.
const STRIP: usize = 32;
/// MR, NR and floats per vector of every instruction set.
const TILES: [[usize; 3]; 3] = [[4, 16, 8], [6, 16, 8], [14, 32, 16]];

/// Splits `n` into the fewest equal parts of at most `most`, rounded up to a multiple of `unit`.
fn even(n: usize, most: usize, unit: usize) -> usize {
    if n == 0 {
        return unit;
    }
    n.div_ceil(n.div_ceil(most)).next_multiple_of(unit)
}

impl Blocks {
    fn of([mr, nr, ld]: [usize; 3], m: usize, n: usize, k: usize) -> Self {
        Blocks {
            mr,
            nr,
            ld,
            mc: even(m, MC, mr),
            kc: even(k, KC * ld, 8),
            nc: even(n, NC, nr),
            mb: even(m, MB, mr),
            nb: even(n, NB, nr),
        }
    }

    fn b_floats(&self) -> usize {
        self.nc / self.nr * panel_floats(self.kc, self.nr)
    }

    fn a_floats(&self) -> usize {
        self.mc.div_ceil(self.mr) * panel_floats(self.kc, self.ld)
    }
}

/// Returns the floats from one panel to the next. The odd cache line keeps panels from sharing cache sets: packing writes all
/// of them at once.
fn panel_floats(k: usize, width: usize) -> usize {
    padded(k * width) + LINE
}

dispatch! {
    /// MR, NR and floats per vector.
    fn tile_size() -> [usize; 3] = tile_size_of
}

#[inline(always)]
fn tile_size_of<S: Simd>(_: S) -> [usize; 3] {
    [S::MR, nr::<S>(), S::LANES]
}

/// Returns the floats of workspace for a product of these sizes, under any strides, instruction set (so a plan holds on any
/// machine) and thread count.
pub fn gemm_workspace(m: usize, n: usize, k: usize, _threads: usize) -> usize {
    let floats = |[mr, nr, ld]: [usize; 3]| {
        // The largest blocks of any product up to this size, so that more is never too little.
        let size = |n: usize, most: usize, unit: usize| n.clamp(1, most).next_multiple_of(unit);
        let t = Blocks {
            mr,
            nr,
            ld,
            mc: size(m, MC, mr),
            kc: size(k, KC * ld, 8),
            nc: size(n, NC, nr),
            mb: 0,
            nb: 0,
        };
        padded(t.b_floats()) + padded(t.a_floats()) + SLACK
    };
    TILES.into_iter().map(floats).max().unwrap_or(0)
}

/// `c = beta * c + alpha * a b (+ bias on every row)`; a `[m, k]`, b `[k, n]`, c `[m, n]`, bias `[n]`. `beta == 0` does not read c.
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
    if small::run(pool, alpha, a, b, beta, &mut RowsMut::F32(c.reborrow()), bias, ws) {
        return;
    }
    // Two bf16 are an element of 32 bits then, and k counts pairs: of an odd depth the last one ends with 0.
    let bf16 = |x: &Operand| matches!(x.data, Data::Half(Half::Bf16, _));
    let pairs = bf16(&a) && bf16(&b) && isa.multiplies_bf16();
    let k = if pairs { k.div_ceil(2) } else { k };
    let t = Blocks::of(tile_size(isa), m, n, k);
    let mut scratch = Scratch::new(ws);
    let b_panels = DisjointMut::new(scratch.take(t.b_floats()));
    let a_panels = DisjointMut::new(scratch.take(t.a_floats()));
    let in_place = a.in_place(pairs).filter(|(_, ld)| !conflicts(t.mr, *ld, n));
    let packs_a = in_place.is_none();
    let m_step = if packs_a { t.mc } else { m };
    let ldc = c.pitch;
    let c_ptr = Shared(c.ptr());
    let mut k0 = 0;
    loop {
        let kc = t.kc.min(k - k0);
        let store = Store { alpha, beta: if k0 == 0 { beta } else { 1.0 }, bias: std::ptr::null() };
        let bias = bias.filter(|_| k0 + kc == k);
        for n0 in (0..n).step_by(t.nc) {
            let nc = t.nc.min(n - n0);
            for m0 in (0..m).step_by(m_step) {
                let mc = m_step.min(m - m0);
                let b_pack = Packing { from: b.t(), step: t.nr, ld: t.nr, n: nc, kc, first: n0, k0, pairs };
                let a_pack = Packing { from: a, step: t.mr, ld: t.ld, n: mc, kc, first: m0, k0, pairs };
                let b_tasks = if m0 == 0 { b_pack.tasks() } else { 0 };
                let a_tasks = if packs_a { a_pack.tasks() } else { 0 };
                pool.run(b_tasks + a_tasks, |i| {
                    // SAFETY: each task writes its own part of the panels, and the workspace holds them all.
                    unsafe {
                        if i < b_tasks {
                            b_pack.run(isa, i, Shared(b_panels.as_ptr()));
                        } else {
                            a_pack.run(isa, i - b_tasks, Shared(a_panels.as_ptr()));
                        }
                    }
                });
                let (rows, cols) = (mc.div_ceil(t.mb), nc.div_ceil(t.nb));
                // SAFETY: packing is over and nothing writes the panels until the next round.
                let (b_packed, a_packed): (&[f32], &[f32]) =
                    unsafe { (b_panels.slice(0, t.b_floats()), a_panels.slice(0, t.a_floats())) };
                pool.run(rows * cols, |i| {
                    // Row by row within a strip of columns: the strip's panels stay in the second-level cache.
                    let (r, j) = (i % rows * t.mb, i / rows * t.nb);
                    let job = Job {
                        rows: t.mb.min(mc - r),
                        cols: t.nb.min(nc - j),
                        k: kc,
                        a: match in_place {
                            None => Elements::of(&a_packed[r / t.mr * panel_floats(kc, t.ld)..]),
                            Some((data, ld)) => data.from((m0 + r) * ld + k0),
                        },
                        lda: in_place.map(|(_, ld)| ld),
                        pairs,
                        b: &b_packed[j / t.nr * panel_floats(kc, t.nr)..],
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

/// Elements of 32 bits to read: floats, or pairs of bf16 with the alignment of one.
#[derive(Clone, Copy)]
struct Elements<'a> {
    ptr: *const f32,
    len: usize,
    of: std::marker::PhantomData<&'a ()>,
}
// SAFETY: they are read, as the slice they come from may be.
unsafe impl Sync for Elements<'_> {}

impl<'a> Elements<'a> {
    fn of(x: &'a [f32]) -> Elements<'a> {
        Elements { ptr: x.as_ptr(), len: x.len(), of: std::marker::PhantomData }
    }

    fn of_pairs(x: &'a [u16]) -> Elements<'a> {
        Elements { ptr: x.as_ptr().cast(), len: x.len() / 2, of: std::marker::PhantomData }
    }

    /// Returns the elements from `at` on.
    fn from(self, at: usize) -> Elements<'a> {
        let at = at.min(self.len);
        Elements { ptr: self.ptr.wrapping_add(at), len: self.len - at, ..self }
    }
}

/// Returns whether the rows of A that a microtile reads at once, and those of C that it writes, lie in too few sets of the first-level
/// cache, which repeat every 4 KiB and hold 8 to 12 lines each: then copying A takes less time than reading it again and again.
fn conflicts(mr: usize, ld: usize, n: usize) -> bool {
    mr > 8 && (ld.is_multiple_of(1024) || ld.is_multiple_of(512) && n > 1024)
}

impl<'a> Operand<'a> {
    /// Returns the elements of an operand that is contiguous along its columns, and how many there are from row to row, if it can be
    /// read where it lies.
    fn in_place(&self, pairs: bool) -> Option<(Elements<'a>, usize)> {
        match self.data {
            _ if self.cs != 1 => None,
            Data::F32(data) => Some((Elements::of(data), self.rs)),
            Data::Half(_, data) if pairs && self.cols.is_multiple_of(2) && self.rs.is_multiple_of(2) => {
                Some((Elements::of_pairs(data), self.rs / 2))
            }
            Data::Half(..) => None,
        }
    }

    /// Returns the elements from (r, c) on.
    fn part(&self, r: usize, c: usize) -> Data<'a> {
        self.data.from(r * self.rs + c * self.cs)
    }

    /// Returns the rows `r..r + rows` of the columns `c..c + cols`.
    fn block(&self, (r, rows): (usize, usize), (c, cols): (usize, usize)) -> Operand<'a> {
        assert!(r + rows <= self.rows && c + cols <= self.cols);
        Operand { data: self.part(r, c), rows, cols, ..*self }
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

/// The packing of an operand's block into panels of `step` of its rows (B is packed as its transpose's rows).
#[derive(Clone, Copy)]
struct Packing<'a> {
    from: Operand<'a>,
    step: usize,
    /// Floats of a panel per column of the block, at least `step`.
    ld: usize,
    /// Rows of the block, from `first`.
    n: usize,
    first: usize,
    /// Columns of the block (the product's depth), from `k0`.
    kc: usize,
    k0: usize,
    /// Of pairs of bf16, which the depth counts.
    pairs: bool,
}

impl Packing<'_> {
    /// Tasks along the depth, where that reads memory in order, else one per panel.
    fn tasks(&self) -> usize {
        match self.along() {
            _ if self.kc == 0 => 0,
            true => self.kc.div_ceil(STRIP),
            false => self.n.div_ceil(self.step),
        }
    }

    fn along(&self) -> bool {
        self.from.rs == 1
    }

    /// # Safety `to` must hold all panels, and nothing else may use the part of task `i`.
    unsafe fn run(&self, isa: Isa, i: usize, to: Shared) {
        let panel = panel_floats(self.kc, self.ld);
        let (p, r) = if self.along() { (i * STRIP, 0) } else { (0, i * self.step) };
        let (depth, n) = if self.along() {
            (STRIP.min(self.kc - p), self.n)
        } else {
            (self.kc, self.step.min(self.n - r))
        };
        let each = if self.pairs { 2 } else { 1 };
        let (first, cols) = (each * (self.k0 + p), each * depth);
        let cols = cols.min(self.from.cols - first);
        let part = Operand { data: self.from.part(self.first + r, first), rows: n, cols, ..self.from };
        // SAFETY: column p of panel r / step begins there.
        let to = unsafe { Shared(to.get().add(r / self.step * panel + p * self.ld)) };
        pack(isa, part, self.pairs, self.step, self.ld, panel, to);
    }
}

dispatch! {
    /// `to` must hold the panels, which must be exclusive to this call.
    fn pack(from: Operand, pairs: bool, step: usize, ld: usize, panel: usize, to: Shared) = pack_body
}

#[inline(always)]
fn pack_body<S: Simd>(s: S, from: Operand, pairs: bool, step: usize, ld: usize, panel: usize, to: Shared) {
    let Operand { data, rows, cols, rs, cs } = from;
    assert!((rows - 1) * rs + (cols - 1) * cs < data.len());
    let data = match data {
        Data::F32(data) => data,
        Data::Half(half, data) => {
            let packed = widen::Packed { half, pairs, step, ld, panel };
            // SAFETY: the largest index was just checked; `to` is the caller's promise.
            return unsafe { packed.write(s, data, from, to.get()) };
        }
    };
    // SAFETY: the largest index was just checked; `to` is the caller's promise.
    unsafe {
        if rs == 1 {
            pack::strip(s, data.as_ptr(), cs, cols, rows, step, ld, panel, to.get());
        } else {
            let panel = std::slice::from_raw_parts_mut(to.get(), cols * ld);
            pack::panel(s, data.as_ptr(), cs, rs, cols, rows, ld, panel);
        }
    }
}

/// One task's rectangle of C.
#[derive(Clone, Copy)]
struct Job<'a> {
    rows: usize,
    cols: usize,
    k: usize,
    a: Elements<'a>,
    /// Row stride of A read in place, or None for packed panels.
    lda: Option<usize>,
    /// The elements are pairs of bf16.
    pairs: bool,
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
    let (a_panel, b_panel) = (panel_floats(k, S::LANES), panel_floats(k, nr));
    assert!(job.b.len() >= cols.div_ceil(nr) * b_panel);
    let right = Right { ptr: job.b.as_ptr(), ld: nr, panel: b_panel };
    match job.lda {
        Some(ld) => {
            assert!(k == 0 || (rows - 1) * ld + k <= job.a.len);
            let left = Left { ptr: job.a.ptr, ld };
            // SAFETY: operands were checked above, C is the caller's promise.
            unsafe {
                match job.pairs {
                    false => block::<S, false>(s, rows, cols, k, left, right, c.get(), ldc, store),
                    true => block_of_pairs::<S, false>(s, rows, cols, k, left, right, c.get(), ldc, store),
                }
            }
        }
        None => {
            assert!(job.a.len >= rows.div_ceil(mr) * a_panel);
            // Every panel of B meets all panels of A, as in `block`.
            for j in (0..cols).step_by(nr) {
                for i in (0..rows).step_by(mr) {
                    // SAFETY: operands were checked above, C is the caller's promise.
                    unsafe {
                        let left = Left { ptr: job.a.ptr.add(i / mr * a_panel), ld: S::LANES };
                        let right = Right { ptr: job.b.as_ptr().add(j / nr * b_panel), ..right };
                        let bias = if store.bias.is_null() { store.bias } else { store.bias.add(j) };
                        let (m, n) = (mr.min(rows - i), nr.min(cols - j));
                        let (to, store) = (c.get().add(i * ldc + j), Store { bias, ..store });
                        match job.pairs {
                            false => block::<S, true>(s, m, n, k, left, right, to, ldc, store),
                            true => block_of_pairs::<S, true>(s, m, n, k, left, right, to, ldc, store),
                        }
                    }
                }
            }
        }
    }
}
