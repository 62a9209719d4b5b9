//! One-dimensional convolution along the rows of each segment.

use super::{View, kernels, launch, launch_over};
use crate::bind::{Io, Steps};
use crate::step::Step;
use ambitus_ir::TensorType;
use ambitus_ir::ops::conv::{Conv1d, Conv1dInputGrad, Conv1dWeightGrad};

kernels! { "conv";
    /// y = bias + conv(x, w), 16 rows of 128 channels a block; one channel per group.
    Depthwise "conv_depthwise" [128 threads, 64 registers] {
        x: View, w: View, bias: View, y: View, segs: View, taps: i32, pad: i32, flip: i32,
    }
    /// y = bias + conv(x, w), 128 rows of 64 channels of a group a block. Weight (out, in, tap) of a group
    /// lies at out * stride_out + in * stride_in + tap; with `flip` the taps run backwards.
    Grouped "conv_grouped" [256 threads, 128 registers] {
        x: View, w: View, bias: View, y: View, segs: View,
        ins: i32, outs: i32, taps: i32, pad: i32, flip: i32,
        stride_out: i32, stride_in: i32, tap_bits: i32, in_bits: i32,
    }
    /// dw, 8 taps of 128 channels a block; one channel per group.
    DepthwiseWeight "conv_depthwise_weight" [128 threads, 64 registers] {
        x: View, dy: View, segs: View, beta: View, dw: View, parts: u64, taps: i32, pad: i32, splits: i32,
    }
    /// dw, 64 outputs, 16 inputs, 8 taps of a group a block.
    GroupedWeight "conv_grouped_weight" [256 threads, 128 registers] {
        x: View, dy: View, segs: View, beta: View, dw: View, parts: u64,
        ins: i32, outs: i32, taps: i32, pad: i32, splits: i32,
    }
    /// dw = beta * dw + sum of `splits` parts in order.
    WeightParts "conv_weight_parts" [256 threads, 80 registers] {
        parts: u64, splits: i32, beta: View, dw: View,
    }
}

/// Rows, and channels, of a block of [`Depthwise`].
const DEPTHWISE: (u64, u64) = (16, 128);
/// Rows, and output channels, of a block of [`Grouped`].
const GROUPED: (u64, u64) = (128, 64);
/// Outputs, inputs and taps of a block of [`GroupedWeight`]; [`DepthwiseWeight`] has as many taps.
const WEIGHT: (u64, u64, u64) = (64, 16, 8);
/// Rows of a step of the weight gradients.
const WEIGHT_ROWS: u64 = 64;

/// Blocks that tiles of `rows` rows need at most, none in two segments: each segment, and the rows of none,
/// may end in an incomplete tile. Where the segments lie is known on the card only.
fn tiles(total: i64, rows: u64, segs: &View) -> u64 {
    total as u64 / rows + segs.cols as u64
}

/// A convolution, or the one that maps output gradients to input gradients.
struct Conv {
    x: View,
    w: View,
    bias: View,
    y: View,
    segs: View,
    groups: u64,
    pad: u64,
    /// The weight is that of the forward pass, from y's channels to x's.
    transposed: bool,
}

impl Conv {
    fn steps(&self, taps: u64) -> Steps {
        let Conv { x, w, bias, y, segs, groups, pad, transposed } = *self;
        if y.stored() == 0 {
            return Ok(Vec::new());
        }
        let (ins, outs) = (x.cols as u64 / groups, y.cols as u64 / groups);
        let (taps_i, pad, flip) = (taps as i32, pad as i32, i32::from(transposed));
        if (ins, outs) == (1, 1) {
            let args = Depthwise { x, w, bias, y, segs, taps: taps_i, pad, flip };
            let grid = [tiles(y.rows, DEPTHWISE.0, &segs), (y.pitch as u64).div_ceil(DEPTHWISE.1)];
            return Ok(vec![launch(&args, grid.map(|n| n as u32))]);
        }
        // 64 pairs of channel and tap are in shared memory at a time: as many taps as there are, up to 32,
        // and at most 8 channels.
        let tap_bits = taps.clamp(4, 32).next_power_of_two().ilog2() as i32;
        let in_bits = (6 - tap_bits).min(3);
        let (stride_out, stride_in) = if transposed { (taps, outs * taps) } else { (ins * taps, taps) };
        let args = Grouped {
            x,
            w,
            bias,
            y,
            segs,
            ins: ins as i32,
            outs: outs as i32,
            taps: taps_i,
            pad,
            flip,
            stride_out: stride_out as i32,
            stride_in: stride_in as i32,
            tap_bits,
            in_bits,
        };
        let grid = [tiles(y.rows, GROUPED.0, &segs), groups * outs.div_ceil(GROUPED.1)];
        Ok(vec![launch(&args, grid.map(|n| n as u32))])
    }
}

