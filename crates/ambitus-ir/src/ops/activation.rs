//! Activations.

use super::attr::words;
use super::elementwise::{BinaryKind, UnaryKind};
use super::{Grads, OpDef, Vjp, arity, op, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::TensorType;
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

words! {
    /// Which activation.
    ActivationKind {
        /// x Phi(x), exact
        GeluErf = "gelu_erf",
        /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        GeluTanh = "gelu_tanh",
        /// x sigmoid(x)
        Silu = "silu",
        /// x tanh(ln(1 + e^x))
        Mish = "mish",
        /// x where x > 0, else e^x - 1
        Elu = "elu",
    }
}

op! {
    /// y = f(x), element by element.
    Activation = "activation" {
        /// which function
        kind: ActivationKind,
    }
}

impl OpDef for Activation {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        want(x[0].dtype.is_float(), "takes a float")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let kind = self.kind;
        Ok(vec![v.dy0().map(|dy| b.push1(ActivationGrad { kind }, &[v.x[0], dy]))])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let y = match self.kind {
            ActivationKind::GeluErf => {
                let cdf = normal_cdf(b, a);
                b.mul(a, cdf)
            }
            ActivationKind::GeluTanh => {
                let t = gelu_tanh(b, a);
                let gate = half_plus_half(b, t);
                b.mul(a, gate)
            }
            ActivationKind::Silu => {
                let s = b.sigmoid(a);
                b.mul(a, s)
            }
            ActivationKind::Mish => {
                let s = softplus(b, a);
                let t = b.unary(UnaryKind::Tanh, s);
                b.mul(a, t)
            }
            ActivationKind::Elu => {
                let positive = b.is_positive(a);
                let e = exp_of_negative(b, a);
                let e = b.plus(e, -1.0);
                b.select(positive, a, e)
            }
        };
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        15.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// dx = dy * f'(x) from (x, dy).
    ActivationGrad = "activation_grad" {
        /// which function
        kind: ActivationKind,
    }
}

impl OpDef for ActivationGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        want(x[0] == x[1], "x and dy differ")?;
        Ok(vec![x[0]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let slope = match self.kind {
            ActivationKind::GeluErf => {
                // Phi(x) + x phi(x), phi(x) = e^(-x^2 / 2) / sqrt(2 pi)
                let cdf = normal_cdf(b, a);
                let a2 = b.mul(a, a);
                let e = b.times(a2, -0.5);
                let e = b.unary(UnaryKind::Exp, e);
                let pdf = b.times(e, (0.5 * FRAC_1_SQRT_2 as f64 * FRAC_2_SQRT_PI as f64) as f32);
                let p = b.mul(a, pdf);
                b.add(cdf, p)
            }
            ActivationKind::GeluTanh => {
                // (1 + t) / 2 + x (1 - t^2) u' / 2, t = tanh(u)
                let t = gelu_tanh(b, a);
                let left = half_plus_half(b, t);
                let a2 = b.mul(a, a);
                let du = b.times(a2, 3.0 * CUBIC);
                let du = b.plus(du, 1.0);
                let du = b.times(du, 0.5 * GELU);
                let d = one_minus_square(b, t);
                let d = b.mul(d, du);
                let d = b.mul(a, d);
                b.add(left, d)
            }
            ActivationKind::Silu => silu_slope(b, a),
            ActivationKind::Mish => {
                // t + x (1 - t^2) sigmoid(x), t = tanh(softplus(x))
                let s = softplus(b, a);
                let t = b.unary(UnaryKind::Tanh, s);
                let d = one_minus_square(b, t);
                let sig = b.sigmoid(a);
                let d = b.mul(d, sig);
                let d = b.mul(a, d);
                b.add(t, d)
            }
            ActivationKind::Elu => exp_of_negative(b, a),
        };
        let dy = b.as_f32(x[1]);
        let dx = b.mul(dy, slope);
        Some(vec![b.as_like(dx, x[0])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        25.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(1, 0), (0, 0)]
    }
}

op! {
    /// y = silu(a) * b from (a, b): Llama's feed-forward gate.
    SwiGlu = "swiglu" {}
}

impl OpDef for SwiGlu {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        want(x[0] == x[1], "a and b differ")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 2]) };
        let d = b.push(SwiGluGrad {}, &[v.x[0], v.x[1], dy]);
        Ok(vec![Some(d[0]), Some(d[1])])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (p, q) = (b.as_f32(x[0]), b.as_f32(x[1]));
        let s = b.sigmoid(p);
        let silu = b.mul(p, s);
        let y = b.mul(silu, q);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        15.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (1, 0)]
    }
}

