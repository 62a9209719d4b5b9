//! Cases of ops that treat every row alike.

use super::{Operand, Table, constant, ints, numbers, poison, scalar, typed};
use ambitus_ir::ops::activation::{Activation, ActivationGrad, ActivationKind, Snake, SwiGlu, SwiGluGrad};
use ambitus_ir::ops::elementwise::{
    Binary, BinaryKind, Cast, Fill, Scale, ScaleRows, Select, Unary, UnaryKind,
};
use ambitus_ir::ops::index::{Gather, ScatterAdd, Sinusoid, SinusoidKind, WriteRows};
use ambitus_ir::ops::layout::{Broadcast, Concat, Detach, Iota, Permute, Reshape, Reverse, Slice};
use ambitus_ir::ops::matmul::{Linear, LinearIn, MatMul};
use ambitus_ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use ambitus_ir::ops::parts::Span;
use ambitus_ir::ops::reduce::{Reduce, ReduceKind};
use ambitus_ir::{DType, Shape, TensorType};

use crate::tensor::Tensor;
use ambitus_ir::ops::Attr;

pub(super) fn elementwise(t: &mut Table) {
    for kind in UnaryKind::ALL {
        let x = match kind {
            UnaryKind::Log | UnaryKind::Sqrt | UnaryKind::Rsqrt => t.within(&[5, 37], 0.25, 4.0),
            _ => t.within(&[5, 37], -2.0, 2.0),
        };
        t.add(&kind.show(), Unary { kind: *kind }, vec![x]);
    }
    let odd = [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX];
    t.add("of what is not finite", Unary { kind: UnaryKind::IsFinite }, vec![numbers(&[7], &odd)]);

    for kind in BinaryKind::ALL {
        let a = t.within(&[3, 5, 7], -2.0, 2.0);
        let b = match kind {
            BinaryKind::Div => t.within(&[3, 5, 7], 0.5, 2.0),
            _ => t.within(&[3, 5, 7], -2.0, 2.0),
        };
        t.add(&kind.show(), Binary { kind: *kind }, vec![a, b]);
    }
    let (a, b) = (ints(&[1, -2, 3, 7]), ints(&[1, 5, -3, 2]));
    t.add("of integers", Binary { kind: BinaryKind::Equal }, vec![a, b]);
    let (a, b) = (t.x(&[6, 33]), t.x(&[6, 33]));
    t.add("padded", Binary { kind: BinaryKind::Mul }, vec![a, b]);

    let (a, b) = (t.x(&[4, 35]), t.x(&[4, 35]));
    let c: Vec<f32> = (0..4 * 35).map(|i| if i % 3 == 0 { 0.0 } else { i as f32 - 50.0 }).collect();
    t.add("", Select {}, vec![numbers(&[4, 35], &c), a, b]);
    let (a, b) = (numbers(&[3], &[1.0, f32::NAN, 3.0]), numbers(&[3], &[f32::NAN, 5.0, 6.0]));
    t.add("leaves out NaN", Select {}, vec![ints(&[1, 0, -1]), a, b]);

    for (from, to) in [
        (DType::F32, DType::BF16),
        (DType::F32, DType::F16),
        (DType::BF16, DType::F32),
        (DType::F16, DType::F32),
        (DType::F32, DType::I32),
    ] {
        let x = typed(&mut t.rng, from, &[5, 35]);
        t.add(&format!("{} to {}", from.name(), to.name()), Cast { to }, vec![x]);
    }
    t.add("i32 to f32", Cast { to: DType::F32 }, vec![ints(&[0, -7, 16_777_215])]);
    let x = t.x(&[6, 33]);
    t.add("f32 to f32", Cast { to: DType::F32 }, vec![x]);

    let shape = Shape::new(&[3, 33]);
    t.add("", Fill { value: -0.125, dtype: DType::F32, shape }, vec![]);
    let shape = Shape::new(&[5]);
    t.add("of integers", Fill { value: 7.0, dtype: DType::I32, shape }, vec![]);

    let x = t.x(&[5, 37]);
    t.add("", Scale {}, vec![x, scalar(-1.75)]);
    let (x, m) = (t.x(&[9, 41]), t.x(&[9]));
    t.add("", ScaleRows {}, vec![x, m]);
}

