//! Cases of ops that overwrite states, and of copies.

use super::{Operand, Table, constant, ints, poison, scalar};
use crate::tensor::Tensor;
use ambitus_ir::ops::collective::{
    AllGatherStart, CollectiveDone, Group, Mesh, Part, Parts, ReduceScatterStart,
};
use ambitus_ir::ops::copy::{CopyDone, CopyStart, Space, StoreStart};
use ambitus_ir::ops::lion::{Lion, Lion8bit, LionBf16};
use ambitus_ir::ops::narrow::{AdamW8bit, AdamWBf16, eight_bit};
use ambitus_ir::ops::optim::{Accumulate, AdamW, Lerp, SumPartials, SumSquares};
use ambitus_ir::ops::parts::Span;
use ambitus_ir::ops::transfer::{End, Route, TransferStart};
use ambitus_ir::{DType, Shape, TensorType};

pub(super) fn updates(t: &mut Table) {
    let (acc, x) = (t.fixed(&[5, 37]), t.fixed(&[5, 37]));
    t.add("", Accumulate {}, vec![acc, x, scalar(0.75)]);
    let x = t.fixed(&[5, 37]);
    t.add("beta 0", Accumulate {}, vec![poison(&[5, 37]), x, scalar(0.0)]);

    for (what, dims) in
        [("less than a part", &[5, 37][..]), ("three parts", &[95, 99]), ("whole parts", &[2, 4, 1024])]
    {
        let x = t.fixed(dims);
        t.add(what, SumSquares {}, vec![x]);
    }
    let parts = vec![t.fixed(&[3]), t.fixed(&[1]), t.fixed(&[7])];
    t.add("", SumPartials {}, parts);
    let parts = (0..101).map(|i| t.fixed(&[1 + i % 3 * 150])).collect();
    t.add("many tensors", SumPartials {}, parts);

    // (what, step, apply, beta1, weight decay)
    for (what, step, apply, beta1, weight_decay) in [
        ("first", 1.0, 1.0, 0.9, 0.01),
        ("later", 1234.0, 1.0, 0.9, 0.01),
        ("without decay or momentum", 7.0, 1.0, 0.0, 0.0),
        ("not applied", 3.0, 0.0, 0.9, 0.01),
    ] {
        let op = AdamW { beta1, beta2: 0.999, eps: 1e-8, weight_decay };
        let (w, m) = (t.fixed(&[5, 37]), t.fixed(&[5, 37]));
        // A gradient that is not finite must not touch a state that is not updated.
        let g: Operand = if apply == 0.0 { poison(&[5, 37]) } else { t.fixed(&[5, 37]) };
        let v = constant(t.within(&[5, 37], 0.01, 1.0).tensor);
        let scalars = [scalar(1e-3), scalar(0.5), scalar(step), scalar(apply)];
        let mut operands = vec![w, g, m, v];
        operands.extend(scalars);
        t.add(what, op, operands);
    }

    for (what, decay, apply) in [("", 0.75, 1.0), ("decay 0", 0.0, 1.0), ("not applied", 0.75, 0.0)] {
        let (a, b) = (t.fixed(&[5, 37]), t.fixed(&[5, 37]));
        t.add(what, Lerp {}, vec![a, b, scalar(decay), scalar(apply)]);
    }

    bf16(t);
    eight_bits(t);
    lion(t);
    let (a, b) = (t.fixed(&[5, 37]), stored(t, DType::BF16, &[5, 37], -1.0, 1.0));
    t.add("of bf16 weights", Lerp {}, vec![a, b, scalar(0.75), scalar(1.0)]);

    let x = t.fixed(&[5, 37]);
    t.add("", CopyStart { queue: 1, to: Space::Host }, vec![x.clone()]);
    let old = t.fixed(&[5, 37]);
    t.add("", StoreStart { queue: 1 }, vec![x.clone(), old]);
    let token = constant(Tensor::full(TensorType::new(DType::U8, &[1]), 0.0));
    t.add("", CopyDone { queue: 1 }, vec![x.clone(), x, token]);
}

