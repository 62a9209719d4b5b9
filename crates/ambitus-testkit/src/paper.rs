//! A target on paper: what passes and the planner see of an executor, without one.

use ambitus_ir::TensorType;
use ambitus_ir::ops::Op;
use ambitus_ir::target::Target;

/// A target that runs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Fused ops have kernels; core ops always have.
    pub fused: bool,
    /// Kernels overwrite operands where ops allow it.
    pub shares: bool,
}

/// Fused kernels that overwrite where they may, as real executors.
pub const FULL: Paper = Paper { fused: true, shares: true };

impl Target for Paper {
    fn name(&self) -> &str {
        "paper"
    }

    fn has_kernel(&self, op: &Op, _: &[TensorType], _: &[TensorType]) -> bool {
        self.fused || is_core(op)
    }

    /// Packing buffers of products, tiles of logits, partial sums: about what the CPU executor asks for.
    fn workspace(&self, op: &Op, x: &[TensorType], _: &[TensorType]) -> u64 {
        let cols = |t: &TensorType| t.shape.cols() as u64;
        match op {
            Op::MatMul(_) | Op::Linear(_) | Op::LinearIn(_) | Op::Conv1d(_) => 1 << 20,
            Op::Conv1dInputGrad(_) | Op::Conv1dWeightGrad(_) => 1 << 20,
            Op::Attention(_) => 1 << 18,
            Op::AttentionGrad(_) => (1 << 18) + 4 * x[4].shape.elements() as u64,
            Op::LinearCrossEntropy(op) => 4 * op.tile as u64 * x[1].shape.rows() as u64,
            Op::LinearCrossEntropyGrad(op) => 4 * op.tile as u64 * x[1].shape.rows() as u64,
            Op::LayerNormGrad(_) | Op::RmsNormGrad(_) | Op::GrnGrad(_) => 64 * cols(&x[0]),
            Op::AdaLayerNormGrad(_) | Op::GatedResidualGrad(_) => 64 * cols(&x[0]),
            _ => 0,
        }
    }

    fn shares(&self, _: &Op, _: usize, _: usize) -> bool {
        self.shares
    }

    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        let cost = op.cost(x, y);
        (cost.flops / 1e11).max(cost.bytes / 1e10)
    }
}

/// Ops that every target must have: those without a decomposition, and those that overwrite states.
const CORE: &[&str] = &[
    "unary",
    "binary",
    "select",
    "cast",
    "fill",
    "reduce",
    "reshape",
    "permute",
    "broadcast",
    "slice",
    "concat",
    "reverse",
    "iota",
    "gather",
    "scatter_add",
    "matmul",
    "segment_ids",
    "segment_positions",
    "rotary_frequencies",
    "sinusoid",
    "rational_spline",
    "rational_spline_grad",
    "sum_partials",
    "dropout",
    "accumulate",
    "adamw",
    "lerp",
    "copy_start",
    "store_start",
    "copy_done",
];

fn is_core(op: &Op) -> bool {
    let accumulates = op.attrs().iter().any(|(name, value)| *name == "acc" && value == "true");
    CORE.contains(&op.name()) && !accumulates
}
