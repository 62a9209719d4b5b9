//! The forward pass as a program. T frames of packed clips, S clips, D width, E text width, M mel channels.

use super::config::{Config, MELS, POSITION_GROUPS};
use crate::batch::Capacity;
use crate::common::linear;
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::attention::{Attention, Rotary};
use ambitus_ir::ops::index::{Sinusoid, SinusoidKind};
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

const EPS: f32 = 1e-6;

/// Builds the training step's forward: flow matching at drawn times (see `batch` for the inputs), output `loss` `[1]`.
/// With `train`, dropout is applied where the configuration has it.
pub fn loss(session: &mut Session, cfg: &Config, cap: Capacity, name: &str, train: bool) -> Program {
    let mut b = Builder::new(session, name);
    let frames = TensorType::f32(&[cap.rows, MELS]);
    let rows = TensorType::f32(&[cap.rows]);
    let x1 = b.input("mel", frames);
    let x0 = b.input("noise", frames);
    let cond_mask = b.input("cond_mask", rows);
    let span = b.input("span", rows);
    let norm = b.input("norm", TensorType::f32(&[1]));
    let clips = Clips::input(&mut b, cfg, cap, train);
    // phi = (1 - t) x0 + t x1, target = x1 - x0
    let target = b.sub(x1, x0);
    let t_rows = clips.per_frame(&mut b, clips.time, cap.rows);
    let step = b.scale_rows(target, t_rows);
    let phi = b.add(x0, step);
    let cond = b.scale_rows(x1, cond_mask);
    let pred = velocity(&mut b, cfg, &clips, phi, cond);
    let loss = b.masked_mse(pred, target, span, norm);
    b.output("loss", loss);
    b.finish()
}

/// Builds the velocity field for sampling: inputs `x` and `cond` `[T, M]` and the clip inputs; output `velocity` `[T, M]`.
pub fn sample(session: &mut Session, cfg: &Config, cap: Capacity, name: &str) -> Program {
    let mut b = Builder::new(session, name);
    let frames = TensorType::f32(&[cap.rows, MELS]);
    let x = b.input("x", frames);
    let cond = b.input("cond", frames);
    let clips = Clips::input(&mut b, cfg, cap, false);
    let v = velocity(&mut b, cfg, &clips, x, cond);
    b.output("velocity", v);
    b.finish()
}

/// What every program knows of the packed clips.
struct Clips {
    /// i32 `[S+1]`.
    segs: ValueId,
    /// f32 `[S]`: flow time.
    time: ValueId,
    /// i32 `[T]`: row of the text embedding per frame, 0 = filler.
    text: ValueId,
    /// f32 `[T]`: 1 where the frame holds a text token.
    text_mask: Option<ValueId>,
    /// i32 `[S, 2]`: random keys.
    dropout: Option<(f32, ValueId)>,
}

impl Clips {
    fn input(b: &mut Builder<'_>, cfg: &Config, cap: Capacity, train: bool) -> Clips {
        let drops = train && cfg.dropout > 0.0;
        let masks = cfg.text_mask && cfg.conv_layers > 0;
        Clips {
            segs: b.input("segments", TensorType::i32(&[cap.clips + 1])),
            time: b.input("time", TensorType::f32(&[cap.clips])),
            text: b.input("text", TensorType::i32(&[cap.rows])),
            text_mask: masks.then(|| b.input("text_mask", TensorType::f32(&[cap.rows]))),
            dropout: drops.then(|| (cfg.dropout, b.input("keys", TensorType::i32(&[cap.clips, 2])))),
        }
    }

    /// Returns a number per clip `[S]` as a number per frame `[T]`.
    fn per_frame(&self, b: &mut Builder<'_>, per_clip: ValueId, frames: usize) -> ValueId {
        let clips = b.dim(per_clip, 0);
        let column = b.reshape(per_clip, &[clips, 1]);
        let rows = b.segment_broadcast(column, self.segs, frames);
        b.reshape(rows, &[frames])
    }

    fn dropped(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        match self.dropout {
            Some((p, keys)) => b.dropout(x, p, keys, self.segs),
            None => x,
        }
    }
}

