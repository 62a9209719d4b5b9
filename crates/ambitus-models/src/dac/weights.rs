//! Names of DAC's tensors in checkpoints. States have those of the package; transformers' `DacModel` has others.

use super::config::{Config, LAST_TAPS};
use crate::common::codec::TAPS;
use crate::common::codec::weights::{Layout, Tensor, Tensors};

/// Returns the encoder's first convolution, `[D, 1, 7]`.
pub fn encoder_first() -> String {
    "encoder.block.0.weight".to_owned()
}

/// Returns the decoder's first convolution, `[D, L, 7]`.
pub fn decoder_first() -> String {
    "decoder.model.0.weight".to_owned()
}

/// Returns the strided convolution of an encoder block, from 0, `[2C, C, 2s]`.
pub fn down(block: usize) -> String {
    format!("encoder.block.{}.block.4.weight", block + 1)
}

/// Returns the transposed convolution of a decoder block, from 0, `[C, C / 2, 2s]`.
pub fn up(block: usize) -> String {
    format!("decoder.model.{}.block.1.weight", block + 1)
}

/// Returns a codebook, `[V, D]`.
pub fn codebook(i: usize) -> String {
    format!("quantizer.quantizers.{i}.codebook.weight")
}

/// Returns the projection to a codebook's channels, `[D, L, 1]`.
pub fn in_proj(i: usize) -> String {
    format!("quantizer.quantizers.{i}.in_proj.weight")
}

/// Whose names a checkpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Those of descript's package, which are the states'.
    Package,
    /// Those of transformers' `DacModel`.
    Transformers,
}

impl Names {
    /// Returns what the checkpoint calls a state.
    pub fn of(self, state: &str) -> String {
        match self {
            Names::Package => state.to_owned(),
            Names::Transformers => transformers(state).unwrap_or_else(|| state.to_owned()),
        }
    }
}

/// Returns the name in a `DacModel`, where it differs.
fn transformers(state: &str) -> Option<String> {
    let parts: Vec<&str> = state.split('.').collect();
    let (side, at, rest) = match parts[..] {
        [side @ "encoder", "block", at, ref rest @ ..] | [side @ "decoder", "model", at, ref rest @ ..] => {
            (side, at.parse::<usize>().ok()?, rest)
        }
        _ => return None,
    };
    // The residual units of a block come first in the encoder, last in the decoder.
    let first = if side == "encoder" { 0 } else { 2 };
    let (module, leaf) = match *rest {
        ["alpha"] => ("snake1".to_owned(), "alpha"),
        [leaf] => (if at == 0 { "conv1" } else { "conv2" }.to_owned(), leaf),
        ["block", unit, "block", part, leaf] => {
            let part = ["snake1", "conv1", "snake2", "conv2"].get(part.parse::<usize>().ok()?)?;
            let unit = unit.parse::<usize>().ok()?.checked_sub(first)?;
            (format!("block.{}.res_unit{}.{part}", at.checked_sub(1)?, unit + 1), leaf)
        }
        ["block", _, "alpha"] => (format!("block.{}.snake1", at.checked_sub(1)?), "alpha"),
        ["block", _, leaf] => {
            let conv = if side == "encoder" { "conv1" } else { "conv_t1" };
            (format!("block.{}.{conv}", at.checked_sub(1)?), leaf)
        }
        _ => return None,
    };
    Some(format!("{side}.{module}.{leaf}"))
}

