//! The codec as two programs, for inference. Rows are time, columns channels; n frames of new sound, D latent channels, H channels of
//! the memory.
//!
//! The memory reads every frame once, in their order, so a window goes on where the one before it ended: what it [`carries`] are
//! inputs, and outputs as [`next`] calls them. Convolutions before the memory see frames of sound on either side of the new ones; those
//! behind it see what it gave for some frames before (`tail`), and are behind by as many as they wait for.

use super::config::Config;
use super::tables::{FRAMES, Table};
use super::weights::{codebook, decoder_last, decoder_up, encoder_block, encoder_last};
use crate::common::codec::layers::transposed_by;
use crate::common::codec::quantizer::nearest;
use crate::common::codec::weights::Blocks;
use crate::common::codec::{DECODE, ENCODE};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::{Builder, DType, Program, Session, TensorType, ValueId};

/// What the memory gave for the frames before.
const TAIL: &str = "tail";

/// Returns what a window of a direction takes from the one before it: name, rows of H channels. At a sound's start all is zero.
pub fn carries(cfg: &Config, encodes: bool) -> Vec<(String, usize)> {
    let layers =
        (0..cfg.lstm_layers).flat_map(|layer| ["h", "c"].map(|state| (format!("{state}.{layer}"), 1)));
    let tail = Some(tail(cfg, encodes)).filter(|rows| *rows > 0).map(|rows| (TAIL.to_owned(), rows));
    layers.chain(tail).collect()
}

/// Returns the output of a window that is the input `name` of the next.
pub fn next(name: &str) -> String {
    format!("next.{name}")
}

/// Returns the frames before the new ones for which the memory's results are carried.
pub fn tail(cfg: &Config, encodes: bool) -> usize {
    if encodes { cfg.last_kernel - 1 } else { 2 * cfg.decoder_context() }
}

/// Returns the frames by which a window's results are behind its new frames.
pub fn delay(cfg: &Config, encodes: bool) -> usize {
    match encodes {
        true => cfg.last_kernel - 1 - cfg.pads(cfg.last_kernel, 1)[0],
        false => cfg.decoder_context(),
    }
}

/// Builds the encoder for n = `frames` new frames: inputs `audio` `[T, 1]` of n frames with [`Config::encoder_context`] more on either
/// side, zero where there is no sound, [`FRAMES`], the tables of [`tables`](super::tables::tables) and what it [`carries`]; outputs
/// `codes.i` f32 `[tail + n]` of each codebook, whole numbers, V where something is not a number: of the frames for which memory is
/// carried and of the new ones, and what the next window takes. Of the tables, those of frames begin with the tail.
pub fn encode(session: &mut Session, cfg: &Config, frames: usize) -> Program {
    let mut b = Builder::new(session, ENCODE);
    let around = cfg.encoder_context();
    let x = b.input("audio", TensorType::f32(&[(frames + 2 * around) * cfg.hop(), 1]));
    let z = b.scope("encoder.layers", |b| {
        let mut stride = 1;
        let mut x = conv(b, "0.conv", x, &Conv { step: 1, ..Conv::of(cfg.filters, cfg.kernel) }, stride);
        for (i, &rate) in cfg.ratios.iter().rev().enumerate() {
            let first = encoder_block(cfg, i);
            x = units(b, cfg, first, x, stride);
            x = elu(b, x);
            let down = Conv { step: rate, ..Conv::of(cfg.width(i + 1), 2 * rate) };
            x = conv(b, &format!("{}.conv", first + cfg.residual_layers + 1), x, &down, stride);
            stride *= rate;
        }
        let x = b.slice(x, 0, around, frames);
        let x = lstm(b, cfg, encoder_block(cfg, cfg.ratios.len()), x);
        let x = behind_memory(b, cfg, true, x);
        let x = elu(b, x);
        let last = Conv::of(cfg.latent_dim, cfg.last_kernel);
        conv(b, &format!("{}.conv", encoder_last(cfg)), x, &last, stride)
    });
    let mut left = z;
    for i in 0..cfg.codebooks {
        let table = b.frozen_parameter(&codebook(i), &[cfg.codebook_size, cfg.latent_dim]);
        let codes = nearest(&mut b, left, table);
        b.output(&format!("codes.{i}"), codes);
        if i + 1 < cfg.codebooks {
            let ids = b.cast(codes, DType::I32);
            let known = b.gather(table, ids);
            left = b.sub(left, known);
        }
    }
    b.finish()
}

