//! Scratch of every kernel, in one place: the target promises it to the planner, the executor checks it at open.

use super::kernels as k;
use super::operand::half;
use ambitus_ir::TensorType;
use ambitus_ir::ops::Op;
use ambitus_ir::ops::reduce::ReduceKind;

/// Floats of scratch that an instruction's kernel needs.
pub(super) fn floats(op: &Op, x: &[TensorType], y: &[TensorType], threads: usize) -> usize {
    let rows = |t: &TensorType| t.shape.rows();
    let cols = |t: &TensorType| t.shape.cols();
    let segments = |t: &TensorType| t.shape.elements() - 1;
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_) | Op::Fill(_) => 0,
        Op::Scale(_) | Op::ScaleRows(_) => 0,
        Op::Reduce(op) => {
            let columns = op.kind == ReduceKind::Sum && op.axis == 0 && x[0].shape.len() == 2;
            if columns { k::column_sum_workspace(rows(&x[0]), cols(&x[0])) } else { 0 }
        }
        Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Concat(_) => 0,
        Op::Iota(_) | Op::Gather(_) | Op::ScatterAdd(_) => 0,
        Op::Sinusoid(_) => x[0].shape.elements(),
        Op::MatMul(op) => op.dims(x).map_or(0, |(_, m, n, depth)| product(&y[0], m, n, depth, threads)),
        Op::Linear(_) => {
            let bias = x.get(2).map_or(0, small);
            bias + product(&y[0], rows(&x[0]), rows(&x[1]), cols(&x[0]), threads)
        }
        Op::Activation(_) | Op::ActivationGrad(_) | Op::SwiGlu(_) | Op::SwiGluGrad(_) => 0,
        Op::Snake(_) => 0,
        Op::LayerNorm(_) => small(&x[1]) + small(&x[2]),
        Op::RmsNorm(_) => small(&x[1]),
        Op::LayerNormGrad(_) => small(&x[1]) + k::layer_norm_grad_workspace(rows(&x[0]), cols(&x[0])),
        Op::RmsNormGrad(_) => small(&x[1]) + k::rms_norm_grad_workspace(rows(&x[0]), cols(&x[0])),
        Op::Grn(_) | Op::GrnGrad(_) => k::grn_workspace(rows(&x[0]), segments(&x[3]), cols(&x[0])),
        Op::SegmentIds(_) | Op::SegmentPositions(_) => 0,
        Op::SegmentBroadcast(_) | Op::SegmentSum(_) => 0,
        Op::AdaLayerNorm(_) => small(&x[1]) + small(&x[2]),
        Op::GatedResidual(_) => small(&x[1]),
        Op::AdaLayerNormGrad(_) => {
            small(&x[1]) + k::ada_layer_norm_grad_workspace(rows(&x[0]), segments(&x[3]), cols(&x[0]))
        }
        Op::GatedResidualGrad(_) => {
            small(&x[0]) + k::gated_residual_grad_workspace(rows(&x[1]), segments(&x[3]), cols(&x[1]))
        }
        Op::RotaryFrequencies(_) | Op::Rotary(_) => 0,
        Op::Attention(op) => {
            let narrow = x.iter().chain(y).any(|t| half(*t).is_some());
            k::attention_workspace(&super::dispatch::attention(op), threads, narrow)
        }
        Op::AttentionGrad(op) => {
            let op = super::dispatch::attention_of_grad(op);
            let narrow = x.iter().chain(y).any(|t| half(*t).is_some());
            k::attention_grad_workspace(&op, rows(&x[0]), threads, narrow)
        }
        Op::Conv1d(op) => {
            let conv = super::dispatch::conv(x[1], op.groups, op.pad);
            k::conv1d_workspace(&conv, rows(&x[0]), segments(&x[3]), threads)
        }
        Op::Conv1dInputGrad(op) => {
            let conv = super::dispatch::conv(x[0], op.groups, op.pad);
            k::conv1d_workspace(&conv, rows(&x[1]), segments(&x[2]), threads)
        }
        Op::Conv1dWeightGrad(op) => {
            let conv = super::dispatch::conv(y[0], op.groups, op.pad);
            k::conv1d_workspace(&conv, rows(&x[0]), segments(&x[2]), threads)
        }
        Op::MaskedMse(_) => k::masked_mse_workspace(rows(&x[0]), cols(&x[0])),
        Op::MaskedMseGrad(_) => 0,
        Op::LinearCrossEntropy(op) => head(x, op.tile, threads),
        Op::LinearCrossEntropyGrad(op) => head(x, op.tile, threads),
        Op::HeadSums(op) => head(x, op.tile, threads),
        Op::HeadGrad(op) => head(x, op.tile, threads),
        Op::HeadLoss(_) => 0,
        Op::Dropout(_) => 0,
        Op::Accumulate(_) | Op::SumSquares(_) | Op::SumPartials(_) | Op::AdamW(_) | Op::Lerp(_) => 0,
        Op::AdamWBf16(_) | Op::AdamW8bit(_) => 0,
        Op::CopyStart(_) | Op::StoreStart(_) | Op::CopyDone(_) => 0,
        // The done may do the work.
        Op::AllGatherStart(_) | Op::ReduceScatterStart(_) | Op::TransferStart(_) | Op::CollectiveDone(_) => {
            super::dispatch::collective_workspace(op, x, y)
        }
    }
}

fn product(y: &TensorType, m: usize, n: usize, depth: usize, threads: usize) -> usize {
    match half(*y) {
        None => k::gemm_workspace(m, n, depth, threads),
        Some(_) => k::gemm_narrow_workspace(m, n, depth, threads),
    }
}

/// Room for an `f32` copy of a small operand or result of 16 bits.
fn small(t: &TensorType) -> usize {
    if half(*t).is_some() { t.shape.elements() } else { 0 }
}

fn head(x: &[TensorType], tile: usize, threads: usize) -> usize {
    let (rows, dim, vocab) = (x[0].shape.rows(), x[0].shape.cols(), x[1].shape.rows());
    k::linear_cross_entropy_workspace(rows, dim, vocab, tile, threads)
}
