//! One-dimensional convolution along the rows of each segment, zero beyond the segment's ends.

use super::segment::SegmentSum;
use super::{Grads, Op, OpDef, Props, Vjp, arity, matrix, op, scalar, segments, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::TensorType;

op! {
    /// `y[t, o]` = `bias[o]` + sum over c, k of `w[o, c, k]` * `x[t + k - pad, group(o) * Cin/groups + c]`, stride 1.
    /// Operands (x `[T, Cin]`, w `[Cout, Cin/groups, K]` as PyTorch stores it, bias `[Cout]`, segments); y `[T, Cout]`.
    /// Rows of no segment are zero.
    Conv1d = "conv1d" {
        /// channel groups
        groups: usize,
        /// zeros before the first row; K - 1 - pad after the last
        pad: usize,
    }
}

fn check_weight(w: TensorType, cin: usize, groups: usize) -> Result<(), String> {
    want(w.shape.len() == 3, "the weight is not [Cout, Cin/groups, K]")?;
    let ok = groups > 0
        && cin.is_multiple_of(groups)
        && w.shape[0].is_multiple_of(groups)
        && w.shape[1] == cin / groups;
    want(ok, "channels and groups do not fit the weight")
}

impl OpDef for Conv1d {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 4)?;
        let (rows, cin) = matrix(x[0])?;
        check_weight(x[1], cin, self.groups)?;
        super::alike(&x[..2])?;
        want(self.pad < x[1].shape[2], "more padding than taps")?;
        want(*x[2].shape == [x[1].shape[0]], "the bias is not [Cout]")?;
        segments(x[3])?;
        Ok(vec![x[0].with_shape(&[rows, x[1].shape[0]])])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 4]) };
        let (groups, pad) = (self.groups, self.pad);
        let dx = v.need[0].then(|| b.push1(Conv1dInputGrad { groups, pad }, &[v.x[1], dy, v.x[3]]));
        let taps = b.dim(v.x[1], 2);
        let dw = v.need[1].then(|| {
            let op = Conv1dWeightGrad { groups, pad, taps, acc: false };
            b.push1(op, &[v.x[0], dy, v.x[3]])
        });
        // Rows of no segment have output 0 whatever the bias.
        let db = v.need[2].then(|| {
            let by_segment = b.push1(SegmentSum {}, &[dy, v.x[3]]);
            b.column_sum(by_segment)
        });
        Ok(vec![dx, dw, db, None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let k = b.dim(x[1], 2);
        let taps = taps(b, x[0], x[3], self.groups, k, |k| k - self.pad as i64);
        // [Cout, c, K] to [groups, K * c, Cout / groups], the order of the taps' channels.
        let w = split_weight(b, x[1], self.groups);
        let w = b.permute(w, &[0, 3, 2, 1]);
        let shape = b.ty(w).shape;
        let w = b.reshape(w, &[self.groups, shape[1] * shape[2], shape[3]]);
        let y = b.matmul(taps, w, false, false);
        let y = join_groups(b, y);
        let bias = b.each_row(x[2], y);
        let y = b.add(y, bias);
        let y = b.keep_segment_rows(y, x[3]);
        Some(vec![b.as_like(y, x[0])])
    }

    fn props(&self) -> Props {
        Props::CONVOLUTION
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        2.0 * x[0].shape[0] as f64 * x[1].shape.elements() as f64
    }
}

op! {
    /// dx `[T, Cin]` of [`Conv1d`] from (w, dy `[T, Cout]`, segments):
    /// `dx[t, c]` = sum over o, k of `w[o, c, k]` * `dy[t - k + pad, o]`, o in the group of c. Rows of no segment are zero.
    Conv1dInputGrad = "conv1d_input_grad" {
        /// channel groups
        groups: usize,
        /// zeros before the first row in the forward pass
        pad: usize,
    }
}

impl OpDef for Conv1dInputGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        let (rows, cout) = matrix(x[1])?;
        let cin = x[0].shape.get(1).map_or(0, |c| c * self.groups);
        check_weight(x[0], cin, self.groups)?;
        super::alike(&x[..2])?;
        want(x[0].shape[0] == cout, "dy is not [T, Cout]")?;
        segments(x[2])?;
        Ok(vec![x[1].with_shape(&[rows, cin])])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let k = b.dim(x[0], 2);
        let taps = taps(b, x[1], x[2], self.groups, k, |k| self.pad as i64 - k);
        // [Cout, c, K] to [groups, K * Cout / groups, c].
        let w = split_weight(b, x[0], self.groups);
        let w = b.permute(w, &[0, 3, 1, 2]);
        let shape = b.ty(w).shape;
        let w = b.reshape(w, &[self.groups, shape[1] * shape[2], shape[3]]);
        let dx = b.matmul(taps, w, false, false);
        let dx = join_groups(b, dx);
        Some(vec![b.as_like(dx, x[1])])
    }

    fn props(&self) -> Props {
        Props::CONVOLUTION
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        2.0 * x[1].shape[0] as f64 * x[0].shape.elements() as f64
    }
}

