//! Cases of ops that know segments.

use super::{Operand, Table, constant, ints, poison, scalar};
use crate::interp::{Interp, Rounding};
use crate::tensor::Tensor;
use ambitus_ir::TensorType;
use ambitus_ir::ops::attention::{Attention, AttentionGrad, Rotary, RotaryFrequencies};
use ambitus_ir::ops::conv::{Conv1d, Conv1dInputGrad, Conv1dWeightGrad};
use ambitus_ir::ops::norm::{Grn, GrnGrad};
use ambitus_ir::ops::random::Dropout;
use ambitus_ir::ops::recurrent::Lstm;
use ambitus_ir::ops::segment::{
    AdaLayerNorm, AdaLayerNormGrad, GatedResidual, GatedResidualGrad, SegmentBroadcast, SegmentIds,
    SegmentPositions, SegmentSum,
};

/// A packing: its name, rows, segment table.
struct Packing(&'static str, usize, &'static [i32]);

/// What every segmented op is tried on.
const PACKINGS: [Packing; 4] = [
    Packing("packed", 23, &[0, 5, 5, 12, 19]),
    Packing("full", 12, &[0, 1, 12]),
    Packing("one segment", 9, &[0, 9]),
    Packing("all empty", 6, &[0, 0, 0, 0]),
];

impl Packing {
    fn segments(&self) -> usize {
        self.2.len() - 1
    }
}

pub(super) fn tables(t: &mut Table) {
    for p in &PACKINGS {
        let (rows, segs) = (p.1, p.segments());
        let table = || ints(p.2);
        t.add(p.0, SegmentIds { rows }, vec![table()]);
        t.add(p.0, SegmentPositions { rows }, vec![table()]);
        let x = t.x(&[segs, 37]);
        t.add(p.0, SegmentBroadcast { rows }, vec![x, table()]);
        let x = t.x(&[rows, 37]);
        t.add(p.0, SegmentSum {}, vec![x, table()]);
        let (x, g, f) = (t.x(&[rows, 35]), t.x(&[segs, 35]), t.x(&[rows, 35]));
        t.add(p.0, GatedResidual {}, vec![x, g, f, table()]);
        let (g, f, dy) = (t.fixed(&[segs, 35]), t.fixed(&[rows, 35]), t.fixed(&[rows, 35]));
        t.add(p.0, GatedResidualGrad {}, vec![g, f, dy, table()]);
    }
    // Segments longer than a tile of rows, some that end where tiles do.
    let table = [0, 0, 1, 129, 385, 385, 642, 643, 700];
    let (segs, x) = (t.fixed(&[8, 45]), t.fixed(&[711, 45]));
    t.add("long", SegmentBroadcast { rows: 711 }, vec![segs, ints(&table)]);
    t.add("long", SegmentSum {}, vec![x, ints(&table)]);
}

pub(super) fn norms(t: &mut Table) {
    for p in &PACKINGS {
        let (rows, segs) = (p.1, p.segments());
        let table = || ints(p.2);
        let (x, shift, scale) = (t.within(&[rows, 37], -3.0, 5.0), t.x(&[segs, 37]), t.x(&[segs, 37]));
        t.add(p.0, AdaLayerNorm { eps: 1e-6 }, vec![x, shift, scale, table()]);
        let (x, scale, dy) = (t.fixed(&[rows, 37]), t.fixed(&[segs, 37]), t.fixed(&[rows, 37]));
        t.add(p.0, AdaLayerNormGrad { eps: 1e-6 }, vec![x, scale, dy, table()]);
        let (x, g, b) = (t.x(&[rows, 37]), t.x(&[37]), t.x(&[37]));
        t.add(p.0, Grn { eps: 1e-6 }, vec![x, g, b, table()]);
        let (x, g, dy) = (t.fixed(&[rows, 37]), t.fixed(&[37]), t.fixed(&[rows, 37]));
        t.add(p.0, GrnGrad { eps: 1e-6 }, vec![x, g, dy, table()]);
    }
    // Channels 1 and 2 are silent in the first segment: G is 0 there.
    let mut x = t.fixed(&[7, 4]);
    for row in 0..3 {
        x.tensor.data[row * 4 + 1] = 0.0;
        x.tensor.data[row * 4 + 2] = 0.0;
    }
    let (g, dy) = (t.fixed(&[4]), t.fixed(&[7, 4]));
    t.add("silent channels", GrnGrad { eps: 1e-6 }, vec![x, g, dy, ints(&[0, 3, 6])]);
}