/// Builds the decoder for n = `frames` new frames: inputs `codes.i` i32 `[n + kernel - 1]`, those of the frames of
/// [`frames_read`](super::tables::frames_read) and -1 where there is none, [`FRAMES`], the tables and what it [`carries`]; outputs `audio`
/// f32 `[T, 1]` of the frames for which memory is carried and of the new ones, and what the next window takes. The tables begin with the
/// tail.
pub fn decode(session: &mut Session, cfg: &Config, frames: usize) -> Program {
    let mut b = Builder::new(session, DECODE);
    let rows = frames + cfg.kernel - 1;
    let mut z = None;
    for i in 0..cfg.codebooks {
        let ids = b.input(&format!("codes.{i}"), TensorType::i32(&[rows]));
        let table = b.frozen_parameter(&codebook(i), &[cfg.codebook_size, cfg.latent_dim]);
        let part = b.gather(table, ids);
        z = Some(z.map_or(part, |z| b.add(z, part)));
    }
    let z = z.expect("a checked configuration has a codebook");
    let y = b.scope("decoder.layers", |b| {
        let first = Conv::of(cfg.memory(), cfg.kernel);
        let x = convolved(b, "0.conv", z, &first);
        let x = b.slice(x, 0, 0, frames);
        let x = lstm(b, cfg, 1, x);
        let mut x = behind_memory(b, cfg, false, x);
        let mut stride = cfg.hop();
        for (i, &rate) in cfg.ratios.iter().enumerate() {
            x = elu(b, x);
            let (up, width) = (decoder_up(cfg, i), cfg.width(cfg.ratios.len() - 1 - i));
            x = transposed(b, cfg, &format!("{up}.conv"), x, [width, rate], stride);
            stride /= rate;
            x = units(b, cfg, up + 1, x, stride);
        }
        let x = elu(b, x);
        let last = Conv::of(1, cfg.last_kernel);
        conv(b, &format!("{}.conv", decoder_last(cfg)), x, &last, stride)
    });
    b.output("audio", y);
    b.finish()
}

/// A convolution.
struct Conv {
    /// Channels of its result.
    to: usize,
    taps: usize,
    /// From the row of a tap to that of the next.
    dilation: usize,
    /// From the rows of an element to those of the next.
    step: usize,
}

impl Conv {
    fn of(to: usize, taps: usize) -> Conv {
        Conv { to, taps, dilation: 1, step: 1 }
    }

    /// Returns the rows from the first that an element reads to the last.
    fn reach(&self) -> usize {
        (self.taps - 1) * self.dilation + 1
    }
}

/// Applies a convolution to x `[N, C]`, rows of `stride` samples, whole steps: `[N / step, to]`.
fn conv(b: &mut Builder<'_>, name: &str, x: ValueId, conv: &Conv, stride: usize) -> ValueId {
    if conv.reach() == 1 {
        return convolved(b, name, x, conv);
    }
    let rows = b.dim(x, 0);
    let table = Table::Pad { stride, reach: conv.reach(), step: conv.step };
    let at = b.input(&table.name(), table.ty(rows));
    let x = b.gather(x, at);
    let y = convolved(b, name, x, conv);
    b.slice(y, 0, 0, rows / conv.step)
}

/// Applies a convolution to the rows x `[N, C]` that it reads, from the first element's on: `[N / step, to]`, of which the last rows
/// read beyond.
fn convolved(b: &mut Builder<'_>, name: &str, x: ValueId, conv: &Conv) -> ValueId {
    let (shape, to) = (b.ty(x).shape, conv.to);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    let weight = format!("{name}.weight");
    if conv.taps == 1 {
        let w = b.frozen_parameter(&weight, &[to, shape[1]]);
        return b.linear(x, w, Some(bias));
    }
    let (rows, wide) = (shape[0] / conv.step, conv.step * shape[1]);
    let x = b.reshape(x, &[rows, wide]);
    let taps = Blocks::strided(conv.reach(), conv.step, 0).taps;
    let w = b.frozen_parameter(&weight, &[to, wide, taps]);
    // One segment of all rows.
    let [from, until] = [0, rows].map(|n| b.fill(TensorType::i32(&[1]), n as f32));
    let all = b.concat(&[from, until], 0);
    b.conv1d(x, w, bias, all, 1, 0)
}

