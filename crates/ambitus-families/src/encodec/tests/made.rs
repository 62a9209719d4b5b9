//! Folders of EnCodecs with random weights.

use crate::codec::made::{self, Folder, Held, Spelling, Values, held, random};
use crate::encodec::folder::CHECKPOINT;
use ambitus_models::common::codec::weights::Tensor;
use ambitus_models::encodec::config::{Config, Padding};
use ambitus_models::encodec::weights::{Names, tensors};
use ambitus_store::{DType, Item, RealDisk, TensorSpec, TensorWriter};
use std::path::Path;
use std::sync::Arc;

/// A small codec like the one at 32 kHz: an odd stride, reflected ends, a memory of two layers.
pub fn small() -> Config {
    Config {
        rate: 16_000,
        filters: 2,
        ratios: vec![5, 4],
        latent_dim: 5,
        codebook_size: 16,
        codebooks: 3,
        stored_codebooks: 3,
        ..Config::encodec_32khz()
    }
}

/// Returns codecs of every form.
pub fn forms() -> [Config; 4] {
    let causal = Config {
        causal: true,
        trim_right: 0.5,
        shortcut: true,
        lstm_layers: 1,
        residual_layers: 2,
        dilation_growth: 3,
        ..small()
    };
    let plain = Config { padding: Padding::Zeros, kernel: 4, last_kernel: 3, residual_layers: 2, ..small() };
    let none = Config {
        lstm_layers: 0,
        last_kernel: 1,
        residual_kernel: 1,
        compress: 1,
        ratios: vec![3, 2],
        ..small()
    };
    [small(), causal, plain, none]
}

/// Returns (g, v) or the values of a tensor: convolutions that neither die nor explode, and a memory that lasts.
fn values(t: &Tensor) -> Values {
    let n: usize = t.dims.iter().product();
    let mut v = random(&t.name, n);
    if t.name.contains("lstm.weight") {
        let size = 1.7 / (t.dims[1] as f32).sqrt();
        v.iter_mut().for_each(|x| *x *= size);
    }
    let g = t.normed.then(|| {
        let norms = random(&format!("{} g", t.name), t.dims[0]);
        let size = if t.name.contains("block.3") { 0.4 } else { 0.9 };
        norms.iter().map(|x| size * (1.0 + 0.3 * x)).collect()
    });
    (g, v)
}

/// Returns a tensor with its norm.
pub fn folded(t: &Tensor) -> Vec<f32> {
    made::folded(t, values(t))
}

/// Returns `config.json` of such a codec.
pub fn config(cfg: &Config) -> serde_json::Value {
    let frames = (cfg.rate as usize).div_ceil(cfg.hop());
    let kbps = (cfg.codebooks as f64 + 0.01) * frames as f64 * f64::from(cfg.codebook_size.ilog2()) / 1000.0;
    serde_json::json!({
        "model_type": "encodec", "target_bandwidths": [kbps], "sampling_rate": cfg.rate, "num_filters": cfg.filters,
        "upsampling_ratios": cfg.ratios, "hidden_size": cfg.latent_dim, "kernel_size": cfg.kernel,
        "last_kernel_size": cfg.last_kernel, "residual_kernel_size": cfg.residual_kernel,
        "num_residual_layers": cfg.residual_layers, "dilation_growth_rate": cfg.dilation_growth,
        "compress": cfg.compress, "num_lstm_layers": cfg.lstm_layers, "use_causal_conv": cfg.causal,
        "trim_right_ratio": cfg.trim_right, "use_conv_shortcut": cfg.shortcut, "codebook_size": cfg.codebook_size,
        "pad_mode": if cfg.padding == Padding::Reflect { "reflect" } else { "constant" },
    })
}

/// Returns the codec's tensors, with what trained its codebooks.
fn all(cfg: &Config, names: Names, spelling: Spelling, prefix: &str) -> Held {
    let mut held = held(&tensors(cfg), values, |state| format!("{prefix}{}", names.of(cfg, state)), spelling);
    for i in 0..cfg.codebooks {
        for (leaf, n) in [("inited", 1), ("cluster_size", cfg.codebook_size)] {
            let name = names.of(cfg, &format!("quantizer.layers.{i}.codebook.{leaf}"));
            held.insert(format!("{prefix}{name}"), (vec![n], vec![1.0; n]));
        }
    }
    held
}

/// Writes transformers' folder of a codec, or that of a model with one, of which there are other tensors too.
pub fn written(cfg: &Config, spelling: Spelling, within: bool) -> Folder {
    let (mut own, prefix) = (config(cfg), if within { "audio_encoder." } else { "" });
    let mut held = all(cfg, Names::Transformers, spelling, prefix);
    if within {
        held.insert("text_encoder.shared.weight".to_owned(), (vec![2, 2], vec![0.0; 4]));
        own = serde_json::json!({ "model_type": "musicgen", "audio_encoder": own });
    }
    Folder::new(&own.to_string(), &held)
}

/// Writes audiocraft's checkpoint of a codec.
pub fn checkpoint(dir: &Path, cfg: &Config, yaml: &str, spelling: Spelling) {
    let held = all(cfg, Names::Audiocraft, spelling, "");
    let specs: Vec<TensorSpec> =
        held.iter().map(|(name, (dims, _))| TensorSpec::new(name, DType::F32, dims)).collect();
    let root = [
        ("best_state".to_owned(), Item::Tensors),
        ("xp.cfg".to_owned(), Item::Text(yaml.to_owned())),
        ("exported".to_owned(), Item::Bool(true)),
    ];
    let path = dir.join(CHECKPOINT);
    let mut file = TensorWriter::create_torch_on(Arc::new(RealDisk), &path, specs, &root).unwrap();
    held.iter().for_each(|(name, (_, values))| file.write_f32(name, values).unwrap());
    file.finish().unwrap();
}
