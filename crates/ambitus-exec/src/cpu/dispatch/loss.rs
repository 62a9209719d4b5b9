//! Losses.

use super::core::accumulator;
use super::{Resolved, kernel};
use crate::cpu::kernels as k;
use crate::cpu::operand::{Frame, In, Io, Source};
use crate::cpu::types::Types;
use ambitus_ir::TensorType;
use ambitus_ir::ops::head::{HeadGrad, HeadSums};
use ambitus_ir::ops::loss::{LinearCrossEntropy, LinearCrossEntropyGrad};
use ambitus_ir::ops::parts::Span;

pub fn masked_mse(mut io: Io) -> Resolved {
    let (pred, target, mask, norm) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut loss, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let (pred, target, mask, norm) = (pred.mat(f), target.mat(f), mask.vec(f), norm.scalar(f));
        loss.vec(f)[0] = k::masked_mse(f.pool, pred, target, mask, norm, ws.data(f));
    })
}

/// Returns the floats of scratch of [`masked_mse`].
pub fn masked_mse_workspace(t: Types<'_>) -> usize {
    k::masked_mse_workspace(t.x[0].shape.rows(), t.x[0].shape.cols())
}

pub fn masked_mse_grad(mut io: Io) -> Resolved {
    let (pred, target, mask) = (io.x(0)?, io.x(1)?, io.x(2)?);
    let (norm, dloss, mut dpred) = (io.x(3)?, io.x(4)?, io.y(0));
    kernel(move |f| {
        let norm = norm.scalar(f) * dloss.scalar(f);
        k::masked_mse_grad(f.pool, pred.mat(f), target.mat(f), mask.vec(f), norm, dpred.mat(f));
    })
}

/// The classes of an op, or of its part; of what is there when it runs.
#[derive(Clone, Copy)]
struct Classes {
    tile: usize,
    first: usize,
    of: usize,
}

impl Classes {
    fn new(tile: usize, part: Option<Span>, w: TensorType) -> Classes {
        Classes { tile, first: part.map_or(0, |p| p.first), of: part.map_or(w.shape.rows(), |p| p.of) }
    }

    fn head<'f>(&self, f: &'f Frame<'_>, [x, w, labels]: [&'f In; 3]) -> k::Head<'f> {
        let Classes { tile, first, of } = *self;
        k::Head { x: x.mat(f), w: w.mat(f), labels: labels.ints(f), first, of, tile }
    }
}

/// Returns the floats of scratch of the ops of a head, but its loss.
pub fn head_workspace(tile: usize, t: Types<'_>, threads: usize) -> usize {
    let (x, w) = (t.x[0].shape, t.x[1].shape);
    k::linear_cross_entropy_workspace(x.rows(), x.cols(), w.rows(), tile, threads)
}

pub fn linear_cross_entropy(op: &LinearCrossEntropy, mut io: Io) -> Resolved {
    let classes = Classes::new(op.tile, None, io.x_ty(1));
    let (x, w, labels, norm) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut loss, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let head = classes.head(f, [&x, &w, &labels]);
        loss.vec(f)[0] = k::linear_cross_entropy(f.pool, head, norm.scalar(f), None, ws.data(f));
    })
}

pub fn linear_cross_entropy_grad(op: &LinearCrossEntropyGrad, mut io: Io) -> Resolved {
    let classes = Classes::new(op.tile, None, io.x_ty(1));
    let (x, w, labels, norm, dloss) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?, io.x(4)?);
    let mut weight = op.dw.then(|| accumulator(op.acc, &mut io, 5, 2)).transpose()?;
    let (mut loss, mut dx, mut ws) = (io.y(0), io.y(1), io.ws());
    kernel(move |f| {
        let head = classes.head(f, [&x, &w, &labels]);
        let (dw, acc) = match &mut weight {
            Some((beta, dw)) => (Some(dw.mat(f)), beta.value(f)),
            None => (None, 0.0),
        };
        let grad = k::CrossEntropyGrad { scale: dloss.scalar(f), dx: dx.mat(f), dw, acc };
        loss.vec(f)[0] = k::linear_cross_entropy(f.pool, head, norm.scalar(f), Some(grad), ws.data(f));
    })
}

pub fn head_sums(op: &HeadSums, mut io: Io) -> Resolved {
    let classes = Classes::new(op.tile, op.part, io.x_ty(1));
    let (x, w, labels) = (io.x(0)?, io.x(1)?, io.x(2)?);
    let before = if io.operands() > 3 { io.source(3, 0)? } else { Source::Result };
    let (mut sums, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        before.put(f, &mut sums);
        k::head_sums(f.pool, classes.head(f, [&x, &w, &labels]), sums.vec(f), ws.data(f));
    })
}

pub fn head_loss(mut io: Io) -> Resolved {
    let (sums, labels, norm, mut loss) = (io.x(0)?, io.x(1)?, io.x(2)?, io.y(0));
    kernel(move |f| loss.vec(f)[0] = k::head_loss(labels.ints(f), sums.vec(f), norm.scalar(f)))
}

pub fn head_grad(op: &HeadGrad, mut io: Io) -> Resolved {
    let classes = Classes::new(op.tile, op.part, io.x_ty(1));
    let (x, w, labels, norm, dloss) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?, io.x(4)?);
    let sums = io.x(5)?;
    let before = if op.goes_on() { io.source(6, 0)? } else { Source::Result };
    let mut weight = op.dw.then(|| accumulator(op.acc, &mut io, op.accumulator(), 1)).transpose()?;
    let (mut dx, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        before.put(f, &mut dx);
        let head = classes.head(f, [&x, &w, &labels]);
        let (dw, acc) = match &mut weight {
            Some((beta, dw)) => (Some(dw.mat(f)), beta.value(f)),
            None => (None, 0.0),
        };
        let grad = k::CrossEntropyGrad { scale: dloss.scalar(f), dx: dx.mat(f), dw, acc };
        k::head_grad(f.pool, head, sums.vec(f), norm.scalar(f), grad, ws.data(f));
    })
}
