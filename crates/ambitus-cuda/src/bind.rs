//! From an instruction and its places to steps, once, at open: what launchers get and give. [`ops`](crate::ops) lists them.

use crate::kernels::View;
use crate::step::Step;
use ambitus_ir::TensorType;
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
