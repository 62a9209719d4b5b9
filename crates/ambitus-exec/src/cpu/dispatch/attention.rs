//! Rotary position embedding and attention.

use super::{Resolved, kernel};
use crate::cpu::core_ops::segment;
use crate::cpu::kernels as k;
use crate::cpu::operand::Io;
use crate::cpu::types::Types;
use ambitus_ir::TensorType;
use ambitus_ir::ops::attention::{Attention, AttentionGrad, Rotary, RotaryFrequencies};
use ambitus_ir::ops::windowed::{self, WindowedAttention, WindowedAttentionGrad};

pub fn rotary_frequencies(op: &RotaryFrequencies, mut io: Io) -> Resolved {
    let (dim, base, mut y) = (op.dim, op.base, io.y(0));
    kernel(move |f| segment::rotary_frequencies(dim, base, y.vec(f)))
}

pub fn rotary(op: &Rotary, mut io: Io) -> Resolved {
    let rotary = k::Rotary {
        head_dim: op.head_dim,
        rot_heads: op.rotated,
        pairing: if op.interleaved { k::Pairing::Interleaved } else { k::Pairing::HalfSplit },
        inverse: op.inverse,
    };
    let at = if io.operands() > 3 { Some(io.x(3)?) } else { None };
    let (x, freqs, seg, mut y) = (io.source(0, 0)?, io.x(1)?, io.x(2)?, io.y(0));
    kernel(move |f| {
        let (x, at) = (x.rows(f), at.as_ref().map(|at| at.ints(f)));
        k::rotary(f.pool, x, (seg.ints(f), at), &rotary, freqs.vec(f), y.rows(f));
    })
}

/// Returns the kernel's description of an op.
fn attention(op: &Attention) -> k::Attention {
    let Attention { heads, kv_heads, head_dim, causal, scale } = *op;
    k::Attention { heads, kv_heads, head_dim, causal, scale }
}

/// Returns the kernel's description of a gradient op.
fn attention_of_grad(op: &AttentionGrad) -> k::Attention {
    let AttentionGrad { heads, kv_heads, head_dim, causal, scale } = *op;
    k::Attention { heads, kv_heads, head_dim, causal, scale }
}

pub fn forward(op: &Attention, mut io: Io) -> Resolved {
    let op = attention(op);
    let (q, key, v, q_seg, k_seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?, io.x(4)?);
    let (mut o, mut lse, mut ws) = (io.y(0), io.y(1), io.ws());
    kernel(move |f| {
        let (q, key, v) = (q.rows(f), key.rows(f), v.rows(f));
        let (o, lse, ws) = (o.rows(f), lse.mat(f), ws.data(f));
        k::attention(f.pool, q, key, v, q_seg.ints(f), k_seg.ints(f), &op, o, lse, ws);
    })
}

/// Returns the floats of scratch of [`forward`].
pub fn workspace(op: &Attention, t: Types<'_>, threads: usize) -> usize {
    k::attention_workspace(&attention(op), threads, t.halves())
}

pub fn grad(op: &AttentionGrad, mut io: Io) -> Resolved {
    let op = attention_of_grad(op);
    let (q, key, v, o) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (lse, d_o, q_seg, k_seg) = (io.x(4)?, io.x(5)?, io.x(6)?, io.x(7)?);
    let (mut dq, mut dk, mut dv, mut ws) = (io.y(0), io.y(1), io.y(2), io.ws());
    kernel(move |f| {
        let (q, key, v, o, lse) = (q.rows(f), key.rows(f), v.rows(f), o.rows(f), lse.mat(f));
        let (d_o, q_seg, k_seg) = (d_o.rows(f), q_seg.ints(f), k_seg.ints(f));
        let (dq, dk, dv, ws) = (dq.rows(f), dk.rows(f), dv.rows(f), ws.data(f));
        k::attention_grad(f.pool, q, key, v, o, lse, d_o, q_seg, k_seg, &op, dq, dk, dv, ws);
    })
}

/// Returns the floats of scratch of [`grad`].
pub fn grad_workspace(op: &AttentionGrad, t: Types<'_>, threads: usize) -> usize {
    k::attention_grad_workspace(&attention_of_grad(op), t.x[0].shape.rows(), threads, t.halves())
}

/// Returns the kernel's description of attention with a window, for q's type.
fn windowed(heads: usize, q: TensorType) -> k::Attention {
    let (head_dim, scale) = (q.shape.cols() / heads, windowed::scale(heads, q));
    k::Attention { heads, kv_heads: heads, head_dim, causal: false, scale }
}

pub fn windowed_forward(op: &WindowedAttention, mut io: Io) -> Resolved {
    let spec = windowed(op.heads, io.x_ty(0));
    let (q, key, v, keys, values, seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?, io.x(4)?, io.x(5)?);
    let (mut o, mut lse, mut ws) = (io.y(0), io.y(1), io.ws());
    kernel(move |f| {
        let window = k::Window { keys: keys.mat(f), values: values.mat(f) };
        let (qkv, y) = ([q.rows(f), key.rows(f), v.rows(f)], (o.rows(f), lse.mat(f)));
        k::windowed_attention(f.pool, qkv, window, seg.ints(f), &spec, y, ws.data(f));
    })
}

/// Returns the floats of scratch of [`windowed_forward`].
pub fn windowed_workspace(op: &WindowedAttention, t: Types<'_>, threads: usize) -> usize {
    k::attention_workspace(&windowed(op.heads, t.x[0]), threads, t.halves())
}

pub fn windowed_grad(op: &WindowedAttentionGrad, mut io: Io) -> Resolved {
    let spec = windowed(op.heads, io.x_ty(0));
    let (q, key, v, keys, values) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?, io.x(4)?);
    let (o, lse, d_o, seg) = (io.x(5)?, io.x(6)?, io.x(7)?, io.x(8)?);
    let (mut dq, mut dk, mut dv) = (io.y(0), io.y(1), io.y(2));
    let (mut dkeys, mut dvalues, mut ws) = (io.y(3), io.y(4), io.ws());
    kernel(move |f| {
        let window = k::Window { keys: keys.mat(f), values: values.mat(f) };
        let (qkv, of_o) = ([q.rows(f), key.rows(f), v.rows(f)], (o.rows(f), lse.mat(f), d_o.rows(f)));
        let (grads, tables) = ([dq.rows(f), dk.rows(f), dv.rows(f)], [dkeys.mat(f), dvalues.mat(f)]);
        let seg = seg.ints(f);
        k::windowed_attention_grad(f.pool, qkv, window, of_o, seg, &spec, grads, tables, ws.data(f));
    })
}

/// Returns the floats of scratch of [`windowed_grad`].
pub fn windowed_grad_workspace(op: &WindowedAttentionGrad, t: Types<'_>, threads: usize) -> usize {
    let shape = (t.x[0].shape.rows(), super::segments(t.x[8]), t.x[3].shape.rows());
    k::windowed_attention_grad_workspace(&windowed(op.heads, t.x[0]), shape, threads, t.halves())
}
