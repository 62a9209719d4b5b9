//! Names of SNAC's tensors in checkpoints.

use super::config::Config;
use crate::common::codec::TAPS;
use crate::common::codec::weights::{Layout, Tensor, Tensors};

/// Returns every tensor of a codec, in the package's order of modules.
pub fn tensors(cfg: &Config) -> Vec<Tensor> {
    let mut all = Tensors::default();
    all.conv("encoder.block.0", [cfg.encoder_dim, 1, TAPS], Layout::Same);
    let blocks = cfg.encoder_rates.len();
    for (i, &rate) in cfg.encoder_rates.iter().enumerate() {
        let (at, width) = (format!("encoder.block.{}.block", i + 1), cfg.encoder_width(i));
        all.residual_units(&at, 0, width, cfg.groups(width));
        all.snake(&format!("{at}.3"), width);
        all.strided(&format!("{at}.4"), [cfg.encoder_width(i + 1), width], rate);
    }
    let latent = cfg.latent_dim;
    let groups = cfg.groups(latent);
    all.conv(&format!("encoder.block.{}", blocks + 1), [latent, latent / groups, TAPS], Layout::Same);
    for i in 0..cfg.vq_strides.len() {
        all.codebook(i, latent, [cfg.codebook_size, cfg.codebook_dim]);
    }
    let first = first_block(cfg);
    if cfg.depthwise {
        all.conv("decoder.model.0", [latent, 1, TAPS], Layout::Same);
        all.conv("decoder.model.1", [cfg.decoder_dim, latent, 1], Layout::Same);
    } else {
        all.conv("decoder.model.0", [cfg.decoder_dim, latent, TAPS], Layout::Same);
    }
    for (i, &rate) in cfg.decoder_rates.iter().enumerate() {
        let (at, width) = (format!("decoder.model.{}.block", first + i), cfg.decoder_width(i + 1));
        all.snake(&format!("{at}.0"), cfg.decoder_width(i));
        all.transposed(&format!("{at}.1"), [cfg.decoder_width(i), width], rate);
        if cfg.noise {
            all.weight(&format!("{at}.2.linear"), [width, width, 1], Layout::Matrix);
        }
        all.residual_units(&at, first_unit(cfg), width, cfg.groups(width));
    }
    let (last, width) = (first + cfg.decoder_rates.len(), cfg.decoder_width(cfg.decoder_rates.len()));
    all.snake(&format!("decoder.model.{last}"), width);
    all.conv(&format!("decoder.model.{}", last + 1), [1, width, TAPS], Layout::Same);
    all.all()
}

/// Returns the number of the decoder's first block among its modules.
pub fn first_block(cfg: &Config) -> usize {
    if cfg.depthwise { 2 } else { 1 }
}

/// Returns the number of the first residual unit among a decoder block's modules.
pub fn first_unit(cfg: &Config) -> usize {
    if cfg.noise { 3 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::super::config::{File, SAMPLE_RATE};
    use super::super::model;
    use super::*;
    use crate::common::codec::rows;
    use ambitus_ir::{Session, StateDecl};
    use std::collections::BTreeSet;

    fn config(depthwise: bool, noise: bool) -> Config {
        let file = File {
            sampling_rate: SAMPLE_RATE,
            encoder_dim: 3,
            encoder_rates: vec![2, 3],
            decoder_dim: 13,
            decoder_rates: vec![3, 2],
            attn_window_size: None,
            codebook_size: 11,
            codebook_dim: 4,
            vq_strides: vec![4, 2, 1],
            noise,
            depthwise,
            ..File::default()
        };
        file.config().unwrap()
    }

    /// Every state of the programs is a tensor of the list with the shape that it is laid out in, and every tensor is used.
    #[test]
    fn states_are_the_tensors() {
        for (depthwise, noise) in [(true, true), (true, false), (false, true), (false, false)] {
            let cfg = config(depthwise, noise);
            let samples = rows::PHASES * cfg.frame();
            let mut s = Session::default();
            for p in [model::encode(&mut s, &cfg, samples), model::decode(&mut s, &cfg, samples, true)] {
                ambitus_ir::verify::verify(&s, &p).unwrap();
                let tables = rows::tables(&p);
                assert!(tables.iter().all(|t| samples.is_multiple_of(t.stride * t.dilation)), "{tables:?}");
            }
            let state = |s: &StateDecl| (s.name.clone(), s.ty.shape.to_vec());
            let have: BTreeSet<_> = s.states.iter().map(state).collect();
            let want: BTreeSet<_> = tensors(&cfg).iter().map(|t| (t.name.clone(), t.state_dims())).collect();
            assert_eq!(have, want);
        }
    }
}
