//! Linear heads with cross-entropy: walks over tiles of rows and blocks of classes, so that products are large and one tile of
//! logits exists. First for each row's sum of exponentials, then, with the logits recomputed, for the gradients. The op on all
//! classes and the ops on some launch the same kernels, so that their bits are equal.

use super::elementwise::cast_to;
use super::matmul::{clear_pads, gemm, scratch};
use super::{View, kernels, launch, launch_over};
use crate::bind::{Io, Steps, Tensor};
use crate::step::Step;
use ambitus_ir::ops::head::{CLASSES, HeadGrad, HeadSums};
use ambitus_ir::ops::loss::{LinearCrossEntropy, LinearCrossEntropyGrad};
use ambitus_ir::ops::parts::Span;
use ambitus_ir::{DType, TensorType};

kernels! { "head";
    /// Updates rows' largest logit, sum of exponentials and label's logit, over a block of logits; `before`: the number of
    /// its first class, of `of`. A block per row.
    SumsArgs "head_sums" [256 threads, 40 registers] {
        logits: u64, pitch: i32, classes: i32, before: i32, of: i32, first: i64, labels: View, sums: u64,
    }
    /// The gradient of a block of logits takes their place, in an element type. A block per row.
    GradArgs "head_grad" [256 threads, 40 registers] {
        logits: u64, pitch: i32, classes: i32, before: i32, first: i64, labels: View,
        norm: View, dloss: View, sums: u64, dtype: i32,
    }
    /// y = norm * sum of the rows' losses, with one block.
    LossArgs "head_loss" [256 threads, 32 registers] { sums: u64, labels: View, n: i64, norm: View, y: View }
    /// A one in memory: the beta of all products that add to a gradient but the first.
    One "one" [32 threads, 16 registers] { y: u64 }
    /// y = beta * y, without reading y where beta is 0 or there is none: the gradient of no rows.
    NoRows "no_rows" [256 threads, 40 registers] { beta: View, y: View }
}

/// Most rows of a tile of logits: with [`CLASSES`] columns 16 MiB of logits, and 256 tiles of a product for the largest cards.
const ROWS: usize = 4096;

/// A head over the classes of `w`, which are all or a part.
struct Head<'a> {
    x: &'a Tensor,
    w: &'a Tensor,
    labels: View,
    /// number of w's first class
    first: usize,
    /// classes of all parts
    of: usize,
    /// rows of a tile
    tile: usize,
    scratch: Scratch,
}

/// Addresses of what a head's ops keep behind a product's scratch.
struct Scratch {
    /// address and bytes of the product's
    products: [u64; 2],
    /// f32 logits of a tile, [`CLASSES`] columns
    logits: u64,
    /// a one
    one: u64,
    /// sums of all rows
    sums: u64,
    /// f32 dx of a tile
    dx: u64,
}

/// Returns the number of rows of a tile, which depends on the whole head alone.
fn tile_rows(tile: usize, of: usize, rows: usize) -> usize {
    (tile * of / CLASSES).clamp(1, ROWS).min(rows.max(1))
}

/// Returns the bytes of each part of the scratch but the product's, in order.
fn parts(tile: usize, of: usize, x: TensorType) -> [u64; 4] {
    let rows = tile_rows(tile, of, x.shape.rows());
    let dx = TensorType::f32(&[rows, x.shape.cols()]).bytes();
    [4 * rows * CLASSES, 4, 12 * x.shape.rows(), dx as usize].map(|n| (n as u64).next_multiple_of(256))
}

/// Returns the scratch of an op of a linear head: what a product wants, a tile of logits, a one, all rows' sums, a tile of dx.
pub(crate) fn workspace(tile: usize, part: Option<Span>, x: &[TensorType]) -> u64 {
    let of = part.map_or(x[1].shape.rows(), |p| p.of);
    let logits = tile_rows(tile, of, x[0].shape.rows()) * CLASSES;
    scratch(logits) + parts(tile, of, x[0]).iter().sum::<u64>()
}

