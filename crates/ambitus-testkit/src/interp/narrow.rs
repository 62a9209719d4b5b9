//! AdamW and Lion with narrow weights and moments, one element after another. What is stored is defined on fp32's bits, so every
//! number is rounded to fp32 before it is made narrow.

use super::core::Data;
use crate::tensor::Tensor;
use ambitus_ir::ops::lion::{Lion, Lion8bit, LionBf16};
use ambitus_ir::ops::narrow::{AdamW8bit, AdamWBf16, BLOCK, dynamic_map};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::ops::parts::Span;
use ambitus_ir::ops::random::philox4x32_10;
use ambitus_ir::{DType, TensorType};
use std::rc::Rc;

/// The scalars lr, coef, t, apply.
type Scalars = [f64; 4];

fn scalars(x: &[Rc<Tensor>]) -> Scalars {
    [0, 1, 2, 3].map(|i| x[i].data[0])
}

/// New w, m, v of one element, to fp32.
fn step(op: &AdamW, [lr, coef, t, _]: Scalars, [w, g, m, v]: [f64; 4]) -> [f64; 3] {
    let g = coef * g;
    let m = op.beta1 * m + (1.0 - op.beta1) * g;
    let v = op.beta2 * v + (1.0 - op.beta2) * g * g;
    let (c1, c2) = (1.0 - op.beta1.powf(t), 1.0 - op.beta2.powf(t));
    let w = w * (1.0 - lr * op.weight_decay) - lr / c1 * m / ((v / c2).sqrt() + op.eps);
    [w, m, v].map(|x| f64::from(x as f32))
}

/// Returns the random word of element n of a part of a weight, or of a shard.
fn word(id: u64, seed: &Tensor, part: Span, n: usize) -> u32 {
    let n = n + part.first + seed.data.get(2).map_or(0, |shard| *shard as usize * part.of);
    let counter = [(n / 4) as u32, ((n as u64 / 4) >> 32) as u32, id as u32, (id >> 32) as u32];
    philox4x32_10(counter, [0, 1].map(|i| seed.data[i] as i32 as u32))[n % 4]
}

/// One of x's two neighbours in bf16, or x itself.
fn stochastic(x: f64, random: u32) -> f64 {
    let bits = (x as f32).to_bits();
    let (below, part) = (bits & 0xffff_0000, bits & 0xffff);
    f64::from(f32::from_bits(if part + random > 0xffff { below + 0x1_0000 } else { below }))
}

/// Returns what a value of this type keeps of x; the random half-word is for bf16.
fn stored(ty: TensorType, x: f64, random: u32) -> f64 {
    if ty.dtype == DType::BF16 { stochastic(x, random) } else { x }
}

pub(super) fn bf16(op: &AdamWBf16, x: &[Rc<Tensor>]) -> Vec<Data> {
    let scalars = scalars(&x[4..]);
    let mut y = [0, 2, 3].map(|k| x[k].data.clone());
    if scalars[3] == 0.0 {
        return y.into();
    }
    let AdamWBf16 { beta1, beta2, eps, weight_decay, id, part } = *op;
    let part = part.unwrap_or(Span { first: 0, count: y[0].len(), of: y[0].len() });
    let op = AdamW { beta1, beta2, eps, weight_decay };
    for i in 0..y[0].len() {
        let [w, m, v] = step(&op, scalars, [0, 1, 2, 3].map(|k| x[k].data[i]));
        let random = word(id, &x[8], part, i);
        y[0][i] = stored(x[0].ty, w, random >> 16);
        y[1][i] = if x[2].ty.dtype == DType::BF16 { half::bf16::from_f64(m).to_f64() } else { m };
        y[2][i] = stored(x[3].ty, v, random & 0xffff);
    }
    y.into()
}

/// Codes and scale of a block. `floor`: the least code of what is above zero.
fn quantised(block: &[f64], map: &[f32; 256], floor: usize) -> (Data, f64) {
    let scale = block.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let code = |x: &f64| {
        let part = if scale == 0.0 { 0.0 } else { *x as f32 / scale as f32 };
        // The nearest, the later of two that are equally near.
        let away = |k: &usize| f64::from((part - map[*k]).abs());
        let nearest = (0..256).rev().min_by(|a, b| away(a).total_cmp(&away(b))).unwrap_or(0);
        (if *x == 0.0 { nearest } else { nearest.max(floor) }) as f64
    };
    (block.iter().map(code).collect(), scale)
}

