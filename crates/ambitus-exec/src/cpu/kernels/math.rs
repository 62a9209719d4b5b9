//! Vectorised elementary functions. Polynomials are least-squares fits on Chebyshev nodes, reweighted towards the minimax; argument
//! reduction follows Cody & Waite, "Software Manual for the Elementary Functions" (1980).

use super::simd::Simd;

/// c[0] + c[1] x + ...
#[inline(always)]
fn poly<S: Simd, const N: usize>(s: S, x: S::V, c: [f32; N]) -> S::V {
    let mut y = s.splat(c[N - 1]);
    for &c in c[..N - 1].iter().rev() {
        y = s.fma(y, x, s.splat(c));
    }
    y
}

/// e^x within 2 ulp; 0 below -87.3, e^88.37 above 88.37, NaN stays.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    exp_above(s, x, -87.3)
}

/// [`exp`] for softmax: 0 below -64 (1.6e-28, negligible next to the largest term's 1), so that products with probabilities do
/// not become denormal, which processors multiply a hundred times slower.
#[inline(always)]
pub fn exp_softmax<S: Simd>(s: S, x: S::V) -> S::V {
    exp_above(s, x, -64.0)
}

#[inline(always)]
fn exp_above<S: Simd>(s: S, x: S::V, low: f32) -> S::V {
    let low = s.splat(low);
    let v = s.min(s.splat(88.37), s.max(low, x));
    let n = s.round(s.mul(v, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fnma(n, s.splat(0.693_359_4), v);
    let r = s.fnma(n, s.splat(-2.121_944_4e-4), r);
    let p = poly(s, r, [0.5, 0.166_665_2, 4.166_620_7e-2, 8.368_886e-3, 1.395_044_6e-3]);
    let y = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    s.select_lt(x, low, s.zero(), s.mul(y, s.pow2(n)))
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.zero(), x))))
}

/// tanh(x) = (1 - q) / (1 + q) with q = e^(-2|x|); near 0, where 1 - q cancels, an odd series.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let (a, one) = (s.abs(x), s.splat(1.0));
    let q = exp(s, s.mul(a, s.splat(-2.0)));
    let far = s.div(s.sub(one, q), s.add(one, q));
    let z = s.mul(x, x);
    let series = s.fma(z, s.splat(62.0 / 2835.0), s.splat(-17.0 / 315.0));
    let series = s.fma(series, z, s.splat(2.0 / 15.0));
    let series = s.fma(series, z, s.splat(-1.0 / 3.0));
    let near = s.fma(s.mul(series, z), a, a);
    s.copysign(s.select_lt(a, s.splat(0.2), near, far), x)
}

/// Returns the normal distribution's Φ(x) = (1 + erf(x / √2)) / 2 and e^(-x²/2). Φ is accurate relative to itself in the left
/// tail too.
#[inline(always)]
pub fn normal_cdf<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let one = s.splat(1.0);
    let gauss = exp(s, s.mul(s.mul(x, x), s.splat(-0.5)));
    // erfc(z) e^(z²) = t P(t) with t = 1 / (1 + 0.4 z), fitted for z in 0..9.5, relative error 2e-9 before rounding.
    let z = s.mul(s.abs(x), s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = s.div(one, s.fma(z, s.splat(0.4), one));
    let p = poly(
        s,
        t,
        [
            2.256_884_1e-1,
            2.253_824e-1,
            2.105_815_6e-1,
            1.546_201e-1,
            1.813_858_5e-1,
            -6.624_511e-2,
            1.953_443_6e-1,
            -1.215_179_9e-1,
            -5.934_271e-2,
            7.150_6e-2,
            -1.740_286_9e-2,
        ],
    );
    let tail = s.mul(s.mul(s.mul(t, p), gauss), s.splat(0.5));
    (s.select_lt(x, s.zero(), tail, s.sub(one, tail)), gauss)
}

