//! Losses.

use super::core::accumulator;
use super::{Resolved, kernel};
use crate::cpu::kernels as k;
use crate::cpu::operand::Io;
use ambitus_ir::ops::loss::{LinearCrossEntropy, LinearCrossEntropyGrad};

pub fn masked_mse(mut io: Io) -> Resolved {
    let (pred, target, mask, norm) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut loss, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let (pred, target, mask, norm) = (pred.mat(f), target.mat(f), mask.vec(f), norm.scalar(f));
        loss.vec(f)[0] = k::masked_mse(f.pool, pred, target, mask, norm, ws.data(f));
    })
}

pub fn masked_mse_grad(mut io: Io) -> Resolved {
    let (pred, target, mask) = (io.x(0)?, io.x(1)?, io.x(2)?);
    let (norm, dloss, mut dpred) = (io.x(3)?, io.x(4)?, io.y(0));
    kernel(move |f| {
        let norm = norm.scalar(f) * dloss.scalar(f);
        k::masked_mse_grad(f.pool, pred.mat(f), target.mat(f), mask.vec(f), norm, dpred.mat(f));
    })
}

pub fn linear_cross_entropy(op: &LinearCrossEntropy, mut io: Io) -> Resolved {
    let tile = op.tile;
    let (x, w, labels, norm) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut loss, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let (x, w, labels, norm) = (x.mat(f), w.mat(f), labels.ints(f), norm.scalar(f));
        let ws = ws.data(f);
        loss.vec(f)[0] = k::linear_cross_entropy(f.pool, x, w, labels, norm, tile, None, ws);
    })
}

pub fn linear_cross_entropy_grad(op: &LinearCrossEntropyGrad, mut io: Io) -> Resolved {
    let tile = op.tile;
    let (x, w, labels, norm, dloss) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?, io.x(4)?);
    let mut weight = op.dw.then(|| accumulator(op.acc, &mut io, 5, 2)).transpose()?;
    let (mut loss, mut dx, mut ws) = (io.y(0), io.y(1), io.ws());
    kernel(move |f| {
        let (x, w, labels, norm) = (x.mat(f), w.mat(f), labels.ints(f), norm.scalar(f));
        let (dw, acc) = match &mut weight {
            Some((beta, dw)) => (Some(dw.mat(f)), beta.value(f)),
            None => (None, 0.0),
        };
        let grad = k::CrossEntropyGrad { scale: dloss.scalar(f), dx: dx.mat(f), dw, acc };
        let ws = ws.data(f);
        loss.vec(f)[0] = k::linear_cross_entropy(f.pool, x, w, labels, norm, tile, Some(grad), ws);
    })
}
