//! The one list of what this executor has for each op: the target promises it to compilation, the executor keeps it.
//!
//! - `bind`: the steps, with their addresses.
//! - `workspace`: bytes of scratch.
//! - `overwrites`: true when the kernel reads operands before it overwrites them, for the pairs that the op may share.
//!
//! Kernels take any mix of float types that their ops take. What is `lowered` has no kernel here and gets its decomposition.
//! An op that is not in the list does not compile, and no entry can be left out.
//!
//! All of the list is in every build, with the feature `driver` or without: steps are data, and what puts them on a card is
//! behind the feature. Without it nothing calls [`bind`], but the rest is asked for any card's plans.

use crate::bind::{Io, Steps};
use crate::kernels::{
    activation, alignment, attention, collective, conv, copy, elementwise, head, index, layout, loss, matmul,
    modulation, narrow, norm, optim, random, reduce, rotary, segment, spline, windowed,
};
use ambitus_ir::TensorType;
use ambitus_ir::ops::Op;
use std::ops::Range;
use std::slice;

macro_rules! ops {
    (($op:ident, $io:ident, $x:ident, $y:ident) lowered: $($lowered:ident),*; $($name:ident {
        bind: $bind:expr, workspace: $workspace:expr, overwrites: $overwrites:expr $(,)?
    })*) => {
        /// Returns the steps of an instruction.
        #[allow(unused_variables)]
        pub(crate) fn bind(op: &Op, $io: &Io) -> Steps {
            match op {
                $(Op::$name($op) => $bind,)*
                $(Op::$lowered(_))|* => Err("has no kernel and was not lowered".to_owned()),
            }
        }

        /// Returns true when the op has a kernel.
        pub(crate) fn has_kernel(op: &Op) -> bool {
            match op {
                $(Op::$name(_))|* => true,
                $(Op::$lowered(_))|* => false,
            }
        }

        /// Returns the bytes of scratch of an instruction.
        #[allow(unused_variables)]
        pub(crate) fn workspace(op: &Op, $x: &[TensorType], $y: &[TensorType]) -> u64 {
            match op {
                $(Op::$name($op) => $workspace,)*
                $(Op::$lowered(_))|* => 0,
            }
        }

        /// Returns true when the kernel reads operands before it overwrites them.
        pub(crate) fn overwrites(op: &Op) -> bool {
            match op {
                $(Op::$name(_) => $overwrites,)*
                $(Op::$lowered(_))|* => false,
            }
        }
    };
}

