//! Cases of losses.

use super::{Table, constant, ints, numbers, poison, scalar};
use crate::tensor::Tensor;
use ambitus_ir::TensorType;
use ambitus_ir::ops::loss::{LinearCrossEntropy, LinearCrossEntropyGrad, MaskedMse, MaskedMseGrad};

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
