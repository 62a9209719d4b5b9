//! Layers of the generator and its discriminators, in the project's tensor names.

use crate::common::codec::layers::table;
use crate::common::codec::rows::Table;
use crate::common::codec::weights::Blocks;
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{Builder, DType, TensorType, ValueId};

const EPS: f32 = 1e-5;

/// Sequences of equal length that lie end to end: the slices of all clips, at one rate; or one window of a sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// How many.
    pub count: usize,
    /// Rows of each.
    pub len: usize,
    /// Of a window, the input that says which of its rows hold sound; without, all do.
    pub told: Option<Table>,
}

impl Runs {
    /// Returns `count` sequences of `len` rows.
    pub fn of(count: usize, len: usize) -> Runs {
        Runs { count, len, told: None }
    }

    /// Returns a window of `len` rows of `stride` samples each, of which an input says how many hold sound.
    pub fn window(len: usize, stride: usize) -> Runs {
        Runs { told: Some(Table::rows(stride)), ..Runs::of(1, len) }
    }

    /// Returns the rows of all.
    pub fn rows(self) -> usize {
        self.count * self.len
    }

    /// Returns their segment table i32 `[count + 1]`, counted in f32, which is exact for fewer than 2^24 rows; of a window its input.
    pub fn table(self, b: &mut Builder<'_>) -> ValueId {
        if let Some(told) = self.told {
            return table(b, told);
        }
        let at = b.iota(DType::F32, &[self.count + 1], 0);
        let len = b.fill(TensorType::f32(&[1]), self.len as f32);
        let at = b.scale(at, len);
        b.cast(at, DType::I32)
    }

    /// Returns x `[rows, C]` with zeros after each sequence, to a multiple of n rows.
    fn padded(self, b: &mut Builder<'_>, x: ValueId, n: usize) -> (Runs, ValueId) {
        let more = self.len.next_multiple_of(n) - self.len;
        if more == 0 {
            return (self, x);
        }
        let width = b.dim(x, 1);
        let x = b.reshape(x, &[self.count, self.len, width]);
        let ty = b.ty(x);
        let none = b.fill(ty.with_shape(&[self.count, more, width]), 0.0);
        let x = b.concat(&[x, none], 1);
        let longer = Runs { len: self.len + more, ..self };
        (longer, b.reshape(x, &[longer.rows(), width]))
    }
}

/// Returns the weight `<scope>.weight` of a convolution, which the project stores as a length of each row along the first axis and a
/// direction, w = g v / |v| (Salimans & Kingma, arXiv 1602.07868): `weight_g` `[O, 1, 1]` and `weight_v` `[O, C, K]`.
pub fn normed(b: &mut Builder<'_>, dims: [usize; 3]) -> ValueId {
    normed_as(b, dims, &dims, &[dims[0], 1, 1])
}

/// [`normed`] of a convolution that the project gives an axis of length 1 at the end.
pub fn normed_flat(b: &mut Builder<'_>, dims: [usize; 3]) -> ValueId {
    let [o, c, k] = dims;
    normed_as(b, dims, &[o, c, k, 1], &[o, 1, 1, 1])
}

fn normed_as(b: &mut Builder<'_>, dims: [usize; 3], v_dims: &[usize], g_dims: &[usize]) -> ValueId {
    let [o, c, k] = dims;
    let g = b.parameter("weight_g", g_dims);
    let v = b.parameter("weight_v", v_dims);
    let v = b.reshape(v, &[o, c * k]);
    let g = b.reshape(g, &[o]);
    let squares = b.mul(v, v);
    let squares = b.reduce(ReduceKind::Sum, squares, 1);
    let squares = b.reshape(squares, &[o]);
    let length = b.unary(UnaryKind::Sqrt, squares);
    let by = b.div(g, length);
    let w = b.scale_rows(v, by);
    b.reshape(w, &[o, c, k])
}

/// Applies a convolution of one tap with a normed weight, `[R, In]` to `[R, out]`.
pub fn pointwise_normed(b: &mut Builder<'_>, scope: &str, x: ValueId, out: usize) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = normed(b, [out, inner, 1]);
        let w = b.reshape(w, &[out, inner]);
        let bias = b.parameter("bias", &[out]);
        b.linear(x, w, Some(bias))
    })
}

