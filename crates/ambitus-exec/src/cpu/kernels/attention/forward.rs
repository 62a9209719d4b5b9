//! Attention forward.

use super::one::{self, HeadRows};
use super::window::{Place, Window, add_dots, add_rows};
use super::*;
use crate::cpu::kernels::gemm::micro::{Left, Right, Store, block};
use crate::cpu::kernels::math::exp_softmax;
use crate::cpu::kernels::pool::DisjointMut;
use crate::cpu::kernels::scratch::{SLACK, Scratch};
use crate::cpu::kernels::simd::dispatch;
use crate::cpu::kernels::{Half, MatMut, Pool, Stage, segment};
use std::ops::Range;

/// Query rows per task: keys and values are packed once for them.
const QB: usize = 256;
/// Query rows per score tile.
const QT: usize = 56;

/// Returns the floats of one thread's workspace.
fn per_thread(spec: &Attention, narrow: bool) -> usize {
    padded(spec.head_dim * KT)
        + padded(spec.head_panels() * KT)
        + padded(QT * LDS)
        + 2 * padded(QB * spec.group())
        + extra(narrow, spec.head_dim * KT)
        + 2 * extra(narrow, QB * spec.group() * spec.head_dim)
}

/// Returns the floats of workspace of [`attention`]; `narrow`: some operand or o has 16 bits.
pub fn attention_workspace(spec: &Attention, threads: usize, narrow: bool) -> usize {
    threads.max(1) * per_thread(spec, narrow) + SLACK
}

/// `o = softmax(scale · q kᵀ) v` per head and segment, and `lse = ln Σ exp(scale · q·k)`.
///
/// q, o [T, H·hd]; k, v [Tk, Hkv·hd]; lse `[T, H]`. Rows of no segment and queries without keys give o = 0 and lse = 0.
#[allow(clippy::too_many_arguments)]
pub fn attention<'a>(
    pool: &Pool,
    q: impl Into<Rows<'a>>,
    k: impl Into<Rows<'a>>,
    v: impl Into<Rows<'a>>,
    q_seg: &[i32],
    k_seg: &[i32],
    spec: &Attention,
    o: impl Into<RowsMut<'a>>,
    lse: MatMut,
    ws: &mut [f32],
) {
    run_all(pool, [q.into(), k.into(), v.into()], [q_seg, k_seg], spec, None, (o.into(), lse), ws);
}

/// [`attention`], perhaps with a window: then every query head has its own key head, and one table is both sides'.
pub(super) fn run_all(
    pool: &Pool,
    [q, k, v]: [Rows; 3],
    [q_seg, k_seg]: [&[i32]; 2],
    spec: &Attention,
    window: Option<Window>,
    (o, lse): (RowsMut, MatMut),
    ws: &mut [f32],
) {
    let ((q_rows, q_cols), (k_rows, k_cols)) = (q.shape(), k.shape());
    let segments = check_tables(q_seg, q_rows, k_seg, k_rows);
    spec.check(q_cols, k_cols);
    window.iter().for_each(|w| w.check(spec.head_dim));
    assert!(v.shape() == k.shape() && o.shape() == q.shape());
    assert!(lse.rows == q_rows && lse.cols == spec.heads);
    let (isa, g) = (pool.isa(), spec.kv_heads);
    let narrow = [q, k, v].iter().any(Rows::is_half) || o.is_half();
    let each = per_thread(spec, narrow);
    let ws = DisjointMut::new(Scratch::new(ws).take(pool.threads() * each));
    // Rows that no task covers, and pads.
    let end = q_seg[segments] as usize;
    for s in 0..segments {
        let rows = segment(q_seg, s);
        if segment(k_seg, s).is_empty() {
            clear(isa, &o, &lse, rows);
        }
    }
    clear(isa, &o, &lse, end..q_rows);
    let blocks = |s: usize| segment(q_seg, s).len().div_ceil(QB);
    let tasks: usize = (0..segments).map(blocks).sum();
    let (o, lse) = (&o, &lse);
    pool.run_with(tasks * g, |i, worker| {
        let (mut block, head) = (i / g, i % g);
        let mut s = 0;
        while block >= blocks(s) {
            block -= blocks(s);
            s += 1;
        }
        let (rows, keys) = (segment(q_seg, s), segment(k_seg, s));
        if keys.is_empty() {
            return;
        }
        let first = rows.start + block * QB;
        let local = block * QB;
        let task = Task { q, k, v, spec, window, head, rows: first..rows.end.min(first + QB), local, keys };
        // SAFETY: workers that run at once have different numbers.
        let ws = unsafe { ws.slice(worker * each, each) };
        if head == 0 {
            for t in task.rows.clone() {
                // SAFETY: zeroing pads only; this task owns the rows' pads because it has head 0.
                unsafe {
                    // Of 16-bit rows, whoever writes the last column does it.
                    if let RowsMut::F32(o) = o {
                        pads(o, t);
                    }
                    pads(lse, t);
                }
            }
        }
        run(isa, &task, o, lse, ws);
    });
}