/// Applies a transposed convolution of x `[N, C]`, rows of `stride` samples: `[N * rate, to]`.
fn transposed(
    b: &mut Builder<'_>,
    cfg: &Config,
    name: &str,
    x: ValueId,
    [to, rate]: [usize; 2],
    stride: usize,
) -> ValueId {
    let table = Table::Sound { stride };
    let rows = b.dim(x, 0);
    let sound = b.input(&table.name(), table.ty(rows));
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    let over = Blocks::transposed(2 * rate, rate, cfg.trimmed(rate));
    transposed_by(b, name, x, bias, over, rate, sound)
}

/// Applies a block's residual units, layers from `first` on: x + conv1(elu(conv(elu(x)))), or a convolution of x in its place.
fn units(b: &mut Builder<'_>, cfg: &Config, first: usize, mut x: ValueId, stride: usize) -> ValueId {
    for i in 0..cfg.residual_layers {
        x = b.scope(&(first + i).to_string(), |b| {
            let width = b.dim(x, 1);
            let inner =
                Conv { dilation: cfg.dilation(i), ..Conv::of(width / cfg.compress, cfg.residual_kernel) };
            let h = elu(b, x);
            let h = conv(b, "block.1.conv", h, &inner, stride);
            let h = elu(b, h);
            let h = conv(b, "block.3.conv", h, &Conv::of(width, 1), stride);
            let x = if cfg.shortcut { conv(b, "shortcut.conv", x, &Conv::of(width, 1), stride) } else { x };
            b.add(x, h)
        });
    }
    x
}

/// Applies the memory to the new frames x `[n, H]`, and adds what it was given.
fn lstm(b: &mut Builder<'_>, cfg: &Config, layer: usize, x: ValueId) -> ValueId {
    if cfg.lstm_layers == 0 {
        return x;
    }
    let (hidden, mut y) = (cfg.memory(), x);
    let frames = b.input(FRAMES, TensorType::i32(&[2]));
    b.scope(&format!("{layer}.lstm"), |b| {
        for i in 0..cfg.lstm_layers {
            let [w_x, w_h] = ["ih", "hh"]
                .map(|of| b.frozen_parameter(&format!("weight_{of}_l{i}"), &[4 * hidden, hidden]));
            let [b_x, b_h] =
                ["ih", "hh"].map(|of| b.frozen_parameter(&format!("bias_{of}_l{i}"), &[4 * hidden]));
            let bias = b.add(b_x, b_h);
            let gates = b.linear(y, w_x, Some(bias));
            let names = ["h", "c"].map(|state| format!("{state}.{i}"));
            let before = names.each_ref().map(|name| b.input(name, TensorType::f32(&[1, hidden])));
            let [out, h, c] = b.lstm(gates, w_h, before, frames);
            for (name, state) in names.iter().zip([h, c]) {
                b.output(&next(name), state);
            }
            y = out;
        }
    });
    b.add(y, x)
}

/// Returns x `[n, H]` behind what the memory gave before, `[tail + n, H]`.
fn behind_memory(b: &mut Builder<'_>, cfg: &Config, encodes: bool, x: ValueId) -> ValueId {
    let (tail, shape) = (tail(cfg, encodes), b.ty(x).shape);
    if tail == 0 {
        return x;
    }
    let before = b.input(TAIL, TensorType::f32(&[tail, shape[1]]));
    let all = b.concat(&[before, x], 0);
    let last = b.slice(all, 0, shape[0], tail);
    b.output(&next(TAIL), last);
    all
}

fn elu(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    b.activation(ActivationKind::Elu, x)
}
