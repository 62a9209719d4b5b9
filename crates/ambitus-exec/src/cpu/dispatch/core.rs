//! Core ops.

use super::{Resolved, kernel};
use crate::cpu::core_ops::narrow::{self, Operand};
use crate::cpu::core_ops::{elementwise, layout, pieces, reduce as sums};
use crate::cpu::kernels as k;
use crate::cpu::operand::{In, Io, by_width, contiguous, half};
use crate::cpu::types::{Types, f32s, staged};
use ambitus_ir::ops::elementwise::{Binary, Fill, Unary};
use ambitus_ir::ops::index::{Gather, ScatterAdd};
use ambitus_ir::ops::layout::{Concat, Iota, Permute, Reverse, Slice};
use ambitus_ir::ops::reduce::{Reduce, ReduceKind};
use ambitus_ir::{DType, TensorType};

/// Returns the type of a piece that was widened.
fn flat(x: &[f32]) -> TensorType {
    TensorType::f32(&[x.len()])
}

pub fn unary(op: &Unary, mut io: Io) -> Resolved {
    let (kind, x, mut y) = (op.kind, io.source(0, 0)?, io.y(0));
    if half(y.ty()).is_some() {
        return kernel(move |f| {
            narrow::staged(f.pool, [Operand::new(x.rows(f), 0)], [y.rows(f)], |_, [x], [y]| {
                elementwise::unary(f.one, kind, flat(x), Some(x), y);
            });
        });
    }
    kernel(move |f| elementwise::unary(f.pool, kind, y.ty(), x.data(f), y.data(f)))
}

pub fn binary(op: &Binary, mut io: Io) -> Resolved {
    let (kind, a, b, mut y) = (op.kind, io.source(0, 0)?, io.source(1, 0)?, io.y(0));
    if half(y.ty()).is_some() {
        return kernel(move |f| {
            let x = [Operand::new(a.rows(f), 0), Operand::new(b.rows(f), 0)];
            narrow::staged(f.pool, x, [y.rows(f)], |_, [a, b], [y]| {
                elementwise::binary(f.one, kind, flat(a), Some(a), Some(b), y);
            });
        });
    }
    kernel(move |f| elementwise::binary(f.pool, kind, y.ty(), a.data(f), b.data(f), y.data(f)))
}

pub fn select(mut io: Io) -> Resolved {
    let (c, a, b) = (io.x(0)?, io.source(1, 0)?, io.source(2, 0)?);
    let mut y = io.y(0);
    let types = (c.ty(), y.ty());
    by_width!(y.ty(), E => kernel(move |f| {
        let (a, b, y) = (a.slice::<E>(f), b.slice::<E>(f), y.slice::<E>(f));
        match types.0.dtype {
            // As an integer, -0.0 is not zero.
            DType::I32 => {
                elementwise::select(f.pool, types, c.data(f), |c| elementwise::int(c) != 0, a, b, y);
            }
            DType::F32 => elementwise::select(f.pool, types, c.data(f), |c| c != 0.0, a, b, y),
            // The bits of 16-bit zeros but for the sign.
            _ => elementwise::select(f.pool, types, c.slice::<u16>(f), |c| c << 1 != 0, a, b, y),
        }
    }))
}

pub fn cast(mut io: Io) -> Resolved {
    let (x, mut y) = (io.x(0)?, io.y(0));
    if half(x.ty()).or(half(y.ty())).is_some() {
        let (from, to) = (x.ty().dtype, y.ty().dtype);
        return kernel(move |f| {
            narrow::staged(f.pool, [Operand::Of(x.rows(f))], [y.rows(f)], |_, [x], [y]| {
                // Integers lie in words of 32 bits; 16-bit floats were widened, or will be rounded.
                let from = if from == DType::I32 { from } else { DType::F32 };
                let to = TensorType { dtype: if to == DType::I32 { to } else { DType::F32 }, ..flat(x) };
                elementwise::cast(f.one, from, to, x, y);
            });
        });
    }
    kernel(move |f| elementwise::cast(f.pool, x.ty().dtype, y.ty(), x.data(f), y.data(f)))
}

