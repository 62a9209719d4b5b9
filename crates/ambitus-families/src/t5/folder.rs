//! An encoder's files: the configuration and weights of a folder of its own or of a larger model's, checked before a weight is read.

use crate::error::RunError;
use crate::weights::{
    Differences, MAX_CONFIG_BYTES, STAGING_BYTES, Weights, load_frozen, open_frozen, read_text, say,
};
use ambitus_exec::executor::Executor;
use ambitus_ir::Session;
use ambitus_models::t5::config::{Config, File};
use ambitus_models::t5::model;
use ambitus_models::t5::weights::{EMBEDDINGS, PREFIX, ignored};
use ambitus_recipe::recipe::short;
use ambitus_store::TensorFile;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The configuration's file.
const CONFIG: &str = "config.json";
const REMEDY: &str = "give the folder of a T5 encoder, or of a model with one (`text_encoder`)";

/// An opened folder.
pub struct Folder {
    /// The encoder's shape.
    pub config: Config,
    /// The name of the embedding in the files.
    pub embedding: &'static str,
    weights: Weights,
}

/// A larger model's configuration.
#[derive(Deserialize)]
struct Composite {
    text_encoder: Option<File>,
}

impl Folder {
    /// Reads the configuration and compares the index of the weights with it.
    ///
    /// # Errors
    /// Names the file and the key, or every missing, extra and misshapen tensor.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        let (config, prefix) = read_config(dir)?;
        let weights = open_frozen(dir, prefix, REMEDY)?;
        let [first, second] = EMBEDDINGS;
        let embedding =
            if weights.find(first).is_none() && weights.find(second).is_some() { second } else { first };
        check(&config, embedding, &weights)?;
        Ok(Folder { config, embedding, weights })
    }

    /// Writes every state of a session, piece by piece.
    ///
    /// # Errors
    /// Unreadable files, values that are not finite.
    pub fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError> {
        load_frozen(&self.weights, exec)
    }

    /// Returns a hash of the configuration and of every tensor's values, whatever file and type they are stored in.
    ///
    /// # Errors
    /// Unreadable files.
    pub fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        let mut session = Session::default();
        model::encode(&mut session, &self.config, self.embedding, 1, false);
        let (mut scratch, mut bytes) = (vec![0; STAGING_BYTES / 4], Vec::new());
        for state in &session.states {
            let Some((file, name)) = self.weights.find(&state.name) else { continue };
            file.read_pieces(&name, &mut scratch, |_, piece| {
                bytes.clear();
                bytes.extend(piece.iter().flat_map(|x| x.to_le_bytes()));
                hash.update(&bytes);
            })?;
        }
        Ok(*hash.finalize().as_bytes())
    }
}

/// Returns the configuration and the files of an encoder's folder as those of a part of a larger model, before whose tensors' names
/// `prefix` stands: the embedding has its first name, and a whole T5's decoder keeps its own.
///
/// # Errors
/// Names the file and the key, or every tensor that does not fit.
pub fn as_part(dir: &Path, prefix: &str) -> Result<(Value, Vec<TensorFile>), RunError> {
    let Folder { weights, embedding, .. } = Folder::open(dir)?;
    let text = read_text(&dir.join(CONFIG), MAX_CONFIG_BYTES, REMEDY)?;
    let bad = |e: serde_json::Error| RunError::Model(format!("{}: {e}", dir.join(CONFIG).display()));
    let mut config: Value = serde_json::from_str(&text).map_err(bad)?;
    if let Some(part) = config.get_mut("text_encoder").map(Value::take) {
        config = part;
    }
    let [first, _] = EMBEDDINGS;
    let name = |name: &str| {
        let own = name.strip_prefix(&*weights.prefix)?;
        match own {
            own if own == embedding => Some(format!("{prefix}{first}")),
            own if ignored(own) => None,
            own => Some(format!("{prefix}{own}")),
        }
    };
    let files = weights.files.into_iter().map(|file| file.renamed(|n| name(n).into_iter().collect()));
    Ok((config, files.collect()))
}

/// Returns the encoder's shape, and what stands before its tensors' names.
fn read_config(dir: &Path) -> Result<(Config, &'static str), RunError> {
    let path = dir.join(CONFIG);
    let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let text = read_text(&path, MAX_CONFIG_BYTES, REMEDY)?;
    let json = |e: serde_json::Error| bad(format!("{}; {REMEDY}", short(&e.to_string())));
    let composite: Composite = serde_json::from_str(&text).map_err(json)?;
    let (file, section, prefix) = match composite.text_encoder {
        Some(file) => (file, "text_encoder.", PREFIX),
        None => (serde_json::from_str(&text).map_err(json)?, "", ""),
    };
    let config = file.config().map_err(|e| bad(format!("{section}{e}")))?;
    Ok((config, prefix))
}

/// Compares the files' index with what the encoder declares.
fn check(config: &Config, embedding: &str, weights: &Weights) -> Result<(), RunError> {
    let mut session = Session::default();
    model::encode(&mut session, config, embedding, 1, false);
    let all = Differences::new(weights, &session.states, |_| false, ignored);
    let shapes = all.misshapen.into_iter();
    let shapes =
        shapes.map(|(name, have, want)| format!("{name} is {have:?}, the configuration says {want:?}"));
    let refused = weights.files.iter().flat_map(|file| file.refused());
    let refused =
        refused.filter(|(name, _)| name.strip_prefix(&*weights.prefix).is_some_and(|n| !ignored(n)));
    let refused: Vec<String> = refused.map(|(name, why)| format!("{name} ({why})")).collect();
    let mut problems = Vec::new();
    say(&mut problems, "tensors missing", all.missing.into_iter().map(str::to_owned).collect());
    say(&mut problems, "tensors that the configuration does not have", all.extra);
    say(&mut problems, "tensors of another shape", shapes.collect());
    say(&mut problems, "entries that were not read", refused);
    if problems.is_empty() {
        return Ok(());
    }
    let of =
        if weights.prefix.is_empty() { String::new() } else { format!(" (tensors `{}*`)", weights.prefix) };
    Err(RunError::Model(format!(
        "{}: does not fit {CONFIG}{of}:\n  {}\ncheck that {CONFIG} belongs to these weights",
        weights.path.display(),
        problems.join("\n  ")
    )))
}
