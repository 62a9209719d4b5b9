//! Splines.

use super::{Resolved, kernel};
use crate::cpu::kernels::{self as k, Spline};
use crate::cpu::operand::Io;
use ambitus_ir::ops::spline::{RationalSpline, RationalSplineGrad};

pub fn rational_spline(op: &RationalSpline, mut io: Io) -> Resolved {
    let (spline, inverse) = (Spline { bins: op.bins, bound: op.bound }, op.inverse);
    let (x, params, mut y, mut logdet) = (io.x(0)?, io.x(1)?, io.y(0), io.y(1));
    kernel(move |f| {
        let results = [y.vec(f), logdet.vec(f)];
        k::rational_spline(f.pool, spline, inverse, x.vec(f), params.mat(f), results);
    })
}

pub fn rational_spline_grad(op: &RationalSplineGrad, mut io: Io) -> Resolved {
    let spline = Spline { bins: op.bins, bound: op.bound };
    let (x, params, dy, dlogdet) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut dx, mut dparams) = (io.y(0), io.y(1));
    kernel(move |f| {
        let (x, params, of) = (x.vec(f), params.mat(f), [dy.vec(f), dlogdet.vec(f)]);
        k::rational_spline_grad(f.pool, spline, x, params, of, dx.vec(f), dparams.mat(f));
    })
}
