//! The one list of what this executor has for each op: the target promises it to compilation, the executor keeps it.
//!
//! - `bind`: the kernel, bound to its places.
//! - `takes`: true when the kernel takes operands and gives results of these types `t`, and knows the attributes.
//! - `workspace`: floats of scratch.
//! - `overwrites`: true when the kernel reads operands before it overwrites them, for the pairs that the op may share.
//!
//! What is more than a few words stands next to the kernel, in [`dispatch`](super::dispatch). An op that is not in the list
//! does not compile, and no entry can be left out.

use super::dispatch::{
    Instruction, Resolved, alignment, attention, collective, conv, copy, core, loss, matmul, norm, optim,
    recurrent, segment, small, spline,
};
use super::kernels as k;
use super::operand::Io;
use super::types::{Types, bfloats, f32s, staged};
use ambitus_ir::ops::Op;

macro_rules! ops {
    (($op:ident, $this:ident, $io:ident, $t:ident, $threads:ident) $($name:ident {
        bind: $bind:expr, takes: $takes:expr, workspace: $workspace:expr, overwrites: $overwrites:expr $(,)?
    })*) => {
        /// Binds an instruction to its places.
        #[allow(unused_variables)]
        pub(super) fn bind($this: &Instruction<'_>, $io: Io) -> Resolved {
            match $this.op { $(Op::$name($op) => $bind,)* }
        }

        /// Returns true when the op has a kernel for operands and results of these types.
        #[allow(unused_variables)]
        pub(super) fn takes(op: &Op, $t: Types<'_>) -> bool {
            match op { $(Op::$name($op) => $takes,)* }
        }

        /// Returns the floats of scratch that the kernel needs.
        #[allow(unused_variables)]
        pub(super) fn workspace(op: &Op, $t: Types<'_>, $threads: usize) -> usize {
            match op { $(Op::$name($op) => $workspace,)* }
        }

        /// Returns true when the kernel reads operands before it overwrites them.
        pub(super) fn overwrites(op: &Op) -> bool {
            match op { $(Op::$name(_) => $overwrites,)* }
        }
    };
}

