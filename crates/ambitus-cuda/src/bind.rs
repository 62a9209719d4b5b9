//! From an instruction and its places to steps, once, at open.

use crate::kernels::{
    View, activation, attention, collective, conv, elementwise, head, index, layout, loss, matmul,
    modulation, narrow, norm, optim, random, reduce, rotary, segment,
};
use crate::step::Step;
use ambitus_ir::TensorType;
use ambitus_ir::ops::Op;
use std::sync::Arc;

/// A planned value or workspace with its final address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tensor {
    /// Address.
    pub at: u64,
    /// Element type, shape, pitch.
    pub ty: TensorType,
}

impl Tensor {
    /// As kernels see it.
    pub fn view(&self) -> View {
        View::new(self.at, self.ty)
    }
}

/// Operands, results and scratch of one instruction.
pub(crate) struct Io {
    /// Operands.
    pub x: Vec<Tensor>,
    /// Results.
    pub y: Vec<Tensor>,
    /// Address of the scratch that [`crate::CudaTarget`] asked for.
    pub workspace: u64,
    /// Its bytes.
    pub workspace_bytes: u64,
    /// The rank that runs it, and how many there are.
    pub rank: (usize, usize),
    /// The instruction's path, for messages between ranks.
    pub path: Arc<str>,
}

/// Steps, or why the instruction cannot run on these places.
pub(crate) type Steps = Result<Vec<Step>, String>;

/// The steps of an instruction.
pub(crate) fn bind(op: &Op, io: &Io) -> Steps {
    match op {
        Op::Unary(op) => elementwise::unary(op, io),
        Op::Binary(op) => elementwise::binary(op, io),
        Op::Select(_) => elementwise::select(io),
        Op::Cast(_) => elementwise::cast(io),
        Op::Fill(op) => elementwise::fill(op, io),
        Op::Scale(_) => elementwise::scale(io),
        Op::ScaleRows(_) => elementwise::scale_rows(io),
        Op::Reshape(_) => layout::reshape(io),
        Op::Permute(op) => layout::permute(op, io),
        Op::Broadcast(_) => layout::broadcast(io),
        Op::Slice(op) => layout::slice(op, io),
        Op::Concat(op) => layout::concat(op, io),
        Op::Iota(op) => layout::iota(op, io),
        Op::Reduce(op) => reduce::reduce(op, io),
        Op::Gather(op) => index::gather(op, io),
        Op::ScatterAdd(op) => index::scatter_add(op, io),
        Op::Sinusoid(op) => index::sinusoid(op, io),
        Op::SegmentIds(_) => segment::ids(io),
        Op::SegmentPositions(_) => segment::positions(io),
        Op::SegmentBroadcast(_) => segment::broadcast(io),
        Op::SegmentSum(_) => segment::sum(io),
        Op::MatMul(op) => matmul::matmul(op, io),
        Op::Linear(_) => matmul::linear(io),
        Op::Activation(op) => activation::activation(op.kind, io),
        Op::ActivationGrad(op) => activation::activation_grad(op.kind, io),
        Op::SwiGlu(_) => activation::swiglu(io),
        Op::SwiGluGrad(_) => activation::swiglu_grad(io),
        Op::LayerNorm(op) => norm::layer_norm(op.eps, io),
        Op::LayerNormGrad(op) => norm::layer_norm_grad(op.eps, io),
        Op::RmsNorm(op) => norm::rms_norm(op.eps, io),
        Op::RmsNormGrad(op) => norm::rms_norm_grad(op.eps, io),
        Op::AdaLayerNorm(op) => modulation::ada_layer_norm(op.eps, io),
        Op::AdaLayerNormGrad(op) => modulation::ada_layer_norm_grad(op.eps, io),
        Op::GatedResidual(_) => modulation::gated_residual(io),
        Op::GatedResidualGrad(_) => modulation::gated_residual_grad(io),
        Op::RotaryFrequencies(op) => rotary::frequencies(op, io),
        Op::Rotary(op) => rotary::rotary(op, io),
        Op::Attention(op) => attention::forward(op, io),
        Op::AttentionGrad(op) => attention::backward(op, io),
        Op::Conv1d(op) => conv::conv1d(op, io),
        Op::Conv1dInputGrad(op) => conv::conv1d_input_grad(op, io),
        Op::Conv1dWeightGrad(op) => conv::conv1d_weight_grad(op, io),
        Op::Dropout(op) => random::dropout(op, io),
        Op::MaskedMse(_) => loss::masked_mse(io),
        Op::MaskedMseGrad(_) => loss::masked_mse_grad(io),
        Op::LinearCrossEntropy(op) => head::linear_cross_entropy(op, io),
        Op::LinearCrossEntropyGrad(op) => head::linear_cross_entropy_grad(op, io),
        Op::HeadSums(op) => head::head_sums(op, io),
        Op::HeadLoss(_) => head::head_loss(io),
        Op::HeadGrad(op) => head::head_grad(op, io),
        Op::Accumulate(_) => optim::accumulate(io),
        Op::SumSquares(_) => optim::sum_squares(io),
        Op::SumPartials(_) => optim::sum_partials(io),
        Op::AdamW(op) => optim::adamw(op, io),
        Op::AdamWBf16(op) => narrow::adamw_bf16(op, io),
        Op::AdamW8bit(op) => narrow::adamw_8bit(op, io),
        Op::Lerp(_) => optim::lerp(io),
        Op::CopyStart(_) | Op::StoreStart(_) => {
            let (from, to) = (io.x[0].at, io.y[0].at);
            let queue = op.def().queue().unwrap_or(0);
            Ok(vec![Step::Fork { queue, from, to, bytes: io.y[0].ty.bytes() }])
        }
        Op::CopyDone(_) => Ok(vec![Step::Join { to: io.y[0].at }]),
        Op::AllGatherStart(op) => collective::all_gather(op, io),
        Op::ReduceScatterStart(op) => collective::reduce_scatter(op, io),
        Op::TransferStart(op) => collective::transfer(op, io),
        Op::CollectiveDone(_) => collective::done(io),
        Op::Grn(_) | Op::GrnGrad(_) | Op::Snake(_) => Err("has no kernel and was not lowered".to_owned()),
    }
}

/// True when [`bind`] knows an op; the others are lowered by their decomposition.
pub(crate) fn has_kernel(op: &Op) -> bool {
    !matches!(op, Op::Grn(_) | Op::GrnGrad(_) | Op::Snake(_))
}
