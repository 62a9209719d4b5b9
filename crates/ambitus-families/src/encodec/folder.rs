//! A codec's folder: its configuration and its weights, checked before a weight is read. Transformers has `config.json` beside tensors,
//! alone or within a model's; audiocraft one checkpoint that holds both.

use super::package;
use crate::codec::tensors::Tensors;
use crate::error::RunError;
use crate::weights::{MAX_CONFIG_BYTES, Weights, open_frozen, read_text};
use ambitus_data::audio::{MAX_RATE, MIN_RATE};
use ambitus_models::encodec::config::{Config, File, Padding};
use ambitus_models::encodec::weights::{Names, tensors};
use ambitus_recipe::recipe::short;
use ambitus_store::TensorFile;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

/// Transformers' configuration.
const CONFIG: &str = "config.json";
/// The object in a model's configuration that is the codec's, and what stands before its tensors.
const PART: &str = "audio_encoder";
/// What transformers calls the codec.
const TYPE: &str = "encodec";
/// Audiocraft's checkpoint.
pub const CHECKPOINT: &str = "compression_state_dict.bin";
/// The texts in it: the configuration, or the name of a codec that it stands for.
const TEXTS: [&str; 2] = ["xp.cfg", "pretrained"];

/// An opened folder.
pub struct Folder {
    /// The codec's shape.
    pub config: Config,
    /// Its weights.
    pub tensors: Tensors,
}

impl Folder {
    /// Reads the configuration and compares the index of the weights with it.
    ///
    /// # Errors
    /// Names the file and the key, or every missing, extra and misshapen tensor; the codec whose name alone a checkpoint holds.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        let (config, names, weights, source) = match transformers_config(dir) {
            None if dir.join(CHECKPOINT).is_file() => of_audiocraft(dir)?,
            _ => of_transformers(dir)?,
        };
        let rates = MIN_RATE..=MAX_RATE;
        let path = weights.path.display().to_string();
        if !rates.contains(&config.rate) {
            let why = format!("{} Hz is not in {MIN_RATE}..={MAX_RATE}", config.rate);
            return Err(RunError::Model(format!("{path}: sampling rate: {why}")));
        }
        let of = |state: &str| names.of(&config, state);
        let ignored = |name: &str| names.ignored(&config, name);
        let found = Tensors::find_among(weights, tensors(&config), of, ignored, &source);
        let tensors = found.map_err(|problems| {
            let problems = problems.join("\n  ");
            RunError::Model(format!(
                "{path}: does not fit {source}:\n  {problems}\ncheck that both are of one codec, or fetch its files again"
            ))
        })?;
        Ok(Folder { config, tensors })
    }

    /// Returns a hash of the configuration and of the codec's weights, not of those of a model around it.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        self.tensors.hash(&mut hash)?;
        Ok(*hash.finalize().as_bytes())
    }
}

/// Returns whether the folder has the configuration of such a codec, or of a model with one, or audiocraft's checkpoint, right or
/// wrong.
pub fn is_encodec(dir: &Path) -> bool {
    transformers_config(dir).is_some() || dir.join(CHECKPOINT).is_file()
}

/// Returns the codec's part of `config.json`, if it says that it is one, and whether it is within a model's.
fn transformers_config(dir: &Path) -> Option<(Value, bool)> {
    let text = read_text(&dir.join(CONFIG), MAX_CONFIG_BYTES, "").ok()?;
    let mut value: Value = serde_json::from_str(&text).ok()?;
    let part = value.get_mut(PART).map(Value::take);
    let within = part.is_some();
    let value = part.unwrap_or(value);
    (value.get("model_type").and_then(Value::as_str) == Some(TYPE)).then_some((value, within))
}

