//! A Hugging Face folder of a `LlamaForCausalLM`.

use super::keys::{Keys, SECTION};
use crate::error::RunError;
use crate::family::{ModelDir, OpenOptions};
use crate::hugging_face::{self, CONFIG, KEPT};
use crate::weights::{MAX_CONFIG_BYTES, STAGING_BYTES, Weights, architectures, read_text};
use ambitus_ir::StateDecl;
use ambitus_models::orpheus::config::{Config, File};
use ambitus_models::orpheus::weights::{EMBEDDING, HEAD, ignored};
use ambitus_recipe::recipe::short;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its `architectures`, and `model_type`.
const ARCHITECTURE: &str = "LlamaForCausalLM";
const MODEL_TYPE: &str = "llama";
/// Returns whether the folder's `config.json` names `LlamaForCausalLM`, or no architecture at all, as those written by hand. If
/// it cannot be read, `open` says why.
pub(super) fn recognises(dir: &Path) -> bool {
    let named = architectures(dir);
    dir.join(CONFIG).is_file()
        && match named.is_empty() {
            true => may_be_a_llama(dir),
            false => named.iter().any(|name| name == ARCHITECTURE || name == MODEL_TYPE),
        }
}

/// Returns whether a configuration that names no model has a transformer's width, or cannot be read: opening it says what is wrong.
fn may_be_a_llama(dir: &Path) -> bool {
    let text = read_text(&dir.join(CONFIG), MAX_CONFIG_BYTES, "");
    let read = text.ok().and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    read.is_none_or(|config| config.get("hidden_size").is_some())
}

pub(super) fn open(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
    let keys = options.own(&SECTION)?;
    if options.dropout.is_some() {
        return Err(RunError::Usage(format!(
            "dropout: {} holds a Llama, which has none: leave it out",
            dir.display()
        )));
    }
    let path = dir.join(CONFIG);
    let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the checkpoint's own folder")?;
    let fail = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let file: File = serde_json::from_str(&text).map_err(|e| fail(short(&e.to_string())))?;
    let config = file.config().map_err(|why| fail(why.to_string()))?;
    let kept = KEPT.iter().filter(|name| dir.join(name).is_file());
    Ok(ModelDir {
        dir: dir.to_owned(),
        family: &super::Orpheus,
        opened: Box::new(Folder { dir: dir.to_owned(), config: config.clone(), keys }),
        model: Arc::new(config),
        wants_checkpointing: false,
        kept: [CONFIG].iter().chain(kept).map(|name| (*name).to_owned()).collect(),
        weights: if options.from_scratch { None } else { Some(hugging_face::open(dir, ignored)?) },
    })
}

/// An opened folder.
pub(super) struct Folder {
    pub dir: PathBuf,
    pub config: Config,
    pub keys: Keys,
}

/// Compares the files' index with the parameters that the model declares. The head of a tied model is the embedding: a copy
/// of it may be there.
pub(super) fn check(weights: &Weights, cfg: &Config, states: &[StateDecl]) -> Result<(), RunError> {
    let beside = |name: &str| ignored(name) || (cfg.tied && name == HEAD);
    hugging_face::check(
        weights,
        states,
        |_| false,
        beside,
        |all| {
            let mut more = Vec::new();
            if all.missing.contains(&HEAD) {
                more.push(format!(
                "without {HEAD} the head must be the embedding: if this checkpoint is tied, set \"tie_word_embeddings\": true"
            ));
            }
            let other_rows = all
                .misshapen
                .iter()
                .find(|(n, have, want)| *n == EMBEDDING && have.len() == 2 && have[1..] == want[1..]);
            if let Some((_, have, _)) = other_rows {
                let rows = have[0];
                more.push(format!(
                "the vocabulary does not fit: vocab_size is {}, the embedding has {rows} rows; they must be equal (Orpheus has \
                 156939 before fine-tuning and 156940 after)",
                cfg.vocab
            ));
            }
            more
        },
    )
}

/// Returns a tied model's own head, where the files hold one that is not the embedding.
pub(super) fn doubts(weights: &Weights, cfg: &Config) -> Result<Vec<String>, RunError> {
    let (true, Some(_), Some(_)) = (cfg.tied, weights.find(EMBEDDING), weights.find(HEAD)) else {
        return Ok(Vec::new());
    };
    if digest(weights, EMBEDDING)? == digest(weights, HEAD)? {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "{}: {HEAD} is not {EMBEDDING}, though config.json ties them (tie_word_embeddings): the embedding is used for both, as \
         transformers does; if the head was trained for itself, set it to false",
        weights.path.display()
    )])
}

/// Returns a hash of a tensor's shape and values, whatever type they are stored in.
fn digest(weights: &Weights, name: &str) -> Result<Option<blake3::Hash>, RunError> {
    let Some((file, name)) = weights.find(name) else { return Ok(None) };
    let mut hash = blake3::Hasher::new();
    hash.update(format!("{:?}", file.get(&name)?.shape()).as_bytes());
    let mut bytes = Vec::new();
    file.read_pieces(&name, &mut vec![0; STAGING_BYTES / 4], |_, piece| {
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|x| x.to_le_bytes()));
        hash.update(&bytes);
    })?;
    Ok(Some(hash.finalize()))
}
