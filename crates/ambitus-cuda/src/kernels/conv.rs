//! One-dimensional convolution along the rows of each segment.

use super::{CHUNK, View, WARP_OPERATIONS, kernels, launch, launch_over};
use crate::bind::{Io, Steps, Tensor};
use crate::step::Step;
use ambitus_ir::ops::conv::{Conv1d, Conv1dInputGrad, Conv1dWeightGrad};
use ambitus_ir::{DType, TensorType};

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
    /// Weights [out, in, tap] of a group, which lie as for [`Grouped`], as [tap, out, in]: of 16 bits.
    OrderWeights "conv_order_weights" [256 threads, 64 registers] {
        w: View, ordered: u64, groups: i32, outs: i32, ins: i32, taps: i32, flip: i32, stride_out: i32, stride_in: i32,
    }
    /// y = bias + conv(x, w) on tensor cores, 128 rows of 64 channels of a group a block.
    Mma "conv_mma" [128 threads, 200 registers] {
        x: View, ordered: u64, bias: View, y: View, segs: View, ins: i32, outs: i32, taps: i32, pad: i32,
    }
    /// dw on tensor cores, 64 outputs, 64 inputs, 2 taps of a group a block.
    WeightMma "conv_weight_mma" [128 threads, 168 registers] {
        x: View, dy: View, segs: View, beta: View, dw: View, parts: u64,
        ins: i32, outs: i32, taps: i32, pad: i32, splits: i32,
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

/// Rows, and output channels, of a block of [`Mma`], and the most taps.
const MMA: (u64, u64, u64) = (128, 64, 33);
/// Outputs, inputs and taps of a block of [`WeightMma`].
const WEIGHT_MMA: (u64, u64, u64) = (64, 64, 2);

/// Returns whether tensor cores can compute a convolution of such operands and results: one type of 16 bits, channels of a group and rows at
/// multiples of 16 bytes.
fn on_tensor_cores(tensors: &[TensorType], channels: [usize; 2], groups: usize, taps: usize) -> bool {
    let dtype = tensors[0].dtype;
    matches!(dtype, DType::BF16 | DType::F16)
        && tensors.iter().all(|t| t.dtype == dtype && t.pitch.is_multiple_of(CHUNK))
        && channels.iter().all(|c| (c / groups).is_multiple_of(CHUNK))
        && taps as u64 <= MMA.2
}

/// Returns the scratch of a convolution or of its input gradient, of weights `w` from `x` to `y`: the weights in another order.
pub(crate) fn workspace(groups: usize, x: TensorType, w: TensorType, y: TensorType) -> u64 {
    let channels = [x, y].map(|t| t.shape.cols());
    let there = w.dtype == x.dtype && on_tensor_cores(&[x, y], channels, groups, w.shape[2]);
    if there { 2 * w.shape.elements() as u64 } else { 0 }
}

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
    /// Where weights for tensor cores go, if they compute it.
    ordered: Option<u64>,
}

impl Conv {
    fn steps(&self, taps: u64) -> Steps {
        let Conv { x, w, bias, y, segs, groups, pad, transposed, ordered } = *self;
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
        let (stride_out, stride_in) = if transposed { (taps, outs * taps) } else { (ins * taps, taps) };
        let (stride_out, stride_in) = (stride_out as i32, stride_in as i32);
        if let Some(ordered) = ordered {
            let (ins, outs_i) = (ins as i32, outs as i32);
            let order = OrderWeights {
                w,
                ordered,
                groups: groups as i32,
                outs: outs_i,
                ins,
                taps: taps_i,
                flip,
                stride_out,
                stride_in,
            };
            let mma = Mma { x, ordered, bias, y, segs, ins, outs: outs_i, taps: taps_i, pad };
            let grid = [tiles(y.rows, MMA.0, &segs), groups * outs.div_ceil(MMA.1)];
            let mut steps = launch_over(&order, groups * outs * ins as u64);
            steps.push(launch(&mma, grid.map(|n| n as u32)));
            return Ok(steps);
        }
        // 64 pairs of channel and tap are in shared memory at a time: as many taps as there are, up to 32,
        // and at most 8 channels.
        let tap_bits = taps.clamp(4, 32).next_power_of_two().ilog2() as i32;
        let in_bits = (6 - tap_bits).min(3);
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
            stride_out,
            stride_in,
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
    let ordered = ordered(op.groups, io, [io.x[0], io.x[1], io.y[0]]);
    let (y, transposed) = (io.y[0].view(), false);
    let conv = Conv { x: x(0), w: x(1), bias: x(2), y, segs: x(3), groups, pad, transposed, ordered };
    conv.steps(io.x[1].ty.shape[2] as u64)
}

/// Returns where the weights of a convolution from x to y go for tensor cores, if they compute it.
fn ordered(groups: usize, io: &Io, [x, w, y]: [Tensor; 3]) -> Option<u64> {
    mma(groups, io.here.capability, [x.ty, w.ty, y.ty]).then_some(io.workspace)
}

/// Returns whether tensor cores compute a convolution from x to y or its input gradient.
pub(crate) fn mma(groups: usize, capability: (u32, u32), [x, w, y]: [TensorType; 3]) -> bool {
    capability >= WARP_OPERATIONS && workspace(groups, x, w, y) > 0
}

/// Returns whether tensor cores compute the weight gradient of a convolution from x to what has the gradient dy.
pub(crate) fn weight_mma(
    op: &Conv1dWeightGrad,
    capability: (u32, u32),
    x: TensorType,
    dy: TensorType,
) -> bool {
    let channels = [x, dy].map(|t| t.shape.cols());
    capability >= WARP_OPERATIONS && on_tensor_cores(&[x, dy], channels, op.groups, op.taps)
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
        ordered: ordered(op.groups, io, [io.x[1], io.x[0], io.y[0]]),
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
    let (taps, pad, split) = (op.taps as i32, op.pad as i32, splits as i32);
    let grid = [blocks as u32, splits as u32];
    let (ins, outs) = (x.cols / op.groups as i32, dy.cols / op.groups as i32);
    let mut steps: Vec<Step> = vec![if weight_mma(op, io.here.capability, io.x[0].ty, io.x[1].ty) {
        let cut = |channels: i32, of: u64| (channels as u64).div_ceil(of);
        let tiles = cut(outs, WEIGHT_MMA.0) * cut(ins, WEIGHT_MMA.1) * cut(taps, WEIGHT_MMA.2);
        let grid = [(op.groups as u64 * tiles) as u32, splits as u32];
        launch(&WeightMma { x, dy, segs, beta, dw, parts, ins, outs, taps, pad, splits: split }, grid)
    } else if (ins, outs) == (1, 1) {
        launch(&DepthwiseWeight { x, dy, segs, beta, dw, parts, taps, pad, splits: split }, grid)
    } else {
        launch(&GroupedWeight { x, dy, segs, beta, dw, parts, ins, outs, taps, pad, splits: split }, grid)
    }];
    if splits > 1 {
        steps.extend(launch_over(&WeightParts { parts, splits: split, beta, dw }, dw.stored()));
    }
    Ok(steps)
}
