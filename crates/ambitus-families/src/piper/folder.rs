//! A folder of a Piper voice: `model.ckpt`, which a trainer wrote, and `config.json`, which says how texts become ids.

use super::hyper;
use super::keys::{Keys, SECTION};
use super::start::{self, Start};
use crate::error::RunError;
use crate::family::{ModelDir, OpenOptions};
use crate::hugging_face::{self, CONFIG};
use crate::weights::{MAX_CONFIG_BYTES, Weights, read_text};
use ambitus_ir::StateDecl;
use ambitus_models::piper::config::{Config, Quality};
use ambitus_models::piper::weights::made;
use ambitus_recipe::recipe::short;
use ambitus_store::TensorFile;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The checkpoint.
pub(super) const MODEL_FILE: &str = "model.ckpt";
/// What stands before the model's names in it.
const PREFIX: &str = "state_dict.";
/// What training alone reads: who judges, what sees spectrograms, and how durations are learned.
const OF_TRAINING: [&str; 4] = ["model_d.", "model_g.enc_q.", "model_g.dp.post_", "model_g.dp.flows.1."];

/// Names that a message has at most.
const MOST_NAMED: usize = 12;

/// `config.json`: what matters of it. It has nothing of the architecture.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    audio: Audio,
    num_symbols: Option<usize>,
    num_speakers: Option<usize>,
    speaker_id_map: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Audio {
    sample_rate: Option<u32>,
}

/// Returns whether the folder's `config.json` is a voice's.
pub(super) fn recognises(dir: &Path) -> bool {
    #[derive(Deserialize)]
    struct Any {
        phoneme_id_map: Option<serde_json::Value>,
        num_symbols: Option<serde_json::Value>,
        espeak: Option<serde_json::Value>,
    }
    let Ok(text) = read_text(&dir.join(CONFIG), MAX_CONFIG_BYTES, "") else { return false };
    let read: Result<Any, _> = serde_json::from_str(&text);
    read.is_ok_and(|any| any.phoneme_id_map.is_some() || (any.num_symbols.is_some() && any.espeak.is_some()))
}

fn read_config(dir: &Path) -> Result<File, RunError> {
    let path = dir.join(CONFIG);
    let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the voice's own folder: NAME.onnx.json")?;
    serde_json::from_str(&text)
        .map_err(|e| RunError::Model(format!("{}: {}", path.display(), short(&e.to_string()))))
}

/// An opened folder.
pub(super) struct Folder {
    pub dir: PathBuf,
    pub config: Config,
    pub keys: Keys,
    /// Ids of speakers, by name.
    pub speakers: BTreeMap<String, u32>,
    /// The trainer's options, of this model.
    pub options: Value,
    /// What it begins with.
    pub start: Start,
    /// What people should know of that.
    pub notes: Vec<String>,
    /// `config.json` as a run keeps it, where it does not say how many speakers the recipe gives the voice.
    pub respoken: Option<String>,
}

impl Folder {
    /// Returns a folder of this shape without files.
    pub fn shaped(config: Config) -> Folder {
        let options = hyper::written(&config, None);
        Folder {
            dir: PathBuf::new(),
            config,
            keys: Keys::default(),
            speakers: BTreeMap::new(),
            options,
            start: Start::default(),
            notes: Vec::new(),
            respoken: None,
        }
    }

    /// Returns the id of a speaker, who has a name or is one of the numbers.
    ///
    /// # Errors
    /// Nobody is called so; with who there is.
    pub fn speaker(&self, named: &str) -> Result<u32, String> {
        let n = self.config.speakers;
        let id = self.speakers.get(named).copied().or_else(|| named.parse().ok());
        id.filter(|id| (*id as usize) < n).ok_or_else(|| {
            let names: Vec<&str> = self.speakers.keys().take(MOST_NAMED).map(String::as_str).collect();
            let more = if self.speakers.len() > MOST_NAMED { ", …" } else { "" };
            let names =
                if names.is_empty() { String::new() } else { format!("{}{more}, or ", names.join(", ")) };
            let named = short(named);
            format!("`{named}` is no speaker of this voice: give {names}a number from 0 to {}", n - 1)
        })
    }
}

