//! Cases of ops that overwrite states, and of copies.

use super::{Operand, Table, constant, poison, scalar};
use crate::tensor::Tensor;
use ambitus_ir::TensorType;
use ambitus_ir::ops::copy::{CopyDone, CopyStart, Space, StoreStart};
use ambitus_ir::ops::optim::{Accumulate, AdamW, Lerp, SumPartials, SumSquares};

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

    let x = t.fixed(&[5, 37]);
    t.add("", CopyStart { queue: 1, to: Space::Host }, vec![x.clone()]);
    let old = t.fixed(&[5, 37]);
    t.add("", StoreStart { queue: 1 }, vec![x.clone(), old]);
    let token = constant(Tensor::full(TensorType::new(ambitus_ir::DType::U8, &[1]), 0.0));
    t.add("", CopyDone { queue: 1 }, vec![x.clone(), x, token]);
}