pub(super) fn layout(t: &mut Table) {
    for axis in 0..3 {
        let x = t.x(&[3, 5, 33]);
        t.add(&format!("sum of axis {axis}"), Reduce { kind: ReduceKind::Sum, axis }, vec![x]);
    }
    for axis in 0..2 {
        let x = t.fixed(&[7, 39]);
        t.add(&format!("max of axis {axis}"), Reduce { kind: ReduceKind::Max, axis }, vec![x]);
    }
    let x = t.x(&[1009, 5]);
    t.add("sum of many rows", Reduce { kind: ReduceKind::Sum, axis: 0 }, vec![x]);
    // Longer than any tile.
    for (dims, axis) in [([1301, 37], 0), ([5003, 1], 0), ([3, 1501], 1), ([2, 8201], 1)] {
        for kind in ReduceKind::ALL {
            let x = t.fixed(&dims);
            t.add(
                &format!("{} of axis {axis} of {dims:?}", kind.show()),
                Reduce { kind: *kind, axis },
                vec![x],
            );
        }
    }
    let x = t.fixed(&[2, 600, 3, 13]);
    t.add("sum inside", Reduce { kind: ReduceKind::Sum, axis: 1 }, vec![x]);

    let x = t.x(&[6, 35]);
    t.add("", Reshape { shape: Shape::new(&[3, 2, 5, 7]) }, vec![x]);
    let x = t.x(&[3, 2, 5, 7]);
    t.add("into padded rows", Reshape { shape: Shape::new(&[6, 35]) }, vec![x]);
    let x = t.x(&[6, 35]);
    t.add("between padded rows", Reshape { shape: Shape::new(&[5, 42]) }, vec![x]);
    let x = t.x(&[2, 3, 36]);
    t.add("of whole rows", Reshape { shape: Shape::new(&[6, 36]) }, vec![x]);
    let x = t.x(&[35, 37]);
    t.add("transpose", Permute { axes: Shape::new(&[1, 0]) }, vec![x]);
    let x = t.x(&[2, 3, 4, 5]);
    t.add("of four axes", Permute { axes: Shape::new(&[2, 0, 3, 1]) }, vec![x]);
    let x = t.fixed(&[3, 35, 2, 33]);
    t.add("of four long axes", Permute { axes: Shape::new(&[2, 3, 0, 1]) }, vec![x]);
    let x = t.x(&[2, 9, 3, 16]);
    t.add("of heads", Permute { axes: Shape::new(&[0, 2, 1, 3]) }, vec![x]);
    let x = t.x(&[1, 37]);
    t.add("of a row", Broadcast { shape: Shape::new(&[5, 37]) }, vec![x]);
    let x = t.x(&[5, 1]);
    t.add("of a column", Broadcast { shape: Shape::new(&[5, 37]) }, vec![x]);
    let x = t.x(&[3, 1, 4, 1]);
    t.add("of two axes", Broadcast { shape: Shape::new(&[3, 5, 4, 2]) }, vec![x]);
    let x = t.x(&[7, 39]);
    t.add("of columns", Slice { axis: 1, start: 3, len: 34 }, vec![x]);
    let x = t.x(&[7, 48]);
    t.add("of whole chunks", Slice { axis: 1, start: 8, len: 36 }, vec![x]);
    let x = t.x(&[7, 39]);
    t.add("of rows", Slice { axis: 0, start: 2, len: 4 }, vec![x]);
    let x = t.x(&[3, 6, 5]);
    t.add("inside", Slice { axis: 1, start: 1, len: 5 }, vec![x]);
    let parts = vec![t.x(&[5, 3]), t.x(&[5, 33]), t.x(&[5, 1])];
    t.add("of columns", Concat { axis: 1 }, parts);
    let parts = vec![ints(&[1, -2, 3]), ints(&[4])];
    t.add("of integers", Concat { axis: 0 }, parts);
    let parts = vec![t.x(&[2, 3, 5]), t.x(&[2, 1, 5])];
    t.add("inside", Concat { axis: 1 }, parts);
    let parts = vec![t.x(&[2, 37]), t.x(&[4, 37])];
    t.add("of rows", Concat { axis: 0 }, parts);
    let shape = Shape::new(&[4, 35]);
    t.add("along columns", Iota { axis: 1, dtype: DType::F32, shape }, vec![]);
    let shape = Shape::new(&[9]);
    let inner = Shape::new(&[2, 3, 4, 5]);
    t.add("inside", Iota { axis: 1, dtype: DType::I32, shape: inner }, vec![]);
    t.add("of integers", Iota { axis: 0, dtype: DType::I32, shape }, vec![]);

    // Ids beyond the table and repeated ids.
    let ids = [3, -1, 0, 10, 3, 11, 3, 7, -5];
    let x = t.x(&[11, 35]);
    t.add("", Gather { part: None }, vec![x, ints(&ids)]);
    let x = t.x(&[9, 35]);
    t.add("", ScatterAdd { rows: 11, acc: false, part: None }, vec![x, ints(&ids)]);
    let x = t.fixed(&[9, 35]);
    let acc = t.fixed(&[11, 35]);
    let op = ScatterAdd { rows: 11, acc: true, part: None };
    t.add("accumulating", op.clone(), vec![x, ints(&ids), acc, scalar(0.5)]);
    let x = t.fixed(&[9, 35]);
    t.add("beta 0", op.clone(), vec![x, ints(&ids), poison(&[11, 35]), scalar(0.0)]);
    let x = t.fixed(&[9, 35]);
    let acc = t.fixed(&[11, 35]);
    t.add("beta 1", op, vec![x, ints(&ids), acc, scalar(1.0)]);
    // Many ids, some of them often.
    let ids: Vec<i32> = (0..301).map(|i| i * i % 71 - 2).collect();
    let (table, x) = (t.fixed(&[64, 269]), t.fixed(&[301, 269]));
    t.add("many", Gather { part: None }, vec![table, ints(&ids)]);
    t.add("many", ScatterAdd { rows: 64, acc: false, part: None }, vec![x, ints(&ids)]);
    let (table, x) = (t.fixed(&[9, 5]), t.fixed(&[301, 5]));
    t.add("of narrow rows", Gather { part: None }, vec![table, ints(&ids)]);
    t.add("of narrow rows", ScatterAdd { rows: 9, acc: false, part: None }, vec![x, ints(&ids)]);
    // Most of one id, as a table's filler.
    let ids: Vec<i32> = (0..301).map(|i| if i % 9 == 0 { i % 5 } else { 2 }).collect();
    let x = t.fixed(&[301, 269]);
    t.add("mostly one", ScatterAdd { rows: 5, acc: false, part: None }, vec![x, ints(&ids)]);
    // Rows 4 to 8 of 11: other ids are not there.
    let (ids, part) = ([3, -1, 4, 10, 8, 11, 7, 9, 4], Some(Span { first: 4, count: 5, of: 11 }));
    let table = t.fixed(&[5, 35]);
    let first = Some(Span { first: 0, ..part.expect("some rows") });
    t.add("of a part", Gather { part: first }, vec![table.clone(), ints(&ids)]);
    let before = t.fixed(&[9, 35]);
    t.add("of a further part", Gather { part }, vec![table, ints(&ids), before]);
    let (x, acc) = (t.fixed(&[9, 35]), t.fixed(&[5, 35]));
    t.add("of a part", ScatterAdd { rows: 5, acc: false, part }, vec![x.clone(), ints(&ids)]);
    let op = ScatterAdd { rows: 5, acc: true, part };
    t.add("of a part, accumulating", op, vec![x, ints(&ids), acc, scalar(0.5)]);

    let at = [3, -1, 0, 10, 11, -5];
    for cols in [35, 64] {
        let (table, x) = (t.fixed(&[11, cols]), t.fixed(&[6, cols]));
        t.add(&format!("of {cols} columns"), WriteRows {}, vec![table, x, ints(&at)]);
    }

    let time = Sinusoid { kind: SinusoidKind::SinCos, half: 17, scale: 1000.0, base: 10_000.0 };
    t.add("of times", time, vec![numbers(&[3], &[0.0, 0.25, 0.8125])]);
    let text = Sinusoid { kind: SinusoidKind::CosSin, half: 8, scale: 1.0, base: 10_000.0 };
    t.add("of positions", text, vec![numbers(&[5], &[0.0, 1.0, 2.0, 17.0, 300.0])]);
}

