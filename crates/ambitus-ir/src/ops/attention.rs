//! Rotary position embedding and attention over segments. No n x n matrix is ever a value.

use super::elementwise::{BinaryKind, UnaryKind};
use super::reduce::ReduceKind;
use super::{Grads, OpDef, Props, Vjp, arity, matrix, op, segments, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// Inverse frequencies f32 `[dim / 2]`: base^(-2i / dim) (RoFormer, arXiv 2104.09864).
    RotaryFrequencies = "rotary_frequencies" {
        /// rotated channels of a head
        dim: usize,
        /// largest period / 2 pi
        base: f64,
    }
}

impl OpDef for RotaryFrequencies {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 0)?;
        want(self.dim > 0 && self.dim.is_multiple_of(2), "an even number of channels is needed")?;
        Ok(vec![TensorType::f32(&[self.dim / 2])])
    }
}

op! {
    /// Rotates pairs of channels of the first `rotated` heads of x `[T, heads * head_dim]` by position * frequency,
    /// position = the row's index within its segment. Operands (x, frequencies `[head_dim / 2]`, segments).
    /// A fourth operand, positions i32 `[T]`, takes the place of that index: where rows go on from earlier ones.
    /// (a, b) becomes (a cos - b sin, b cos + a sin); `inverse` turns the angle's sign. Pairs are (2i, 2i+1) when
    /// `interleaved` (GPT-J), else (i, i + head_dim/2) (Llama). Rows of no segment are zero, in every head.
    Rotary = "rotary" {
        /// channels of a head
        head_dim: usize,
        /// heads that are rotated; the others pass through
        rotated: usize,
        /// pairs are neighbours
        interleaved: bool,
        /// rotate back
        inverse: bool,
    }
}

impl OpDef for Rotary {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, if x.len() == 4 { 4 } else { 3 })?;
        let (rows, cols) = matrix(x[0])?;
        want(self.head_dim > 0 && self.head_dim.is_multiple_of(2), "channels of a head do not pair")?;
        want(cols.is_multiple_of(self.head_dim), "channels are not whole heads")?;
        want(self.rotated * self.head_dim <= cols, "more heads are rotated than there are")?;
        want(*x[1].shape == [self.head_dim / 2], "one frequency per pair is needed")?;
        segments(x[2])?;
        let places = x.get(3).is_none_or(|t| t.dtype == DType::I32 && *t.shape == [rows]);
        want(places, "positions are i32[T]")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        // A rotation is orthogonal: its gradient rotates back, and keeps nothing.
        let op = Rotary { inverse: !self.inverse, ..*self };
        let mut grads = vec![None; v.x.len()];
        grads[0] = v.dy0().map(|dy| {
            let mut x = v.x.to_vec();
            x[0] = dy;
            b.push1(op, &x)
        });
        Ok(grads)
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let all = b.as_f32(x[0]);
        let (rows, cols) = (b.dim(all, 0), b.dim(all, 1));
        let (half, width) = (self.head_dim / 2, self.rotated * self.head_dim);

        let freqs = b.as_f32(x[1]);
        let freqs = b.reshape(freqs, &[1, half]);
        let freqs = b.broadcast(freqs, &[rows, half]);
        let positions = match x.get(3) {
            Some(&at) => {
                let at = b.as_f32(at);
                let at = b.reshape(at, &[rows, 1]);
                b.broadcast(at, &[rows, half])
            }
            None => b.positions_like(x[2], freqs),
        };
        let angle = b.mul(positions, freqs);
        let (cos, sin) = (b.unary(UnaryKind::Cos, angle), b.unary(UnaryKind::Sin, angle));
        let sin = if self.inverse { b.unary(UnaryKind::Neg, sin) } else { sin };

        // [T, heads, ..] with the two of a pair along `axis`.
        let axis = if self.interleaved { 3 } else { 2 };
        let (pairs, one) = if self.interleaved {
            ([rows, self.rotated, half, 2], [rows, self.rotated, half, 1])
        } else {
            ([rows, self.rotated, 2, half], [rows, self.rotated, 1, half])
        };
        let mut every_head = |t: ValueId| {
            let t = b.reshape(t, &[rows, 1, one[2], one[3]]);
            b.broadcast(t, &one)
        };
        let (cos, sin) = (every_head(cos), every_head(sin));
        let turned = b.slice(all, 1, 0, width);
        let turned = b.reshape(turned, &pairs);
        let (p, q) = (b.slice(turned, axis, 0, 1), b.slice(turned, axis, 1, 1));
        let (pc, qs) = (b.mul(p, cos), b.mul(q, sin));
        let (qc, ps) = (b.mul(q, cos), b.mul(p, sin));
        let (left, right) = (b.sub(pc, qs), b.add(qc, ps));
        let turned = b.concat(&[left, right], axis);
        let mut parts = vec![b.reshape(turned, &[rows, width])];
        if width < cols {
            parts.push(b.slice(all, 1, width, cols - width));
        }
        let y = b.concat(&parts, 1);
        let y = b.keep_segment_rows(y, x[2]);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        6.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// o = softmax(scale * q k^T) v within each segment, head by head.
    ///
    /// Operands (q `[Tq, heads * head_dim]`, k and v `[Tk, kv_heads * head_dim]`, query segments, key segments); results
    /// (o like q, lse f32 `[Tq, heads]`: log-sum-exp of the scaled scores). Query segment s sees key segment s; with
    /// `causal`, query i sees keys 0..=i. Head h reads key head h / (heads / kv_heads). Queries that see no key give 0, in o
    /// and in lse.
    Attention = "attention" {
        /// query heads
        heads: usize,
        /// key and value heads
        kv_heads: usize,
        /// channels of a head
        head_dim: usize,
        /// a query sees no later key
        causal: bool,
        /// factor on scores
        scale: f32,
    }
}

