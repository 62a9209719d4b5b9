//! A codec's folder: `config.json` and its weights, checked before a weight is read.

use crate::codec::tensors::Tensors;
use crate::error::RunError;
use crate::weights::{MAX_CONFIG_BYTES, Weights, frozen_file, read_text};
use ambitus_models::snac::config::{Config, File};
use ambitus_models::snac::weights::tensors;
use ambitus_recipe::recipe::short;
use ambitus_store::{TensorFile, open_file};
use std::path::Path;

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
    /// Names the file and the key, or every missing, extra and misshapen tensor.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        let config = read_config(dir)?;
        let path = frozen_file(dir, "put the codec's files there (hubertsiuzdak/snac_24khz)")?;
        let files = vec![TensorFile::open(&path)?];
        let weights = Weights { files, prefix: String::new(), path };
        let file = weights.path.display().to_string();
        let found = Tensors::find(weights, tensors(&config), str::to_owned, "the configuration");
        let tensors = found.map_err(|problems| {
            RunError::Model(format!(
                "{file}: does not fit config.json:\n  {}\ncheck that config.json belongs to these weights",
                problems.join("\n  ")
            ))
        })?;
        Ok(Folder { config, tensors })
    }

    /// Returns a hash of the configuration and of the file of weights.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        let path = &*self.tensors.weights().path;
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        let read = hash.update_reader(open_file(path)?.0).map(drop);
        read.map_err(|e| RunError::io(path, "cannot read", e))?;
        Ok(*hash.finalize().as_bytes())
    }
}

/// Returns whether the folder has a SNAC codec's configuration, right or wrong.
pub fn is_snac(dir: &Path) -> bool {
    let text = read_text(&dir.join("config.json"), MAX_CONFIG_BYTES, "");
    let config = text.ok().and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    config.is_some_and(|config| config.get("vq_strides").is_some())
}

fn read_config(dir: &Path) -> Result<Config, RunError> {
    let path = dir.join("config.json");
    let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let remedy = "give a folder with a SNAC codec's config.json and weights";
    let text = read_text(&path, MAX_CONFIG_BYTES, remedy)?;
    let file: File = serde_json::from_str(&text)
        .map_err(|e| bad(format!("{}; this is not a SNAC codec's", short(&e.to_string()))))?;
    file.config().map_err(|e| bad(e.to_string()))
}
