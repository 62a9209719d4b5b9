//! Durations to frames, and these to latents: the text's prior, drawn, and the flow backwards (VITS, arXiv 2106.06103).
//! B texts of T ids, F frames of the longest, H channels.

use super::graph::{Attr, Graph, Value};
use super::layers::{Conv, float, permute, split, unsqueeze};
use super::text::Text;
use ambitus_models::piper::config::{COUPLINGS, Config};

/// Frames of texts.
pub(super) struct Frames {
    /// 1 where an id, and nowhere else, has a frame: f32 `[B, T, F]`.
    pub path: Value,
    /// 1 for frames, 0 behind a text's last, f32 `[B, 1, F]`.
    pub mask: Value,
}

/// Returns the frames of texts whose ids last so long, in logarithms of frames, f32 `[B, 1, T]`. `pace` is what durations are multiplied by;
/// each is a whole number then, the next above. A text of no frames has one, of zeros.
pub(super) fn lasting(g: &mut Graph, text: &Text, logarithms: Value, pace: Value) -> Frames {
    let x = g.op("Exp", &[logarithms]);
    let x = g.op("Mul", &[x, text.mask]);
    let x = g.op("Mul", &[x, pace]);
    let each = g.op("Ceil", &[x]);
    let last = g.ints(&[2]);
    let count = g.op("ReduceSum", &[each, last]);
    let one = g.float(1.0);
    let count = g.op("Clip", &[count, one]);
    let longest = g.with("ReduceMax", &[count], &[Attr::Int("keepdims", 0)]);
    let zero = g.float(0.0);
    let frames = g.op("Range", &[zero, longest, one]);
    let mask = g.op("Less", &[frames, count]);
    let mask = float(g, mask);
    // Durations are whole numbers far below 2^24, so sums and differences are exact.
    let axis = g.int(2);
    let ends = g.op("CumSum", &[each, axis]);
    let starts = g.op("Sub", &[ends, each]);
    let [starts, ends] = [starts, ends].map(|x| permute(g, x, &[0, 2, 1]));
    let begun = g.op("GreaterOrEqual", &[frames, starts]);
    let lasts = g.op("Less", &[frames, ends]);
    let path = g.op("And", &[begun, lasts]);
    Frames { path: float(g, path), mask }
}

/// Returns the prior of frames, drawn, f32 `[B, inter, F]`: `spread` is what noise is multiplied by.
pub(super) fn drawn(g: &mut Graph, text: &Text, frames: &Frames, spread: Value) -> Value {
    let [mean, logs] = [text.mean, text.logs].map(|of| g.op("MatMul", &[of, frames.path]));
    let noise = g.op("RandomNormalLike", &[mean]);
    let size = g.op("Exp", &[logs]);
    let noise = g.op("Mul", &[noise, size]);
    let noise = g.op("Mul", &[noise, spread]);
    g.op("Add", &[mean, noise])
}

/// Returns latents f32 `[B, inter, F]` of frames as the prior has them, of a voice `[1, V, 1]`: the couplings backwards, each behind a turn of
/// the order of channels.
pub(super) fn flow(
    g: &mut Graph,
    cfg: &Config,
    frames: &Frames,
    voice: Option<Value>,
    mut x: Value,
) -> Value {
    let half = cfg.inter / 2;
    g.scope("flow", |g| {
        for i in (0..COUPLINGS).rev() {
            x = turned(g, x);
            let [kept, moved] = split(g, x, 1, [half; 2]);
            let mean = g.scope(&format!("flows.{}", 2 * i), |g| {
                let h = Conv::of(cfg.hidden, half, 1).add(g, "pre", kept);
                let h = g.op("Mul", &[h, frames.mask]);
                let h = g.scope("enc", |g| gated(g, cfg, frames.mask, voice, h));
                let h = Conv::of(half, cfg.hidden, 1).add(g, "post", h);
                g.op("Mul", &[h, frames.mask])
            });
            let moved = g.op("Sub", &[moved, mean]);
            let moved = g.op("Mul", &[moved, frames.mask]);
            x = g.with("Concat", &[kept, moved], &[Attr::Int("axis", 1)]);
        }
        x
    })
}

/// Returns x with its channels from the last to the first.
fn turned(g: &mut Graph, x: Value) -> Value {
    let [start, end, axis, step] = [-1, i64::MIN, 1, -1].map(|n| g.ints(&[n]));
    g.op("Slice", &[x, start, end, axis, step])
}

/// Gated convolutions, each of which passes a part on and skips to the end with another (WaveNet, arXiv 1609.03499), `[B, H, F]` to
/// `[B, H, F]`; a voice moves what comes before the gates.
fn gated(g: &mut Graph, cfg: &Config, mask: Value, voice: Option<Value>, mut x: Value) -> Value {
    let (width, layers) = (cfg.hidden, cfg.coupling.layers);
    let normed = |out, inner, taps| Conv { normed: true, ..Conv::of(out, inner, taps) };
    let voice = voice.map(|v| normed(2 * width * layers, cfg.speaker, 1).add(g, "cond_layer", v));
    let mut skipped: Option<Value> = None;
    for i in 0..layers {
        let mut h = normed(2 * width, width, cfg.coupling.taps).add(g, &format!("in_layers.{i}"), x);
        if let Some(voice) = voice {
            let [start, end] = [i, i + 1].map(|i| g.ints(&[(2 * width * i) as i64]));
            let axis = g.ints(&[1]);
            let by = g.op("Slice", &[voice, start, end, axis]);
            h = g.op("Add", &[h, by]);
        }
        let [value, gate] = split(g, h, 1, [width; 2]);
        let value = g.op("Tanh", &[value]);
        let gate = g.op("Sigmoid", &[gate]);
        let h = g.op("Mul", &[value, gate]);
        let last = i + 1 == layers;
        let out = if last { width } else { 2 * width };
        let mut skip = normed(out, width, 1).add(g, &format!("res_skip_layers.{i}"), h);
        if !last {
            let [passed, rest] = split(g, skip, 1, [width; 2]);
            let sum = g.op("Add", &[x, passed]);
            x = g.op("Mul", &[sum, mask]);
            skip = rest;
        }
        skipped = Some(skipped.map_or(skip, |sum| g.op("Add", &[sum, skip])));
    }
    let sum = skipped.unwrap_or(x);
    g.op("Mul", &[sum, mask])
}

/// Returns a voice of the table f32 `[1, V, 1]`, of its number i64 `[1]`.
pub(super) fn voice(g: &mut Graph, cfg: &Config, number: Value) -> Value {
    let row = g.scope("emb_g", |g| {
        let table = g.weight("weight", &[cfg.speakers, cfg.speaker]);
        g.op("Gather", &[table, number])
    });
    unsqueeze(g, row, 2)
}
