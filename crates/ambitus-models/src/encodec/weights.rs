//! Names of EnCodec's tensors in checkpoints. States have those of transformers; audiocraft has others.

use super::config::Config;
use crate::common::codec::weights::{Layout, Tensor, Tensors};

/// Returns the number of the encoder's first layer of block `i`, the first of its residual units; of the layer behind the last block,
/// the memory.
pub fn encoder_block(cfg: &Config, i: usize) -> usize {
    1 + i * (cfg.residual_layers + 2)
}

/// Returns the number of the encoder's last layer.
pub fn encoder_last(cfg: &Config) -> usize {
    encoder_block(cfg, cfg.ratios.len()) + usize::from(cfg.lstm_layers > 0) + 1
}

/// Returns the number of the decoder's transposed convolution of block `i`, behind an activation; its residual units follow.
pub fn decoder_up(cfg: &Config, i: usize) -> usize {
    2 + usize::from(cfg.lstm_layers > 0) + i * (cfg.residual_layers + 2)
}

/// Returns the number of the decoder's last layer.
pub fn decoder_last(cfg: &Config) -> usize {
    decoder_up(cfg, cfg.ratios.len())
}

/// Returns a codebook, `[V, D]`.
pub fn codebook(i: usize) -> String {
    format!("quantizer.layers.{i}.codebook.embed")
}

/// Whose names a checkpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Those of transformers' `EncodecModel`, which are the states'.
    Transformers,
    /// Those of audiocraft.
    Audiocraft,
}

impl Names {
    /// Returns what the checkpoint calls a state.
    pub fn of(self, cfg: &Config, state: &str) -> String {
        if self == Names::Transformers {
            return state.to_owned();
        }
        if let Some(rest) = state.strip_prefix("quantizer.layers.") {
            return format!("quantizer.vq.layers.{}", rest.replacen(".codebook.", "._codebook.", 1));
        }
        let up = |i| state.starts_with(&format!("decoder.layers.{}.conv.", decoder_up(cfg, i)));
        let inner = if (0..cfg.ratios.len()).any(up) { ".convtr.convtr." } else { ".conv.conv." };
        state.replacen(".layers.", ".model.", 1).replacen(".conv.", inner, 1)
    }

    /// Returns transformers' name of a tensor that the checkpoint calls so.
    pub fn in_transformers(self, name: &str) -> String {
        if self == Names::Transformers {
            return name.to_owned();
        }
        if let Some(rest) = name.strip_prefix("quantizer.vq.layers.") {
            return format!("quantizer.layers.{}", rest.replacen("._codebook.", ".codebook.", 1));
        }
        let plain = name.replacen(".convtr.convtr.", ".conv.", 1).replacen(".conv.conv.", ".conv.", 1);
        plain.replacen(".model.", ".layers.", 1)
    }

    /// Returns whether checkpoints hold a tensor that says nothing of the codes: what a codebook was trained by, and codebooks for
    /// larger bandwidths. `name` is the checkpoint's.
    pub fn ignored(self, cfg: &Config, name: &str) -> bool {
        let (layers, book) = match self {
            Names::Transformers => ("quantizer.layers.", "codebook."),
            Names::Audiocraft => ("quantizer.vq.layers.", "_codebook."),
        };
        let parts = name.strip_prefix(layers).and_then(|rest| rest.split_once('.'));
        let Some((Ok(at), Some(leaf))) =
            parts.map(|(at, rest)| (at.parse::<usize>(), rest.strip_prefix(book)))
        else {
            return false;
        };
        let more = (cfg.codebooks..cfg.stored_codebooks).contains(&at) && leaf == "embed";
        at < cfg.stored_codebooks && (more || ["embed_avg", "cluster_size", "inited"].contains(&leaf))
    }
}

/// Returns every tensor of a codec, in the order of its layers.
pub fn tensors(cfg: &Config) -> Vec<Tensor> {
    let (mut all, blocks) = (Tensors::default(), cfg.ratios.len());
    let (latent, memory) = (cfg.latent_dim, cfg.memory());
    all.conv("encoder.layers.0.conv", [cfg.filters, 1, cfg.kernel], plain(cfg.kernel, 1));
    for (i, &rate) in cfg.ratios.iter().rev().enumerate() {
        let first = encoder_block(cfg, i);
        units(&mut all, cfg, "encoder", first, cfg.width(i));
        let down = format!("encoder.layers.{}.conv", first + cfg.residual_layers + 1);
        let layout = Layout::Strided { stride: rate, pad: 0 };
        all.conv(&down, [cfg.width(i + 1), cfg.width(i), 2 * rate], layout);
    }
    lstm(&mut all, cfg, &format!("encoder.layers.{}", encoder_block(cfg, blocks)));
    let last = plain(cfg.last_kernel, 1);
    all.conv(&format!("encoder.layers.{}.conv", encoder_last(cfg)), [latent, memory, cfg.last_kernel], last);
    for i in 0..cfg.codebooks {
        all.plain(codebook(i), vec![cfg.codebook_size, latent]);
    }
    all.conv("decoder.layers.0.conv", [memory, latent, cfg.kernel], plain(cfg.kernel, 1));
    lstm(&mut all, cfg, "decoder.layers.1");
    for (i, &rate) in cfg.ratios.iter().enumerate() {
        let (up, width) = (decoder_up(cfg, i), cfg.width(blocks - 1 - i));
        let module = format!("decoder.layers.{up}.conv");
        all.transposed_of(&module, [2 * width, width, 2 * rate], rate, cfg.trimmed(rate));
        units(&mut all, cfg, "decoder", up + 1, width);
    }
    all.conv(&format!("decoder.layers.{}.conv", decoder_last(cfg)), [1, cfg.filters, cfg.last_kernel], last);
    all.all()
}

