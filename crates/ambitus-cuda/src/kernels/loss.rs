//! Losses.

use super::matmul::{clear_pads, gemm};
use super::{View, kernels, launch, launch_over};
use crate::bind::{Io, Steps, Tensor};
use ambitus_ir::ops::loss::{LinearCrossEntropy, LinearCrossEntropyGrad};
use ambitus_ir::{DType, TensorType};

kernels! { "loss";
    /// Sums of mask * (pred - target)^2 over `rows_each` rows, a block each.
    MseParts "masked_mse_parts" [256 threads, 40 registers] {
        pred: View, target: View, mask: View, parts: u64, rows_each: i32,
    }
    /// y = 2 * norm * dloss * mask * (pred - target).
    MseGrad "masked_mse_grad" [256 threads, 40 registers] {
        pred: View, target: View, mask: View, norm: View, dloss: View, y: View,
    }
    /// y = norm * sum of n floats, with one block.
    LossSum "loss_sum" [256 threads, 32 registers] { parts: u64, n: i64, norm: View, y: View }
    /// The losses of a tile's rows from their logits; with `grad` not negative (an element type), the
    /// gradient takes the logits' place. A block per row.
    CrossEntropyRows "cross_entropy_rows" [256 threads, 40 registers] {
        logits: u64, pitch: i32, classes: i32, first: i64, labels: View,
        norm: View, dloss: View, losses: u64, grad: i32,
    }
    /// A one in memory: the beta of all products that add to a gradient but the first.
    One "one" [32 threads, 16 registers] { y: u64 }
    /// y = beta * y, without reading y where beta is 0 or there is none: the gradient of no rows.
    NoRows "no_rows" [256 threads, 40 registers] { beta: View, y: View }
}

/// Elements of a partial sum: at least one row, else as many rows as fit.
const PARTIAL: usize = 4096;

fn rows_per_partial(cols: usize) -> usize {
    (PARTIAL / cols.max(1)).max(1)
}

/// Scratch of MaskedMse: the partial sums.
pub(crate) fn masked_mse_workspace(x: &[TensorType]) -> u64 {
    4 * x[0].shape.rows().div_ceil(rows_per_partial(x[0].shape.cols())) as u64
}

pub(crate) fn masked_mse(io: &Io) -> Steps {
    let (pred, target, mask) = (io.x[0].view(), io.x[1].view(), io.x[2].view());
    let rows_each = rows_per_partial(pred.cols as usize);
    let n = (pred.rows as usize).div_ceil(rows_each);
    let parts = io.workspace;
    let mut steps = Vec::new();
    if n > 0 {
        let sums = MseParts { pred, target, mask, parts, rows_each: rows_each as i32 };
        steps.push(launch(&sums, [n as u32, 1]));
    }
    steps.push(launch(&LossSum { parts, n: n as i64, norm: io.x[3].view(), y: io.y[0].view() }, [1, 1]));
    Ok(steps)
}

pub(crate) fn masked_mse_grad(io: &Io) -> Steps {
    let x = |i: usize| io.x[i].view();
    let y = io.y[0].view();
    let args = MseGrad { pred: x(0), target: x(1), mask: x(2), norm: x(3), dloss: x(4), y };
    Ok(launch_over(&args, y.stored()))
}

/// What a linear head's ops keep behind a product's scratch, in this order; offsets are multiples of 256.
struct Scratch {
    /// rows of a tile
    tile: usize,
    /// f32 logits of a tile
    logits: TensorType,
    /// losses of all rows: bytes
    losses: u64,
    /// a one
    one: u64,
}

impl Scratch {
    fn new(tile: usize, x: &[TensorType]) -> Scratch {
        let (rows, classes) = (x[0].shape.rows(), x[1].shape.rows());
        let tile = tile.clamp(1, rows.max(1));
        // Rows of whole 16 bytes whatever their length: products are fastest so.
        let pitch = classes.next_multiple_of(4);
        let logits = TensorType { pitch, ..TensorType::f32(&[tile, classes]) };
        Scratch { tile, logits, losses: (4 * rows as u64).next_multiple_of(256), one: 256 }
    }

    fn logits_bytes(&self) -> u64 {
        self.logits.bytes().next_multiple_of(256)
    }

    fn bytes(&self) -> u64 {
        self.logits_bytes() + self.losses + self.one
    }
}