pub(super) fn products(t: &mut Table) {
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let (m, k, n) = (13, 37, 35);
        let a = if ta { [k, m] } else { [m, k] };
        let b = if tb { [n, k] } else { [k, n] };
        let what = format!("{}{}", if ta { "t" } else { "n" }, if tb { "t" } else { "n" });
        let (x, y) = (t.x(&a), t.x(&b));
        t.add(&what, MatMul { ta, tb, acc: false, wide: false }, vec![x, y]);
        let (x, y, acc) = (t.fixed(&a), t.fixed(&b), t.fixed(&[m, n]));
        let op = MatMul { ta, tb, acc: true, wide: false };
        t.add(&format!("{what} accumulating"), op, vec![x, y, acc, scalar(1.0)]);
        let (a, b) = ([3, a[0], a[1]], [3, b[0], b[1]]);
        let (x, y) = (t.x(&a), t.x(&b));
        t.add(&format!("{what} batched"), MatMul { ta, tb, acc: false, wide: false }, vec![x, y]);
    }
    let (x, y) = (t.fixed(&[70, 5]), t.fixed(&[70, 33]));
    let op = MatMul { ta: true, tb: false, acc: true, wide: false };
    t.add("beta 0", op, vec![x, y, poison(&[5, 33]), scalar(0.0)]);
    for dtype in [DType::BF16, DType::F16] {
        let mut of = |dims: &[usize]| typed(&mut t.rng, dtype, dims);
        let (x, y, a, b) = (of(&[41, 13]), of(&[41, 35]), of(&[41, 13]), of(&[41, 35]));
        let acc = t.fixed(&[13, 35]);
        let wide = |acc: bool| MatMul { ta: true, tb: false, acc, wide: true };
        t.add(&format!("of {} to f32", dtype.name()), wide(false), vec![x, y]);
        let operands = vec![a, b, acc, scalar(1.0)];
        t.add(&format!("of {} to f32, accumulating", dtype.name()), wide(true), operands);
    }
    let (x, y) = (t.x(&[130, 96]), t.x(&[96, 200]));
    t.add("larger", MatMul { ta: false, tb: false, acc: false, wide: false }, vec![x, y]);

    let (x, w, b) = (t.x(&[11, 37]), t.x(&[33, 37]), t.x(&[33]));
    t.add("", Linear {}, vec![x, w, b]);
    let (x, w) = (t.x(&[1, 5]), t.x(&[7, 5]));
    t.add("without bias, one row", Linear {}, vec![x, w]);
    let (x, w, b) = (t.x(&[67, 128]), t.x(&[96, 128]), t.x(&[96]));
    t.add("larger", Linear {}, vec![x, w, b]);

    let (x, w, b) = (t.x(&[11, 37]), t.x(&[37, 33]), t.x(&[33]));
    t.add("", LinearIn {}, vec![x, w, b]);
    let (x, w) = (t.x(&[1, 5]), t.x(&[5, 7]));
    t.add("without bias, one row", LinearIn {}, vec![x, w]);
    let (x, w, b) = (t.x(&[67, 128]), t.x(&[128, 96]), t.x(&[96]));
    t.add("larger", LinearIn {}, vec![x, w, b]);
}

