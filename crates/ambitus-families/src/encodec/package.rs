//! The configuration in audiocraft's checkpoints: YAML of a whole training run, of which three sections say what the codec is
//! (`audiocraft/models/builders.py` and `modules/seanet.py` of 1.3.0).

use crate::hydra::{read, section};
use ambitus_models::encodec::config::{Config, ConfigError, File};
use ambitus_recipe::recipe::short;
use serde::Deserialize;
use serde_json::Value;

/// Of the sections' keys, those that say what is computed. Others are errors, as in the package.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Encodec {
    autoencoder: String,
    quantizer: String,
    sample_rate: u32,
    channels: usize,
    causal: bool,
    #[serde(default)]
    renormalize: bool,
    /// Read by no version that is known.
    #[serde(default, rename = "renorm")]
    _renorm: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Seanet {
    dimension: usize,
    channels: usize,
    causal: bool,
    n_filters: usize,
    n_residual_layers: usize,
    ratios: Vec<usize>,
    activation: String,
    activation_params: Alpha,
    norm: String,
    /// Of norms with parameters, which are not computed.
    #[serde(default, rename = "norm_params")]
    _norm_params: Value,
    kernel_size: usize,
    residual_kernel_size: usize,
    last_kernel_size: usize,
    dilation_base: usize,
    pad_mode: String,
    true_skip: bool,
    compress: usize,
    lstm: usize,
    /// Weights there are plain: both are read.
    #[serde(default, rename = "disable_norm_outer_blocks")]
    _disable_norm_outer_blocks: Value,
    decoder: Decoder,
    /// What is said of the encoder alone.
    #[serde(default, rename = "encoder")]
    _encoder: Nothing,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alpha {
    alpha: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decoder {
    trim_right_ratio: f64,
    #[serde(default)]
    final_activation: Option<String>,
    #[serde(default, rename = "final_activation_params")]
    _final_activation_params: Value,
}

/// How codebooks were trained says nothing of the codes.
#[derive(Deserialize)]
struct Rvq {
    n_q: usize,
    bins: usize,
}

/// Reads the codec's shape.
///
/// # Errors
/// Names the key: what is missing, unknown, or not computed here.
pub fn config(yaml: &str) -> Result<Config, String> {
    let whole = read(yaml)?;
    let model = section::<String>(&whole, "compression_model")?;
    let encodec: Encodec = section(&whole, "encodec")?;
    let seanet: Seanet = section(&whole, "seanet")?;
    let wanted = [
        ("compression_model", &model, "encodec"),
        ("encodec.autoencoder", &encodec.autoencoder, "seanet"),
        ("encodec.quantizer", &encodec.quantizer, "rvq"),
        ("seanet.activation", &seanet.activation, "ELU"),
    ];
    if let Some((key, is, want)) = wanted.into_iter().find(|(_, is, want)| is.as_str() != *want) {
        return Err(format!("{key}: `{}` is not computed; {want} is", short(is)));
    }
    if let Some(last) = &seanet.decoder.final_activation {
        return Err(format!("seanet.decoder.final_activation: `{}` is not computed; null is", short(last)));
    }
    if seanet.activation_params.alpha != 1.0 {
        let alpha = seanet.activation_params.alpha;
        return Err(format!("seanet.activation_params.alpha: {alpha} is not computed; 1 is"));
    }
    if (seanet.channels, seanet.causal) != (encodec.channels, encodec.causal) {
        return Err("seanet: channels and causal are not those of encodec".to_owned());
    }
    let rvq: Rvq = section(&whole, "rvq")?;
    let file = File {
        sampling_rate: encodec.sample_rate,
        audio_channels: encodec.channels,
        normalize: encodec.renormalize,
        hidden_size: seanet.dimension,
        num_filters: seanet.n_filters,
        num_residual_layers: seanet.n_residual_layers,
        upsampling_ratios: seanet.ratios,
        // A checkpoint without weight norm holds plain weights, which are read as well.
        norm_type: if seanet.norm == "none" { "weight_norm".to_owned() } else { seanet.norm },
        kernel_size: seanet.kernel_size,
        last_kernel_size: seanet.last_kernel_size,
        residual_kernel_size: seanet.residual_kernel_size,
        dilation_growth_rate: seanet.dilation_base,
        use_causal_conv: encodec.causal,
        pad_mode: seanet.pad_mode,
        compress: seanet.compress,
        num_lstm_layers: seanet.lstm,
        trim_right_ratio: seanet.decoder.trim_right_ratio,
        codebook_size: rvq.bins,
        use_conv_shortcut: !seanet.true_skip,
        codebooks: Some(rvq.n_q),
        ..File::default()
    };
    file.config().map_err(|ConfigError { key, why }| format!("{}: {why}", own(key)))
}

/// Returns what the package calls a key of transformers.
fn own(key: &'static str) -> &'static str {
    match key {
        "norm_type" => "seanet.norm",
        "normalize" => "encodec.renormalize",
        "audio_channels" => "encodec.channels",
        "hidden_size" => "seanet.dimension",
        "num_filters" => "seanet.n_filters",
        "num_residual_layers" => "seanet.n_residual_layers",
        "upsampling_ratios" => "seanet.ratios",
        "kernel_size" => "seanet.kernel_size",
        "last_kernel_size" => "seanet.last_kernel_size",
        "residual_kernel_size" => "seanet.residual_kernel_size",
        "dilation_growth_rate" => "seanet.dilation_base",
        "pad_mode" => "seanet.pad_mode",
        "compress" => "seanet.compress",
        "num_lstm_layers" => "seanet.lstm",
        "trim_right_ratio" => "seanet.decoder.trim_right_ratio",
        "codebook_size" => "rvq.bins",
        "target_bandwidths" => "rvq.n_q",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sections of a checkpoint of `encodec_large_nq4_s640`, as audiocraft's configuration files make them.
    const PUBLISHED: &str = include_str!("package.yaml");

    #[test]
    fn the_published_codec() {
        let want = ambitus_models::encodec::config::Config {
            padding: ambitus_models::encodec::config::Padding::Zeros,
            ..Config::encodec_32khz()
        };
        assert_eq!(config(PUBLISHED).unwrap(), want);
    }

    #[test]
    fn what_is_not_computed_is_named() {
        for (from, to, said) in [
            ("compression_model: encodec", "compression_model: dac", "compression_model: `dac`"),
            ("quantizer: rvq", "quantizer: no_quant", "encodec.quantizer: `no_quant`"),
            ("renormalize: false", "renormalize: true", "encodec.renormalize: "),
            ("activation: ELU", "activation: GELU", "seanet.activation: `GELU`"),
            ("alpha: 1.0", "alpha: 0.5", "activation_params.alpha: 0.5"),
            ("norm: weight_norm", "norm: spectral_norm", "seanet.norm: `spectral_norm`"),
            ("pad_mode: constant", "pad_mode: circular", "seanet.pad_mode: `circular`"),
            ("final_activation: null", "final_activation: Tanh", "final_activation: `Tanh`"),
            ("true_skip: true", "true_skop: true", "seanet: unknown field `true_skop`"),
            ("encoder: {}", "encoder: {n_filters: 3}", "seanet: unknown field `n_filters`"),
            ("channels: 1\n", "channels: 2\n", "encodec.channels: 2 channels in one codec"),
            ("sample_rate: ${sample_rate}", "sample_rate: ${rate}", "encodec: `${rate}` is not there"),
            ("causal: false", "causal: ${encodec.causal}", "encodec: `${encodec.causal}` refers to itself"),
            ("n_q: 4", "n_q: 0", "rvq.n_q: makes 0"),
            ("bins: 2048", "bins: many", "rvq: "),
            ("rvq:", "rvqs:", "rvq: is missing"),
            ("seanet:", "{", ""),
        ] {
            assert!(PUBLISHED.contains(from), "{from}");
            let why = config(&PUBLISHED.replacen(from, to, 1)).unwrap_err();
            assert!(why.contains(said), "{to}: {why}");
        }
        // References that double at each step: a thousand characters that would be a hundred thousand values.
        let doubling: String =
            (0..15).map(|i| format!("d{i}:\n  a: ${{d{}}}\n  b: ${{d{}}}\n", i + 1, i + 1)).collect();
        let text = PUBLISHED.replacen("encoder: {}", "encoder: ${d0}", 1) + "\n" + &doubling + "d15: {}\n";
        let why = config(&text).unwrap_err();
        assert!(why.contains("more than 10000 values"), "{why}");
        let plain = config(&PUBLISHED.replacen("norm: weight_norm", "norm: none", 1));
        assert_eq!(plain.unwrap(), config(PUBLISHED).unwrap());
        let none = config(&PUBLISHED.replacen("lstm: 2", "lstm: 0", 1)).unwrap();
        assert_eq!(none.lstm_layers, 0);
    }
}
