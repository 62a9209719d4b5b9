//! The text encoder: phonemes to the distribution of the frames that belong to each (Glow-TTS, arXiv 2005.11129).

use super::layers::{conv, layer_norm, times};
use super::{Drops, Packed};
use crate::common::codec::layers::leaky;
use crate::common::pointwise;
use crate::piper::config::Config;
use ambitus_ir::{Builder, TensorType, ValueId};

/// What a phoneme is.
pub struct Text {
    /// Its states `[U, H]`.
    pub states: ValueId,
    /// The mean of its frames' latents `[U, inter]`.
    pub mean: ValueId,
    /// The logarithm of their spread `[U, inter]`.
    pub logs: ValueId,
}

/// Encodes the input `phonemes` i32 `[U]` of the segments `text`.
pub fn encode(b: &mut Builder<'_>, cfg: &Config, text: Packed, drops: Drops) -> Text {
    b.scope("enc_p", |b| {
        let ids = b.input("phonemes", TensorType::i32(&[text.count]));
        let table = b.scope("emb", |b| b.parameter("weight", &[cfg.symbols, cfg.hidden]));
        let x = b.gather(table, ids);
        let mut x = times(b, x, (cfg.hidden as f32).sqrt());
        x = b.scope("encoder", |b| {
            for i in 0..cfg.layers {
                let h = b.block("attn_layers", i, |b| attention(b, cfg, text, x));
                x = added(b, &format!("norm_layers_1.{i}"), x, h, text, drops);
                let h = b.block("ffn_layers", i, |b| feed_forward(b, cfg, text, drops, x));
                x = added(b, &format!("norm_layers_2.{i}"), x, h, text, drops);
            }
            x
        });
        let stats = pointwise(b, "proj", x, 2 * cfg.inter);
        let [mean, logs] = [0, 1].map(|i| b.slice(stats, 1, i * cfg.inter, cfg.inter));
        Text { states: x, mean, logs }
    })
}

/// Returns the norm of x and what is added to it.
fn added(b: &mut Builder<'_>, norm: &str, x: ValueId, h: ValueId, text: Packed, drops: Drops) -> ValueId {
    let h = b.scope(norm, |b| drops.of(b, h, text));
    let sum = b.add(x, h);
    layer_norm(b, norm, sum)
}

/// Phonemes of a text see each other, with keys and values of their own for those that are near (Shaw et al., arXiv 1803.02155).
fn attention(b: &mut Builder<'_>, cfg: &Config, text: Packed, x: ValueId) -> ValueId {
    let [q, k, v] = ["conv_q", "conv_k", "conv_v"].map(|name| pointwise(b, name, x, cfg.hidden));
    let (places, of_head) = (2 * cfg.near + 1, cfg.hidden / cfg.heads);
    let [near_k, near_v] = ["emb_rel_k", "emb_rel_v"].map(|name| {
        let table = b.parameter(name, &[1, places, of_head]);
        b.reshape(table, &[places, of_head])
    });
    let o = b.windowed_attention(cfg.heads, [q, k, v], [near_k, near_v], text.table);
    pointwise(b, "conv_o", o, cfg.hidden)
}

fn feed_forward(b: &mut Builder<'_>, cfg: &Config, text: Packed, drops: Drops, x: ValueId) -> ValueId {
    let pad = (cfg.kernel - 1) / 2;
    let h = conv(b, "conv_1", x, [cfg.filter, cfg.kernel], pad, text.table);
    let h = leaky(b, h, 0.0);
    let h = drops.of(b, h, text);
    conv(b, "conv_2", h, [cfg.hidden, cfg.kernel], pad, text.table)
}