pub(crate) fn conv1d(op: &Conv1d, io: &Io) -> Steps {
    let x = |i: usize| io.x[i].view();
    let (groups, pad) = (op.groups as u64, op.pad as u64);
    let conv =
        Conv { x: x(0), w: x(1), bias: x(2), y: io.y[0].view(), segs: x(3), groups, pad, transposed: false };
    conv.steps(io.x[1].ty.shape[2] as u64)
}

/// dx is the convolution of dy with the taps backwards.
pub(crate) fn conv1d_input_grad(op: &Conv1dInputGrad, io: &Io) -> Steps {
    let taps = io.x[0].ty.shape[2];
    Conv {
        x: io.x[1].view(),
        w: io.x[0].view(),
        bias: View::NONE,
        y: io.y[0].view(),
        segs: io.x[2].view(),
        groups: op.groups as u64,
        pad: (taps - 1 - op.pad) as u64,
        transposed: true,
    }
    .steps(taps as u64)
}

/// Returns how a weight gradient is cut: blocks without splits, and how many ranges of rows sum apart. Few blocks are
/// split so that a large card is busy.
fn weight_cut(op: &Conv1dWeightGrad, x: &[TensorType]) -> (u64, u64) {
    let (cin, cout) = (x[0].shape.cols() as u64, x[1].shape.cols() as u64);
    let (groups, taps) = (op.groups as u64, op.taps as u64);
    let (blocks, enough) = if (cin, cout) == (groups, groups) {
        (cin.div_ceil(DEPTHWISE.1) * taps.div_ceil(WEIGHT.2), 1024)
    } else {
        let (outs, ins) = ((cout / groups).div_ceil(WEIGHT.0), (cin / groups).div_ceil(WEIGHT.1));
        (groups * outs * ins * taps.div_ceil(WEIGHT.2), 256)
    };
    let tiles = x[0].shape.rows() as u64 / WEIGHT_ROWS + x[2].shape.cols() as u64;
    (blocks, (enough / blocks.max(1)).clamp(1, tiles))
}

/// Returns the scratch of Conv1dWeightGrad: a gradient per range of rows, when there are several.
pub(crate) fn weight_grad_workspace(op: &Conv1dWeightGrad, x: &[TensorType], y: &[TensorType]) -> u64 {
    let (_, splits) = weight_cut(op, x);
    if splits == 1 { 0 } else { splits * y[0].shape.elements() as u64 * 4 }
}

pub(crate) fn conv1d_weight_grad(op: &Conv1dWeightGrad, io: &Io) -> Steps {
    let (x, dy, segs, dw) = (io.x[0].view(), io.x[1].view(), io.x[2].view(), io.y[0].view());
    let beta = if op.acc { io.x[4].view() } else { View::NONE };
    let (blocks, splits) = weight_cut(op, &[io.x[0].ty, io.x[1].ty, io.x[2].ty]);
    if dw.stored() == 0 {
        return Ok(Vec::new());
    }
    let parts = if splits == 1 { 0 } else { io.workspace };
    let (taps, pad, cut) = (op.taps as i32, op.pad as i32, splits as i32);
    let grid = [blocks as u32, splits as u32];
    let (ins, outs) = (x.cols / op.groups as i32, dy.cols / op.groups as i32);
    let mut steps: Vec<Step> = vec![if (ins, outs) == (1, 1) {
        launch(&DepthwiseWeight { x, dy, segs, beta, dw, parts, taps, pad, splits: cut }, grid)
    } else {
        launch(&GroupedWeight { x, dy, segs, beta, dw, parts, ins, outs, taps, pad, splits: cut }, grid)
    }];
    if splits > 1 {
        steps.extend(launch_over(&WeightParts { parts, splits: cut, beta, dw }, dw.stored()));
    }
    Ok(steps)
}
