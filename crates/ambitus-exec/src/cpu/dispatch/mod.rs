//! From an instruction and its places to a kernel, once, at open. Files by op family; [`ops`](super::ops) is their list.

pub(super) mod alignment;
pub(super) mod attention;
pub(super) mod collective;
pub(super) mod conv;
pub(super) mod copy;
pub(super) mod core;
pub(super) mod loss;
pub(super) mod matmul;
pub(super) mod norm;
pub(super) mod optim;
pub(super) mod recurrent;
pub(super) mod segment;
pub(super) mod spline;

use super::executor::AsyncMode;
use super::kernels::{Mat, Rows};
use super::operand::{Frame, In, half};
use ambitus_ir::ops::Op;
use ambitus_ir::plan::allocated;
use ambitus_ir::{Instr, TensorType};

/// An instruction bound to its places. Allocates nothing when called.
pub(super) type Kernel = Box<dyn FnMut(&Frame<'_>) + Send>;

/// Returns the bytes of an instruction's kernel at most: what it captured of every operand, result and scratch, and of
/// attributes.
pub(super) fn kernel_bytes(instr: &Instr) -> u64 {
    let places = instr.inputs.len() + instr.outputs.len() + 1;
    size_of::<Kernel>() as u64 + allocated(places * size_of::<In>() + size_of::<Op>())
}

/// An instruction without its places.
pub(super) struct Instruction<'a> {
    /// What it does.
    pub op: &'a Op,
    /// What a done waits for.
    pub begun: Option<&'a Op>,
    /// Its path, for messages between ranks.
    pub path: &'a str,
    /// When copies do their work.
    pub copies: AsyncMode,
}

/// A kernel, or why the instruction cannot run on these places.
pub(super) type Resolved = Result<Kernel, String>;

/// Gives a closure the type of a kernel.
fn kernel(body: impl FnMut(&Frame<'_>) + Send + 'static) -> Resolved {
    Ok(Box::new(body))
}

/// Segments of a table.
fn segments(table: TensorType) -> usize {
    table.shape.elements() - 1
}

/// Returns the floats of scratch that [`widened`] needs for a small operand.
pub(super) fn small(t: TensorType) -> usize {
    if half(t).is_some() { t.shape.elements() } else { 0 }
}

/// Returns a small operand (a vector or a table of few rows) as an `f32` matrix: itself, or a copy in front of the scratch, whose
/// rest is left. [`small`] plans the room.
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
