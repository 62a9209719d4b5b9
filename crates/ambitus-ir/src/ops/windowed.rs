//! Attention with keys and values of its own for each small distance of two rows.

use super::attention::{
    Softmax, join_heads, pairs, probabilities, score_gradients, split_heads, split_key_heads, visible,
};
use super::elementwise::BinaryKind;
use super::reduce::ReduceKind;
use super::{Grads, OpDef, Props, Vjp, arity, matrix, op, segments, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// Self-attention within each segment, head by head, that also knows how far a key is from its query, up to W rows (Shaw,
    /// Uszkoreit and Vaswani, arXiv 1803.02155; as VITS' text encoder has it, with tables that all heads share):
    ///
    /// ```text
    /// s[t, u] = q[t] . (k[u] + rel_k[u - t + W]) / sqrt(d)      p = softmax over u of s      rel_k, rel_v: 0 where |u - t| > W
    /// o[t] = sum over u of p[t, u] (v[u] + rel_v[u - t + W])
    /// ```
    ///
    /// Operands (q, k and v `[T, heads * d]`, rel_k and rel_v f32 `[2W + 1, d]`, segments); results (o like q, lse f32 `[T, heads]`:
    /// log-sum-exp of the scores). Rows of no segment are zero in both.
    WindowedAttention = "windowed_attention" {
        /// heads
        heads: usize,
    }
}

/// 1 / sqrt(d), of heads of q `[T, heads * d]`.
pub fn scale(heads: usize, q: TensorType) -> f32 {
    1.0 / ((q.shape.cols() / heads.max(1)) as f32).sqrt()
}

/// Checks (q, k, v, rel_k, rel_v) and returns the rows.
fn check(heads: usize, x: &[TensorType]) -> Result<usize, String> {
    let (rows, cols) = matrix(x[0])?;
    want(heads > 0 && cols > 0 && cols.is_multiple_of(heads), "channels are not whole heads")?;
    super::alike(&x[..3])?;
    want(x[1] == x[0] && x[2] == x[0], "q, k and v differ")?;
    let (near, width) = matrix(x[3])?;
    let table = TensorType::f32(&[near, cols / heads]);
    want(near % 2 == 1 && width == cols / heads, "rel_k is not [2W + 1, d]")?;
    want(x[3] == table && x[4] == table, format_args!("rel_k and rel_v are not {table}"))?;
    Ok(rows)
}

impl OpDef for WindowedAttention {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 6)?;
        let rows = check(self.heads, x)?;
        segments(x[5])?;
        Ok(vec![x[0], TensorType::f32(&[rows, self.heads])])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 6]) };
        let x = [v.x[0], v.x[1], v.x[2], v.x[3], v.x[4], v.y[0], v.y[1], dy, v.x[5]];
        let d = b.push(WindowedAttentionGrad { heads: self.heads }, &x);
        Ok(d.into_iter().map(Some).chain([None]).collect())
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (heads, segs) = (self.heads, x[5]);
        let q = split_heads(b, x[0], heads);
        let [k, v] = [x[1], x[2]].map(|x| split_key_heads(b, x, segs, heads, heads));
        let near = Near::of(b, q, x[3]);
        let [rel_k, rel_v] = [x[3], x[4]].map(|x| each_head(b, x, heads));
        let scores = scores(b, &near, [q, k, rel_k], scale(heads, b.ty(x[0])));
        let seen = visible(b, scores, segs, segs, false);
        let softmax = Softmax::of(b, scores, seen);
        let o = b.matmul(softmax.e, v, false, false);
        let by_distance = near.taken(b, softmax.e);
        let more = b.matmul(by_distance, rel_v, false, false);
        let o = b.add(o, more);
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

    /// The tables are few rows, next to no work.
    fn narrows(&self, k: usize) -> bool {
        k < 3
    }

    /// Two products over the pairs.
    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        4.0 * pairs(false, x)
    }
}

op! {
    /// (dq, dk, dv like q, drel_k, drel_v f32 `[2W + 1, d]`) of [`WindowedAttention`] from (q, k, v, rel_k, rel_v, o, lse, do,
    /// segments). With p = exp(s - lse) and ds = p * (do . (v + rel_v) - rowsum(do * o)) / sqrt(d):
    ///
    /// ```text
    /// dq[t] = sum over u of ds[t, u] (k[u] + rel_k[u - t + W])     dk[u] = sum over t of ds[t, u] q[t]
    /// dv[u] = sum over t of p[t, u] do[t]                          drel_k[r] = sum over heads and t of ds[t, t + r - W] q[t]
    /// drel_v[r] = sum over heads and t of p[t, t + r - W] do[t]
    /// ```
    ///
    /// Rows of no segment are zero, and add nothing.
    WindowedAttentionGrad = "windowed_attention_grad" {
        /// heads
        heads: usize,
    }
}

