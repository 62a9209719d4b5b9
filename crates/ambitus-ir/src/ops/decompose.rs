//! What decompositions share: the rule of what is core, and idioms in core ops.
//!
//! A fused op says in [`OpDef::decompose`](super::OpDef::decompose), next to its formula, what it is in core ops; that is the
//! oracle for every executor. Core ops have none and are implemented by everything that runs programs:
//!
//! - elementwise `unary`, `binary`, `select`, `cast`, `fill`; `reduce`; `reshape`, `permute`, `broadcast`, `slice`,
//!   `concat`, `iota`, `detach`; `gather`, and `scatter_add` and `matmul` without accumulator;
//! - `segment_ids` and `segment_positions`: what a segment table means is said once;
//! - `rotary_frequencies` and `sinusoid`: their constants need more digits than a `fill` has;
//! - `monotonic_path`: each step of its way back depends on the one before, and would be a program of its own;
//! - `sum_partials`: adds in double precision;
//! - `dropout`: its bits are integer arithmetic on 64-bit products;
//! - `adamw_bf16` and `adamw_8bit`: what they store are bits of numbers, not numbers;
//! - `copy_start`, `store_start` and `copy_done`: they move bytes and compute nothing.
//!
//! Decompositions compute in f32 whatever the operands' float type, and round once, at the result. Rows of no segment
//! and empty segments are left out by `select`, never by a product: 0 * NaN is NaN, and 0/0 never arises.

use super::elementwise::{BinaryKind, UnaryKind};
use super::reduce::ReduceKind;
use super::segment::{SegmentIds, SegmentPositions};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::DType;

