//! Convolutions.

use super::core::accumulator;
use super::{Resolved, kernel, segments};
use crate::cpu::kernels as k;
use crate::cpu::operand::Io;
use crate::cpu::types::Types;
use ambitus_ir::TensorType;
use ambitus_ir::ops::conv::{Conv1d, Conv1dInputGrad, Conv1dWeightGrad};

/// Returns the kernel's description of an op whose weight `[Cout, Cin/groups, K]` has the type `w`.
fn conv(w: TensorType, groups: usize, pad: usize) -> k::Conv1d {
    let [cout, cin, kernel] = [w.shape[0], w.shape[1] * groups, w.shape[2]];
    k::Conv1d { cin, cout, groups, kernel, pad_left: pad }
}

pub fn forward(op: &Conv1d, mut io: Io) -> Resolved {
    let (x, w, bias, seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let conv = conv(w.ty(), op.groups, op.pad);
    let (mut y, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let (x, seg, w, bias) = (x.mat(f), seg.ints(f), w.vec(f), Some(bias.vec(f)));
        k::conv1d(f.pool, x, seg, w, bias, &conv, y.mat(f), ws.data(f));
    })
}

/// Returns the floats of scratch of [`forward`].
pub fn workspace(op: &Conv1d, t: Types<'_>, threads: usize) -> usize {
    let conv = conv(t.x[1], op.groups, op.pad);
    k::conv1d_workspace(&conv, t.x[0].shape.rows(), segments(t.x[3]), threads)
}

pub fn input_grad(op: &Conv1dInputGrad, mut io: Io) -> Resolved {
    let (w, dy, seg) = (io.x(0)?, io.x(1)?, io.x(2)?);
    let conv = conv(w.ty(), op.groups, op.pad);
    let (mut dx, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let (dy, seg, w) = (dy.mat(f), seg.ints(f), w.vec(f));
        k::conv1d_grad_input(f.pool, dy, seg, w, &conv, dx.mat(f), ws.data(f));
    })
}

/// Returns the floats of scratch of [`input_grad`].
pub fn input_grad_workspace(op: &Conv1dInputGrad, t: Types<'_>, threads: usize) -> usize {
    let conv = conv(t.x[0], op.groups, op.pad);
    k::conv1d_workspace(&conv, t.x[1].shape.rows(), segments(t.x[2]), threads)
}

pub fn weight_grad(op: &Conv1dWeightGrad, mut io: Io) -> Resolved {
    let (x, dy, seg) = (io.x(0)?, io.x(1)?, io.x(2)?);
    let (beta, mut dw) = accumulator(op.acc, &mut io, 3, 0)?;
    let conv = conv(dw.ty(), op.groups, op.pad);
    let mut ws = io.ws();
    kernel(move |f| {
        let (x, dy, seg, beta) = (x.mat(f), dy.mat(f), seg.ints(f), beta.value(f));
        k::conv1d_grad_weight(f.pool, x, dy, seg, &conv, beta, dw.vec(f), ws.data(f));
    })
}

/// Returns the floats of scratch of [`weight_grad`].
pub fn weight_grad_workspace(op: &Conv1dWeightGrad, t: Types<'_>, threads: usize) -> usize {
    let conv = conv(t.y[0], op.groups, op.pad);
    k::conv1d_workspace(&conv, t.x[0].shape.rows(), segments(t.x[2]), threads)
}
