//! Piper: a folder with the checkpoint of a trainer. Its two players train on clips of phonemes, spectrograms and samples.

mod clips;
mod export;
mod folder;
mod generate;
mod hyper;
mod import;
mod inference;
mod keys;
pub mod onnx;
mod prepare;
mod recorded;
mod speak;
mod start;
#[cfg(test)]
mod tests;
pub mod text;
mod voice;

use crate::clips::Clips;
use crate::error::RunError;
use crate::family::{ExportForm, Family, KeptFile, ModelDir, OpenOptions, Opened, of_model};
use crate::generate::Generator;
use crate::hugging_face::CONFIG;
use crate::prepare::Preparer;
use crate::recorded::Spare;
use crate::speech::Speaker;
use crate::tokens::{Reader, Reading};
use crate::weights::Weights;
use ambitus_data::ClipIndex;
use ambitus_data::check::{Advised, Amount};
use ambitus_ir::StateDecl;
use ambitus_models::Model;
use ambitus_models::piper::config::Config;
use ambitus_models::piper::weights::OF_NO_FILE;
use ambitus_recipe::import::Trainer;
use ambitus_recipe::recipe::{Defaults, Own, Player, Schedule, ScheduleKind, Section};
use folder::Folder;
use std::path::Path;
use std::sync::Arc;

/// Piper.
pub struct Piper;

impl Piper {
    /// Returns a folder of this shape without files: for plans.
    pub fn shaped(config: Config) -> ModelDir {
        let opened = Folder::shaped(config.clone());
        ModelDir::shaped(&Piper, Arc::new(config), Box::new(opened))
    }
}

impl Family for Piper {
    fn name(&self) -> &'static str {
        "Piper"
    }

    fn files(&self) -> &'static str {
        "config.json and model.ckpt"
    }

    fn section(&self) -> &'static Section {
        &keys::SECTION
    }

    fn trainers(&self) -> &'static [&'static Trainer] {
        &[&import::TRAINER, &import::OLDER]
    }

    fn recognises(&self, dir: &Path) -> bool {
        folder::recognises(dir)
    }

    fn open(&self, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        folder::open(dir, options)
    }

    fn go_on(&self, own: &mut Own) {
        if let Some(keys) = own.get_mut(keys::SECTION.name) {
            keys.remove(keys::WARM_START);
        }
    }

    /// Returns the trainer's settings (piper1-gpl @b275826, `VitsModel`), which never steps its schedules: constant rates.
    fn defaults(&self, model: &dyn Model) -> Defaults {
        Defaults {
            learning_rate: 2e-4,
            weight_decay: 0.01,
            betas: [0.8, 0.99],
            eps: 1e-9,
            // Its trainers do not clip.
            clip: 1e9,
            players: vec![(
                "d",
                Player { learning_rate: Some(1e-4), betas: Some([0.5, 0.9]), ..Player::default() },
            )],
            clips: 32,
            schedule: Schedule::of(ScheduleKind::Constant),
            ..of_model(model)
        }
    }
    /// Returns what guides of others to fine-tuning took; the project names no amount.
    fn advised(&self) -> Option<Advised> {
        Some(Advised { by: "a guide to fine-tuning Piper", least: None, better: Amount::Clips(1300) })
    }

    fn export(&self) -> ExportForm {
        ExportForm {
            layouts: &export::LAYOUTS,
            made: &export::MADE,
            left_out: &OF_NO_FILE,
            ..ExportForm::default()
        }
    }
}

impl Opened for Folder {
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
        folder::check(weights, states, self)
    }

    fn doubts(&self, _weights: &Weights) -> Result<Vec<String>, RunError> {
        Ok(self.notes.clone())
    }

    fn kept(&self) -> Result<Vec<(String, KeptFile)>, RunError> {
        let mut all = vec![(hyper::OPTIONS_FILE.to_owned(), KeptFile::Text(format!("{:#}\n", self.options)))];
        all.extend(self.respoken.clone().map(|text| (CONFIG.to_owned(), KeptFile::Text(text))));
        Ok(all)
    }

    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError> {
        Ok(Box::new(prepare::Voiced(self)))
    }

    fn clips(&self, index: Arc<ClipIndex>, chosen: &[usize], seed: u64) -> Box<dyn Clips> {
        Box::new(clips::VoiceClips::new(index, chosen, seed, self.config.clone()))
    }

    fn rounds(&self) -> u32 {
        clips::ROUNDS
    }

    fn recorded(&self, file: &Path, _spare: Spare) -> Result<Box<dyn Clips>, RunError> {
        Ok(Box::new(recorded::read(file, &self.config)?))
    }

    fn rows_of(&self, seconds: f64) -> u32 {
        (seconds * self.config.rows().per_second).ceil() as u32
    }

    fn text_assumed(&self, _counted: bool) -> &'static str {
        "with 32 phoneme ids a second"
    }

    fn assumes_clips(&self) -> bool {
        true
    }

    fn reader(&self, reading: &Reading) -> Result<Reader<'_>, RunError> {
        reading.has(Piper.name(), false, false)?;
        Ok(text::Texts::read(&self.dir)?.reader())
    }

    fn generator(&self) -> Option<&dyn Generator> {
        Some(self)
    }

    fn speaker(&self) -> Option<&dyn Speaker> {
        Some(self)
    }
}
