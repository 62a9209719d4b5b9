//! Matrix products: cuBLASLt, and a kernel for the pads that it leaves alone.

use super::{View, kernels, launch_over};
use crate::bind::{Io, Steps, Tensor};
use crate::step::{Gemm, Launch, Matrix, Step};
use ambitus_ir::TensorType;
use ambitus_ir::ops::matmul::MatMul;

kernels! { "matmul";
    /// y = y + bias, to every row.
    AddBias "add_bias" [256 threads, 40 registers] { y: View, bias: View }
    /// Zeroes the pads of every row.
    ClearPads "clear_pads" [256 threads, 32 registers] { y: View }
}

pub(crate) fn matmul(op: &MatMul, io: &Io) -> Steps {
    let beta = if op.acc { io.x[3].at } else { 0 };
    product(io, op.ta, op.tb, beta, None)
}

/// `rows`: each of w's rows gives an output, else each of its columns.
pub(crate) fn linear(rows: bool, io: &Io) -> Steps {
    product(io, false, rows, 0, io.x.get(2))
}

/// Returns the scratch of a product with a result of this many elements: eight parts of it in fp32, as many as sums are worth cutting
/// into where the result has few tiles; 4 MiB at least and 32 at most, which NVIDIA advises for older cards and for Hopper.
pub(crate) fn scratch(elements: usize) -> u64 {
    (8 * 4 * elements as u64).next_multiple_of(256).clamp(4 << 20, 32 << 20)
}

/// Returns the step of [`gemm`] on an instruction's operands, then its pads.
fn product(io: &Io, ta: bool, tb: bool, beta: u64, bias: Option<&Tensor>) -> Steps {
    let y = &io.y[0];
    // cuBLASLt adds a bias of the product's type only.
    let fused = bias.filter(|bias| bias.ty.dtype == y.ty.dtype);
    let scratch = [io.workspace, io.workspace_bytes];
    let mut steps = vec![gemm([&io.x[0], &io.x[1], y], [ta, tb], beta, fused, scratch)?];
    if let Some(bias) = bias.filter(|_| fused.is_none()) {
        let y = y.view();
        steps.extend(launch_over(&AddBias { y, bias: bias.view() }, y.stored()));
    }
    steps.extend(clear_pads(y));
    Ok(steps)
}

/// y = op(a) op(b) + beta y + bias on row-major tensors a, b, y; a and b may be transposed. A row-major
/// tensor read column by column is its transpose, so this is the column-major product yᵀ = op(b)ᵀ op(a)ᵀ.
/// `scratch`: address and bytes.
pub(crate) fn gemm(
    [a, b, y]: [&Tensor; 3],
    [ta, tb]: [bool; 2],
    beta: u64,
    bias: Option<&Tensor>,
    scratch: [u64; 2],
) -> Result<Step, String> {
    if a.ty.dtype != b.ty.dtype || !a.ty.dtype.is_float() {
        return Err(format!("cuBLASLt has no product of {} and {}", a.ty, b.ty));
    }
    Ok(Step::Gemm(Gemm {
        m: y.ty.shape.cols() as u64,
        n: y.ty.shape[y.ty.shape.len() - 2] as u64,
        k: if ta { a.ty.shape[a.ty.shape.len() - 2] } else { a.ty.shape.cols() } as u64,
        batch: if y.ty.shape.len() == 3 { y.ty.shape[0] as u64 } else { 1 },
        a: matrix(b, tb),
        b: matrix(a, ta),
        d: matrix(y, false),
        beta,
        bias: bias.map_or(0, |bias| bias.at),
        workspace: scratch[0],
        workspace_bytes: scratch[1],
    }))
}

/// Returns the bias of a product, where cuBLASLt does not add it. D's columns are the rows of a tensor.
pub(crate) fn add_bias(g: &Gemm) -> Vec<Launch> {
    let vector = TensorType::new(g.d.dtype, &[g.m as usize]);
    let mut ty = TensorType::new(g.d.dtype, &[(g.n * g.batch) as usize, g.m as usize]);
    ty.pitch = g.d.ld as usize;
    let (y, bias) = (View::new(g.d.at, ty), View::new(g.bias, vector));
    let steps = launch_over(&AddBias { y, bias }, y.stored());
    steps.into_iter().filter_map(|s| if let Step::Launch(l) = s { Some(l) } else { None }).collect()
}

/// Returns a row-major tensor as a column-major operand.
fn matrix(t: &Tensor, transposed: bool) -> Matrix {
    let rows = t.ty.shape[t.ty.shape.len() - 2];
    let ld = t.ty.pitch as u64;
    Matrix { at: t.at, dtype: t.ty.dtype, ld, stride: rows as u64 * ld, transposed }
}

/// Zeroes the pads of a product.
pub(crate) fn clear_pads(y: &Tensor) -> Vec<Step> {
    if y.ty.is_dense() {
        return Vec::new();
    }
    let y = y.view();
    launch_over(&ClearPads { y }, y.rows as u64 * (y.pitch - y.cols) as u64)
}
