//! Normalisations over channels, and GRN over a segment's frames. Statistics are in fp32 and recomputed from x in
//! backward: nothing but x is kept.

use super::elementwise::UnaryKind;
use super::{Grads, OpDef, Vjp, arity, matrix, op, segments, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::TensorType;

fn per_channel(t: TensorType, cols: usize) -> Result<(), String> {
    want(*t.shape == [cols], format_args!("{t} is not one number per channel"))
}

op! {
    /// y = (x - mean) / sqrt(var + eps) * gamma + beta over each row of x `[T, D]`; var is biased.
    /// Operands (x, gamma `[D]`, beta `[D]`).
    LayerNorm = "layer_norm" {
        /// added to the variance
        eps: f32,
    }
}

impl OpDef for LayerNorm {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        let (_, cols) = matrix(x[0])?;
        per_channel(x[1], cols)?;
        per_channel(x[2], cols)?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 3]) };
        let d = b.push(LayerNormGrad { eps: self.eps }, &[v.x[0], v.x[1], dy]);
        Ok(d.into_iter().map(Some).collect())
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let n = Normalised::layer(b, a, self.eps);
        let (gamma, beta) = (b.each_row(x[1], a), b.each_row(x[2], a));
        let y = b.mul(n.n, gamma);
        let y = b.add(y, beta);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        8.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// (dx, dgamma, dbeta) of [`LayerNorm`] from (x, gamma, dy). With n = (x-mean)*rstd, g = dy*gamma:
    /// dx = rstd * (g - mean(g) - n * mean(g*n)); dgamma = sum_t dy*n; dbeta = sum_t dy.
    LayerNormGrad = "layer_norm_grad" {
        /// added to the variance
        eps: f32,
    }
}

impl OpDef for LayerNormGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        let (_, cols) = matrix(x[0])?;
        per_channel(x[1], cols)?;
        want(x[0] == x[2], "x and dy differ")?;
        let d = TensorType::f32(&[cols]);
        Ok(vec![x[0], d, d])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (a, dy) = (b.as_f32(x[0]), b.as_f32(x[2]));
        let n = Normalised::layer(b, a, self.eps);
        let gamma = b.each_row(x[1], a);
        let g = b.mul(dy, gamma);
        let dx = n.layer_grad(b, g);
        let weighted = b.mul(dy, n.n);
        let dgamma = b.column_sum(weighted);
        let dbeta = b.column_sum(dy);
        Some(vec![b.as_like(dx, x[0]), dgamma, dbeta])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        20.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(2, 0)]
    }
}

op! {
    /// y = x / sqrt(mean(x^2) + eps) * gamma over each row of x `[T, D]`. Operands (x, gamma `[D]`).
    RmsNorm = "rms_norm" {
        /// added to the mean square
        eps: f32,
    }
}

impl OpDef for RmsNorm {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        let (_, cols) = matrix(x[0])?;
        per_channel(x[1], cols)?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 2]) };
        let d = b.push(RmsNormGrad { eps: self.eps }, &[v.x[0], v.x[1], dy]);
        Ok(d.into_iter().map(Some).collect())
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let n = Normalised::of(b, a, self.eps);
        let gamma = b.each_row(x[1], a);
        let y = b.mul(n.n, gamma);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        5.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// (dx, dgamma) of [`RmsNorm`] from (x, gamma, dy). With r = rsqrt(mean(x^2)+eps), n = x*r, g = dy*gamma:
    /// dx = r * (g - n * mean(g*n)); dgamma = sum_t dy*n.
    RmsNormGrad = "rms_norm_grad" {
        /// added to the mean square
        eps: f32,
    }
}