op! {
    /// dw f32 `[Cout, Cin/groups, K]` of [`Conv1d`] from (x, dy, segments):
    /// `dw[o, c, k]` = sum over t of `dy[t, o]` * `x[t + k - pad, group(o) * Cin/groups + c]`, within segments.
    Conv1dWeightGrad = "conv1d_weight_grad" {
        /// channel groups
        groups: usize,
        /// zeros before the first row in the forward pass
        pad: usize,
        /// K
        taps: usize,
        /// also takes (accumulator, beta `[1]`): dw = beta * accumulator + sum
        acc: bool,
    }
}

impl OpDef for Conv1dWeightGrad {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, if self.acc { 5 } else { 3 })?;
        let (rows, cin) = matrix(x[0])?;
        let (rows_y, cout) = matrix(x[1])?;
        want(rows == rows_y, "x and dy differ in rows")?;
        want(self.groups > 0 && cin.is_multiple_of(self.groups), "channels do not group")?;
        segments(x[2])?;
        super::alike(&x[..2])?;
        let dw = TensorType::f32(&[cout, cin / self.groups, self.taps]);
        if self.acc {
            want(x[3] == dw, "accumulator differs from the result")?;
            scalar(x[4])?;
        }
        Ok(vec![dw])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (cin, cout) = (b.dim(x[0], 1), b.dim(x[1], 1));
        let (c, out) = (cin / self.groups, cout / self.groups);
        let taps = taps(b, x[0], x[2], self.groups, self.taps, |k| k - self.pad as i64);
        let dy = b.keep_segment_rows(x[1], x[2]);
        let dy = split_groups(b, dy, self.groups);
        // [groups, K * c, Cout / groups]
        let dw = b.matmul(taps, dy, true, false);
        let dw = b.reshape(dw, &[self.groups, self.taps, c, out]);
        let dw = b.permute(dw, &[0, 3, 2, 1]);
        let dw = b.reshape(dw, &[cout, c, self.taps]);
        let dw = if self.acc { b.accumulated(dw, x[3], x[4]) } else { dw };
        Some(vec![dw])
    }

    fn props(&self) -> Props {
        Props::CONVOLUTION
    }

    fn flops(&self, x: &[TensorType], y: &[TensorType]) -> f64 {
        2.0 * x[0].shape[0] as f64 * y[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        if self.acc { vec![(3, 0)] } else { Vec::new() }
    }

    fn accumulating(&self, _: usize) -> Option<Op> {
        (!self.acc).then(|| Conv1dWeightGrad { acc: true, ..*self }.into())
    }
}

/// x `[T, groups * c]` as f32 `[groups, T, c]`.
fn split_groups(b: &mut Builder<'_>, x: ValueId, groups: usize) -> ValueId {
    let x = b.as_f32(x);
    let (rows, cols) = (b.dim(x, 0), b.dim(x, 1));
    let x = b.reshape(x, &[rows, groups, cols / groups]);
    b.permute(x, &[1, 0, 2])
}

/// `[groups, T, c]` as `[T, groups * c]`.
fn join_groups(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape;
    let x = b.permute(x, &[1, 0, 2]);
    b.reshape(x, &[shape[1], shape[0] * shape[2]])
}

/// w `[Cout, c, K]` as f32 `[groups, Cout / groups, c, K]`.
fn split_weight(b: &mut Builder<'_>, w: ValueId, groups: usize) -> ValueId {
    let w = b.as_f32(w);
    let s = b.ty(w).shape;
    b.reshape(w, &[groups, s[0] / groups, s[1], s[2]])
}

/// Returns what each row's taps read of x `[T, groups * c]`: `[groups, T, K * c]`, tap k from the row `shift(k)` further in the
/// same segment, zero where there is none.
fn taps(
    b: &mut Builder<'_>,
    x: ValueId,
    segs: ValueId,
    groups: usize,
    count: usize,
    shift: impl Fn(i64) -> i64,
) -> ValueId {
    let rows = b.dim(x, 0);
    let mut parts = Vec::with_capacity(count);
    for k in 0..count as i64 {
        let from = b.segment_neighbours(segs, rows, shift(k));
        let part = b.gather(x, from);
        parts.push(split_groups(b, part, groups));
    }
    b.concat(&parts, 2)
}

impl Builder<'_> {
    /// Convolution along each segment's rows.
    pub fn conv1d(
        &mut self,
        x: ValueId,
        w: ValueId,
        bias: ValueId,
        segs: ValueId,
        groups: usize,
        pad: usize,
    ) -> ValueId {
        self.push1(Conv1d { groups, pad }, &[x, w, bias, segs])
    }
}
