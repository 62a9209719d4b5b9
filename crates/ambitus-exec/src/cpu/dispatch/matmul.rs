//! Matrix products.

use super::core::accumulator;
use super::{Resolved, kernel};
use crate::cpu::kernels::{Mat, MatMut, Operand, gemm};
use crate::cpu::operand::Io;
use ambitus_ir::ops::matmul::MatMul;

fn operand(mat: Mat<'_>, transposed: bool) -> Operand<'_> {
    if transposed { Operand::new(mat).t() } else { Operand::new(mat) }
}

pub fn matmul(op: &MatMul, mut io: Io) -> Resolved {
    let (ta, tb) = (op.ta, op.tb);
    let (a, b) = (io.x(0)?, io.x(1)?);
    let (batch, m, n, _) = op.dims(&[a.ty(), b.ty()]).ok_or("operands do not multiply")?;
    let (beta, mut c) = accumulator(op.acc, &mut io, 2, 0)?;
    let mut ws = io.ws();
    kernel(move |f| {
        let beta = beta.value(f);
        let pitch = c.ty().pitch;
        let (a, b, c, ws) = (a.mat(f), b.mat(f), c.data(f), ws.data(f));
        let (ra, rb) = (a.rows / batch.max(1), b.rows / batch.max(1));
        for i in 0..batch {
            let a = operand(a.rows_range(i * ra..(i + 1) * ra), ta);
            let b = operand(b.rows_range(i * rb..(i + 1) * rb), tb);
            let c = MatMut::new(&mut c[i * m * pitch..(i + 1) * m * pitch], m, n, pitch);
            gemm(f.pool, 1.0, a, b, beta, c, None, ws);
        }
    })
}

pub fn linear(mut io: Io) -> Resolved {
    let (x, w) = (io.x(0)?, io.x(1)?);
    let bias = if io.operands() == 3 { Some(io.x(2)?) } else { None };
    let (mut y, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let bias = bias.as_ref().map(|b| b.vec(f));
        let (x, w) = (Operand::new(x.mat(f)), Operand::new(w.mat(f)).t());
        gemm(f.pool, 1.0, x, w, 0.0, y.mat(f), bias, ws.data(f));
    })
}
