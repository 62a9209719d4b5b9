//! Accumulation, norms and updates.

use super::{Resolved, kernel};
use crate::cpu::core_ops::{elementwise, reduce};
use crate::cpu::kernels as k;
use crate::cpu::operand::{In, Io};
use ambitus_ir::ops::optim::AdamW;

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

pub fn adamw(op: &AdamW, mut io: Io) -> Resolved {
    let op = op.clone();
    let (g, lr, coef, t, apply) = (io.x(1)?, io.x(4)?, io.x(5)?, io.x(6)?, io.x(7)?);
    let (mut w, mut m, mut v) = (io.donated(0, 0)?, io.donated(2, 1)?, io.donated(3, 2)?);
    kernel(move |f| {
        let t = f64::from(t.scalar(f));
        let step = k::AdamW {
            lr: f64::from(lr.scalar(f)),
            beta1: op.beta1,
            beta2: op.beta2,
            eps: op.eps,
            weight_decay: op.weight_decay,
            bias_correction1: 1.0 - op.beta1.powf(t),
            bias_correction2: 1.0 - op.beta2.powf(t),
            grad_scale: coef.scalar(f),
            apply: apply.scalar(f) != 0.0,
        };
        // Pads take part: zero gradients and moments leave them zero.
        k::adamw(f.pool, &step, w.data(f), g.data(f), m.data(f), v.data(f));
    })
}

pub fn lerp(mut io: Io) -> Resolved {
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