ops! { (op, io, x, y)
    lowered: Grn, GrnGrad, Snake, Lstm;

    // Threads read an element's operands before they write it.
    Unary { bind: elementwise::unary(op, io), workspace: 0, overwrites: true }
    Binary { bind: elementwise::binary(op, io), workspace: 0, overwrites: true }
    Select { bind: elementwise::select(io), workspace: 0, overwrites: true }
    Cast { bind: elementwise::cast(io), workspace: 0, overwrites: false }
    Fill { bind: elementwise::fill(op, io), workspace: 0, overwrites: false }
    Scale { bind: elementwise::scale(io), workspace: 0, overwrites: true }
    ScaleRows { bind: elementwise::scale_rows(io), workspace: 0, overwrites: true }

    Reduce { bind: reduce::reduce(op, io), workspace: reduce::workspace(op, x[0]), overwrites: false }

    Reshape { bind: layout::reshape(io), workspace: 0, overwrites: false }
    Detach { bind: layout::detach(io), workspace: 0, overwrites: true }
    Permute { bind: layout::permute(op, io), workspace: 0, overwrites: false }
    Broadcast { bind: layout::broadcast(io), workspace: 0, overwrites: false }
    Slice { bind: layout::slice(op, io), workspace: 0, overwrites: false }
    Concat { bind: layout::concat(op, io), workspace: 0, overwrites: false }
    Reverse { bind: layout::reverse(op, io), workspace: 0, overwrites: false }
    Iota { bind: layout::iota(op, io), workspace: 0, overwrites: false }

    Gather { bind: index::gather(op, io), workspace: 0, overwrites: true }
    WriteRows { bind: index::write_rows(io), workspace: 0, overwrites: false }
    ScatterAdd { bind: index::scatter_add(op, io), workspace: index::workspace(x[1]), overwrites: false }
    Sinusoid { bind: index::sinusoid(op, io), workspace: 0, overwrites: false }

    MatMul { bind: matmul::matmul(op, io), workspace: matmul::scratch(y[0].shape.elements()), overwrites: false }
    Linear { bind: matmul::linear(true, io), workspace: matmul::scratch(y[0].shape.elements()), overwrites: false }
    LinearIn { bind: matmul::linear(false, io), workspace: matmul::scratch(y[0].shape.elements()), overwrites: false }

    Activation { bind: activation::activation(op.kind, io), workspace: 0, overwrites: true }
    ActivationGrad { bind: activation::activation_grad(op.kind, io), workspace: 0, overwrites: true }
    SwiGlu { bind: activation::swiglu(io), workspace: 0, overwrites: true }
    SwiGluGrad { bind: activation::swiglu_grad(io), workspace: 0, overwrites: true }

    LayerNorm { bind: norm::layer_norm(op.eps, io), workspace: 0, overwrites: true }
    LayerNormGrad {
        bind: norm::layer_norm_grad(op.eps, io),
        workspace: norm::layer_norm_grad_workspace(x[0]), overwrites: false,
    }
    RmsNorm { bind: norm::rms_norm(op.eps, io), workspace: 0, overwrites: true }
    RmsNormGrad {
        bind: norm::rms_norm_grad(op.eps, io),
        workspace: norm::rms_norm_grad_workspace(x[0]), overwrites: false,
    }

    SegmentIds { bind: segment::ids(io), workspace: 0, overwrites: false }
    SegmentPositions { bind: segment::positions(io), workspace: 0, overwrites: false }
    AdaLayerNorm { bind: modulation::ada_layer_norm(op.eps, io), workspace: 0, overwrites: false }
    AdaLayerNormGrad {
        bind: modulation::ada_layer_norm_grad(op.eps, io),
        workspace: modulation::ada_layer_norm_grad_workspace(x[0], x[1]), overwrites: false,
    }
    GatedResidual { bind: modulation::gated_residual(io), workspace: 0, overwrites: true }
    // The kernel that reads f runs before the one that may overwrite it.
    GatedResidualGrad {
        bind: modulation::gated_residual_grad(io),
        workspace: modulation::gated_residual_grad_workspace(x[1], x[0]), overwrites: true,
    }
    SegmentBroadcast { bind: segment::broadcast(io), workspace: 0, overwrites: false }
    SegmentSum { bind: segment::sum(io), workspace: segment::workspace(x[0], y[0]), overwrites: false }

    RotaryFrequencies { bind: rotary::frequencies(op, io), workspace: 0, overwrites: false }
    Rotary { bind: rotary::rotary(op, io), workspace: 0, overwrites: true }
    Attention { bind: attention::forward(op, io), workspace: attention::forward_workspace(op, x), overwrites: false }
    AttentionGrad {
        bind: attention::backward(op, io), workspace: attention::workspace(op, x), overwrites: false
    }

    WindowedAttention { bind: windowed::forward(op, io), workspace: 0, overwrites: false }
    WindowedAttentionGrad {
        bind: windowed::backward(op, io), workspace: windowed::workspace(op, x), overwrites: false
    }
    MonotonicPath { bind: alignment::monotonic_path(io), workspace: alignment::workspace(x), overwrites: false }

    Conv1d {
        bind: conv::conv1d(op, io), workspace: conv::workspace(op.groups, x[0], x[1], y[0]), overwrites: false,
    }
    Conv1dInputGrad {
        bind: conv::conv1d_input_grad(op, io),
        workspace: conv::workspace(op.groups, x[1], x[0], y[0]), overwrites: false,
    }
    Conv1dWeightGrad {
        bind: conv::conv1d_weight_grad(op, io),
        workspace: conv::weight_grad_workspace(op, x, y), overwrites: false,
    }

    RationalSpline { bind: spline::rational_spline(op, io), workspace: 0, overwrites: false }
    RationalSplineGrad { bind: spline::rational_spline_grad(op, io), workspace: 0, overwrites: false }

    MaskedMse { bind: loss::masked_mse(io), workspace: loss::masked_mse_workspace(x), overwrites: false }
    MaskedMseGrad { bind: loss::masked_mse_grad(io), workspace: 0, overwrites: false }
    LinearCrossEntropy {
        bind: head::linear_cross_entropy(op, io),
        workspace: head::workspace(op.tile, None, x), overwrites: false,
    }
    LinearCrossEntropyGrad {
        bind: head::linear_cross_entropy_grad(op, io),
        workspace: head::workspace(op.tile, None, x), overwrites: false,
    }
    // These continue from what they overwrite.
    HeadSums {
        bind: head::head_sums(op, io),
        workspace: head::workspace(op.tile, op.part, x), overwrites: true,
    }
    HeadLoss { bind: head::head_loss(io), workspace: 0, overwrites: false }
    HeadGrad {
        bind: head::head_grad(op, io),
        workspace: head::workspace(op.tile, op.part, x), overwrites: true,
    }

    Dropout { bind: random::dropout(op, io), workspace: 0, overwrites: false }

    Accumulate { bind: optim::accumulate(io), workspace: 0, overwrites: false }
    SumSquares { bind: optim::sum_squares(slice::from_ref(io)), workspace: 0, overwrites: false }
    SumPartials {
        bind: optim::sum_partials(io), workspace: optim::sum_partials_workspace(x), overwrites: false
    }
    AdamW { bind: optim::adamw(op, slice::from_ref(io)), workspace: 0, overwrites: false }
    Lerp { bind: optim::lerp(slice::from_ref(io)), workspace: 0, overwrites: false }
    AdamWBf16 { bind: narrow::adamw_bf16(op, io), workspace: 0, overwrites: false }
    AdamW8bit { bind: narrow::adamw_8bit(op, io), workspace: 0, overwrites: false }
    Lion { bind: optim::lion(op, slice::from_ref(io)), workspace: 0, overwrites: false }
    LionBf16 { bind: narrow::lion_bf16(op, io), workspace: 0, overwrites: false }
    Lion8bit { bind: narrow::lion_8bit(op, io), workspace: 0, overwrites: false }

    CopyStart { bind: copy::start(op.queue, io), workspace: 0, overwrites: false }
    StoreStart { bind: copy::start(op.queue, io), workspace: 0, overwrites: false }
    CopyDone { bind: copy::done(io), workspace: 0, overwrites: false }
    AllGatherStart {
        bind: collective::all_gather(op, io),
        workspace: collective::all_gather_workspace(op, x), overwrites: false,
    }
    ReduceScatterStart {
        bind: collective::reduce_scatter(op, io),
        workspace: collective::reduce_scatter_workspace(op, y), overwrites: false,
    }
    TransferStart { bind: collective::transfer(op, io), workspace: 0, overwrites: false }
    CollectiveDone { bind: collective::done(io), workspace: 0, overwrites: false }
}

