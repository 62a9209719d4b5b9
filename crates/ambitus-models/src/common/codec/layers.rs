//! Layers over rows, in the tensor names of the module that is in scope. Past the sound's end convolutions give zero, and a
//! snake keeps zero.

use super::rows::Table;
use super::weights::Blocks;
use super::{DILATIONS, TAPS};
use ambitus_ir::ops::elementwise::BinaryKind;
use ambitus_ir::{Builder, TensorType, ValueId};

/// Applies a block's residual units of every dilation, named from `first` on, to `[T, C]`.
pub fn residual_units(
    b: &mut Builder<'_>,
    first: usize,
    mut x: ValueId,
    groups: usize,
    stride: usize,
) -> ValueId {
    for (i, dilation) in DILATIONS.into_iter().enumerate() {
        x = residual_unit(b, &(first + i).to_string(), x, groups, dilation, stride);
    }
    x
}

/// Computes x + conv1(snake(conv7(snake(x)))), conv7 dilated and in groups, of `[T, C]`.
fn residual_unit(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    groups: usize,
    dilation: usize,
    stride: usize,
) -> ValueId {
    b.scope(&format!("{name}.block"), |b| {
        let width = b.dim(x, 1);
        let h = snake(b, "0", x);
        let h = dilated(b, "1", h, TAPS, groups, dilation, stride);
        let h = snake(b, "2", h);
        let h = conv(b, "3", h, [width, width, 1], 1, stride);
        b.add(x, h)
    })
}

/// Computes x + sin^2(a x) / (a + 1e-9) with the parameter `<name>.alpha` `[C]` (Ziyin et al., arXiv 2006.08195).
pub fn snake(b: &mut Builder<'_>, name: &str, x: ValueId) -> ValueId {
    let width = b.dim(x, 1);
    let alpha = b.frozen_parameter(&format!("{name}.alpha"), &[width]);
    b.snake(x, alpha)
}

/// Returns a centred convolution that keeps the rows, of `[in, out, taps]`.
pub fn conv(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    [from, to, taps]: [usize; 3],
    groups: usize,
    stride: usize,
) -> ValueId {
    let rows = table(b, Table::rows(stride));
    conv_of(b, name, x, [from, to, taps], groups, rows)
}

fn conv_of(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    [from, to, taps]: [usize; 3],
    groups: usize,
    rows: ValueId,
) -> ValueId {
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, from / groups, taps]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    b.conv1d(x, w, bias, rows, groups, taps / 2)
}

/// Returns a centred convolution of `taps` taps of every d-th row that keeps the channels: an ordinary one on the d sequences of such
/// rows, one after the other.
pub fn dilated(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    taps: usize,
    groups: usize,
    d: usize,
    stride: usize,
) -> ValueId {
    let shape = b.ty(x).shape;
    let (rows, width) = (shape[0], shape[1]);
    if d == 1 {
        return conv(b, name, x, [width, width, taps], groups, stride);
    }
    let w = b.frozen_parameter(&format!("{name}.weight"), &[width, width / groups, taps]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[width]);
    let segments = table(b, Table { dilation: d, ..Table::rows(stride) });
    let x = transpose_rows(b, x, rows / d, d);
    let y = b.conv1d(x, w, bias, segments, groups, taps / 2);
    transpose_rows(b, y, d, rows / d)
}

/// Returns max(x, slope x), slope below 1; of slope 0 it is a rectifier. At zero its gradient is the slope, as torch has it: a tie of the two
/// is the first one's.
pub fn leaky(b: &mut Builder<'_>, x: ValueId, slope: f32) -> ValueId {
    let slope = b.fill(TensorType::f32(&[1]), slope);
    let low = b.scale(x, slope);
    b.binary(BinaryKind::Max, low, x)
}

