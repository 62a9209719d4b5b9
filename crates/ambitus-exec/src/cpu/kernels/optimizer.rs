//! AdamW, Lion, EMA and norms over flat parameter tensors.

use super::Pool;
use super::loss::ordered_sum;
use super::map::{Map, map_flat};
use super::pool::DisjointMut;
use super::scratch::{SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};

/// One AdamW update (Loshchilov & Hutter, arXiv 1711.05101; order of operations as `torch.optim.AdamW`). Numbers are f64
/// because 1 - 0.999 in f32 is off by 5e-5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// 1 - beta1^step.
    pub bias_correction1: f64,
    /// 1 - beta2^step.
    pub bias_correction2: f64,
    /// Factor of the gradient (clipping, loss scale).
    pub grad_scale: f32,
    /// False leaves p, m and v as they are.
    pub apply: bool,
}

/// `g' = grad_scale g; p *= 1 - lr wd; m += (g' - m)(1 - β1); v = β2 v + (1 - β2) g'²; p -= lr / bc1 · m / (√v / √bc2 + eps)`.
pub fn adamw(pool: &Pool, step: &AdamW, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    if step.apply {
        map_flat(pool, &Factors::new(step), [g], [p, m, v]);
    }
}

/// The numbers of [`AdamW`] that meet elements.
pub(super) struct Factors {
    grad: f32,
    keep: f32,
    first: f32,
    second: f32,
    beta2: f32,
    root: f32,
    eps: f32,
    size: f32,
}

impl Factors {
    pub fn new(step: &AdamW) -> Factors {
        Factors {
            grad: step.grad_scale,
            keep: (1.0 - step.lr * step.weight_decay) as f32,
            first: (1.0 - step.beta1) as f32,
            second: (1.0 - step.beta2) as f32,
            beta2: step.beta2 as f32,
            root: step.bias_correction2.sqrt() as f32,
            eps: step.eps as f32,
            size: (step.lr / step.bias_correction1) as f32,
        }
    }
}

impl Map<1, 3> for Factors {
    const UPDATES: bool = true;
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [g]: [S::V; 1], [p, m, v]: [S::V; 3]) -> [S::V; 3] {
        let g = s.mul(g, s.splat(self.grad));
        let p = s.mul(p, s.splat(self.keep));
        let m = s.fma(s.sub(g, m), s.splat(self.first), m);
        let v = s.fma(s.mul(g, g), s.splat(self.second), s.mul(v, s.splat(self.beta2)));
        let denominator = s.add(s.div(s.sqrt(v), s.splat(self.root)), s.splat(self.eps));
        let p = s.fnma(s.splat(self.size), s.div(m, denominator), p);
        [p, m, v]
    }
}

/// One update of Lion (Chen et al., arXiv 2302.06675; order of operations as its authors' PyTorch file).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// Learning rate.
    pub lr: f64,
    /// Share of the old moment in the step's sign.
    pub beta1: f64,
    /// Decay of the moment.
    pub beta2: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Factor of the gradient (clipping, loss scale).
    pub grad_scale: f32,
    /// False leaves p and m as they are.
    pub apply: bool,
}

/// `g' = grad_scale g; p *= 1 - lr wd; p -= lr sign(β1 m + (1 - β1) g'); m = β2 m + (1 - β2) g'`. A product is rounded and the
/// other is not, as torch rounds them on processors that multiply and add at once: a sign hangs on it.
pub fn lion(pool: &Pool, step: &Lion, p: &mut [f32], g: &[f32], m: &mut [f32]) {
    if step.apply {
        map_flat(pool, &LionFactors::new(step), [g], [p, m]);
    }
}

/// The numbers of [`Lion`] that meet elements.
pub(super) struct LionFactors {
    grad: f32,
    keep: f32,
    beta1: f32,
    first: f32,
    beta2: f32,
    second: f32,
    size: f32,
}

impl LionFactors {
    pub fn new(step: &Lion) -> LionFactors {
        LionFactors {
            grad: step.grad_scale,
            keep: (1.0 - step.lr * step.weight_decay) as f32,
            beta1: step.beta1 as f32,
            first: (1.0 - step.beta1) as f32,
            beta2: step.beta2 as f32,
            second: (1.0 - step.beta2) as f32,
            size: step.lr as f32,
        }
    }
}

impl Map<1, 2> for LionFactors {
    const UPDATES: bool = true;
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [g]: [S::V; 1], [p, m]: [S::V; 2]) -> [S::V; 2] {
        let g = s.mul(g, s.splat(self.grad));
        let p = s.mul(p, s.splat(self.keep));
        let mixed = s.fma(g, s.splat(self.first), s.mul(m, s.splat(self.beta1)));
        let (zero, size) = (s.zero(), s.splat(self.size));
        let below = s.select_lt(mixed, zero, s.splat(-self.size), zero);
        let p = s.sub(p, s.select_lt(zero, mixed, size, below));
        [p, s.fma(g, s.splat(self.second), s.mul(m, s.splat(self.beta2)))]
    }
}

/// `x += weight (target - x)` (EMA: weight = 1 - decay; from the target's side for weight ≥ 0.5, as `torch.lerp`).
pub fn lerp(pool: &Pool, weight: f32, target: &[f32], x: &mut [f32]) {
    map_flat(pool, &Lerp(weight), [target], [x]);
}

struct Lerp(f32);
impl Map<1, 1> for Lerp {
    const UPDATES: bool = true;
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [target]: [S::V; 1], [x]: [S::V; 1]) -> [S::V; 1] {
        let d = s.sub(target, x);
        [if self.0 < 0.5 { s.fma(s.splat(self.0), d, x) } else { s.fnma(s.splat(1.0 - self.0), d, target) }]
    }
}