pub(super) fn activations(t: &mut Table) {
    // From where exponentials vanish to where they are huge.
    let ends: Vec<f32> = (-30..=30).map(|i| 0.77 * i as f32).collect();
    for kind in ActivationKind::ALL {
        let kind = *kind;
        let x = t.within(&[5, 37], -4.0, 4.0);
        t.add(&kind.show(), Activation { kind }, vec![x]);
        t.add(&format!("{} far out", kind.show()), Activation { kind }, vec![numbers(&[61], &ends)]);
        let (x, dy) = (constant(t.within(&[5, 37], -4.0, 4.0).tensor), t.fixed(&[5, 37]));
        t.add(&kind.show(), ActivationGrad { kind }, vec![x, dy]);
        let ones = constant(Tensor::full(TensorType::f32(&[61]), 1.0));
        let far = vec![numbers(&[61], &ends), ones];
        t.add(&format!("{} far out", kind.show()), ActivationGrad { kind }, far);
    }
    let (a, b) = (t.within(&[6, 35], -4.0, 4.0), t.x(&[6, 35]));
    t.add("", SwiGlu {}, vec![a, b]);
    let (a, b, dy) = (t.fixed(&[6, 35]), t.fixed(&[6, 35]), t.fixed(&[6, 35]));
    t.add("", SwiGluGrad {}, vec![a, b, dy]);
    for (rows, cols) in [(5, 37), (33, 48), (7, 1)] {
        let (x, mut a) = (constant(t.within(&[rows, cols], -9.0, 9.0).tensor), t.fixed(&[cols]));
        // Where the small number next to it decides.
        a.tensor.data[0] = 0.0;
        t.add(&format!("[{rows},{cols}]"), Snake {}, vec![x, a]);
    }
}