/// Returns rows i * n + j of x `[m * n, C]` to rows j * m + i.
fn transpose_rows(b: &mut Builder<'_>, x: ValueId, m: usize, n: usize) -> ValueId {
    let width = b.dim(x, 1);
    let x = b.reshape(x, &[m, n, width]);
    let x = b.permute(x, &[1, 0, 2]);
    b.reshape(x, &[m * n, width])
}

/// Returns a strided convolution of x `[T, C]` to `[T / rate, to]`, rows of `stride` samples; the sound is whole rows of these.
pub fn strided(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    to: usize,
    rate: usize,
    stride: usize,
) -> ValueId {
    let rows = table(b, Table::rows(stride));
    blocks(b, name, x, to, rate, rows)
}

/// Returns [`strided`] of a sound that need not be whole rows: one that has begun is read and is none of the result.
pub fn strided_to_end(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    to: usize,
    rate: usize,
    stride: usize,
) -> ValueId {
    let begun = table(b, Table { begun: true, ..Table::rows(stride) });
    let y = blocks(b, name, x, to, rate, begun);
    // A row that is none would be read again where the next convolution's last block has begun.
    let (rows, whole) = (b.dim(y, 0), table(b, Table::rows(stride)));
    let one = b.fill(TensorType::f32(&[1, 1]), 1.0);
    let kept = b.segment_broadcast(one, whole, rows);
    let kept = b.reshape(kept, &[rows]);
    b.scale_rows(y, kept)
}

fn blocks(b: &mut Builder<'_>, name: &str, x: ValueId, to: usize, rate: usize, table: ValueId) -> ValueId {
    let shape = b.ty(x).shape;
    let wide = rate * shape[1];
    let blocks = b.reshape(x, &[shape[0] / rate, wide]);
    conv_of(b, name, blocks, [wide, to, 3], 1, table)
}

/// Returns a convolution of x `[T, C]` of `taps` taps, an odd number and centred, with a stride to `[T / rate, to]`, rows of `stride`
/// samples. What is past the sound's end must be zero in x.
pub fn strided_centred(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    [to, taps]: [usize; 2],
    rate: usize,
    stride: usize,
) -> ValueId {
    let (shape, over) = (b.ty(x).shape, Blocks::strided(taps, rate, taps / 2));
    let wide = rate * shape[1];
    let x = b.reshape(x, &[shape[0] / rate, wide]);
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, wide, over.taps]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    let rows = table(b, Table::rows(stride));
    b.conv1d(x, w, bias, rows, 1, over.before)
}

/// Returns a transposed convolution of x `[T, C]`, rows of `stride` samples, to `[T * rate, to]`.
pub fn transposed(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    to: usize,
    rate: usize,
    stride: usize,
) -> ValueId {
    let over = Blocks { taps: 3, before: 1 };
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    transposed_of(b, name, x, bias, over, rate, stride)
}

/// Returns a transposed convolution of x `[T, C]`, rows of `stride` samples, to `[T * rate, to]`, with the bias `[to]`.
pub fn transposed_of(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    bias: ValueId,
    over: Blocks,
    rate: usize,
    stride: usize,
) -> ValueId {
    let rows = table(b, Table::rows(stride));
    transposed_by(b, name, x, bias, over, rate, rows)
}

/// Returns a transposed convolution of the segments `rows` of x `[T, C]` to `[T * rate, to]`, with the bias `[to]`.
pub fn transposed_by(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    bias: ValueId,
    over: Blocks,
    rate: usize,
    rows: ValueId,
) -> ValueId {
    let (shape, to) = (b.ty(x).shape, b.dim(bias, 0));
    let w = b.frozen_parameter(&format!("{name}.weight"), &[rate * to, shape[1], over.taps]);
    let bias = b.concat(&vec![bias; rate], 0);
    let y = b.conv1d(x, w, bias, rows, 1, over.before);
    b.reshape(y, &[shape[0] * rate, to])
}

/// Returns the input with a segment table.
pub fn table(b: &mut Builder<'_>, table: Table) -> ValueId {
    b.input(&table.name(), table.ty())
}
