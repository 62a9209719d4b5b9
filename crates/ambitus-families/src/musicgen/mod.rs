//! MusicGen: a folder of `MusicgenForConditionalGeneration`, or audiocraft's; clips of codes, and of states, which T5 makes of texts.

mod clips;
mod converted;
mod export;
mod folder;
mod generate;
mod import;
mod keys;
mod package;
mod prepare;
mod recorded;
mod speak;
#[cfg(test)]
mod tests;
mod texts;

use crate::clips::Clips;
use crate::error::RunError;
use crate::family::{ExportForm, Family, KeptFile, ModelDir, OpenOptions, Opened, of_model};
use crate::generate::Generator;
use crate::hugging_face::{self, CONFIG, Frozen};
use crate::prepare::Preparer;
use crate::recorded::Spare;
use crate::speech::Speaker;
use crate::tokens::{Reader, Reading, Tokens};
use crate::weights::Weights;
use ambitus_data::{ClipIndex, Unigram};
use ambitus_ir::StateDecl;
use ambitus_models::Model;
use ambitus_models::musicgen::batch::steps;
use ambitus_models::musicgen::config::Config;
use ambitus_models::musicgen::weights::frozen;
use ambitus_recipe::import::Trainer;
use ambitus_recipe::recipe::{Defaults, Schedule, ScheduleKind, Section};
use folder::Folder;
use keys::Keys;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// MusicGen.
pub struct Musicgen;

impl Musicgen {
    /// Returns a folder of this shape without files: for plans.
    pub fn shaped(config: Config) -> ModelDir {
        let dir = PathBuf::new();
        let opened = Folder { dir, config: config.clone(), keys: Keys::default(), packaged: false };
        ModelDir::shaped(&Musicgen, Arc::new(config), Box::new(opened))
    }
}

impl Family for Musicgen {
    fn name(&self) -> &'static str {
        "MusicGen"
    }

    fn files(&self) -> &'static str {
        "config.json and model.safetensors, or state_dict.bin"
    }

    fn section(&self) -> &'static Section {
        &keys::SECTION
    }

    fn trainers(&self) -> &'static [&'static Trainer] {
        &[&import::TRAINER]
    }

    fn recognises(&self, dir: &Path) -> bool {
        folder::recognises(dir)
    }

    fn open(&self, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        folder::open(dir, options)
    }

    /// Returns audiocraft's settings of its published training (`config/solver/musicgen/musicgen_base_32khz.yaml` and the grids of medium
    /// and large): AdamW with its weight decay and betas, a cosine. Its 4,000 updates of warm-up are of a million, and its batch of 192 is
    /// for 32 GPUs: here 5 % and 8 clips.
    fn defaults(&self, model: &dyn Model) -> Defaults {
        Defaults {
            learning_rate: 1e-4,
            weight_decay: 0.1,
            betas: [0.9, 0.95],
            clips: 8,
            warmup: None,
            schedule: Schedule::of(ScheduleKind::Cosine),
            ..of_model(model)
        }
    }

    /// Returns the names of `MusicgenForConditionalGeneration`, and what Hugging Face's readers ask for; or audiocraft's checkpoint.
    fn export(&self) -> ExportForm {
        ExportForm {
            metadata: &[("format", "pt")],
            config: Some(CONFIG),
            layouts: &export::LAYOUTS,
            plain: Some("transformers"),
            ..ExportForm::default()
        }
    }
}

impl Opened for Folder {
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
        folder::check(weights, self.packaged, states)
    }

    fn frozen(&self) -> Result<Option<Frozen>, RunError> {
        match (self.has_parts(), self.packaged) {
            (false, _) => Ok(None),
            (true, false) => {
                Ok(Some(Frozen { weights: hugging_face::open(&self.dir, frozen)?, holds: frozen }))
            }
            (true, true) => Ok(Some(converted::frozen(self)?)),
        }
    }

    fn kept(&self) -> Result<Vec<(String, KeptFile)>, RunError> {
        match self.packaged {
            true => converted::kept(self),
            false => Ok(Vec::new()),
        }
    }

    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError> {
        Ok(Box::new(prepare::Music { folder: self }))
    }

    fn clips(&self, index: Arc<ClipIndex>, chosen: &[usize], seed: u64) -> Box<dyn Clips> {
        let of = (self.config.clone(), self.keys.clone());
        Box::new(clips::MusicClips::new(index, chosen, seed, of))
    }

    fn recorded(&self, file: &Path, spare: Spare) -> Result<Box<dyn Clips>, RunError> {
        Ok(Box::new(recorded::read(file, self, spare)?))
    }

    fn rows_of(&self, seconds: f64) -> u32 {
        steps((seconds * self.config.frame_rate).floor() as usize) as u32
    }

    fn text_assumed(&self, _counted: bool) -> &'static str {
        "texts of up to 96 tokens beside them"
    }

    fn assumes_clips(&self) -> bool {
        true
    }

    fn reader(&self, reading: &Reading) -> Result<Reader<'_>, RunError> {
        reading.has(Musicgen.name(), false, false)?;
        let read = Unigram::read(&self.text_encoder()?, u64::MAX);
        let tokenizer = read.map_err(|e| RunError::Model(e.to_string()))?;
        Ok(Box::new(move |text| {
            let ids = tokenizer.encode(text)?;
            let pieces = ids.iter().map(|id| tokenizer.piece(*id).unwrap_or_default()).collect();
            Ok(Tokens { ids, pieces })
        }))
    }

    fn speaker(&self) -> Option<&dyn Speaker> {
        Some(self)
    }

    fn generator(&self) -> Option<&dyn Generator> {
        Some(self)
    }
}
