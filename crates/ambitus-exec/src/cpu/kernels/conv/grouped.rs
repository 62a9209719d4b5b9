//! Grouped (and dense) convolution as products with windows.
//!
//! A padded copy of one group's rows, `xp [rows + K - 1, c]`, makes window t the contiguous floats `xp[t * c..][..K * c]`: a matrix
//! of overlapping rows that the microkernel reads in place, as A (forward) or as B (weight gradient).

use super::Conv1d;
use crate::cpu::kernels::gemm::micro::{Left, Right, Store, block, nr};
use crate::cpu::kernels::pool::DisjointMut;
use crate::cpu::kernels::scratch::{SLACK, Scratch, padded};
use crate::cpu::kernels::simd::{Simd, dispatch};
use crate::cpu::kernels::tiles::SegmentTiles;
use crate::cpu::kernels::{Mat, MatMut, Pool, segment};
use std::ops::Range;

/// Rows per task.
const ROWS: usize = 256;
/// Depth of a product at most: a panel of weights stays near.
const DEPTH: usize = 512;
/// Taps and output channels per task of the weight gradient.
const TAPS: usize = 8;
const OUTS: usize = 64;
/// Tasks per thread at least, before short segments go together.
const LEAST_TASKS: usize = 4;
/// Columns of the widest packed panel of any instruction set.
const NR_MAX: usize = 32;

/// Returns the floats of a padded copy for `taps` taps; the product may read (not use) a panel beyond it.
fn window(channels: usize, taps: usize) -> usize {
    padded((ROWS + taps - 1) * channels + NR_MAX)
}

/// The work of a convolution over rows: tiles of a segment, or several whole segments where those are short. Weights that a product has read
/// are then used for all of them, and sums over rows are long.
#[derive(Clone, Copy)]
struct Batches<'a> {
    seg: &'a [i32],
    tiles: SegmentTiles<'a>,
    /// Segments of a batch; 1: a batch is a tile.
    together: usize,
}

impl<'a> Batches<'a> {
    /// As many segments go together as fit a copy of [`ROWS`] windows of `taps` rows, and as make `least` batches.
    fn new(seg: &'a [i32], rows: usize, taps: usize, least: usize) -> Self {
        let tiles = SegmentTiles::with_height(seg, rows, ROWS);
        let longest = (0..tiles.segments()).map(|s| segment(seg, s).len()).max().unwrap_or(0);
        let fit = (ROWS + taps - 1) / (longest + taps - 1).max(1);
        Batches { seg, tiles, together: fit.min(tiles.segments() / least).max(1) }
    }

    /// Returns the number of batches.
    fn inside(&self) -> usize {
        match self.together {
            1 => self.tiles.inside(),
            n => self.tiles.segments().div_ceil(n),
        }
    }

    /// Returns it, and beyond it the tiles of the rows of no segment.
    fn all(&self) -> usize {
        self.inside() + self.tiles.all() - self.tiles.inside()
    }

    /// Returns the rows of a tile of no segment.
    fn outside(&self, i: usize) -> Range<usize> {
        self.tiles.get(i - self.inside() + self.tiles.inside()).1
    }

    /// Returns what batch `i` has: each time a segment, and rows of it.
    fn pieces(&self, i: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<'a> {
        let (seg, n) = (self.seg, self.together);
        let (segments, cut) = match n {
            1 => {
                let (s, rows) = self.tiles.get(i);
                let s = s.expect("a batch is inside segments");
                (s..s + 1, Some(rows))
            }
            _ => (i * n..self.tiles.segments().min((i + 1) * n), None),
        };
        let pieces = segments.map(move |s| (segment(seg, s), cut.clone().unwrap_or(segment(seg, s))));
        pieces.filter(|(_, rows)| !rows.is_empty())
    }
}

/// Packed weights of one group.
fn packed(from: usize, to: usize, kernel: usize) -> usize {
    padded(to.next_multiple_of(NR_MAX) * from * kernel)
}