/// What ranks do, but of one rank: rows with pads, gaps between the parts and at the end; the third shard of a weight.
pub(super) fn ranks(t: &mut Table) {
    let op =
        AdamWBf16 { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, id: 0x1_0000_0007, part: None };
    let dims = [8, 37];
    let (w, m) = (stored(t, DType::BF16, &dims, -1.0, 1.0), stored(t, DType::BF16, &dims, -1.0, 1.0));
    let (g, v) = (t.fixed(&dims), stored(t, DType::BF16, &dims, 0.01, 1.0));
    let operands = [vec![w, g, m, v], scalars(1.0, 1.0).to_vec(), vec![ints(&[-5, 40, 2])]].concat();
    t.add("a shard", op.clone(), operands.clone());
    let part = Some(Span { first: 512, count: 296, of: 1000 });
    t.add("a part of a shard", AdamWBf16 { part, ..op }, operands);

    let token = constant(Tensor::full(TensorType::new(DType::U8, &[1]), 0.0));
    let mesh = Mesh { ranks: 1, shard: 1 };
    let part = |at, dims: &[usize]| Part { at, shape: Shape::new(dims) };
    let parts = Parts(vec![part(0, &[5, 37]), part(256, &[3]), part(300, &[2, 3, 4])]);
    let flat = t.fixed(&[512]);
    t.add(
        "",
        AllGatherStart { queue: 2, mesh, group: Group::Shard, parts: parts.clone() },
        vec![flat.clone()],
    );
    let tensors = parts.0.iter().map(|p| t.fixed(&p.shape)).collect();
    let piece = Shape::new(&[2, 256]);
    t.add("", ReduceScatterStart { queue: 3, mesh, parts, piece }, tensors);
    // What a start made of the flat's first elements.
    let made = [(0, [5, 37]), (185, [2, 3])].map(|(at, dims)| {
        let ty = TensorType::f32(&dims);
        constant(Tensor::new(ty, flat.tensor.data[at..][..ty.shape.elements()].to_vec()))
    });
    let route = Route { from: 0, to: 0, ranks: 1 };
    for (what, x) in [
        ("", t.fixed(&[5, 37])),
        ("in 16 bits", stored(t, DType::BF16, &[3, 35], -1.0, 1.0)),
        ("of a table", ints(&[4, -1, 7])),
    ] {
        t.add(what, TransferStart::new(route, End::Both, x.tensor.ty), vec![x]);
    }
    let done = CollectiveDone { queue: 2, members: 1, sources: 1, results: 2 };
    t.add("", done, [vec![flat], made.to_vec(), vec![token]].concat());
}

/// Returns an operand of numbers in low..high as a type stores them.
fn stored(t: &mut Table, dtype: DType, dims: &[usize], low: f64, high: f64) -> Operand {
    constant(t.rng.tensor(TensorType::new(dtype, dims), low, high))
}

/// lr, coef, t, apply; and the key of what is rounded stochastically.
fn scalars(step: f32, apply: f32) -> [Operand; 4] {
    [scalar(1e-3), scalar(0.5), scalar(step), scalar(apply)]
}

/// Rows that are padded by other amounts in 16 bits than in 32, and longer than a random block or a tile.
fn bf16(t: &mut Table) {
    use DType::{BF16, F32};
    // (what, axes, types of w, m, v, update, apply)
    for (what, dims, types, step, apply) in [
        ("all narrow", &[5, 37][..], [BF16; 3], 1.0, 1.0),
        ("narrow moments", &[5, 37], [F32, BF16, BF16], 1234.0, 1.0),
        ("narrow weight", &[3, 5, 7], [BF16, F32, F32], 7.0, 1.0),
        ("several tiles", &[9, 1003], [BF16; 3], 7.0, 1.0),
        ("not applied", &[5, 37], [BF16; 3], 7.0, 0.0),
    ] {
        let op = AdamWBf16 {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
            id: 0x1_0000_0007,
            part: None,
        };
        let g = if apply == 0.0 { poison(dims) } else { t.fixed(dims) };
        let (w, m) = (stored(t, types[0], dims, -1.0, 1.0), stored(t, types[1], dims, -1.0, 1.0));
        let v = stored(t, types[2], dims, 0.01, 1.0);
        let mut operands = vec![w, g, m, v];
        operands.extend(scalars(step, apply));
        operands.push(ints(&[-5, 40]));
        t.add(what, op, operands);
    }
}