/// Scratch of a linear head with a loss: what a product wants, then a tile of logits, the rows' losses, a
/// one.
pub(crate) fn linear_cross_entropy_workspace(tile: usize, x: &[TensorType], gemm: u64) -> u64 {
    gemm.next_multiple_of(256) + Scratch::new(tile, x).bytes()
}

pub(crate) fn linear_cross_entropy(op: &LinearCrossEntropy, io: &Io) -> Steps {
    head(op.tile, io, None)
}

pub(crate) fn linear_cross_entropy_grad(op: &LinearCrossEntropyGrad, io: &Io) -> Steps {
    let beta = op.acc.then(|| io.x[6]);
    let dw = op.dw.then(|| io.y[2]);
    head(op.tile, io, Some(Gradients { dloss: io.x[4].view(), dx: io.y[1], dw, beta }))
}

/// Where gradients go.
struct Gradients {
    dloss: View,
    dx: Tensor,
    /// of a head that is trained
    dw: Option<Tensor>,
    /// factor of the old dw
    beta: Option<Tensor>,
}

/// The walk over tiles of rows. Both ops launch the same, so that their losses are equal bit by bit.
fn head(tile: usize, io: &Io, grad: Option<Gradients>) -> Steps {
    let (x, w, labels, norm) = (&io.x[0], &io.x[1], io.x[2].view(), io.x[3].view());
    let scratch = Scratch::new(tile, &[x.ty, w.ty]);
    let products = io.workspace_bytes - scratch.bytes();
    let at = io.workspace + products;
    let (losses, one) = (at + scratch.logits_bytes(), at + scratch.logits_bytes() + scratch.losses);
    let (rows, classes) = (x.ty.shape.rows(), w.ty.shape.rows());
    let products = [io.workspace, products];
    let mut steps = Vec::new();
    if grad.is_some() && rows > scratch.tile {
        steps.push(launch(&One { y: one }, [1, 1]));
    }
    for first in (0..rows).step_by(scratch.tile) {
        let n = scratch.tile.min(rows - first);
        let part = rows_of(x, first, n);
        let logits =
            Tensor { at, ty: TensorType { pitch: scratch.logits.pitch, ..TensorType::f32(&[n, classes]) } };
        steps.push(gemm([&part, w, &logits], [false, true], 0, None, products)?);
        let softmax = CrossEntropyRows {
            logits: at,
            pitch: logits.ty.pitch as i32,
            classes: classes as i32,
            first: first as i64,
            labels,
            norm,
            dloss: grad.as_ref().map_or(View::NONE, |g| g.dloss),
            losses,
            grad: grad.as_ref().map_or(-1, |_| x.view().dtype),
        };
        steps.push(launch(&softmax, [n as u32, 1]));
        if let Some(grad) = &grad {
            // Products have operands of one type: the gradient is in x's and lies at the start of its row of
            // logits.
            let g = Tensor { at, ty: in_place(logits.ty, x.ty.dtype) };
            steps.push(gemm([&g, w, &rows_of(&grad.dx, first, n)], [false, false], 0, None, products)?);
            let beta = if first == 0 { grad.beta.map_or(0, |beta| beta.at) } else { one };
            if let Some(dw) = &grad.dw {
                steps.push(gemm([&g, &part, dw], [true, false], beta, None, products)?);
            }
        }
    }
    if let Some(Gradients { dx, dw, beta, .. }) = &grad {
        if let Some(dw) = dw.filter(|_| rows == 0) {
            let (beta, y) = (beta.map_or(View::NONE, |beta| beta.view()), dw.view());
            steps.extend(launch_over(&NoRows { beta, y }, y.stored()));
        }
        steps.extend(clear_pads(dx));
        steps.extend(dw.iter().flat_map(clear_pads));
    }
    steps.push(launch(&LossSum { parts: losses, n: rows as i64, norm, y: io.y[0].view() }, [1, 1]));
    Ok(steps)
}

/// Rows first..first + n of a matrix.
fn rows_of(t: &Tensor, first: usize, n: usize) -> Tensor {
    let row = (t.ty.pitch * t.ty.dtype.size()) as u64;
    let ty = TensorType { pitch: t.ty.pitch, ..t.ty.with_shape(&[n, t.ty.shape.cols()]) };
    Tensor { at: t.at + first as u64 * row, ty }
}

/// A matrix of another type whose rows start where the rows of f32 `ty` do.
fn in_place(ty: TensorType, dtype: DType) -> TensorType {
    TensorType { pitch: ty.pitch * 4 / dtype.size(), ..TensorType::new(dtype, &ty.shape) }
}