impl<'a> Head<'a> {
    fn new(tile: usize, part: Option<Span>, io: &'a Io) -> Head<'a> {
        let (x, w) = (&io.x[0], &io.x[1]);
        let (first, of) = part.map_or((0, w.ty.shape.rows()), |p| (p.first, p.of));
        let [logits, one, sums, dx] = parts(tile, of, x.ty);
        let products = io.workspace_bytes - (logits + one + sums + dx);
        let at = io.workspace + products;
        let scratch = Scratch {
            products: [io.workspace, products],
            logits: at,
            one: at + logits,
            sums: at + logits + one,
            dx: at + logits + one + sums,
        };
        let tile = tile_rows(tile, of, x.ty.shape.rows());
        Head { x, w, labels: io.x[2].view(), first, of, tile, scratch }
    }

    /// (first, number) of the rows of every tile.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rows, tile) = (self.x.ty.shape.rows(), self.tile);
        (0..rows).step_by(tile).map(move |first| (first, tile.min(rows - first)))
    }

    /// (first in w, number) of the classes of every block.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let classes = self.w.ty.shape.rows();
        (0..classes).step_by(CLASSES).map(move |first| (first, CLASSES.min(classes - first)))
    }

    /// Returns where the logits of `rows` rows and `classes` classes lie.
    fn logits(&self, rows: usize, classes: usize) -> Tensor {
        let ty = TensorType { pitch: CLASSES, ..TensorType::f32(&[rows, classes]) };
        Tensor { at: self.scratch.logits, ty }
    }

    /// Makes the logits of a tile and a block.
    fn product(&self, tile: (usize, usize), block: (usize, usize)) -> Result<Step, String> {
        let (x, w) = (rows_of(self.x, tile), rows_of(self.w, block));
        gemm([&x, &w, &self.logits(tile.1, block.1)], [false, true], 0, None, self.scratch.products)
    }

    /// Updates every row's sums.
    fn sums(&self, sums: u64, steps: &mut Vec<Step>) -> Result<(), String> {
        for tile in self.tiles() {
            for block in self.blocks() {
                steps.push(self.product(tile, block)?);
                let args = SumsArgs {
                    logits: self.scratch.logits,
                    pitch: CLASSES as i32,
                    classes: block.1 as i32,
                    before: (self.first + block.0) as i32,
                    of: self.of as i32,
                    first: tile.0 as i64,
                    labels: self.labels,
                    sums,
                };
                steps.push(launch(&args, [tile.1 as u32, 1]));
            }
        }
        Ok(())
    }

    /// Adds these classes' share to the gradients.
    fn gradients(&self, sums: u64, to: &Gradients<'_>, steps: &mut Vec<Step>) -> Result<(), String> {
        let Scratch { one, products, .. } = self.scratch;
        steps.push(launch(&One { y: one }, [1, 1]));
        let dtype = self.x.ty.dtype;
        for tile in self.tiles() {
            let dx = match to.dx {
                Dx::Sum(dx) => rows_of(dx, tile),
                Dx::Rounded(dx) if dx.ty.dtype == DType::F32 => rows_of(dx, tile),
                Dx::Rounded(dx) => {
                    Tensor { at: self.scratch.dx, ty: TensorType::f32(&[tile.1, dx.ty.shape.cols()]) }
                }
            };
            for block in self.blocks() {
                steps.push(self.product(tile, block)?);
                let args = GradArgs {
                    logits: self.scratch.logits,
                    pitch: CLASSES as i32,
                    classes: block.1 as i32,
                    before: (self.first + block.0) as i32,
                    first: tile.0 as i64,
                    labels: self.labels,
                    norm: to.norm,
                    dloss: to.dloss,
                    sums,
                    dtype: self.x.view().dtype,
                };
                steps.push(launch(&args, [tile.1 as u32, 1]));
                // Products have operands of one type: the gradient is in x's and lies at the start of its row of logits.
                let logits = self.logits(tile.1, block.1);
                let g = Tensor { at: logits.at, ty: in_place(logits.ty, dtype) };
                let beta = if self.first + block.0 > 0 { one } else { 0 };
                steps.push(gemm([&g, &rows_of(self.w, block), &dx], [false, false], beta, None, products)?);
                if let Some(dw) = &to.dw {
                    let beta = if tile.0 == 0 { to.beta.map_or(0, |beta| beta.at) } else { one };
                    let (x, dw) = (rows_of(self.x, tile), rows_of(dw, block));
                    steps.push(gemm([&g, &x, &dw], [true, false], beta, None, products)?);
                }
            }
            if let Dx::Rounded(to) = to.dx
                && to.ty.dtype != DType::F32
            {
                steps.extend(cast_to(dx.view(), rows_of(to, tile).view()));
            }
        }
        if let Some(dw) = to.dw.filter(|_| self.x.ty.shape.rows() == 0) {
            let (beta, y) = (to.beta.map_or(View::NONE, |beta| beta.view()), dw.view());
            steps.extend(launch_over(&NoRows { beta, y }, y.stored()));
        }
        let (Dx::Sum(dx) | Dx::Rounded(dx)) = to.dx;
        steps.extend(clear_pads(dx));
        steps.extend(to.dw.iter().flat_map(|dw| clear_pads(dw)));
        Ok(())
    }

    fn loss(&self, sums: u64, norm: View, y: View) -> Step {
        loss(sums, self.labels, norm, y)
    }
}

