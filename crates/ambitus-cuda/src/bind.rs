//! From an instruction and its places to steps, once, at open: what launchers get and give. [`ops`](crate::ops) lists them.

use crate::kernels::View;
use crate::step::Step;
use ambitus_ir::TensorType;
use std::ops::Range;
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

/// Who runs a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// The rank.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Compute capability of its card.
    pub capability: (u32, u32),
}

/// A rank of its own, on the oldest card.
#[cfg(test)]
pub(crate) const ALONE: Here = Here { rank: 0, ranks: 1, capability: (7, 5) };

/// Operands, results and scratch of one instruction.
#[derive(Clone, Debug)]
pub(crate) struct Io {
    /// Operands.
    pub x: Vec<Tensor>,
    /// Results.
    pub y: Vec<Tensor>,
    /// Address of the scratch that [`crate::CudaTarget`] asked for.
    pub workspace: u64,
    /// Its bytes.
    pub workspace_bytes: u64,
    /// Who runs it.
    pub here: Here,
    /// The instruction's path, for messages between ranks.
    pub path: Arc<str>,
}

impl Io {
    /// Returns the ranges of memory that the instruction reads or writes, those that meet as one, in order.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let tensors = self.x.iter().chain(&self.y).map(|t| t.at..t.at + t.ty.bytes());
        let mut all: Vec<Range<u64>> = tensors.collect();
        all.push(self.workspace..self.workspace + self.workspace_bytes);
        all.retain(|r| !r.is_empty());
        all.sort_by_key(|r| r.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in all {
            match joined.last_mut() {
                Some(last) if range.start < last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Returns the same instruction on other memory: `to` says where an address of [`Io::ranges`] went.
    pub fn moved(&self, to: impl Fn(u64) -> u64) -> Io {
        let moved = |t: &Tensor| Tensor { at: to(t.at), ..*t };
        let workspace = if self.workspace_bytes == 0 { self.workspace } else { to(self.workspace) };
        let (x, y) = (self.x.iter().map(moved).collect(), self.y.iter().map(moved).collect());
        Io { x, y, workspace, ..self.clone() }
    }
}

/// Steps, or why the instruction cannot run on these places.
pub(crate) type Steps = Result<Vec<Step>, String>;