/// Applies a convolution to the segments of x `[R, In]`, `taps` taps of which `pad` lie before the row, to `[R, out]`.
pub fn conv(
    b: &mut Builder<'_>,
    scope: &str,
    x: ValueId,
    [out, taps]: [usize; 2],
    pad: usize,
    segs: ValueId,
) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = b.parameter("weight", &[out, inner, taps]);
        let bias = b.parameter("bias", &[out]);
        b.conv1d(x, w, bias, segs, 1, pad)
    })
}

/// Applies a convolution of each column by itself to the segments of x `[R, C]`, its taps `dilation` rows apart: one of neighbours, with
/// zeros between its taps.
pub fn depthwise(
    b: &mut Builder<'_>,
    scope: &str,
    x: ValueId,
    taps: usize,
    dilation: usize,
    segs: ValueId,
) -> ValueId {
    b.scope(scope, |b| {
        let width = b.dim(x, 1);
        let mut w = b.parameter("weight", &[width, 1, taps]);
        if dilation > 1 {
            let each = b.reshape(w, &[width, taps, 1]);
            let none = b.fill(TensorType::f32(&[width, taps, dilation - 1]), 0.0);
            let apart = b.concat(&[each, none], 2);
            let apart = b.reshape(apart, &[width, 1, taps * dilation]);
            w = b.slice(apart, 2, 0, (taps - 1) * dilation + 1);
        }
        let bias = b.parameter("bias", &[width]);
        b.conv1d(x, w, bias, segs, width, (taps - 1) * dilation / 2)
    })
}

/// Applies a centred convolution with a normed weight to sequences of x `[R, C]` that keeps the channels, its taps `d` rows apart: an
/// ordinary one on the d sequences of every d-th row.
pub fn dilated(b: &mut Builder<'_>, scope: &str, x: ValueId, taps: usize, d: usize, runs: Runs) -> ValueId {
    b.scope(scope, |b| {
        let width = b.dim(x, 1);
        let w = normed(b, [width, width, taps]);
        let bias = b.parameter("bias", &[width]);
        let (longer, x) = runs.padded(b, x, d);
        let told = longer.told.map(|told| Table { dilation: d, ..told });
        let apart = Runs { count: longer.count * d, len: longer.len / d, told };
        let x = interleaved(b, x, longer.count, [apart.len, d]);
        let segs = apart.table(b);
        let y = b.conv1d(x, w, bias, segs, 1, taps / 2);
        let y = interleaved(b, y, longer.count, [d, apart.len]);
        cut(b, y, longer, runs.len)
    })
}

/// Returns rows i * n + j of each of `count` sequences of m * n rows as its rows j * m + i.
fn interleaved(b: &mut Builder<'_>, x: ValueId, count: usize, [m, n]: [usize; 2]) -> ValueId {
    if m == 1 || n == 1 {
        return x;
    }
    let width = b.dim(x, 1);
    let x = b.reshape(x, &[count, m, n, width]);
    let x = b.permute(x, &[0, 2, 1, 3]);
    b.reshape(x, &[count * m * n, width])
}

/// Returns the first `len` rows of each sequence.
fn cut(b: &mut Builder<'_>, x: ValueId, runs: Runs, len: usize) -> ValueId {
    if runs.len == len {
        return x;
    }
    let width = b.dim(x, 1);
    let x = b.reshape(x, &[runs.count, runs.len, width]);
    let x = b.slice(x, 1, 0, len);
    b.reshape(x, &[runs.count * len, width])
}

/// Applies a centred convolution with a stride to sequences of x `[R, C]`, with the weight w `[O, C / groups, K]`: one over blocks of
/// `stride` rows ([`Blocks::strided`]). Gives ceil(rows / stride) rows of each.
pub fn strided(
    b: &mut Builder<'_>,
    x: ValueId,
    [w, bias]: [ValueId; 2],
    groups: usize,
    stride: usize,
    runs: Runs,
) -> (Runs, ValueId) {
    let width = b.dim(x, 1);
    let [out, of_group, taps] = [0, 1, 2].map(|axis| b.dim(w, axis));
    let pad = taps / 2;
    if stride == 1 {
        let segs = runs.table(b);
        return (runs, b.conv1d(x, w, bias, segs, groups, pad));
    }
    let over = Blocks::strided(taps, stride, pad);
    // Tap k meets row j of block h where h * stride + j = k + before * stride - pad.
    let w = widened(b, w, over.before * stride - pad, over.taps * stride);
    let w = b.reshape(w, &[out, of_group, over.taps, stride]);
    let w = b.permute(w, &[0, 3, 1, 2]);
    let w = b.reshape(w, &[out, stride * of_group, over.taps]);
    let (longer, x) = runs.padded(b, x, stride);
    let blocks = Runs::of(runs.count, longer.len / stride);
    let mut x = b.reshape(x, &[blocks.rows(), stride * width]);
    if groups > 1 {
        x = b.reshape(x, &[blocks.rows(), stride, groups, of_group]);
        x = b.permute(x, &[0, 2, 1, 3]);
        x = b.reshape(x, &[blocks.rows(), stride * width]);
    }
    let segs = blocks.table(b);
    (blocks, b.conv1d(x, w, bias, segs, groups, over.before))
}