impl Attention {
    fn check(&self, x: &[TensorType]) -> Result<usize, String> {
        let (rows, cols) = matrix(x[0])?;
        let (_, kcols) = matrix(x[1])?;
        want(cols == self.heads * self.head_dim, "q is not heads * head_dim wide")?;
        want(kcols == self.kv_heads * self.head_dim, "k is not kv_heads * head_dim wide")?;
        want(x[1] == x[2] && x[0].dtype == x[1].dtype, "q, k and v differ in type, or k and v in shape")?;
        want(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "heads do not group")?;
        Ok(rows)
    }
}

impl OpDef for Attention {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 5)?;
        let rows = self.check(x)?;
        want(segments(x[3])? == segments(x[4])?, "segment counts of queries and keys differ")?;
        Ok(vec![x[0], TensorType::new(DType::F32, &[rows, self.heads])])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 5]) };
        let op = AttentionGrad {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            causal: self.causal,
            scale: self.scale,
        };
        let x = [v.x[0], v.x[1], v.x[2], v.y[0], v.y[1], dy, v.x[3], v.x[4]];
        let d = b.push(op, &x);
        Ok(vec![Some(d[0]), Some(d[1]), Some(d[2]), None, None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let q = split_heads(b, x[0], self.heads);
        let k = split_key_heads(b, x[1], x[4], self.kv_heads, self.heads);
        let v = split_key_heads(b, x[2], x[4], self.kv_heads, self.heads);
        let scores = b.matmul(q, k, false, true);
        let scores = b.times(scores, self.scale);
        let seen = visible(b, scores, x[3], x[4], self.causal);
        let softmax = Softmax::of(b, scores, seen);
        let o = b.matmul(softmax.e, v, false, false);
        let o = softmax.divided(b, o);
        let lse = softmax.lse(b);
        Some(vec![b.as_like(o, x[0]), lse])
    }

    fn props(&self) -> Props {
        Props::ATTENTION
    }

    fn pairs_rows(&self) -> bool {
        true
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    /// Two products over the pairs.
    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        4.0 * pairs(self.causal, x)
    }
}

op! {
    /// (dq, dk, dv) of [`Attention`] from (q, k, v, o, lse, do, query segments, key segments). With p = exp(s - lse):
    /// dv = p^T do, ds = p * (do v^T - rowsum(do * o)), dq = scale ds k, dk = scale ds^T q (FlashAttention,
    /// arXiv 2205.14135). Heads that share a key head are summed in order. Rows of no segment are zero.
    AttentionGrad = "attention_grad" {
        /// query heads
        heads: usize,
        /// key and value heads
        kv_heads: usize,
        /// channels of a head
        head_dim: usize,
        /// a query sees no later key
        causal: bool,
        /// factor on scores
        scale: f32,
    }
}