fn rotary(t: &mut Table) {
    t.add("", RotaryFrequencies { dim: 64, base: 10_000.0 }, vec![]);
    t.add("of llama", RotaryFrequencies { dim: 10, base: 500_000.0 }, vec![]);
    for p in &PACKINGS {
        for (what, rotated, interleaved, inverse) in [
            ("neighbours, first head", 1, true, false),
            ("halves", 3, false, false),
            ("halves, back", 2, false, true),
            ("neighbours, back", 3, true, true),
        ] {
            let x = t.x(&[p.1, 36]);
            let freqs = constant(Tensor::f32(&[6], &[1.0, 0.4, 0.15, 0.06, 0.02, 0.01]));
            let op = Rotary { head_dim: 12, rotated, interleaved, inverse };
            t.add(&format!("{what}, {}", p.0), op, vec![x, freqs, ints(p.2)]);
        }
    }

    // More pairs than a block of threads, and more heads than a thread turns by one angle.
    let (x, freqs) = (t.x(&[100, 6 * 18]), t.fixed(&[9]));
    let op = Rotary { head_dim: 18, rotated: 5, interleaved: false, inverse: false };
    t.add("six heads", op, vec![x, freqs, ints(&[0, 40, 40, 97])]);

    let (x, freqs) = (t.x(&[7, 3 * 12]), t.fixed(&[6]));
    let op = Rotary { head_dim: 12, rotated: 2, interleaved: false, inverse: false };
    let (segs, at) = (ints(&[0, 1, 1, 6]), ints(&[40, 3, 0, 7, 8, 60, 5]));
    t.add("positions given", op, vec![x, freqs, segs, at]);
}

