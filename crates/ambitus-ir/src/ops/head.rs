//! A linear head with cross-entropy over some of its classes at a time: what
//! [`LinearCrossEntropy`] and its gradient are where the classes' rows of w come part by
//! part. First a walk over all parts for each row's sum of exponentials, then one for the gradients.
//!
//! Sums over classes are formed over [`CLASSES`] at a time, in order, and tiles of rows are those of the whole op; so the bits are
//! those of the whole op too, whatever the parts.

use super::elementwise::{BinaryKind, UnaryKind};
use super::loss::{LinearCrossEntropy, LinearCrossEntropyGrad};
use super::parts::{Operands, Span};
use super::reduce::ReduceKind;
use super::{OpDef, Props, arity, matrix, op, scalar, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

/// Classes whose exponentials are summed, and whose share of a gradient is added, at a time. Parts begin at multiples of it.
pub const CLASSES: usize = 1024;

/// Checks (x `[T, D]`, w `[part, D]`, labels i32 `[T]`), and gives T and D.
fn check(part: Span, x: &[TensorType]) -> Result<(usize, usize), String> {
    let ((rows, cols), (classes, inner)) = (matrix(x[0])?, matrix(x[1])?);
    super::alike(&x[..2])?;
    want(cols == inner, "x and w differ in the inner axis")?;
    want(classes == part.count && part.first.is_multiple_of(CLASSES), "w is not the part")?;
    want(x[2].dtype == DType::I32 && *x[2].shape == [rows], "labels are not i32[T]")?;
    Ok((rows, cols))
}

fn sums(rows: usize) -> TensorType {
    TensorType::f32(&[rows, 3])
}

/// Returns the part of an op that is never without.
fn known(part: Option<Span>) -> Result<Span, String> {
    part.ok_or_else(|| "is of a part, and names none".to_owned())
}

op! {
    /// For each row t its largest logit, the sum of e^(logit - largest), and the logit of its label, over the classes up to
    /// this part's last: f32 `[T, 3]`, zeros where `labels[t]` < 0. Operands (x `[T, D]`, w `[part, D]`, labels i32 `[T]`, and from the second part on the
    /// sums of those before).
    HeadSums = "head_sums" {
        /// rows of logits of all classes that exist at once in the whole op
        tile: usize,
        /// which classes w has
        part: Option<Span>,
    }
}

impl OpDef for HeadSums {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let part = known(self.part)?;
        arity(x, if part.first > 0 { 4 } else { 3 })?;
        let (rows, _) = check(part, x)?;
        want(x[3..].iter().all(|s| *s == sums(rows)), "the sums so far are not f32[T,3]")?;
        Ok(vec![sums(rows)])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let logits = Logits::of(b, self.part?.first, x);
        let before = |b: &mut Builder<'_>, k: usize| x.get(3).map(|s| b.slice(*s, 1, k, 1));
        let high = b.reduce(ReduceKind::Max, logits.all, 1);
        let high = match before(b, 0) {
            Some(old) => b.binary(BinaryKind::Max, old, high),
            None => high,
        };
        let less = logits.less(b, high);
        let exp = b.unary(UnaryKind::Exp, less);
        let mut sum = b.reduce(ReduceKind::Sum, exp, 1);
        let own = b.keep(logits.onehot, logits.all);
        let mut own = b.reduce(ReduceKind::Sum, own, 1);
        if let (Some(old), Some(old_sum), Some(old_own)) = (before(b, 0), before(b, 1), before(b, 2)) {
            let down = b.sub(old, high);
            let factor = b.unary(UnaryKind::Exp, down);
            let old_sum = b.mul(old_sum, factor);
            sum = b.add(old_sum, sum);
            own = b.add(old_own, own);
        }
        let y = b.concat(&[high, sum, own], 1);
        let labels = b.each_column(x[2], y);
        let number = b.plus(labels, 1.0);
        let scored = b.is_positive(number);
        Some(vec![b.keep(scored, y)])
    }

    fn props(&self) -> Props {
        Props::PRODUCT
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        2.0 * x[0].shape.elements() as f64 * x[1].shape[0] as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        if self.part.is_some_and(|p| p.first > 0) { vec![(3, 0)] } else { Vec::new() }
    }
}