pub(super) fn norms(t: &mut Table) {
    for (rows, cols) in [(7, 37), (3, 5), (33, 256)] {
        let what = format!("[{rows},{cols}]");
        let row = |t: &mut Table| t.within(&[rows, cols], -3.0, 5.0);
        let still = |t: &mut Table| constant(t.within(&[rows, cols], -3.0, 5.0).tensor);
        let (x, g, b) = (row(t), t.x(&[cols]), t.x(&[cols]));
        t.add(&what, LayerNorm { eps: 1e-6 }, vec![x, g, b]);
        let (x, g, dy) = (still(t), t.fixed(&[cols]), t.fixed(&[rows, cols]));
        t.add(&what, LayerNormGrad { eps: 1e-6 }, vec![x, g, dy]);
        let (x, g) = (row(t), t.x(&[cols]));
        t.add(&what, RmsNorm { eps: 1e-5 }, vec![x, g]);
        let (x, g, dy) = (still(t), t.fixed(&[cols]), t.fixed(&[rows, cols]));
        t.add(&what, RmsNormGrad { eps: 1e-5 }, vec![x, g, dy]);
    }
    // A row without variance: only eps keeps it finite.
    let flat = || -> Operand { constant(Tensor::full(TensorType::f32(&[2, 6]), 0.5)) };
    let (g, b) = (t.fixed(&[6]), t.fixed(&[6]));
    t.add("flat rows", LayerNorm { eps: 1e-5 }, vec![flat(), g, b]);
    let zeros = constant(Tensor::full(TensorType::f32(&[2, 6]), 0.0));
    let g = t.fixed(&[6]);
    t.add("zero rows", RmsNorm { eps: 1e-5 }, vec![zeros, g]);
}

/// Not differentiated: its gradient is not that of the identity.
pub(super) fn detached(t: &mut Table) {
    let (x, y) = (t.fixed(&[6, 35]), t.fixed(&[2, 3, 4]));
    t.add("", Detach {}, vec![x]);
    t.add("of three axes", Detach {}, vec![y]);
    t.add("of integers", Detach {}, vec![ints(&[3, -1, 7])]);
}

/// More rows and columns than the tiles of kernels.
pub(super) fn larger(t: &mut Table) {
    for (rows, cols) in [(9, 1101), (150, 133)] {
        let what = format!("[{rows},{cols}]");
        let dims = [rows, cols];
        let row = |t: &mut Table| constant(t.within(&dims, -3.0, 5.0).tensor);
        let (x, g, b) = (row(t), t.fixed(&[cols]), t.fixed(&[cols]));
        t.add(&what, LayerNorm { eps: 1e-6 }, vec![x, g, b]);
        let (x, g, dy) = (row(t), t.fixed(&[cols]), t.fixed(&dims));
        t.add(&what, LayerNormGrad { eps: 1e-6 }, vec![x, g, dy]);
        let (x, g) = (row(t), t.fixed(&[cols]));
        t.add(&what, RmsNorm { eps: 1e-5 }, vec![x, g]);
        let (x, g, dy) = (row(t), t.fixed(&[cols]), t.fixed(&dims));
        t.add(&what, RmsNormGrad { eps: 1e-5 }, vec![x, g, dy]);
    }
}

/// Along each axis, of rows with and without pads.
pub(super) fn reversed(t: &mut Table) {
    for (what, dims, axis) in [
        ("of a vector", &[37][..], 0),
        ("of columns", &[7, 39], 1),
        ("of short columns", &[7, 5], 1),
        ("of rows", &[7, 39], 0),
        ("of dense rows", &[7, 48], 0),
        ("inside", &[3, 6, 5], 1),
        ("of the first of four axes", &[3, 2, 4, 33], 0),
        ("of the third of four axes", &[3, 2, 4, 33], 2),
        ("of the last of four axes", &[3, 2, 4, 33], 3),
        ("of one row", &[1, 35], 0),
        ("of one column", &[35, 1], 1),
    ] {
        let x = t.x(dims);
        t.add(what, Reverse { axis }, vec![x]);
    }
    t.add("of integers", Reverse { axis: 0 }, vec![ints(&[1, -2, 3, 4])]);
    // Longer than any tile.
    for (dims, axis) in [([2, 20_011], 1), ([1301, 37], 0)] {
        let x = t.fixed(&dims);
        t.add(&format!("of axis {axis} of {dims:?}"), Reverse { axis }, vec![x]);
    }
}
