//! Core ops.

use super::{Resolved, kernel};
use crate::cpu::core_ops::{elementwise, layout, reduce as sums};
use crate::cpu::kernels as k;
use crate::cpu::operand::{In, Io, contiguous};
use ambitus_ir::ops::elementwise::{Binary, Fill, Unary};
use ambitus_ir::ops::index::ScatterAdd;
use ambitus_ir::ops::layout::{Concat, Iota, Permute, Slice};
use ambitus_ir::ops::reduce::{Reduce, ReduceKind};

pub fn unary(op: &Unary, mut io: Io) -> Resolved {
    let (kind, x, mut y) = (op.kind, io.source(0, 0)?, io.y(0));
    kernel(move |f| elementwise::unary(f.pool, kind, y.ty(), x.data(f), y.data(f)))
}

pub fn binary(op: &Binary, mut io: Io) -> Resolved {
    let (kind, a, b, mut y) = (op.kind, io.source(0, 0)?, io.source(1, 0)?, io.y(0));
    kernel(move |f| elementwise::binary(f.pool, kind, y.ty(), a.data(f), b.data(f), y.data(f)))
}

pub fn select(mut io: Io) -> Resolved {
    let (c, a, b) = (io.x(0)?, io.source(1, 0)?, io.source(2, 0)?);
    let mut y = io.y(0);
    kernel(move |f| {
        let (ty, cond) = (y.ty(), c.ty().dtype);
        elementwise::select(f.pool, ty, cond, c.data(f), a.data(f), b.data(f), y.data(f));
    })
}

pub fn cast(mut io: Io) -> Resolved {
    let (x, mut y) = (io.x(0)?, io.y(0));
    kernel(move |f| elementwise::cast(f.pool, x.ty().dtype, y.ty(), x.data(f), y.data(f)))
}

pub fn fill(op: &Fill, mut io: Io) -> Resolved {
    let (value, mut y) = (op.value, io.y(0));
    kernel(move |f| elementwise::fill(f.pool, y.ty(), value, y.data(f)))
}

pub fn scale(mut io: Io) -> Resolved {
    let (x, s, mut y) = (io.source(0, 0)?, io.x(1)?, io.y(0));
    kernel(move |f| {
        let s = s.scalar(f);
        elementwise::map(f.pool, y.ty(), x.data(f), y.data(f), |x| x * s);
    })
}

pub fn scale_rows(mut io: Io) -> Resolved {
    let (x, m, mut y) = (io.source(0, 0)?, io.x(1)?, io.y(0));
    kernel(move |f| elementwise::scale_rows(f.pool, y.ty(), x.data(f), m.vec(f), y.data(f)))
}

pub fn reduce(op: &Reduce, mut io: Io) -> Resolved {
    let (kind, axis) = (op.kind, op.axis);
    let (x, mut y, mut ws) = (io.x(0)?, io.y(0), io.ws());
    if kind == ReduceKind::Sum && axis == 0 && x.ty().shape.len() == 2 {
        return kernel(move |f| k::column_sum(f.pool, x.mat(f), 0.0, y.vec(f), ws.data(f)));
    }
    kernel(move |f| sums::reduce(f.pool, kind, axis, x.ty(), y.ty(), x.data(f), y.data(f)))
}

pub fn reshape(mut io: Io) -> Resolved {
    let from = io.x_ty(0);
    if io.shared(0, 0) {
        let mut y = io.longer(0, 0);
        let ty = io.y_ty(0);
        if contiguous(from) && ty.is_dense() {
            return kernel(|_| ());
        }
        return kernel(move |f| layout::reshape_in_place(from, ty, y.data(f)));
    }
    let (x, mut y) = (io.x(0)?, io.y(0));
    kernel(move |f| layout::reshape(f.pool, from, y.ty(), x.data(f), y.data(f)))
}

pub fn permute(op: &Permute, mut io: Io) -> Resolved {
    let (axes, x, mut y) = (op.axes, io.x(0)?, io.y(0));
    kernel(move |f| layout::permute(f.pool, &axes, x.ty(), y.ty(), x.data(f), y.data(f)))
}

pub fn broadcast(mut io: Io) -> Resolved {
    let (x, mut y) = (io.x(0)?, io.y(0));
    kernel(move |f| layout::broadcast(f.pool, x.ty(), y.ty(), x.data(f), y.data(f)))
}

pub fn slice(op: &Slice, mut io: Io) -> Resolved {
    let (x, mut y) = (io.x(0)?, io.y(0));
    let block = layout::Block::slice(x.ty(), y.ty(), op.axis, op.start);
    kernel(move |f| block.run(f.pool, x.data(f), y.data(f)))
}

pub fn concat(op: &Concat, mut io: Io) -> Resolved {
    let mut y = io.y(0);
    let mut start = 0;
    let mut parts = Vec::with_capacity(io.operands());
    for i in 0..io.operands() {
        let x = io.x(i)?;
        let block = layout::Block::insert(x.ty(), y.ty(), op.axis, start);
        start += x.ty().shape[op.axis];
        parts.push((x, block));
    }
    kernel(move |f| parts.iter().for_each(|(x, block)| block.run(f.pool, x.data(f), y.data(f))))
}

pub fn iota(op: &Iota, mut io: Io) -> Resolved {
    let (axis, mut y) = (op.axis, io.y(0));
    kernel(move |f| layout::iota(f.pool, axis, y.ty(), y.data(f)))
}

pub fn gather(mut io: Io) -> Resolved {
    let (x, ids, mut y) = (io.x(0)?, io.x(1)?, io.y(0));
    kernel(move |f| layout::gather(f.pool, x.ty(), y.ty(), x.data(f), ids.ints(f), y.data(f)))
}

pub fn scatter_add(op: &ScatterAdd, mut io: Io) -> Resolved {
    let (x, ids) = (io.x(0)?, io.x(1)?);
    let (beta, mut y) = accumulator(op.acc, &mut io, 2, 0)?;
    kernel(move |f| {
        k::scatter_add_rows(f.pool, ids.ints(f), x.mat(f), beta.value(f), y.mat(f));
    })
}

/// The factor of an accumulating op's old result.
pub struct Beta(Option<In>);

impl Beta {
    /// 0 (do not read the accumulator) for ops that do not accumulate.
    pub fn value(&self, f: &crate::cpu::operand::Frame<'_>) -> f32 {
        self.0.as_ref().map_or(0.0, |beta| beta.scalar(f))
    }
}

/// Result `o` of an op that may take (accumulator at operand `i`, beta after it).
pub fn accumulator(
    acc: bool,
    io: &mut Io,
    i: usize,
    o: usize,
) -> Result<(Beta, crate::cpu::operand::Out), String> {
    if acc { Ok((Beta(Some(io.x(i + 1)?)), io.donated(i, o)?)) } else { Ok((Beta(None), io.y(o))) }
}
