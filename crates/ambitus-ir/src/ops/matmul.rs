//! Matrix products.

use super::{Grads, Op, OpDef, Props, Vjp, alike, arity, op, scalar, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// y = op(a) op(b), rank 2 or batched rank 3 (equal leading axis): op(a) `[.., M, K]`, op(b) `[.., K, N]`. Operands have
    /// one type, which is y's; sums are in fp32.
    MatMul = "matmul" {
        /// a is stored `[.., K, M]`
        ta: bool,
        /// b is stored `[.., N, K]`
        tb: bool,
        /// also takes (accumulator `[.., M, N]` of y's type, beta `[1]`): y = beta * accumulator + product, in fp32
        acc: bool,
        /// y is f32 whatever the operands, and mixed precision leaves them as they are: gradients of parameters, which are never
        /// rounded to 16 bits, and products that stay f32
        wide: bool,
    }
}

impl MatMul {
    /// (batch, M, N, K) of operand types.
    pub fn dims(&self, x: &[TensorType]) -> Option<(usize, usize, usize, usize)> {
        let (a, b) = (&x[0].shape, &x[1].shape);
        let rank = a.len();
        if rank != b.len() || !(2..=3).contains(&rank) || (rank == 3 && a[0] != b[0]) {
            return None;
        }
        let batch = if rank == 3 { a[0] } else { 1 };
        let (m, k) = if self.ta { (a[rank - 1], a[rank - 2]) } else { (a[rank - 2], a[rank - 1]) };
        let (k2, n) = if self.tb { (b[rank - 1], b[rank - 2]) } else { (b[rank - 2], b[rank - 1]) };
        (k == k2).then_some((batch, m, n, k))
    }
}

impl OpDef for MatMul {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, if self.acc { 4 } else { 2 })?;
        alike(&x[..2])?;
        let (batch, m, n, _) = self.dims(x).ok_or("operands do not multiply")?;
        let dtype = if self.wide { DType::F32 } else { x[0].dtype };
        let all = [batch, m, n];
        let y = TensorType::new(dtype, if x[0].shape.len() == 3 { &all } else { &all[1..] });
        if self.acc {
            want(x[2] == y, "accumulator differs from the product")?;
            scalar(x[3])?;
        }
        Ok(vec![y])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        want(!self.acc, "an accumulating op has no gradient")?;
        let Some(dy) = v.dy0() else { return Ok(vec![None; 2]) };
        let (p, q) = (v.x[0], v.x[1]);
        // A product of 16-bit operands with an f32 result has an f32 gradient: rounded once to multiply with them.
        let dy = b.as_like(dy, p);
        // dA = dY op(B)^T, dB = op(A)^T dY, each transposed again where the operand was. Either may be a parameter's.
        let (ta, tb) = (self.ta, self.tb);
        let da = v.need[0]
            .then(|| if ta { b.wide_product(q, dy, tb, true) } else { b.wide_product(dy, q, false, !tb) });
        let db = v.need[1]
            .then(|| if tb { b.wide_product(dy, p, true, ta) } else { b.wide_product(p, dy, !ta, false) });
        Ok(vec![da, db])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        if !self.acc {
            return None;
        }
        let y = b.wide_product(x[0], x[1], self.ta, self.tb);
        Some(vec![b.accumulated(y, x[2], x[3])])
    }

    fn narrows(&self, k: usize) -> bool {
        !self.wide && !self.acc && k < 2
    }

    fn props(&self) -> Props {
        Props::PRODUCT
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        self.dims(x).map_or(0.0, |(b, m, n, k)| 2.0 * (b * m * n) as f64 * k as f64)
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        if self.acc { vec![(2, 0)] } else { Vec::new() }
    }

    fn accumulating(&self, _: usize) -> Option<Op> {
        (!self.acc).then(|| MatMul { acc: true, ..*self }.into())
    }
}

op! {
    /// y = x w^T + bias: x `[T, In]`, w `[Out, In]` of x's type (the checkpoint's layout), bias `[Out]` (optional), y `[T, Out]`.
    Linear = "linear" {}
}

impl OpDef for Linear {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        layer_shape(x, true)
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        layer_grads(b, v, true)
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        layer_parts(b, x, true)
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn props(&self) -> Props {
        Props::PRODUCT
    }

