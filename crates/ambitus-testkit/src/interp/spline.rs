//! Monotonic rational-quadratic splines, row by row. Gradients are those of dual numbers that go through the curve's own formulas:
//! kernels have an adjoint that was derived by hand, and this one shares nothing with it.

use super::core::Data;
use crate::tensor::Tensor;
use ambitus_ir::ops::spline::{RationalSpline, RationalSplineGrad};
use std::ops::{Add, Div, Mul, Sub};
use std::rc::Rc;

/// The least share of a bin, and the least slope at an inner knot.
const LEAST: f64 = 1e-3;

/// A number, and its derivative along one direction.
#[derive(Clone, Copy)]
struct Dual {
    v: f64,
    d: f64,
}

/// A number that does not change.
fn still(v: f64) -> Dual {
    Dual { v, d: 0.0 }
}

impl Add for Dual {
    type Output = Dual;
    fn add(self, o: Dual) -> Dual {
        Dual { v: self.v + o.v, d: self.d + o.d }
    }
}

impl Sub for Dual {
    type Output = Dual;
    fn sub(self, o: Dual) -> Dual {
        Dual { v: self.v - o.v, d: self.d - o.d }
    }
}

impl Mul for Dual {
    type Output = Dual;
    fn mul(self, o: Dual) -> Dual {
        Dual { v: self.v * o.v, d: self.d * o.v + self.v * o.d }
    }
}

impl Div for Dual {
    type Output = Dual;
    fn div(self, o: Dual) -> Dual {
        let v = self.v / o.v;
        Dual { v, d: (self.d - v * o.d) / o.v }
    }
}

impl Dual {
    fn exp(self) -> Dual {
        let v = self.v.exp();
        Dual { v, d: self.d * v }
    }

    fn ln(self) -> Dual {
        Dual { v: self.v.ln(), d: self.d / self.v }
    }

    fn sqrt(self) -> Dual {
        let v = self.v.sqrt();
        Dual { v, d: 0.5 * self.d / v }
    }

    /// ln(1 + e^x), which never overflows.
    fn softplus(self) -> Dual {
        let tail = |x: Dual| (still(1.0) + x.exp()).ln();
        if self.v > 0.0 { self + tail(still(0.0) - self) } else { tail(self) }
    }
}

/// Ascending knots from -bound to bound, one more than bins.
fn knots(free: &[Dual], bound: f64) -> Vec<Dual> {
    let most = free.iter().fold(f64::NEG_INFINITY, |most, u| most.max(u.v));
    let exps: Vec<Dual> = free.iter().map(|u| (*u - still(most)).exp()).collect();
    let all = exps.iter().fold(still(0.0), |sum, e| sum + *e);
    let mut knots = vec![still(-bound)];
    for e in exps {
        let share = still(LEAST) + still(1.0 - LEAST * free.len() as f64) * e / all;
        knots.push(knots[knots.len() - 1] + still(2.0 * bound) * share);
    }
    knots[free.len()] = still(bound);
    knots
}

/// (y, log |dy/dx|) of a row.
fn row(bins: usize, bound: f32, inverse: bool, x: Dual, params: &[Dual]) -> [Dual; 2] {
    let (bound, one, two) = (f64::from(bound), still(1.0), still(2.0));
    if !(-bound..=bound).contains(&x.v) {
        return [x, still(0.0)];
    }
    let (xs, ys) = (knots(&params[..bins], bound), knots(&params[bins..2 * bins], bound));
    let slope = |j: usize| {
        if j == 0 || j == bins { one } else { still(LEAST) + params[2 * bins + j - 1].softplus() }
    };
    let along = if inverse { &ys } else { &xs };
    let k = along[1..bins].iter().filter(|knot| x.v >= knot.v).count();
    let (w, h, d, e) = (xs[k + 1] - xs[k], ys[k + 1] - ys[k], slope(k), slope(k + 1));
    let a = h / w;
    let g = d + e - two * a;
    let t = if inverse {
        let z = x - ys[k];
        let (quadratic, linear, constant) = (z * g + h * (a - d), h * d - z * g, still(0.0) - a * z);
        let root = linear * linear - still(4.0) * quadratic * constant;
        two * constant / (still(0.0) - linear - root.sqrt())
    } else {
        (x - xs[k]) / w
    };
    let r = t * (one - t);
    let q = a + g * r;
    let p = e * t * t + two * a * r + d * (one - t) * (one - t);
    let log = two * a.ln() + p.ln() - two * q.ln();
    if inverse { [xs[k] + w * t, still(0.0) - log] } else { [ys[k] + h * (a * t * t + d * r) / q, log] }
}

pub(super) fn forward(op: &RationalSpline, x: &[Rc<Tensor>]) -> Vec<Data> {
    let mut y = vec![Vec::new(), Vec::new()];
    for (x, params) in x[0].data.iter().zip(x[1].data.chunks(3 * op.bins - 1)) {
        let params: Vec<Dual> = params.iter().map(|p| still(*p)).collect();
        let made = row(op.bins, op.bound, op.inverse, still(*x), &params);
        y.iter_mut().zip(made).for_each(|(y, made)| y.push(made.v));
    }
    y
}

pub(super) fn grad(op: &RationalSplineGrad, x: &[Rc<Tensor>]) -> Vec<Data> {
    let (mut dx, mut dparams) = (Vec::new(), Vec::new());
    for (t, params) in x[1].data.chunks(3 * op.bins - 1).enumerate() {
        let (mut at, mut params) =
            (still(x[0].data[t]), params.iter().map(|p| still(*p)).collect::<Vec<Dual>>());
        let slope = |at: Dual, params: &[Dual]| {
            let [y, log] = row(op.bins, op.bound, false, at, params);
            y.d * x[2].data[t] + log.d * x[3].data[t]
        };
        at.d = 1.0;
        dx.push(slope(at, &params));
        at.d = 0.0;
        for i in 0..params.len() {
            params[i].d = 1.0;
            dparams.push(slope(at, &params));
            params[i].d = 0.0;
        }
    }
    vec![dx, dparams]
}