pub(super) fn open(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
    let keys: Keys = options.own(&SECTION)?;
    let file = read_config(dir)?;
    let speakers = keys.speakers.map(|n| n.0);
    let path = dir.join(MODEL_FILE);
    // A voice that is made anew has the shape of the checkpoint beside it, of a run that kept one, or of a quality that the recipe names.
    let planned = options.from_scratch || keys.quality.is_some();
    let absent = planned && (keys.quality.is_some() && options.from_scratch || !path.is_file());
    let weights = if absent { None } else { Some(weights(&path)?) };
    let of_quality = |quality| of_quality(quality, &file, speakers, dir);
    let config = match &weights {
        Some(weights) => hyper::config(weights, speakers)?,
        None => match keys.quality {
            Some(quality) => of_quality(quality.into())?,
            None => hyper::kept(dir, speakers)?.map_or_else(|| of_quality(Quality::Medium), Ok)?,
        },
    };
    let start = weights.as_ref().map(|weights| Start::of(&keys, weights, &config)).transpose()?;
    let start = start.unwrap_or_default();
    let symbols = file.num_symbols.filter(|_| !start.takes(start::SYMBOLS)).unwrap_or(config.symbols);
    let config = Config { dropout: options.dropout.unwrap_or(config.dropout), symbols, ..config };
    check_shape(&file, &config, dir)?;
    let other = speakers.is_some_and(|n| file.num_speakers.unwrap_or(1) != n);
    let respoken = other.then(|| respoken(dir, config.speakers)).transpose()?;
    let written = hyper::written(&config, weights.as_ref());
    let weights = weights.filter(|_| !options.from_scratch).map(|weights| start.taken(weights));
    Ok(ModelDir {
        dir: dir.to_owned(),
        family: &super::Piper,
        model: Arc::new(config.clone()),
        wants_checkpointing: false,
        kept: if respoken.is_some() { Vec::new() } else { vec![CONFIG.to_owned()] },
        opened: Box::new(Folder {
            dir: dir.to_owned(),
            options: written,
            // Now, and not when weights are loaded: it takes the programs, which no plan counts there.
            notes: weights.as_ref().map_or(Vec::new(), |weights| start.notes(weights, &config)),
            config,
            keys,
            speakers: file.speaker_id_map,
            start,
            respoken,
        }),
        weights,
    })
}

/// Refuses symbols that no model has, and names of speakers that this one does not have.
fn check_shape(file: &File, config: &Config, dir: &Path) -> Result<(), RunError> {
    let fail = |why: String| RunError::Model(format!("{}: {why}", dir.join(CONFIG).display()));
    config.check().map_err(|e| fail(e.to_string()))?;
    let n = config.speakers;
    let none = file.speaker_id_map.iter().find(|(_, id)| **id as usize >= n).filter(|_| n > 1);
    none.map_or(Ok(()), |(name, id)| {
        Err(fail(format!(
            "speaker_id_map: {name} is {id}, and the voice has {n} speakers: give each an id from 0 to {}",
            n - 1
        )))
    })
}

/// Returns `config.json` with so many speakers: programs that speak ask it whether to say who does.
fn respoken(dir: &Path, speakers: usize) -> Result<String, RunError> {
    let mut config = hyper::read_json(&dir.join(CONFIG))?;
    if let Some(all) = config.as_object_mut() {
        all.insert("num_speakers".to_owned(), speakers.into());
    }
    Ok(format!("{config:#}\n"))
}

/// Returns a voice of a quality with the configuration's symbols and rate, and so many speakers or the configuration's.
fn of_quality(
    quality: Quality,
    file: &File,
    speakers: Option<usize>,
    dir: &Path,
) -> Result<Config, RunError> {
    let mut config = Config::of(quality);
    if let Some(rate) = file.audio.sample_rate {
        config.spectra.rate = rate;
        config.spectra.high = f64::from(rate) / 2.0;
    }
    config.symbols = file.num_symbols.unwrap_or(config.symbols);
    config.speakers = speakers.or(file.num_speakers).unwrap_or(1).max(1);
    config.speaker = hyper::numbers(config.speakers, 0);
    let fail = |why: String| RunError::Model(format!("{}: {why}", dir.join(CONFIG).display()));
    config.check().map_err(|e| fail(e.to_string()))?;
    Ok(config)
}