/// Applies a transposed convolution to sequences of x `[R, In]`, with the normed weight `[In, out, taps]`, to `rate` rows of each: one that
/// makes blocks of rows ([`Blocks::transposed`]).
pub fn transposed(
    b: &mut Builder<'_>,
    scope: &str,
    x: ValueId,
    [out, taps]: [usize; 2],
    rate: usize,
    runs: Runs,
) -> (Runs, ValueId) {
    b.scope(scope, |b| {
        let (inner, pad) = (b.dim(x, 1), (taps - rate) / 2);
        let over = Blocks::transposed(taps, rate, pad);
        let w = normed(b, [inner, out, taps]);
        // Row r of a block meets tap k of the block h before it, where (taps - 1 - h) * rate + r is k and what is left out at the start.
        let after = over.taps - 1 - over.before;
        let w = widened(b, w, after * rate - pad, over.taps * rate);
        let w = b.reshape(w, &[inner, out, over.taps, rate]);
        let w = b.reverse(w, 2);
        let w = b.permute(w, &[3, 1, 0, 2]);
        let w = b.reshape(w, &[rate * out, inner, over.taps]);
        let bias = b.parameter("bias", &[out]);
        let bias = b.concat(&vec![bias; rate], 0);
        let segs = runs.table(b);
        let y = b.conv1d(x, w, bias, segs, 1, over.before);
        let told = runs.told.map(|told| Table { stride: told.stride / rate, ..told });
        let longer = Runs { count: runs.count, len: runs.len * rate, told };
        (longer, b.reshape(y, &[longer.rows(), out]))
    })
}

/// Returns w `[A, B, K]` as `[A, B, len]`, `before` zeros before its taps and others after.
fn widened(b: &mut Builder<'_>, w: ValueId, before: usize, len: usize) -> ValueId {
    let ty = b.ty(w);
    let [first, second, taps] = [0, 1, 2].map(|axis| ty.shape[axis]);
    let zeros =
        |b: &mut Builder<'_>, n: usize| (n > 0).then(|| b.fill(ty.with_shape(&[first, second, n]), 0.0));
    let (low, high) = (zeros(b, before), zeros(b, len - before - taps));
    let parts: Vec<ValueId> = low.into_iter().chain([w]).chain(high).collect();
    b.concat(&parts, 2)
}

/// Computes the layer norm over the columns of `[T, D]` (arXiv 1607.06450), with the parameters `<scope>.gamma` and `<scope>.beta` `[D]`.
pub fn layer_norm(b: &mut Builder<'_>, scope: &str, x: ValueId) -> ValueId {
    b.scope(scope, |b| {
        let width = b.dim(x, 1);
        let gamma = b.parameter("gamma", &[width]);
        let beta = b.parameter("beta", &[width]);
        b.layer_norm(x, gamma, beta, EPS)
    })
}

/// Returns 1 / (1 + e^-x), as (1 + tanh(x / 2)) / 2.
pub fn sigmoid(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let half = b.fill(TensorType::f32(&[1]), 0.5);
    let x = b.scale(x, half);
    let t = b.unary(UnaryKind::Tanh, x);
    let t = b.scale(t, half);
    let rest = b.fill_like(t, 0.5);
    b.add(t, rest)
}

/// Returns |x|.
pub fn absolute(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let negative = b.unary(UnaryKind::Neg, x);
    b.binary(BinaryKind::Max, x, negative)
}

/// Returns x times a constant.
pub fn times(b: &mut Builder<'_>, x: ValueId, by: f32) -> ValueId {
    let by = b.fill(TensorType::f32(&[1]), by);
    b.scale(x, by)
}

/// Returns the sum of all elements of a matrix, f32 `[1]`.
pub fn total(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let rows = b.reduce(ReduceKind::Sum, x, 1);
    let all = b.reduce(ReduceKind::Sum, rows, 0);
    b.reshape(all, &[1])
}
