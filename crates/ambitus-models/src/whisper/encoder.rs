//! The encoder as a program: a window of mel frames to the states that the decoder attends to. M bands, D width, N states.

use super::config::Config;
use super::layers::{attended, attention, fed_forward, keys, norm};
use crate::batch::{Batch, Layout};
use crate::decode::{Room, keep};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// The program.
pub const ENCODE: &str = "encode";

/// Returns the inputs of [`encode`].
pub fn layout(cfg: &Config) -> Layout {
    Layout::new(
        &[("mel", cfg.frames() * cfg.mels)],
        &[("frames", 2), ("states_of", 2), ("context_rows", cfg.states)],
    )
}

/// Fills the inputs of [`encode`] but for `mel`, for sequence s of those that are decoded together.
pub fn fill(cfg: &Config, batch: &mut Batch, s: usize) {
    batch.int("frames").copy_from_slice(&[0, cfg.frames() as i32]);
    batch.int("states_of").copy_from_slice(&[0, cfg.states as i32]);
    let first = s * cfg.states;
    (first..).zip(batch.int("context_rows")).for_each(|(at, to)| *to = at as i32);
}

/// Builds the program: inputs `mel` f32 `[2 N, M]`, a row for each frame; `frames` and `states_of`, i32 `[2]`, from where to where they
/// and the states are; `context_rows` i32 `[N]`, where the decoder keeps the states' keys and values; output `states` `[N, D]`.
///
/// Every decoder layer's keys and values are computed here, once, and kept in states that the decoder's programs read.
pub fn encode(session: &mut Session, cfg: &Config, room: Room) -> Program {
    let mut builder = Builder::new(session, ENCODE);
    let b = &mut builder;
    let mel = b.input("mel", TensorType::f32(&[cfg.frames(), cfg.mels]));
    let frames = b.input("frames", TensorType::i32(&[2]));
    let segs = b.input("states_of", TensorType::i32(&[2]));
    let at = b.input("context_rows", TensorType::i32(&[cfg.states]));
    let states = b.scope("model.encoder", |b| {
        let mut x = convolved(b, cfg, mel, frames);
        for i in 0..cfg.encoder.layers {
            x = b.block("layers", i, |b| layer(b, cfg, segs, x));
        }
        norm(b, "layer_norm", x)
    });
    let rows = room.sequences * cfg.states;
    b.scope("model.decoder", |b| {
        for i in 0..cfg.decoder.layers {
            b.block("layers", i, |b| {
                b.scope("encoder_attn", |b| {
                    let kv = keys(b, states);
                    keep(b, room.cache, rows, kv, at);
                });
            });
        }
    });
    b.output("states", states);
    builder.finish()
}

/// gelu(conv2(gelu(conv1 mel))) and the places of states. The second convolution takes two frames a step: of all its rows the even ones are
/// kept, which costs little beside the layers.
fn convolved(b: &mut Builder<'_>, cfg: &Config, mel: ValueId, frames: ValueId) -> ValueId {
    let dim = cfg.dim;
    let mut x = mel;
    for name in ["conv1", "conv2"] {
        x = b.scope(name, |b| {
            let from = b.dim(x, 1);
            let w = b.parameter("weight", &[dim, from, 3]);
            let bias = b.parameter("bias", &[dim]);
            b.conv1d(x, w, bias, frames, 1, 1)
        });
        if name == "conv2" {
            let pairs = b.reshape(x, &[cfg.states, 2 * dim]);
            x = b.slice(pairs, 1, 0, dim);
        }
        x = b.activation(ActivationKind::GeluErf, x);
    }
    let places = b.scope("embed_positions", |b| b.parameter("weight", &[cfg.states, dim]));
    b.add(x, places)
}

fn layer(b: &mut Builder<'_>, cfg: &Config, segs: ValueId, x: ValueId) -> ValueId {
    let op = attention(cfg.dim, cfg.encoder.heads, false);
    let x = attended(b, "self_attn", x, |b, h, q| {
        let [k, v] = keys(b, h);
        b.self_attention(op, q, k, v, segs)
    });
    fed_forward(b, x, cfg.encoder.ffn)
}