op! {
    /// loss `[1]` = norm * sum over rows with `labels[t]` >= 0 of log(sum) + largest - label's, from (sums of all classes `[T, 3]`,
    /// labels i32 `[T]`, norm `[1]`).
    HeadLoss = "head_loss" {}
}

impl OpDef for HeadLoss {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        let (rows, _) = matrix(x[0])?;
        want(x[0] == sums(rows), "the sums are not f32[T,3]")?;
        want(x[1].dtype == DType::I32 && *x[1].shape == [rows], "labels are not i32[T]")?;
        scalar(x[2])?;
        Ok(vec![TensorType::f32(&[1])])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let [high, sum, own] = [0, 1, 2].map(|k| b.slice(x[0], 1, k, 1));
        let log = b.unary(UnaryKind::Log, sum);
        let nll = b.add(log, high);
        let nll = b.sub(nll, own);
        let labels = b.each_column(x[1], nll);
        let number = b.plus(labels, 1.0);
        let scored = b.is_positive(number);
        let nll = b.keep(scored, nll);
        let total = b.total(nll);
        Some(vec![b.mul(x[2], total)])
    }
}

op! {
    /// The gradients of a part's classes: with g = norm * dloss * (softmax - onehot) on scored rows, dx f32 `[T, D]` = dx of the
    /// classes before + g w, dw f32 `[part, D]` = g^T x. Operands (x `[T, D]`, w `[part, D]`, labels i32 `[T]`, norm `[1]`, dloss `[1]`,
    /// sums of all classes `[T, 3]`, and from the second part on dx of those before); results (dx, dw).
    HeadGrad = "head_grad" {
        /// rows of logits of all classes that exist at once in the whole op
        tile: usize,
        /// which classes w has
        part: Option<Span>,
        /// forms dw; without, as of a frozen head, there is one result
        dw: bool,
        /// also takes, last, (accumulator `[part, D]`, beta `[1]`): dw = beta * accumulator + sum
        acc: bool,
    }
}

impl HeadGrad {
    /// Returns the place of the accumulator among the operands.
    pub fn accumulator(&self) -> usize {
        if self.goes_on() { 7 } else { 6 }
    }

    /// Returns whether there are classes before, whose dx is operand 6.
    pub fn goes_on(&self) -> bool {
        self.part.is_some_and(|p| p.first > 0)
    }
}

impl OpDef for HeadGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        want(self.dw || !self.acc, "a gradient that is not formed is not accumulated")?;
        let (part, at) = (known(self.part)?, self.accumulator());
        arity(x, at + if self.acc { 2 } else { 0 })?;
        let (rows, cols) = check(part, x)?;
        scalar(x[3])?;
        scalar(x[4])?;
        want(x[5] == sums(rows), "the sums are not f32[T,3]")?;
        let (dx, dw) = (TensorType::f32(&[rows, cols]), TensorType::f32(&[part.count, cols]));
        want(x[6..at].iter().all(|t| *t == dx), "dx of the classes before differs from the result")?;
        if self.acc {
            want(x[at] == dw, "the accumulator differs from the result")?;
            scalar(x[at + 1])?;
        }
        Ok(if self.dw { vec![dx, dw] } else { vec![dx] })
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let logits = Logits::of(b, self.part?.first, x);
        let (high, sum) = (b.slice(x[5], 1, 0, 1), b.slice(x[5], 1, 1, 1));
        let less = logits.less(b, high);
        let exp = b.unary(UnaryKind::Exp, less);
        let shape = b.ty(exp).shape;
        let sum = b.broadcast(sum, &shape);
        let g = logits.gradient(b, exp, sum, [x[3], x[4]]);
        let (a, w) = (b.as_f32(x[0]), b.as_f32(x[1]));
        let mut dx = b.matmul(g, w, false, false);
        if self.goes_on() {
            dx = b.add(x[6], dx);
        }
        let mut y = vec![dx];
        if self.dw {
            let (dw, at) = (b.matmul(g, a, true, false), self.accumulator());
            y.push(if self.acc { b.accumulated(dw, x[at], x[at + 1]) } else { dw });
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
        if self.acc { vec![(self.accumulator(), 1)] } else { Vec::new() }
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        if self.goes_on() { vec![(6, 0)] } else { Vec::new() }
    }
}

