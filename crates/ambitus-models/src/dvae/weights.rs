//! Names of a DVAE's tensors, which are the states'.

use super::config::{Config, STRIDE, TAPS};
use crate::common::codec::weights::{Layout, Tensor, Tensors};

/// Returns the convolution to a level, from 0, `[to, from, K]`.
pub fn down(level: usize) -> String {
    format!("encoder.{level}.0.weight")
}

/// Returns a convolution, 0, 2 or 4, of the encoder's residual block that is layer `layer`, `[C, C, k]`.
pub fn residual(layer: usize, at: usize) -> String {
    format!("encoder.{layer}.net.{at}.weight")
}

/// Returns the projection to an entry's channels, layer `layer` of the encoder, `[D, C, 1]`.
pub fn projection(layer: usize) -> String {
    format!("encoder.{layer}.weight")
}

/// Returns the codebook, `[D, V]`: a column is an entry.
pub fn codebook() -> &'static str {
    "codebook.embed"
}

/// Returns whether files may hold a tensor of that name besides: what only training of the DVAE itself reads.
pub fn is_unused(name: &str) -> bool {
    name.starts_with("discrete_loss.") || matches!(name, "codebook.cluster_size" | "codebook.embed_avg")
}

/// Returns every tensor, in the order of modules.
pub fn tensors(cfg: &Config) -> Vec<Tensor> {
    let mut all = Tensors::default();
    let (levels, inner) = (cfg.widths.len(), cfg.inner());
    let layout = Layout::Strided { stride: STRIDE, pad: cfg.taps / 2 };
    let mut from = cfg.mels;
    for (i, &to) in cfg.widths.iter().enumerate() {
        all.conv(&format!("encoder.{i}.0"), [to, from, cfg.taps], layout);
        from = to;
    }
    residuals(&mut all, "encoder", levels, cfg);
    all.conv(&format!("encoder.{}", levels + cfg.blocks), [cfg.dim, inner, 1], Layout::Same);
    all.plain(codebook().to_owned(), vec![cfg.dim, cfg.entries]);
    all.conv("decoder.0", [inner, cfg.dim, 1], Layout::Same);
    residuals(&mut all, "decoder", 1, cfg);
    for (i, &to) in cfg.widths.iter().rev().enumerate() {
        all.conv(&format!("decoder.{}.0.conv", 1 + cfg.blocks + i), [to, from, cfg.taps], Layout::Same);
        from = to;
    }
    all.conv(&format!("decoder.{}", 1 + cfg.blocks + levels), [cfg.mels, from, 1], Layout::Same);
    all.all()
}

fn residuals(all: &mut Tensors, side: &str, first: usize, cfg: &Config) {
    let inner = cfg.inner();
    for layer in first..first + cfg.blocks {
        for (at, taps) in [(0, TAPS), (2, TAPS), (4, 1)] {
            all.conv(&format!("{side}.{layer}.net.{at}"), [inner, inner, taps], Layout::Same);
        }
    }
}

/// The shape of the published DVAE.
#[cfg(test)]
pub(super) fn published() -> Config {
    Config { mels: 80, widths: vec![512, 1024], taps: 3, blocks: 3, dim: 512, entries: 1024 }
}

#[cfg(test)]
mod tests {
    use super::super::model;
    use super::*;
    use ambitus_ir::Session;
    use std::collections::BTreeSet;

    /// Every state of the programs is a tensor with the shape that it is laid out in; parameters are the package's.
    #[test]
    fn states_are_the_tensors() {
        let cfg = published();
        let mut s = Session::default();
        for p in [model::encode(&mut s, &cfg, 16), model::decode(&mut s, &cfg, 16)] {
            ambitus_ir::verify::verify(&s, &p).unwrap();
        }
        let have: BTreeSet<_> = s.states.iter().map(|s| (s.name.clone(), s.ty.shape.to_vec())).collect();
        let all = tensors(&cfg);
        let want: BTreeSet<_> = all.iter().map(|t| (t.name.clone(), t.state_dims())).collect();
        assert_eq!(have, want);
        let of = |side: &str| -> usize {
            let side = all.iter().filter(|t| t.name.starts_with(side));
            side.map(|t| t.dims.iter().product::<usize>()).sum()
        };
        assert_eq!((of("encoder"), of("decoder")), (24_251_392, 27_315_792));
        let axes = |name: &str| all.iter().find(|t| t.name == name).map(|t| t.dims.clone());
        assert_eq!(Config::of_tensors(axes), Ok(cfg));
    }
}
