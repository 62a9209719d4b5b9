//! What compilation asks of an executor, before anything runs.

use crate::ops::Op;
use crate::tensor::TensorType;

/// A kind of executor, as far as passes and the planner care. Plans are tried side by side.
pub trait Target: Sync {
    /// Name in reports: `cpu`, `null`, ...
    fn name(&self) -> &str;
    /// True when the target has a kernel; otherwise the op is lowered by its `decompose`.
    fn has_kernel(&self, op: &Op) -> bool;
    /// Scratch bytes of one instruction, for its operand and result types.
    fn workspace(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> u64;
    /// True when the kernel may write result `output` over operand `input`, a pair of
    /// [`OpDef::may_share`](crate::OpDef::may_share).
    fn shares(&self, op: &Op, input: usize, output: usize) -> bool;
    /// Predicted seconds of one instruction.
    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64;
}

/// What a target does per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations of a large fp32 product.
    pub gemm: f64,
    /// Bytes read and written by a copy too large for caches.
    pub bytes: f64,
}

/// How near a target's kernels come to its rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Seconds to start an instruction.
    pub start: f64,
    /// Share of the GEMM rate that plain arithmetic reaches: no reuse in registers, exponentials.
    pub vector: f64,
    /// Share that attention reaches.
    pub attention: f64,
    /// Share that convolutions reach.
    pub convolution: f64,
}

impl Rates {
    /// Predicted seconds of one instruction: the larger of its arithmetic and its bytes (the roofline), and the start.
    pub fn seconds(&self, kernels: &Efficiency, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        let cost = op.cost(x, y);
        let share = match op {
            Op::Attention(_) | Op::AttentionGrad(_) => kernels.attention,
            Op::Conv1d(_) | Op::Conv1dInputGrad(_) | Op::Conv1dWeightGrad(_) => kernels.convolution,
            _ if op.def().props().memory_bound => kernels.vector,
            _ => 1.0,
        };
        kernels.start + (cost.flops / (share * self.gemm)).max(cost.bytes / self.bytes)
    }
}

/// [`Target::shares`] of a target whose kernel for this op does, or does not, read each operand before it overwrites it:
/// what the op allows, and donation always.
pub fn shares(op: &Op, pair: (usize, usize), overwrites: bool) -> bool {
    (overwrites && op.def().may_share().contains(&pair)) || op.def().donates().contains(&pair)
}