/// (what, op, query rows, key rows, query segments, key segments)
type AttentionCase = (&'static str, Attention, usize, usize, &'static [i32], &'static [i32]);

pub(super) fn attention(t: &mut Table) {
    rotary(t);
    let op = |heads, kv_heads, head_dim, causal| Attention {
        heads,
        kv_heads,
        head_dim,
        causal,
        scale: 1.0 / (head_dim as f32).sqrt(),
    };
    let packed: &[i32] = &[0, 5, 5, 12, 19];
    // Several tiles of an executor, of up to 64 rows, with clips that begin and end inside them.
    let (tiles, aligned): (&[i32], &[i32]) = (&[0, 3, 3, 90, 141], &[0, 64, 128]);
    let table: [AttentionCase; 19] = [
        ("self", op(3, 3, 6, false), 23, 23, packed, packed),
        ("causal", op(2, 2, 8, true), 23, 23, packed, packed),
        ("grouped, causal", op(6, 2, 6, true), 23, 23, packed, packed),
        ("one key head", op(4, 1, 10, false), 12, 12, &[0, 1, 12], &[0, 1, 12]),
        // The second segment has queries but no keys, the third keys but no queries.
        ("cross", op(2, 1, 18, false), 17, 29, &[0, 4, 11, 11, 15], &[0, 9, 9, 20, 27]),
        ("all empty", op(2, 2, 4, false), 6, 6, &[0, 0, 0], &[0, 0, 0]),
        ("all empty, eight channels", op(2, 2, 8, true), 6, 6, &[0, 0, 0], &[0, 0, 0]),
        ("larger", op(2, 1, 64, true), 150, 150, &[0, 70, 139], &[0, 70, 139]),
        ("tiles", op(4, 2, 40, false), 150, 150, tiles, tiles),
        ("tiles, causal", op(4, 2, 40, true), 150, 150, tiles, tiles),
        ("aligned tiles", op(2, 2, 64, false), 128, 128, aligned, aligned),
        ("tiles, cross", op(1, 1, 64, false), 140, 170, &[0, 70, 70, 95, 133], &[0, 10, 30, 30, 162]),
        // More queries than keys, then fewer.
        ("tiles, cross, causal", op(2, 1, 20, true), 100, 150, &[0, 75, 79, 95], &[0, 20, 121, 121]),
        ("96 channels", op(2, 1, 96, true), 70, 70, &[0, 2, 68], &[0, 2, 68]),
        ("128 channels", op(4, 2, 128, true), 150, 150, tiles, tiles),
        ("128 channels, cross", op(2, 1, 128, false), 70, 100, &[0, 66], &[0, 97]),
        ("130 channels", op(2, 1, 130, false), 70, 70, &[0, 67], &[0, 67]),
        ("many heads", op(33, 11, 2, true), 12, 12, &[0, 1, 12], &[0, 1, 12]),
        ("all empty, 64 channels", op(2, 1, 64, true), 6, 6, &[0, 0, 0], &[0, 0, 0]),
    ];
    for (what, op, tq, tk, qs, ks) in table {
        let (wide, kwide) = (op.heads * op.head_dim, op.kv_heads * op.head_dim);
        let q = t.within(&[tq, wide], -2.0, 2.0);
        let k = t.within(&[tk, kwide], -2.0, 2.0);
        let v = t.x(&[tk, kwide]);
        let operands = vec![q, k, v, ints(qs), ints(ks)];
        // What the gradient reads of the forward op has to belong to its operands.
        let x: Vec<Tensor> = operands.iter().map(|o| o.tensor.clone()).collect();
        let y = Interp::new(Rounding::ToType).op(&op.clone().into(), &x);
        let y = y.expect("the case fits its op");
        let grad = AttentionGrad {
            heads: op.heads,
            kv_heads: op.kv_heads,
            head_dim: op.head_dim,
            causal: op.causal,
            scale: op.scale,
        };
        let still = |i: usize| constant(x[i].clone());
        let mut more: Vec<Operand> = (0..3).map(still).collect();
        more.extend(y.into_iter().map(constant));
        more.push(t.fixed(&[tq, wide]));
        more.extend([still(3), still(4)]);
        // What rows of no segment hold must not matter.
        if what == "tiles" || what == "tiles, causal" {
            let (q_end, k_end) = (qs[qs.len() - 1] as usize, ks[ks.len() - 1] as usize);
            let spoil = |all: &[Operand], which: &[(usize, usize)]| {
                let mut all: Vec<Operand> = all.iter().map(|o| constant(o.tensor.clone())).collect();
                for (i, end) in which {
                    let cols = all[*i].tensor.ty.shape.cols();
                    all[*i].tensor.data[end * cols..].fill(f64::NAN);
                }
                all
            };
            let name = format!("{what}, NaN outside");
            t.add(&name, op.clone(), spoil(&operands, &[(0, q_end), (1, k_end), (2, k_end)]));
            let which = [(0, q_end), (1, k_end), (2, k_end), (5, q_end)];
            t.add(&name, grad.clone(), spoil(&more, &which));
        }
        t.add(what, op, operands);
        t.add(what, grad, more);
    }
}

/// One or few queries of each sequence over what is cached of it: every second segment of keys is what it does not use, and has no
/// query. Few keys and many, for heads that fill a vector and that do not, alone and in large groups.
pub(super) fn decoding(t: &mut Table) {
    // (what, [query heads, key heads, channels], causal, query rows, query segments, key segments)
    type Decoding = (&'static str, [usize; 3], bool, usize, &'static [i32], &'static [i32]);
    let one_each: &[i32] = &[0, 1, 1, 2, 2, 3, 3];
    let table: [Decoding; 6] = [
        ("one row of each", [6, 2, 64], false, 3, one_each, &[0, 200, 300, 301, 600, 663, 900]),
        // A sequence that has ended sees nothing; the last row is of no sequence.
        (
            "of some",
            [2, 2, 128],
            false,
            4,
            &[0, 1, 1, 1, 1, 2, 2, 3, 3],
            &[0, 64, 90, 99, 180, 245, 270, 270, 360],
        ),
        ("one sequence, many keys", [3, 1, 32], false, 1, &[0, 1, 1], &[0, 1100, 1200]),
        ("a large group", [7, 1, 12], false, 2, &[0, 1, 1, 2, 2], &[0, 70, 80, 160, 160]),
        ("few rows, causal", [2, 1, 8], true, 3, &[0, 2, 2, 3], &[0, 5, 9, 14]),
        ("an odd head", [2, 1, 6], false, 2, &[0, 1, 2], &[0, 9, 20]),
    ];
    for (what, [heads, kv_heads, head_dim], causal, rows, queries, keys) in table {
        let op = Attention { heads, kv_heads, head_dim, causal, scale: 1.0 / (head_dim as f32).sqrt() };
        let all = keys[keys.len() - 1] as usize;
        let (q, k, v) = (
            constant(t.within(&[rows, heads * head_dim], -2.0, 2.0).tensor),
            constant(t.within(&[all + 3, kv_heads * head_dim], -2.0, 2.0).tensor),
            t.fixed(&[all + 3, kv_heads * head_dim]),
        );
        t.add(what, op, vec![q, k, v, ints(queries), ints(keys)]);
    }
}

pub(super) fn conv(t: &mut Table) {
    for p in &PACKINGS {
        // (what, channels in, out, groups, taps, pad)
        for (what, cin, cout, groups, taps, pad) in [
            ("plain", 5, 37, 1, 3, 1),
            ("grouped", 36, 36, 3, 7, 3),
            ("depthwise", 35, 35, 35, 7, 3),
            ("causal", 6, 4, 2, 4, 3),
            ("one tap", 4, 3, 1, 1, 0),
        ] {
            let rows = p.1;
            let what = format!("{what}, {}", p.0);
            let dims = [cout, cin / groups, taps];
            let (x, w, b) = (t.x(&[rows, cin]), t.x(&dims), t.x(&[cout]));
            t.add(&what, Conv1d { groups, pad }, vec![x, w, b, ints(p.2)]);
            let (w, dy) = (t.fixed(&dims), t.fixed(&[rows, cout]));
            t.add(&what, Conv1dInputGrad { groups, pad }, vec![w, dy, ints(p.2)]);
            let (x, dy) = (t.fixed(&[rows, cin]), t.fixed(&[rows, cout]));
            let op = Conv1dWeightGrad { groups, pad, taps, acc: false };
            t.add(&what, op, vec![x, dy, ints(p.2)]);
        }
    }
    let op = Conv1dWeightGrad { groups: 2, pad: 2, taps: 5, acc: true };
    let dims = [6, 2, 5];
    let table = [0, 5, 5, 12];
    let (x, dy, acc) = (t.fixed(&[15, 4]), t.fixed(&[15, 6]), t.fixed(&dims));
    t.add("accumulating", op.clone(), vec![x, dy, ints(&table), acc, scalar(1.0)]);
    let (x, dy) = (t.fixed(&[15, 4]), t.fixed(&[15, 6]));
    t.add("beta 0", op, vec![x, dy, ints(&table), poison(&dims), scalar(0.0)]);
}

pub(super) fn recurrent(t: &mut Table) {
    for p in &PACKINGS {
        for hidden in [1, 9] {
            let (rows, segs, what) = (p.1, p.segments(), format!("{hidden} wide, {}", p.0));
            let (x, w) =
                (constant(t.within(&[rows, 4 * hidden], -3.0, 3.0).tensor), t.fixed(&[4 * hidden, hidden]));
            let (h, c) = (t.fixed(&[segs, hidden]), t.fixed(&[segs, hidden]));
            t.add(&what, Lstm {}, vec![x, w, h, c, ints(p.2)]);
        }
    }
}

/// Convolutions larger than the tiles of any executor's kernels: many rows, channels, taps.
pub(super) fn large_conv(t: &mut Table) {
    let (rows, table) = (301, [0, 3, 3, 150, 290]);
    for (what, cin, cout, groups, taps, pad) in [
        ("many inputs", 41, 6, 1, 3, 1),
        ("many outputs", 6, 138, 2, 9, 4),
        ("many taps", 4, 5, 1, 37, 20),
        ("wide, depthwise", 135, 135, 135, 11, 2),
        ("many groups", 64, 64, 32, 16, 7),
        ("tensor cores", 72, 136, 1, 3, 1),
        ("tensor cores, groups", 48, 32, 2, 31, 15),
    ] {
        let what = format!("large, {what}");
        let dims = [cout, cin / groups, taps];
        let (x, w, b) = (t.fixed(&[rows, cin]), t.fixed(&dims), t.fixed(&[cout]));
        t.add(&what, Conv1d { groups, pad }, vec![x, w, b, ints(&table)]);
        let (w, dy) = (t.fixed(&dims), t.fixed(&[rows, cout]));
        t.add(&what, Conv1dInputGrad { groups, pad }, vec![w, dy, ints(&table)]);
        let (x, dy) = (t.fixed(&[rows, cin]), t.fixed(&[rows, cout]));
        let op = Conv1dWeightGrad { groups, pad, taps, acc: false };
        t.add(&what, op, vec![x, dy, ints(&table)]);
    }
    // More tiles of rows than an executor sums apart.
    let (x, dy) = (t.fixed(&[700, 48]), t.fixed(&[700, 72]));
    let op = Conv1dWeightGrad { groups: 1, pad: 16, taps: 33, acc: false };
    t.add("large, many rows", op, vec![x, dy, ints(&[0, 350, 700])]);
}

pub(super) fn random(t: &mut Table) {
    for p in &PACKINGS {
        let x = t.x(&[p.1, 37]);
        let keys: Vec<f64> = (0..2 * p.segments()).map(|_| f64::from(t.rng.bits() as i32)).collect();
        let keys = constant(Tensor::new(TensorType::i32(&[p.segments(), 2]), keys));
        let op = Dropout { p: 0.3, id: 0xdead_beef_0123_4567 };
        t.add(p.0, op, vec![x, keys, ints(p.2)]);
    }
    let x = t.fixed(&[7, 1031]);
    let keys = constant(Tensor::full(TensorType::i32(&[2, 2]), -5.0));
    t.add("wide", Dropout { p: 0.1, id: 7 }, vec![x, keys, ints(&[0, 2, 6])]);
    let x = t.x(&[4, 5]);
    let keys = constant(Tensor::full(TensorType::i32(&[1, 2]), 3.0));
    t.add("p 0", Dropout { p: 0.0, id: 1 }, vec![x, keys, ints(&[0, 3])]);
}

/// More rows and columns than the tiles of kernels.
pub(super) fn larger(t: &mut Table) {
    let wide: (usize, &[i32]) = (1101, &[0, 4, 4, 7]);
    let long: (usize, &[i32]) = (133, &[0, 90, 97, 145]);
    for (rows, (cols, offsets)) in [(9, wide), (150, long)] {
        let what = format!("[{rows},{cols}]");
        let (dims, table) = ([rows, cols], [offsets.len() - 1, cols]);
        let (x, shift, scale) = (t.fixed(&dims), t.fixed(&table), t.fixed(&table));
        t.add(&what, AdaLayerNorm { eps: 1e-6 }, vec![x, shift, scale, ints(offsets)]);
        let (x, scale, dy) = (t.fixed(&dims), t.fixed(&table), t.fixed(&dims));
        t.add(&what, AdaLayerNormGrad { eps: 1e-6 }, vec![x, scale, dy, ints(offsets)]);
        let (x, gate, f) = (t.fixed(&dims), t.fixed(&table), t.fixed(&dims));
        t.add(&what, GatedResidual {}, vec![x, gate, f, ints(offsets)]);
        let (gate, f, dy) = (t.fixed(&table), t.fixed(&dims), t.fixed(&dims));
        t.add(&what, GatedResidualGrad {}, vec![gate, f, dy, ints(offsets)]);
    }
}