/// Opens a checkpoint.
///
/// # Errors
/// No such file, and one without a voice.
fn weights(path: &Path) -> Result<Weights, RunError> {
    if !path.is_file() {
        let why = "is missing; put the trainer's checkpoint there, set `from_scratch: true`, or name a quality to plan with (`--quality medium`)";
        return Err(RunError::Model(format!("{}: {why}", path.display())));
    }
    let file = TensorFile::open(path)?;
    let any = start::SYMBOLS;
    if !file.contains(&format!("{PREFIX}{any}")) {
        let refused = file.refused().first();
        let refused = refused.map_or(String::new(), |(key, why)| format!("; `{key}` was not read: {why}"));
        return Err(RunError::Model(format!(
            "{}: holds no voice in training (no tensor `{PREFIX}{any}`){refused}",
            path.display()
        )));
    }
    Ok(Weights { prefix: PREFIX.to_owned(), files: vec![file], path: path.to_owned() })
}

/// Compares the checkpoint's index with the parameters that a session declares.
pub(super) fn check(weights: &Weights, states: &[StateDecl], folder: &Folder) -> Result<(), RunError> {
    let of_training = |name: &str| OF_TRAINING.iter().any(|part| name.starts_with(part));
    hugging_face::compare(
        MODEL_FILE,
        weights,
        states,
        |name| made(name, &folder.config).is_some() || folder.start.draws(name),
        of_training,
        |_| Vec::new(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_models::hifigan::config::Unit;
    use ambitus_recipe::recipe::Own;
    use std::fs;

    fn opened(dir: &Path, quality: Option<&str>) -> Result<ModelDir, RunError> {
        let mut own = Own::default();
        if let Some(quality) = quality {
            let keys = serde_json::json!({ "quality": quality });
            own.insert("piper".to_owned(), serde_json::from_value(keys).unwrap());
        }
        open(dir, OpenOptions { own, ..OpenOptions::default() })
    }

    #[test]
    fn a_voice_is_planned_by_its_quality_where_it_has_no_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"audio": {"sample_rate": 16000}, "espeak": {"voice": "de"}, "num_symbols": 130, "num_speakers": 3}"#;
        fs::write(dir.path().join(CONFIG), text).unwrap();
        assert!(recognises(dir.path()));
        let why = opened(dir.path(), None).err().unwrap().to_string();
        assert!(why.contains("model.ckpt: is missing") && why.contains("--quality medium"), "{why}");
        let file = read_config(dir.path()).unwrap();
        let high = of_quality(Quality::High, &file, None, dir.path()).unwrap();
        assert_eq!((high.symbols, high.speakers, high.speaker), (130, 3, 512));
        assert_eq!((high.spectra.rate, high.spectra.high, high.unit), (16_000, 8000.0, Unit::Double));
        // What Lightning leaves beside a checkpoint is not a run's.
        fs::write(dir.path().join("hparams.yaml"), "betas: !!python/tuple\n- 0.8\n").unwrap();
        assert!(opened(dir.path(), Some("high")).unwrap().weights.is_none());
        let scratch = || open(dir.path(), OpenOptions { from_scratch: true, ..OpenOptions::default() });
        let kept = |config: &Config| {
            let text = hyper::written(config, None).to_string();
            fs::write(dir.path().join(hyper::OPTIONS_FILE), text).unwrap();
        };
        assert_eq!(scratch().unwrap().model.rows().per_second, 16_000.0 / 256.0);
        kept(&Config { symbols: 77, ..Config::medium() });
        assert_eq!(scratch().unwrap().model.rows().per_second, 22_050.0 / 256.0);
        kept(&Config { segment: 0, ..Config::medium() });
        assert!(scratch().err().unwrap().to_string().contains("segment_size"));
        let why = opened(dir.path(), Some("huge")).err().unwrap().to_string();
        assert!(why.contains("quality") && why.contains("huge"), "{why}");
    }

    #[test]
    fn other_folders_are_none_of_a_voice() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!recognises(dir.path()));
        for text in [r#"{"model_type": "llama"}"#, "[]", "{", r#"{"num_symbols": 3}"#] {
            fs::write(dir.path().join(CONFIG), text).unwrap();
            assert!(!recognises(dir.path()), "{text}");
        }
    }
}