/// Lion in fp32, with a bf16 weight, and with a moment in 8 bits; a gradient of zero where there never was one.
fn lion(t: &mut Table) {
    use DType::{BF16, F32};
    let (beta1, beta2, weight_decay, id) = (0.9, 0.99, 0.5, 0x1_0000_0007);
    for (what, dims, w, bits, apply) in [
        ("", &[5, 37][..], F32, 32, 1.0),
        ("not applied", &[5, 37], F32, 32, 0.0),
        ("", &[3, 5, 7], BF16, 32, 1.0),
        ("several tiles", &[9, 1003], BF16, 32, 1.0),
        ("a part", &[16, 64], BF16, 32, 1.0),
        ("not applied", &[5, 37], BF16, 32, 0.0),
        ("", &[7, 43], F32, 8, 1.0),
        ("several tiles", &[9, 1003], F32, 8, 1.0),
        ("narrow weight", &[16, 64], BF16, 8, 1.0),
        ("a part", &[16, 64], BF16, 8, 1.0),
        ("not applied", &[7, 43], BF16, 8, 0.0),
    ] {
        let mut g = if apply == 0.0 { poison(dims) } else { t.fixed(dims) };
        let w = stored(t, w, dims, -1.0, 1.0);
        let (codes, scales) = eight_bit(w.tensor.ty);
        let n = codes.shape.elements();
        let mut m = if bits == 8 {
            let mut codes = t.rng.tensor(codes, 0.0, 256.0);
            codes.data.iter_mut().for_each(|c| *c = c.floor());
            vec![codes, t.rng.tensor(scales, 0.1, 1.0)]
        } else {
            vec![t.rng.tensor(TensorType::f32(dims), -1.0, 1.0)]
        };
        for i in (0..n).step_by(5).filter(|_| apply != 0.0) {
            g.tensor.data[i] = 0.0;
            m[0].data[i] = if bits == 8 { 127.0 } else { 0.0 };
        }
        let narrow = w.tensor.ty.dtype == BF16;
        let mut operands = vec![w, g];
        operands.extend(m.into_iter().map(constant));
        operands.extend([scalar(1e-3), scalar(0.5), scalar(apply)]);
        operands.extend(narrow.then(|| ints(&[-5, 40])));
        let part = (what == "a part").then_some(Span { first: 1 << 20, count: n, of: 1 << 21 });
        match (bits, narrow) {
            (8, _) => t.add(what, Lion8bit { beta1, beta2, weight_decay, id, part }, operands),
            (_, true) => t.add(what, LionBf16 { beta1, beta2, weight_decay, id, part }, operands),
            (_, false) => t.add(what, Lion { beta1, beta2, weight_decay }, operands),
        }
    }
}

/// Blocks that end within rows, a last one that is not full, elements that never had a gradient.
fn eight_bits(t: &mut Table) {
    for (what, dims, w, step, apply) in [
        ("", &[7, 43][..], DType::F32, 7.0, 1.0),
        ("first", &[2, 3, 128], DType::F32, 1.0, 1.0),
        ("several tiles", &[9, 1003], DType::F32, 1234.0, 1.0),
        ("narrow weight", &[16, 64], DType::BF16, 7.0, 1.0),
        ("a part", &[16, 64], DType::BF16, 7.0, 1.0),
        ("not applied", &[7, 43], DType::BF16, 7.0, 0.0),
    ] {
        let mut op = AdamW8bit {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
            id: 0x1_0000_0007,
            part: None,
        };
        let mut g = if apply == 0.0 { poison(dims) } else { t.fixed(dims) };
        let w = stored(t, w, dims, -1.0, 1.0);
        let (codes, scales) = eight_bit(w.tensor.ty);
        let n = codes.shape.elements();
        let mut moment = |least: f64| {
            let mut codes = t.rng.tensor(codes, least, 256.0);
            codes.data.iter_mut().for_each(|c| *c = c.floor());
            [codes, t.rng.tensor(scales, 0.1, 1.0)]
        };
        // Second moments not so small that a step is large.
        let (mut m, mut v) = (moment(0.0), moment(160.0));
        for i in (0..n).step_by(5).filter(|_| apply != 0.0) {
            g.tensor.data[i] = 0.0;
        }
        for i in (0..n).step_by(7).filter(|_| apply != 0.0) {
            // Nothing before, little now: next to the others it would be rounded to zero.
            g.tensor.data[i] = f64::from(1e-6f32);
            (m[0].data[i], v[0].data[i]) = (127.0, 0.0);
        }
        if step == 1.0 {
            m.iter_mut().chain(&mut v).for_each(|t| t.data.fill(0.0));
        }
        if what == "a part" {
            op.part = Some(Span { first: 1 << 20, count: n, of: 1 << 21 });
        }
        let mut operands = vec![w.clone(), g];
        operands.extend(m.into_iter().chain(v).map(constant));
        operands.extend(scalars(step, apply));
        if w.tensor.ty.dtype == DType::BF16 {
            operands.push(ints(&[-5, 40]));
        }
        t.add(what, op, operands);
    }
}