impl OpDef for AttentionGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 8)?;
        let Self { heads, kv_heads, head_dim, causal, scale } = *self;
        let rows = Attention { heads, kv_heads, head_dim, causal, scale }.check(x)?;
        want(x[3] == x[0] && x[5] == x[0], "o, do and q differ")?;
        want(*x[4].shape == [rows, heads], "lse is not [Tq, heads]")?;
        want(segments(x[6])? == segments(x[7])?, "segment counts of queries and keys differ")?;
        Ok(vec![x[0], x[1], x[2]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        // Sums over queries follow: rows of no segment must not hold what is not finite.
        let q = b.keep_segment_rows(x[0], x[6]);
        let q = split_heads(b, q, self.heads);
        let k = split_key_heads(b, x[1], x[7], self.kv_heads, self.heads);
        let v = split_key_heads(b, x[2], x[7], self.kv_heads, self.heads);
        let o = split_heads(b, x[3], self.heads);
        let lse = split_heads(b, x[4], self.heads);
        let d_o = b.keep_segment_rows(x[5], x[6]);
        let d_o = split_heads(b, d_o, self.heads);

        let scores = b.matmul(q, k, false, true);
        let scores = b.times(scores, self.scale);
        let seen = visible(b, scores, x[6], x[7], self.causal);
        let p = probabilities(b, scores, lse, seen);

        let dp = b.matmul(d_o, v, false, true);
        let ds = score_gradients(b, [p, dp], [o, d_o], self.scale);
        let dq = b.matmul(ds, k, false, false);
        let dq = join_heads(b, dq);
        let dk = b.matmul(ds, q, true, false);
        let dk = join_key_heads(b, dk, self.kv_heads);
        let dv = b.matmul(p, d_o, true, false);
        let dv = join_key_heads(b, dv, self.kv_heads);
        Some(vec![b.as_like(dq, x[0]), b.as_like(dk, x[1]), b.as_like(dv, x[2])])
    }

    fn props(&self) -> Props {
        Props::ATTENTION
    }

    fn pairs_rows(&self) -> bool {
        true
    }

    /// Five products over the pairs.
    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        10.0 * pairs(self.causal, x)
    }
}

/// A softmax over what queries see, `[heads, Tq, Tk]`, before it is divided by its sums.
pub(super) struct Softmax {
    /// Exponentials, zero where a query does not see.
    pub e: ValueId,
    /// The largest score, the sum (1 of none) and whether there is one: `[heads, Tq, 1]`.
    high: ValueId,
    by: ValueId,
    any: ValueId,
}

impl Softmax {
    pub(super) fn of(b: &mut Builder<'_>, scores: ValueId, seen: ValueId) -> Softmax {
        let lowest = b.fill_like(scores, f32::MIN);
        let shape = b.ty(scores).shape;
        let high = b.select(seen, scores, lowest);
        let high = b.reduce(ReduceKind::Max, high, 2);
        let all_high = b.broadcast(high, &shape);
        let z = b.sub(scores, all_high);
        let z = b.keep(seen, z);
        let e = b.unary(UnaryKind::Exp, z);
        let e = b.keep(seen, e);
        // A query that sees a key has a sum of at least 1, from its highest score.
        let sum = b.reduce(ReduceKind::Sum, e, 2);
        let any = b.is_positive(sum);
        let one = b.fill_like(sum, 1.0);
        let by = b.select(any, sum, one);
        Softmax { e, high, by, any }
    }

    /// Sums of values `[heads, Tq, d]`, weighted by `e`, as means `[Tq, heads * d]`.
    pub(super) fn divided(&self, b: &mut Builder<'_>, o: ValueId) -> ValueId {
        let dims = b.ty(o).shape;
        let all_by = b.broadcast(self.by, &dims);
        let o = b.div(o, all_by);
        join_heads(b, o)
    }

    /// The logarithms of the sums `[Tq, heads]`, 0 where a query sees nothing.
    pub(super) fn lse(&self, b: &mut Builder<'_>) -> ValueId {
        let lse = b.unary(UnaryKind::Log, self.by);
        let lse = b.add(self.high, lse);
        let lse = b.keep(self.any, lse);
        join_heads(b, lse)
    }
}

/// exp(scores - lse) `[heads, Tq, Tk]`, zero where a query does not see.
pub(super) fn probabilities(b: &mut Builder<'_>, scores: ValueId, lse: ValueId, seen: ValueId) -> ValueId {
    let shape = b.ty(scores).shape;
    let lse = b.broadcast(lse, &shape);
    let z = b.sub(scores, lse);
    let z = b.keep(seen, z);
    let p = b.unary(UnaryKind::Exp, z);
    b.keep(seen, p)
}

/// scale * p * (dp - rowsum(do * o)): p and dp `[heads, Tq, Tk]`, o and do `[heads, Tq, d]`.
pub(super) fn score_gradients(
    b: &mut Builder<'_>,
    [p, dp]: [ValueId; 2],
    [o, d_o]: [ValueId; 2],
    scale: f32,
) -> ValueId {
    let shape = b.ty(p).shape;
    let od = b.mul(d_o, o);
    let delta = b.reduce(ReduceKind::Sum, od, 2);
    let delta = b.broadcast(delta, &shape);
    let ds = b.sub(dp, delta);
    let ds = b.mul(p, ds);
    b.times(ds, scale)
}

