//! Norms, in the tensor names of torch and of Hugging Face's models.

use ambitus_ir::{Builder, ValueId};

/// Computes the RMS norm over the columns of `[T, D]` (arXiv 1910.07467), with the parameter `<scope>.weight` `[D]`.
pub fn rms_norm(b: &mut Builder<'_>, scope: &str, x: ValueId, eps: f32) -> ValueId {
    b.scope(scope, |b| {
        let width = b.dim(x, 1);
        let gamma = b.parameter("weight", &[width]);
        b.rms_norm(x, gamma, eps)
    })
}

/// Computes the layer norm over the columns of `[T, D]` (arXiv 1607.06450), with the parameters `<scope>.weight` and `<scope>.bias` `[D]`.
pub fn layer_norm(b: &mut Builder<'_>, scope: &str, x: ValueId, eps: f32) -> ValueId {
    b.scope(scope, |b| {
        let width = b.dim(x, 1);
        let gamma = b.parameter("weight", &[width]);
        let beta = b.parameter("bias", &[width]);
        b.layer_norm(x, gamma, beta, eps)
    })
}
