//! Attention backward: P = exp(scale q·k - lse), dV = Pᵀ dO, dS = scale P ∘ (dO Vᵀ - D) with D = rowsum(dO ∘ O), dQ = dS K,
//! dK = dSᵀ Q.
//!
//! With a window D is rowsum(P ∘ dO Vᵀ) / rowsum(P), the same number, made of the very products that it is taken from: the sum over keys
//! of dS is then zero to the rounding of dS, as it is where P is kept, and not of products that are much larger. It takes a pass over the
//! scores of its own; texts, which windows are for, are short.

use super::window::{Place, Window, add_dots, add_rows, add_to_rows};
use super::*;
use crate::cpu::kernels::gemm::micro::{Left, Right, Store, block};
use crate::cpu::kernels::math::exp_softmax;
use crate::cpu::kernels::pool::DisjointMut;
use crate::cpu::kernels::scratch::{SLACK, Scratch};
use crate::cpu::kernels::simd::{At, Simd, dispatch, each_vector};
use crate::cpu::kernels::tiles::add_parts;
use crate::cpu::kernels::{MatMut, Pool, Stage, segment};
use std::ops::Range;

/// Query rows per score tile.
const QT: usize = 128;
/// Rows per task of the preparing pass.
const ROWS: usize = 64;

/// Returns the floats of one thread's workspace.
fn per_thread(spec: &Attention, q_rows: usize, windowed: bool, narrow: bool) -> usize {
    (if windowed { padded(2 * q_rows) } else { 0 })
        + 2 * padded(spec.head_dim * KT)
        + padded(spec.head_panels() * KT)
        + 2 * padded(spec.head_panels() * QT)
        + 2 * padded(QT * LDS)
        + 2 * extra(narrow, spec.head_dim * QT)
        + 3 * extra(narrow, spec.head_dim * KT)
        // dq is summed over the tiles of keys, so as a whole: of one segment, at most all rows.
        + extra(narrow, q_rows * spec.group() * spec.head_dim)
}

/// Returns the floats of workspace of [`attention_grad`] for `q_rows` query rows; `narrow`: some operand or gradient has 16 bits.
pub fn attention_grad_workspace(spec: &Attention, q_rows: usize, threads: usize, narrow: bool) -> usize {
    workspace(spec, q_rows, 0, threads, narrow)
}

/// With `sums` floats for each head, of what tasks sum in the tables of a window.
pub(super) fn workspace(spec: &Attention, q_rows: usize, sums: usize, threads: usize, narrow: bool) -> usize {
    let shared = padded(q_rows * spec.heads) + padded(sums * spec.heads);
    threads.max(1) * per_thread(spec, q_rows, sums > 0, narrow) + shared + SLACK
}

/// Gradients of [`super::attention`]: dq [T, H·hd]; dk, dv [Tk, Hkv·hd] (summed over the query heads of a key head). Rows of no
/// segment get 0.
#[allow(clippy::too_many_arguments)]
pub fn attention_grad<'a>(
    pool: &Pool,
    q: impl Into<Rows<'a>>,
    k: impl Into<Rows<'a>>,
    v: impl Into<Rows<'a>>,
    o: impl Into<Rows<'a>>,
    lse: Mat,
    d_o: impl Into<Rows<'a>>,
    q_seg: &[i32],
    k_seg: &[i32],
    spec: &Attention,
    dq: impl Into<RowsMut<'a>>,
    dk: impl Into<RowsMut<'a>>,
    dv: impl Into<RowsMut<'a>>,
    ws: &mut [f32],
) {
    let (qkv, of_o) = ([q.into(), k.into(), v.into()], (o.into(), lse, d_o.into()));
    let grads = [dq.into(), dk.into(), dv.into()];
    run_all(pool, qkv, of_o, [q_seg, k_seg], spec, None, grads, ws);
}