/// Returns the pairs of an element of a query and a key that it sees, of one segment over all rows: the most that there may be.
pub(super) fn pairs(causal: bool, x: &[TensorType]) -> f64 {
    let all = x[0].shape.elements() as f64 * x[1].shape[0] as f64;
    if causal { all / 2.0 } else { all }
}

/// `[T, heads * d]` as f32 `[heads, T, d]`.
pub(super) fn split_heads(b: &mut Builder<'_>, x: ValueId, heads: usize) -> ValueId {
    let x = b.as_f32(x);
    let (rows, cols) = (b.dim(x, 0), b.dim(x, 1));
    let x = b.reshape(x, &[rows, heads, cols / heads]);
    b.permute(x, &[1, 0, 2])
}

/// `[heads, T, d]` as `[T, heads * d]`.
pub(super) fn join_heads(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape;
    let x = b.permute(x, &[1, 0, 2]);
    b.reshape(x, &[shape[1], shape[0] * shape[2]])
}

/// Keys or values `[T, kv_heads * d]`, zero in rows of no segment, as f32 `[heads, T, d]`: repeated for the query heads
/// that share them.
pub(super) fn split_key_heads(
    b: &mut Builder<'_>,
    x: ValueId,
    segs: ValueId,
    kv_heads: usize,
    heads: usize,
) -> ValueId {
    let x = b.keep_segment_rows(x, segs);
    let x = split_heads(b, x, kv_heads);
    let shape = b.ty(x).shape;
    let x = b.reshape(x, &[kv_heads, 1, shape[1], shape[2]]);
    let x = b.broadcast(x, &[kv_heads, heads / kv_heads, shape[1], shape[2]]);
    b.reshape(x, &[heads, shape[1], shape[2]])
}

/// `[heads, T, d]` summed over the query heads that share a key head, as `[T, kv_heads * d]`.
fn join_key_heads(b: &mut Builder<'_>, x: ValueId, kv_heads: usize) -> ValueId {
    let shape = b.ty(x).shape;
    let x = b.reshape(x, &[kv_heads, shape[0] / kv_heads, shape[1], shape[2]]);
    let x = b.reduce(ReduceKind::Sum, x, 1);
    let x = b.reshape(x, &[kv_heads, shape[1], shape[2]]);
    join_heads(b, x)
}

/// 1 where a query sees a key, like the scores `[heads, Tq, Tk]`.
pub(super) fn visible(
    b: &mut Builder<'_>,
    scores: ValueId,
    qs: ValueId,
    ks: ValueId,
    causal: bool,
) -> ValueId {
    let shape = b.ty(scores).shape;
    let grid = [shape[1], shape[2]];
    let mut along = |of: &dyn Fn(&mut Builder<'_>, ValueId, usize) -> ValueId| {
        let q = of(b, qs, grid[0]);
        let q = b.as_f32(q);
        let q = b.reshape(q, &[grid[0], 1]);
        let k = of(b, ks, grid[1]);
        let k = b.as_f32(k);
        let k = b.reshape(k, &[1, grid[1]]);
        (b.broadcast(q, &grid), b.broadcast(k, &grid))
    };
    let (q, k) = along(&|b, segs, rows| b.segment_ids(segs, rows));
    let (qp, kp) = along(&|b, segs, rows| b.segment_positions(segs, rows));
    let same = b.binary(BinaryKind::Equal, q, k);
    let number = b.plus(q, 1.0);
    let some = b.is_positive(number);
    let mut seen = b.mul(same, some);
    if causal {
        let later = b.binary(BinaryKind::Less, qp, kp);
        let zero = b.fill_like(later, 0.0);
        seen = b.select(later, zero, seen);
    }
    let seen = b.reshape(seen, &[1, grid[0], grid[1]]);
    b.broadcast(seen, &shape)
}

impl Builder<'_> {
    /// Returns the inverse frequencies `[dim / 2]`.
    pub fn rotary_frequencies(&mut self, dim: usize, base: f64) -> ValueId {
        self.push1(RotaryFrequencies { dim, base }, &[])
    }

    /// Self-attention over one segment table; returns o.
    pub fn self_attention(
        &mut self,
        op: Attention,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        segs: ValueId,
    ) -> ValueId {
        self.push(op, &[q, k, v, segs, segs])[0]
    }
}
