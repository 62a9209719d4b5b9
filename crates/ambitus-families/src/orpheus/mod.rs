//! Orpheus: a Hugging Face folder of a `LlamaForCausalLM`; clips of token ids, which the SNAC codec makes of audio.

mod clips;
mod folder;
mod generate;
mod import;
mod keys;
mod prepare;
mod recorded;
mod speak;

use crate::clips::Clips;
use crate::error::RunError;
use crate::family::{ExportForm, Family, Opened, of_model};
use crate::family::{ModelDir, OpenOptions};
use crate::generate::Generator;
use crate::hugging_face::CONFIG;
use crate::prepare::Preparer;
use crate::recorded::Spare;
use crate::speech::Speaker;
use crate::tokens::{Reader, Reading};
use crate::weights::Weights;
use ambitus_data::check::{Advised, Amount};
use ambitus_data::speech::ADVISED_CLIPS;
use ambitus_data::speech::interleave::{FRAME_SAMPLES, SLOTS};
use ambitus_data::speech::sequence::WRAPPERS;
use ambitus_data::{ClipIndex, mel};
use ambitus_ir::StateDecl;
use ambitus_models::Model;
use ambitus_models::orpheus::config::Config;
use ambitus_models::orpheus::weights::NO_DECAY;
use ambitus_recipe::import::Trainer;
use ambitus_recipe::recipe::{Defaults, Section};
use clips::TokenClips;
use folder::Folder;
use keys::Keys;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Orpheus, and other Llama decoders.
pub struct Orpheus;

/// Ids of text that it reads in a second of speech: three words, of which some are two ids.
const TEXT_PER_SECOND: f64 = 4.0;

impl Orpheus {
    /// Returns a folder of this shape without files: for plans.
    pub fn shaped(config: Config) -> ModelDir {
        let opened = Folder { dir: PathBuf::new(), config: config.clone(), keys: Keys::default() };
        ModelDir::shaped(&Orpheus, Arc::new(config), Box::new(opened))
    }
}

impl Family for Orpheus {
    fn name(&self) -> &'static str {
        "Orpheus"
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

    /// Returns the settings of finetune/train.py: Hugging Face's defaults except for the rate.
    fn defaults(&self, model: &dyn Model) -> Defaults {
        let no_decay = NO_DECAY.map(str::to_owned).into();
        Defaults { learning_rate: 5e-5, no_decay, ..of_model(model) }
    }

    /// Returns what the project's README says.
    fn advised(&self) -> Option<Advised> {
        let [least, better] = <[usize; 2]>::from(ADVISED_CLIPS).map(Amount::Clips);
        Some(Advised { by: "Orpheus-TTS's README", least: Some(least), better })
    }

    /// Returns the names of `LlamaForCausalLM`, and what Hugging Face's readers ask for.
    fn export(&self) -> ExportForm {
        ExportForm { metadata: &[("format", "pt")], config: Some(CONFIG), ..ExportForm::default() }
    }
}

impl Opened for Folder {
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
        folder::check(weights, &self.config, states)
    }

    fn doubts(&self, weights: &Weights) -> Result<Vec<String>, RunError> {
        folder::doubts(weights, &self.config)
    }

    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError> {
        Ok(Box::new(prepare::Tokens { dir: &self.dir, keys: &self.keys, vocabulary: self.config.vocab }))
    }

    fn reader(&self, reading: &Reading) -> Result<Reader<'_>, RunError> {
        prepare::reader(&self.dir, self.config.vocab, reading)
    }

    fn clips(&self, index: Arc<ClipIndex>, chosen: &[usize], _seed: u64) -> Box<dyn Clips> {
        Box::new(TokenClips::new(index, chosen))
    }

    fn recorded(&self, file: &Path, _spare: Spare) -> Result<Box<dyn Clips>, RunError> {
        Ok(Box::new(recorded::read(file, &self.config)?))
    }

    fn rows_of(&self, seconds: f64) -> u32 {
        let samples = (seconds * f64::from(mel::SAMPLE_RATE)).round() as usize;
        let text = (seconds * TEXT_PER_SECOND).ceil() as usize;
        (WRAPPERS + text + SLOTS * samples.div_ceil(FRAME_SAMPLES)) as u32
    }

    fn text_assumed(&self, counted: bool) -> &'static str {
        if counted { "texts are part of the tokens" } else { "with 4 tokens of text a second" }
    }

    fn most_rows(&self) -> Option<u64> {
        self.keys.max_tokens
    }

    fn assumes_clips(&self) -> bool {
        true
    }

    fn generator(&self) -> Option<&dyn Generator> {
        Some(self)
    }

    fn speaker(&self) -> Option<&dyn Speaker> {
        Some(self)
    }
}