impl Builder<'_> {
    /// `x` as `dtype`; `x` itself where it is one.
    pub fn as_dtype(&mut self, x: ValueId, dtype: DType) -> ValueId {
        if self.ty(x).dtype == dtype { x } else { self.cast(x, dtype) }
    }

    /// `x` as f32.
    pub(super) fn as_f32(&mut self, x: ValueId) -> ValueId {
        self.as_dtype(x, DType::F32)
    }

    /// `y`, computed in f32, as the element type of `like`.
    pub(super) fn as_like(&mut self, y: ValueId, like: ValueId) -> ValueId {
        let dtype = self.ty(like).dtype;
        self.as_dtype(y, dtype)
    }

    /// x + c.
    pub(super) fn plus(&mut self, x: ValueId, c: f32) -> ValueId {
        let c = self.fill_like(x, c);
        self.add(x, c)
    }

    /// x * c.
    pub(super) fn times(&mut self, x: ValueId, c: f32) -> ValueId {
        let c = self.fill_like(x, c);
        self.mul(x, c)
    }

    /// x / c: for counts, whose inverse is not exact.
    pub(super) fn over(&mut self, x: ValueId, c: f32) -> ValueId {
        let c = self.fill_like(x, c);
        self.div(x, c)
    }

    /// 1 where x > 0, else 0.
    pub(super) fn is_positive(&mut self, x: ValueId) -> ValueId {
        let zero = self.fill_like(x, 0.0);
        self.binary(BinaryKind::Less, zero, x)
    }

    /// `x` where `c` is not 0, else 0.
    pub(super) fn keep(&mut self, c: ValueId, x: ValueId) -> ValueId {
        let zero = self.fill_like(x, 0.0);
        self.select(c, x, zero)
    }

    /// 1 / (1 + e^-x).
    pub(super) fn sigmoid(&mut self, x: ValueId) -> ValueId {
        let n = self.unary(UnaryKind::Neg, x);
        let e = self.unary(UnaryKind::Exp, n);
        let d = self.plus(e, 1.0);
        let one = self.fill_like(x, 1.0);
        self.div(one, d)
    }

    /// One number per channel `[D]` repeated to the `[T, D]` of `like`, in f32.
    pub(super) fn each_row(&mut self, row: ValueId, like: ValueId) -> ValueId {
        let row = self.as_f32(row);
        let shape = self.ty(like).shape;
        let row = self.reshape(row, &[1, shape[1]]);
        self.broadcast(row, &shape)
    }

    /// One number per row `[T]` repeated to the `[T, D]` of `like`, in f32.
    pub(super) fn each_column(&mut self, column: ValueId, like: ValueId) -> ValueId {
        let column = self.as_f32(column);
        let shape = self.ty(like).shape;
        let column = self.reshape(column, &[shape[0], 1]);
        self.broadcast(column, &shape)
    }

    /// Returns a scalar `[1]` repeated to the axes of `like`.
    pub(super) fn everywhere(&mut self, s: ValueId, like: ValueId) -> ValueId {
        let shape = self.ty(like).shape;
        let s = self.reshape(s, &vec![1; shape.len()]);
        self.broadcast(s, &shape)
    }

    /// Returns the sum over each row of x `[T, D]`, repeated to `[T, D]`.
    pub(super) fn row_sum(&mut self, x: ValueId) -> ValueId {
        let shape = self.ty(x).shape;
        let sum = self.reduce(ReduceKind::Sum, x, 1);
        self.broadcast(sum, &shape)
    }

    /// Returns the mean over each row of x `[T, D]`, repeated to `[T, D]`.
    pub(super) fn row_mean(&mut self, x: ValueId) -> ValueId {
        let cols = self.dim(x, 1);
        let sum = self.row_sum(x);
        self.over(sum, cols as f32)
    }

    /// Returns the sum of all elements, `[1]`.
    pub(super) fn total(&mut self, x: ValueId) -> ValueId {
        let n = self.ty(x).shape.elements();
        let flat = self.reshape(x, &[n]);
        self.reduce(ReduceKind::Sum, flat, 0)
    }

    /// Returns the segment of every row or -1, i32 `[rows]`.
    pub(super) fn segment_ids(&mut self, segs: ValueId, rows: usize) -> ValueId {
        self.push1(SegmentIds { rows }, &[segs])
    }

    /// For every row the row `shift` further within its own segment, or -1: i32 `[rows]`, for
    /// [`gather`](Builder::gather).
    pub(super) fn segment_neighbours(&mut self, segs: ValueId, rows: usize, shift: i64) -> ValueId {
        // The segments' numbers from 1, so that what a gather gives past the ends, 0, is no segment.
        let ids = self.segment_ids(segs, rows);
        let ids = self.as_f32(ids);
        let ids = self.plus(ids, 1.0);
        let there = self.iota(DType::I32, &[rows], 0);
        let there = self.plus(there, shift as f32);
        let table = self.reshape(ids, &[rows, 1]);
        let ids_there = self.gather(table, there);
        let ids_there = self.reshape(ids_there, &[rows]);
        let same = self.binary(BinaryKind::Equal, ids, ids_there);
        let some = self.is_positive(ids);
        let ok = self.mul(same, some);
        let none = self.fill_like(there, -1.0);
        self.select(ok, there, none)
    }

    /// x `[T, D]` with zeros in the rows of no segment.
    pub(super) fn keep_segment_rows(&mut self, x: ValueId, segs: ValueId) -> ValueId {
        let rows = self.dim(x, 0);
        let ids = self.segment_ids(segs, rows);
        let ids = self.as_f32(ids);
        let number = self.plus(ids, 1.0);
        let some = self.is_positive(number);
        let some = self.each_column(some, x);
        self.keep(some, x)
    }

    /// Returns row s of a table `[S, D]` for every row of segment s, zero for rows of no segment: f32 `[rows, D]`.
    pub(super) fn by_segment(&mut self, table: ValueId, segs: ValueId, rows: usize) -> ValueId {
        let table = self.as_f32(table);
        let ids = self.segment_ids(segs, rows);
        self.gather(table, ids)
    }

    /// Sums of the rows of each segment: x `[T, D]` to `[S, D]`.
    pub(super) fn sum_by_segment(&mut self, x: ValueId, segs: ValueId) -> ValueId {
        let rows = self.dim(x, 0);
        let ids = self.segment_ids(segs, rows);
        let segments = self.dim(segs, 0) - 1;
        self.scatter_add(x, ids, segments)
    }

    /// Returns the positions within segments as the columns of `like` `[T, D]`.
    pub(super) fn positions_like(&mut self, segs: ValueId, like: ValueId) -> ValueId {
        let rows = self.dim(like, 0);
        let positions = self.push1(SegmentPositions { rows }, &[segs]);
        self.each_column(positions, like)
    }

    /// beta * accumulator + y, where beta 0 leaves the accumulator out.
    pub(super) fn accumulated(&mut self, y: ValueId, acc: ValueId, beta: ValueId) -> ValueId {
        let (old, new) = (self.as_f32(acc), self.as_f32(y));
        let beta = self.everywhere(beta, new);
        let old = self.mul(beta, old);
        let old = self.keep(beta, old);
        let sum = self.add(old, new);
        self.as_like(sum, acc)
    }
}