/// Returns the configuration and the files of a codec's folder as those of a part of a larger model of transformers, before whose tensors'
/// names `prefix` stands.
///
/// # Errors
/// Names the file and the key, or every tensor that does not fit.
pub fn as_part(dir: &Path, prefix: &str) -> Result<(Value, Vec<TensorFile>), RunError> {
    // What does not fit is said as where the codec is used.
    Folder::open(dir)?;
    let (value, names, weights) = match transformers_config(dir) {
        None => {
            let (config, names, weights, _) = of_audiocraft(dir)?;
            (in_transformers(&config), names, weights)
        }
        Some((value, _)) => {
            let (_, names, weights, _) = of_transformers(dir)?;
            (value, names, weights)
        }
    };
    let name = |name: &str| {
        let own = name.strip_prefix(&*weights.prefix)?;
        Some(format!("{prefix}{}", names.in_transformers(own)))
    };
    let files = weights.files.into_iter().map(|file| file.renamed(|n| name(n).into_iter().collect()));
    Ok((value, files.collect()))
}

/// Returns transformers' configuration of a codec.
fn in_transformers(config: &Config) -> Value {
    let bits = config.codebook_size.ilog2() as usize * (config.rate as usize).div_ceil(config.hop());
    // So much more that the codebooks, rounded down, are all of them.
    let bandwidth = ((config.codebooks * bits) as f64 + 0.5) / 1000.0;
    json!({
        "model_type": TYPE,
        "sampling_rate": config.rate,
        "audio_channels": 1,
        "normalize": false,
        "target_bandwidths": [bandwidth],
        "codebook_size": config.codebook_size,
        "codebook_dim": config.latent_dim,
        "hidden_size": config.latent_dim,
        "num_filters": config.filters,
        "num_residual_layers": config.residual_layers,
        "num_lstm_layers": config.lstm_layers,
        "upsampling_ratios": config.ratios,
        "norm_type": "weight_norm",
        "kernel_size": config.kernel,
        "last_kernel_size": config.last_kernel,
        "residual_kernel_size": config.residual_kernel,
        "dilation_growth_rate": config.dilation_growth,
        "compress": config.compress,
        "use_causal_conv": config.causal,
        "trim_right_ratio": config.trim_right,
        "use_conv_shortcut": config.shortcut,
        "pad_mode": match config.padding {
            Padding::Reflect => "reflect",
            Padding::Zeros => "constant",
        },
    })
}

type Found = (Config, Names, Weights, String);

fn of_transformers(dir: &Path) -> Result<Found, RunError> {
    let path = dir.join(CONFIG);
    let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    read_text(&path, MAX_CONFIG_BYTES, "copy it from the checkpoint's own folder")?;
    let (value, within) = transformers_config(dir)
        .ok_or_else(|| bad(format!("names no codec of the type `{TYPE}`; give the folder of one")))?;
    let (key, prefix) = if within { ("audio_encoder.", "audio_encoder.") } else { ("", "") };
    let file = File::deserialize(&value).map_err(|e| bad(format!("{key}{}", short(&e.to_string()))))?;
    let config = file.config().map_err(|e| bad(format!("{key}{e}")))?;
    let weights = open_frozen(dir, prefix, "put the codec's or the model's files there")?;
    Ok((config, Names::Transformers, weights, CONFIG.to_owned()))
}

fn of_audiocraft(dir: &Path) -> Result<Found, RunError> {
    let path = dir.join(CHECKPOINT);
    let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let file = TensorFile::open(&path)?;
    let [yaml, pretrained] = TEXTS.map(|key| file.metadata().get(key).cloned());
    if let Some(name) = pretrained {
        return Err(bad(format!(
            "holds no codec, only the name of one, `{}`; give the folder of that codec, with config.json and model.safetensors",
            short(&name)
        )));
    }
    let yaml =
        yaml.ok_or_else(|| bad(format!("has no `{}`; is it audiocraft's export of a codec?", TEXTS[0])))?;
    let config = package::config(&yaml).map_err(|why| bad(format!("{}: {why}", TEXTS[0])))?;
    let weights = Weights { files: vec![file], prefix: "best_state.".to_owned(), path };
    Ok((config, Names::Audiocraft, weights, format!("its {}", TEXTS[0])))
}
