//! Ops that know which clip a row belongs to.
//!
//! A segment table is i32 `[S+1]`: ascending row offsets, first 0. Segment s is the rows `[table[s], table[s+1])`, which
//! may be none; rows from `table[S]` on belong to no segment, and results there are zero unless an op says otherwise,
//! whatever the operands hold there.

use super::norm::Normalised;
use super::{Grads, OpDef, Vjp, arity, matrix, op, segments, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::TensorType;

fn table(t: TensorType, segs: usize, cols: usize) -> Result<(), String> {
    want(*t.shape == [segs, cols], format_args!("{t} is not a per-segment table [{segs},{cols}]"))
}

op! {
    /// The segment of every row, or -1: segments to i32 `[rows]`.
    SegmentIds = "segment_ids" {
        /// T
        rows: usize,
    }
}

impl OpDef for SegmentIds {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        segments(x[0])?;
        Ok(vec![TensorType::i32(&[self.rows])])
    }
}

op! {
    /// Every row's index within its segment (0 for rows of none): segments to f32 `[rows]`.
    SegmentPositions = "segment_positions" {
        /// T
        rows: usize,
    }
}

impl OpDef for SegmentPositions {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        segments(x[0])?;
        Ok(vec![TensorType::f32(&[self.rows])])
    }
}

op! {
    /// `y[t, :]` = `table[segment of t, :]`: table `[S, D]`, segments; y `[rows, D]`, zero for rows of no segment.
    SegmentBroadcast = "segment_broadcast" {
        /// T
        rows: usize,
    }
}

impl OpDef for SegmentBroadcast {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        let (rows, cols) = matrix(x[0])?;
        want(segments(x[1])? == rows, "one row per segment is needed")?;
        Ok(vec![x[0].with_shape(&[self.rows, cols])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        Ok(vec![v.dy0().map(|dy| b.push1(SegmentSum {}, &[dy, v.x[1]])), None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let ids = b.segment_ids(x[1], self.rows);
        Some(vec![b.gather(x[0], ids)])
    }
}

op! {
    /// `y[s, :]` = sum over the rows t of segment s of `x[t, :]`: x `[T, D]`, segments; y f32 `[S, D]`.
    SegmentSum = "segment_sum" {}
}

impl OpDef for SegmentSum {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        let (_, cols) = matrix(x[0])?;
        super::float(x[0])?;
        Ok(vec![TensorType::f32(&[segments(x[1])?, cols])])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let rows = b.dim(v.x[0], 0);
        let dx = v.dy0().map(|dy| b.segment_broadcast(dy, v.x[1], rows));
        Ok(vec![dx, None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        Some(vec![b.sum_by_segment(x[0], x[1])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        x[0].shape.elements() as f64
    }
}

op! {
    /// y = LN(x) * (1 + `scale[s, :]`) + `shift[s, :]` with s the row's segment and LN without affine (adaptive layer norm
    /// of DiT, arXiv 2212.09748). Operands (x `[T, D]`, shift `[S, D]`, scale `[S, D]`, segments).
    AdaLayerNorm = "ada_layer_norm" {
        /// added to the variance
        eps: f32,
    }
}

impl OpDef for AdaLayerNorm {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        let (_, cols) = matrix(x[0])?;
        let segs = segments(x[3])?;
        table(x[1], segs, cols)?;
        table(x[2], segs, cols)?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 4]) };
        let d = b.push(AdaLayerNormGrad { eps: self.eps }, &[v.x[0], v.x[2], dy, v.x[3]]);
        Ok(vec![Some(d[0]), Some(d[1]), Some(d[2]), None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let rows = b.dim(a, 0);
        let n = Normalised::layer(b, a, self.eps);
        let shift = b.by_segment(x[1], x[3], rows);
        let scale = b.by_segment(x[2], x[3], rows);
        let scale = b.plus(scale, 1.0);
        let y = b.mul(n.n, scale);
        let y = b.add(y, shift);
        let y = b.keep_segment_rows(y, x[3]);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        9.0 * x[0].shape.elements() as f64
    }
}

op! {
    /// (dx `[T, D]`, dshift `[S, D]`, dscale `[S, D]`) of [`AdaLayerNorm`] from (x, scale, dy, segments): as layer norm
    /// with g = dy * (1 + `scale[s]`); dshift = segment sum of dy, dscale = segment sum of dy * n. dx is zero in rows of no
    /// segment.
    AdaLayerNormGrad = "ada_layer_norm_grad" {
        /// added to the variance
        eps: f32,
    }
}

impl OpDef for AdaLayerNormGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        let (_, cols) = matrix(x[0])?;
        let segs = segments(x[3])?;
        table(x[1], segs, cols)?;
        want(x[0] == x[2], "x and dy differ")?;
        let d = TensorType::f32(&[segs, cols]);
        Ok(vec![x[0], d, d])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (a, dy) = (b.as_f32(x[0]), b.as_f32(x[2]));
        let a = b.keep_segment_rows(a, x[3]);
        let dy = b.keep_segment_rows(dy, x[3]);
        let rows = b.dim(a, 0);
        let n = Normalised::layer(b, a, self.eps);
        let scale = b.by_segment(x[1], x[3], rows);
        let scale = b.plus(scale, 1.0);
        let g = b.mul(dy, scale);
        let dx = n.layer_grad(b, g);
        let dshift = b.sum_by_segment(dy, x[3]);
        let weighted = b.mul(dy, n.n);
        let dscale = b.sum_by_segment(weighted, x[3]);
        Some(vec![b.as_like(dx, x[0]), dshift, dscale])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        22.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(2, 0)]
    }
}

op! {
    /// y = x + `gate[s, :]` * f: (x `[T, D]`, gate `[S, D]`, f `[T, D]`, segments). Rows of no segment are x.
    GatedResidual = "gated_residual" {}
}

impl OpDef for GatedResidual {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        let (_, cols) = matrix(x[0])?;
        table(x[1], segments(x[3])?, cols)?;
        want(x[0] == x[2], "x and f differ")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 4]) };
        if !v.need[1] {
            // Only the gate's gradient reads f: a frozen gate does not keep it for backward.
            let df = v.need[2].then(|| {
                let rows = b.dim(dy, 0);
                let gate = b.segment_broadcast(v.x[1], v.x[3], rows);
                let gate = b.as_like(gate, dy);
                b.mul(gate, dy)
            });
            return Ok(vec![Some(dy), None, df, None]);
        }
        let d = b.push(GatedResidualGrad {}, &[v.x[1], v.x[2], dy, v.x[3]]);
        Ok(vec![Some(dy), Some(d[1]), Some(d[0]), None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (a, f) = (b.as_f32(x[0]), b.as_f32(x[2]));
        let rows = b.dim(a, 0);
        let gate = b.by_segment(x[1], x[3], rows);
        let f = b.keep_segment_rows(f, x[3]);
        let added = b.mul(gate, f);
        let y = b.add(a, added);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0 || k == 2
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        2.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (2, 0)]
    }
}

