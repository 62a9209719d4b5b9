//! Linear layers, in the tensor names of `torch.nn.Linear`.

use ambitus_ir::{Builder, ValueId};

/// Computes x w^T + b, `[T, In]` to `[T, Out]`, with the parameters `<scope>.weight` `[Out, In]` and `<scope>.bias` `[Out]`.
pub fn linear(b: &mut Builder<'_>, scope: &str, x: ValueId, out: usize) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = b.parameter("weight", &[out, inner]);
        let bias = b.parameter("bias", &[out]);
        b.linear(x, w, Some(bias))
    })
}

/// Computes x w^T, `[T, In]` to `[T, Out]`, with the parameter `<scope>.weight` `[Out, In]` alone.
pub fn project(b: &mut Builder<'_>, scope: &str, x: ValueId, out: usize) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = b.parameter("weight", &[out, inner]);
        b.linear(x, w, None)
    })
}

/// Applies a convolution of one tap, `[R, In]` to `[R, out]`, with the parameters `<scope>.weight` `[out, In, 1]` and `<scope>.bias`.
pub fn pointwise(b: &mut Builder<'_>, scope: &str, x: ValueId, out: usize) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = b.parameter("weight", &[out, inner, 1]);
        let w = b.reshape(w, &[out, inner]);
        let bias = b.parameter("bias", &[out]);
        b.linear(x, w, Some(bias))
    })
}
