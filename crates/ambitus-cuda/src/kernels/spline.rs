//! Splines.

use super::{View, kernels, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::ops::spline::{RationalSpline, RationalSplineGrad};

kernels! { "spline";
    /// (y, log |dy/dx|) of x `[T]` and params `[T, 3B - 1]`. A thread per row; blocks of one warp, as a text has few rows and
    /// many multiprocessors have few units for fp64. Registers for 16 blocks, the most that some cards hold.
    RationalSplineArgs "rational_spline" [32 threads, 128 registers] {
        x: View, params: View, y: View, logdet: View, bins: i32, bound: f32, inverse: i32,
    }
    /// (dx, dparams) from dy and dlogdet.
    RationalSplineGradArgs "rational_spline_grad" [32 threads, 128 registers] {
        x: View, params: View, dy: View, dlogdet: View, dx: View, dparams: View, bins: i32, bound: f32,
    }
}

pub(crate) fn rational_spline(op: &RationalSpline, io: &Io) -> Steps {
    let [x, params] = [0, 1].map(|i| io.x[i].view());
    let [y, logdet] = [0, 1].map(|i| io.y[i].view());
    let (bins, bound, inverse) = (op.bins as i32, op.bound, i32::from(op.inverse));
    Ok(launch_over(&RationalSplineArgs { x, params, y, logdet, bins, bound, inverse }, params.rows as u64))
}

pub(crate) fn rational_spline_grad(op: &RationalSplineGrad, io: &Io) -> Steps {
    let [x, params, dy, dlogdet] = [0, 1, 2, 3].map(|i| io.x[i].view());
    let [dx, dparams] = [0, 1].map(|i| io.y[i].view());
    let (bins, bound) = (op.bins as i32, op.bound);
    let args = RationalSplineGradArgs { x, params, dy, dlogdet, dx, dparams, bins, bound };
    Ok(launch_over(&args, params.rows as u64))
}
