//! Frames of a spectrogram to their latents, and the flow from these to the text's prior (VITS, arXiv 2106.06103).

use super::layers::{normed, pointwise_normed, sigmoid};
use super::{Packed, Way};
use crate::common::pointwise;
use crate::piper::config::{COUPLINGS, Config, Gated};
use ambitus_ir::ops::elementwise::UnaryKind;
use ambitus_ir::{Builder, TensorType, ValueId};

/// What a frame is.
pub struct Frames {
    /// Its latent `[F, inter]`, drawn.
    pub latent: ValueId,
    /// The logarithm of the spread that it was drawn with `[F, inter]`.
    pub logs: ValueId,
}

/// Encodes a spectrogram `[F, bins]`, with the input `noise` f32 `[F, inter]`, of a voice `[S, V]` where there are several.
pub fn encode(
    b: &mut Builder<'_>,
    cfg: &Config,
    frames: Packed,
    spec: ValueId,
    voice: Option<ValueId>,
) -> Frames {
    b.scope("enc_q", |b| {
        let x = pointwise(b, "pre", spec, cfg.hidden);
        let x = b.scope("enc", |b| gated(b, cfg.posterior, frames, x, voice));
        let stats = pointwise(b, "proj", x, 2 * cfg.inter);
        let [mean, logs] = [0, 1].map(|i| b.slice(stats, 1, i * cfg.inter, cfg.inter));
        let noise = b.input("noise", TensorType::f32(&[frames.count, cfg.inter]));
        let spread = b.unary(UnaryKind::Exp, logs);
        let drawn = b.mul(noise, spread);
        Frames { latent: b.add(mean, drawn), logs }
    })
}

/// Returns latents `[F, inter]` as the text's prior has them, or back. Between two couplings the project turns the order of the channels:
/// here every second one has its weights turned instead, and there are as many of one kind as of the other.
pub fn flow(
    b: &mut Builder<'_>,
    cfg: &Config,
    frames: Packed,
    x: ValueId,
    voice: Option<ValueId>,
    way: Way,
) -> ValueId {
    let half = cfg.inter / 2;
    let mut halves = [0, 1].map(|i| b.slice(x, 1, i * half, half));
    for step in 0..COUPLINGS {
        let i = if way == Way::There { step } else { COUPLINGS - 1 - step };
        let turned = i % 2 == 1;
        let [kept, moved] = if turned { [1, 0] } else { [0, 1] };
        let mean = b.scope(&format!("flow.flows.{}", 2 * i), |b| {
            coupling(b, cfg, frames, halves[kept], voice, turned)
        });
        halves[moved] = match way {
            Way::There => b.add(mean, halves[moved]),
            Way::Back => b.sub(halves[moved], mean),
        };
    }
    b.concat(&halves, 1)
}

/// Returns what one half of the channels adds to the other.
fn coupling(
    b: &mut Builder<'_>,
    cfg: &Config,
    frames: Packed,
    x: ValueId,
    voice: Option<ValueId>,
    turned: bool,
) -> ValueId {
    let (half, hidden) = (cfg.inter / 2, cfg.hidden);
    let turn = |b: &mut Builder<'_>, w: ValueId, axis: usize| if turned { b.reverse(w, axis) } else { w };
    let x = b.scope("pre", |b| {
        let w = b.parameter("weight", &[hidden, half, 1]);
        let w = b.reshape(w, &[hidden, half]);
        let w = turn(b, w, 1);
        let bias = b.parameter("bias", &[hidden]);
        b.linear(x, w, Some(bias))
    });
    let x = b.scope("enc", |b| gated(b, cfg.coupling, frames, x, voice));
    b.scope("post", |b| {
        let w = b.parameter("weight", &[half, hidden, 1]);
        let w = b.reshape(w, &[half, hidden]);
        let w = turn(b, w, 0);
        let bias = b.parameter("bias", &[half]);
        let bias = turn(b, bias, 0);
        b.linear(x, w, Some(bias))
    })
}

/// Applies gated convolutions, each of which passes a part on and skips to the end with another, `[F, H]` to `[F, H]`; a voice `[S, V]`
/// moves what comes before the gates.
fn gated(
    b: &mut Builder<'_>,
    shape: Gated,
    frames: Packed,
    mut x: ValueId,
    voice: Option<ValueId>,
) -> ValueId {
    let width = b.dim(x, 1);
    let moved = voice.map(|voice| pointwise_normed(b, "cond_layer", voice, 2 * width * shape.layers));
    let mut skipped: Option<ValueId> = None;
    for i in 0..shape.layers {
        let h = b.block("in_layers", i, |b| {
            let w = normed(b, [2 * width, width, shape.taps]);
            let bias = b.parameter("bias", &[2 * width]);
            let mut h = b.conv1d(x, w, bias, frames.table, 1, shape.taps / 2);
            if let Some(moved) = moved {
                let by = b.slice(moved, 1, 2 * width * i, 2 * width);
                let by = b.segment_broadcast(by, frames.table, frames.count);
                h = b.add(h, by);
            }
            let [value, gate] = [0, 1].map(|i| b.slice(h, 1, i * width, width));
            let value = b.unary(UnaryKind::Tanh, value);
            let gate = sigmoid(b, gate);
            b.mul(value, gate)
        });
        let last = i + 1 == shape.layers;
        let h = pointwise_normed(b, &format!("res_skip_layers.{i}"), h, if last { width } else { 2 * width });
        let mut skip = h;
        if !last {
            let passed = b.slice(h, 1, 0, width);
            x = b.add(x, passed);
            skip = b.slice(h, 1, width, width);
        }
        skipped = Some(skipped.map_or(skip, |sum| b.add(sum, skip)));
    }
    skipped.unwrap_or(x)
}
