//! Activations, their gradients, and elementwise arithmetic.

use super::map::{Map, map_mats};
use super::math::{exp, normal_cdf, sigmoid, tanh};
use super::simd::Simd;
use super::{Mat, MatMut, Pool};

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// x Φ(x), Hendrycks & Gimpel, arXiv 1606.08415.
    GeluErf,
    /// Its tanh approximation: x σ(2u), u = √(2/π) (x + 0.044715 x³).
    GeluTanh,
    /// x σ(x).
    Silu,
    /// x tanh(ln(1 + eˣ)), Misra, arXiv 1908.08681.
    Mish,
    /// x above 0, else eˣ - 1; Clevert et al., arXiv 1511.07289.
    Elu,
    /// max(x, 0); gradient 0 at 0.
    Relu,
    /// σ(x).
    Sigmoid,
    /// tanh(x).
    Tanh,
}

/// 2 √(2/π)
const TWO_ROOT: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;
/// 1 / √(2π)
const DENSITY: f32 = 0.398_942_3;

/// `out = act(x)`.
pub fn activation(pool: &Pool, act: Act, x: Mat, out: MatMut) {
    match act {
        Act::GeluErf => map_mats(pool, &GeluErf, [x], [out]),
        Act::GeluTanh => map_mats(pool, &GeluTanh, [x], [out]),
        Act::Silu => map_mats(pool, &Silu, [x], [out]),
        Act::Mish => map_mats(pool, &Mish, [x], [out]),
        Act::Elu => map_mats(pool, &Elu, [x], [out]),
        Act::Relu => map_mats(pool, &Relu, [x], [out]),
        Act::Sigmoid => map_mats(pool, &Sigmoid, [x], [out]),
        Act::Tanh => map_mats(pool, &Tanh, [x], [out]),
    }
}

/// `dx = dy * act'(x)`, from the input of [`activation`].
pub fn activation_grad(pool: &Pool, act: Act, x: Mat, dy: Mat, dx: MatMut) {
    match act {
        Act::GeluErf => map_mats(pool, &GeluErf, [x, dy], [dx]),
        Act::GeluTanh => map_mats(pool, &GeluTanh, [x, dy], [dx]),
        Act::Silu => map_mats(pool, &Silu, [x, dy], [dx]),
        Act::Mish => map_mats(pool, &Mish, [x, dy], [dx]),
        Act::Elu => map_mats(pool, &Elu, [x, dy], [dx]),
        Act::Relu => map_mats(pool, &Relu, [x, dy], [dx]),
        Act::Sigmoid => map_mats(pool, &Sigmoid, [x, dy], [dx]),
        Act::Tanh => map_mats(pool, &Tanh, [x, dy], [dx]),
    }
}

/// `out = silu(gate) * up`, Shazeer, arXiv 2002.05202.
pub fn swiglu(pool: &Pool, gate: Mat, up: Mat, out: MatMut) {
    map_mats(pool, &SwiGlu, [gate, up], [out]);
}

/// Gradients of [`swiglu`].
pub fn swiglu_grad(pool: &Pool, gate: Mat, up: Mat, dy: Mat, dgate: MatMut, dup: MatMut) {
    map_mats(pool, &SwiGlu, [gate, up, dy], [dgate, dup]);
}

/// `out = a x + b y`.
pub fn axpby(pool: &Pool, a: f32, x: Mat, b: f32, y: Mat, out: MatMut) {
    map_mats(pool, &Axpby(a, b), [x, y], [out]);
}

/// `out += a x`.
pub fn add_scaled(pool: &Pool, a: f32, x: Mat, out: MatMut) {
    map_mats(pool, &AddScaled(a), [x], [out]);
}

/// `out = x * y`, element by element.
pub fn mul(pool: &Pool, x: Mat, y: Mat, out: MatMut) {
    map_mats(pool, &Mul, [x, y], [out]);
}

/// `out = a x`.
pub fn scale(pool: &Pool, a: f32, x: Mat, out: MatMut) {
    map_mats(pool, &Scale(a), [x], [out]);
}

/// Declares the forward map of an activation and, from f'(x), its gradient.
macro_rules! activation_map {
    ($name:ident, |$s:ident, $x:ident| $value:expr, $slope:expr) => {
        struct $name;
        impl Map<1, 1> for $name {
            #[inline(always)]
            fn call<S: Simd>(&self, $s: S, [$x]: [S::V; 1], _: [S::V; 1]) -> [S::V; 1] {
                [$value]
            }
        }
        impl Map<2, 1> for $name {
            #[inline(always)]
            fn call<S: Simd>(&self, $s: S, [$x, dy]: [S::V; 2], _: [S::V; 1]) -> [S::V; 1] {
                [$s.mul(dy, $slope)]
            }
        }
    };
}

