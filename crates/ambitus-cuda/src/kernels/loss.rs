//! Losses; those of linear heads are in [`head`](super::head).

use super::{View, kernels, launch, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;

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
}

/// Elements of a partial sum: at least one row, else as many rows as fit.
const PARTIAL: usize = 4096;

fn rows_per_partial(cols: usize) -> usize {
    (PARTIAL / cols.max(1)).max(1)
}

/// Returns the scratch of MaskedMse: the partial sums.
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
