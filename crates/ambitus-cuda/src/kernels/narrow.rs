//! AdamW and Lion on narrow weights and moments.

use super::optim::{Adam, LionOf};
use super::{Argument, View, kernels, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::ops::lion::{Lion8bit, LionBf16};
use ambitus_ir::ops::narrow::{AdamW8bit, AdamWBf16, BLOCK, dynamic_map};
use ambitus_ir::ops::parts::Span;

kernels! { "narrow";
    /// One step of AdamW on f32 and bf16, in fours of elements; nothing if `apply` is 0.
    AdamWBf16Args "adamw_bf16" [256 threads, 64 registers] {
        w: View, g: View, m: View, v: View,
        lr: View, coef: View, t: View, apply: View, seed: View,
        id: u64, first: u64, of: u64,
        adam: Adam,
    }
    /// One step of AdamW with 8-bit moments, a warp for each block of 256 elements; nothing if `apply` is 0.
    AdamW8bitArgs "adamw_8bit" [256 threads, 96 registers] {
        w: View, g: View, codes_m: View, scales_m: View, codes_v: View, scales_v: View,
        lr: View, coef: View, t: View, apply: View, seed: View,
        id: u64, first: u64, of: u64,
        adam: Adam,
        map_m: Map, map_v: Map,
    }
    /// One step of Lion on a bf16 weight, in fours of elements; nothing if `apply` is 0.
    LionBf16Args "lion_bf16" [256 threads, 64 registers] {
        w: View, g: View, m: View,
        lr: View, coef: View, apply: View, seed: View,
        id: u64, first: u64, of: u64,
        lion: LionOf,
    }
    /// One step of Lion with an 8-bit moment, a warp for each block of 256 elements; nothing if `apply` is 0.
    Lion8bitArgs "lion_8bit" [256 threads, 96 registers] {
        w: View, g: View, codes: View, scales: View,
        lr: View, coef: View, apply: View, seed: View,
        id: u64, first: u64, of: u64,
        lion: LionOf,
        map: Map,
    }
}

/// What codes of 8 bits mean: the mirror of `Map` in `device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Map([f32; 256]);

impl Argument for Map {
    const C: &'static str = "Map";
    fn put(self, to: &mut [u8]) {
        for (x, to) in self.0.into_iter().zip(to.chunks_mut(4)) {
            x.put(to);
        }
    }
}

/// Returns the first element of the weight's operand, and elements of the whole.
fn part(part: Option<Span>, io: &Io) -> [u64; 2] {
    part.map_or([0, io.x[0].ty.shape.elements()], |p| [p.first, p.of]).map(|n| n as u64)
}

pub(crate) fn adamw_bf16(op: &AdamWBf16, io: &Io) -> Steps {
    let x = |i: usize| io.x[i].view();
    let [first, of] = part(op.part, io);
    let args = AdamWBf16Args {
        w: x(0),
        g: x(1),
        m: x(2),
        v: x(3),
        lr: x(4),
        coef: x(5),
        t: x(6),
        apply: x(7),
        seed: x(8),
        id: op.id,
        first,
        of,
        adam: Adam::new(op.beta1, op.beta2, op.eps, op.weight_decay),
    };
    Ok(launch_over(&args, (io.x[0].ty.shape.elements() as u64).div_ceil(4)))
}

pub(crate) fn adamw_8bit(op: &AdamW8bit, io: &Io) -> Steps {
    let x = |i: usize| io.x[i].view();
    let [first, of] = part(op.part, io);
    let args = AdamW8bitArgs {
        w: x(0),
        g: x(1),
        codes_m: x(2),
        scales_m: x(3),
        codes_v: x(4),
        scales_v: x(5),
        lr: x(6),
        coef: x(7),
        t: x(8),
        apply: x(9),
        seed: io.x.get(10).map_or(View::NONE, |x| x.view()),
        id: op.id,
        first,
        of,
        adam: Adam::new(op.beta1, op.beta2, op.eps, op.weight_decay),
        map_m: Map(dynamic_map(true)),
        map_v: Map(dynamic_map(false)),
    };
    // 32 threads for each block of elements.
    Ok(launch_over(&args, 32 * io.x[0].ty.shape.elements().div_ceil(BLOCK) as u64))
}

pub(crate) fn lion_bf16(op: &LionBf16, io: &Io) -> Steps {
    let x = |i: usize| io.x[i].view();
    let [first, of] = part(op.part, io);
    let args = LionBf16Args {
        w: x(0),
        g: x(1),
        m: x(2),
        lr: x(3),
        coef: x(4),
        apply: x(5),
        seed: x(6),
        id: op.id,
        first,
        of,
        lion: LionOf::new(op.beta1, op.beta2, op.weight_decay),
    };
    Ok(launch_over(&args, (io.x[0].ty.shape.elements() as u64).div_ceil(4)))
}

pub(crate) fn lion_8bit(op: &Lion8bit, io: &Io) -> Steps {
    let x = |i: usize| io.x[i].view();
    let [first, of] = part(op.part, io);
    let args = Lion8bitArgs {
        w: x(0),
        g: x(1),
        codes: x(2),
        scales: x(3),
        lr: x(4),
        coef: x(5),
        apply: x(6),
        seed: io.x.get(7).map_or(View::NONE, |x| x.view()),
        id: op.id,
        first,
        of,
        lion: LionOf::new(op.beta1, op.beta2, op.weight_decay),
        map: Map(dynamic_map(true)),
    };
    // 32 threads for each block of elements.
    Ok(launch_over(&args, 32 * io.x[0].ty.shape.elements().div_ceil(BLOCK) as u64))
}
