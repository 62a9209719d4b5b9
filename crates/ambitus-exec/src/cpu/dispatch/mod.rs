//! From an instruction and its places to a kernel, once, at open. Files by op family.

mod attention;
mod collective;
mod conv;
mod copy;
mod core;
mod loss;
mod matmul;
mod norm;
mod optim;
mod segment;

pub(super) use attention::{attention, attention_of_grad};
pub(super) use collective::workspace as collective_workspace;
pub(super) use conv::conv;

use super::executor::AsyncMode;
use super::kernels::{Mat, Rows};
use super::operand::{Frame, In, Io};
use ambitus_ir::Instr;
use ambitus_ir::ops::Op;
use ambitus_ir::plan::allocated;

/// An instruction bound to its places. Allocates nothing when called.
pub(super) type Kernel = Box<dyn FnMut(&Frame<'_>) + Send>;

/// Bytes of an instruction's kernel at most: what it captured of every operand, result and scratch, and of attributes.
pub(super) fn kernel_bytes(instr: &Instr) -> u64 {
    let places = instr.inputs.len() + instr.outputs.len() + 1;
    size_of::<Kernel>() as u64 + allocated(places * size_of::<In>() + size_of::<Op>())
}

/// A kernel, or why the instruction cannot run on these places.
type Resolved = Result<Kernel, String>;

/// Gives a closure the type of a kernel.
fn kernel(body: impl FnMut(&Frame<'_>) + Send + 'static) -> Resolved {
    Ok(Box::new(body))
}

/// A small operand (a vector or a table of few rows) as an `f32` matrix: itself, or a copy in front of the scratch, whose
/// rest is left. [`workspace`](super::workspace) plans the room.
fn widened<'s>(f: &'s Frame<'_>, x: &'s In, ws: &'s mut [f32]) -> (Mat<'s>, &'s mut [f32]) {
    match x.rows(f) {
        Rows::F32(mat) => (mat, ws),
        Rows::Half(half, mat) => {
            let (to, rest) = ws.split_at_mut(mat.rows * mat.cols);
            for (r, to) in to.chunks_exact_mut(mat.cols.max(1)).enumerate() {
                half.widen(f.pool.isa(), mat.row(r), to);
            }
            (Mat::dense(to, mat.rows, mat.cols), rest)
        }
    }
}

/// Binds an instruction at `path` to its places; `begun`: what a done waits for.
pub(super) fn resolve(op: &Op, begun: Option<&Op>, io: Io, path: &str, copies: AsyncMode) -> Resolved {
    match op {
        Op::Unary(op) => core::unary(op, io),
        Op::Binary(op) => core::binary(op, io),
        Op::Select(_) => core::select(io),
        Op::Cast(_) => core::cast(io),
        Op::Fill(op) => core::fill(op, io),
        Op::Scale(_) => core::scale(io),
        Op::ScaleRows(_) => core::scale_rows(io),
        Op::Reduce(op) => core::reduce(op, io),
        Op::Reshape(_) => core::reshape(io),
        Op::Permute(op) => core::permute(op, io),
        Op::Broadcast(_) => core::broadcast(io),
        Op::Slice(op) => core::slice(op, io),
        Op::Concat(op) => core::concat(op, io),
        Op::Iota(op) => core::iota(op, io),
        Op::Gather(op) => core::gather(op, io),
        Op::ScatterAdd(op) => core::scatter_add(op, io),
        Op::CopyStart(_) | Op::StoreStart(_) => copy::start(io, copies),
        Op::CopyDone(_) => copy::done(io, copies),
        Op::AllGatherStart(_) | Op::ReduceScatterStart(_) | Op::TransferStart(_) => {
            collective::start(op, io, path, copies)
        }
        Op::CollectiveDone(_) => collective::done(begun.unwrap_or(op), io, path, copies),
        Op::MatMul(op) => matmul::matmul(op, io),
        Op::Linear(_) => matmul::linear(io),
        Op::Activation(op) => norm::activation(op, io),
        Op::ActivationGrad(op) => norm::activation_grad(op, io),
        Op::SwiGlu(_) => norm::swiglu(io),
        Op::SwiGluGrad(_) => norm::swiglu_grad(io),
        Op::Snake(_) => norm::snake(io),
        Op::LayerNorm(op) => norm::layer_norm(op, io),
        Op::LayerNormGrad(op) => norm::layer_norm_grad(op, io),
        Op::RmsNorm(op) => norm::rms_norm(op, io),
        Op::RmsNormGrad(op) => norm::rms_norm_grad(op, io),
        Op::Grn(_) => norm::grn(io),
        Op::GrnGrad(_) => norm::grn_grad(io),
        Op::SegmentIds(_) => segment::ids(io),
        Op::SegmentPositions(_) => segment::positions(io),
        Op::SegmentBroadcast(_) => segment::broadcast(io),
        Op::SegmentSum(_) => segment::sum(io),
        Op::AdaLayerNorm(op) => segment::ada_layer_norm(op, io),
        Op::AdaLayerNormGrad(op) => segment::ada_layer_norm_grad(op, io),
        Op::GatedResidual(_) => segment::gated_residual(io),
        Op::GatedResidualGrad(_) => segment::gated_residual_grad(io),
        Op::Dropout(op) => segment::dropout(op, io),
        Op::Sinusoid(op) => segment::sinusoid(op, io),
        Op::RotaryFrequencies(op) => attention::rotary_frequencies(op, io),
        Op::Rotary(op) => attention::rotary(op, io),
        Op::Attention(op) => attention::forward(op, io),
        Op::AttentionGrad(op) => attention::grad(op, io),
        Op::Conv1d(op) => conv::forward(op, io),
        Op::Conv1dInputGrad(op) => conv::input_grad(op, io),
        Op::Conv1dWeightGrad(op) => conv::weight_grad(op, io),
        Op::MaskedMse(_) => loss::masked_mse(io),
        Op::MaskedMseGrad(_) => loss::masked_mse_grad(io),
        Op::LinearCrossEntropy(op) => loss::linear_cross_entropy(op, io),
        Op::LinearCrossEntropyGrad(op) => loss::linear_cross_entropy_grad(op, io),
        Op::HeadSums(op) => loss::head_sums(op, io),
        Op::HeadLoss(_) => loss::head_loss(io),
        Op::HeadGrad(op) => loss::head_grad(op, io),
        Op::Accumulate(_) => optim::accumulate(io),
        Op::SumSquares(_) => optim::sum_squares(io),
        Op::SumPartials(_) => optim::sum_partials(io),
        Op::AdamW(op) => optim::adamw(op, io),
        Op::AdamWBf16(op) => optim::adamw_bf16(op, io),
        Op::AdamW8bit(op) => optim::adamw_8bit(op, io),
        Op::Lerp(_) => optim::lerp(io),
    }
}
