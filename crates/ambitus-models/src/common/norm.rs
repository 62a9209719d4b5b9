//! Norms, in the tensor names of torch and of Hugging Face's models.

use ambitus_ir::{Builder, TensorType, ValueId};

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

/// Computes the group norm (arXiv 1803.08494) of `[S * F, D]`, S sequences of F rows each: every group of neighbouring columns by the mean
/// and variance of all of its rows. With the parameters `<scope>.weight` and `<scope>.bias` `[D]`.
pub fn group_norm(
    b: &mut Builder<'_>,
    scope: &str,
    x: ValueId,
    sequences: usize,
    groups: usize,
    eps: f32,
) -> ValueId {
    b.scope(scope, |b| {
        let (rows, width) = (b.dim(x, 0), b.dim(x, 1));
        let (each, of_group) = (rows / sequences, width / groups);
        let gamma = b.parameter("weight", &[width]);
        let beta = b.parameter("bias", &[width]);
        let parts = b.reshape(x, &[sequences, each, groups, of_group]);
        let parts = b.permute(parts, &[0, 2, 1, 3]);
        let flat = b.reshape(parts, &[sequences * groups, each * of_group]);
        let [one, zero] = [1.0, 0.0].map(|value| b.fill(TensorType::f32(&[each * of_group]), value));
        let flat = b.layer_norm(flat, one, zero, eps);
        let parts = b.reshape(flat, &[sequences, groups, each, of_group]);
        let parts = b.permute(parts, &[0, 2, 1, 3]);
        let x = b.reshape(parts, &[rows, width]);
        let [gamma, beta] = [gamma, beta].map(|of| {
            let row = b.reshape(of, &[1, width]);
            b.broadcast(row, &[rows, width])
        });
        let x = b.mul(x, gamma);
        b.add(x, beta)
    })
}
