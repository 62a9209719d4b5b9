//! Whisper, from folders as transformers writes them.

mod align;
mod decoding;
mod folder;
mod generate;
mod listen;
mod looks;
mod mel;
mod rules;
mod settings;
mod sound;
mod tokens;
mod words;
mod write;

use crate::error::RunError;
use crate::hearing::{Hearing, Kind};
use crate::weights::architectures;
use folder::Folder;
use std::path::Path;

/// The kind.
pub struct Whisper;

impl Kind for Whisper {
    fn name(&self) -> &'static str {
        "Whisper"
    }

    fn files(&self) -> &'static str {
        "config.json of a Whisper model and model.safetensors"
    }

    fn recognises(&self, dir: &Path) -> bool {
        let named = architectures(dir);
        named.iter().any(|name| name == "WhisperForConditionalGeneration" || name == "whisper")
    }

    fn open(&self, dir: &Path) -> Result<Box<dyn Hearing>, RunError> {
        Ok(Box::new(Folder::open(dir)?))
    }
}