impl OpDef for RmsNormGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        let (_, cols) = matrix(x[0])?;
        per_channel(x[1], cols)?;
        want(x[0] == x[2], "x and dy differ")?;
        Ok(vec![x[0], TensorType::f32(&[cols])])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (a, dy) = (b.as_f32(x[0]), b.as_f32(x[2]));
        let n = Normalised::of(b, a, self.eps);
        let gamma = b.each_row(x[1], a);
        let g = b.mul(dy, gamma);
        let along = n.along(b, g);
        let d = b.sub(g, along);
        let dx = b.mul(n.r, d);
        let weighted = b.mul(dy, n.n);
        let dgamma = b.column_sum(weighted);
        Some(vec![b.as_like(dx, x[0]), dgamma])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        14.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(2, 0)]
    }
}

op! {
    /// Global response normalisation (ConvNeXt V2, arXiv 2301.00808) over each segment of x `[T, C]`:
    /// `G[s,c]` = sqrt(sum_t x^2), N = G / (mean_c G + eps), y = gamma * (x * N) + beta + x.
    /// Operands (x, gamma `[C]`, beta `[C]`, segments). Rows of no segment are zero.
    Grn = "grn" {
        /// added to the mean over channels
        eps: f32,
    }
}

impl OpDef for Grn {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        let (_, cols) = matrix(x[0])?;
        per_channel(x[1], cols)?;
        per_channel(x[2], cols)?;
        segments(x[3])?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 4]) };
        let d = b.push(GrnGrad { eps: self.eps }, &[v.x[0], v.x[1], dy, v.x[3]]);
        Ok(vec![Some(d[0]), Some(d[1]), Some(d[2]), None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let a = b.keep_segment_rows(a, x[3]);
        let rows = b.dim(a, 0);
        let r = Response::of(b, a, x[3], self.eps);
        let n = b.by_segment(r.n, x[3], rows);
        let (gamma, beta) = (b.each_row(x[1], a), b.each_row(x[2], a));
        let y = b.mul(a, n);
        let y = b.mul(gamma, y);
        let y = b.add(y, beta);
        let y = b.add(y, a);
        let y = b.keep_segment_rows(y, x[3]);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        6.0 * x[0].shape.elements() as f64
    }
}

op! {
    /// (dx, dgamma, dbeta) of [`Grn`] from (x, gamma, dy, segments). With M = mean_c G + eps, N = G / M and
    /// `P[s,c]` = sum_t gamma dy x: dG = P / M - sum_c(P G) / (C M^2); dx = dy (gamma N + 1) + x dG / G (0 where G is 0);
    /// dgamma = sum_t dy x N; dbeta = sum_t dy; all sums over the rows of segments, dx zero in other rows.
    GrnGrad = "grn_grad" {
        /// added to the mean over channels
        eps: f32,
    }
}

impl OpDef for GrnGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        let (_, cols) = matrix(x[0])?;
        per_channel(x[1], cols)?;
        want(x[0] == x[2], "x and dy differ")?;
        segments(x[3])?;
        let d = TensorType::f32(&[cols]);
        Ok(vec![x[0], d, d])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (a, dy) = (b.as_f32(x[0]), b.as_f32(x[2]));
        let a = b.keep_segment_rows(a, x[3]);
        let dy = b.keep_segment_rows(dy, x[3]);
        let (rows, cols) = (b.dim(a, 0), b.dim(a, 1));
        let r = Response::of(b, a, x[3], self.eps);
        let gamma = b.each_row(x[1], a);

        let dyx = b.mul(dy, a);
        let p = b.mul(gamma, dyx);
        let p = b.sum_by_segment(p, x[3]);
        let pm = b.div(p, r.m);
        let pg = b.mul(p, r.g);
        let spread = b.row_sum(pg);
        let m2 = b.mul(r.m, r.m);
        let m2 = b.times(m2, cols as f32);
        let spread = b.div(spread, m2);
        let dg = b.sub(pm, spread);
        // dG / G, 0 if a channel is silent.
        let heard = b.is_positive(r.g);
        let one = b.fill_like(r.g, 1.0);
        let by = b.select(heard, r.g, one);
        let slope = b.div(dg, by);
        let slope = b.keep(heard, slope);

        let n = b.by_segment(r.n, x[3], rows);
        let slope = b.by_segment(slope, x[3], rows);
        let factor = b.mul(gamma, n);
        let factor = b.plus(factor, 1.0);
        let direct = b.mul(dy, factor);
        let through = b.mul(a, slope);
        let dx = b.add(direct, through);
        let dgamma = b.mul(dyx, n);
        let dgamma = b.column_sum(dgamma);
        let dbeta = b.column_sum(dy);
        Some(vec![b.as_like(dx, x[0]), dgamma, dbeta])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        16.0 * x[0].shape.elements() as f64
    }
}

