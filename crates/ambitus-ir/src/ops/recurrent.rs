//! Layers that read the rows of a segment one after another.

use super::elementwise::{BinaryKind, UnaryKind};
use super::{OpDef, Props, arity, matrix, op, segments, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// One layer of a long short-term memory (Hochreiter and Schmidhuber, 1997; with PyTorch's gates i, f, g, o) over the rows of
    /// each segment in their order. Of row t, with h and c those of the row before it in its segment, or the segment's own of the
    /// tables where it is the first: z = `x[t, :]` + w h, four parts of H; c' = sigmoid(f) c + sigmoid(i) tanh(g);
    /// `y[t, :]` = h' = sigmoid(o) tanh(c').
    ///
    /// Operands, all f32: (x `[T, 4H]`, which is what a product makes of the layer's input, and its biases; w `[4H, H]`; h `[S, H]`;
    /// c `[S, H]`; segments). Results (y `[T, H]`, zero in rows of no segment; h `[S, H]` and c `[S, H]` behind each segment's last
    /// row, as they were where it is empty), so that a sequence goes on in another run. For inference: it has no gradient.
    Lstm = "lstm" {}
}

impl OpDef for Lstm {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 5)?;
        let (rows, gates) = matrix(x[0])?;
        let hidden = gates / 4;
        let floats = x[..4].iter().all(|t| t.dtype == DType::F32);
        want(floats, "takes f32")?;
        want(gates == 4 * hidden && *x[1].shape == [gates, hidden], "x is not [T, 4H], or w not [4H, H]")?;
        let table = TensorType::f32(&[segments(x[4])?, hidden]);
        want(x[2] == table && x[3] == table, format_args!("h and c are not {table}"))?;
        Ok(vec![TensorType::f32(&[rows, hidden]), table, table])
    }

    /// Row by row, so long programs: an oracle.
    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (rows, hidden) = (b.dim(x[0], 0), b.dim(x[1], 1));
        let first = b.segment_neighbours(x[4], rows, -1);
        let first = is_none(b, first);
        let starts = [x[2], x[3]].map(|table| b.by_segment(table, x[4], rows));
        let first = b.each_column(first, starts[0]);
        let (mut all, mut before) = ([Vec::new(), Vec::new()], starts);
        for t in 0..rows {
            let row = |b: &mut Builder<'_>, x| b.slice(x, 0, t, 1);
            if t > 0 {
                let first = row(b, first);
                before = [0, 1].map(|i| {
                    let start = row(b, starts[i]);
                    b.select(first, start, before[i])
                });
            } else {
                before = starts.map(|start| row(b, start));
            }
            let z = row(b, x[0]);
            let product = b.matmul(before[0], x[1], false, true);
            let z = b.add(z, product);
            let gate = |b: &mut Builder<'_>, i| b.slice(z, 1, i * hidden, hidden);
            let [i, f, o] = [0, 1, 3].map(|i| {
                let z = gate(b, i);
                b.sigmoid(z)
            });
            let g = gate(b, 2);
            let g = b.unary(UnaryKind::Tanh, g);
            let (kept, new) = (b.mul(f, before[1]), b.mul(i, g));
            let c = b.add(kept, new);
            let seen = b.unary(UnaryKind::Tanh, c);
            before = [b.mul(o, seen), c];
            before.iter().zip(&mut all).for_each(|(row, all)| all.push(*row));
        }
        let [h, c] = all.map(|rows| b.concat(&rows, 0));
        let y = b.keep_segment_rows(h, x[4]);
        // Each segment's last row, and what was there where it has none.
        let next = b.segment_neighbours(x[4], rows, 1);
        let last = is_none(b, next);
        let (ids, none) = (b.segment_ids(x[4], rows), b.fill_like(next, -1.0));
        let ids = b.select(last, ids, none);
        let (ones, segments) = (b.fill_like(y, 1.0), b.dim(x[2], 0));
        let some = b.scatter_add(ones, ids, segments);
        let [h, c] = [(h, x[2]), (c, x[3])].map(|(rows, was)| {
            let ended = b.scatter_add(rows, ids, segments);
            b.select(some, ended, was)
        });
        Some(vec![y, h, c])
    }

    fn props(&self) -> Props {
        Props::PRODUCT
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        x[0].shape[0] as f64 * (2.0 * x[1].shape.elements() as f64 + 15.0 * x[0].shape[1] as f64)
    }
}

/// 1 where a row's number is negative, else 0: f32.
fn is_none(b: &mut Builder<'_>, at: ValueId) -> ValueId {
    let (at, zero) = (b.as_f32(at), b.fill_like(at, 0.0));
    let zero = b.as_f32(zero);
    b.binary(BinaryKind::Less, at, zero)
}

impl Builder<'_> {
    /// A layer of a long short-term memory; see [`Lstm`]. Returns what it gives, and its state behind each segment.
    pub fn lstm(&mut self, x: ValueId, w: ValueId, [h, c]: [ValueId; 2], segs: ValueId) -> [ValueId; 3] {
        let y = self.push(Lstm {}, &[x, w, h, c, segs]);
        [y[0], y[1], y[2]]
    }
}
