//! What encoder and decoder share: layers that norm what they read, in transformers' tensor names.

use crate::common::{layer_norm, linear, project};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::attention::Attention;
use ambitus_ir::{Builder, ValueId};

const EPS: f32 = 1e-5;

pub(super) fn norm(b: &mut Builder<'_>, name: &str, x: ValueId) -> ValueId {
    layer_norm(b, name, x, EPS)
}

/// Returns the attention of `heads` heads over a width.
pub(super) fn attention(dim: usize, heads: usize, causal: bool) -> Attention {
    let head_dim = dim / heads;
    Attention { heads, kv_heads: heads, head_dim, causal, scale: 1.0 / (head_dim as f32).sqrt() }
}

/// Adds to x `[T, D]` what `attend` makes of its queries `[T, D]`, within the attention `<name>`, whose norm is `<name>_layer_norm`.
/// `attend` is given the normed rows and the queries.
pub(super) fn attended(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    attend: impl FnOnce(&mut Builder<'_>, ValueId, ValueId) -> ValueId,
) -> ValueId {
    let dim = b.dim(x, 1);
    let h = norm(b, &format!("{name}_layer_norm"), x);
    let h = b.scope(name, |b| {
        let q = linear(b, "q_proj", h, dim);
        let o = attend(b, h, q);
        linear(b, "out_proj", o, dim)
    });
    b.add(x, h)
}

/// Returns keys and values `[R, D]` of rows `[R, D]`, within an attention. Keys have no bias.
pub(super) fn keys(b: &mut Builder<'_>, rows: ValueId) -> [ValueId; 2] {
    let dim = b.dim(rows, 1);
    [project(b, "k_proj", rows, dim), linear(b, "v_proj", rows, dim)]
}

/// Adds to x its feed-forward.
pub(super) fn fed_forward(b: &mut Builder<'_>, x: ValueId, ffn: usize) -> ValueId {
    let dim = b.dim(x, 1);
    let h = norm(b, "final_layer_norm", x);
    let h = linear(b, "fc1", h, ffn);
    let h = b.activation(ActivationKind::GeluErf, h);
    let h = linear(b, "fc2", h, dim);
    b.add(x, h)
}