pub fn workspace(spec: &Conv1d, threads: usize) -> usize {
    let (ci, co) = spec.per_group();
    let forward = |from, to| {
        spec.groups * packed(from, to, spec.kernel) + threads.max(1) * (window(from, spec.kernel) + SLACK)
    };
    let (taps, outs) = (TAPS.min(spec.kernel), OUTS.min(co));
    let weight = threads.max(1)
        * (window(ci, taps) + padded((ROWS + taps - 1) * outs) + padded(outs * taps * ci) + SLACK);
    forward(ci, co).max(forward(co, ci)).max(weight)
}

/// Copies rows `first..first + n` (which may lie outside `inside`: zeros there) of columns `c..c + width` densely to `to`.
fn copy_rows(x: &Mat, inside: &Range<usize>, first: isize, n: usize, c: usize, width: usize, to: &mut [f32]) {
    for (i, row) in to[..n * width].chunks_exact_mut(width).enumerate() {
        let t = first + i as isize;
        if t >= inside.start as isize && t < inside.end as isize {
            row.copy_from_slice(&x.row(t as usize)[c..c + width]);
        } else {
            row.fill(0.0);
        }
    }
}

/// The convolution `spec`; `transposed`: w belongs to the convolution whose input gradient this is.
#[allow(clippy::too_many_arguments)]
pub fn forward(
    pool: &Pool,
    x: Mat,
    seg: &[i32],
    w: &[f32],
    bias: Option<&[f32]>,
    spec: &Conv1d,
    transposed: bool,
    mut out: MatMut,
    mut scratch: Scratch,
) {
    let (isa, groups) = (pool.isa(), spec.groups);
    // Sums do not depend on which segments go together: as many as leave work for all threads.
    let st = Batches::new(seg, x.rows, spec.kernel, LEAST_TASKS * pool.threads());
    let (ci, co) = spec.per_group();
    let size = packed(ci, co, spec.kernel);
    let weights = DisjointMut::new(scratch.take(groups * size));
    let each = window(ci, spec.kernel);
    let windows = DisjointMut::new(scratch.take(pool.threads() * each));
    out.zero_pads();
    pool.run(groups, |g| {
        // SAFETY: one group's panels per task.
        let to = unsafe { weights.slice(g * size, size) };
        pack_weights(isa, spec, &w[g * ci * co * spec.kernel..], transposed, to);
    });
    // SAFETY: packing is over.
    let weights: &[f32] = unsafe { weights.slice(0, groups * size) };
    pool.run_with(st.all() * groups, |i, worker| {
        let (i, g) = (i / groups, i % groups);
        // SAFETY: workers that run at once have different numbers.
        let xp = unsafe { windows.slice(worker * each, each) };
        if i >= st.inside() {
            // SAFETY: tasks own different rows or columns of out.
            return st.outside(i).for_each(|t| unsafe { columns(&out, t, g * co, co) }.fill(0.0));
        }
        let mut at = 0;
        for (inside, rows) in st.pieces(i) {
            let n = rows.len() + spec.kernel - 1;
            let first = rows.start as isize - spec.pad_left as isize;
            copy_rows(&x, &inside, first, n, g * ci, ci, &mut xp[at * ci..]);
            at += n;
        }
        let w = &weights[g * size..][..size];
        let bias = bias.map(|b| &b[g * co..][..co]);
        windows_times_weights(isa, spec, xp, w, bias, (st, i), g, &out);
    });
}

/// Returns columns `c..c + n` of row `t`.
///
/// # Safety
/// No other task may use them.
#[allow(clippy::mut_from_ref)]
unsafe fn columns<'a>(m: &'a MatMut, t: usize, c: usize, n: usize) -> &'a mut [f32] {
    assert!(t < m.rows && c + n <= m.cols);
    // SAFETY: inside the view; exclusive by the caller.
    unsafe { std::slice::from_raw_parts_mut(m.ptr().add(t * m.pitch + c), n) }
}

dispatch! {
    /// Packs one group's weights as B [(k, c), o] of the product.
    fn pack_weights(spec: &Conv1d, w: &[f32], transposed: bool, to: &mut [f32]) = pack_weights_body
}

