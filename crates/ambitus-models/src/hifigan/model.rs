//! The generator as a program, for inference. Rows are time, columns channels; T frames.

use super::config::{Config, TAPS, Unit};
use super::weights::convs;
use crate::common::codec::DECODE;
use crate::common::codec::layers::{conv, dilated, leaky, table, transposed_of};
use crate::common::codec::rows::Table;
use crate::common::codec::weights::Blocks;
use ambitus_ir::ops::elementwise::UnaryKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// Slope of every rectifier but the last.
const SLOPE: f32 = 0.1;

/// Builds the program for `frames` frames, a multiple of [`Config::phases`]: inputs `frames` `[T, input]`, with a voice `voice`
/// `[1, V]`, and the segment tables of [`tables`](crate::common::codec::rows::tables); output `audio` f32 `[T * hop, 1]`.
pub fn decode(session: &mut Session, cfg: &Config, frames: usize) -> Program {
    let mut builder = Builder::new(session, DECODE);
    let b = &mut builder;
    let x = b.input("frames", TensorType::f32(&[frames, cfg.input]));
    let voice = cfg.voice.map(|n| b.input("voice", TensorType::f32(&[1, n])));
    let mut stride = cfg.hop();
    let bias = bias(b, "conv_pre", cfg.width, voice.map(|v| ("cond_layer", v)));
    let w = b.frozen_parameter("conv_pre.weight", &[cfg.width, cfg.input, TAPS]);
    let rows = table(b, Table::rows(stride));
    let mut x = b.conv1d(x, w, bias, rows, 1, TAPS / 2);
    for (i, up) in cfg.ups.iter().enumerate() {
        x = leaky(b, x, SLOPE);
        let conds = format!("conds.{i}");
        let voice = voice.filter(|_| cfg.voice_each).map(|v| (&*conds, v));
        let name = format!("ups.{i}");
        let bias = self::bias(b, &name, cfg.width_of(i + 1), voice);
        let over = Blocks::transposed(up.taps, up.rate, up.pad());
        x = transposed_of(b, &name, x, bias, over, up.rate, stride);
        stride /= up.rate;
        x = blocks(b, cfg, i, x, stride);
    }
    let x = leaky(b, x, cfg.last_slope);
    let width = cfg.width_of(cfg.ups.len());
    let y = if cfg.last_bias {
        conv(b, "conv_post", x, [width, 1, TAPS], 1, stride)
    } else {
        let w = b.frozen_parameter("conv_post.weight", &[1, width, TAPS]);
        let none = b.fill(TensorType::f32(&[1]), 0.0);
        let rows = table(b, Table::rows(stride));
        b.conv1d(x, w, none, rows, 1, TAPS / 2)
    };
    let y = b.unary(UnaryKind::Tanh, y);
    b.output("audio", y);
    builder.finish()
}

/// Returns the bias of a convolution, `[to]`, and to it what a voice adds to every row: a product of its own.
fn bias(b: &mut Builder<'_>, name: &str, to: usize, voice: Option<(&str, ValueId)>) -> ValueId {
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    let Some((name, voice)) = voice else { return bias };
    let (w, more) = (b.dim(voice, 1), format!("{name}.bias"));
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, w]);
    let more = b.frozen_parameter(&more, &[to]);
    let added = b.linear(voice, w, Some(more));
    let added = b.reshape(added, &[to]);
    b.add(bias, added)
}

/// Returns the mean of a step's residual blocks of x.
fn blocks(b: &mut Builder<'_>, cfg: &Config, step: usize, x: ValueId, stride: usize) -> ValueId {
    let (count, mut sum) = (cfg.blocks.len(), None);
    for (j, block) in cfg.blocks.iter().enumerate() {
        let y = b.scope(&format!("resblocks.{}", step * count + j), |b| {
            let mut x = x;
            for (k, &dilation) in block.dilations.iter().enumerate() {
                let first = format!("{}.{k}", convs(cfg.unit)[0]);
                let h = leaky(b, x, SLOPE);
                let mut h = dilated(b, &first, h, block.taps, 1, dilation, stride);
                if cfg.unit == Unit::Double {
                    let (width, second) = (b.dim(h, 1), format!("{}.{k}", convs(cfg.unit)[1]));
                    h = leaky(b, h, SLOPE);
                    h = conv(b, &second, h, [width, width, block.taps], 1, stride);
                }
                x = b.add(h, x);
            }
            x
        });
        sum = Some(sum.map_or(y, |sum| b.add(sum, y)));
    }
    let part = b.fill(TensorType::f32(&[1]), 1.0 / count as f32);
    b.scale(sum.unwrap_or(x), part)
}
