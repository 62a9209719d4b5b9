//! Losses. The normaliser is an input, known on the host before the first micro-batch: any split of the same clips into
//! micro-batches gives the same sums.

use super::elementwise::UnaryKind;
use super::head::{self, CLASSES, Logits};
use super::parts::{Cut, Operands, Span};
use super::reduce::ReduceKind;
use super::{Grads, Op, OpDef, Props, Vjp, arity, matrix, op, scalar, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// loss `[1]` = norm * sum over rows t, channels c of `mask[t]` * (pred - target)^2.
    /// Operands (pred `[T, C]`, target `[T, C]`, mask f32 `[T]`, norm `[1]`). Sums in fixed tiles of 4096 elements.
    /// Rows of mask 0 count nothing, whatever they hold.
    MaskedMse = "masked_mse" {}
}

impl OpDef for MaskedMse {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        let (rows, _) = matrix(x[0])?;
        want(x[0] == x[1], "prediction and target differ")?;
        want(*x[2].shape == [rows], "the mask is not [T]")?;
        scalar(x[3])?;
        Ok(vec![TensorType::f32(&[1])])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 4]) };
        want(!v.need[1] && !v.need[2] && !v.need[3], "only the prediction has a gradient")?;
        let dp = b.push1(MaskedMseGrad {}, &[v.x[0], v.x[1], v.x[2], v.x[3], dy]);
        Ok(vec![Some(dp), None, None, None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (p, t) = (b.as_f32(x[0]), b.as_f32(x[1]));
        let mask = b.each_column(x[2], p);
        let d = b.sub(p, t);
        let d2 = b.mul(d, d);
        let d2 = b.mul(mask, d2);
        let d2 = b.keep(mask, d2);
        let sum = b.total(d2);
        Some(vec![b.mul(x[3], sum)])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        3.0 * x[0].shape.elements() as f64
    }
}

op! {
    /// dpred = 2 * norm * dloss * `mask[t]` * (pred - target) from (pred, target, mask, norm, dloss `[1]`).
    MaskedMseGrad = "masked_mse_grad" {}
}