activation_map!(GeluErf, |s, x| s.mul(x, normal_cdf(s, x).0), {
    let (cdf, gauss) = normal_cdf(s, x);
    s.fma(s.mul(x, s.splat(DENSITY)), gauss, cdf)
});
activation_map!(GeluTanh, |s, x| s.mul(x, gelu_gate(s, x).0), {
    let (gate, square) = gelu_gate(s, x);
    let one = s.splat(1.0);
    let inner = s.mul(s.splat(TWO_ROOT), s.fma(s.splat(3.0 * CUBIC), square, one));
    let bend = s.mul(s.mul(x, inner), s.sub(one, gate));
    s.fma(gate, bend, gate)
});
activation_map!(Silu, |s, x| s.mul(x, sigmoid(s, x)), {
    let gate = sigmoid(s, x);
    s.fma(gate, s.mul(x, s.sub(s.splat(1.0), gate)), gate)
});
activation_map!(
    Mish,
    |s, x| {
        let [_, n, _] = mish_parts(s, x);
        s.mul(x, s.div(n, s.add(n, s.splat(2.0))))
    },
    {
        // tanh(softplus) = n / (n + 2), n = e (e + 2); its derivative is 4 e (e + 1) / (n + 2)².
        let [e, n, m] = mish_parts(s, x);
        let bend = s.mul(s.mul(s.splat(4.0), e), s.add(e, s.splat(1.0)));
        let bend = s.div(s.div(bend, m), m);
        s.fma(x, bend, s.div(n, m))
    }
);
activation_map!(
    Elu,
    |s, x| {
        let low = s.sub(exp(s, s.min(s.zero(), x)), s.splat(1.0));
        s.select_lt(s.zero(), x, x, low)
    },
    exp(s, s.min(s.zero(), x))
);
activation_map!(Relu, |s, x| s.max(x, s.zero()), s.select_lt(s.zero(), x, s.splat(1.0), s.zero()));
activation_map!(Sigmoid, |s, x| sigmoid(s, x), {
    let y = sigmoid(s, x);
    s.mul(y, s.sub(s.splat(1.0), y))
});
activation_map!(Tanh, |s, x| tanh(s, x), {
    let y = tanh(s, x);
    s.fnma(y, y, s.splat(1.0))
});

/// σ(2u) of the tanh approximation, and x².
#[inline(always)]
fn gelu_gate<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let square = s.mul(x, x);
    let inner = s.fma(s.splat(CUBIC), square, s.splat(1.0));
    (sigmoid(s, s.mul(s.mul(x, s.splat(TWO_ROOT)), inner)), square)
}

/// e = eˣ, n = e (e + 2), n + 2. Beyond x = 20, tanh(softplus(x)) is 1 in f32.
#[inline(always)]
fn mish_parts<S: Simd>(s: S, x: S::V) -> [S::V; 3] {
    let two = s.splat(2.0);
    let e = exp(s, s.min(s.splat(20.0), x));
    let n = s.mul(e, s.add(e, two));
    [e, n, s.add(n, two)]
}

struct SwiGlu;
impl Map<2, 1> for SwiGlu {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [g, u]: [S::V; 2], _: [S::V; 1]) -> [S::V; 1] {
        [s.mul(s.mul(g, sigmoid(s, g)), u)]
    }
}
impl Map<3, 2> for SwiGlu {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [g, u, dy]: [S::V; 3], _: [S::V; 2]) -> [S::V; 2] {
        let gate = sigmoid(s, g);
        let slope = s.fma(gate, s.mul(g, s.sub(s.splat(1.0), gate)), gate);
        [s.mul(s.mul(dy, u), slope), s.mul(dy, s.mul(g, gate))]
    }
}

struct Axpby(f32, f32);
impl Map<2, 1> for Axpby {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [x, y]: [S::V; 2], _: [S::V; 1]) -> [S::V; 1] {
        [s.fma(s.splat(self.0), x, s.mul(s.splat(self.1), y))]
    }
}

struct AddScaled(f32);
impl Map<1, 1> for AddScaled {
    const UPDATES: bool = true;
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [x]: [S::V; 1], [old]: [S::V; 1]) -> [S::V; 1] {
        [s.fma(s.splat(self.0), x, old)]
    }
}

struct Mul;
impl Map<2, 1> for Mul {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [x, y]: [S::V; 2], _: [S::V; 1]) -> [S::V; 1] {
        [s.mul(x, y)]
    }
}

struct Scale(f32);
impl Map<1, 1> for Scale {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [x]: [S::V; 1], _: [S::V; 1]) -> [S::V; 1] {
        [s.mul(s.splat(self.0), x)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, check};

    /// A few units in the last place on values of order 1.
    const TOL: f32 = 1e-6;

    fn erf(x: f64) -> f64 {
        // Series, converges for the range used here.
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        2.0 / std::f64::consts::PI.sqrt() * sum
    }