#[inline(always)]
fn pack_weights_body<S: Simd>(s: S, spec: &Conv1d, w: &[f32], transposed: bool, to: &mut [f32]) {
    let (ci, co) = spec.per_group();
    let (k, nr) = (spec.kernel, nr::<S>());
    let depth = k * ci;
    let w = &w[..ci * co * k];
    // w is [o, c, k]; for the transposed convolution it is [c, o, k] in this one's letters, with the taps reversed.
    let (step_o, step_c) = if transposed { (k, co * k) } else { (ci * k, k) };
    let tap = |j: usize| if transposed { k - 1 - j } else { j };
    let at = |o: usize, p: usize| o / nr * nr * depth + p * nr + o % nr;
    let to = &mut to[..co.next_multiple_of(nr) * depth];
    if co % nr != 0 {
        to[co / nr * nr * depth..].fill(0.0);
    }
    let (whole_o, whole_k) = (co / 8 * 8, k / 8 * 8);
    let mut tile = [0.0; 64];
    for c in 0..ci {
        for o in (0..whole_o).step_by(8) {
            for j in (0..whole_k).step_by(8) {
                let from = &w[o * step_o + c * step_c + j..];
                assert!(from.len() >= 7 * step_o + 8);
                // SAFETY: the assertion covers the reads, the tile is 8 x 8.
                unsafe { s.transpose8(from.as_ptr(), step_o, tile.as_mut_ptr(), 8) };
                for (i, row) in tile.chunks_exact(8).enumerate() {
                    let p = at(o, tap(j + i) * ci + c);
                    to[p..p + 8].copy_from_slice(row);
                }
            }
        }
        for o in 0..co {
            let done = if o < whole_o { whole_k } else { 0 };
            for j in done..k {
                to[at(o, tap(j) * ci + c)] = w[o * step_o + c * step_c + j];
            }
        }
    }
}