pub fn fill(op: &Fill, mut io: Io) -> Resolved {
    let (value, mut y) = (op.value, io.y(0));
    if let Some(half) = half(y.ty()) {
        let bits = half.bits(value);
        return kernel(move |f| pieces(f.pool, y.ty(), y.slice::<u16>(f), |_, out| out.fill(bits)));
    }
    kernel(move |f| elementwise::fill(f.pool, y.ty(), value, y.data(f)))
}

pub fn scale(mut io: Io) -> Resolved {
    let (x, s, mut y) = (io.source(0, 0)?, io.x(1)?, io.y(0));
    if half(y.ty()).is_some() {
        return kernel(move |f| {
            let s = s.scalar(f);
            narrow::staged(f.pool, [Operand::new(x.rows(f), 0)], [y.rows(f)], |_, [x], [y]| {
                y.iter_mut().zip(x).for_each(|(y, x)| *y = x * s);
            });
        });
    }
    kernel(move |f| {
        let s = s.scalar(f);
        elementwise::map(f.pool, y.ty(), x.data(f), y.data(f), |x| x * s);
    })
}

pub fn scale_rows(mut io: Io) -> Resolved {
    let (x, m, mut y) = (io.source(0, 0)?, io.x(1)?, io.y(0));
    if half(y.ty()).is_some() {
        return kernel(move |f| {
            let m = m.vec(f);
            narrow::staged(f.pool, [Operand::new(x.rows(f), 0)], [y.rows(f)], |(r, _), [x], [y]| {
                y.iter_mut().zip(x).for_each(|(y, x)| *y = x * m[r]);
            });
        });
    }
    kernel(move |f| elementwise::scale_rows(f.pool, y.ty(), x.data(f), m.vec(f), y.data(f)))
}

/// Sums of a matrix's columns have a kernel of their own.
fn sums_columns(op: &Reduce, x: TensorType) -> bool {
    op.kind == ReduceKind::Sum && op.axis == 0 && x.shape.len() == 2
}

/// Returns true when [`reduce`] takes 16-bit values in these places.
pub fn reduce_takes_halves(op: &Reduce, t: Types<'_>) -> bool {
    sums_columns(op, t.x[0]) && staged(t.x[0]) && f32s(&t.y[..1])
}

/// Returns the floats of scratch of [`reduce`].
pub fn reduce_workspace(op: &Reduce, t: Types<'_>) -> usize {
    let (x, shape) = (t.x[0], t.x[0].shape);
    if sums_columns(op, x) { k::column_sum_workspace(shape.rows(), shape.cols()) } else { 0 }
}

pub fn reduce(op: &Reduce, mut io: Io) -> Resolved {
    let (kind, axis) = (op.kind, op.axis);
    let (x, mut y, mut ws) = (io.x(0)?, io.y(0), io.ws());
    if sums_columns(op, x.ty()) {
        return kernel(move |f| k::column_sum(f.pool, x.rows(f), 0.0, y.vec(f), ws.data(f)));
    }
    kernel(move |f| sums::reduce(f.pool, kind, axis, x.ty(), y.ty(), x.data(f), y.data(f)))
}

pub fn reshape(mut io: Io) -> Resolved {
    let from = io.x_ty(0);
    if io.shared(0, 0) {
        let mut y = io.longer(0, 0)?;
        let ty = io.y_ty(0);
        if contiguous(from) && ty.is_dense() {
            return kernel(|_| ());
        }
        return by_width!(ty, E => kernel(move |f| layout::reshape_in_place(from, ty, y.slice::<E>(f))));
    }
    let (x, mut y) = (io.x(0)?, io.y(0));
    by_width!(from, E => kernel(move |f| {
        layout::reshape(f.pool, from, y.ty(), x.slice::<E>(f), y.slice::<E>(f));
    }))
}

