//! Accumulation, norms and updates.

use super::{Argument, View, kernels, launch, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;
use ambitus_ir::ops::optim::{AdamW, PARTIAL};

kernels! { "optim";
    /// y = beta * y + x; with beta 0 the old y is not read.
    AccumulateArgs "accumulate" [256 threads, 48 registers] { x: View, beta: View, y: View }
    /// Sums of squares of runs of 4096 elements, a block each.
    SumSquaresArgs "sum_squares" [256 threads, 40 registers] { x: View, y: View }
    /// Sums of whole tensors in double precision, a block each.
    SumEachArgs "sum_each" [256 threads, 40 registers] { x: Views, sums: u64 }
    /// The sum of `n` doubles, with one block.
    SumAllArgs "sum_all" [256 threads, 32 registers] { sums: u64, n: i32, y: View }
    /// One step of AdamW; nothing if `apply` is 0.
    AdamWArgs "adamw" [256 threads, 64 registers] {
        w: View, g: View, m: View, v: View,
        lr: View, coef: View, t: View, apply: View,
        adam: Adam,
    }
    /// y = y + (1 - decay) * (b - y); nothing if `apply` is 0.
    LerpArgs "lerp" [256 threads, 48 registers] { b: View, decay: View, apply: View, y: View }
}

/// Most tensors of one [`SumEachArgs`]: arguments of a kernel are at most 4 KiB.
const VIEWS: usize = 48;

/// Several tensors: the mirror of `Views` in `device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Views([View; VIEWS]);

impl Argument for Views {
    const C: &'static str = "Views";
    fn put(self, to: &mut [u8]) {
        for (x, to) in self.0.into_iter().zip(to.chunks_mut(size_of::<View>())) {
            x.put(to);
        }
    }
}

/// What updates of AdamW have in common: the mirror of `Adam` in `device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Adam([f32; 8]);

impl Adam {
    pub fn new(beta1: f64, beta2: f64, eps: f64, weight_decay: f64) -> Adam {
        // In f64 here: 1 - 0.999 in f32 is off by 5e-5.
        let (new1, new2) = (1.0 - beta1, 1.0 - beta2);
        Adam([beta1, beta2, new1, new2, beta1.ln(), beta2.ln(), eps, weight_decay].map(|x| x as f32))
    }
}

impl Argument for Adam {
    const C: &'static str = "Adam";
    fn put(self, to: &mut [u8]) {
        for (x, to) in self.0.into_iter().zip(to.chunks_mut(4)) {
            x.put(to);
        }
    }
}

/// Launches over groups of four elements.
fn launch_fours<K: super::Kernel>(kernel: &K, over: View) -> Steps {
    Ok(launch_over(kernel, over.stored().div_ceil(4)))
}

pub(crate) fn accumulate(io: &Io) -> Steps {
    let (x, beta, y) = (io.x[1].view(), io.x[2].view(), io.y[0].view());
    launch_fours(&AccumulateArgs { x, beta, y }, y)
}

pub(crate) fn sum_squares(io: &Io) -> Steps {
    let (x, y) = (io.x[0].view(), io.y[0].view());
    let parts = io.x[0].ty.shape.elements().div_ceil(PARTIAL) as u32;
    Ok(if parts == 0 { Vec::new() } else { vec![launch(&SumSquaresArgs { x, y }, [parts, 1])] })
}

/// Returns the scratch of SumPartials: a double per operand.
pub(crate) fn sum_partials_workspace(x: &[TensorType]) -> u64 {
    8 * x.len() as u64
}

pub(crate) fn sum_partials(io: &Io) -> Steps {
    let mut steps = Vec::new();
    for (i, some) in io.x.chunks(VIEWS).enumerate() {
        let mut x = Views([View::NONE; VIEWS]);
        x.0.iter_mut().zip(some).for_each(|(view, x)| *view = x.view());
        let sums = io.workspace + 8 * (i * VIEWS) as u64;
        steps.push(launch(&SumEachArgs { x, sums }, [some.len() as u32, 1]));
    }
    let all = SumAllArgs { sums: io.workspace, n: io.x.len() as i32, y: io.y[0].view() };
    steps.push(launch(&all, [1, 1]));
    Ok(steps)
}

pub(crate) fn adamw(op: &AdamW, io: &Io) -> Steps {
    let x = |i: usize| io.x[i].view();
    let args = AdamWArgs {
        w: x(0),
        g: x(1),
        m: x(2),
        v: x(3),
        lr: x(4),
        coef: x(5),
        t: x(6),
        apply: x(7),
        adam: Adam::new(op.beta1, op.beta2, op.eps, op.weight_decay),
    };
    launch_fours(&args, args.w)
}

pub(crate) fn lerp(io: &Io) -> Steps {
    let (b, decay, apply, y) = (io.x[1].view(), io.x[2].view(), io.x[3].view(), io.y[0].view());
    launch_fours(&LerpArgs { b, decay, apply, y }, y)
}