    fn flops(&self, x: &[TensorType], y: &[TensorType]) -> f64 {
        layer_flops(x, y)
    }
}

op! {
    /// y = x w + bias: x `[T, In]`, w `[In, Out]` of x's type (as GPT-2's checkpoints have it), bias `[Out]` (optional), y `[T, Out]`.
    LinearIn = "linear_in" {}
}

impl OpDef for LinearIn {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        layer_shape(x, false)
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        layer_grads(b, v, false)
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        layer_parts(b, x, false)
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn props(&self) -> Props {
        Props::PRODUCT
    }

    fn flops(&self, x: &[TensorType], y: &[TensorType]) -> f64 {
        layer_flops(x, y)
    }
}

/// Returns the type of a linear layer's result; `rows`: each of w's rows gives an output, else each of its columns.
fn layer_shape(x: &[TensorType], rows: bool) -> Result<Vec<TensorType>, String> {
    want(x.len() == 2 || x.len() == 3, "takes x, w and perhaps a bias")?;
    let (count, cols) = super::matrix(x[0])?;
    let (first, second) = super::matrix(x[1])?;
    let (out, inner) = if rows { (first, second) } else { (second, first) };
    alike(&x[..2])?;
    want(cols == inner, "x and w differ in the inner axis")?;
    if let Some(bias) = x.get(2) {
        want(*bias.shape == [out], "the bias is not [Out]")?;
    }
    Ok(vec![x[0].with_shape(&[count, out])])
}

/// Returns the gradients of a linear layer, as [`layer_shape`] has it.
fn layer_grads(b: &mut Builder<'_>, v: &Vjp<'_>, rows: bool) -> Result<Grads, String> {
    let Some(dy) = v.dy0() else { return Ok(vec![None; v.x.len()]) };
    let dx = v.need[0].then(|| b.matmul(dy, v.x[1], false, !rows));
    let (first, second) = if rows { (dy, v.x[0]) } else { (v.x[0], dy) };
    let dw = v.need[1].then(|| b.wide_product(first, second, true, false));
    let mut grads = vec![dx, dw];
    if let Some(need) = v.need.get(2) {
        grads.push(need.then(|| b.column_sum(dy)));
    }
    Ok(grads)
}

/// Returns a linear layer as a product and a sum.
fn layer_parts(b: &mut Builder<'_>, x: &[ValueId], rows: bool) -> Option<Vec<ValueId>> {
    let Some(&bias) = x.get(2) else { return Some(vec![b.matmul(x[0], x[1], false, rows)]) };
    let y = b.wide_product(x[0], x[1], false, rows);
    let all = b.each_row(bias, y);
    let y = b.add(y, all);
    Some(vec![b.as_like(y, x[0])])
}

fn layer_flops(x: &[TensorType], y: &[TensorType]) -> f64 {
    2.0 * x[0].shape.elements() as f64 * y[0].shape.cols() as f64
}

impl Builder<'_> {
    /// op(a) op(b).
    pub fn matmul(&mut self, a: ValueId, b: ValueId, ta: bool, tb: bool) -> ValueId {
        self.push1(MatMul { ta, tb, acc: false, wide: false }, &[a, b])
    }

    /// op(a) op(b) in f32, whatever the operands' type.
    pub fn wide_product(&mut self, a: ValueId, b: ValueId, ta: bool, tb: bool) -> ValueId {
        let wide = self.ty(a).dtype != DType::F32;
        self.push1(MatMul { ta, tb, acc: false, wide }, &[a, b])
    }

    /// op(a) op(b) of f32, which mixed precision leaves f32: of what 16 bits would spoil.
    pub fn exact_product(&mut self, a: ValueId, b: ValueId, ta: bool, tb: bool) -> ValueId {
        self.push1(MatMul { ta, tb, acc: false, wide: true }, &[a, b])
    }

    /// x w^T + bias.
    pub fn linear(&mut self, x: ValueId, w: ValueId, bias: Option<ValueId>) -> ValueId {
        let mut inputs = vec![x, w];
        inputs.extend(bias);
        self.push1(Linear {}, &inputs)
    }

    /// x w + bias.
    pub fn linear_in(&mut self, x: ValueId, w: ValueId, bias: Option<ValueId>) -> ValueId {
        let mut inputs = vec![x, w];
        inputs.extend(bias);
        self.push1(LinearIn {}, &inputs)
    }
}
