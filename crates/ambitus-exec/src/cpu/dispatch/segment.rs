//! Ops on segments: modulation, tables, dropout, sinusoids.

use super::norm::row;
use super::{Resolved, kernel, segments, small, widened};
use crate::cpu::core_ops::narrow::{self, Operand};
use crate::cpu::core_ops::{in_place, segment};
use crate::cpu::kernels::{self as k, MatMut};
use crate::cpu::operand::{Io, Source, by_width, half};
use crate::cpu::types::Types;
use ambitus_ir::ops::index::{Sinusoid, SinusoidKind};
use ambitus_ir::ops::random::Dropout;
use ambitus_ir::ops::segment::{AdaLayerNorm, AdaLayerNormGrad};

pub fn ids(mut io: Io) -> Resolved {
    let (seg, mut y) = (io.x(0)?, io.y(0));
    kernel(move |f| segment::ids(seg.ints(f), y.vec(f)))
}

pub fn positions(mut io: Io) -> Resolved {
    let (seg, mut y) = (io.x(0)?, io.y(0));
    kernel(move |f| segment::positions(seg.ints(f), y.vec(f)))
}

pub fn broadcast(mut io: Io) -> Resolved {
    let (x, seg, mut y) = (io.x(0)?, io.x(1)?, io.y(0));
    by_width!(x.ty(), E => kernel(move |f| {
        segment::broadcast(f.pool, x.ty(), y.ty(), x.slice::<E>(f), seg.ints(f), y.slice::<E>(f));
    }))
}

pub fn sum(mut io: Io) -> Resolved {
    let (x, seg, mut y) = (io.x(0)?, io.x(1)?, io.y(0));
    kernel(move |f| segment::sum(f.pool, y.ty(), x.rows(f), seg.ints(f), y.data(f)))
}

pub fn ada_layer_norm(op: &AdaLayerNorm, mut io: Io) -> Resolved {
    let eps = op.eps;
    let (x, shift, scale, seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut y, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let (scale, ws) = widened(f, &scale, ws.data(f));
        let (shift, _) = widened(f, &shift, ws);
        k::ada_layer_norm(f.pool, x.rows(f), seg.ints(f), scale, shift, eps, y.rows(f));
    })
}

pub fn ada_layer_norm_grad(op: &AdaLayerNormGrad, mut io: Io) -> Resolved {
    let eps = op.eps;
    let (x, scale, dy, seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut dx, mut dshift, mut dscale, mut ws) = (io.y(0), io.y(1), io.y(2), io.ws());
    kernel(move |f| {
        let (scale, ws) = widened(f, &scale, ws.data(f));
        let (x, seg, dy) = (x.rows(f), seg.ints(f), dy.rows(f));
        let (dx, dscale, dshift) = (dx.rows(f), dscale.rows(f), dshift.rows(f));
        k::ada_layer_norm_grad(f.pool, x, seg, scale, eps, dy, dx, dscale, dshift, ws);
    })
}

/// Returns the floats of scratch of [`ada_layer_norm_grad`].
pub fn ada_layer_norm_grad_workspace(t: Types<'_>) -> usize {
    let (scale, seg, x) = (t.x[1], t.x[3], t.x[0].shape);
    small(scale) + k::ada_layer_norm_grad_workspace(x.rows(), segments(seg), x.cols())
}

pub fn gated_residual(mut io: Io) -> Resolved {
    let (x, gate, y) = (io.source(0, 0)?, io.x(1)?, io.source(2, 0)?);
    let (seg, mut out) = (io.x(3)?, io.y(0));
    if half(out.ty()).is_some() {
        let mut ws = io.ws();
        return kernel(move |f| {
            let (gate, _) = widened(f, &gate, ws.data(f));
            let (seg, x) = (seg.ints(f), [Operand::new(x.rows(f), 0), Operand::new(y.rows(f), 0)]);
            narrow::staged(f.pool, x, [out.rows(f)], |(t, c), [x, y], [new]| {
                let Some(s) = k::segment_of(seg, t) else { return new.copy_from_slice(x) };
                let (n, gate) = (new.len(), row(&gate.row(s)[c..][..x.len()]));
                k::gated_residual(f.one, row(x), row(y), gate, &[0, 1], MatMut::dense(new, 1, n));
            });
        });
    }
    if let (Source::In(x), Source::In(y)) = (&x, &y) {
        let (x, y) = (x.clone(), y.clone());
        return kernel(move |f| {
            let (x, seg) = (x.mat(f), seg.ints(f));
            k::gated_residual(f.pool, x, y.mat(f), gate.mat(f), seg, out.mat(f));
            // The kernel leaves rows of no segment zero; the op leaves them x.
            let mut out = out.mat(f);
            let tail = seg.last().map_or(0, |end| *end as usize)..x.rows;
            tail.for_each(|t| out.row_mut(t).copy_from_slice(x.row(t)));
        });
    }
    kernel(move |f| {
        let (ty, gate, seg) = (out.ty(), gate.mat(f), seg.ints(f));
        let (x, y) = (x.data(f), y.data(f));
        in_place::staged_rows(f.pool, ty, out.data(f), |t, c, old, new| {
            let (n, at) = (new.len(), t * ty.pitch + c);
            let x = x.map_or(old, |x| &x[at..][..n]);
            let y = y.map_or(old, |y| &y[at..][..n]);
            let Some(s) = k::segment_of(seg, t) else { return new.copy_from_slice(x) };
            let gate = row(&gate.row(s)[c..][..n]);
            k::gated_residual(f.one, row(x), row(y), gate, &[0, 1], MatMut::dense(new, 1, n));
        });
    })
}

pub fn gated_residual_grad(mut io: Io) -> Resolved {
    let (gate, y, dy, seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut df, mut dgate, mut ws) = (io.y(0), io.y(1), io.ws());
    kernel(move |f| {
        let (gate, ws) = widened(f, &gate, ws.data(f));
        let (y, seg, dy) = (y.rows(f), seg.ints(f), dy.rows(f));
        k::gated_residual_grad(f.pool, y, gate, seg, dy, df.rows(f), dgate.rows(f), ws);
    })
}

/// Returns the floats of scratch of [`gated_residual_grad`].
pub fn gated_residual_grad_workspace(t: Types<'_>) -> usize {
    let (gate, seg, y) = (t.x[0], t.x[3], t.x[1].shape);
    small(gate) + k::gated_residual_grad_workspace(y.rows(), segments(seg), y.cols())
}

pub fn dropout(op: &Dropout, mut io: Io) -> Resolved {
    let (p, id) = (op.p, op.id);
    let (x, keys, seg, mut y) = (io.x(0)?, io.x(1)?, io.x(2)?, io.y(0));
    kernel(move |f| {
        let (keys, _) = keys.words(f).as_chunks::<2>();
        k::dropout(f.pool, x.rows(f), seg.ints(f), keys, id, p, y.rows(f));
    })
}

pub fn sinusoid(op: &Sinusoid, mut io: Io) -> Resolved {
    let order = match op.kind {
        SinusoidKind::SinCos => k::SinusoidOrder::SinCos,
        SinusoidKind::CosSin => k::SinusoidOrder::CosSin,
    };
    let (freqs, scale) = (segment::frequencies(op), op.scale);
    let (x, mut y, mut ws) = (io.x(0)?, io.y(0), io.ws());
    kernel(move |f| {
        let x = x.vec(f);
        let positions = &mut ws.data(f)[..x.len()];
        positions.iter_mut().zip(x).for_each(|(p, x)| *p = scale * x);
        k::sinusoid(f.pool, positions, &freqs, order, y.mat(f));
    })
}