/// Returns the transformer: (phi, cond `[T, M]`) to the predicted velocity `[T, M]`.
fn velocity(b: &mut Builder<'_>, cfg: &Config, clips: &Clips, phi: ValueId, cond: ValueId) -> ValueId {
    b.scope("transformer", |b| {
        let inv_freq = b.scope("rotary_embed", |b| b.frozen_parameter("inv_freq", &[cfg.dim_head / 2]));
        let time = time_embedding(b, cfg, clips);
        let text = text_embedding(b, cfg, clips, phi);
        let first = input_embedding(b, cfg, clips, phi, cond, text);
        let mut x = first;
        for i in 0..cfg.depth {
            x = b.block("transformer_blocks", i, |b| block(b, cfg, clips, inv_freq, time, x));
        }
        if cfg.long_skip {
            x = b.scope("long_skip_connection", |b| {
                let both = b.concat(&[x, first], 1);
                let w = b.parameter("weight", &[cfg.dim, 2 * cfg.dim]);
                b.linear(both, w, None)
            });
        }
        let table = linear(b, "norm_out.linear", time, 2 * cfg.dim);
        // Scale first here, shift first in the blocks.
        let scale = b.slice(table, 1, 0, cfg.dim);
        let shift = b.slice(table, 1, cfg.dim, cfg.dim);
        let x = b.scope("norm_out", |b| b.ada_layer_norm(x, shift, scale, clips.segs, EPS));
        linear(b, "proj_out", x, MELS)
    })
}

/// Computes silu of the time vector, `[S, D]`: every modulation starts from it.
fn time_embedding(b: &mut Builder<'_>, cfg: &Config, clips: &Clips) -> ValueId {
    b.scope("time_embed", |b| {
        let kind = SinusoidKind::SinCos;
        let op = Sinusoid { kind, half: 128, scale: 1000.0, base: 10000.0 };
        let waves = b.push1(op, &[clips.time]);
        let h = linear(b, "time_mlp.0", waves, cfg.dim);
        let h = b.activation(ActivationKind::Silu, h);
        let c = linear(b, "time_mlp.2", h, cfg.dim);
        b.activation(ActivationKind::Silu, c)
    })
}

/// Computes one text vector per frame, `[T, E]`.
fn text_embedding(b: &mut Builder<'_>, cfg: &Config, clips: &Clips, phi: ValueId) -> ValueId {
    let frames = b.dim(phi, 0);
    b.scope("text_embed", |b| {
        let table = b.scope("text_embed", |b| b.parameter("weight", &[cfg.text_rows, cfg.text_dim]));
        let mut e = b.gather(table, clips.text);
        if cfg.conv_layers == 0 {
            return e;
        }
        let at = b.segment_positions(clips.segs, frames);
        let kind = SinusoidKind::CosSin;
        let op = Sinusoid { kind, half: cfg.text_dim / 2, scale: 1.0, base: 10000.0 };
        let positions = b.push1(op, &[at]);
        e = b.add(e, positions);
        let masked = |b: &mut Builder<'_>, e| match clips.text_mask {
            Some(mask) => b.scale_rows(e, mask),
            None => e,
        };
        e = masked(b, e);
        for i in 0..cfg.conv_layers {
            e = b.scope(&format!("text_blocks.{i}"), |b| convnext(b, cfg.text_dim, clips.segs, e));
            e = masked(b, e);
        }
        e
    })
}

/// Applies a ConvNeXt V2 block over each clip, `[T, E]` to `[T, E]`.
fn convnext(b: &mut Builder<'_>, width: usize, segs: ValueId, x: ValueId) -> ValueId {
    let h = b.scope("dwconv", |b| {
        let w = b.parameter("weight", &[width, 1, 7]);
        let bias = b.parameter("bias", &[width]);
        b.conv1d(x, w, bias, segs, width, 3)
    });
    let h = b.scope("norm", |b| {
        let gamma = b.parameter("weight", &[width]);
        let beta = b.parameter("bias", &[width]);
        b.layer_norm(h, gamma, beta, EPS)
    });
    let h = linear(b, "pwconv1", h, 2 * width);
    let h = b.activation(ActivationKind::GeluErf, h);
    let h = b.scope("grn", |b| {
        let gamma = b.parameter("gamma", &[1, 1, 2 * width]);
        let beta = b.parameter("beta", &[1, 1, 2 * width]);
        let gamma = b.reshape(gamma, &[2 * width]);
        let beta = b.reshape(beta, &[2 * width]);
        b.grn(h, gamma, beta, segs)
    });
    let h = linear(b, "pwconv2", h, width);
    b.add(x, h)
}

