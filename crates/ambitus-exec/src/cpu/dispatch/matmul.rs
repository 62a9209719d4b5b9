//! Matrix products.

use super::core::accumulator;
use super::{Resolved, kernel, small, widened};
use crate::cpu::kernels::{
    Operand, Rows, few_rows_workspace, gemm_narrow, gemm_narrow_workspace, gemm_workspace,
};
use crate::cpu::operand::{Io, half};
use crate::cpu::types::{Types, f32s};
use ambitus_ir::ops::matmul::MatMul;

fn operand(rows: Rows<'_>, transposed: bool) -> Operand<'_> {
    if transposed { Operand::new(rows).t() } else { Operand::new(rows) }
}

pub fn matmul(op: &MatMul, mut io: Io) -> Resolved {
    let (ta, tb) = (op.ta, op.tb);
    let (a, b) = (io.x(0)?, io.x(1)?);
    let (batch, m, _, _) = op.dims(&[a.ty(), b.ty()]).ok_or("operands do not multiply")?;
    let (beta, mut c) = accumulator(op.acc, &mut io, 2, 0)?;
    let mut ws = io.ws();
    kernel(move |f| {
        let beta = beta.value(f);
        let (a, b, ws) = (a.rows(f), b.rows(f), ws.data(f));
        let (ra, rb) = (a.shape().0 / batch.max(1), b.shape().0 / batch.max(1));
        for i in 0..batch {
            let a = operand(a.rows_range(i * ra..(i + 1) * ra), ta);
            let b = operand(b.rows_range(i * rb..(i + 1) * rb), tb);
            let c = c.rows(f).rows_range(i * m..(i + 1) * m);
            gemm_narrow(f.pool, a, b, beta, c, None, ws);
        }
    })
}

/// Returns true when [`matmul`] takes 16-bit values in these places.
pub fn takes_halves(t: Types<'_>) -> bool {
    t.x.get(2).is_none_or(|acc| acc.dtype == t.y[0].dtype) && t.x.get(3).is_none_or(|beta| f32s(&[*beta]))
}

/// Returns the floats of scratch of [`matmul`].
pub fn workspace(op: &MatMul, t: Types<'_>, threads: usize) -> usize {
    op.dims(t.x).map_or(0, |(_, m, n, depth)| product(t, [m, n, depth], threads))
}

/// `rows`: each of w's rows gives an output, else each of its columns.
pub fn linear(rows: bool, mut io: Io) -> Resolved {
    let (x, w) = (io.x(0)?, io.x(1)?);
    let bias = if io.operands() == 3 { Some(io.x(2)?) } else { None };
    let (mut y, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let ws = ws.data(f);
        let (bias, ws) = match &bias {
            Some(bias) => {
                let (bias, ws) = widened(f, bias, ws);
                (Some(bias.data), ws)
            }
            None => (None, ws),
        };
        let (x, w) = (Operand::new(x.rows(f)), operand(w.rows(f), rows));
        gemm_narrow(f.pool, x, w, 0.0, y.rows(f), bias, ws);
    })
}

/// Returns the floats of scratch of [`linear`].
pub fn linear_workspace(t: Types<'_>, threads: usize) -> usize {
    let (x, y) = (t.x[0].shape, t.y[0].shape);
    let bias = t.x.get(2).map_or(0, |bias| small(*bias));
    bias + product(t, [x.rows(), y.cols(), x.cols()], threads)
}

fn product(t: Types<'_>, [m, n, depth]: [usize; 3], threads: usize) -> usize {
    let floats = if t.half_result() { gemm_narrow_workspace } else { gemm_workspace };
    let few = if half(t.x[0]).is_some() { few_rows_workspace(m, depth) } else { 0 };
    floats(m, n, depth, threads).max(few)
}