impl OpDef for MaskedMseGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 5)?;
        let (rows, _) = matrix(x[0])?;
        want(x[0] == x[1], "prediction and target differ")?;
        want(*x[2].shape == [rows], "the mask is not [T]")?;
        scalar(x[3])?;
        scalar(x[4])?;
        Ok(vec![x[0]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (p, t) = (b.as_f32(x[0]), b.as_f32(x[1]));
        let mask = b.each_column(x[2], p);
        let factor = b.mul(x[3], x[4]);
        let factor = b.times(factor, 2.0);
        let factor = b.everywhere(factor, p);
        let d = b.sub(p, t);
        let d = b.mul(mask, d);
        let d = b.mul(factor, d);
        let d = b.keep(mask, d);
        Some(vec![b.as_like(d, x[0])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        3.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// loss `[1]` = norm * sum over rows with `labels[t]` >= 0 of -log softmax(x w^T)[t, `labels[t]`].
    /// Operands (x `[T, D]`, w `[V, D]`, labels i32 `[T]` (below V; negative: not scored), norm `[1]`).
    /// The logits exist one tile of `tile` rows at a time, in the op's workspace; sums over classes are formed as
    /// [`super::head`] says.
    LinearCrossEntropy = "linear_cross_entropy" {
        /// rows of logits that exist at once
        tile: usize,
    }
}

fn check_head(x: &[TensorType]) -> Result<(), String> {
    let (rows, cols) = matrix(x[0])?;
    let (_, inner) = matrix(x[1])?;
    super::alike(&x[..2])?;
    want(cols == inner, "x and w differ in the inner axis")?;
    want(x[2].dtype == DType::I32 && *x[2].shape == [rows], "labels are not i32[T]")?;
    scalar(x[3])
}

impl OpDef for LinearCrossEntropy {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        check_head(x)?;
        Ok(vec![TensorType::f32(&[1])])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 4]) };
        let op = LinearCrossEntropyGrad { tile: self.tile, dw: v.need[1], acc: false };
        let d = b.push(op, &[v.x[0], v.x[1], v.x[2], v.x[3], dy]);
        Ok(vec![Some(d[1]), d.get(2).copied(), None, None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        Some(vec![Scored::of(b, x).loss(b, x[3])])
    }

    fn props(&self) -> Props {
        Props::PRODUCT
    }

    fn narrows(&self, k: usize) -> bool {
        k < 2
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        2.0 * x[0].shape.elements() as f64 * x[1].shape[0] as f64
    }

    fn cut(&self) -> Option<Cut> {
        Some(Cut::by_rows(&[1], &[], CLASSES))
    }

    fn in_parts(
        &self,
        b: &mut Builder<'_>,
        parts: &[Span],
        x: &mut Operands<'_>,
    ) -> Option<Vec<Vec<ValueId>>> {
        Some(head::loss(self, b, parts, x))
    }
}

op! {
    /// (loss `[1]`, dx, dw) in one walk over the tiles, from (x, w, labels, norm, dloss `[1]`): with
    /// g = norm * dloss * (softmax - onehot) on scored rows, dx = g w, dw = g^T x in f32. The loss equals
    /// [`LinearCrossEntropy`]'s bit for bit, so that the forward walk can be dropped.
    LinearCrossEntropyGrad = "linear_cross_entropy_grad" {
        /// rows of logits that exist at once
        tile: usize,
        /// forms dw; without, as of a frozen head, there are two results
        dw: bool,
        /// also takes (accumulator `[V, D]`, beta `[1]`): dw = beta * accumulator + sum
        acc: bool,
    }
}

impl OpDef for LinearCrossEntropyGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        want(self.dw || !self.acc, "a gradient that is not formed is not accumulated")?;
        arity(x, if self.acc { 7 } else { 5 })?;
        check_head(x)?;
        scalar(x[4])?;
        if self.acc {
            want(x[5] == TensorType::f32(&x[1].shape), "the accumulator is not f32 like w")?;
            scalar(x[6])?;
        }
        let mut y = vec![TensorType::f32(&[1]), x[0]];
        y.extend(self.dw.then(|| TensorType::f32(&x[1].shape)));
        Ok(y)
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let s = Scored::of(b, x);
        let loss = s.loss(b, x[3]);
        let sum = b.row_sum(s.exp);
        let g = s.logits.gradient(b, s.exp, sum, [x[3], x[4]]);
        let (a, w) = (b.as_f32(x[0]), b.as_f32(x[1]));
        let dx = b.matmul(g, w, false, false);
        let mut y = vec![loss, b.as_like(dx, x[0])];
        if self.dw {
            let dw = b.matmul(g, a, true, false);
            y.push(if self.acc { b.accumulated(dw, x[5], x[6]) } else { dw });
        }
        Some(y)
    }

    fn props(&self) -> Props {
        Props::PRODUCT
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        let products = if self.dw { 3.0 } else { 2.0 };
        2.0 * products * x[0].shape.elements() as f64 * x[1].shape[0] as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        if self.acc { vec![(5, 2)] } else { Vec::new() }
    }

    fn accumulating(&self, k: usize) -> Option<Op> {
        (k == 2 && self.dw && !self.acc).then(|| LinearCrossEntropyGrad { acc: true, ..*self }.into())
    }

    fn cut(&self) -> Option<Cut> {
        let operands: &[usize] = if self.acc { &[1, 5] } else { &[1] };
        Some(Cut::by_rows(operands, if self.dw { &[2] } else { &[] }, CLASSES))
    }

    fn in_parts(
        &self,
        b: &mut Builder<'_>,
        parts: &[Span],
        x: &mut Operands<'_>,
    ) -> Option<Vec<Vec<ValueId>>> {
        Some(head::gradients(self, b, parts, x))
    }
}

/// All logits of the head, and their exponentials, in core ops; all `[T, V]`.
struct Scored {
    logits: Logits,
    /// logits less the row's largest
    shifted: ValueId,
    /// e^shifted
    exp: ValueId,
}

impl Scored {
    fn of(b: &mut Builder<'_>, x: &[ValueId]) -> Scored {
        let logits = Logits::of(b, 0, x);
        let high = b.reduce(ReduceKind::Max, logits.all, 1);
        let shifted = logits.less(b, high);
        let exp = b.unary(UnaryKind::Exp, shifted);
        Scored { logits, shifted, exp }
    }

    /// norm * sum of (log of the row's sum - the label's logit) over scored rows.
    fn loss(&self, b: &mut Builder<'_>, norm: ValueId) -> ValueId {
        let sum = b.reduce(ReduceKind::Sum, self.exp, 1);
        let log = b.unary(UnaryKind::Log, sum);
        let own = b.keep(self.logits.onehot, self.shifted);
        let own = b.reduce(ReduceKind::Sum, own, 1);
        let nll = b.sub(log, own);
        let scored = b.slice(self.logits.scored, 1, 0, 1);
        let nll = b.keep(scored, nll);
        let sum = b.total(nll);
        b.mul(norm, sum)
    }
}

impl Builder<'_> {
    /// Masked mean squared error, `[1]`.
    pub fn masked_mse(&mut self, pred: ValueId, target: ValueId, mask: ValueId, norm: ValueId) -> ValueId {
        self.push1(MaskedMse {}, &[pred, target, mask, norm])
    }
    /// Linear head and cross-entropy over at most `tile` rows of logits at a time, `[1]`.
    pub fn linear_cross_entropy(
        &mut self,
        x: ValueId,
        w: ValueId,
        labels: ValueId,
        norm: ValueId,
        tile: usize,
    ) -> ValueId {
        self.push1(LinearCrossEntropy { tile }, &[x, w, labels, norm])
    }
}
