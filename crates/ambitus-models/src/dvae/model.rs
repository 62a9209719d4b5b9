//! The autoencoder as two programs, for inference. Rows are time, columns channels; T mel frames of M bands, F codes.

use super::config::{Config, STRIDE, TAPS};
use super::weights::codebook;
use crate::common::codec::layers::{conv, leaky, strided_centred};
use crate::common::codec::quantizer::first_largest;
use crate::common::codec::{DECODE, ENCODE};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// Builds the encoder for F = `codes` codes: inputs `mel` `[T, M]`, zero past the end, and the segment tables of
/// [`tables`](crate::common::codec::rows::tables), counted in frames; output `codes` f32 `[F]`, whole numbers: the entry with the least
/// squared distance, V where something is not a number.
pub fn encode(session: &mut Session, cfg: &Config, codes: usize) -> Program {
    let mut b = Builder::new(session, ENCODE);
    let mel = b.input("mel", TensorType::f32(&[codes * cfg.rate(), cfg.mels]));
    let x = b.scope("encoder", |b| {
        let (mut x, mut stride) = (mel, 1);
        for (i, &to) in cfg.widths.iter().enumerate() {
            stride *= STRIDE;
            let y = strided_centred(b, &format!("{i}.0"), x, [to, cfg.taps], STRIDE, stride);
            x = leaky(b, y, 0.0);
        }
        x = residuals(b, cfg, cfg.widths.len(), x);
        let last = (cfg.widths.len() + cfg.blocks).to_string();
        conv(b, &last, x, [cfg.inner(), cfg.dim, 1], 1, stride)
    });
    let table = b.frozen_parameter(codebook(), &[cfg.dim, cfg.entries]);
    // Nearest: |x - e|^2 less |x|^2, negative, is 2 x e - |e|^2.
    let twice = b.add(x, x);
    let products = b.matmul(twice, table, false, false);
    let squares = b.mul(table, table);
    let squares = b.reduce(ReduceKind::Sum, squares, 0);
    let squares = b.broadcast(squares, &[codes, cfg.entries]);
    let scores = b.sub(products, squares);
    let codes = first_largest(&mut b, scores);
    b.output("codes", codes);
    b.finish()
}

/// Builds the decoder for F = `codes` codes: inputs `codes` i32 `[F]`, -1 past the end, and the segment tables; output `mel`
/// `[T, M]`.
pub fn decode(session: &mut Session, cfg: &Config, codes: usize) -> Program {
    let mut b = Builder::new(session, DECODE);
    let ids = b.input("codes", TensorType::i32(&[codes]));
    let table = b.frozen_parameter(codebook(), &[cfg.dim, cfg.entries]);
    let table = b.permute(table, &[1, 0]);
    let x = b.gather(table, ids);
    let y = b.scope("decoder", |b| {
        let (mut stride, mut from) = (cfg.rate(), cfg.inner());
        let x = conv(b, "0", x, [cfg.dim, from, 1], 1, stride);
        let mut x = residuals(b, cfg, 1, x);
        for (i, &to) in cfg.widths.iter().rev().enumerate() {
            stride /= STRIDE;
            let doubled = twice(b, x);
            let name = format!("{}.0.conv", 1 + cfg.blocks + i);
            let y = conv(b, &name, doubled, [from, to, cfg.taps], 1, stride);
            x = leaky(b, y, 0.0);
            from = to;
        }
        let last = (1 + cfg.blocks + cfg.widths.len()).to_string();
        conv(b, &last, x, [from, cfg.mels, 1], 1, 1)
    });
    b.output("mel", y);
    b.finish()
}

/// Applies the residual blocks, x + conv1(relu(conv3(relu(conv3(x))))), layers from `first` on.
fn residuals(b: &mut Builder<'_>, cfg: &Config, first: usize, mut x: ValueId) -> ValueId {
    let (inner, stride) = (cfg.inner(), cfg.rate());
    for layer in first..first + cfg.blocks {
        x = b.scope(&format!("{layer}.net"), |b| {
            let h = conv(b, "0", x, [inner, inner, TAPS], 1, stride);
            let h = leaky(b, h, 0.0);
            let h = conv(b, "2", h, [inner, inner, TAPS], 1, stride);
            let h = leaky(b, h, 0.0);
            let h = conv(b, "4", h, [inner, inner, 1], 1, stride);
            b.add(x, h)
        });
    }
    x
}

/// Repeats every row of x `[T, C]`: `[2 T, C]`.
fn twice(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape;
    let (rows, width) = (shape[0], shape[1]);
    let x = b.reshape(x, &[rows, 1, width]);
    let x = b.broadcast(x, &[rows, STRIDE, width]);
    b.reshape(x, &[rows * STRIDE, width])
}
