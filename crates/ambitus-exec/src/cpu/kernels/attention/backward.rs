//! Attention backward: P = exp(scale q·k - lse), dV = Pᵀ dO, dS = scale P ∘ (dO Vᵀ - D) with D = rowsum(dO ∘ O), dQ = dS K,
//! dK = dSᵀ Q.

use super::*;
use crate::cpu::kernels::gemm::micro::{Left, Right, Store, block};
use crate::cpu::kernels::math::exp_softmax;
use crate::cpu::kernels::pool::DisjointMut;
use crate::cpu::kernels::scratch::{SLACK, Scratch, padded};
use crate::cpu::kernels::simd::dispatch;
use crate::cpu::kernels::{MatMut, Pool, segment};
use std::ops::Range;

/// Query rows per score tile.
const QT: usize = 128;
/// Rows per task of the preparing pass.
const ROWS: usize = 64;

/// Floats of one thread's workspace.
fn per_thread(spec: &Attention) -> usize {
    2 * padded(spec.head_dim * KT)
        + padded(spec.head_panels() * KT)
        + 2 * padded(spec.head_panels() * QT)
        + 2 * padded(QT * LDS)
}

/// Floats of workspace of [`attention_grad`] for `q_rows` query rows.
pub fn attention_grad_workspace(spec: &Attention, q_rows: usize, _k_rows: usize, threads: usize) -> usize {
    threads.max(1) * per_thread(spec) + padded(q_rows * spec.heads) + SLACK
}

/// Gradients of [`super::attention`]: dq [T, H·hd]; dk, dv [Tk, Hkv·hd] (summed over the query heads of a key head). Rows of no
/// segment get 0.
#[allow(clippy::too_many_arguments)]
pub fn attention_grad(
    pool: &Pool,
    q: Mat,
    k: Mat,
    v: Mat,
    o: Mat,
    lse: Mat,
    d_o: Mat,
    q_seg: &[i32],
    k_seg: &[i32],
    spec: &Attention,
    dq: MatMut,
    dk: MatMut,
    dv: MatMut,
    ws: &mut [f32],
) {
    let segments = check_tables(q_seg, q.rows, k_seg, k.rows);
    spec.check(q.cols, k.cols);
    let same = |m: &MatMut, rows, cols| m.rows == rows && m.cols == cols;
    assert!(v.rows == k.rows && v.cols == k.cols && o.rows == q.rows && o.cols == q.cols);
    assert!(d_o.rows == q.rows && d_o.cols == q.cols);
    assert!(lse.rows == q.rows && lse.cols == spec.heads);
    assert!(same(&dq, q.rows, q.cols) && same(&dk, k.rows, k.cols) && same(&dv, k.rows, k.cols));
    let isa = pool.isa();
    let each = per_thread(spec);
    let mut scratch = Scratch::new(ws);
    let threads = DisjointMut::new(scratch.take(pool.threads() * each));
    let delta = DisjointMut::new(scratch.take(q.rows * spec.heads));
    // Clears the gradients (tiles add to them) and computes D.
    let (q_tasks, k_tasks) = (q.rows.div_ceil(ROWS), k.rows.div_ceil(ROWS));
    pool.run(q_tasks + k_tasks, |i| {
        if i < q_tasks {
            for t in i * ROWS..q.rows.min((i + 1) * ROWS) {
                // SAFETY: one task per row.
                unsafe {
                    dq.row_shared(t).fill(0.0);
                    let d = delta.slice(t * spec.heads, spec.heads);
                    head_dots(isa, o.row(t), d_o.row(t), spec.head_dim, d);
                }
            }
        } else {
            let i = i - q_tasks;
            for t in i * ROWS..k.rows.min((i + 1) * ROWS) {
                // SAFETY: one task per row.
                unsafe {
                    dk.row_shared(t).fill(0.0);
                    dv.row_shared(t).fill(0.0);
                }
            }
        }
    });
    // SAFETY: written above, only read from here on.
    let delta: &[f32] = unsafe { delta.slice(0, q.rows * spec.heads) };
    let g = spec.kv_heads;
    pool.run_with(segments * g, |i, worker| {
        let task = Task {
            q,
            k,
            v,
            d_o,
            lse,
            delta,
            spec,
            head: i % g,
            rows: segment(q_seg, i / g),
            keys: segment(k_seg, i / g),
        };
        // SAFETY: workers that run at once have different numbers.
        let ws = unsafe { threads.slice(worker * each, each) };
        if !task.rows.is_empty() && !task.keys.is_empty() {
            run(isa, &task, &dq, &dk, &dv, ws);
        }
    });
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
    q: Mat<'a>,
    k: Mat<'a>,
    v: Mat<'a>,
    d_o: Mat<'a>,
    lse: Mat<'a>,
    delta: &'a [f32],
    spec: &'a Attention,
    head: usize,
    rows: Range<usize>,
    keys: Range<usize>,
}

