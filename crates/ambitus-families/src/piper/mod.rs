//! Piper: a folder with the checkpoint of a trainer. Its two players train on clips of phonemes, spectrograms and samples.
//!
//! Not in [`ALL`](crate::ALL) so far: clips are not made of audio yet. `gradients` takes recorded ones.

mod folder;
mod hyper;
mod keys;
pub mod onnx;
mod recorded;
pub mod text;

use crate::clips::Clips;
use crate::error::RunError;
use crate::family::{ExportForm, Family, ModelDir, OpenOptions, Opened, of_model};
use crate::prepare::Preparer;
use crate::recorded::Spare;
use crate::tokens::{Reader, Reading};
use crate::weights::Weights;
use ambitus_data::ClipIndex;
use ambitus_ir::StateDecl;
use ambitus_models::Model;
use ambitus_recipe::recipe::{Defaults, Schedule, ScheduleKind, Section};
use folder::Folder;
use std::path::Path;
use std::sync::Arc;

/// Piper.
pub struct Piper;

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

    fn recognises(&self, dir: &Path) -> bool {
        folder::recognises(dir)
    }

    fn open(&self, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        folder::open(dir, options)
    }

    /// Returns the trainer's settings (piper1-gpl @b275826, `VitsModel`), which never steps its schedules: a constant rate.
    fn defaults(&self, model: &dyn Model) -> Defaults {
        Defaults {
            learning_rate: 2e-4,
            weight_decay: 0.01,
            betas: [0.8, 0.99],
            clips: 32,
            schedule: Schedule::of(ScheduleKind::Constant),
            ..of_model(model)
        }
    }

    fn export(&self) -> ExportForm {
        ExportForm::default()
    }
}

impl Opened for Folder {
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
        folder::check(weights, states, &self.config)
    }

    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError> {
        Err(RunError::Usage("clips of a Piper voice are not made of audio so far".to_owned()))
    }

    fn clips(&self, _index: Arc<ClipIndex>, _chosen: &[usize], _seed: u64) -> Box<dyn Clips> {
        Box::new(recorded::Recorded::none(&self.config))
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
}