/// Logits of the classes of w, and which of them are scored, in core ops; all `[T, classes]`.
pub(super) struct Logits {
    pub all: ValueId,
    /// 1 at the label
    pub onehot: ValueId,
    /// 1 in rows with a label
    pub scored: ValueId,
}

impl Logits {
    /// Of (x `[T, D]`, w `[classes, D]`, labels `[T]`), with the number of w's first class.
    pub fn of(b: &mut Builder<'_>, first: usize, x: &[ValueId]) -> Logits {
        let (a, w) = (b.as_f32(x[0]), b.as_f32(x[1]));
        let all = b.matmul(a, w, false, true);
        let shape = b.ty(all).shape;
        let labels = b.each_column(x[2], all);
        let number = b.plus(labels, 1.0);
        let scored = b.is_positive(number);
        let classes = b.iota(DType::F32, &shape, 1);
        let classes = if first > 0 { b.plus(classes, first as f32) } else { classes };
        let onehot = b.binary(BinaryKind::Equal, labels, classes);
        Logits { all, onehot, scored }
    }

    /// Logits less `high` `[T, 1]`.
    pub fn less(&self, b: &mut Builder<'_>, high: ValueId) -> ValueId {
        let shape = b.ty(self.all).shape;
        let high = b.broadcast(high, &shape);
        b.sub(self.all, high)
    }

    /// norm * dloss * (exp / sum - onehot) on scored rows, with exp and sum `[T, classes]`.
    pub fn gradient(
        &self,
        b: &mut Builder<'_>,
        exp: ValueId,
        sum: ValueId,
        [norm, dloss]: [ValueId; 2],
    ) -> ValueId {
        let p = b.div(exp, sum);
        let g = b.sub(p, self.onehot);
        let factor = b.mul(norm, dloss);
        let factor = b.everywhere(factor, g);
        let g = b.mul(factor, g);
        b.keep(self.scored, g)
    }
}

/// Appends the sums over all classes and the loss; gives both. Operands begin with (x, w, labels, norm).
fn walk(b: &mut Builder<'_>, tile: usize, parts: &[Span], x: &mut Operands<'_>) -> [ValueId; 2] {
    let (mut sums, mut given) = (Vec::new(), Vec::new());
    for (i, part) in parts.iter().enumerate() {
        given = x(b, i);
        let mut operands = given[..3].to_vec();
        operands.append(&mut sums);
        sums = b.push(HeadSums { tile, part: Some(*part) }, &operands);
    }
    let loss = b.push1(HeadLoss {}, &[sums[0], given[2], given[3]]);
    [sums[0], loss]
}

/// [`LinearCrossEntropy`] part by part.
pub(super) fn loss(
    op: &LinearCrossEntropy,
    b: &mut Builder<'_>,
    parts: &[Span],
    x: &mut Operands<'_>,
) -> Vec<Vec<ValueId>> {
    let [_, loss] = walk(b, op.tile, parts, x);
    vec![vec![loss]]
}

/// [`LinearCrossEntropyGrad`] part by part.
pub(super) fn gradients(
    op: &LinearCrossEntropyGrad,
    b: &mut Builder<'_>,
    parts: &[Span],
    x: &mut Operands<'_>,
) -> Vec<Vec<ValueId>> {
    let LinearCrossEntropyGrad { tile, dw, acc } = *op;
    let [sums, loss] = walk(b, tile, parts, x);
    let (mut dx, mut dws, mut dtype) = (None, Vec::new(), DType::F32);
    for (i, part) in parts.iter().enumerate() {
        let x = x(b, i);
        dtype = b.ty(x[0]).dtype;
        let (first, accumulator) = x.split_at(5);
        let operands: Vec<ValueId> =
            first.iter().copied().chain([sums]).chain(dx).chain(accumulator.iter().copied()).collect();
        let y = b.push(HeadGrad { tile, part: Some(*part), dw, acc }, &operands);
        dx = Some(y[0]);
        dws.extend(&y[1..]);
    }
    // Rounded once, as the whole op does.
    let dx = dx.map(|dx| b.as_dtype(dx, dtype));
    let results = [vec![loss], dx.into_iter().collect()];
    results.into_iter().chain(dw.then_some(dws)).collect()
}
