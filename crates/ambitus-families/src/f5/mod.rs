//! F5-TTS: a YAML, a vocabulary and one file of weights; clips of mel frames.

mod clips;
mod flow;
mod folder;
mod generate;
mod import;
mod keys;
mod prepare;
mod recorded;
mod reference;
mod sample;
mod speak;

use crate::clips::Clips;
use crate::error::RunError;
use crate::family::{ExportForm, Family, Opened, of_model};
use crate::family::{ModelDir, OpenOptions};
use crate::generate::Generator;
use crate::prepare::Preparer;
use crate::recorded::Spare;
use crate::sample::Sampler;
use crate::speech::Speaker;
use crate::tokens::{Reader, Reading, Tokens};
use crate::weights::Weights;
use ambitus_data::check::{Advised, Amount};
use ambitus_data::prepare::ADVISED_MINUTES;
use ambitus_data::{ClipIndex, TokenizerKind, mel};
use ambitus_ir::StateDecl;
use ambitus_models::Model;
use ambitus_models::f5::config::Config;
use ambitus_models::f5::weights::INV_FREQ;
use ambitus_recipe::import::Trainer;
use ambitus_recipe::recipe::{Average, Defaults, Schedule, Section};
use ambitus_store::DType;
use clips::MelClips;
use folder::Folder;
use std::path::Path;
use std::sync::Arc;

/// F5-TTS.
pub struct F5;

/// Both ends of the ramps of the original trainer: LinearLR starts at, and falls to, this share.
const FLOOR: f64 = 1e-8;

impl F5 {
    /// Returns a folder of this shape without files: for plans.
    pub fn shaped(config: Config) -> ModelDir {
        folder::shaped(config)
    }
}

impl Family for F5 {
    fn name(&self) -> &'static str {
        "F5-TTS"
    }

    fn files(&self) -> &'static str {
        "config.yaml, vocab.txt and model.safetensors"
    }

    fn section(&self) -> &'static Section {
        &keys::SECTION
    }

    fn trainers(&self) -> &'static [&'static Trainer] {
        &[&import::TRAINER]
    }

    /// Returns whether the YAML is what no other family has.
    fn recognises(&self, dir: &Path) -> bool {
        dir.join(folder::CONFIG).is_file()
    }

    fn open(&self, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        folder::open(dir, options)
    }

    fn defaults(&self, model: &dyn Model) -> Defaults {
        let all = of_model(model);
        Defaults {
            weight_decay: 0.01,
            ema: Average::Warming,
            clips: 8,
            warmup: None,
            schedule: Schedule { start: FLOOR, floor: FLOOR, ..all.schedule },
            samples: true,
            ..all
        }
    }

    fn advised(&self) -> Option<Advised> {
        let [least, better] = <[f64; 2]>::from(ADVISED_MINUTES).map(Amount::Minutes);
        Some(Advised { by: "users of F5-TTS", least: Some(least), better })
    }

    /// Returns what its trainer loads strictly, and its inference strips.
    fn export(&self) -> ExportForm {
        let scalars = &[("initted", DType::Bool), ("step", DType::I64)];
        ExportForm { prefix: "ema_model.", scalars, exact: &[INV_FREQ], ..ExportForm::default() }
    }
}

impl Opened for Folder {
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
        folder::check(weights, states, self.extend_vocab)
    }

    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError> {
        Ok(Box::new(prepare::Mels { tokenizer: self.tokenizer()? }))
    }

    fn reader(&self, reading: &Reading) -> Result<Reader<'_>, RunError> {
        reading.has(F5.name(), false, false)?;
        let tokenizer = self.tokenizer()?;
        Ok(Box::new(move |text| {
            let pieces = match tokenizer.kind() {
                TokenizerKind::Byte => text.bytes().map(|b| format!("<0x{b:02X}>")).collect(),
                _ => tokenizer.tokens(text),
            };
            Ok(Tokens { ids: tokenizer.encode(text).ids, pieces })
        }))
    }

    fn clips(&self, index: Arc<ClipIndex>, chosen: &[usize], seed: u64) -> Box<dyn Clips> {
        Box::new(MelClips::new(index, chosen, seed))
    }

    fn rounds(&self) -> u32 {
        MelClips::ROUNDS
    }

    fn recorded(&self, file: &Path, _spare: Spare) -> Result<Box<dyn Clips>, RunError> {
        Ok(Box::new(recorded::read(file, &self.config)?))
    }

    fn rows_of(&self, seconds: f64) -> u32 {
        mel::frames((seconds * f64::from(mel::SAMPLE_RATE)).round() as u64) as u32
    }

    fn text_assumed(&self, _counted: bool) -> &'static str {
        "texts have no frames of their own"
    }

    fn assumes_clips(&self) -> bool {
        false
    }

    fn sampler(&self) -> Option<&dyn Sampler> {
        Some(&sample::Middle)
    }

    fn generator(&self) -> Option<&dyn Generator> {
        Some(self)
    }

    fn speaker(&self) -> Option<&dyn Speaker> {
        Some(self)
    }
}