/// (sin x, cos x), absolute error below 2e-7 for |x| < 9000 (with fused multiply-add: for |x| < 1e5).
#[inline(always)]
pub fn sin_cos<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let j = s.round(s.mul(x, s.splat(std::f32::consts::FRAC_2_PI)));
    // π/2 in three parts; products of j < 2^13 with the first two are exact.
    let r = s.fnma(j, s.splat(1.570_312_5), x);
    let r = s.fnma(j, s.splat(4.837_513e-4), r);
    let r = s.fnma(j, s.splat(7.549_79e-8), r);
    let z = s.mul(r, r);
    let sin = poly(s, z, [-0.166_666_67, 8.333_332e-3, -1.984_008_3e-4, 2.724_939e-6]);
    let sin = s.fma(s.mul(sin, z), r, r);
    let cos = poly(s, z, [4.166_666_5e-2, -1.388_829_8e-3, 2.454_712_6e-5]);
    let cos = s.fma(s.mul(z, z), cos, s.fma(z, s.splat(-0.5), s.splat(1.0)));
    // q = j mod 4 says the quadrant.
    let quarter = s.round(s.fma(j, s.splat(0.25), s.splat(-0.375)));
    let q = s.fnma(quarter, s.splat(4.0), j);
    let (half, one_and_half, two_and_half) = (s.splat(0.5), s.splat(1.5), s.splat(2.5));
    let (neg_sin, neg_cos) = (s.sub(s.zero(), sin), s.sub(s.zero(), cos));
    let right = s.select_lt(q, half, sin, cos);
    let left = s.select_lt(q, two_and_half, neg_sin, neg_cos);
    let sine = s.select_lt(q, one_and_half, right, left);
    let right = s.select_lt(q, half, cos, neg_sin);
    let left = s.select_lt(q, two_and_half, neg_cos, sin);
    (sine, s.select_lt(q, one_and_half, right, left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::Isa;
    use crate::cpu::kernels::simd::dispatch;

    dispatch! { fn run(which: u8, x: &[f32], out: &mut [f32]) = run_body }

    #[inline(always)]
    fn run_body<S: Simd>(s: S, which: u8, x: &[f32], out: &mut [f32]) {
        for (x, out) in x.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
            let v = if x.len() == S::LANES { s.load(x) } else { s.load_part(x) };
            let y = match which {
                0 => exp(s, v),
                1 => sigmoid(s, v),
                2 => normal_cdf(s, v).0,
                3 => sin_cos(s, v).0,
                _ => sin_cos(s, v).1,
            };
            if out.len() == S::LANES { s.store(out, y) } else { s.store_part(out, y) }
        }
    }

    fn worst(which: u8, lo: f32, hi: f32, want: impl Fn(f64) -> f64, relative: bool) -> f64 {
        let n = 200_003;
        let x: Vec<f32> = (0..n).map(|i| lo + (hi - lo) * (i as f32 / n as f32)).collect();
        let mut worst = 0.0f64;
        for &isa in Isa::available() {
            let mut y = vec![0.0; n];
            run(isa, which, &x, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let w = want(x as f64);
                let e = (y as f64 - w).abs() / if relative { w.abs() } else { 1.0 };
                worst = worst.max(e);
            }
        }
        worst
    }

    /// Continued fraction (tail) and series (centre) of erfc in f64.
    fn erfc(x: f64) -> f64 {
        if x < 0.0 {
            return 2.0 - erfc(-x);
        }
        if x < 2.5 {
            let (mut term, mut sum) = (x, x);
            for n in 1..80 {
                term *= -x * x / n as f64;
                sum += term / (2 * n + 1) as f64;
            }
            return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum;
        }
        let f = (1..100).rev().fold(x, |f, k| x + k as f64 / 2.0 / f);
        (-x * x).exp() / std::f64::consts::PI.sqrt() / f
    }

    /// A few units in the last place of an f32.
    const ULPS: f64 = 2e-7;

    #[test]
    fn within_a_few_ulp() {
        let e = worst(0, -87.0, 88.0, f64::exp, true);
        assert!(e < ULPS, "exp {e:e}");
        let e = worst(1, -80.0, 80.0, |x| 1.0 / (1.0 + (-x).exp()), true);
        assert!(e < 2.0 * ULPS, "sigmoid {e:e}");
        let phi = |x: f64| 0.5 * erfc(-x / 2f64.sqrt());
        let e = worst(2, -1.0, 10.0, phi, true);
        assert!(e < 2.0 * ULPS, "cdf {e:e}");
        // In the tail the rounding of x²/2 is amplified: relative error x²/2 · eps.
        let e = worst(2, -10.0, -1.0, phi, true);
        assert!(e < 60.0 * ULPS, "cdf tail {e:e}");
        for (lo, hi) in [(-10.0, 10.0), (-9000.0, 9000.0)] {
            let e = worst(3, lo, hi, f64::sin, false).max(worst(4, lo, hi, f64::cos, false));
            assert!(e < ULPS, "sin, cos in {lo}..{hi}: {e:e}");
        }
    }

    #[test]
    fn edges() {
        for &isa in Isa::available() {
            let x = [f32::NEG_INFINITY, -200.0, 0.0, f32::INFINITY, f32::NAN];
            let mut y = [1.0; 5];
            run(isa, 0, &x, &mut y);
            assert!(y[0] == 0.0 && y[1] == 0.0 && y[2] == 1.0 && y[3] > 2e38 && y[4].is_nan());
        }
    }
}