op! {
    /// (da, db) from (a, b, dy): da = dy b silu'(a), db = dy silu(a).
    SwiGluGrad = "swiglu_grad" {}
}

impl OpDef for SwiGluGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        want(x[0] == x[1] && x[0] == x[2], "operands differ")?;
        Ok(vec![x[0], x[0]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (p, q, dy) = (b.as_f32(x[0]), b.as_f32(x[1]), b.as_f32(x[2]));
        let slope = silu_slope(b, p);
        let da = b.mul(q, slope);
        let da = b.mul(dy, da);
        let s = b.sigmoid(p);
        let silu = b.mul(p, s);
        let db = b.mul(dy, silu);
        Some(vec![b.as_like(da, x[0]), b.as_like(db, x[0])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        25.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (1, 1)]
    }
}

/// Factor of x^3 in the tanh form of GELU (Hendrycks and Gimpel, arXiv 1606.08415).
const CUBIC: f32 = 0.044715;
/// sqrt(2 / pi).
const GELU: f32 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// Phi(x) = (1 + erf(x / sqrt 2)) / 2.
fn normal_cdf(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let z = b.times(x, FRAC_1_SQRT_2);
    let e = b.unary(UnaryKind::Erf, z);
    half_plus_half(b, e)
}

/// (1 + x) / 2.
fn half_plus_half(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let s = b.plus(x, 1.0);
    b.times(s, 0.5)
}

/// 1 - x^2.
fn one_minus_square(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let x2 = b.mul(x, x);
    let one = b.fill_like(x, 1.0);
    b.sub(one, x2)
}

/// tanh(sqrt(2/pi) (x + 0.044715 x^3)).
fn gelu_tanh(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let x2 = b.mul(x, x);
    let u = b.times(x2, CUBIC);
    let u = b.plus(u, 1.0);
    let u = b.mul(x, u);
    let u = b.times(u, GELU);
    b.unary(UnaryKind::Tanh, u)
}

/// e^min(x, 0), which never overflows.
fn exp_of_negative(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let zero = b.fill_like(x, 0.0);
    let low = b.binary(BinaryKind::Min, x, zero);
    b.unary(UnaryKind::Exp, low)
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), which never overflows.
fn softplus(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let n = b.unary(UnaryKind::Neg, x);
    let low = b.binary(BinaryKind::Min, x, n);
    let e = b.unary(UnaryKind::Exp, low);
    let e = b.plus(e, 1.0);
    let l = b.unary(UnaryKind::Log, e);
    let zero = b.fill_like(x, 0.0);
    let high = b.binary(BinaryKind::Max, x, zero);
    b.add(high, l)
}

/// silu'(x) = s (1 + x (1 - s)), s = sigmoid(x).
fn silu_slope(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let s = b.sigmoid(x);
    let one = b.fill_like(x, 1.0);
    let r = b.sub(one, s);
    let r = b.mul(x, r);
    let r = b.plus(r, 1.0);
    b.mul(s, r)
}

op! {
    /// `y[t, c]` = `x[t, c]` + sin(`a[c]` `x[t, c]`)^2 / (`a[c]` + 1e-9) from (x `[T, C]`, a `[C]`): Ziyin et al., arXiv 2006.08195,
    /// with the small number that audio codecs add. For inference: it has no gradient.
    Snake = "snake" {}
}

/// Keeps a snake of frequency 0 finite.
const SNAKE_EPS: f32 = 1e-9;

impl OpDef for Snake {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        let (_, cols) = super::matrix(x[0])?;
        want(x[0].dtype.is_float() && x[1].dtype.is_float(), "takes floats")?;
        want(*x[1].shape == [cols], "one frequency per channel is needed")?;
        Ok(vec![x[0]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let f = b.each_row(x[1], a);
        let angle = b.mul(f, a);
        let s = b.unary(UnaryKind::Sin, angle);
        let s = b.mul(s, s);
        let f = b.plus(f, SNAKE_EPS);
        let s = b.div(s, f);
        let y = b.add(a, s);
        Some(vec![b.as_like(y, x[0])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        25.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

impl Builder<'_> {
    /// x + sin(a x)^2 / a, a `[C]`.
    pub fn snake(&mut self, x: ValueId, a: ValueId) -> ValueId {
        self.push1(Snake {}, &[x, a])
    }
    /// f(x).
    pub fn activation(&mut self, kind: ActivationKind, x: ValueId) -> ValueId {
        self.push1(Activation { kind }, &[x])
    }
    /// silu(a) * b.
    pub fn swiglu(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.push1(SwiGlu {}, &[a, b])
    }
}
