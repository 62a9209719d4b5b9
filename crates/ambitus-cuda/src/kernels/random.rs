//! Random numbers.

use super::{View, kernels, launch};
use crate::bind::{Io, Steps};
use ambitus_ir::ops::random::Dropout;

kernels! { "random";
    /// y = x * scale where the element's random word is at least `threshold`, else 0. A block per row.
    DropoutArgs "dropout" [128 threads, 72 registers] {
        x: View, keys: View, segs: View, y: View, id: u64, threshold: u32, scale: f32,
    }
}

pub(crate) fn dropout(op: &Dropout, io: &Io) -> Steps {
    let (x, keys, segs, y) = (io.x[0].view(), io.x[1].view(), io.x[2].view(), io.y[0].view());
    let threshold = (f64::from(op.p) * 4_294_967_296.0) as u32;
    let args = DropoutArgs { x, keys, segs, y, id: op.id, threshold, scale: 1.0 / (1.0 - op.p) };
    Ok(if y.stored() == 0 { Vec::new() } else { vec![launch(&args, [y.rows as u32, 1])] })
}