    fn value(act: Act, x: f64) -> f64 {
        match act {
            Act::GeluErf => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
            Act::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + u.tanh())
            }
            Act::Silu => x / (1.0 + (-x).exp()),
            Act::Mish => x * x.exp().ln_1p().tanh(),
            Act::Elu => x.max(x.min(0.0).exp_m1()),
            Act::Relu => x.max(0.0),
            Act::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Act::Tanh => x.tanh(),
        }
    }

    #[test]
    fn values_and_slopes() {
        let mut rng = Rng::new(21);
        let gates = [Act::GeluErf, Act::GeluTanh, Act::Silu, Act::Mish];
        for act in gates.into_iter().chain([Act::Elu, Act::Relu, Act::Sigmoid, Act::Tanh]) {
            let (rows, cols, pitch) = (37, 29, 31);
            let x: Vec<f32> = rng.vec(rows * pitch).iter().map(|x| x * 5.0).collect();
            let dy = rng.vec(rows * pitch);
            let mut want = vec![0.0; rows * pitch];
            let mut slope = want.clone();
            for r in 0..rows {
                for i in r * pitch..r * pitch + cols {
                    let (v, h) = (x[i] as f64, 1e-5);
                    want[i] = value(act, v) as f32;
                    slope[i] = ((value(act, v + h) - value(act, v - h)) / (2.0 * h) * dy[i] as f64) as f32;
                }
            }
            check(&[want, slope].concat(), TOL, &format!("{act:?}"), |pool| {
                let (mut y, mut dx) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
                let xm = Mat::new(&x, rows, cols, pitch);
                activation(pool, act, xm, MatMut::new(&mut y, rows, cols, pitch));
                let dym = Mat::new(&dy, rows, cols, pitch);
                activation_grad(pool, act, xm, dym, MatMut::new(&mut dx, rows, cols, pitch));
                [y, dx].concat()
            });
        }
    }

    #[test]
    fn far_values_are_finite() {
        let x = [-1e4, -100.0, -30.0, 30.0, 100.0, 1e4f32];
        let dy = [1.0; 6];
        for act in [Act::GeluErf, Act::GeluTanh, Act::Silu, Act::Mish, Act::Elu, Act::Sigmoid, Act::Tanh] {
            let want: Vec<f32> = x
                .iter()
                .map(|&x| match act {
                    Act::Elu => x.max(-1.0),
                    Act::Sigmoid => (x > 0.0) as u8 as f32,
                    Act::Tanh => x.signum(),
                    _ => x.max(0.0),
                })
                .collect();
            let saturates = matches!(act, Act::Sigmoid | Act::Tanh);
            let slope = x.map(|x| if saturates { 0.0 } else { (x > 0.0) as u8 as f32 });
            check(&[&want[..], &slope].concat(), 1e-5, &format!("{act:?}"), |pool| {
                let (mut y, mut dx) = ([0.0; 6], [0.0; 6]);
                activation(pool, act, Mat::dense(&x, 1, 6), MatMut::dense(&mut y, 1, 6));
                let (x, dy) = (Mat::dense(&x, 1, 6), Mat::dense(&dy, 1, 6));
                activation_grad(pool, act, x, dy, MatMut::dense(&mut dx, 1, 6));
                [y, dx].concat()
            });
        }
    }

    #[test]
    fn swiglu_and_arithmetic() {
        let mut rng = Rng::new(22);
        let n = 20_011;
        let (g, u, dy) = (rng.vec(n), rng.vec(n), rng.vec(n));
        let mut want = vec![Vec::new(); 6];
        for i in 0..n {
            let (g, u, dy) = (g[i] as f64, u[i] as f64, dy[i] as f64);
            let s = 1.0 / (1.0 + (-g).exp());
            let all = [
                g * s * u,
                dy * u * s * (1.0 + g * (1.0 - s)),
                dy * g * s,
                0.5 * g - 2.0 * u + 0.25 * dy,
                g * u,
                3.0 * g,
            ];
            for (w, v) in want.iter_mut().zip(all) {
                w.push(v as f32);
            }
        }
        check(&want.concat(), TOL, "swiglu", |pool| {
            let [gm, um, dm] = [&g, &u, &dy].map(|x| Mat::dense(x, 1, n));
            let mut out = vec![vec![f32::NAN; n]; 6];
            let [y, dg, du, ax, ml, sc] = &mut out[..] else { unreachable!() };
            swiglu(pool, gm, um, MatMut::dense(y, 1, n));
            swiglu_grad(pool, gm, um, dm, MatMut::dense(dg, 1, n), MatMut::dense(du, 1, n));
            axpby(pool, 0.5, gm, -2.0, um, MatMut::dense(ax, 1, n));
            add_scaled(pool, 0.25, dm, MatMut::dense(ax, 1, n));
            mul(pool, gm, um, MatMut::dense(ml, 1, n));
            scale(pool, 3.0, gm, MatMut::dense(sc, 1, n));
            out.concat()
        });
    }
}