pub fn permute(op: &Permute, mut io: Io) -> Resolved {
    let (axes, x, mut y) = (op.axes, io.x(0)?, io.y(0));
    by_width!(x.ty(), E => kernel(move |f| {
        layout::permute(f.pool, &axes, x.ty(), y.ty(), x.slice::<E>(f), y.slice::<E>(f));
    }))
}

pub fn broadcast(mut io: Io) -> Resolved {
    let (x, mut y) = (io.x(0)?, io.y(0));
    by_width!(x.ty(), E => kernel(move |f| {
        layout::broadcast(f.pool, x.ty(), y.ty(), x.slice::<E>(f), y.slice::<E>(f));
    }))
}

pub fn slice(op: &Slice, mut io: Io) -> Resolved {
    let (x, mut y) = (io.x(0)?, io.y(0));
    let block = layout::Block::slice(x.ty(), y.ty(), op.axis, op.start);
    by_width!(x.ty(), E => kernel(move |f| block.run(f.pool, x.slice::<E>(f), y.slice::<E>(f))))
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
    by_width!(y.ty(), E => kernel(move |f| {
        parts.iter().for_each(|(x, block)| block.run(f.pool, x.slice::<E>(f), y.slice::<E>(f)));
    }))
}

pub fn reverse(op: &Reverse, mut io: Io) -> Resolved {
    let (axis, x, mut y) = (op.axis, io.x(0)?, io.y(0));
    by_width!(x.ty(), E => kernel(move |f| {
        layout::reverse(f.pool, axis, y.ty(), x.slice::<E>(f), y.slice::<E>(f));
    }))
}

pub fn iota(op: &Iota, mut io: Io) -> Resolved {
    let (axis, mut y) = (op.axis, io.y(0));
    kernel(move |f| layout::iota(f.pool, axis, y.ty(), y.data(f)))
}

pub fn gather(op: &Gather, mut io: Io) -> Resolved {
    let first = op.part.map_or(0, |p| p.first);
    let before = if io.operands() > 2 { Some(io.source(2, 0)?) } else { None };
    let (x, ids, mut y) = (io.x(0)?, io.x(1)?, io.y(0));
    by_width!(x.ty(), E => kernel(move |f| {
        let (table, ty) = ((x.ty(), first), y.ty());
        let before = match &before {
            None => layout::Outside::Zero,
            Some(before) => before.slice::<E>(f).map_or(layout::Outside::Kept, layout::Outside::Of),
        };
        layout::gather(f.pool, table, ty, (x.slice::<E>(f), before), ids.ints(f), y.slice::<E>(f));
    }))
}

pub fn write_rows(mut io: Io) -> Resolved {
    let (x, at, mut y) = (io.x(1)?, io.x(2)?, io.donated(0, 0)?);
    by_width!(x.ty(), E => kernel(move |f| {
        let (from, to) = (x.ty(), y.ty());
        layout::write_rows((from, x.slice::<E>(f)), at.ints(f), (to, y.slice::<E>(f)));
    }))
}

pub fn scatter_add(op: &ScatterAdd, mut io: Io) -> Resolved {
    let (x, ids) = (io.x(0)?, io.x(1)?);
    let first = op.part.map_or(0, |p| p.first);
    let (beta, mut y) = accumulator(op.acc, &mut io, 2, 0)?;
    kernel(move |f| {
        k::scatter_add_rows(f.pool, (ids.ints(f), first), x.rows(f), beta.value(f), y.mat(f));
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

/// Returns result `o` of an op that may take (accumulator at operand `i`, beta after it).
pub fn accumulator(
    acc: bool,
    io: &mut Io,
    i: usize,
    o: usize,
) -> Result<(Beta, crate::cpu::operand::Out), String> {
    if acc { Ok((Beta(Some(io.x(i + 1)?)), io.donated(i, o)?)) } else { Ok((Beta(None), io.y(o))) }
}
