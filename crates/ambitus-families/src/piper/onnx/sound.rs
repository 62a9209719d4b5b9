//! Latents to samples (HiFi-GAN, arXiv 2010.05646).

use super::graph::{Attr, Graph, Value};
use super::layers::{Conv, leaky};
use ambitus_models::hifigan::config::{Unit, Up};
use ambitus_models::piper::config::{Config, LAST_SLOPE, SLOPE, TAPS};

/// Returns samples f32 `[B, 1, hop F]` of latents `[B, inter, F]` of a voice `[1, V, 1]`.
pub(super) fn generate(g: &mut Graph, cfg: &Config, voice: Option<Value>, x: Value) -> Value {
    g.scope("dec", |g| {
        let mut x = Conv::of(cfg.width, cfg.inter, TAPS).add(g, "conv_pre", x);
        if let Some(voice) = voice {
            let by = Conv::of(cfg.width, cfg.speaker, 1).add(g, "cond", voice);
            x = g.op("Add", &[x, by]);
        }
        for (i, up) in cfg.ups.iter().enumerate() {
            x = leaky(g, x, SLOPE);
            x = g.scope(&format!("ups.{i}"), |g| upsampled(g, up, [i, i + 1].map(|n| cfg.width_of(n)), x));
            x = blocks(g, cfg, i, x);
        }
        let x = leaky(g, x, LAST_SLOPE);
        let last = Conv { bias: false, ..Conv::of(1, cfg.width_of(cfg.ups.len()), TAPS) };
        let x = last.add(g, "conv_post", x);
        g.op("Tanh", &[x])
    })
}

/// A transposed convolution, `[B, inner, R]` to `[B, out, rate R]`.
fn upsampled(g: &mut Graph, up: &Up, [inner, out]: [usize; 2], x: Value) -> Value {
    let weight = g.normed(&[inner, out, up.taps]);
    let bias = g.weight("bias", &[out]);
    let attrs = [
        Attr::Ints("dilations", vec![1]),
        Attr::Int("group", 1),
        Attr::Ints("kernel_shape", vec![up.taps as i64]),
        Attr::Ints("pads", vec![up.pad() as i64; 2]),
        Attr::Ints("strides", vec![up.rate as i64]),
    ];
    g.with("ConvTranspose", &[x, weight, bias], &attrs)
}

/// Returns the mean of a step's residual blocks of x.
fn blocks(g: &mut Graph, cfg: &Config, step: usize, x: Value) -> Value {
    let (count, width) = (cfg.blocks.len(), cfg.width_of(step + 1));
    let mut sum: Option<Value> = None;
    for (j, block) in cfg.blocks.iter().enumerate() {
        let conv = Conv { normed: true, ..Conv::of(width, width, block.taps) };
        let y = g.scope(&format!("resblocks.{}", step * count + j), |g| {
            let mut x = x;
            for (k, &dilation) in block.dilations.iter().enumerate() {
                let (first, second) = match cfg.unit {
                    Unit::Double => (format!("convs1.{k}"), Some(format!("convs2.{k}"))),
                    Unit::Single => (format!("convs.{k}"), None),
                };
                let h = leaky(g, x, SLOPE);
                let mut h = Conv { dilation, ..conv }.add(g, &first, h);
                if let Some(second) = second {
                    h = leaky(g, h, SLOPE);
                    h = conv.add(g, &second, h);
                }
                x = g.op("Add", &[h, x]);
            }
            x
        });
        sum = Some(sum.map_or(y, |sum| g.op("Add", &[sum, y])));
    }
    let count = g.float(count as f32);
    g.op("Div", &[sum.unwrap_or(x), count])
}