/// Elements of a partial sum.
const PARTIAL: usize = 4096;

/// Returns the floats of workspace of [`sum_squares`].
pub fn sum_squares_workspace(len: usize) -> usize {
    padded(len.div_ceil(PARTIAL)) + SLACK
}

/// `Σ x²` from partial sums of 4096 elements, added in order with compensation. Not finite if any element is not.
pub fn sum_squares(pool: &Pool, x: &[f32], ws: &mut [f32]) -> f32 {
    let (isa, count) = (pool.isa(), x.len().div_ceil(PARTIAL));
    let partial = DisjointMut::new(Scratch::new(ws).take(count));
    pool.run(count, |i| {
        let part = &x[i * PARTIAL..x.len().min((i + 1) * PARTIAL)];
        // SAFETY: one element per task.
        unsafe { partial.slice(i, 1)[0] = squares(isa, part) };
    });
    // SAFETY: the tasks are over.
    ordered_sum(unsafe { partial.slice(0, count) }.iter().copied())
}

dispatch! { fn squares(x: &[f32]) -> f32 = squares_body }

#[inline(always)]
fn squares_body<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sum = s.zero();
    each_vector!(S, x.len(), |at| {
        let v = at.load(s, x);
        sum = s.fma(v, v, sum);
    });
    s.sum(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, check};

    /// A few units in the last place.
    const TOL: f32 = 1e-6;

    #[test]
    fn adamw_steps() {
        let mut rng = Rng::new(111);
        let n = 40_003;
        let (p0, g) = (rng.vec(n), rng.vec(n));
        let step = |t: i32| AdamW {
            lr: 1e-2,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.1,
            bias_correction1: 1.0 - 0.9f64.powi(t),
            bias_correction2: 1.0 - 0.999f64.powi(t),
            grad_scale: 0.5,
            apply: true,
        };
        let mut want = [Vec::new(), Vec::new(), Vec::new()];
        for (&p, &g) in p0.iter().zip(&g) {
            let (mut p, mut m, mut v) = (p as f64, 0.0, 0.0);
            for t in 1..=3 {
                let o = step(t);
                let g = 0.5 * g as f64;
                p *= 1.0 - 1e-3;
                m = 0.9 * m + 0.1 * g;
                v = 0.999 * v + 0.001 * g * g;
                let denominator = v.sqrt() / o.bias_correction2.sqrt() + 1e-8;
                p -= 1e-2 / o.bias_correction1 * m / denominator;
            }
            for (w, x) in want.iter_mut().zip([p, m, v]) {
                w.push(x as f32);
            }
        }
        check(&want.concat(), TOL, "adamw", |pool| {
            let (mut p, mut m, mut v) = (p0.clone(), vec![0.0; n], vec![0.0; n]);
            for t in 1..=3 {
                adamw(pool, &step(t), &mut p, &g, &mut m, &mut v);
            }
            let before = p.clone();
            let skip = AdamW { apply: false, ..step(4) };
            adamw(pool, &skip, &mut p, &vec![f32::NAN; n], &mut m, &mut v);
            assert!(p == before);
            [p, m, v].concat()
        });
    }

    #[test]
    fn lion_steps() {
        let mut rng = Rng::new(113);
        let n = 40_003;
        let (p0, mut g) = (rng.vec(n), rng.vec(n));
        g[7] = 0.0;
        let step =
            Lion { lr: 1e-3, beta1: 0.9, beta2: 0.99, weight_decay: 0.5, grad_scale: 0.5, apply: true };
        let mut want = [Vec::new(), Vec::new()];
        for (&p, &g) in p0.iter().zip(&g) {
            let (mut p, mut m, g) = (f64::from(p), 0.0, 0.5 * f64::from(g));
            // The gradient turns around, so that the step's sign is the moment's in the second update.
            for g in [g, -1e-4 * g, g] {
                let mixed = 0.9 * m + 0.1 * g;
                p = p * (1.0 - 5e-4) - if mixed == 0.0 { 0.0 } else { 1e-3 * f64::signum(mixed) };
                m = 0.99 * m + 0.01 * g;
            }
            for (w, x) in want.iter_mut().zip([p, m]) {
                w.push(x as f32);
            }
        }
        check(&want.concat(), TOL, "lion", |pool| {
            let (mut p, mut m) = (p0.clone(), vec![0.0; n]);
            let back: Vec<f32> = g.iter().map(|g| -1e-4 * g).collect();
            for g in [&g, &back, &g] {
                lion(pool, &step, &mut p, g, &mut m);
            }
            let before = p.clone();
            lion(pool, &Lion { apply: false, ..step }, &mut p, &vec![f32::NAN; n], &mut m);
            assert!(p == before);
            [p, m].concat()
        });
    }

    #[test]
    fn ema_and_norm() {
        let mut rng = Rng::new(112);
        let n = 33_333;
        let (x, target) = (rng.vec(n), rng.vec(n));
        for weight in [0.001f32, 0.9, 1.0] {
            let w = weight as f64;
            let mut want: Vec<f32> =
                x.iter().zip(&target).map(|(&a, &b)| (a as f64 + w * (b as f64 - a as f64)) as f32).collect();
            want.push(x.iter().map(|&a| a as f64 * a as f64).sum::<f64>() as f32);
            check(&want, TOL, "lerp", |pool| {
                let mut y = x.clone();
                lerp(pool, weight, &target, &mut y);
                y.push(sum_squares(pool, &x, &mut vec![f32::NAN; sum_squares_workspace(n)]));
                y
            });
        }
    }
}
