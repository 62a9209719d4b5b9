//! Table look-ups and their gradient, and sinusoid tables.

use super::attr::words;
use super::{Grads, Op, OpDef, Vjp, arity, matrix, op, scalar, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// `y[t, :]` = `table[ids[t], :]`: table `[V, D]`, ids i32 `[T]`, y `[T, D]`. An id outside 0..V gives a zero row.
    Gather = "gather" {}
}

impl OpDef for Gather {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        let (_, cols) = matrix(x[0])?;
        want(x[1].dtype == DType::I32 && x[1].shape.len() == 1, "ids are i32[T]")?;
        Ok(vec![x[0].with_shape(&[x[1].shape[0], cols])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let rows = b.dim(v.x[0], 0);
        Ok(vec![v.dy0().map(|dy| b.scatter_add(dy, v.x[1], rows)), None])
    }
}

op! {
    /// `y[v, :]` = sum over t with `ids[t]` = v of `x[t, :]`, in the order of t: x `[T, D]`, ids i32 `[T]`, y f32 `[V, D]`.
    /// Ids outside 0..V are dropped.
    ScatterAdd = "scatter_add" {
        /// V
        rows: usize,
        /// also takes (accumulator `[V, D]`, beta `[1]`): y = beta * accumulator + sum
        acc: bool,
    }
}

impl OpDef for ScatterAdd {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, if self.acc { 4 } else { 2 })?;
        let (rows, cols) = matrix(x[0])?;
        super::float(x[0])?;
        want(x[1].dtype == DType::I32 && *x[1].shape == [rows], "ids are i32[T]")?;
        let y = TensorType::f32(&[self.rows, cols]);
        if self.acc {
            want(x[2] == y, "accumulator differs from the result")?;
            scalar(x[3])?;
        }
        Ok(vec![y])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        want(!self.acc, "an accumulating op has no gradient")?;
        Ok(vec![v.dy0().map(|dy| b.gather(dy, v.x[1])), None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        if !self.acc {
            return None;
        }
        let y = b.scatter_add(x[0], x[1], self.rows);
        Some(vec![b.accumulated(y, x[2], x[3])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        if self.acc { vec![(2, 0)] } else { Vec::new() }
    }

    fn accumulating(&self, _: usize) -> Option<Op> {
        (!self.acc).then(|| ScatterAdd { acc: true, ..*self }.into())
    }
}

words! {
    /// Which sinusoid table; the two round differently, as their references do.
    SinusoidKind {
        /// `[sin | cos]`, `f[i]` = exp(f32(i) * f32(-ln(base) / (half - 1))): diffusion time embedding
        SinCos = "sin_cos",
        /// `[cos | sin]`, `f[i]` = 1 / f32(base^(f32(i) / half)): text position table
        CosSin = "cos_sin",
    }
}

op! {
    /// Sine and cosine of positions p f32 `[N]`: y `[N, 2 * half]` with angle f32(scale * p) * `f[i]`, i = 0..half, all in
    /// fp32.
    Sinusoid = "sinusoid" {
        /// order and frequencies
        kind: SinusoidKind,
        /// frequencies
        half: usize,
        /// factor on positions
        scale: f32,
        /// largest period / 2 pi
        base: f32,
    }
}

impl OpDef for Sinusoid {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        want(x[0].dtype == DType::F32 && x[0].shape.len() == 1, "positions are f32[N]")?;
        Ok(vec![x[0].with_shape(&[x[0].shape[0], 2 * self.half])])
    }

    fn flops(&self, _: &[TensorType], y: &[TensorType]) -> f64 {
        20.0 * y[0].shape.elements() as f64
    }
}

impl Builder<'_> {
    /// Rows of `table` `[V, D]` by `ids` `[T]`.
    pub fn gather(&mut self, table: ValueId, ids: ValueId) -> ValueId {
        self.push1(Gather {}, &[table, ids])
    }
    /// Rows of `x` `[T, D]` summed by `ids` into `[rows, D]`.
    pub fn scatter_add(&mut self, x: ValueId, ids: ValueId, rows: usize) -> ValueId {
        self.push1(ScatterAdd { rows, acc: false }, &[x, ids])
    }
}
