//! A codec's folder: `config.json` and its weights, checked before a weight is read. Two projects write them under different
//! names, and with or without a model around the codec; the tensors' names say which.

use crate::codec::tensors::Tensors;
use crate::error::RunError;
use crate::weights::{MAX_CONFIG_BYTES, Weights, open_frozen, read_text};
use ambitus_data::audio::{MAX_RATE, MIN_RATE};
use ambitus_models::common::codec::weights::spellings;
use ambitus_models::dac::config::{Config, File};
use ambitus_models::dac::weights::{Names, encoder_first, tensors};
use ambitus_recipe::recipe::short;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The configuration's file.
const CONFIG: &str = "config.json";
/// The object in a model's configuration that is the codec's.
const PART: &str = "audio_encoder";
/// What configurations call a codec: transformers' and, in some releases before it had one, Parler-TTS's.
const TYPES: [&str; 2] = ["dac", "dac_on_the_hub"];
/// Rates where the file leaves them out: the defaults of transformers' configuration and of Parler-TTS's, Hz.
const DEFAULT_RATES: [(Names, u32); 2] = [(Names::Transformers, 16_000), (Names::Package, 44_100)];

/// An opened folder.
pub struct Folder {
    /// The codec's shape.
    pub config: Config,
    /// Of its sound, Hz.
    pub rate: u32,
    /// Its weights.
    pub tensors: Tensors,
}

impl Folder {
    /// Reads the configuration, and the shape off the index of the weights, and compares them.
    ///
    /// # Errors
    /// Names the file and the key, or every missing, extra and misshapen tensor.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        let path = dir.join(CONFIG);
        let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
        let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the checkpoint's own folder")?;
        let value: Value = serde_json::from_str(&text).map_err(|e| bad(short(&e.to_string())))?;
        let part = value.get(PART);
        let key = if part.is_some() { "audio_encoder." } else { "" };
        let file = File::deserialize(part.unwrap_or(&value));
        let file = file.map_err(|e| bad(format!("{key}{}", short(&e.to_string()))))?;

        let weights = open_frozen(dir, "", "put the codec's or the model's files there")?;
        let (names, weights) = named(weights, part.is_some())?;
        let source = weights.path.display().to_string();
        let config = Config::of_tensors(|state| axes(&weights, names, state)).map_err(|why| {
            RunError::Model(format!("{source}: is not a DAC codec that is known here: {why}"))
        })?;
        config.agrees(&file).map_err(|e| bad(format!("{key}{e}")))?;
        let rate = file
            .sampling_rate
            .or_else(|| DEFAULT_RATES.into_iter().find(|(of, _)| *of == names).map(|(_, rate)| rate));
        let rate = rate
            .filter(|rate| (MIN_RATE..=MAX_RATE).contains(rate))
            .ok_or_else(|| bad(format!("{key}sampling_rate: must be {MIN_RATE} to {MAX_RATE} Hz")))?;
        let all = tensors(&config);
        let tensors = Tensors::find(weights, all, |state| names.of(state), "the architecture");
        let tensors = tensors.map_err(|problems| {
            RunError::Model(format!(
                "{source}: is not whole:\n  {}\nfetch the codec's files again",
                problems.join("\n  ")
            ))
        })?;
        Ok(Folder { config, rate, tensors })
    }

    /// Returns a hash of rate, shape and the codec's weights, not those of a model around it.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{} {:?}", self.rate, self.config).as_bytes());
        self.tensors.hash(&mut hash)?;
        Ok(*hash.finalize().as_bytes())
    }
}

/// Returns whether the folder has a DAC codec's configuration, or a model's with one, right or wrong.
pub fn is_dac(dir: &Path) -> bool {
    let text = read_text(&dir.join(CONFIG), MAX_CONFIG_BYTES, "").ok();
    let value = text.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let value = value.as_ref().map(|value| value.get(PART).unwrap_or(value));
    let model_type = value.and_then(|value| value.get("model_type")?.as_str());
    model_type.is_some_and(|name| TYPES.contains(&name))
}

/// Returns whose names the tensors have, and the weights with what stands before these. In a model's folder it is the part's name.
fn named(mut weights: Weights, of_model: bool) -> Result<(Names, Weights), RunError> {
    // Parler-TTS's wrapper, with and without a model around it, keeps the package's codec in `model`.
    let prefixes = match of_model {
        true => ["audio_encoder.model.", "audio_encoder."],
        false => ["model.", ""],
    };
    for prefix in prefixes {
        for names in [Names::Package, Names::Transformers] {
            weights.prefix = prefix.to_owned();
            if axes(&weights, names, &encoder_first()).is_some() {
                return Ok((names, weights));
            }
        }
    }
    let (path, prefix) = (weights.path.display(), prefixes[1]);
    let wanted = [Names::Package, Names::Transformers].map(|names| names.of(&encoder_first()));
    Err(RunError::Model(format!(
        "{path}: holds no DAC codec: neither {prefix}{} (the package's names; maybe under {}) nor {prefix}{} (transformers'); give the \
         folder of a codec, or of a model with one",
        wanted[0], prefixes[0], wanted[1],
    )))
}

/// Returns the axes of a state's tensor, in whatever spelling.
fn axes(weights: &Weights, names: Names, state: &str) -> Option<Vec<usize>> {
    spellings(&names.of(state)).iter().find_map(|spelled| weights.shape_of(spelled.last()?))
}