dispatch! {
    fn windows_times_weights(
        spec: &Conv1d, xp: &[f32], w: &[f32], bias: Option<&[f32]>, of: (Batches, usize), group: usize, out: &MatMut,
    ) = windows_times_weights_body
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn windows_times_weights_body<S: Simd>(
    s: S,
    spec: &Conv1d,
    xp: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    (st, batch): (Batches, usize),
    group: usize,
    out: &MatMut,
) {
    let (ci, co) = spec.per_group();
    let (depth, nr) = (spec.kernel * ci, nr::<S>());
    assert!(w.len() >= co.next_multiple_of(nr) * depth && (group + 1) * co <= out.cols);
    let step = depth.div_ceil(depth.div_ceil(DEPTH));
    // A part of a panel stays near while the windows of all segments pass.
    for (p, j) in (0..depth).step_by(step).flat_map(|p| (0..co).step_by(nr).map(move |j| (p, j))) {
        let (k, width) = (step.min(depth - p), nr.min(co - j));
        let store = Store {
            beta: if p == 0 { 0.0 } else { 1.0 },
            bias: bias.filter(|_| p + k == depth).map_or(std::ptr::null(), |b| b[j..].as_ptr()),
            ..Store::SET
        };
        let mut at = 0;
        for (_, rows) in st.pieces(batch) {
            let n = rows.len();
            assert!(xp.len() >= (at + n + spec.kernel - 1) * ci && rows.end <= out.rows);
            // SAFETY: windows, rows and weights were checked above, bias has co floats; this task owns these rows and columns of out.
            unsafe {
                let a = Left { ptr: xp.as_ptr().add(at * ci + p), ld: ci };
                let b = Right { ptr: w.as_ptr().add(j * depth + p * nr), ld: nr, panel: nr * depth };
                let c = out.ptr().add(rows.start * out.pitch + group * co + j);
                block::<S, false>(s, n, width, k, a, b, c, out.pitch, store);
            }
            at += n + spec.kernel - 1;
        }
    }
}

#[allow(clippy::too_many_arguments)]
pub fn grad_weight(
    pool: &Pool,
    x: Mat,
    dy: Mat,
    seg: &[i32],
    spec: &Conv1d,
    acc: f32,
    dw: &mut [f32],
    mut scratch: Scratch,
) {
    let st = Batches::new(seg, x.rows, spec.kernel, 1);
    let isa = pool.isa();
    let (ci, co) = spec.per_group();
    let (taps, outs) = (TAPS.min(spec.kernel), OUTS.min(co));
    let (tap_tasks, out_tasks) = (spec.kernel.div_ceil(taps), co.div_ceil(outs));
    let sizes = [window(ci, taps), padded((ROWS + taps - 1) * outs), padded(outs * taps * ci)];
    let each = sizes.iter().sum::<usize>();
    let buffers = DisjointMut::new(scratch.take(pool.threads() * each));
    let dw = DisjointMut::new(dw);
    pool.run_with(spec.groups * out_tasks * tap_tasks, |i, worker| {
        let (g, i) = (i / (out_tasks * tap_tasks), i % (out_tasks * tap_tasks));
        let (o0, k0) = (i / tap_tasks * outs, i % tap_tasks * taps);
        let (outs, taps) = (outs.min(co - o0), taps.min(spec.kernel - k0));
        // SAFETY: workers that run at once have different numbers.
        let own = unsafe { buffers.slice(worker * each, each) };
        let (xp, own) = own.split_at_mut(sizes[0]);
        let (dyp, sum) = own.split_at_mut(sizes[1]);
        let sum = &mut sum[..outs * taps * ci];
        sum.fill(0.0);
        for i in 0..st.inside() {
            // Windows between two segments meet gradients of zero.
            let (mut at, first_out) = (0, g * co + o0);
            for (inside, rows) in st.pieces(i) {
                let n = rows.len();
                let first = rows.start as isize + k0 as isize - spec.pad_left as isize;
                copy_rows(&x, &inside, first, n + taps - 1, g * ci, ci, &mut xp[at * ci..]);
                let (to, first) = (&mut dyp[at * outs..], rows.start as isize);
                copy_rows(&dy, &rows, first, n + taps - 1, first_out, outs, to);
                at += n + taps - 1;
            }
            if at > 0 {
                outputs_times_windows(isa, dyp, xp, at + 1 - taps, outs, ci, taps, sum);
            }
        }
        for o in 0..outs {
            let first = (g * co + o0 + o) * ci;
            for c in 0..ci {
                // SAFETY: a task owns these outputs' taps k0..k0 + taps.
                let to = unsafe { dw.slice((first + c) * spec.kernel + k0, taps) };
                for (k, to) in to.iter_mut().enumerate() {
                    let v = sum[(o * taps + k) * ci + c];
                    *to = if acc == 0.0 { v } else { acc * *to + v };
                }
            }
        }
    });
}

dispatch! {
    /// `sum[o, (k, c)] += Σ_t dy[t, o] window[t, (k, c)]`
    fn outputs_times_windows(
        dy: &[f32], xp: &[f32], rows: usize, outs: usize, channels: usize, taps: usize, sum: &mut [f32],
    ) = outputs_times_windows_body
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn outputs_times_windows_body<S: Simd>(
    s: S,
    dy: &[f32],
    xp: &[f32],
    rows: usize,
    outs: usize,
    channels: usize,
    taps: usize,
    sum: &mut [f32],
) {
    let width = taps * channels;
    assert!(dy.len() >= rows * outs && sum.len() >= outs * width);
    assert!(xp.len() >= (rows - 1) * channels + width.next_multiple_of(nr::<S>()));
    let a = Left { ptr: dy.as_ptr(), ld: outs };
    let b = Right { ptr: xp.as_ptr(), ld: channels, panel: nr::<S>() };
    // SAFETY: checked above; the last panel reads (and drops) columns inside the copy's slack.
    unsafe { block::<S, true>(s, outs, width, rows, a, b, sum.as_mut_ptr(), width, Store::ADD) };
}
