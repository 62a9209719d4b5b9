//! Residual codebooks looked up by direction, with projections into and out of their few channels (factorised codes of Kumar et
//! al., arXiv 2306.06546), in the tensor names of the package's `VectorQuantize`.

use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{Builder, DType, TensorType, ValueId};

/// The sizes of codebooks.
#[derive(Clone, Copy, Debug)]
pub struct Codebooks<'c> {
    /// L: channels of latent rows.
    pub latent_dim: usize,
    /// D: channels of an entry.
    pub dim: usize,
    /// V: entries of each.
    pub entries: usize,
    /// Latent rows that share a code, for each codebook.
    pub strides: &'c [usize],
}

impl Codebooks<'_> {
    /// Makes codes of z `[rows, L]`: outputs `codes.i` f32 `[n]` of each codebook, whole numbers. A code is V where there was no nearest
    /// entry, because something is not a number.
    pub fn encode(&self, b: &mut Builder<'_>, z: ValueId) {
        b.scope("quantizer.quantizers", |b| {
            let mut left = z;
            for (i, &stride) in self.strides.iter().enumerate() {
                let rest = b.scope(&i.to_string(), |b| {
                    let (ids, codes) = self.quantize(b, left, stride);
                    b.output(&format!("codes.{i}"), codes);
                    (i + 1 < self.strides.len()).then(|| {
                        let known = self.dequantize(b, ids, stride);
                        b.sub(left, known)
                    })
                });
                left = rest.unwrap_or(left);
            }
        });
    }

    /// Returns what codes say of `rows` latent rows, `[rows, L]`: inputs `codes.i` i32 `[n]`, -1 past the end.
    ///
    /// # Panics
    /// Without a codebook.
    pub fn decode(&self, b: &mut Builder<'_>, rows: usize) -> ValueId {
        let mut z = None;
        for (i, &stride) in self.strides.iter().enumerate() {
            let ids = b.input(&format!("codes.{i}"), TensorType::i32(&[rows / stride]));
            let scope = format!("quantizer.quantizers.{i}");
            let part = b.scope(&scope, |b| self.dequantize(b, ids, stride));
            z = Some(z.map_or(part, |z| b.add(z, part)));
        }
        z.expect("a checked configuration has a codebook")
    }

    /// Returns the codes of z `[rows, L]`, one for `stride` rows, as ids i32 `[n]` and as f32 `[n]`: the entry with the nearest
    /// direction, the first of several.
    fn quantize(&self, b: &mut Builder<'_>, z: ValueId, stride: usize) -> (ValueId, ValueId) {
        let (latent, dim, entries) = (self.latent_dim, self.dim, self.entries);
        let n = b.dim(z, 0) / stride;
        let mut x = z;
        if stride > 1 {
            let blocks = b.reshape(z, &[n, stride, latent]);
            let sum = b.reduce(ReduceKind::Sum, blocks, 1);
            let sum = b.reshape(sum, &[n, latent]);
            let count = b.fill_like(sum, stride as f32);
            x = b.div(sum, count);
        }
        let w = b.frozen_parameter("in_proj.weight", &[dim, latent]);
        let bias = b.frozen_parameter("in_proj.bias", &[dim]);
        let x = b.linear(x, w, Some(bias));
        let x = directions(b, x);
        let table = b.frozen_parameter("codebook.weight", &[entries, dim]);
        let table = directions(b, table);
        let codes = nearest(b, x, table);
        (b.cast(codes, DType::I32), codes)
    }

    /// Returns what ids `[n]` of a codebook say of the latent rows: `[n * stride, L]`.
    fn dequantize(&self, b: &mut Builder<'_>, ids: ValueId, stride: usize) -> ValueId {
        let (latent, dim) = (self.latent_dim, self.dim);
        let n = b.dim(ids, 0);
        let table = b.frozen_parameter("codebook.weight", &[self.entries, dim]);
        let w = b.frozen_parameter("out_proj.weight", &[latent, dim]);
        let bias = b.frozen_parameter("out_proj.bias", &[latent]);
        let x = b.gather(table, ids);
        let x = b.linear(x, w, Some(bias));
        let x = b.reshape(x, &[n, 1, latent]);
        let x = b.broadcast(x, &[n, stride, latent]);
        b.reshape(x, &[n * stride, latent])
    }
}

/// Returns the row of a table `[V, D]` with the least squared distance from each row of x `[n, D]`, the first of several: f32 `[n]`,
/// whole numbers. It is V where there is none, because something is not a number.
pub fn nearest(b: &mut Builder<'_>, x: ValueId, table: ValueId) -> ValueId {
    let (n, entries) = (b.dim(x, 0), b.dim(table, 0));
    // |x - c|^2 less |x|^2, negative, is 2 x c - |c|^2.
    let twice = b.add(x, x);
    let products = b.matmul(twice, table, false, true);
    let squares = b.mul(table, table);
    let squares = b.reduce(ReduceKind::Sum, squares, 1);
    let squares = b.reshape(squares, &[1, entries]);
    let squares = b.broadcast(squares, &[n, entries]);
    let scores = b.sub(products, squares);
    first_largest(b, scores)
}

/// Returns the place of the largest of each row of scores `[n, V]`, the first of several: f32 `[n]`, whole numbers. It is V where there
/// is none, because something is not a number.
pub fn first_largest(b: &mut Builder<'_>, scores: ValueId) -> ValueId {
    let shape = b.ty(scores).shape;
    let best = b.reduce(ReduceKind::Max, scores, 1);
    let best = b.broadcast(best, &shape);
    let hit = b.binary(BinaryKind::Equal, scores, best);
    // The first hit: the largest of the negative numbers, -V where there is none.
    let number = b.iota(DType::F32, &shape, 1);
    let number = b.unary(UnaryKind::Neg, number);
    let none = b.fill_like(number, -(shape[1] as f32));
    let number = b.select(hit, number, none);
    let number = b.reduce(ReduceKind::Max, number, 1);
    let number = b.unary(UnaryKind::Neg, number);
    b.reshape(number, &[shape[0]])
}

/// Returns the rows of x `[n, D]` scaled to length 1; of length 0 as they are.
fn directions(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape;
    let squares = b.mul(x, x);
    let sum = b.reduce(ReduceKind::Sum, squares, 1);
    let length = b.unary(UnaryKind::Sqrt, sum);
    let least = b.fill_like(length, 1e-12);
    let length = b.binary(BinaryKind::Max, length, least);
    let length = b.broadcast(length, &shape);
    b.div(x, length)
}
