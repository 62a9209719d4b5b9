//! Table look-ups and their gradient, and sinusoid tables.

use super::attr::words;
use super::parts::{Cut, Operands, Span};
use super::{Grads, Op, OpDef, Vjp, arity, matrix, op, scalar, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// `y[t, :]` = `table[ids[t], :]`: table `[V, D]`, ids i32 `[T]`, y `[T, D]`. An id outside 0..V gives a zero row. Of a part of
    /// the table that is not the first, ids outside it give the row of a third operand like y: of the parts before.
    Gather = "gather" {
        /// which rows the table holds
        part: Option<Span>,
    }
}

impl Gather {
    /// Returns whether there are parts before, whose rows are operand 2.
    fn goes_on(&self) -> bool {
        self.part.is_some_and(|p| p.first > 0)
    }
}

impl OpDef for Gather {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let goes_on = self.goes_on();
        arity(x, if goes_on { 3 } else { 2 })?;
        let (rows, cols) = matrix(x[0])?;
        want(self.part.is_none_or(|p| p.count == rows), "the table is not the part")?;
        want(x[1].dtype == DType::I32 && x[1].shape.len() == 1, "ids are i32[T]")?;
        let y = x[0].with_shape(&[x[1].shape[0], cols]);
        want(!goes_on || x[2] == y, "the rows so far differ from the result")?;
        Ok(vec![y])
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        if self.goes_on() { vec![(2, 0)] } else { Vec::new() }
    }

    fn cut(&self) -> Option<Cut> {
        self.part.is_none().then(|| Cut::by_rows(&[0], &[], 1))
    }

    /// Each part puts its rows over those so far.
    fn in_parts(
        &self,
        b: &mut Builder<'_>,
        parts: &[Span],
        x: &mut Operands<'_>,
    ) -> Option<Vec<Vec<ValueId>>> {
        let mut rows = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let mut operands = x(b, i);
            operands.append(&mut rows);
            rows = b.push(Gather { part: Some(*part) }, &operands);
        }
        Some(vec![rows])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        want(self.part.is_none(), "a part has no gradient")?;
        let rows = b.dim(v.x[0], 0);
        Ok(vec![v.dy0().map(|dy| b.scatter_add(dy, v.x[1], rows)), None])
    }
}

op! {
    /// `y[v, :]` = sum over t with `ids[t]` = v of `x[t, :]`, in the order of t: x `[T, D]`, ids i32 `[T]`, y f32 `[V, D]`.
    /// Ids outside 0..V, or outside a part of them, are dropped.
    ScatterAdd = "scatter_add" {
        /// V, or those of the part
        rows: usize,
        /// also takes (accumulator `[V, D]`, beta `[1]`): y = beta * accumulator + sum
        acc: bool,
        /// which rows the result holds
        part: Option<Span>,
    }
}

impl OpDef for ScatterAdd {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, if self.acc { 4 } else { 2 })?;
        let (rows, cols) = matrix(x[0])?;
        super::float(x[0])?;
        want(x[1].dtype == DType::I32 && *x[1].shape == [rows], "ids are i32[T]")?;
        want(self.part.is_none_or(|p| p.count == self.rows), "the rows are not the part's")?;
        let y = TensorType::f32(&[self.rows, cols]);
        if self.acc {
            want(x[2] == y, "accumulator differs from the result")?;
            scalar(x[3])?;
        }
        Ok(vec![y])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        want(!self.acc && self.part.is_none(), "an accumulating op has no gradient")?;
        Ok(vec![v.dy0().map(|dy| b.gather(dy, v.x[1])), None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        if !self.acc {
            return None;
        }
        let y = b.push1(ScatterAdd { acc: false, ..self.clone() }, &x[..2]);
        Some(vec![b.accumulated(y, x[2], x[3])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        if self.acc { vec![(2, 0)] } else { Vec::new() }
    }

    fn accumulating(&self, _: usize) -> Option<Op> {
        (!self.acc).then(|| ScatterAdd { acc: true, ..self.clone() }.into())
    }

    fn cut(&self) -> Option<Cut> {
        let operands: &[usize] = if self.acc { &[2] } else { &[] };
        self.part.is_none().then(|| Cut::by_rows(operands, &[0], 1))
    }

    fn of_part(&self, part: Span) -> Option<Op> {
        Some(ScatterAdd { rows: part.count, part: Some(part), ..self.clone() }.into())
    }
}

op! {
    /// `y[at[t], :]` = `x[t, :]`, other rows as they were: (y `[R, D]`, overwritten, x `[T, D]`, at i32 `[T]`). Rows with `at` outside
    /// 0..R are not written; the others are all different.
    WriteRows = "write_rows" {}
}

impl OpDef for WriteRows {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        let ((_, cols), (rows, of_x)) = (matrix(x[0])?, matrix(x[1])?);
        super::alike(&x[..2])?;
        want(cols == of_x, "rows differ in width")?;
        want(x[2].dtype == DType::I32 && *x[2].shape == [rows], "rows to write are i32[T]")?;
        Ok(vec![x[0]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let shape = b.ty(x[0]).shape;
        let wide = b.as_f32(x[1]);
        let ones = b.fill_like(wide, 1.0);
        let written = b.scatter_add(ones, x[2], shape[0]);
        let rows = b.scatter_add(wide, x[2], shape[0]);
        let before = b.as_f32(x[0]);
        let y = b.select(written, rows, before);
        Some(vec![b.as_like(y, x[0])])
    }

    /// The rows that are written.
    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        x[1].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
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
    /// Returns the rows of `table` `[V, D]` by `ids` `[T]`.
    pub fn gather(&mut self, table: ValueId, ids: ValueId) -> ValueId {
        self.push1(Gather { part: None }, &[table, ids])
    }
    /// Returns `table` `[R, D]` with the rows of `x` `[T, D]` in the places `at` `[T]`; the table is overwritten.
    pub fn write_rows(&mut self, table: ValueId, x: ValueId, at: ValueId) -> ValueId {
        self.push1(WriteRows {}, &[table, x, at])
    }
    /// Returns the rows of `x` `[T, D]` summed by `ids` into `[rows, D]`.
    pub fn scatter_add(&mut self, x: ValueId, ids: ValueId, rows: usize) -> ValueId {
        self.push1(ScatterAdd { rows, acc: false, part: None }, &[x, ids])
    }
}
