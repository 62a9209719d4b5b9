//! A MusicGen's folder: transformers' `config.json` beside tensors, or audiocraft's checkpoint that holds both.

use super::keys::{Keys, SECTION};
use super::package;
use crate::encodec;
use crate::error::RunError;
use crate::family::{ModelDir, OpenOptions};
use crate::hugging_face::{self, CONFIG, KEPT, compare};
use crate::weights::{FROZEN_FILES, INDEX, MAX_CONFIG_BYTES, SINGLE, Weights, architectures, read_text};
use ambitus_ir::StateDecl;
use ambitus_models::musicgen::config::{Config, File};
use ambitus_models::musicgen::weights::{beside, frozen, names};
use ambitus_recipe::recipe::short;
use ambitus_store::TensorFile;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its `architectures`, and `model_type`.
const NAMES: [&str; 2] = ["MusicgenForConditionalGeneration", "musicgen"];
/// Those of the model that hears a melody.
const MELODY: [&str; 2] = ["MusicgenMelodyForConditionalGeneration", "musicgen_melody"];
/// Audiocraft's checkpoint, its section of tensors, and the text in it that is the configuration.
pub(super) const CHECKPOINT: &str = "state_dict.bin";
pub(super) const SECTION_OF_TENSORS: &str = "best_state";
pub(super) const YAML: &str = "xp.cfg";
/// Folders beside audiocraft's checkpoint: of the text encoder, which it has not, and of a codec that is not in
/// `compression_state_dict.bin`, whose name alone may be there.
const TEXT: &str = "t5";
const CODEC: &str = "encodec";

/// Returns why a melody is not read.
pub(super) fn no_melody() -> &'static str {
    "melody models are not supported: they read a melody beside the text; use small, medium, large or a stereo one"
}

/// Returns whether the folder's `config.json` names the model, or there is none and audiocraft's checkpoint is.
pub(super) fn recognises(dir: &Path) -> bool {
    let named = architectures(dir);
    let is = |name: &String| NAMES.contains(&&**name) || MELODY.contains(&&**name);
    named.iter().any(is) || (named.is_empty() && dir.join(CHECKPOINT).is_file())
}

/// An opened folder.
pub(super) struct Folder {
    pub dir: PathBuf,
    pub config: Config,
    pub keys: Keys,
    /// It is audiocraft's.
    pub packaged: bool,
}

impl Folder {
    /// Returns the folder of the text encoder.
    ///
    /// # Errors
    /// Audiocraft's without one.
    pub fn text_encoder(&self) -> Result<PathBuf, RunError> {
        if !self.packaged {
            return Ok(self.dir.clone());
        }
        let dir = self.dir.join(TEXT);
        if dir.is_dir() {
            return Ok(dir);
        }
        Err(RunError::Model(format!(
            "{}: is missing; a text needs the encoder that the model was trained with (t5-base): put its config.json, \
             model.safetensors and tokenizer.json there",
            dir.display()
        )))
    }

    /// Returns the folder of the codec.
    pub fn codec(&self) -> PathBuf {
        let own = self.dir.join(CODEC);
        if self.packaged && own.is_dir() { own } else { self.dir.clone() }
    }

    /// Returns whether there are weights, among them those of text encoder and codec.
    pub fn has_parts(&self) -> bool {
        let files = [SINGLE, INDEX, FROZEN_FILES[1]];
        let there =
            |dir: &Path, others: &[&str]| files.iter().chain(others).any(|name| dir.join(name).is_file());
        match self.packaged {
            true => there(&self.dir.join(TEXT), &[]) && there(&self.codec(), &[encodec::CHECKPOINT]),
            false => there(&self.dir, &[]),
        }
    }
}

pub(super) fn open(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
    let keys: Keys = options.own::<Keys>(&SECTION)?.checked().map_err(RunError::Usage)?;
    let packaged = architectures(dir).is_empty();
    let (mut config, weights) = match packaged {
        true => of_audiocraft(dir)?,
        false => {
            let config = of_transformers(dir)?;
            let weights = if options.from_scratch { None } else { Some(hugging_face::open(dir, frozen)?) };
            (config, weights)
        }
    };
    if let Some(p) = options.dropout {
        config.dropout = p;
    }
    let kept = [CONFIG].iter().chain(&KEPT).filter(|name| dir.join(name).is_file());
    Ok(ModelDir {
        dir: dir.to_owned(),
        family: &super::Musicgen,
        opened: Box::new(Folder { dir: dir.to_owned(), config: config.clone(), keys, packaged }),
        model: Arc::new(config),
        wants_checkpointing: false,
        kept: kept.map(|name| (*name).to_owned()).collect(),
        weights: weights.filter(|_| !options.from_scratch),
    })
}

/// Reads transformers' configuration.
pub(super) fn of_transformers(dir: &Path) -> Result<Config, RunError> {
    let path = dir.join(CONFIG);
    let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the checkpoint's own folder")?;
    let fail = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    if let Some(name) = architectures(dir).iter().find(|name| MELODY.contains(&&***name)) {
        return Err(fail(format!("is of {name}; {}", no_melody())));
    }
    let file: File = serde_json::from_str(&text).map_err(|e| fail(short(&e.to_string())))?;
    file.config().map_err(|why| fail(why.to_string()))
}

/// Reads audiocraft's checkpoint, whose tensors get the model's names.
fn of_audiocraft(dir: &Path) -> Result<(Config, Option<Weights>), RunError> {
    let path = dir.join(CHECKPOINT);
    let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let file = TensorFile::open(&path)?;
    let yaml = file.metadata().get(YAML).cloned();
    let yaml = yaml.ok_or_else(|| bad(format!("has no `{YAML}`; is it audiocraft's export of a model?")))?;
    let (config, text) = package::config(&yaml).map_err(|why| bad(format!("{YAML}: {why}")))?;
    if let Some((name, why)) = file.refused().first() {
        return Err(bad(format!("{name} was not read: {why}")));
    }
    let file = file.renamed(|name| {
        match name.strip_prefix(SECTION_OF_TENSORS).and_then(|name| name.strip_prefix('.')) {
            Some(name) => names(name, &text),
            None => Vec::new(),
        }
    });
    let weights = Weights { files: vec![file], prefix: String::new(), path: path.clone() };
    // The name of a T5 says nothing of its width for sure: the projection does.
    match weights.shape_of("enc_to_dec_proj.weight").as_deref() {
        Some([_, width]) if (1..=1 << 16).contains(width) => {
            Ok((Config { text_dim: *width, ..config }, Some(weights)))
        }
        _ => {
            let tensor = format!("condition_provider.conditioners.{text}.output_proj.weight");
            Err(bad(format!(
                "{SECTION_OF_TENSORS}.{tensor}: is missing, or no matrix; fetch the checkpoint again"
            )))
        }
    }
}

/// Compares the files' index with the parameters that the decoder declares. Text encoder and codec stand beside it in transformers' files.
pub(super) fn check(weights: &Weights, packaged: bool, states: &[StateDecl]) -> Result<(), RunError> {
    let config = if packaged { "its configuration, `xp.cfg`" } else { CONFIG };
    compare(config, weights, states, |_| false, |name| !packaged && beside(name), |_| Vec::new())
}