/// Returns how a convolution of rows `dilation` apart lies.
fn plain(taps: usize, dilation: usize) -> Layout {
    if taps == 1 { Layout::Matrix } else { Layout::Dilated { by: dilation } }
}

fn units(all: &mut Tensors, cfg: &Config, side: &str, first: usize, width: usize) {
    let (inner, taps) = (width / cfg.compress, cfg.residual_kernel);
    for i in 0..cfg.residual_layers {
        let at = format!("{side}.layers.{}", first + i);
        all.conv(&format!("{at}.block.1.conv"), [inner, width, taps], plain(taps, cfg.dilation(i)));
        all.conv(&format!("{at}.block.3.conv"), [width, inner, 1], Layout::Matrix);
        if cfg.shortcut {
            all.conv(&format!("{at}.shortcut.conv"), [width, width, 1], Layout::Matrix);
        }
    }
}

fn lstm(all: &mut Tensors, cfg: &Config, at: &str) {
    let hidden = cfg.memory();
    for layer in 0..cfg.lstm_layers {
        for (leaf, dims) in [("weight_ih", vec![4 * hidden, hidden]), ("weight_hh", vec![4 * hidden, hidden])]
        {
            all.plain(format!("{at}.lstm.{leaf}_l{layer}"), dims);
        }
        for leaf in ["bias_ih", "bias_hh"] {
            all.plain(format!("{at}.lstm.{leaf}_l{layer}"), vec![4 * hidden]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{model, tables};
    use super::*;
    use ambitus_ir::{Session, StateDecl};
    use std::collections::BTreeSet;

    fn shapes() -> [Config; 3] {
        let small = Config {
            filters: 4,
            ratios: vec![3, 2],
            latent_dim: 6,
            kernel: 5,
            last_kernel: 3,
            residual_layers: 2,
            dilation_growth: 3,
            codebook_size: 11,
            codebooks: 2,
            ..Config::encodec_32khz()
        };
        let causal =
            Config { causal: true, trim_right: 0.5, shortcut: true, lstm_layers: 1, ..small.clone() };
        [
            Config { lstm_layers: 0, residual_kernel: 1, compress: 4, kernel: 4, ..small.clone() },
            causal,
            small,
        ]
    }

    /// Every state of the programs is a tensor of the list with the shape that it is laid out in, and every tensor is used.
    #[test]
    fn states_are_the_tensors() {
        for cfg in shapes() {
            let mut s = Session::default();
            for p in [model::encode(&mut s, &cfg, 12), model::decode(&mut s, &cfg, 12)] {
                ambitus_ir::verify::verify(&s, &p).unwrap();
                assert!(!tables::tables(&p).is_empty());
            }
            let state = |s: &StateDecl| (s.name.clone(), s.ty.shape.to_vec());
            let have: BTreeSet<_> = s.states.iter().map(state).collect();
            let want: BTreeSet<_> = tensors(&cfg).iter().map(|t| (t.name.clone(), t.state_dims())).collect();
            assert_eq!(have, want);
        }
    }

    /// Of `EncodecModel` in transformers 4.57.6 and of audiocraft 1.3.0.
    #[test]
    fn names_of_both_projects() {
        let cfg = Config::encodec_32khz();
        let all = tensors(&cfg);
        for (state, name) in [
            ("encoder.layers.0.conv.weight", "encoder.model.0.conv.conv.weight"),
            ("encoder.layers.1.block.1.conv.bias", "encoder.model.1.block.1.conv.conv.bias"),
            ("encoder.layers.12.conv.weight", "encoder.model.12.conv.conv.weight"),
            ("encoder.layers.13.lstm.weight_hh_l1", "encoder.model.13.lstm.weight_hh_l1"),
            ("encoder.layers.15.conv.bias", "encoder.model.15.conv.conv.bias"),
            ("quantizer.layers.3.codebook.embed", "quantizer.vq.layers.3._codebook.embed"),
            ("decoder.layers.1.lstm.bias_ih_l0", "decoder.model.1.lstm.bias_ih_l0"),
            ("decoder.layers.3.conv.weight", "decoder.model.3.convtr.convtr.weight"),
            ("decoder.layers.12.conv.bias", "decoder.model.12.convtr.convtr.bias"),
            ("decoder.layers.13.block.3.conv.weight", "decoder.model.13.block.3.conv.conv.weight"),
            ("decoder.layers.15.conv.weight", "decoder.model.15.conv.conv.weight"),
        ] {
            assert!(all.iter().any(|t| t.name == state), "{state}");
            assert_eq!(Names::Audiocraft.of(&cfg, state), name);
            assert_eq!(Names::Audiocraft.in_transformers(name), state);
            assert_eq!(Names::Transformers.of(&cfg, state), state);
        }
        let named: BTreeSet<String> = all.iter().map(|t| Names::Audiocraft.of(&cfg, &t.name)).collect();
        assert_eq!(named.len(), all.len());
        for name in ["quantizer.layers.3.codebook.embed_avg", "quantizer.layers.0.codebook.inited"] {
            assert!(
                Names::Transformers.ignored(&cfg, name) && !Names::Audiocraft.ignored(&cfg, name),
                "{name}"
            );
        }
        assert!(Names::Audiocraft.ignored(&cfg, "quantizer.vq.layers.2._codebook.cluster_size"));
        for name in ["quantizer.layers.3.codebook.embed", "quantizer.layers.4.codebook.inited", "extra"] {
            assert!(!Names::Transformers.ignored(&cfg, name), "{name}");
        }
        let more = Config { stored_codebooks: 5, ..cfg };
        assert!(Names::Transformers.ignored(&more, "quantizer.layers.4.codebook.embed"));
    }
}
