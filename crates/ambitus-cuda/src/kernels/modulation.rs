//! Scale, shift and gate per segment (DiT's AdaLN-zero).

use super::norm::{Norm, Sums, grad_workspace, sums_workspace};
use super::{View, kernels, launch, teams};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;

kernels! { "modulation";
    /// y = x + gate f.
    GatedResidualArgs "gated_residual" [256 threads, 48 registers] {
        x: View, gate: View, f: View, segments: View, y: View, narrow: i32,
    }
    /// df = gate dy.
    GateArgs "gated_residual_grad" [256 threads, 40 registers] {
        gate: View, dy: View, segments: View, df: View, narrow: i32,
    }
}

/// Adaptive layer norm: factors are 1 + scale.
fn adaptive(eps: f32) -> Norm {
    Norm { eps, centred: true, plus: 1.0 }
}

pub(crate) fn ada_layer_norm(eps: f32, io: &Io) -> Steps {
    let [x, shift, scale, segments] = [0, 1, 2, 3].map(|i| io.x[i].view());
    Ok(adaptive(eps).forward([x, scale, shift, segments], io.y[0].view()))
}

pub(crate) fn ada_layer_norm_grad(eps: f32, io: &Io) -> Steps {
    let [dx, dshift, dscale] = [0, 1, 2].map(|i| io.y[i].view());
    let sums = Sums { plain: dshift, weighted: dscale, segments: dshift.rows as usize };
    Ok(adaptive(eps).backward([0, 1, 2, 3].map(|i| io.x[i].view()), dx, &sums, io.workspace))
}

pub(crate) fn gated_residual(io: &Io) -> Steps {
    let [x, gate, f, segments] = [0, 1, 2, 3].map(|i| io.x[i].view());
    let y = io.y[0].view();
    let (narrow, grid) = teams(&y);
    let args = GatedResidualArgs { x, gate, f, segments, y, narrow };
    Ok(if grid[0] == 0 { Vec::new() } else { vec![launch(&args, grid)] })
}

/// dgate first: then df may lie on f.
pub(crate) fn gated_residual_grad(io: &Io) -> Steps {
    let [gate, f, dy, segments] = [0, 1, 2, 3].map(|i| io.x[i].view());
    let (df, dgate) = (io.y[0].view(), io.y[1].view());
    let sums = Sums { plain: View::NONE, weighted: dgate, segments: dgate.rows as usize };
    let mut steps = sums.steps([dy, f, View::NONE, segments], io.workspace);
    let (narrow, grid) = teams(&df);
    if grid[0] > 0 {
        steps.push(launch(&GateArgs { gate, dy, segments, df, narrow }, grid));
    }
    Ok(steps)
}

/// Scratch, by x and a table of the segments' scales.
pub(crate) fn ada_layer_norm_grad_workspace(x: TensorType, table: TensorType) -> u64 {
    grad_workspace(x, table.shape.rows(), 2)
}

/// Scratch, by f and the table of the segments' gates.
pub(crate) fn gated_residual_grad_workspace(f: TensorType, table: TensorType) -> u64 {
    sums_workspace(f, table.shape.rows(), 1)
}
