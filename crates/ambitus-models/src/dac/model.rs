//! The codec as two programs, for inference. Rows are time, columns channels; T samples, F frames, L latent channels.

use super::config::{Config, LAST_TAPS};
use crate::common::codec::layers::{conv, residual_units, snake, strided_to_end, transposed};
use crate::common::codec::quantizer::Codebooks;
use crate::common::codec::{DECODE, ENCODE, TAPS};
use ambitus_ir::ops::elementwise::UnaryKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// Builds the encoder for `samples` samples, a multiple of [`PHASES`](crate::common::codec::rows::PHASES) frames: input `audio`
/// `[T, 1]` and the segment tables of [`tables`](crate::common::codec::rows::tables), outputs `codes.i` f32 `[F]` as of
/// [`Codebooks::encode`].
pub fn encode(session: &mut Session, cfg: &Config, samples: usize) -> Program {
    let mut b = Builder::new(session, ENCODE);
    let x = b.input("audio", TensorType::f32(&[samples, 1]));
    let z = b.scope("encoder.block", |b| encoder(b, cfg, x));
    codebooks(cfg).encode(&mut b, z);
    b.finish()
}

/// Builds the decoder for `samples` samples: inputs `codes.i` i32 `[F]` as of [`Codebooks::decode`] and the segment tables,
/// output `audio` f32 `[T, 1]`.
pub fn decode(session: &mut Session, cfg: &Config, samples: usize) -> Program {
    let mut b = Builder::new(session, DECODE);
    let z = codebooks(cfg).decode(&mut b, samples / cfg.hop());
    let y = b.scope("decoder.model", |b| decoder(b, cfg, z));
    b.output("audio", y);
    b.finish()
}

fn codebooks(cfg: &Config) -> Codebooks<'_> {
    Codebooks {
        latent_dim: cfg.latent_dim,
        dim: cfg.codebook_dim,
        entries: cfg.codebook_size,
        strides: &cfg.vq_strides,
    }
}

fn encoder(b: &mut Builder<'_>, cfg: &Config, x: ValueId) -> ValueId {
    let (mut stride, blocks) = (1, cfg.encoder_rates.len());
    let mut x = conv(b, "0", x, [1, cfg.encoder_dim, TAPS], 1, stride);
    for (i, &rate) in cfg.encoder_rates.iter().enumerate() {
        x = b.scope(&format!("{}.block", i + 1), |b| {
            let x = residual_units(b, 0, x, 1, stride);
            let x = snake(b, "3", x);
            stride *= rate;
            strided_to_end(b, "4", x, cfg.encoder_width(i + 1), rate, stride)
        });
    }
    let x = snake(b, &(blocks + 1).to_string(), x);
    let last = [cfg.encoder_width(blocks), cfg.latent_dim, LAST_TAPS];
    conv(b, &(blocks + 2).to_string(), x, last, 1, stride)
}

fn decoder(b: &mut Builder<'_>, cfg: &Config, z: ValueId) -> ValueId {
    let (mut stride, blocks) = (cfg.hop(), cfg.decoder_rates.len());
    let mut x = conv(b, "0", z, [cfg.latent_dim, cfg.decoder_dim, TAPS], 1, stride);
    for (i, &rate) in cfg.decoder_rates.iter().enumerate() {
        x = b.scope(&format!("{}.block", i + 1), |b| {
            let x = snake(b, "0", x);
            let x = transposed(b, "1", x, cfg.decoder_width(i + 1), rate, stride);
            stride /= rate;
            residual_units(b, 2, x, 1, stride)
        });
    }
    let x = snake(b, &(blocks + 1).to_string(), x);
    let y = conv(b, &(blocks + 2).to_string(), x, [cfg.decoder_width(blocks), 1, TAPS], 1, stride);
    b.unary(UnaryKind::Tanh, y)
}
