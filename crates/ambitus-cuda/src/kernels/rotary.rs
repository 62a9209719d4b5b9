//! Rotary position embedding.

use super::{View, kernels, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::ops::attention::{Rotary, RotaryFrequencies};

kernels! { "rotary";
    /// y[i] = base^(-2i / dim).
    Frequencies "rotary_frequencies" [256 threads, 64 registers] { y: View, base: f64, dim: i32 }
    /// Turns pairs of channels by position * frequency: `at`, or where there is none by the row's place in its segment.
    RotaryArgs "rotary" [256 threads, 80 registers] {
        x: View, freqs: View, segs: View, at: View, y: View, head_dim: i32, rotated: i32, interleaved: i32,
        inverse: i32,
    }
}

/// Heads that a thread of `rotary` turns by one angle: as `HEADS` in the kernel.
const HEADS: u64 = 4;

pub(crate) fn frequencies(op: &RotaryFrequencies, io: &Io) -> Steps {
    let y = io.y[0].view();
    Ok(launch_over(&Frequencies { y, base: op.base, dim: op.dim as i32 }, y.stored()))
}

pub(crate) fn rotary(op: &Rotary, io: &Io) -> Steps {
    let (x, freqs, segs, y) = (io.x[0].view(), io.x[1].view(), io.x[2].view(), io.y[0].view());
    let heads = y.cols as u64 / op.head_dim as u64;
    let at = io.x.get(3).map_or(View::NONE, |at| at.view());
    let threads = y.rows as u64 * heads.div_ceil(HEADS) * (op.head_dim as u64 / 2);
    if threads > i32::MAX as u64 {
        return Err(format!("{} has too many elements", io.y[0].ty));
    }
    let args = RotaryArgs {
        x,
        freqs,
        segs,
        at,
        y,
        head_dim: op.head_dim as i32,
        rotated: op.rotated as i32,
        interleaved: i32::from(op.interleaved),
        inverse: i32::from(op.inverse),
    };
    Ok(launch_over(&args, threads))
}