/// Returns whether a card's tensor cores compute an attention or a convolution.
pub(crate) fn on_tensor_cores(op: &Op, capability: (u32, u32), x: &[TensorType], y: &[TensorType]) -> bool {
    match op {
        Op::Attention(op) => attention::on_tensor_cores(op, capability, x, y),
        Op::AttentionGrad(op) => attention::on_tensor_cores_backward(op, capability, x, y),
        Op::Conv1d(op) => conv::mma(op.groups, capability, [x[0], x[1], y[0]]),
        Op::Conv1dInputGrad(op) => conv::mma(op.groups, capability, [x[1], x[0], y[0]]),
        Op::Conv1dWeightGrad(op) => conv::weight_mma(op, capability, x[0], x[1]),
        _ => false,
    }
}

/// Returns the operands that instructions of an op have in common where one launch carries out several of them: see
/// [`together`](crate::together). `None` where none does.
pub(crate) fn common(op: &Op) -> Option<Range<usize>> {
    match op {
        Op::SumSquares(_) => Some(0..0),
        Op::AdamW(_) => Some(4..8),
        Op::Lion(_) => Some(3..6),
        Op::Lerp(_) => Some(2..4),
        _ => None,
    }
}

/// Returns the steps of instructions of one op that have [`common`] operands, or of one instruction.
pub(crate) fn bind_all(op: &Op, ios: &[Io]) -> Steps {
    match (op, ios) {
        (Op::SumSquares(_), ios) => optim::sum_squares(ios),
        (Op::AdamW(op), ios) => optim::adamw(op, ios),
        (Op::Lion(op), ios) => optim::lion(op, ios),
        (Op::Lerp(_), ios) => optim::lerp(ios),
        (op, [io]) => bind(op, io),
        _ => Err("its launches are its own".to_owned()),
    }
}
