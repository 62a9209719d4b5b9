//! The codec as two programs, for inference. Rows are time, columns channels; T samples, L latent channels, n codes.

use super::config::Config;
use super::weights::{first_block, first_unit};
use crate::common::codec::layers::{conv, residual_units, snake, strided, transposed};
use crate::common::codec::quantizer::Codebooks;
use crate::common::codec::{DECODE, ENCODE, TAPS};
use ambitus_ir::ops::elementwise::UnaryKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// Builds the encoder for `samples` samples, a multiple of [`PHASES`](crate::common::codec::rows::PHASES) frames: input `audio`
/// `[T, 1]` and the segment tables of [`tables`](crate::common::codec::rows::tables), outputs as of [`Codebooks::encode`].
pub fn encode(session: &mut Session, cfg: &Config, samples: usize) -> Program {
    let mut b = Builder::new(session, ENCODE);
    let x = b.input("audio", TensorType::f32(&[samples, 1]));
    let z = b.scope("encoder.block", |b| encoder(b, cfg, x));
    codebooks(cfg).encode(&mut b, z);
    b.finish()
}

/// Builds the decoder for `samples` samples: inputs as of [`Codebooks::decode`] and the segment tables, with `noise` also
/// `noise.j` f32 `[rows]` for each block (standard normal; without, the blocks add nothing), output `audio` f32 `[T, 1]`.
pub fn decode(session: &mut Session, cfg: &Config, samples: usize, noise: bool) -> Program {
    let mut b = Builder::new(session, DECODE);
    let z = codebooks(cfg).decode(&mut b, samples / cfg.hop());
    let y = b.scope("decoder.model", |b| decoder(b, cfg, z, noise));
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
    let mut stride = 1;
    let mut x = conv(b, "0", x, [1, cfg.encoder_dim, TAPS], 1, stride);
    for (i, &rate) in cfg.encoder_rates.iter().enumerate() {
        x = b.scope(&format!("{}.block", i + 1), |b| {
            let x = residual_units(b, 0, x, cfg.groups(cfg.encoder_width(i)), stride);
            let x = snake(b, "3", x);
            stride *= rate;
            strided(b, "4", x, cfg.encoder_width(i + 1), rate, stride)
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
            residual_units(b, first_unit(cfg), x, cfg.groups(width), stride)
        });
    }
    let last = first + cfg.decoder_rates.len();
    let x = snake(b, &last.to_string(), x);
    let width = b.dim(x, 1);
    let y = conv(b, &(last + 1).to_string(), x, [width, 1, TAPS], 1, stride);
    b.unary(UnaryKind::Tanh, y)
}
