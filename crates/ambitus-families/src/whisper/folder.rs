//! A model's files: configuration and weights, checked before a weight is read.

use super::listen::Listener;
use super::settings::Generation;
use crate::error::RunError;
use crate::generate::Generator;
use crate::hearing::{Asked, Ear, Hearing};
use crate::hugging_face::{CONFIG, check};
use crate::weights::{MAX_CONFIG_BYTES, Weights, open_frozen, read_text};
use ambitus_ir::StateDecl;
use ambitus_models::whisper::config::{Config, File};
use ambitus_recipe::recipe::short;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

const REMEDY: &str = "give the folder of a Whisper model as transformers writes it";

/// An opened folder.
pub(super) struct Folder {
    /// Where it is.
    pub dir: PathBuf,
    /// The model's shape.
    pub config: Config,
    /// What the folder says of writing.
    pub generation: Generation,
    weights: Weights,
}

impl Folder {
    /// Reads the configuration and the index of the weights.
    ///
    /// # Errors
    /// Names the file and the key.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        let file: File = read_json(&dir.join(CONFIG))?;
        let config = file.config();
        let config = config.map_err(|e| RunError::Model(format!("{}: {e}", dir.join(CONFIG).display())))?;
        let generation = Generation::read(dir, &config)?;
        Ok(Folder { dir: dir.to_owned(), config, generation, weights: open_frozen(dir, "", REMEDY)? })
    }
}

/// Reads a JSON file of the folder.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RunError> {
    let text = read_text(path, MAX_CONFIG_BYTES, REMEDY)?;
    let bad = |e: serde_json::Error| {
        RunError::Model(format!("{}: {}; {REMEDY}", path.display(), short(&e.to_string())))
    };
    serde_json::from_str(&text).map_err(bad)
}

impl Hearing for Folder {
    fn check(&self, states: &[StateDecl]) -> Result<(), RunError> {
        // A tied head may be there a second time.
        let beside = |name: &str| self.config.tied && name == "proj_out.weight";
        check(&self.weights, states, |_| false, beside, |_| Vec::new())
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn generator(&self) -> &dyn Generator {
        self
    }

    fn ear<'a>(&'a self, asked: &Asked<'a>) -> Result<Box<dyn Ear + 'a>, RunError> {
        Ok(Box::new(Listener::new(self, asked)?))
    }
}