/// Zeroes rows, with their pads.
fn clear(isa: Isa, o: &RowsMut, lse: &MatMut, rows: Range<usize>) {
    let mut stage = Stage::new();
    for t in rows {
        // SAFETY: called before tasks start.
        unsafe {
            o.write(isa, t, &mut stage, |o| o.fill(0.0));
            lse.row_shared(t).fill(0.0);
        }
    }
}

/// Zeroes the pads of row `t` without touching its columns.
///
/// # Safety
/// No other task may touch these pads.
unsafe fn pads(m: &MatMut, t: usize) {
    for c in m.cols..m.owned() {
        // SAFETY: inside the row the view owns.
        unsafe { *m.ptr().add(t * m.pitch + c) = 0.0 };
    }
}

/// Some query rows of one segment, for the query heads of one key head.
struct Task<'a> {
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    spec: &'a Attention,
    window: Option<Window<'a>>,
    head: usize,
    rows: Range<usize>,
    /// Position of `rows.start` in the segment.
    local: usize,
    keys: Range<usize>,
}

dispatch! {
    fn run(task: &Task, o: &RowsMut, lse: &MatMut, ws: &mut [f32]) = run_body
}

#[inline(always)]
fn run_body<S: Simd>(s: S, task: &Task, o: &RowsMut, lse: &MatMut, ws: &mut [f32]) {
    let Task { q, k, v, spec, .. } = *task;
    let (d, group, n) = (spec.head_dim, spec.group(), task.rows.len());
    let mut scratch = Scratch::new(ws);
    let kt = scratch.take(d * KT);
    let vp = scratch.take(spec.head_panels() * KT);
    let scores = scratch.take(QT * LDS);
    let max = scratch.take(QB * group);
    let sum = scratch.take(QB * group);
    let narrow = [q, k, v].iter().any(Rows::is_half) || o.is_half();
    let kv_tile = scratch.take(extra(narrow, d * KT));
    let [q_tile, o_tile] = [(); 2].map(|()| scratch.take(extra(narrow, QB * group * d)));
    let (isa, width) = (s.isa(), group * d);
    let (first_row, first_col) = (task.rows.start, task.head * width);
    let (q, q_row, q_col) = q.tile(isa, (first_row, n), (first_col, width), q_tile);
    let (sum_o, o_pitch) = sums(o, (first_row, first_col), o_tile, width);
    // SAFETY: this task owns these rows and columns of o, and no two of its rows are alive at a time.
    let out =
        |i: usize, h: usize| unsafe { std::slice::from_raw_parts_mut(sum_o.add(i * o_pitch + h * d), d) };
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    let nr = nr::<S>();
    let last = task.local + n;
    for k0 in (0..task.keys.len()).step_by(KT) {
        if spec.causal && k0 >= last {
            break;
        }
        let m = KT.min(task.keys.len() - k0);
        let at = ((task.keys.start + k0, m), (task.head * d, d));
        if n == 1 && group <= QT && task.window.is_none() {
            let query = &q.data[q_row * q.pitch + q_col..][..width];
            // SAFETY: this task owns this row and these columns of o.
            let out = unsafe { std::slice::from_raw_parts_mut(sum_o, width) };
            one_row(s, task, (k0, m), query, kv_tile, scores, max, sum, out);
            continue;
        }
        let (tile, r, c) = k.tile(isa, at.0, at.1, kv_tile);
        pack_rows_t(s, &tile, r, m, c, d, kt);
        let (tile, r, c) = v.tile(isa, at.0, at.1, kv_tile);
        pack_rows(s, &tile, r, m, c, d, vp);
        let keys = Right { ptr: kt.as_ptr(), ld: nr, panel: nr * d };
        let values = Right { ptr: vp.as_ptr(), ld: nr, panel: nr * m };
        for h in 0..group {
            for q0 in (0..n).step_by(QT) {
                let rows = QT.min(n - q0);
                let at = task.local + q0;
                if spec.causal && k0 >= at + rows {
                    continue;
                }
                let m = spec.seen(m, at + rows, k0, nr);
                let queries = &q.data[(q_row + q0) * q.pitch + q_col + h * d..];
                let query = |i: usize| &queries[i * q.pitch..][..d];
                let queries = Left { ptr: queries.as_ptr(), ld: q.pitch };
                let store = Store { alpha: spec.scale, ..Store::SET };
                // SAFETY: q, the packed keys and the score tile hold rows x d, at least d x m and rows x m.
                unsafe { block::<S, false>(s, rows, m, d, queries, keys, scores.as_mut_ptr(), LDS, store) };
                for i in 0..rows {
                    let line = &mut scores[i * LDS..][..m];
                    if spec.causal {
                        let seen = (at + i + 1).saturating_sub(k0).min(m);
                        line[seen..].fill(f32::NEG_INFINITY);
                    }
                    if let Some(window) = &task.window {
                        let place = Place { query: at + i, keys: (k0, m) };
                        add_dots(s, query(i), &window.keys, place, spec.scale, line);
                    }
                    let state = h * QB + q0 + i;
                    softmax_step(s, line, &mut max[state], &mut sum[state], out(q0 + i, h), k0 == 0);
                }
                let p = Left { ptr: scores.as_ptr(), ld: LDS };
                let store = if k0 == 0 { Store::SET } else { Store::ADD };
                // SAFETY: the tile holds rows x m, the packed values at least m x d, and this task owns these rows and columns of o.
                unsafe {
                    let to = sum_o.add(q0 * o_pitch + h * d);
                    block::<S, false>(s, rows, d, m, p, values, to, o_pitch, store)
                };
                if let Some(window) = &task.window {
                    for (i, line) in scores.chunks(LDS).enumerate().take(rows) {
                        let place = Place { query: at + i, keys: (k0, m) };
                        add_rows(s, line, &window.values, place, out(q0 + i, h));
                    }
                }
            }
        }
    }
    for h in 0..group {
        let head = task.head * group + h;
        for i in 0..n {
            let (state, row) = (h * QB + i, task.rows.start + i);
            // SAFETY: this task owns these elements of lse.
            let l = unsafe { &mut *lse.ptr().add(row * lse.pitch + head) };
            scale_by(s, out(i, h), 1.0 / sum[state]);
            *l = max[state] + sum[state].ln();
        }
    }
    // SAFETY: this task owns these rows and columns of o.
    unsafe { settle(isa, o, (first_row, n), (first_col, width), o_tile) };
}