/// Joins noised mel, conditioning and text, and adds the convolutional position embedding: `[T, D]`.
fn input_embedding(
    b: &mut Builder<'_>,
    cfg: &Config,
    clips: &Clips,
    phi: ValueId,
    cond: ValueId,
    text: ValueId,
) -> ValueId {
    b.scope("input_embed", |b| {
        let joined = b.concat(&[phi, cond, text], 1);
        let x = linear(b, "proj", joined, cfg.dim);
        let mut h = x;
        for i in [0, 2] {
            h = b.scope(&format!("conv_pos_embed.conv1d.{i}"), |b| {
                let w = b.parameter("weight", &[cfg.dim, cfg.dim / POSITION_GROUPS, 31]);
                let bias = b.parameter("bias", &[cfg.dim]);
                let y = b.conv1d(h, w, bias, clips.segs, POSITION_GROUPS, 15);
                b.activation(ActivationKind::Mish, y)
            });
        }
        b.add(x, h)
    })
}

/// Applies one DiT block, `[T, D]` to `[T, D]`.
fn block(
    b: &mut Builder<'_>,
    cfg: &Config,
    clips: &Clips,
    inv_freq: ValueId,
    time: ValueId,
    x: ValueId,
) -> ValueId {
    let table = linear(b, "attn_norm.linear", time, 6 * cfg.dim);
    let chunk = |b: &mut Builder<'_>, i: usize| b.slice(table, 1, i * cfg.dim, cfg.dim);
    let (shift_msa, scale_msa, gate_msa) = (chunk(b, 0), chunk(b, 1), chunk(b, 2));
    let (shift_mlp, scale_mlp, gate_mlp) = (chunk(b, 3), chunk(b, 4), chunk(b, 5));

    let a = b.scope("attn_norm", |b| b.ada_layer_norm(x, shift_msa, scale_msa, clips.segs, EPS));
    let a = b.scope("attn", |b| attention(b, cfg, clips, inv_freq, a));
    let x = b.scope("attn", |b| b.gated_residual(x, gate_msa, a, clips.segs));

    let f = b.scope("ff_norm", |b| b.ada_layer_norm(x, shift_mlp, scale_mlp, clips.segs, EPS));
    let f = b.scope("ff", |b| {
        let f = linear(b, "ff.0.0", f, cfg.ff_dim);
        let f = b.activation(ActivationKind::GeluTanh, f);
        let f = clips.dropped(b, f);
        linear(b, "ff.2", f, cfg.dim)
    });
    b.scope("ff", |b| b.gated_residual(x, gate_mlp, f, clips.segs))
}

fn attention(b: &mut Builder<'_>, cfg: &Config, clips: &Clips, inv_freq: ValueId, a: ValueId) -> ValueId {
    let inner = cfg.heads * cfg.dim_head;
    let mut q = linear(b, "to_q", a, inner);
    let mut k = linear(b, "to_k", a, inner);
    let v = linear(b, "to_v", a, inner);
    if cfg.qk_norm {
        q = head_norm(b, "q_norm", cfg, q);
        k = head_norm(b, "k_norm", cfg, k);
    }
    let rotary = Rotary { head_dim: cfg.dim_head, rotated: cfg.rotated, interleaved: true, inverse: false };
    let q = b.push1(rotary.clone(), &[q, inv_freq, clips.segs]);
    let k = b.push1(rotary, &[k, inv_freq, clips.segs]);
    let op = Attention {
        heads: cfg.heads,
        kv_heads: cfg.heads,
        head_dim: cfg.dim_head,
        causal: false,
        scale: 1.0 / (cfg.dim_head as f32).sqrt(),
    };
    let o = b.self_attention(op, q, k, v, clips.segs);
    let o = linear(b, "to_out.0", o, cfg.dim);
    clips.dropped(b, o)
}

/// Computes the RMS norm of every head by one weight `[dim_head]`.
fn head_norm(b: &mut Builder<'_>, name: &str, cfg: &Config, x: ValueId) -> ValueId {
    let (rows, cols) = (b.dim(x, 0), b.dim(x, 1));
    let heads = b.reshape(x, &[rows * cfg.heads, cfg.dim_head]);
    let normed = b.scope(name, |b| {
        let gamma = b.parameter("weight", &[cfg.dim_head]);
        b.rms_norm(heads, gamma, EPS)
    });
    b.reshape(normed, &[rows, cols])
}
