//! Activations.

use super::{View, kernels, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::ops::activation::ActivationKind;

kernels! { "activation";
    /// y = f(x).
    ActivationArgs "activation" [256 threads, 40 registers] { x: View, y: View, kind: i32 }
    /// dx = dy f'(x).
    ActivationGradArgs "activation_grad" [256 threads, 40 registers] { x: View, dy: View, dx: View, kind: i32 }
    /// y = silu(a) b.
    SwiGluArgs "swiglu" [256 threads, 40 registers] { a: View, b: View, y: View }
    /// da = dy b silu'(a), db = dy silu(a).
    SwiGluGradArgs "swiglu_grad" [256 threads, 40 registers] { a: View, b: View, dy: View, da: View, db: View }
}

pub(crate) fn activation(kind: ActivationKind, io: &Io) -> Steps {
    let (x, y) = (io.x[0].view(), io.y[0].view());
    // Numbered by its declaration, as in the kernel.
    Ok(launch_over(&ActivationArgs { x, y, kind: kind as i32 }, y.stored().div_ceil(4)))
}

pub(crate) fn activation_grad(kind: ActivationKind, io: &Io) -> Steps {
    let (x, dy, dx) = (io.x[0].view(), io.x[1].view(), io.y[0].view());
    Ok(launch_over(&ActivationGradArgs { x, dy, dx, kind: kind as i32 }, dx.stored().div_ceil(4)))
}

pub(crate) fn swiglu(io: &Io) -> Steps {
    let (a, b, y) = (io.x[0].view(), io.x[1].view(), io.y[0].view());
    Ok(launch_over(&SwiGluArgs { a, b, y }, y.stored().div_ceil(4)))
}

pub(crate) fn swiglu_grad(io: &Io) -> Steps {
    let (a, b, dy) = (io.x[0].view(), io.x[1].view(), io.x[2].view());
    let (da, db) = (io.y[0].view(), io.y[1].view());
    Ok(launch_over(&SwiGluGradArgs { a, b, dy, da, db }, da.stored().div_ceil(4)))
}