/// What one query row sees of the keys `k0..k0 + m`, for all its heads.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn one_row<S: Simd>(
    s: S,
    task: &Task,
    (k0, m): (usize, usize),
    q: &[f32],
    kv_tile: &mut [f32],
    scores: &mut [f32],
    max: &mut [f32],
    sum: &mut [f32],
    out: &mut [f32],
) {
    let Task { spec, .. } = task;
    let d = spec.head_dim;
    let m = if spec.causal { m.min(task.local + 1 - k0) } else { m };
    let (r, c) = (task.keys.start + k0, task.head * d);
    // bf16 is widened in registers.
    macro_rules! read {
        ($rows:expr, |$x:ident| $body:expr) => {
            if let Rows::Half(Half::Bf16, of) = $rows {
                let $x = HeadRows { of, r, c, d };
                $body
            } else {
                let (of, r, c) = $rows.tile(s.isa(), (r, m), (c, d), kv_tile);
                let $x = HeadRows { of, r, c, d };
                $body
            }
        };
    }
    for h in 0..spec.group() {
        let (line, part) = (&mut scores[h * LDS..][..m], h * d..(h + 1) * d);
        read!(task.k, |keys| one::scores(s, &q[part.clone()], keys, spec.scale, line));
        let state = h * QB;
        softmax_step(s, line, &mut max[state], &mut sum[state], &mut out[part], k0 == 0);
    }
    for h in 0..spec.group() {
        let (line, part) = (&scores[h * LDS..][..m], h * d..(h + 1) * d);
        read!(task.v, |values| one::weighted(s, line, values, k0 == 0, &mut out[part]));
    }
}

/// Turns a row of scores into exp(score - max), updates the running maximum and sum, and rescales the output so far.
#[inline(always)]
fn softmax_step<S: Simd>(s: S, line: &mut [f32], max: &mut f32, sum: &mut f32, out: &mut [f32], first: bool) {
    let (body, tail) = line.split_at_mut(line.len() / S::LANES * S::LANES);
    let mut top = s.splat(*max);
    for x in body.chunks_exact(S::LANES) {
        top = s.max(top, s.load(x));
    }
    let new = tail.iter().copied().fold(s.max_lane(top), f32::max);
    let m = s.splat(new);
    let mut total = s.zero();
    for x in body.chunks_exact_mut(S::LANES) {
        let e = exp_softmax(s, s.sub(s.load(x), m));
        total = s.add(total, e);
        s.store(x, e);
    }
    let mut rest = 0.0;
    if !tail.is_empty() {
        let e = exp_softmax(s, s.sub(s.load_part(tail), m));
        s.store_part(tail, e);
        rest = tail.iter().sum();
    }
    let added = s.sum(total) + rest;
    if first {
        *sum = added;
    } else {
        let keep = (*max - new).exp();
        *sum = *sum * keep + added;
        if keep != 1.0 {
            scale_by(s, out, keep);
        }
    }
    *max = new;
}

#[inline(always)]
fn scale_by<S: Simd>(s: S, x: &mut [f32], by: f32) {
    let v = s.splat(by);
    let mut parts = x.chunks_exact_mut(S::LANES);
    for x in &mut parts {
        let y = s.mul(s.load(x), v);
        s.store(x, y);
    }
    for x in parts.into_remainder() {
        *x *= by;
    }
}