/// Where gradients go.
struct Gradients<'a> {
    norm: View,
    dloss: View,
    dx: Dx<'a>,
    /// of a head that is trained
    dw: Option<&'a Tensor>,
    /// factor of the old dw
    beta: Option<&'a Tensor>,
}

/// How dx is formed: sums over classes are in fp32.
#[derive(Clone, Copy)]
enum Dx<'a> {
    /// In place, where the next part continues.
    Sum(&'a Tensor),
    /// In x's type when all classes are in it.
    Rounded(&'a Tensor),
}

fn loss(sums: u64, labels: View, norm: View, y: View) -> Step {
    let n = labels.rows * i64::from(labels.cols);
    launch(&LossArgs { sums, labels, n, norm, y }, [1, 1])
}

pub(crate) fn linear_cross_entropy(op: &LinearCrossEntropy, io: &Io) -> Steps {
    let (head, mut steps) = (Head::new(op.tile, None, io), Vec::new());
    head.sums(head.scratch.sums, &mut steps)?;
    steps.push(head.loss(head.scratch.sums, io.x[3].view(), io.y[0].view()));
    Ok(steps)
}

pub(crate) fn linear_cross_entropy_grad(op: &LinearCrossEntropyGrad, io: &Io) -> Steps {
    let (head, mut steps) = (Head::new(op.tile, None, io), Vec::new());
    let sums = head.scratch.sums;
    head.sums(sums, &mut steps)?;
    steps.push(head.loss(sums, io.x[3].view(), io.y[0].view()));
    let (norm, dloss) = (io.x[3].view(), io.x[4].view());
    let (dw, beta) = (op.dw.then(|| &io.y[2]), op.acc.then(|| &io.x[6]));
    head.gradients(sums, &Gradients { norm, dloss, dx: Dx::Rounded(&io.y[1]), dw, beta }, &mut steps)?;
    Ok(steps)
}

pub(crate) fn head_sums(op: &HeadSums, io: &Io) -> Steps {
    let (head, mut steps) = (Head::new(op.tile, op.part, io), Vec::new());
    steps.extend(going_on(io.x.get(3), &io.y[0]));
    head.sums(io.y[0].at, &mut steps)?;
    Ok(steps)
}

pub(crate) fn head_loss(io: &Io) -> Steps {
    Ok(vec![loss(io.x[0].at, io.x[1].view(), io.x[2].view(), io.y[0].view())])
}

pub(crate) fn head_grad(op: &HeadGrad, io: &Io) -> Steps {
    let (head, mut steps) = (Head::new(op.tile, op.part, io), Vec::new());
    steps.extend(going_on(io.x.get(6).filter(|_| op.goes_on()), &io.y[0]));
    let (norm, dloss) = (io.x[3].view(), io.x[4].view());
    let (dw, beta) = (op.dw.then(|| &io.y[1]), op.acc.then(|| &io.x[op.accumulator() + 1]));
    let to = Gradients { norm, dloss, dx: Dx::Sum(&io.y[0]), dw, beta };
    head.gradients(io.x[5].at, &to, &mut steps)?;
    Ok(steps)
}

/// Copies `before`, from which the result `y` continues, to `y` if it lies elsewhere.
fn going_on(before: Option<&Tensor>, y: &Tensor) -> Vec<Step> {
    let elsewhere = before.filter(|x| x.at != y.at);
    elsewhere.map_or(Vec::new(), |x| cast_to(x.view(), y.view()))
}

/// Returns rows first..first + n of a matrix.
fn rows_of(t: &Tensor, (first, n): (usize, usize)) -> Tensor {
    let row = (t.ty.pitch * t.ty.dtype.size()) as u64;
    let ty = TensorType { pitch: t.ty.pitch, ..t.ty.with_shape(&[n, t.ty.shape.cols()]) };
    Tensor { at: t.at + first as u64 * row, ty }
}

/// Returns a matrix of another type whose rows start where the rows of f32 `ty` do.
fn in_place(ty: TensorType, dtype: DType) -> TensorType {
    TensorType { pitch: ty.pitch * 4 / dtype.size(), ..TensorType::new(dtype, &ty.shape) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::ALONE;
    use crate::step::Gemm;

    /// What decisions/0006 says of a head of 156,940 classes at 8,192 tokens: two tiles of rows, and no class in memory that would align
    /// products.
    #[test]
    fn products_of_an_odd_vocabulary_are_aligned() {
        const VOCABULARY: usize = 156_940;
        let op = LinearCrossEntropyGrad { tile: (1 << 24) / VOCABULARY, dw: true, acc: true };
        let (rows, dim) = (8192, 3072);
        let (x, w) =
            (TensorType::new(DType::BF16, &[rows, dim]), TensorType::new(DType::BF16, &[VOCABULARY, dim]));
        let (one, dw) = (TensorType::f32(&[1]), TensorType::f32(&[VOCABULARY, dim]));
        let mut at = 0;
        let mut place = |ty: TensorType| {
            at += 1 << 34;
            Tensor { at, ty }
        };
        let x = [x, w, TensorType::i32(&[rows]), one, one, dw, one].map(&mut place).to_vec();
        let y = [one, x[0].ty, dw].map(&mut place).to_vec();
        let types: Vec<TensorType> = x.iter().map(|t| t.ty).collect();
        let workspace_bytes = workspace(op.tile, None, &types);
        assert!(workspace_bytes < 100 << 20, "{workspace_bytes}");
        let io = Io { x, y, workspace: 1 << 40, workspace_bytes, here: ALONE, path: "".into() };
        let steps = linear_cross_entropy_grad(&op, &io).expect("a head");
        let products: Vec<&Gemm> =
            steps.iter().filter_map(|s| if let Step::Gemm(g) = s { Some(g) } else { None }).collect();
        // Logits for the sums, again for their gradient, dx and dw of every tile and block.
        assert_eq!(products.len(), 4 * (rows / ROWS) * VOCABULARY.div_ceil(CLASSES));
        for g in &products {
            for m in [g.a, g.b, g.d] {
                let row = m.ld * m.dtype.size() as u64;
                assert!(m.at.is_multiple_of(256) && row.is_multiple_of(256), "{g:?}");
            }
        }
        let odd = |g: &&&Gemm| [g.m, g.n, g.k].iter().any(|n| !n.is_multiple_of(8));
        let cost = |g: &&Gemm| (g.m * g.n * g.k) as f64;
        let share =
            products.iter().filter(odd).map(cost).sum::<f64>() / products.iter().map(cost).sum::<f64>();
        assert!(share < 0.002, "{share} of the head's arithmetic has a length that is odd for tensor cores");
    }
}