/// [`attention_grad`], perhaps with a window and the gradients of its tables: then every query head has its own key head, and one
/// table is both sides'.
#[allow(clippy::too_many_arguments)]
pub(super) fn run_all(
    pool: &Pool,
    [q, k, v]: [Rows; 3],
    (o, lse, d_o): (Rows, Mat, Rows),
    [q_seg, k_seg]: [&[i32]; 2],
    spec: &Attention,
    window: Option<(Window, [MatMut; 2])>,
    [dq, dk, dv]: [RowsMut; 3],
    ws: &mut [f32],
) {
    let ((q_rows, q_cols), (k_rows, k_cols)) = (q.shape(), k.shape());
    let segments = check_tables(q_seg, q_rows, k_seg, k_rows);
    spec.check(q_cols, k_cols);
    assert!(v.shape() == k.shape() && o.shape() == q.shape() && d_o.shape() == q.shape());
    assert!(lse.rows == q_rows && lse.cols == spec.heads);
    assert!(dq.shape() == q.shape() && dk.shape() == k.shape() && dv.shape() == k.shape());
    let (window, tables) = window.map_or((None, None), |(window, tables)| (Some(window), Some(tables)));
    window.iter().for_each(|w| w.check(spec.head_dim));
    let isa = pool.isa();
    let narrow = [q, k, v, d_o].iter().any(Rows::is_half) || [&dq, &dk, &dv].iter().any(|d| d.is_half());
    let each = per_thread(spec, q_rows, window.is_some(), narrow);
    let mut scratch = Scratch::new(ws);
    let threads = DisjointMut::new(scratch.take(pool.threads() * each));
    let delta = DisjointMut::new(scratch.take(q_rows * spec.heads));
    let (g, sums) = (spec.kv_heads, window.map_or(0, |w| w.sums()));
    let all_near = DisjointMut::new(scratch.take(segments * g * sums));
    // Clears the gradients (tiles add to them) and computes D.
    let (q_tasks, k_tasks) = (q_rows.div_ceil(ROWS), k_rows.div_ceil(ROWS));
    pool.run(q_tasks + k_tasks, |i| {
        let mut a = Stage::new();
        let mut b = Stage::new();
        if i < q_tasks {
            for t in i * ROWS..q_rows.min((i + 1) * ROWS) {
                // SAFETY: one task per row.
                unsafe {
                    dq.write(isa, t, &mut a, |dq| dq.fill(0.0));
                    let d = delta.slice(t * spec.heads, spec.heads);
                    let (o, d_o) = (o.row(isa, t, &mut a), d_o.row(isa, t, &mut b));
                    head_dots(isa, o, d_o, spec.head_dim, d);
                }
            }
        } else {
            let i = i - q_tasks;
            for t in i * ROWS..k_rows.min((i + 1) * ROWS) {
                // SAFETY: one task per row.
                unsafe {
                    dk.write(isa, t, &mut a, |dk| dk.fill(0.0));
                    dv.write(isa, t, &mut b, |dv| dv.fill(0.0));
                }
            }
        }
    });
    // SAFETY: written above, only read from here on.
    let delta: &[f32] = unsafe { delta.slice(0, q_rows * spec.heads) };
    pool.run_with(segments * g, |i, worker| {
        let task = Task {
            q,
            k,
            v,
            d_o,
            lse,
            delta,
            spec,
            window,
            narrow,
            head: i % g,
            rows: segment(q_seg, i / g),
            keys: segment(k_seg, i / g),
        };
        // SAFETY: workers that run at once have different numbers.
        let ws = unsafe { threads.slice(worker * each, each) };
        // SAFETY: each task has its own.
        let near = unsafe { all_near.slice(i * sums, sums) };
        near.fill(0.0);
        if !task.rows.is_empty() && !task.keys.is_empty() {
            run(isa, &task, &dq, &dk, &dv, near, ws);
        }
    });
    for (table, mut d) in tables.into_iter().flatten().enumerate() {
        // SAFETY: written above, only read from here on.
        let parts: &[f32] = unsafe { all_near.slice(0, segments * g * sums) };
        for r in 0..d.rows {
            let first = parts.get(table * sums / 2 + r * d.cols..).unwrap_or(&[]);
            add_parts(isa, first, sums, segments * g, 0.0, d.row_mut(r));
        }
    }
}

dispatch! {
    /// Dot products of the heads of two rows.
    fn head_dots(a: &[f32], b: &[f32], d: usize, out: &mut [f32]) = head_dots_body
}

