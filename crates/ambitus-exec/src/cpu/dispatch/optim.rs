//! Accumulation, norms and updates.

use super::{Resolved, kernel};
use crate::cpu::core_ops::{elementwise, reduce};
use crate::cpu::kernels as k;
use crate::cpu::operand::{Frame, In, Io, Out};
use ambitus_ir::ops::lion::{Lion, Lion8bit, LionBf16};
use ambitus_ir::ops::narrow::{AdamW8bit, AdamWBf16};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::ops::parts::Span;
use ambitus_ir::{DType, TensorType};

pub fn accumulate(mut io: Io) -> Resolved {
    let (x, beta, mut y) = (io.x(1)?, io.x(2)?, io.donated(0, 0)?);
    kernel(move |f| {
        let (ty, x, beta) = (y.ty(), Some(x.data(f)), beta.scalar(f));
        if beta == 0.0 {
            elementwise::map(f.pool, ty, x, y.data(f), |x| x);
        } else {
            elementwise::zip(f.pool, ty, None, x, y.data(f), |y, x| beta * y + x);
        }
    })
}

pub fn sum_squares(mut io: Io) -> Resolved {
    let (x, mut y) = (io.x(0)?, io.y(0));
    kernel(move |f| reduce::sum_squares(f.pool, x.ty(), x.data(f), y.vec(f)))
}

pub fn sum_partials(mut io: Io) -> Resolved {
    let xs: Vec<In> = (0..io.operands()).map(|i| io.x(i)).collect::<Result<_, _>>()?;
    let mut y = io.y(0);
    kernel(move |f| {
        let sum: f64 = xs.iter().map(|x| reduce::total(x.ty(), x.data(f))).sum();
        y.vec(f)[0] = sum as f32;
    })
}

/// One update by its constants and its scalars lr, coef, t and apply.
fn step(op: &AdamW, [lr, coef, t, apply]: [f32; 4]) -> k::AdamW {
    let t = f64::from(t);
    k::AdamW {
        lr: f64::from(lr),
        beta1: op.beta1,
        beta2: op.beta2,
        eps: op.eps,
        weight_decay: op.weight_decay,
        bias_correction1: 1.0 - op.beta1.powf(t),
        bias_correction2: 1.0 - op.beta2.powf(t),
        grad_scale: coef,
        apply: apply != 0.0,
    }
}

pub fn adamw(op: &AdamW, mut io: Io) -> Resolved {
    let op = op.clone();
    let (g, lr, coef, t, apply) = (io.x(1)?, io.x(4)?, io.x(5)?, io.x(6)?, io.x(7)?);
    let (mut w, mut m, mut v) = (io.donated(0, 0)?, io.donated(2, 1)?, io.donated(3, 2)?);
    kernel(move |f| {
        let step = step(&op, [&lr, &coef, &t, &apply].map(|x| x.scalar(f)));
        // Pads take part: zero gradients and moments leave them zero.
        k::adamw(f.pool, &step, w.data(f), g.data(f), m.data(f), v.data(f));
    })
}

/// Returns the values of a result, as their type stores them.
fn values<'s>(y: &'s mut Out, f: &'s Frame<'_>) -> k::Values<'s> {
    let pitch = y.ty().pitch;
    match y.ty().dtype {
        DType::BF16 => k::Values::Bf16(k::PitchedMut { data: k::DisjointMut::new(y.slice(f)), pitch }),
        _ => k::Values::F32(k::PitchedMut { data: k::DisjointMut::new(y.slice(f)), pitch }),
    }
}

/// Returns what the bf16 of a part of a weight is rounded by: the key, the op's id, and where a shard and the part begin.
fn random(key: &In, id: u64, part: Span, f: &Frame<'_>) -> k::Random {
    let key = key.words(f);
    let shard = key.get(2).map_or(0, |shard| u64::from(*shard));
    k::Random { key: [key[0], key[1]], id, first: shard * part.of as u64 + part.first as u64 }
}