dispatch! {
    fn run(task: &Task, dq: &MatMut, dk: &MatMut, dv: &MatMut, ws: &mut [f32]) = run_body
}

#[inline(always)]
fn run_body<S: Simd>(s: S, task: &Task, dq: &MatMut, dk: &MatMut, dv: &MatMut, ws: &mut [f32]) {
    let Task { q, k, v, d_o, spec, .. } = *task;
    let (d, group) = (spec.head_dim, spec.group());
    let mut scratch = Scratch::new(ws);
    let kt = scratch.take(d * KT);
    let vt = scratch.take(d * KT);
    let kp = scratch.take(spec.head_panels() * KT);
    let qp = scratch.take(spec.head_panels() * QT);
    let dop = scratch.take(spec.head_panels() * QT);
    let probs = scratch.take(QT * LDS);
    let grads = scratch.take(QT * LDS);
    let nr = nr::<S>();
    let panels = |x: &[f32], depth: usize| Right { ptr: x.as_ptr(), ld: nr, panel: nr * depth };
    let kv_col = task.head * d;
    for k0 in (0..task.keys.len()).step_by(KT) {
        let m = KT.min(task.keys.len() - k0);
        let key = task.keys.start + k0;
        pack_rows_t(s, &k, key, m, kv_col, d, kt);
        pack_rows_t(s, &v, key, m, kv_col, d, vt);
        pack_rows(s, &k, key, m, kv_col, d, kp);
        for h in 0..group {
            let head = task.head * group + h;
            let col = head * d;
            for q0 in (0..task.rows.len()).step_by(QT) {
                let n = QT.min(task.rows.len() - q0);
                if spec.causal && k0 >= q0 + n {
                    continue;
                }
                let row = task.rows.start + q0;
                pack_rows(s, &q, row, n, col, d, qp);
                pack_rows(s, &d_o, row, n, col, d, dop);
                let left = |x: &Mat| Left { ptr: x.data[row * x.pitch + col..].as_ptr(), ld: x.pitch };
                // SAFETY: operands hold n x d and d x m, the tiles n x m.
                unsafe {
                    let (p, g) = (probs.as_mut_ptr(), grads.as_mut_ptr());
                    block::<S, false>(s, n, m, d, left(&q), panels(kt, d), p, LDS, Store::SET);
                    block::<S, false>(s, n, m, d, left(&d_o), panels(vt, d), g, LDS, Store::SET);
                }
                for i in 0..n {
                    let seen = if spec.causal { (q0 + i + 1).saturating_sub(k0).min(m) } else { m };
                    let lse = task.lse.row(row + i)[head];
                    let delta = task.delta[(row + i) * spec.heads + head];
                    let (p, g) = (&mut probs[i * LDS..][..m], &mut grads[i * LDS..][..m]);
                    p[seen..].fill(0.0);
                    g[seen..].fill(0.0);
                    score_grad(s, &mut p[..seen], &mut g[..seen], spec.scale, lse, delta);
                }
                let (p, g) = (probs.as_ptr(), grads.as_ptr());
                let add = Store::ADD;
                // SAFETY: tiles hold n x m, panels n x d and m x d; this task owns these rows and columns of dq, dk and dv.
                unsafe {
                    let to = dv.ptr().add(key * dv.pitch + kv_col);
                    let left = Left { ptr: p, ld: LDS };
                    block::<S, true>(s, m, d, n, left, panels(dop, n), to, dv.pitch, add);
                    let to = dk.ptr().add(key * dk.pitch + kv_col);
                    let left = Left { ptr: g, ld: LDS };
                    block::<S, true>(s, m, d, n, left, panels(qp, n), to, dk.pitch, add);
                    let to = dq.ptr().add(row * dq.pitch + col);
                    block::<S, false>(s, n, d, m, left, panels(kp, m), to, dq.pitch, add);
                }
            }
        }
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