#[inline(always)]
fn head_dots_body<S: Simd>(s: S, a: &[f32], b: &[f32], d: usize, out: &mut [f32]) {
    for ((a, b), out) in a.chunks_exact(d).zip(b.chunks_exact(d)).zip(out) {
        let (av, bv) = (a.chunks_exact(S::LANES), b.chunks_exact(S::LANES));
        let rest: f32 = av.remainder().iter().zip(bv.remainder()).map(|(x, y)| x * y).sum();
        let mut acc = s.zero();
        for (x, y) in av.zip(bv) {
            acc = s.fma(s.load(x), s.load(y), acc);
        }
        *out = s.sum(acc) + rest;
    }
}

/// One segment, the query heads of one key head.
struct Task<'a> {
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    d_o: Rows<'a>,
    lse: Mat<'a>,
    delta: &'a [f32],
    spec: &'a Attention,
    window: Option<Window<'a>>,
    /// Some matrix has 16 bits.
    narrow: bool,
    head: usize,
    rows: Range<usize>,
    keys: Range<usize>,
}

dispatch! {
    /// `near`: sums of the gradients of a window's keys and values.
    fn run(task: &Task, dq: &RowsMut, dk: &RowsMut, dv: &RowsMut, near: &mut [f32], ws: &mut [f32]) = run_body
}

#[inline(always)]
fn run_body<S: Simd>(
    s: S,
    task: &Task,
    dq: &RowsMut,
    dk: &RowsMut,
    dv: &RowsMut,
    near: &mut [f32],
    ws: &mut [f32],
) {
    let Task { q, k, v, d_o, spec, .. } = *task;
    let (d, group) = (spec.head_dim, spec.group());
    let mut scratch = Scratch::new(ws);
    let [kt, vt] = [(); 2].map(|()| scratch.take(d * KT));
    let kp = scratch.take(spec.head_panels() * KT);
    let [qp, dop] = [(); 2].map(|()| scratch.take(spec.head_panels() * QT));
    let [probs, grads] = [(); 2].map(|()| scratch.take(QT * LDS));
    let nr = nr::<S>();
    let panels = |x: &[f32], depth: usize| Right { ptr: x.as_ptr(), ld: nr, panel: nr * depth };
    let (isa, narrow, kv_col) = (s.isa(), task.narrow, task.head * d);
    let [q_tile, do_tile] = [(); 2].map(|()| scratch.take(extra(narrow, d * QT)));
    let [kv_tile, dk_tile, dv_tile] = [(); 3].map(|()| scratch.take(extra(narrow, d * KT)));
    let (width, q_rows) = (group * d, task.rows.len());
    let dq_all = scratch.take(extra(narrow, q_rows * width));
    dq_all.fill(0.0);
    let dq_at = (task.rows.start, task.head * width);
    let (sum_dq, dq_pitch) = sums(dq, dq_at, dq_all, width);
    // With a window, D first: of each row its two sums.
    let own = scratch.take(if task.window.is_some() { 2 * q_rows } else { 0 });
    own.fill(0.0);
    let (own, _) = own.as_chunks_mut::<2>();
    let passes = if task.window.is_some() { [true, false].iter() } else { [false].iter() };
    for (&sums_d, k0) in passes.flat_map(|pass| (0..task.keys.len()).step_by(KT).map(move |k0| (pass, k0))) {
        let m = KT.min(task.keys.len() - k0);
        let key = task.keys.start + k0;
        let (tile, r, c) = v.tile(isa, (key, m), (kv_col, d), kv_tile);
        pack_rows_t(s, &tile, r, m, c, d, vt);
        let (tile, r, c) = k.tile(isa, (key, m), (kv_col, d), kv_tile);
        pack_rows_t(s, &tile, r, m, c, d, kt);
        pack_rows(s, &tile, r, m, c, d, kp);
        dk_tile.fill(0.0);
        dv_tile.fill(0.0);
        let (sum_dk, dk_pitch) = sums(dk, (key, kv_col), dk_tile, d);
        let (sum_dv, dv_pitch) = sums(dv, (key, kv_col), dv_tile, d);
        for h in 0..group {
            let (head, col) = (task.head * group + h, (task.head * group + h) * d);
            for q0 in (0..task.rows.len()).step_by(QT) {
                let n = QT.min(task.rows.len() - q0);
                if spec.causal && k0 >= q0 + n {
                    continue;
                }
                let packed = m;
                let m = spec.seen(m, q0 + n, k0, nr);
                let row = task.rows.start + q0;
                let q = q.tile(isa, (row, n), (col, d), q_tile);
                let d_o = d_o.tile(isa, (row, n), (col, d), do_tile);
                pack_rows(s, &q.0, q.1, n, q.2, d, qp);
                pack_rows(s, &d_o.0, d_o.1, n, d_o.2, d, dop);
                let left = |(x, r, c): &(Mat, usize, usize)| Left {
                    ptr: x.data[r * x.pitch + c..].as_ptr(),
                    ld: x.pitch,
                };
                // SAFETY: operands hold n x d and at least d x m, the tiles n x m.
                unsafe {
                    let (p, g) = (probs.as_mut_ptr(), grads.as_mut_ptr());
                    block::<S, false>(s, n, m, d, left(&q), panels(kt, d), p, LDS, Store::SET);
                    block::<S, false>(s, n, m, d, left(&d_o), panels(vt, d), g, LDS, Store::SET);
                }
                let place = Place { query: q0, keys: (k0, m) };
                let sums = own.get_mut(q0..q0 + n).unwrap_or_default();
                rows_grads(s, task, head, (place, n), [&q, &d_o], [&mut *probs, &mut *grads], sums, sums_d);
                if sums_d {
                    continue;
                }
                let (p, g, add) = (probs.as_ptr(), grads.as_ptr(), Store::ADD);
                // SAFETY: tiles hold n x m, panels n x d and at least m x d; this task owns these rows and columns of dq, dk and dv.
                unsafe {
                    let left = Left { ptr: p, ld: LDS };
                    block::<S, true>(s, m, d, n, left, panels(dop, n), sum_dv, dv_pitch, add);
                    let left = Left { ptr: g, ld: LDS };
                    block::<S, true>(s, m, d, n, left, panels(qp, n), sum_dk, dk_pitch, add);
                    let to = sum_dq.add(q0 * dq_pitch + h * d);
                    block::<S, false>(s, n, d, m, left, panels(kp, packed), to, dq_pitch, add);
                }
                // SAFETY: this task owns these rows and columns of dq, and no two of its rows are alive at a time.
                let dq = |i: usize| unsafe {
                    std::slice::from_raw_parts_mut(sum_dq.add((q0 + i) * dq_pitch + h * d), d)
                };
                near_grads(s, task, (place, n), [&*probs, &*grads], [&q, &d_o], dq, near);
            }
        }
        // SAFETY: this task owns these rows and columns of dk and dv.
        unsafe {
            settle(isa, dk, (key, m), (kv_col, d), dk_tile);
            settle(isa, dv, (key, m), (kv_col, d), dv_tile);
        }
    }
    // SAFETY: this task owns these rows and columns of dq.
    unsafe { settle(isa, dq, (dq_at.0, q_rows), (dq_at.1, width), dq_all) };
}