ops! { (op, this, io, t, threads)
    // By element, 16-bit values in pieces: factors are read as they are.
    Unary { bind: core::unary(op, io), takes: t.words_or(t.half_result()), workspace: 0, overwrites: true }
    Binary { bind: core::binary(op, io), takes: t.words_or(t.half_result()), workspace: 0, overwrites: true }
    Scale {
        bind: core::scale(io), takes: t.floats_or(t.half_result() && f32s(&[t.x[1]])),
        workspace: 0, overwrites: true,
    }
    ScaleRows {
        bind: core::scale_rows(io), takes: t.words_or(t.half_result() && f32s(&[t.x[1]])),
        workspace: 0, overwrites: true,
    }

    // What moves elements, whatever they mean.
    Select { bind: core::select(io), takes: t.words_or(true), workspace: 0, overwrites: true }
    Cast { bind: core::cast(io), takes: t.words_or(true), workspace: 0, overwrites: false }
    Fill { bind: core::fill(op, io), takes: t.words_or(true), workspace: 0, overwrites: false }
    Reshape { bind: core::reshape(io), takes: t.words_or(true), workspace: 0, overwrites: true }
    Detach { bind: core::reshape(io), takes: t.words_or(true), workspace: 0, overwrites: true }
    Permute { bind: core::permute(op, io), takes: t.words_or(true), workspace: 0, overwrites: false }
    Broadcast { bind: core::broadcast(io), takes: t.words_or(true), workspace: 0, overwrites: false }
    Slice { bind: core::slice(op, io), takes: t.words_or(true), workspace: 0, overwrites: false }
    Concat { bind: core::concat(op, io), takes: t.words_or(true), workspace: 0, overwrites: false }
    Reverse { bind: core::reverse(op, io), takes: t.words_or(true), workspace: 0, overwrites: false }
    Iota { bind: core::iota(op, io), takes: t.words(), workspace: 0, overwrites: false }
    Gather { bind: core::gather(op, io), takes: t.words_or(true), workspace: 0, overwrites: true }
    WriteRows { bind: core::write_rows(io), takes: t.words_or(true), workspace: 0, overwrites: false }

    // Sums over rows are left in f32.
    Reduce {
        bind: core::reduce(op, io), takes: t.floats_or(core::reduce_takes_halves(op, t)),
        workspace: core::reduce_workspace(op, t), overwrites: false,
    }
    ScatterAdd {
        bind: core::scatter_add(op, io), takes: t.words_or(staged(t.x[0]) && f32s(&t.y[..1])),
        workspace: 0, overwrites: false,
    }

    // Packed as f32; the old result is read only in the result's own type.
    MatMul {
        bind: matmul::matmul(op, io), takes: t.words_or(matmul::takes_halves(t)),
        workspace: matmul::workspace(op, t, threads), overwrites: false,
    }
    Linear {
        bind: matmul::linear(true, io), takes: t.words_or(true),
        workspace: matmul::linear_workspace(t, threads), overwrites: false,
    }
    LinearIn {
        bind: matmul::linear(false, io), takes: t.words_or(true),
        workspace: matmul::linear_workspace(t, threads), overwrites: false,
    }

    Activation {
        bind: norm::activation(op, io), takes: t.words_or(t.half_result()),
        workspace: 0, overwrites: true,
    }
    ActivationGrad {
        bind: norm::activation_grad(op, io), takes: t.words_or(t.half_result()),
        workspace: 0, overwrites: true,
    }
    SwiGlu { bind: norm::swiglu(io), takes: t.words_or(t.half_result()), workspace: 0, overwrites: true }
    SwiGluGrad {
        bind: norm::swiglu_grad(io), takes: t.words_or(t.half_result()),
        workspace: 0, overwrites: true,
    }
    Snake { bind: norm::snake(io), takes: t.words(), workspace: 0, overwrites: true }

    // By row, on a stage; small tables are copied to the scratch.
    LayerNorm {
        bind: norm::layer_norm(op, io), takes: t.words_or(staged(t.x[0])),
        workspace: small(t.x[1]) + small(t.x[2]), overwrites: false,
    }
    LayerNormGrad {
        bind: norm::layer_norm_grad(op, io), takes: t.words_or(staged(t.x[0]) && f32s(&t.y[1..])),
        workspace: norm::layer_norm_grad_workspace(t), overwrites: false,
    }
    RmsNorm {
        bind: norm::rms_norm(op, io), takes: t.words_or(staged(t.x[0])),
        workspace: small(t.x[1]), overwrites: false,
    }
    RmsNormGrad {
        bind: norm::rms_norm_grad(op, io), takes: t.words_or(staged(t.x[0]) && f32s(&t.y[1..])),
        workspace: norm::rms_norm_grad_workspace(t), overwrites: false,
    }
    Grn {
        bind: norm::grn(io), takes: op.eps == norm::GRN_EPS && t.words(),
        workspace: norm::grn_workspace(t), overwrites: false,
    }
    GrnGrad {
        bind: norm::grn_grad(io), takes: op.eps == norm::GRN_EPS && t.words(),
        workspace: norm::grn_workspace(t), overwrites: false,
    }

    SegmentIds { bind: segment::ids(io), takes: t.words(), workspace: 0, overwrites: false }
    SegmentPositions { bind: segment::positions(io), takes: t.words(), workspace: 0, overwrites: false }
    AdaLayerNorm {
        bind: segment::ada_layer_norm(op, io), takes: t.words_or(staged(t.x[0])),
        workspace: small(t.x[1]) + small(t.x[2]), overwrites: false,
    }
    AdaLayerNormGrad {
        bind: segment::ada_layer_norm_grad(op, io), takes: t.words_or(staged(t.x[0])),
        workspace: segment::ada_layer_norm_grad_workspace(t), overwrites: false,
    }
    GatedResidual {
        bind: segment::gated_residual(io), takes: t.words_or(t.half_result()),
        workspace: small(t.x[1]), overwrites: true,
    }
    GatedResidualGrad {
        bind: segment::gated_residual_grad(io), takes: t.words_or(staged(t.x[1])),
        workspace: segment::gated_residual_grad_workspace(t), overwrites: false,
    }
    SegmentBroadcast {
        bind: segment::broadcast(io), takes: t.words_or(true),
        workspace: 0, overwrites: false,
    }
    SegmentSum { bind: segment::sum(io), takes: t.words_or(f32s(&t.y[..1])), workspace: 0, overwrites: false }

    RotaryFrequencies {
        bind: attention::rotary_frequencies(op, io), takes: t.words(),
        workspace: 0, overwrites: false,
    }
    Rotary {
        bind: attention::rotary(op, io), takes: t.words_or(staged(t.x[0]) && f32s(&[t.x[1]])),
        workspace: 0, overwrites: true,
    }
    // Widened while tiles are packed, summed in f32.
    Attention {
        bind: attention::forward(op, io), takes: t.words_or(staged(t.x[0]) && f32s(&[t.y[1]])),
        workspace: attention::workspace(op, t, threads), overwrites: false,
    }
    AttentionGrad {
        bind: attention::grad(op, io),
        takes: t.words_or(staged(t.x[0]) && staged(t.x[1]) && f32s(&[t.x[4]])),
        workspace: attention::grad_workspace(op, t, threads), overwrites: false,
    }

    // Tables of keys and values by distance are f32, and their gradients.
    WindowedAttention {
        bind: attention::windowed_forward(op, io), takes: t.words_or(staged(t.x[0])),
        workspace: attention::windowed_workspace(op, t, threads), overwrites: false,
    }
    WindowedAttentionGrad {
        bind: attention::windowed_grad(op, io), takes: t.words_or(staged(t.x[0])),
        workspace: attention::windowed_grad_workspace(op, t, threads), overwrites: false,
    }
    MonotonicPath {
        bind: alignment::monotonic_path(io), takes: t.words(),
        workspace: k::monotonic_path_workspace(t.x[0].shape.rows(), t.x[1].shape.rows()), overwrites: false,
    }

    Conv1d {
        bind: conv::forward(op, io), takes: t.words(),
        workspace: conv::workspace(op, t, threads), overwrites: false,
    }
    Conv1dInputGrad {
        bind: conv::input_grad(op, io), takes: t.words(),
        workspace: conv::input_grad_workspace(op, t, threads), overwrites: false,
    }
    Conv1dWeightGrad {
        bind: conv::weight_grad(op, io), takes: t.words(),
        workspace: conv::weight_grad_workspace(op, t, threads), overwrites: false,
    }

    Lstm {
        bind: recurrent::lstm(io), takes: t.words(),
        workspace: k::lstm_workspace(t.y[0].shape.cols()), overwrites: false,
    }

    // Rows in f64, between results and operands in f32.
    RationalSpline { bind: spline::rational_spline(op, io), takes: t.floats(), workspace: 0, overwrites: false }
    RationalSplineGrad {
        bind: spline::rational_spline_grad(op, io), takes: t.floats(),
        workspace: 0, overwrites: false,
    }

    MaskedMse {
        bind: loss::masked_mse(io), takes: t.words(),
        workspace: loss::masked_mse_workspace(t), overwrites: false,
    }
    MaskedMseGrad { bind: loss::masked_mse_grad(io), takes: t.words(), workspace: 0, overwrites: false }
    // Heads continue from what they overwrite.
    LinearCrossEntropy {
        bind: loss::linear_cross_entropy(op, io), takes: t.words(),
        workspace: loss::head_workspace(op.tile, t, threads), overwrites: false,
    }
    LinearCrossEntropyGrad {
        bind: loss::linear_cross_entropy_grad(op, io), takes: t.words(),
        workspace: loss::head_workspace(op.tile, t, threads), overwrites: false,
    }
    HeadSums {
        bind: loss::head_sums(op, io), takes: t.words(),
        workspace: loss::head_workspace(op.tile, t, threads), overwrites: true,
    }
    HeadLoss { bind: loss::head_loss(io), takes: t.words(), workspace: 0, overwrites: false }
    HeadGrad {
        bind: loss::head_grad(op, io), takes: t.words(),
        workspace: loss::head_workspace(op.tile, t, threads), overwrites: true,
    }

    Dropout {
        bind: segment::dropout(op, io), takes: t.words_or(staged(t.x[0])),
        workspace: 0, overwrites: false,
    }
    Sinusoid {
        bind: segment::sinusoid(op, io), takes: t.words(),
        workspace: t.x[0].shape.elements(), overwrites: false,
    }

    Accumulate { bind: optim::accumulate(io), takes: t.floats(), workspace: 0, overwrites: false }
    SumSquares { bind: optim::sum_squares(io), takes: t.floats(), workspace: 0, overwrites: false }
    SumPartials { bind: optim::sum_partials(io), takes: t.floats(), workspace: 0, overwrites: false }
    AdamW { bind: optim::adamw(op, io), takes: t.words(), workspace: 0, overwrites: false }
    // Weights and moments in bfloat16; gradients, scales and averages in f32.
    Lerp {
        bind: optim::lerp(io), takes: t.floats_or(f32s(&[t.x[0]]) && bfloats(t.x)),
        workspace: 0, overwrites: false,
    }
    AdamWBf16 {
        bind: optim::adamw_bf16(op, io), takes: t.words_or(f32s(&[t.x[1]]) && bfloats(t.y)),
        workspace: 0, overwrites: false,
    }
    AdamW8bit {
        bind: optim::adamw_8bit(op, io),
        takes: t.bytes_or(f32s(&[t.x[1], t.x[3], t.x[5]]) && bfloats(t.y)),
        workspace: 0, overwrites: false,
    }
    Lion { bind: optim::lion(op, io), takes: t.words(), workspace: 0, overwrites: false }
    LionBf16 {
        bind: optim::lion_bf16(op, io), takes: t.words_or(f32s(&[t.x[1]]) && bfloats(t.y)),
        workspace: 0, overwrites: false,
    }
    Lion8bit {
        bind: optim::lion_8bit(op, io),
        takes: t.bytes_or(f32s(&[t.x[1], t.x[3]]) && bfloats(t.y)),
        workspace: 0, overwrites: false,
    }

    // These move bytes of any type, and have the queue's tokens.
    CopyStart { bind: copy::start(io, this.copies), takes: true, workspace: 0, overwrites: false }
    StoreStart { bind: copy::start(io, this.copies), takes: true, workspace: 0, overwrites: false }
    CopyDone { bind: copy::done(io, this.copies), takes: true, workspace: 0, overwrites: false }
    AllGatherStart {
        bind: collective::start(this, io), takes: true,
        workspace: collective::gather_workspace(op, t), overwrites: false,
    }
    ReduceScatterStart {
        bind: collective::start(this, io), takes: true,
        workspace: collective::reduce_workspace(op, t), overwrites: false,
    }
    TransferStart {
        bind: collective::start(this, io), takes: true,
        workspace: collective::transfer_workspace(op), overwrites: false,
    }
    // The done may do the work.
    CollectiveDone {
        bind: collective::done(this, io), takes: true,
        workspace: collective::done_workspace(op, t), overwrites: false,
    }
}