pub(super) fn eight_bit(op: &AdamW8bit, x: &[Rc<Tensor>]) -> Vec<Data> {
    let scalars = scalars(&x[6..]);
    let mut y = [0, 2, 3, 4, 5].map(|k| x[k].data.clone());
    if scalars[3] == 0.0 {
        return y.into();
    }
    let AdamW8bit { beta1, beta2, eps, weight_decay, id, part } = *op;
    let part = part.unwrap_or(Span { first: 0, count: y[0].len(), of: y[0].len() });
    let op = AdamW { beta1, beta2, eps, weight_decay };
    let maps = [true, false].map(dynamic_map);
    let moment = |k: usize, i: usize| {
        let number = maps[k][x[2 + 2 * k].data[i] as usize];
        f64::from(number * x[3 + 2 * k].data[i / BLOCK] as f32)
    };
    let mut new = [Vec::new(), Vec::new()];
    for i in 0..y[0].len() {
        let [w, m, v] = step(&op, scalars, [x[0].data[i], x[1].data[i], moment(0, i), moment(1, i)]);
        y[0][i] = x.get(10).map_or(w, |seed| stored(x[0].ty, w, word(id, seed, part, i) >> 16));
        new[0].push(m);
        new[1].push(v);
    }
    for (k, moments) in new.iter().enumerate() {
        for (i, block) in moments.chunks(BLOCK).enumerate() {
            let (codes, scale) = quantised(block, &maps[k], k);
            y[1 + 2 * k][i * BLOCK..][..codes.len()].copy_from_slice(&codes);
            y[2 + 2 * k][i] = scale;
        }
    }
    y.into()
}

/// New w and m of one element, to fp32. `scalars`: lr, coef.
fn lion_step(op: &Lion, [lr, coef]: [f64; 2], [w, g, m]: [f64; 3]) -> [f64; 2] {
    let g = coef * g;
    let mixed = op.beta1 * m + (1.0 - op.beta1) * g;
    let sign = if mixed == 0.0 { 0.0 } else { mixed.signum() };
    let w = w * (1.0 - lr * op.weight_decay) - lr * sign;
    [w, op.beta2 * m + (1.0 - op.beta2) * g].map(|x| f64::from(x as f32))
}

pub(super) fn lion_bf16(op: &LionBf16, x: &[Rc<Tensor>]) -> Vec<Data> {
    let [lr, coef, apply] = [3, 4, 5].map(|i| x[i].data[0]);
    let mut y = [0, 2].map(|k| x[k].data.clone());
    if apply == 0.0 {
        return y.into();
    }
    let LionBf16 { beta1, beta2, weight_decay, id, part } = *op;
    let part = part.unwrap_or(Span { first: 0, count: y[0].len(), of: y[0].len() });
    let op = Lion { beta1, beta2, weight_decay };
    for i in 0..y[0].len() {
        let [w, m] = lion_step(&op, [lr, coef], [0, 1, 2].map(|k| x[k].data[i]));
        y[0][i] = stored(x[0].ty, w, word(id, &x[6], part, i) >> 16);
        y[1][i] = m;
    }
    y.into()
}

pub(super) fn lion_8bit(op: &Lion8bit, x: &[Rc<Tensor>]) -> Vec<Data> {
    let [lr, coef, apply] = [4, 5, 6].map(|i| x[i].data[0]);
    let mut y = [0, 2, 3].map(|k| x[k].data.clone());
    if apply == 0.0 {
        return y.into();
    }
    let Lion8bit { beta1, beta2, weight_decay, id, part } = *op;
    let part = part.unwrap_or(Span { first: 0, count: y[0].len(), of: y[0].len() });
    let op = Lion { beta1, beta2, weight_decay };
    let map = dynamic_map(true);
    let mut moments = Vec::new();
    for i in 0..y[0].len() {
        let old = f64::from(map[x[2].data[i] as usize] * x[3].data[i / BLOCK] as f32);
        let [w, m] = lion_step(&op, [lr, coef], [x[0].data[i], x[1].data[i], old]);
        y[0][i] = x.get(7).map_or(w, |seed| stored(x[0].ty, w, word(id, seed, part, i) >> 16));
        moments.push(m);
    }
    for (i, block) in moments.chunks(BLOCK).enumerate() {
        let (codes, scale) = quantised(block, &map, 0);
        y[1][i * BLOCK..][..codes.len()].copy_from_slice(&codes);
        y[2][i] = scale;
    }
    y.into()
}