/// Returns the part that a weight's operand is, which may be all of it.
fn part_of(part: Option<Span>, w: TensorType) -> Span {
    let all = w.shape.elements();
    part.unwrap_or(Span { first: 0, count: all, of: all })
}

pub fn adamw_bf16(op: &AdamWBf16, mut io: Io) -> Resolved {
    let AdamWBf16 { beta1, beta2, eps, weight_decay, id, part } = *op;
    let part = part_of(part, io.x_ty(0));
    let op = AdamW { beta1, beta2, eps, weight_decay };
    let (g, lr, coef, t, apply, key) = (io.x(1)?, io.x(4)?, io.x(5)?, io.x(6)?, io.x(7)?, io.x(8)?);
    let (mut w, mut m, mut v) = (io.donated(0, 0)?, io.donated(2, 1)?, io.donated(3, 2)?);
    kernel(move |f| {
        let step = step(&op, [&lr, &coef, &t, &apply].map(|x| x.scalar(f)));
        let shape = (w.ty().shape.rows(), w.ty().shape.cols());
        let x = k::Narrow { shape, w: values(&mut w, f), m: values(&mut m, f), v: Some(values(&mut v, f)) };
        let g = k::Pitched { data: g.data(f), pitch: g.ty().pitch };
        k::adamw_narrow(f.pool, &step, &x, g, Some(random(&key, id, part, f)));
    })
}

pub fn adamw_8bit(op: &AdamW8bit, mut io: Io) -> Resolved {
    let AdamW8bit { beta1, beta2, eps, weight_decay, id, part } = *op;
    let part = part_of(part, io.x_ty(0));
    let op = AdamW { beta1, beta2, eps, weight_decay };
    let (g, lr, coef, t, apply) = (io.x(1)?, io.x(6)?, io.x(7)?, io.x(8)?, io.x(9)?);
    let key = if io.operands() > 10 { Some(io.x(10)?) } else { None };
    let mut w = io.donated(0, 0)?;
    let mut m = (io.donated(2, 1)?, io.donated(3, 2)?);
    let mut v = (io.donated(4, 3)?, io.donated(5, 4)?);
    // Made here: a step allocates nothing.
    let books = [true, false].map(k::Codebook::of);
    kernel(move |f| {
        let step = step(&op, [&lr, &coef, &t, &apply].map(|x| x.scalar(f)));
        let shape = (w.ty().shape.rows(), w.ty().shape.cols());
        let [m, v] = [(&mut m, books[0]), (&mut v, books[1])].map(|((codes, scales), book)| {
            let codes = k::DisjointMut::new(codes.slice(f));
            k::Values::Codes { codes, scales: k::DisjointMut::new(scales.data(f)), book }
        });
        let x = k::Narrow { shape, w: values(&mut w, f), m, v: Some(v) };
        let g = k::Pitched { data: g.data(f), pitch: g.ty().pitch };
        k::adamw_narrow(f.pool, &step, &x, g, key.as_ref().map(|key| random(key, id, part, f)));
    })
}

/// One update by its constants and its scalars lr, coef and apply.
fn lion_step(op: &Lion, [lr, coef, apply]: [f32; 3]) -> k::Lion {
    k::Lion {
        lr: f64::from(lr),
        beta1: op.beta1,
        beta2: op.beta2,
        weight_decay: op.weight_decay,
        grad_scale: coef,
        apply: apply != 0.0,
    }
}

pub fn lion(op: &Lion, mut io: Io) -> Resolved {
    let op = op.clone();
    let (g, lr, coef, apply) = (io.x(1)?, io.x(3)?, io.x(4)?, io.x(5)?);
    let (mut w, mut m) = (io.donated(0, 0)?, io.donated(2, 1)?);
    kernel(move |f| {
        let step = lion_step(&op, [&lr, &coef, &apply].map(|x| x.scalar(f)));
        // Pads take part: zero gradients and moments leave them zero.
        k::lion(f.pool, &step, w.data(f), g.data(f), m.data(f));
    })
}

