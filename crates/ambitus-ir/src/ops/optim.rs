//! Accumulation, norms and updates: the ops that overwrite states.

use super::elementwise::UnaryKind;
use super::parts::{Cut, Operands, Span};
use super::reduce::ReduceKind;
use super::{OpDef, arity, op, scalar, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::TensorType;

/// Elements of one partial sum. Whole-model sums are formed from these in tensor order, so that their bits depend on
/// neither threads nor shards.
pub const PARTIAL: usize = 4096;

op! {
    /// y = beta * accumulator + x: (accumulator, x, beta `[1]`); the accumulator is overwritten. With beta 0 it is not
    /// read.
    Accumulate = "accumulate" {}
}

impl OpDef for Accumulate {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        want(x[0] == x[1], "accumulator and addend differ")?;
        scalar(x[2])?;
        Ok(vec![x[0]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        Some(vec![b.accumulated(x[1], x[0], x[2])])
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// Sums of squares of consecutive runs of [`PARTIAL`] elements (row-major, without pads): x to f32 `[ceil(n / 4096)]`.
    SumSquares = "sum_squares" {}
}

impl OpDef for SumSquares {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        let parts = x[0].shape.elements().div_ceil(PARTIAL);
        Ok(vec![TensorType::f32(&[parts])])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let n = b.ty(x[0]).shape.elements();
        let parts = n.div_ceil(PARTIAL);
        let a = b.as_f32(x[0]);
        let mut runs = vec![b.reshape(a, &[n])];
        if parts * PARTIAL > n {
            runs.push(b.fill(TensorType::f32(&[parts * PARTIAL - n]), 0.0));
        }
        let all = b.concat(&runs, 0);
        let all = b.reshape(all, &[parts, PARTIAL]);
        let squares = b.mul(all, all);
        let sums = b.reduce(ReduceKind::Sum, squares, 1);
        Some(vec![b.reshape(sums, &[parts])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        2.0 * x[0].shape.elements() as f64
    }

    fn cut(&self) -> Option<Cut> {
        Some(Cut::by_element(&[0], &[]))
    }

    /// Returns the runs of all parts, one after another.
    fn in_parts(
        &self,
        b: &mut Builder<'_>,
        parts: &[Span],
        x: &mut Operands<'_>,
    ) -> Option<Vec<Vec<ValueId>>> {
        let mut runs = Vec::new();
        for i in 0..parts.len() {
            let x = x(b, i);
            runs.push(b.push1(SumSquares {}, &x));
        }
        Some(vec![vec![b.concat(&runs, 0)]])
    }
}

op! {
    /// Sum of all elements of all operands, in operand order, in double precision: to f32 `[1]`.
    SumPartials = "sum_partials" {}
}

impl OpDef for SumPartials {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        want(!x.is_empty(), "needs an operand")?;
        Ok(vec![TensorType::f32(&[1])])
    }
}

op! {
    /// AdamW (arXiv 1711.05101, as PyTorch computes it), where `apply` is not 0:
    /// w *= 1 - lr wd; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; w -= lr / (1-b1^t) * m / (sqrt(v / (1-b2^t)) + eps)
    /// with g' = coef * g. Where `apply` is 0 the old bytes stay.
    ///
    /// Operands (w, g, m, v, lr `[1]`, coef `[1]`, t `[1]` (1 at the first update), apply `[1]`); results (w, m, v),
    /// overwritten.
    AdamW = "adamw" {
        /// decay of the first moment
        beta1: f64,
        /// decay of the second moment
        beta2: f64,
        /// added to the denominator
        eps: f64,
        /// decoupled weight decay
        weight_decay: f64,
    }
}

impl OpDef for AdamW {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 8)?;
        want(x[1..4].iter().all(|t| t.shape == x[0].shape), "w, g, m and v differ in shape")?;
        for t in &x[4..] {
            scalar(*t)?;
        }
        Ok(vec![x[0], x[2], x[3]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (w, g, m, v) = (b.as_f32(x[0]), b.as_f32(x[1]), b.as_f32(x[2]), b.as_f32(x[3]));
        let (lr, t) = (x[4], x[6]);
        let coef = b.everywhere(x[5], g);
        let g = b.mul(coef, g);

        let decay = b.times(lr, -self.weight_decay as f32);
        let decay = b.plus(decay, 1.0);
        let decay = b.everywhere(decay, w);
        let decayed = b.mul(w, decay);
        let m1 = moment(b, m, g, self.beta1);
        let g2 = b.mul(g, g);
        let v1 = moment(b, v, g2, self.beta2);

        let correction2 = one_minus_power(b, t, self.beta2);
        let correction2 = b.everywhere(correction2, v1);
        let root = b.div(v1, correction2);
        let root = b.unary(UnaryKind::Sqrt, root);
        let root = b.plus(root, self.eps as f32);
        let correction1 = one_minus_power(b, t, self.beta1);
        let rate = b.div(lr, correction1);
        let rate = b.everywhere(rate, m1);
        let step = b.div(m1, root);
        let step = b.mul(rate, step);
        let w1 = b.sub(decayed, step);

        let apply = b.everywhere(x[7], w);
        let mut chosen = |new: ValueId, old: ValueId| {
            let new = b.as_like(new, old);
            b.select(apply, new, old)
        };
        Some(vec![chosen(w1, x[0]), chosen(m1, x[2]), chosen(v1, x[3])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        15.0 * x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (2, 1), (3, 2)]
    }

    fn cut(&self) -> Option<Cut> {
        Some(Cut::by_element(&[0, 1, 2, 3], &[0, 1, 2]))
    }
}

op! {
    /// a + (1 - decay) * (b - a), where `apply` is not 0: (a, b, decay `[1]`, apply `[1]`); a is overwritten.
    /// With decay 0 the result is b exactly. b may be another float type than a. The EMA step.
    Lerp = "lerp" {}
}

impl OpDef for Lerp {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        want(x[0].shape == x[1].shape, "a and b differ in shape")?;
        want(x[..2].iter().all(|t| t.dtype.is_float()), "takes floats")?;
        scalar(x[2])?;
        scalar(x[3])?;
        Ok(vec![x[0]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (p, q) = (b.as_f32(x[0]), b.as_f32(x[1]));
        let one = b.fill_like(x[2], 1.0);
        let weight = b.sub(one, x[2]);
        let weight = b.everywhere(weight, p);
        let decay = b.everywhere(x[2], p);
        let d = b.sub(q, p);
        let d = b.mul(weight, d);
        let y = b.add(p, d);
        // a + (b - a) is b only up to rounding.
        let y = b.select(decay, y, q);
        let y = b.as_like(y, x[0]);
        let apply = b.everywhere(x[3], y);
        Some(vec![b.select(apply, y, x[0])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        3.0 * x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn cut(&self) -> Option<Cut> {
        Some(Cut::by_element(&[0, 1], &[0]))
    }
}

/// beta m + (1 - beta) x.
pub(super) fn moment(b: &mut Builder<'_>, m: ValueId, x: ValueId, beta: f64) -> ValueId {
    let old = b.times(m, beta as f32);
    let new = b.times(x, (1.0 - beta) as f32);
    b.add(old, new)
}

/// 1 - beta^t as 2h / (1 + h), h = tanh(-t ln(beta) / 2): no cancellation where beta^t is near 1.
fn one_minus_power(b: &mut Builder<'_>, t: ValueId, beta: f64) -> ValueId {
    let half = b.times(t, (-0.5 * beta.ln()) as f32);
    let h = b.unary(UnaryKind::Tanh, half);
    let up = b.times(h, 2.0);
    let down = b.plus(h, 1.0);
    b.div(up, down)
}

impl Builder<'_> {
    /// beta * accumulator + x on the accumulator's bytes.
    pub fn accumulate(&mut self, accumulator: ValueId, x: ValueId, beta: ValueId) -> ValueId {
        self.push1(Accumulate {}, &[accumulator, x, beta])
    }
    /// Returns the sum of squares of all values, its parts summed in order: `[1]`.
    pub fn sum_of_squares(&mut self, xs: &[ValueId]) -> ValueId {
        let parts: Vec<ValueId> = xs.iter().map(|x| self.push1(SumSquares {}, &[*x])).collect();
        self.push1(SumPartials {}, &parts)
    }
}
