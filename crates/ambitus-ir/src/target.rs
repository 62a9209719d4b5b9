//! What compilation asks of an executor, before anything runs.

use crate::ops::Op;
use crate::tensor::TensorType;

/// A kind of executor, as far as passes and the planner care.
pub trait Target {
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