op! {
    /// (df `[T, D]`, dgate `[S, D]`) of [`GatedResidual`] from (gate, f, dy, segments): df = `gate[s]` * dy,
    /// dgate = segment sum of dy * f. df is zero in rows of no segment (the gradient of x is dy itself, everywhere).
    GatedResidualGrad = "gated_residual_grad" {}
}

impl OpDef for GatedResidualGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        let (_, cols) = matrix(x[1])?;
        let segs = segments(x[3])?;
        table(x[0], segs, cols)?;
        want(x[1] == x[2], "f and dy differ")?;
        Ok(vec![x[1], TensorType::f32(&[segs, cols])])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (f, dy) = (b.as_f32(x[1]), b.as_f32(x[2]));
        let f = b.keep_segment_rows(f, x[3]);
        let dy = b.keep_segment_rows(dy, x[3]);
        let rows = b.dim(f, 0);
        let gate = b.by_segment(x[0], x[3], rows);
        let df = b.mul(gate, dy);
        let weighted = b.mul(dy, f);
        let dgate = b.sum_by_segment(weighted, x[3]);
        Some(vec![b.as_like(df, x[1]), dgate])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        3.0 * x[1].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(1, 0)]
    }
}

impl Builder<'_> {
    /// Returns every row's index within its segment, f32 `[rows]`.
    pub fn segment_positions(&mut self, segs: ValueId, rows: usize) -> ValueId {
        self.push1(SegmentPositions { rows }, &[segs])
    }
    /// Returns the row of a per-segment table for every row.
    pub fn segment_broadcast(&mut self, table: ValueId, segs: ValueId, rows: usize) -> ValueId {
        self.push1(SegmentBroadcast { rows }, &[table, segs])
    }
    /// LN(x) * (1 + scale) + shift, per segment.
    pub fn ada_layer_norm(
        &mut self,
        x: ValueId,
        shift: ValueId,
        scale: ValueId,
        segs: ValueId,
        eps: f32,
    ) -> ValueId {
        self.push1(AdaLayerNorm { eps }, &[x, shift, scale, segs])
    }
    /// x + gate * f, per segment.
    pub fn gated_residual(&mut self, x: ValueId, gate: ValueId, f: ValueId, segs: ValueId) -> ValueId {
        self.push1(GatedResidual {}, &[x, gate, f, segs])
    }
}