pub fn lion_bf16(op: &LionBf16, mut io: Io) -> Resolved {
    let LionBf16 { beta1, beta2, weight_decay, id, part } = *op;
    let part = part_of(part, io.x_ty(0));
    let op = Lion { beta1, beta2, weight_decay };
    let (g, lr, coef, apply, key) = (io.x(1)?, io.x(3)?, io.x(4)?, io.x(5)?, io.x(6)?);
    let (mut w, mut m) = (io.donated(0, 0)?, io.donated(2, 1)?);
    kernel(move |f| {
        let step = lion_step(&op, [&lr, &coef, &apply].map(|x| x.scalar(f)));
        let shape = (w.ty().shape.rows(), w.ty().shape.cols());
        let x = k::Narrow { shape, w: values(&mut w, f), m: values(&mut m, f), v: None };
        let g = k::Pitched { data: g.data(f), pitch: g.ty().pitch };
        k::lion_narrow(f.pool, &step, &x, g, Some(random(&key, id, part, f)));
    })
}

pub fn lion_8bit(op: &Lion8bit, mut io: Io) -> Resolved {
    let Lion8bit { beta1, beta2, weight_decay, id, part } = *op;
    let part = part_of(part, io.x_ty(0));
    let op = Lion { beta1, beta2, weight_decay };
    let (g, lr, coef, apply) = (io.x(1)?, io.x(4)?, io.x(5)?, io.x(6)?);
    let key = if io.operands() > 7 { Some(io.x(7)?) } else { None };
    let mut w = io.donated(0, 0)?;
    let (mut codes, mut scales) = (io.donated(2, 1)?, io.donated(3, 2)?);
    // Made here: a step allocates nothing.
    let book = k::Codebook::of(true);
    kernel(move |f| {
        let step = lion_step(&op, [&lr, &coef, &apply].map(|x| x.scalar(f)));
        let shape = (w.ty().shape.rows(), w.ty().shape.cols());
        let codes = k::DisjointMut::new(codes.slice(f));
        let m = k::Values::Codes { codes, scales: k::DisjointMut::new(scales.data(f)), book };
        let x = k::Narrow { shape, w: values(&mut w, f), m, v: None };
        let g = k::Pitched { data: g.data(f), pitch: g.ty().pitch };
        k::lion_narrow(f.pool, &step, &x, g, key.as_ref().map(|key| random(key, id, part, f)));
    })
}

pub fn lerp(mut io: Io) -> Resolved {
    if io.x_ty(1).dtype == DType::BF16 {
        return lerp_bf16(io);
    }
    let (b, decay, apply) = (io.x(1)?, io.x(2)?, io.x(3)?);
    let mut a = io.donated(0, 0)?;
    kernel(move |f| {
        let (ty, b, decay) = (a.ty(), Some(b.data(f)), decay.scalar(f));
        if apply.scalar(f) == 0.0 {
            return;
        }
        if decay == 0.0 {
            return elementwise::map(f.pool, ty, b, a.data(f), |b| b);
        }
        let step = 1.0 - decay;
        elementwise::zip(f.pool, ty, None, b, a.data(f), |a, b| a + step * (b - a));
    })
}

fn lerp_bf16(mut io: Io) -> Resolved {
    let (b, decay, apply) = (io.x(1)?, io.x(2)?, io.x(3)?);
    let mut a = io.donated(0, 0)?;
    if a.ty().dtype != DType::F32 {
        return Err(format!("there is no CPU kernel that moves {} towards {}", a.ty(), b.ty()));
    }
    kernel(move |f| {
        if apply.scalar(f) == 0.0 {
            return;
        }
        let (ty, weight) = (a.ty(), 1.0 - decay.scalar(f));
        let to = k::PitchedMut { data: k::DisjointMut::new(a.data(f)), pitch: ty.pitch };
        let from = k::Pitched { data: b.slice(f), pitch: b.ty().pitch };
        k::lerp_bf16(f.pool, (ty.shape.rows(), ty.shape.cols()), weight, from, to);
    })
}