/// Row `i` of a head's tile of rows.
#[inline(always)]
fn head_row<'a>((x, r, c): &(Mat<'a>, usize, usize), i: usize, d: usize) -> &'a [f32] {
    &x.data[(r + i) * x.pitch + c..][..d]
}

/// Products of `n` query rows with keys and values to their probabilities and dS, in place, or with a window first what these keys add to
/// the rows' `sums`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn rows_grads<S: Simd>(
    s: S,
    task: &Task,
    head: usize,
    (at, n): (Place, usize),
    of: [&(Mat, usize, usize); 2],
    [p, g]: [&mut [f32]; 2],
    sums: &mut [[f32; 2]],
    adds: bool,
) {
    let (d, m) = (task.spec.head_dim, at.keys.1);
    for i in 0..n {
        let at = Place { query: at.query + i, ..at };
        let lines = [&mut p[i * LDS..][..m], &mut g[i * LDS..][..m]];
        let of = of.map(|x| head_row(x, i, d));
        match sums.get_mut(i) {
            Some(sums) if adds => add_delta(s, task, head, at, of, lines, sums),
            sums => row_grad(s, task, head, at, sums.map(|[pg, p]| *pg / *p), of, lines),
        }
    }
}

/// Products of a query row with keys and values to its probabilities and dS, in place; `own`: its D, where that is not the one of
/// all rows.
#[inline(always)]
fn row_grad<S: Simd>(
    s: S,
    task: &Task,
    head: usize,
    at: Place,
    own: Option<f32>,
    [q, d_o]: [&[f32]; 2],
    [p, g]: [&mut [f32]; 2],
) {
    let (spec, row, (k0, m)) = (task.spec, task.rows.start + at.query, at.keys);
    let seen = if spec.causal { (at.query + 1).saturating_sub(k0).min(m) } else { m };
    p[seen..].fill(0.0);
    g[seen..].fill(0.0);
    if let Some(window) = &task.window {
        add_dots(s, q, &window.keys, at, 1.0, p);
        add_dots(s, d_o, &window.values, at, 1.0, g);
    }
    let lse = task.lse.row(row)[head];
    let delta = own.unwrap_or_else(|| task.delta[row * spec.heads + head]);
    score_grad(s, &mut p[..seen], &mut g[..seen], spec.scale, lse, delta);
}

