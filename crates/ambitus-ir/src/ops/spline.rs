//! Monotonic piecewise rational-quadratic splines: steps of normalising flows.
//!
//! # The curve (Durkan et al., Neural Spline Flows, arXiv 1906.04032)
//!
//! Each row has a curve of its own. From -b to b (b: `bound`) it goes through B + 1 knots (`X[j]`, `Y[j]`) with the slopes `D[j]`;
//! outside it is the line y = x. A row of parameters has B widths u, B heights v and B - 1 slopes s, none of them normalised. With
//! f = softmax(u) and m = 0.001, the least share of a bin and the least slope:
//!
//! ```text
//! X[j] = -b + 2 b sum(m + (1 - m B) f[i], i < j),  X[0] = -b,  X[B] = b;  Y[j] from v in the same way
//! D[j] = m + ln(1 + e^s[j - 1]),  D[0] = D[B] = 1
//! ```
//!
//! Bin k has `X[k]` <= x < `X[k + 1]`, the last one x = b as well. Let w and h be its width and height, d and e the slopes at its ends,
//! a = h / w, g = d + e - 2 a, t = (x - `X[k]`) / w and r = t (1 - t). Then
//!
//! ```text
//! n = h (a t^2 + d r)    q = a + g r    p = e t^2 + 2 a r + d (1 - t)^2
//! y = Y[k] + n / q       L = log(dy/dx) = 2 ln a + ln p - 2 ln q
//! ```
//!
//! and L = 0 outside. The inverse finds its bin by `Y`, and t from z = x - `Y[k]` as the root of A t^2 + H t + C with
//! A = z g + h (a - d), H = h d - z g and C = -a z, in the form without cancellation, t = 2 C / (-H - sqrt(H^2 - 4 A C)). It gives
//! y = `X[k]` + w t and -L.
//!
//! # Its gradient
//!
//! From the gradients Gy of y and GL of L, those of everything that they depend on:
//!
//! ```text
//! Gn = Gy / q            Gq = -(Gy n / q + 2 GL) / q            Gp = GL / p
//! Ga = 2 GL / a + Gn h t^2 + Gq (1 - 2 r) + 2 Gp r
//! Gd = Gn h r + Gq r + Gp (1 - t)^2                             Ge = Gq r + Gp t^2
//! Gt = Gn h (2 a t + d (1 - 2 t)) + Gq g (1 - 2 t) + 2 Gp (e t + a (1 - 2 t) - d (1 - t))
//! Gh = Gn n / h + Ga / w                                        Gw = -(Ga a + Gt t) / w
//! Gx = Gt / w            GX[k] = -Gw - Gx,  GX[k + 1] = Gw      GY[k] = Gy - Gh,  GY[k + 1] = Gh
//! ```
//!
//! The first knot, the last one and their slopes are constants. Another knot is a sum over the bins before it, so that of the softmax
//! f of widths `Gf[i]` = 2 b (1 - m B) c with c = `GX[k]` + `GX[k + 1]` for i < k, `GX[k + 1]` for i = k and 0 for i > k, where
//! `GX[k + 1]` counts as 0 in the last bin; `Gu[i]` = `f[i]` (`Gf[i]` - sum of f Gf). Heights are alike, and of a slope Gs = GD
//! sigmoid(s). The other slopes have no gradient. Outside Gx = Gy, and no parameter has a gradient.
//!
//! # Rows are computed in f64
//!
//! a, g and t are differences of numbers that were rounded before: in f32, gradients of a single spline of random parameters are off by
//! 1e-5 to 3e-4 (relative L2), and a chain of splines multiplies that. There is a row for each symbol of a text, some thousand at
//! most, which f64 is quick enough for, on GPUs too. So a row is computed in f64 from operands in f32, and its results
//! are rounded once. That is part of the definition: core ops, which are of f32, cannot say it.

use super::{Grads, OpDef, Vjp, arity, op, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// (y `[T]`, logdet `[T]`) from (x `[T]`, params `[T, 3B - 1]`), all f32: row by row, the curve of the module's page at x, and log
    /// |dy/dx|. A row of params has B unnormalised widths, B heights and B - 1 slopes at inner knots. The inverse has no gradient.
    RationalSpline = "rational_spline" {
        /// B, at least 1 and below 1000, where bins would have no width
        bins: usize,
        /// the curve is from -bound to bound, positive and finite
        bound: f32,
        /// the inverse function: x is an ordinate
        inverse: bool,
    }
}

/// Checks (x `[T]`, params `[T, 3B - 1]`) of a spline.
fn fits(bins: usize, bound: f32, x: TensorType, params: TensorType) -> Result<(), String> {
    want((1..1000).contains(&bins), format_args!("{bins} bins are not 1 to 999"))?;
    want(bound > 0.0 && bound.is_finite(), format_args!("the bound {bound} is not positive and finite"))?;
    want(x.dtype == DType::F32 && x.shape.len() == 1, format_args!("x {x} is not f32[T]"))?;
    let row = TensorType::f32(&[x.shape[0], 3 * bins - 1]);
    want(
        params == row,
        format_args!("params {params} are not {row}, widths, heights and slopes of {bins} bins"),
    )
}

/// Arithmetic of a row for each of its parameters, most of it exponentials in f64.
const FLOPS: f64 = 60.0;

impl OpDef for RationalSpline {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        fits(self.bins, self.bound, x[0], x[1])?;
        Ok(vec![x[0], x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        want(!self.inverse, "the inverse has no gradient")?;
        let [x, params] = [v.x[0], v.x[1]];
        let (bins, bound) = (self.bins, self.bound);
        if v.dy.iter().all(Option::is_none) {
            return Ok(vec![None; 2]);
        }
        let [dy, dlogdet] = [0, 1].map(|k| v.dy[k].unwrap_or_else(|| b.fill_like(x, 0.0)));
        let d = b.push(RationalSplineGrad { bins, bound }, &[x, params, dy, dlogdet]);
        Ok(vec![Some(d[0]), Some(d[1])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        FLOPS * x[1].shape.elements() as f64
    }
}

op! {
    /// (dx `[T]`, dparams `[T, 3B - 1]`) from (x `[T]`, params `[T, 3B - 1]`, dy `[T]`, dlogdet `[T]`), all f32: of
    /// [`RationalSpline`] that is no inverse.
    RationalSplineGrad = "rational_spline_grad" {
        /// B
        bins: usize,
        /// the curve is from -bound to bound
        bound: f32,
    }
}

impl OpDef for RationalSplineGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        fits(self.bins, self.bound, x[0], x[1])?;
        want(x[2] == x[0] && x[3] == x[0], format_args!("dy or dlogdet is not {}", x[0]))?;
        Ok(vec![x[0], x[1]])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        1.5 * FLOPS * x[1].shape.elements() as f64
    }
}

impl Builder<'_> {
    /// Returns (y `[T]`, log |dy/dx| `[T]`) of a monotonic spline of `bins` bins between -`bound` and `bound`, or of its inverse, of x
    /// `[T]` and params `[T, 3 bins - 1]`; see [`RationalSpline`].
    pub fn rational_spline(&mut self, op: RationalSpline, x: ValueId, params: ValueId) -> [ValueId; 2] {
        let y = self.push(op, &[x, params]);
        [y[0], y[1]]
    }
}
