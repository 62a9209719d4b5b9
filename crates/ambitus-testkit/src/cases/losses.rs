//! Cases of losses.

use super::{Table, constant, ints, numbers, poison, scalar};
use crate::tensor::Tensor;
use ambitus_ir::TensorType;
use ambitus_ir::ops::head::{HeadGrad, HeadLoss, HeadSums};
use ambitus_ir::ops::loss::{LinearCrossEntropy, LinearCrossEntropyGrad, MaskedMse, MaskedMseGrad};
use ambitus_ir::ops::parts::Span;

pub(super) fn losses(t: &mut Table) {
    let mask = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0];
    let (p, y) = (t.x(&[7, 37]), t.fixed(&[7, 37]));
    t.add("", MaskedMse {}, vec![p, y, numbers(&[7], &mask), scalar(0.0625)]);
    let (p, y) = (t.fixed(&[7, 37]), t.fixed(&[7, 37]));
    let operands = vec![p, y, numbers(&[7], &mask), scalar(0.0625), scalar(-1.5)];
    t.add("", MaskedMseGrad {}, operands);
    // More elements than one tile of the sum.
    let (p, y) = (t.x(&[97, 100]), t.fixed(&[97, 100]));
    let mask: Vec<f32> = (0..97).map(|i| if i % 5 == 0 { 0.0 } else { 1.0 }).collect();
    t.add("larger", MaskedMse {}, vec![p, y, numbers(&[97], &mask), scalar(1e-4)]);
    let (p, y) = (t.x(&[3, 4]), t.fixed(&[3, 4]));
    t.add("nothing scored", MaskedMse {}, vec![p, y, numbers(&[3], &[0.0; 3]), scalar(1.0)]);

    let labels: Vec<i32> = (0..23).map(|i| if i % 4 == 1 { -100 } else { i * 7 % 45 }).collect();
    for (what, tile, labels) in
        [("", 8, labels.clone()), ("one tile", 64, labels.clone()), ("nothing scored", 5, vec![-1; 23])]
    {
        let head = |t: &mut Table| {
            let (x, w) = (t.within(&[23, 33], -2.0, 2.0), t.x(&[45, 33]));
            vec![x, w, ints(&labels), scalar(0.125)]
        };
        let operands = head(t);
        t.add(what, LinearCrossEntropy { tile }, operands);
        let still = |t: &mut Table| -> Vec<_> { head(t).into_iter().map(|o| constant(o.tensor)).collect() };
        let mut operands = still(t);
        operands.push(scalar(-2.0));
        t.add(what, LinearCrossEntropyGrad { tile, dw: true, acc: false }, operands.clone());
        t.add(&format!("{what} frozen"), LinearCrossEntropyGrad { tile, dw: false, acc: false }, operands);
        let mut operands = still(t);
        operands.extend([scalar(1.0), t.fixed(&[45, 33]), scalar(1.0)]);
        let op = LinearCrossEntropyGrad { tile, dw: true, acc: true };
        t.add(&format!("{what} accumulating"), op.clone(), operands);
        let mut operands = still(t);
        operands.extend([scalar(1.0), poison(&[45, 33]), scalar(0.0)]);
        t.add(&format!("{what} beta 0"), op, operands);
    }
    // Classes 1024 to 1068 of more, first and after others.
    let part = |first| Some(Span { first, count: 45, of: 1100 });
    let labels: Vec<i32> = labels.iter().map(|l| if l % 3 == 0 { *l } else { l + 1024 }).collect();
    let head = |t: &mut Table| {
        let (x, w) = (t.fixed(&[23, 33]), t.fixed(&[45, 33]));
        vec![x, w, ints(&labels)]
    };
    let sums = |t: &mut Table| {
        let mut sums = t.rng.tensor(TensorType::f32(&[23, 3]), 1.0, 4.0);
        let scored = sums.data.chunks_mut(3).zip(&labels);
        scored.filter(|(_, l)| **l < 0).for_each(|(row, _)| row.fill(0.0));
        constant(sums)
    };
    let operands = head(t);
    t.add("first", HeadSums { tile: 8, part: part(0) }, operands);
    let mut before = sums(t);
    // No label of these classes was met before.
    let met = before.tensor.data.chunks_mut(3).zip(&labels);
    met.filter(|(_, l)| **l >= 1024).for_each(|(row, _)| row[2] = 0.0);
    let operands = [head(t), vec![before]].concat();
    t.add("further", HeadSums { tile: 8, part: part(1024) }, operands);
    let operands = vec![sums(t), ints(&labels), scalar(0.125)];
    t.add("", HeadLoss {}, operands);
    for (what, first, dw, acc) in [
        ("first", 0, true, false),
        ("first, accumulating", 0, true, true),
        ("further", 1024, true, true),
        ("further, frozen", 1024, false, false),
    ] {
        let mut operands = head(t);
        operands.extend([scalar(0.125), scalar(-2.0), sums(t)]);
        operands.extend((first > 0).then(|| t.fixed(&[23, 33])));
        operands.extend(acc.then(|| [t.fixed(&[45, 33]), scalar(0.5)]).into_iter().flatten());
        t.add(what, HeadGrad { tile: 8, part: part(first), dw, acc }, operands);
    }
    // More classes than a block of threads takes at a time.
    let wide = |t: &mut Table| {
        let (x, w) = (t.fixed(&[5, 7]), t.fixed(&[2309, 7]));
        vec![x, w, ints(&[2308, -100, 0, 1024, 1023]), scalar(0.25)]
    };
    let operands = wide(t);
    t.add("many classes", LinearCrossEntropy { tile: 3 }, operands);
    let mut operands = wide(t);
    operands.push(scalar(-2.0));
    t.add("many classes", LinearCrossEntropyGrad { tile: 3, dw: true, acc: false }, operands);
    // Logits far beyond where e^x overflows.
    let x = constant(Tensor::full(TensorType::f32(&[2, 3]), 100.0));
    let w = numbers(&[3, 3], &[9.0, 9.0, 9.0, -9.0, -9.0, -9.0, 8.0, 8.0, 8.0]);
    let operands = vec![x, w, ints(&[2, 0]), scalar(1.0)];
    t.add("huge logits", LinearCrossEntropy { tile: 2 }, operands);
}