/// Adds what keys give to D of a query row with a window, of products in place: the sums of P dP and of P.
#[inline(always)]
fn add_delta<S: Simd>(
    s: S,
    task: &Task,
    head: usize,
    at: Place,
    of: [&[f32]; 2],
    [p, g]: [&mut [f32]; 2],
    sums: &mut [f32; 2],
) {
    // dS with D = 0 is scale P dP.
    row_grad(s, task, head, at, Some(0.0), of, [&mut *p, &mut *g]);
    let [mut of_pg, mut of_p] = [s.zero(); 2];
    each_vector!(S, g.len(), |at| {
        of_pg = s.add(of_pg, at.load(s, g));
        of_p = s.add(of_p, at.load(s, p));
    });
    sums[0] += s.sum(of_pg) / task.spec.scale;
    sums[1] += s.sum(of_p);
}

/// Of a window's keys and values, what `n` query rows add to their own gradients `dq` and to theirs: from their probabilities and dS.
#[inline(always)]
fn near_grads<'d, S: Simd>(
    s: S,
    task: &Task,
    (at, n): (Place, usize),
    [p, ds]: [&[f32]; 2],
    of: [&(Mat, usize, usize); 2],
    dq: impl Fn(usize) -> &'d mut [f32],
    near: &mut [f32],
) {
    let Some(window) = &task.window else { return };
    let (d, m, places) = (task.spec.head_dim, at.keys.1, window.keys.rows);
    let (keys, values) = near.split_at_mut(places * d);
    for i in 0..n {
        let at = Place { query: at.query + i, ..at };
        let [p, ds] = [p, ds].map(|x| &x[i * LDS..][..m]);
        let [q, d_o] = of.map(|x| head_row(x, i, d));
        add_rows(s, ds, &window.keys, at, dq(i));
        add_to_rows(s, ds, q, at, places, keys);
        add_to_rows(s, p, d_o, at, places, values);
    }
}

/// Scores to probabilities and dP to dS, in place.
#[inline(always)]
fn score_grad<S: Simd>(s: S, p: &mut [f32], g: &mut [f32], scale: f32, lse: f32, delta: f32) {
    let row = [s.splat(scale), s.splat(-lse), s.splat(delta)];
    let mut ps = p.chunks_exact_mut(S::LANES);
    let mut gs = g.chunks_exact_mut(S::LANES);
    for (p, g) in (&mut ps).zip(&mut gs) {
        let (e, ds) = score_grad_of(s, s.load(p), s.load(g), row);
        s.store(p, e);
        s.store(g, ds);
    }
    let (p, g) = (ps.into_remainder(), gs.into_remainder());
    if !p.is_empty() {
        let (e, ds) = score_grad_of(s, s.load_part(p), s.load_part(g), row);
        s.store_part(p, e);
        s.store_part(g, ds);
    }
}

/// One vector of [`score_grad`]; `row` is scale, -lse, D.
#[inline(always)]
fn score_grad_of<S: Simd>(s: S, x: S::V, dp: S::V, row: [S::V; 3]) -> (S::V, S::V) {
    let [scale, neg_lse, delta] = row;
    let p = exp_softmax(s, s.fma(x, scale, neg_lse));
    (p, s.mul(s.mul(p, scale), s.sub(dp, delta)))
}