/// Returns every tensor of a codec, in the package's order of modules.
pub fn tensors(cfg: &Config) -> Vec<Tensor> {
    let mut all = Tensors::default();
    let (latent, blocks) = (cfg.latent_dim, cfg.encoder_rates.len());
    all.conv("encoder.block.0", [cfg.encoder_dim, 1, TAPS], Layout::Same);
    for (i, &rate) in cfg.encoder_rates.iter().enumerate() {
        let at = format!("encoder.block.{}.block", i + 1);
        all.residual_units(&at, 0, cfg.encoder_width(i), 1);
        all.snake(&format!("{at}.3"), cfg.encoder_width(i));
        all.strided(&format!("{at}.4"), [cfg.encoder_width(i + 1), cfg.encoder_width(i)], rate);
    }
    let width = cfg.encoder_width(blocks);
    all.snake(&format!("encoder.block.{}", blocks + 1), width);
    all.conv(&format!("encoder.block.{}", blocks + 2), [latent, width, LAST_TAPS], Layout::Same);
    for i in 0..cfg.vq_strides.len() {
        all.codebook(i, latent, [cfg.codebook_size, cfg.codebook_dim]);
    }
    let blocks = cfg.decoder_rates.len();
    all.conv("decoder.model.0", [cfg.decoder_dim, latent, TAPS], Layout::Same);
    for (i, &rate) in cfg.decoder_rates.iter().enumerate() {
        let at = format!("decoder.model.{}.block", i + 1);
        all.snake(&format!("{at}.0"), cfg.decoder_width(i));
        all.transposed(&format!("{at}.1"), [cfg.decoder_width(i), cfg.decoder_width(i + 1)], rate);
        all.residual_units(&at, 2, cfg.decoder_width(i + 1), 1);
    }
    all.snake(&format!("decoder.model.{}", blocks + 1), cfg.decoder_width(blocks));
    all.conv(&format!("decoder.model.{}", blocks + 2), [1, cfg.decoder_width(blocks), TAPS], Layout::Same);
    all.all()
}

#[cfg(test)]
mod tests {
    use super::super::model;
    use super::*;
    use crate::common::codec::rows;
    use ambitus_ir::{Session, StateDecl};
    use std::collections::BTreeSet;

    /// Every state of the programs is a tensor of the list with the shape that it is laid out in, and every tensor is used.
    #[test]
    fn states_are_the_tensors() {
        let cfg = Config {
            encoder_dim: 3,
            encoder_rates: vec![2, 5],
            latent_dim: 7,
            decoder_dim: 13,
            decoder_rates: vec![5, 2],
            codebook_size: 11,
            codebook_dim: 4,
            vq_strides: vec![1; 3],
        };
        let samples = rows::PHASES * cfg.hop();
        let mut s = Session::default();
        for p in [model::encode(&mut s, &cfg, samples), model::decode(&mut s, &cfg, samples)] {
            ambitus_ir::verify::verify(&s, &p).unwrap();
            let tables = rows::tables(&p);
            assert!(tables.iter().all(|t| samples.is_multiple_of(t.stride * t.dilation)), "{tables:?}");
        }
        let state = |s: &StateDecl| (s.name.clone(), s.ty.shape.to_vec());
        let have: BTreeSet<_> = s.states.iter().map(state).collect();
        let want: BTreeSet<_> = tensors(&cfg).iter().map(|t| (t.name.clone(), t.state_dims())).collect();
        assert_eq!(have, want);
    }

    /// Names of `DacModel`'s state dict, in transformers 4.57.6.
    #[test]
    fn names_of_transformers() {
        let all = tensors(&Config::dac_44khz());
        let named: BTreeSet<String> = all.iter().map(|t| Names::Transformers.of(&t.name)).collect();
        assert_eq!(named.len(), all.len());
        for (state, name) in [
            ("encoder.block.0.weight", "encoder.conv1.weight"),
            ("encoder.block.1.block.0.block.0.alpha", "encoder.block.0.res_unit1.snake1.alpha"),
            ("encoder.block.4.block.2.block.3.bias", "encoder.block.3.res_unit3.conv2.bias"),
            ("encoder.block.2.block.3.alpha", "encoder.block.1.snake1.alpha"),
            ("encoder.block.2.block.4.weight", "encoder.block.1.conv1.weight"),
            ("encoder.block.5.alpha", "encoder.snake1.alpha"),
            ("encoder.block.6.bias", "encoder.conv2.bias"),
            ("quantizer.quantizers.8.out_proj.weight", "quantizer.quantizers.8.out_proj.weight"),
            ("decoder.model.0.bias", "decoder.conv1.bias"),
            ("decoder.model.1.block.0.alpha", "decoder.block.0.snake1.alpha"),
            ("decoder.model.4.block.1.weight", "decoder.block.3.conv_t1.weight"),
            ("decoder.model.1.block.2.block.1.weight", "decoder.block.0.res_unit1.conv1.weight"),
            ("decoder.model.1.block.4.block.2.alpha", "decoder.block.0.res_unit3.snake2.alpha"),
            ("decoder.model.5.alpha", "decoder.snake1.alpha"),
            ("decoder.model.6.weight", "decoder.conv2.weight"),
        ] {
            assert!(all.iter().any(|t| t.name == state), "{state}");
            assert_eq!(Names::Transformers.of(state), name);
            assert_eq!(Names::Package.of(state), state);
        }
    }
}
