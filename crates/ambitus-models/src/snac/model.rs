//! The codec as two programs, for inference. Rows are time, columns channels; T samples, L latent channels, n codes.
//!
//! Strided and transposed convolutions are convolutions of three taps over blocks of rows (a reshape), whose weights
//! [`weights`](super::weights) lays out. Everything past the audio's end stays exactly zero until the quantizer: convolutions
//! give rows of no segment as zero, and a snake keeps zero.

use super::config::{Config, DILATIONS, TAPS};
use super::rows::Table;
use super::weights::{first_block, first_unit};
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{Builder, DType, Program, Session, TensorType, ValueId};

/// The encoder's program.
pub const ENCODE: &str = "encode";
/// The decoder's.
pub const DECODE: &str = "decode";

/// Builds the encoder for `samples` samples, a multiple of [`PHASES`](super::rows::PHASES) frames: input `audio` `[T, 1]` and
/// the segment tables of [`rows::tables`](super::rows::tables), output `codes.i` f32 `[n]` of each codebook, whole numbers. A
/// code is V where there was no nearest entry, because something is not a number.
pub fn encode(session: &mut Session, cfg: &Config, samples: usize) -> Program {
    let mut b = Builder::new(session, ENCODE);
    let x = b.input("audio", TensorType::f32(&[samples, 1]));
    let z = b.scope("encoder.block", |b| encoder(b, cfg, x));
    b.scope("quantizer.quantizers", |b| {
        let mut left = z;
        for (i, &stride) in cfg.vq_strides.iter().enumerate() {
            let rest = b.scope(&i.to_string(), |b| {
                let (ids, codes) = quantize(b, cfg, left, stride);
                b.output(&format!("codes.{i}"), codes);
                (i + 1 < cfg.vq_strides.len()).then(|| {
                    let known = dequantize(b, cfg, ids, stride);
                    b.sub(left, known)
                })
            });
            left = rest.unwrap_or(left);
        }
    });
    b.finish()
}

/// Builds the decoder for `samples` samples: inputs `codes.i` i32 `[n]` (-1 past the end) and the segment tables, with `noise`
/// also `noise.j` f32 `[rows]` for each block (standard normal; without, the blocks add nothing), output `audio` f32 `[T, 1]`.
pub fn decode(session: &mut Session, cfg: &Config, samples: usize, noise: bool) -> Program {
    let mut b = Builder::new(session, DECODE);
    let mut z = None;
    for (i, &stride) in cfg.vq_strides.iter().enumerate() {
        let ids = b.input(&format!("codes.{i}"), TensorType::i32(&[samples / cfg.hop() / stride]));
        let part = b.scope(&format!("quantizer.quantizers.{i}"), |b| dequantize(b, cfg, ids, stride));
        z = Some(z.map_or(part, |z| b.add(z, part)));
    }
    let z = z.expect("a checked configuration has a codebook");
    let y = b.scope("decoder.model", |b| decoder(b, cfg, z, noise));
    b.output("audio", y);
    b.finish()
}

fn encoder(b: &mut Builder<'_>, cfg: &Config, x: ValueId) -> ValueId {
    let mut stride = 1;
    let mut x = conv(b, "0", x, [1, cfg.encoder_dim, TAPS], 1, stride);
    for (i, &rate) in cfg.encoder_rates.iter().enumerate() {
        x = b.scope(&format!("{}.block", i + 1), |b| {
            let width = cfg.encoder_width(i);
            for (j, dilation) in DILATIONS.into_iter().enumerate() {
                x = residual_unit(b, cfg, &j.to_string(), x, dilation, stride);
            }
            let x = snake(b, "3", x);
            stride *= rate;
            let rows = b.dim(x, 0) / rate;
            let blocks = b.reshape(x, &[rows, rate * width]);
            conv(b, "4", blocks, [rate * width, cfg.encoder_width(i + 1), 3], 1, stride)
        });
    }
    let latent = cfg.latent_dim;
    let last = (cfg.encoder_rates.len() + 1).to_string();
    conv(b, &last, x, [latent, latent, TAPS], cfg.groups(latent), stride)
}

