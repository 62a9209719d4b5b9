//! What an attention adds for keys near their query: keys and values of their own for each small distance (Shaw, Uszkoreit & Vaswani,
//! arXiv 1803.02155), added to those of a tile where the tile comes by.

use super::{Attention, backward, forward};
use crate::cpu::kernels::simd::{At, Simd, each_vector};
use crate::cpu::kernels::{Mat, MatMut, Pool, Rows, RowsMut};

/// Keys and values for the distances -W .. W of a key from its query: `[2W + 1, hd]` each, for all heads.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// Added to keys.
    pub keys: Mat<'a>,
    /// Added to values.
    pub values: Mat<'a>,
}

impl Window<'_> {
    /// Panics unless both tables are of an odd number of rows, `d` wide.
    pub(super) fn check(&self, d: usize) {
        let (keys, values) = (&self.keys, &self.values);
        let alike = (keys.rows, keys.cols) == (values.rows, values.cols);
        assert!(alike && keys.cols == d && keys.rows % 2 == 1, "window of {} x {}", keys.rows, keys.cols);
    }

    /// Returns the floats of the gradients of both tables.
    pub(super) fn sums(&self) -> usize {
        2 * self.keys.rows * self.keys.cols
    }
}

/// Where a query stands before some keys.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The query's place in its segment.
    pub query: usize,
    /// The first key's, and how many there are.
    pub keys: (usize, usize),
}

impl Place {
    /// Returns the rows of a table of `n` that the keys meet, each with the key's number.
    #[inline(always)]
    fn meets(&self, n: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Place { query, keys: (k0, m) } = *self;
        let row = |key: usize| (key + n / 2).saturating_sub(query).min(n);
        (row(k0)..row(k0 + m)).map(move |r| (r, query + r - n / 2 - k0))
    }
}

/// line[key] += by * x · table[distance].
#[inline(always)]
pub(super) fn add_dots<S: Simd>(s: S, x: &[f32], table: &Mat, at: Place, by: f32, line: &mut [f32]) {
    for (r, key) in at.meets(table.rows) {
        let (row, mut sum) = (table.row(r), s.zero());
        each_vector!(S, row.len(), |at| {
            sum = s.fma(at.load(s, x), at.load(s, row), sum);
        });
        line[key] += by * s.sum(sum);
    }
}

/// out += Σ line[key] table[distance].
#[inline(always)]
pub(super) fn add_rows<S: Simd>(s: S, line: &[f32], table: &Mat, at: Place, out: &mut [f32]) {
    for (r, key) in at.meets(table.rows) {
        add_times(s, line[key], table.row(r), out);
    }
}

/// sums[distance] += line[key] x: `n` rows as long as x.
#[inline(always)]
pub(super) fn add_to_rows<S: Simd>(s: S, line: &[f32], x: &[f32], at: Place, n: usize, sums: &mut [f32]) {
    for (r, key) in at.meets(n) {
        add_times(s, line[key], x, &mut sums[r * x.len()..][..x.len()]);
    }
}

#[inline(always)]
fn add_times<S: Simd>(s: S, by: f32, x: &[f32], out: &mut [f32]) {
    let by = s.splat(by);
    each_vector!(S, x.len(), |at| {
        let sum = s.fma(by, at.load(s, x), at.load(s, out));
        at.store(s, out, sum);
    });
}

/// [`super::attention`] of `q`, `k` and `v` `[T, H·hd]` over one segment table, with a window: scores of query t and key u are
/// scale · q_t · (k_u + keys of u - t), and o_t sums v_u + values of u - t. Workspace as there.
pub fn windowed_attention(
    pool: &Pool,
    qkv: [Rows; 3],
    window: Window,
    seg: &[i32],
    spec: &Attention,
    (o, lse): (RowsMut, MatMut),
    ws: &mut [f32],
) {
    forward::run_all(pool, qkv, [seg, seg], spec, Some(window), (o, lse), ws);
}

/// Returns the floats of workspace of [`windowed_attention_grad`] with tables of `near` rows.
pub fn windowed_attention_grad_workspace(
    spec: &Attention,
    (rows, segments, near): (usize, usize, usize),
    threads: usize,
    narrow: bool,
) -> usize {
    backward::workspace(spec, rows, segments * 2 * near * spec.head_dim, threads, narrow)
}

/// Gradients of [`windowed_attention`]: of q, k and v, and of both tables, which are sums over heads and segments in order.
#[allow(clippy::too_many_arguments)]
pub fn windowed_attention_grad(
    pool: &Pool,
    qkv: [Rows; 3],
    window: Window,
    (o, lse, d_o): (Rows, Mat, Rows),
    seg: &[i32],
    spec: &Attention,
    grads: [RowsMut; 3],
    tables: [MatMut; 2],
    ws: &mut [f32],
) {
    backward::run_all(pool, qkv, (o, lse, d_o), [seg, seg], spec, Some((window, tables)), grads, ws);
}
