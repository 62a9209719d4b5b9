//! Parler-TTS: a folder of `ParlerTTSForConditionalGeneration`; clips of codes, which its own codec makes of audio, of prompts, and of
//! states, which its own text encoder makes of descriptions.

mod clips;
mod folder;
mod generate;
mod import;
mod keys;
mod prepare;
mod recorded;
mod speak;
#[cfg(test)]
mod tests;

use crate::clips::Clips;
use crate::error::RunError;
use crate::family::{ExportForm, Family, ModelDir, OpenOptions, Opened, of_model};
use crate::generate::Generator;
use crate::hugging_face::{self, CONFIG, Frozen};
use crate::prepare::Preparer;
use crate::recorded::Spare;
use crate::speech::Speaker;
use crate::tokens::{Reader, Reading};
use crate::weights::Weights;
use ambitus_data::ClipIndex;
use ambitus_ir::StateDecl;
use ambitus_models::Model;
use ambitus_models::parler::config::Config;
use ambitus_models::parler::weights::{POSITIONS, frozen};
use ambitus_recipe::import::Trainer;
use ambitus_recipe::recipe::{Defaults, Schedule, ScheduleKind, Section};
use clips::CodeClips;
use folder::Folder;
use keys::Keys;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Parler-TTS.
pub struct Parler;

/// Ids of prompts in a second of audio: three words, of which some are two ids.
const TEXT_PER_SECOND: f64 = 4.0;

impl Parler {
    /// Returns a folder of this shape without files: for plans.
    pub fn shaped(config: Config) -> ModelDir {
        let opened = Folder { dir: PathBuf::new(), config: config.clone(), keys: Keys::default() };
        ModelDir::shaped(&Parler, Arc::new(config), Box::new(opened))
    }
}

impl Family for Parler {
    fn name(&self) -> &'static str {
        "Parler-TTS"
    }

    fn files(&self) -> &'static str {
        "config.json and model.safetensors"
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

    /// Returns the settings of the project's published fine-tuning (`training/README.md` and its notebook): AdamW with weight decay and a
    /// smaller β2, a constant rate after 50 updates of warm-up, clips of two micro-batches by eighteen.
    fn defaults(&self, model: &dyn Model) -> Defaults {
        Defaults {
            learning_rate: 1e-4,
            weight_decay: 0.01,
            betas: [0.9, 0.99],
            clips: 36,
            warmup: Some(50),
            schedule: Schedule::of(ScheduleKind::Constant),
            ..of_model(model)
        }
    }

    /// Returns the names of `ParlerTTSForConditionalGeneration`, and what Hugging Face's readers ask for.
    fn export(&self) -> ExportForm {
        ExportForm {
            metadata: &[("format", "pt")],
            exact: &POSITIONS,
            config: Some(CONFIG),
            ..ExportForm::default()
        }
    }
}

impl Opened for Folder {
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
        folder::check(weights, &self.config, states)
    }

    fn frozen(&self) -> Result<Option<Frozen>, RunError> {
        Ok(Some(Frozen { weights: hugging_face::open(&self.dir, frozen)?, holds: frozen }))
    }

    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError> {
        Ok(Box::new(prepare::Codes { dir: &self.dir, config: &self.config, keys: &self.keys }))
    }

    fn clips(&self, index: Arc<ClipIndex>, chosen: &[usize], seed: u64) -> Box<dyn Clips> {
        Box::new(CodeClips::new(index, chosen, seed, (self.config.clone(), &self.keys)))
    }

    fn recorded(&self, file: &Path, spare: Spare) -> Result<Box<dyn Clips>, RunError> {
        Ok(Box::new(recorded::read(file, &self.dir, &self.config, spare)?))
    }

    fn rows_of(&self, seconds: f64) -> u32 {
        let frames = (seconds * self.config.frame_rate).floor() as usize;
        self.config.rows_of((seconds * TEXT_PER_SECOND).ceil() as usize, frames) as u32
    }

    fn text_assumed(&self, counted: bool) -> &'static str {
        if counted { "prompts are part of the rows" } else { "with 4 tokens of prompt a second" }
    }

    fn assumes_clips(&self) -> bool {
        true
    }

    fn reader(&self, reading: &Reading) -> Result<Reader<'_>, RunError> {
        reading.has(Parler.name(), false, false)?;
        speak::reader(&self.dir)
    }

    fn speaker(&self) -> Option<&dyn Speaker> {
        Some(self)
    }

    fn generator(&self) -> Option<&dyn Generator> {
        Some(self)
    }
}