impl OpDef for WindowedAttentionGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 9)?;
        let rows = check(self.heads, x)?;
        want(x[5] == x[0] && x[7] == x[0], "o, do and q differ")?;
        want(x[6] == TensorType::f32(&[rows, self.heads]), "lse is not f32[T, heads]")?;
        segments(x[8])?;
        Ok(vec![x[0], x[1], x[2], x[3], x[4]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (heads, segs, by) = (self.heads, x[8], scale(self.heads, b.ty(x[0])));
        // Sums over queries follow: rows of no segment must not hold what is not finite.
        let [q, d_o] = [x[0], x[7]].map(|x| {
            let x = b.keep_segment_rows(x, segs);
            split_heads(b, x, heads)
        });
        let [k, v] = [x[1], x[2]].map(|x| split_key_heads(b, x, segs, heads, heads));
        let near = Near::of(b, q, x[3]);
        let [rel_k, rel_v] = [x[3], x[4]].map(|x| each_head(b, x, heads));
        let [o, lse] = [x[5], x[6]].map(|x| split_heads(b, x, heads));

        let scores = scores(b, &near, [q, k, rel_k], by);
        let seen = visible(b, scores, segs, segs, false);
        let p = probabilities(b, scores, lse, seen);
        let dp = products(b, &near, [d_o, v, rel_v]);
        let ds = score_gradients(b, [p, dp], [o, d_o], by);
        let [p_near, ds_near] = [p, ds].map(|x| near.taken(b, x));

        let dq = b.matmul(ds, k, false, false);
        let more = b.matmul(ds_near, rel_k, false, false);
        let dq = b.add(dq, more);
        let dk = b.matmul(ds, q, true, false);
        let dv = b.matmul(p, d_o, true, false);
        let mut results = Vec::new();
        for (d, x) in [dq, dk, dv].into_iter().zip(x) {
            let d = join_heads(b, d);
            results.push(b.as_like(d, *x));
        }
        for (left, right, like) in [(ds_near, q, x[3]), (p_near, d_o, x[4])] {
            let each = b.matmul(left, right, true, false);
            let all = b.reduce(ReduceKind::Sum, each, 0);
            let shape = b.ty(like).shape;
            results.push(b.reshape(all, &shape));
        }
        Some(results)
    }

    fn props(&self) -> Props {
        Props::ATTENTION
    }

    fn pairs_rows(&self) -> bool {
        true
    }

    /// What has the type of q.
    fn narrows(&self, k: usize) -> bool {
        k < 3 || k == 5 || k == 7
    }

    /// Five products over the pairs.
    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        10.0 * pairs(false, x)
    }
}

/// A table `[2W + 1, d]` for each head.
fn each_head(b: &mut Builder<'_>, table: ValueId, heads: usize) -> ValueId {
    let shape = b.ty(table).shape;
    let table = b.reshape(table, &[1, shape[0], shape[1]]);
    b.broadcast(table, &[heads, shape[0], shape[1]])
}

/// Rows x `[heads, T, d]` times keys or values y, and those of their distance: `[heads, T, T]`.
fn products(b: &mut Builder<'_>, near: &Near, [x, y, table]: [ValueId; 3]) -> ValueId {
    let all = b.matmul(x, y, false, true);
    let more = b.matmul(x, table, false, true);
    let more = near.spread(b, more);
    b.add(all, more)
}

fn scores(b: &mut Builder<'_>, near: &Near, x: [ValueId; 3], by: f32) -> ValueId {
    let scores = products(b, near, x);
    b.times(scores, by)
}

/// Which pairs of rows have each distance: for r in 0 .. 2W + 1, 1 in `[heads, T, T]` where u - t = r - W.
struct Near(Vec<ValueId>);

impl Near {
    /// Of x `[heads, T, d]` and a table `[2W + 1, d]`.
    fn of(b: &mut Builder<'_>, x: ValueId, table: ValueId) -> Near {
        let shape = b.ty(x).shape;
        let (heads, rows, near) = (shape[0], shape[1], b.dim(table, 0));
        let [t, u] = [1, 2].map(|axis| b.iota(DType::F32, &[1, rows, rows], axis));
        let apart = b.sub(u, t);
        let of = |r: usize| {
            let distance = b.fill_like(apart, r as f32 - (near / 2) as f32);
            let is = b.binary(BinaryKind::Equal, apart, distance);
            b.broadcast(is, &[heads, rows, rows])
        };
        Near((0..near).map(of).collect())
    }

    /// x `[heads, T, 2W + 1]` in the places of its distances, `[heads, T, T]`; 0 elsewhere.
    fn spread(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        let shape = b.ty(self.0[0]).shape;
        let mut all = b.fill_like(self.0[0], 0.0);
        for (r, is) in self.0.iter().enumerate() {
            let one = b.slice(x, 2, r, 1);
            let one = b.broadcast(one, &shape);
            all = b.select(*is, one, all);
        }
        all
    }

    /// What x `[heads, T, T]` has in the places of each distance, `[heads, T, 2W + 1]`; 0 where there is none.
    fn taken(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        let one = |is: &ValueId| {
            let here = b.keep(*is, x);
            b.reduce(ReduceKind::Sum, here, 2)
        };
        let all: Vec<ValueId> = self.0.iter().map(one).collect();
        b.concat(&all, 2)
    }
}

impl Builder<'_> {
    /// Self-attention that knows distances of up to W rows, with tables `[2W + 1, d]` of keys and values; see
    /// [`WindowedAttention`]. Returns o.
    pub fn windowed_attention(
        &mut self,
        heads: usize,
        [q, k, v]: [ValueId; 3],
        [rel_k, rel_v]: [ValueId; 2],
        segs: ValueId,
    ) -> ValueId {
        self.push(WindowedAttention { heads }, &[q, k, v, rel_k, rel_v, segs])[0]
    }
}