/// A matrix with normalised rows, in core ops.
pub(super) struct Normalised {
    /// x * r, or (x - mean) * r
    pub(super) n: ValueId,
    /// 1 / root of the mean square, repeated along the row
    pub(super) r: ValueId,
}

impl Normalised {
    /// Normalises x: r = 1 / sqrt(mean(x^2) + eps), n = x r.
    pub(super) fn of(b: &mut Builder<'_>, x: ValueId, eps: f32) -> Normalised {
        let x2 = b.mul(x, x);
        let m = b.row_mean(x2);
        let m = b.plus(m, eps);
        let r = b.unary(UnaryKind::Rsqrt, m);
        Normalised { n: b.mul(x, r), r }
    }

    /// Normalises x - mean(x), as a layer norm does.
    pub(super) fn layer(b: &mut Builder<'_>, x: ValueId, eps: f32) -> Normalised {
        let mean = b.row_mean(x);
        let centred = b.sub(x, mean);
        Normalised::of(b, centred, eps)
    }

    /// n * mean(g n): the part of g that only changes the row's length.
    pub(super) fn along(&self, b: &mut Builder<'_>, g: ValueId) -> ValueId {
        let gn = b.mul(g, self.n);
        let mean = b.row_mean(gn);
        b.mul(self.n, mean)
    }

    /// r * (g - mean(g) - n * mean(g n)).
    pub(super) fn layer_grad(&self, b: &mut Builder<'_>, g: ValueId) -> ValueId {
        let mean = b.row_mean(g);
        let along = self.along(b, g);
        let d = b.sub(g, mean);
        let d = b.sub(d, along);
        b.mul(self.r, d)
    }
}

/// GRN's statistics of every segment, `[S, C]`, in core ops.
struct Response {
    /// G: root of the sum of squares
    g: ValueId,
    /// mean over channels of G, plus eps
    m: ValueId,
    /// G / M
    n: ValueId,
}

impl Response {
    fn of(b: &mut Builder<'_>, x: ValueId, segs: ValueId, eps: f32) -> Response {
        let x2 = b.mul(x, x);
        let sum = b.sum_by_segment(x2, segs);
        let g = b.unary(UnaryKind::Sqrt, sum);
        let m = b.row_mean(g);
        let m = b.plus(m, eps);
        Response { g, m, n: b.div(g, m) }
    }
}

impl Builder<'_> {
    /// Layer norm with affine parameters gamma, beta `[D]`.
    pub fn layer_norm(&mut self, x: ValueId, gamma: ValueId, beta: ValueId, eps: f32) -> ValueId {
        self.push1(LayerNorm { eps }, &[x, gamma, beta])
    }
    /// RMS norm with gamma `[D]`.
    pub fn rms_norm(&mut self, x: ValueId, gamma: ValueId, eps: f32) -> ValueId {
        self.push1(RmsNorm { eps }, &[x, gamma])
    }
    /// Global response normalisation over segments.
    pub fn grn(&mut self, x: ValueId, gamma: ValueId, beta: ValueId, segs: ValueId) -> ValueId {
        self.push1(Grn { eps: 1e-6 }, &[x, gamma, beta, segs])
    }
}