fn decoder(b: &mut Builder<'_>, cfg: &Config, z: ValueId, noise: bool) -> ValueId {
    let (latent, wide) = (cfg.latent_dim, cfg.decoder_dim);
    let mut stride = cfg.hop();
    let mut x = if cfg.depthwise {
        let x = conv(b, "0", z, [latent, latent, TAPS], latent, stride);
        conv(b, "1", x, [latent, wide, 1], 1, stride)
    } else {
        conv(b, "0", z, [latent, wide, TAPS], 1, stride)
    };
    let first = first_block(cfg);
    for (i, &rate) in cfg.decoder_rates.iter().enumerate() {
        x = b.scope(&format!("{}.block", first + i), |b| {
            let width = cfg.decoder_width(i + 1);
            x = snake(b, "0", x);
            x = transposed(b, "1", x, width, rate, stride);
            stride /= rate;
            if cfg.noise && noise {
                let w = b.frozen_parameter("2.linear.weight", &[width, width]);
                let rows = b.dim(x, 0);
                let n = b.input(&format!("noise.{i}"), TensorType::f32(&[rows]));
                let h = b.linear(x, w, None);
                let h = b.scale_rows(h, n);
                x = b.add(x, h);
            }
            for (j, dilation) in DILATIONS.into_iter().enumerate() {
                x = residual_unit(b, cfg, &(first_unit(cfg) + j).to_string(), x, dilation, stride);
            }
            x
        });
    }
    let last = first + cfg.decoder_rates.len();
    let x = snake(b, &last.to_string(), x);
    let width = b.dim(x, 1);
    let y = conv(b, &(last + 1).to_string(), x, [width, 1, TAPS], 1, stride);
    b.unary(UnaryKind::Tanh, y)
}

/// Computes x + conv1(snake(conv7(snake(x)))), conv7 dilated.
fn residual_unit(
    b: &mut Builder<'_>,
    cfg: &Config,
    name: &str,
    x: ValueId,
    dilation: usize,
    stride: usize,
) -> ValueId {
    b.scope(&format!("{name}.block"), |b| {
        let width = b.dim(x, 1);
        let h = snake(b, "0", x);
        let h = dilated(b, "1", h, cfg.groups(width), dilation, stride);
        let h = snake(b, "2", h);
        let h = conv(b, "3", h, [width, width, 1], 1, stride);
        b.add(x, h)
    })
}

fn snake(b: &mut Builder<'_>, name: &str, x: ValueId) -> ValueId {
    let width = b.dim(x, 1);
    let alpha = b.frozen_parameter(&format!("{name}.alpha"), &[width]);
    b.snake(x, alpha)
}

/// Returns a convolution that keeps the rows, `[in, out, taps]`, centred.
fn conv(
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    [from, to, taps]: [usize; 3],
    groups: usize,
    stride: usize,
) -> ValueId {
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, from / groups, taps]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    let rows = table(b, stride, 1);
    b.conv1d(x, w, bias, rows, groups, taps / 2)
}

/// Returns a centred convolution of every d-th row: an ordinary one on the d sequences of such rows, one after the other.
fn dilated(b: &mut Builder<'_>, name: &str, x: ValueId, groups: usize, d: usize, stride: usize) -> ValueId {
    let shape = b.ty(x).shape;
    let (rows, width) = (shape[0], shape[1]);
    if d == 1 {
        return conv(b, name, x, [width, width, TAPS], groups, stride);
    }
    let w = b.frozen_parameter(&format!("{name}.weight"), &[width, width / groups, TAPS]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[width]);
    let segments = table(b, stride, d);
    let x = transpose_rows(b, x, rows / d, d);
    let y = b.conv1d(x, w, bias, segments, groups, TAPS / 2);
    transpose_rows(b, y, d, rows / d)
}

/// Returns rows i * n + j of x `[m * n, C]` to rows j * m + i.
fn transpose_rows(b: &mut Builder<'_>, x: ValueId, m: usize, n: usize) -> ValueId {
    let width = b.dim(x, 1);
    let x = b.reshape(x, &[m, n, width]);
    let x = b.permute(x, &[1, 0, 2]);
    b.reshape(x, &[m * n, width])
}

