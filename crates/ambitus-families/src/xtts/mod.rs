//! XTTS v2: a folder as AllTalk fine-tunes it; clips of codes, which a DVAE makes of audio, of texts, and of pieces of themselves that
//! say whose voice it is.

mod clips;
pub mod conditioning;
mod export;
mod folder;
mod generate;
mod import;
mod keys;
mod prepare;
mod recorded;
mod speak;
#[cfg(test)]
mod tests;
mod text;
pub mod vocoder;

use crate::clips::Clips;
use crate::error::RunError;
use crate::family::{ExportForm, Family, ModelDir, OpenOptions, Opened, of_model};
use crate::generate::Generator;
use crate::hugging_face::Frozen;
use crate::prepare::Preparer;
use crate::recorded::Spare;
use crate::speech::Speaker;
use crate::tokens::{Reader, Reading};
use crate::weights::Weights;
use ambitus_data::ClipIndex;
use ambitus_data::check::{Advised, Amount};
use ambitus_ir::StateDecl;
use ambitus_models::Model;
use ambitus_models::xtts::config::{Config, RATE, SAMPLES_PER_CODE};
use ambitus_models::xtts::weights::{BY_COLUMNS, NO_DECAY};
use ambitus_recipe::import::Trainer;
use ambitus_recipe::recipe::{Defaults, Schedule, ScheduleKind, Section};
use folder::Folder;
use std::path::Path;
use std::sync::Arc;

/// XTTS v2.
pub struct Xtts;

/// Ids of text in a second of audio: English of 15 letters, two a piece.
const TEXT_PER_SECOND: f64 = 8.0;

impl Xtts {
    /// Returns a folder of this shape without files: for plans.
    pub fn shaped(config: Config) -> ModelDir {
        let opened = Folder::shaped(config.clone());
        ModelDir::shaped(&Xtts, Arc::new(config), Box::new(opened))
    }
}

impl Family for Xtts {
    fn name(&self) -> &'static str {
        "XTTS"
    }

    fn files(&self) -> &'static str {
        "config.json, vocab.json and model.pth"
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

    /// Returns AllTalk's settings and those of the project's recipe (`recipes/ljspeech/xtts_v2/train_gpt_xtts.py`), whose milestones are
    /// far beyond a fine-tuning: a constant rate.
    fn defaults(&self, model: &dyn Model) -> Defaults {
        Defaults {
            learning_rate: 5e-6,
            weight_decay: 0.01,
            no_decay: NO_DECAY.map(str::to_owned).into(),
            betas: [0.9, 0.96],
            clips: 4,
            schedule: Schedule::of(ScheduleKind::Constant),
            ..of_model(model)
        }
    }
    /// Returns what the help of AllTalk's page for fine-tuning says (`finetune.py`): 2 minutes at least, from 5 on better.
    fn advised(&self) -> Option<Advised> {
        let [least, better] = [2.0, 5.0].map(Amount::Minutes);
        Some(Advised { by: "AllTalk's help", least: Some(least), better })
    }

    fn export(&self) -> ExportForm {
        ExportForm { layouts: &export::LAYOUTS, by_columns: &BY_COLUMNS, ..ExportForm::default() }
    }
}

impl Opened for Folder {
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
        folder::check(weights, states)
    }

    fn doubts(&self, _weights: &Weights) -> Result<Vec<String>, RunError> {
        folder::doubts(&self.dir, &self.config)
    }

    fn frozen(&self) -> Result<Option<Frozen>, RunError> {
        if !self.dir.join(export::MODEL_FILE).is_file() {
            return Ok(None);
        }
        let weights = folder::weights(&self.dir)?;
        let any = weights.names().any(folder::frozen);
        Ok(any.then_some(Frozen { weights, holds: folder::frozen }))
    }

    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError> {
        Ok(Box::new(prepare::Pieces { dir: &self.dir, config: &self.config, keys: &self.keys }))
    }

    fn clips(&self, index: Arc<ClipIndex>, chosen: &[usize], seed: u64) -> Box<dyn Clips> {
        let of = (&*self.dir, self.config.clone(), self.keys.mask_prompt);
        Box::new(clips::PieceClips::new(index, chosen, seed, of))
    }

    fn recorded(&self, file: &Path, _spare: Spare) -> Result<Box<dyn Clips>, RunError> {
        Ok(Box::new(recorded::read(file, &self.config)?))
    }

    fn rows_of(&self, seconds: f64) -> u32 {
        let codes = (seconds * f64::from(RATE) / SAMPLES_PER_CODE as f64).ceil() as usize;
        self.config.rows_of((seconds * TEXT_PER_SECOND).ceil() as usize, codes) as u32
    }

    fn text_assumed(&self, counted: bool) -> &'static str {
        if counted { "texts are part of the rows" } else { "with 8 ids of text a second" }
    }

    /// As long as the project's trainer takes clips (`max_wav_length` of its recipe), and as there are code positions.
    fn longest_cut(&self) -> Option<f64> {
        let codes = self.config.code_positions.saturating_sub(3) * SAMPLES_PER_CODE;
        Some(codes.min(255_995) as f64 / f64::from(RATE))
    }

    fn assumes_clips(&self) -> bool {
        true
    }

    fn reader(&self, reading: &Reading) -> Result<Reader<'_>, RunError> {
        reading.has(Xtts.name(), true, false)?;
        let texts = self.texts(u64::MAX, reading.cleaned)?;
        texts.reader(self.language(reading.language.as_deref())?)
    }

    fn speaker(&self) -> Option<&dyn Speaker> {
        Some(self)
    }

    fn generator(&self) -> Option<&dyn Generator> {
        Some(self)
    }
}
