//! A folder of `ParlerTTSForConditionalGeneration`: decoder, text encoder and codec in one checkpoint.

use super::keys::{Keys, Normaliser, SECTION};
use crate::codec::{self, Codebook, Codec, Spec};
use crate::error::RunError;
use crate::family::{ModelDir, OpenOptions};
use crate::hugging_face::{self, CONFIG, KEPT};
use crate::weights::{FROZEN_FILES, INDEX, MAX_CONFIG_BYTES, SINGLE, Weights, architectures, read_text};
use ambitus_data::{DataError, Unigram};
use ambitus_ir::StateDecl;
use ambitus_models::parler::config::{Config, File};
use ambitus_models::parler::weights::{frozen, made};
use ambitus_recipe::recipe::short;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its `architectures`, and `model_type`.
const ARCHITECTURE: &str = "ParlerTTSForConditionalGeneration";
const MODEL_TYPE: &str = "parler_tts";

/// Returns whether the folder's `config.json` names the model.
pub(super) fn recognises(dir: &Path) -> bool {
    architectures(dir).iter().any(|name| name == ARCHITECTURE || name == MODEL_TYPE)
}

/// An opened folder.
pub(super) struct Folder {
    pub dir: PathBuf,
    pub config: Config,
    pub keys: Keys,
}

impl Folder {
    /// Returns whether there are weights, among them those of text encoder and codec.
    pub fn has_parts(&self) -> bool {
        has_parts(&self.dir)
    }
}

/// Returns whether a folder has weights, among them those of text encoder and codec.
pub(super) fn has_parts(dir: &Path) -> bool {
    [SINGLE, INDEX, FROZEN_FILES[1]].iter().any(|name| dir.join(name).is_file())
}

/// Reads a folder's tokenizer in at most `room` bytes.
///
/// # Errors
/// As [`Unigram::read`].
pub(super) fn tokenizer(dir: &Path, room: u64) -> Result<Unigram, DataError> {
    Unigram::read(dir, room).map_err(|e| match e {
        DataError::File { path, reason } => {
            let one = "one tokenizer reads descriptions and prompts here, T5's: a model whose prompts have their own (Mini v1.1, \
                       Multilingual) is not supported";
            DataError::File { path, reason: format!("{reason}; {one}") }
        }
        e => e,
    })
}

/// Opens a folder's codec and compares it with the decoder.
pub(super) fn codec(dir: &Path, config: &Config, threads: usize) -> Result<Box<dyn Codec>, RunError> {
    let codec = codec::open(crate::CODECS, dir, threads)?;
    let (Config { codebooks, eos, .. }, Spec { codebooks: books, .. }) = (config, codec.spec());
    let fits = |book: &Codebook| book.per_frame == 1 && book.size <= *eos as usize;
    if books.len() == *codebooks && books.iter().all(fits) {
        return Ok(codec);
    }
    let of: Vec<String> = books.iter().map(|b| format!("{} of {}", b.per_frame, b.size)).collect();
    Err(RunError::Model(format!(
        "{}: its codec has frames with codes {}, the decoder reads {codebooks} of at most {eos} each: put the model's own codec there",
        dir.display(),
        of.join(", ")
    )))
}

pub(super) fn open(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
    let keys = options.own::<Keys>(&SECTION)?.checked().map_err(RunError::Usage)?;
    if keys.script_clips.is_some() && keys.normaliser != Normaliser::Script {
        let why = "parler.script_clips: says something with `normaliser: script` alone; add that, or leave this out";
        return Err(RunError::Usage(why.to_owned()));
    }
    let path = dir.join(CONFIG);
    let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the checkpoint's own folder")?;
    let fail = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let file: File = serde_json::from_str(&text).map_err(|e| fail(short(&e.to_string())))?;
    let mut config = file.config().map_err(|why| fail(why.to_string()))?;
    if let Some(p) = options.dropout {
        config.dropout = p;
    }
    let kept = KEPT.iter().filter(|name| dir.join(name).is_file());
    Ok(ModelDir {
        dir: dir.to_owned(),
        family: &super::Parler,
        opened: Box::new(Folder { dir: dir.to_owned(), config: config.clone(), keys }),
        model: Arc::new(config),
        wants_checkpointing: false,
        kept: [CONFIG].iter().chain(kept).map(|name| (*name).to_owned()).collect(),
        weights: if options.from_scratch { None } else { Some(hugging_face::open(dir, frozen)?) },
    })
}

/// Compares the files' index with the parameters that the decoder declares. Text encoder and codec stand beside it, and tables of
/// positions need not be there.
pub(super) fn check(weights: &Weights, cfg: &Config, states: &[StateDecl]) -> Result<(), RunError> {
    hugging_face::check(weights, states, |name| made(name, cfg).is_some(), frozen, |_| Vec::new())
}