/// Returns a transposed convolution to `rate` times the rows of `stride`.
fn transposed(b: &mut Builder<'_>, name: &str, x: ValueId, to: usize, rate: usize, stride: usize) -> ValueId {
    let shape = b.ty(x).shape;
    let w = b.frozen_parameter(&format!("{name}.weight"), &[rate * to, shape[1], 3]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    let bias = b.concat(&vec![bias; rate], 0);
    let rows = table(b, stride, 1);
    let y = b.conv1d(x, w, bias, rows, 1, 1);
    b.reshape(y, &[shape[0] * rate, to])
}

fn table(b: &mut Builder<'_>, stride: usize, dilation: usize) -> ValueId {
    let table = Table { stride, dilation };
    b.input(&table.name(), table.ty())
}

/// Returns the codes of z `[rows, L]`, one for `stride` rows, as ids i32 `[n]` and as f32 `[n]`: the entry with the nearest
/// direction, the first of several.
fn quantize(b: &mut Builder<'_>, cfg: &Config, z: ValueId, stride: usize) -> (ValueId, ValueId) {
    let (latent, dim, entries) = (cfg.latent_dim, cfg.codebook_dim, cfg.codebook_size);
    let n = b.dim(z, 0) / stride;
    let mut x = z;
    if stride > 1 {
        let blocks = b.reshape(z, &[n, stride, latent]);
        let sum = b.reduce(ReduceKind::Sum, blocks, 1);
        let sum = b.reshape(sum, &[n, latent]);
        let count = b.fill_like(sum, stride as f32);
        x = b.div(sum, count);
    }
    let w = b.frozen_parameter("in_proj.weight", &[dim, latent]);
    let bias = b.frozen_parameter("in_proj.bias", &[dim]);
    let x = b.linear(x, w, Some(bias));
    let x = directions(b, x);
    let table = b.frozen_parameter("codebook.weight", &[entries, dim]);
    let table = directions(b, table);
    // Nearest: |x - c|^2 less |x|^2, negative, is 2 x c - |c|^2.
    let twice = b.add(x, x);
    let products = b.matmul(twice, table, false, true);
    let squares = b.mul(table, table);
    let squares = b.reduce(ReduceKind::Sum, squares, 1);
    let squares = b.reshape(squares, &[1, entries]);
    let shape = [n, entries];
    let squares = b.broadcast(squares, &shape);
    let scores = b.sub(products, squares);
    let best = b.reduce(ReduceKind::Max, scores, 1);
    let best = b.broadcast(best, &shape);
    let hit = b.binary(BinaryKind::Equal, scores, best);
    // The first hit: the largest of the negative numbers, -V where there is none.
    let number = b.iota(DType::F32, &shape, 1);
    let number = b.unary(UnaryKind::Neg, number);
    let none = b.fill_like(number, -(entries as f32));
    let number = b.select(hit, number, none);
    let number = b.reduce(ReduceKind::Max, number, 1);
    let number = b.unary(UnaryKind::Neg, number);
    let codes = b.reshape(number, &[n]);
    (b.cast(codes, DType::I32), codes)
}

/// Returns the rows of x `[n, D]` scaled to length 1; of length 0 as they are.
fn directions(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape;
    let squares = b.mul(x, x);
    let sum = b.reduce(ReduceKind::Sum, squares, 1);
    let length = b.unary(UnaryKind::Sqrt, sum);
    let least = b.fill_like(length, 1e-12);
    let length = b.binary(BinaryKind::Max, length, least);
    let length = b.broadcast(length, &shape);
    b.div(x, length)
}

/// Returns what ids `[n]` of a codebook say of the latent rows: `[n * stride, L]`.
fn dequantize(b: &mut Builder<'_>, cfg: &Config, ids: ValueId, stride: usize) -> ValueId {
    let (latent, dim) = (cfg.latent_dim, cfg.codebook_dim);
    let n = b.dim(ids, 0);
    let table = b.frozen_parameter("codebook.weight", &[cfg.codebook_size, dim]);
    let w = b.frozen_parameter("out_proj.weight", &[latent, dim]);
    let bias = b.frozen_parameter("out_proj.bias", &[latent]);
    let x = b.gather(table, ids);
    let x = b.linear(x, w, Some(bias));
    let x = b.reshape(x, &[n, 1, latent]);
    let x = b.broadcast(x, &[n, stride, latent]);
    b.reshape(x, &[n * stride, latent])
}
