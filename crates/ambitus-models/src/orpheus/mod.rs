//! Orpheus: a Llama decoder over text and audio tokens, and any other `LlamaForCausalLM` (`README.md` next to this file).

pub mod batch;
pub mod config;
pub mod model;
pub mod weights;

use crate::batch::{Capacity, Layout};
use crate::init::Init;
use crate::model::{Model, Rows};
use ambitus_ir::{Program, Session};
use config::Config;

impl Model for Config {
    fn loss(&self, s: &mut Session, _player: usize, cap: Capacity, name: &str, _train: bool) -> Program {
        model::loss(s, self, cap, name)
    }

    fn layout(&self, cap: Capacity) -> Layout {
        batch::layout(cap)
    }

    /// Returns an id and a label.
    fn clip_bytes(&self, rows: usize) -> u64 {
        8 * rows as u64
    }

    fn rows(&self) -> Rows {
        config::ROWS
    }

    fn init(&self, name: &str, _dims: &[usize]) -> Init {
        weights::init(name, self)
    }

    fn aliases(&self) -> &'static [(&'static str, &'static str)] {
        weights::aliases(self)
    }

    fn adapted(&self) -> &'static [&'static str] {
        &weights::ADAPTED
    }

    fn original_bytes(&self, parameters: u64, rows: usize, mixed: bool) -> u64 {
        weights::original_bytes(self, parameters, rows, mixed)
    }

    fn project(&self) -> &'static str {
        "transformers"
    }

    fn first_loss(&self, loss: f64) -> Option<String> {
        first_loss(self, loss)
    }
}

/// Ids of Orpheus: its text's, the wrapper ids' and the audio's.
const SPEECH_VOCABULARY: usize = 156_938;

/// Returns what the first loss of a run says, for vocabularies with Orpheus's audio ids. Runs of a checkpoint that users call
/// healthy start near 5; those that stay at 6 to 7 were given other tokens than the checkpoint knows (canopyai/Orpheus-TTS,
/// issues 273 and 286).
fn first_loss(cfg: &Config, loss: f64) -> Option<String> {
    if cfg.vocab < SPEECH_VOCABULARY {
        return None;
    }
    let random = (cfg.vocab as f64).ln();
    Some(match loss {
        l if l < 6.0 => format!("first loss {l:.2}: as it should be (near 5 and below)"),
        l if l < 8.0 => format!(
            "first loss {l:.2}: fine-tuning a checkpoint starts near 5. If it stays at 6 to 7, these are not the tokens that \
             the checkpoint knows: check the codec (SNAC 24 kHz), tokenizer.json, and that the texts belong to the audio"
        ),
        l => format!(
            "first loss {l:.2}: a model that guesses has {random:.2}, a checkpoint of Orpheus near 5. Right for random weights \
             (from_scratch); otherwise this is not an Orpheus checkpoint"
        ),
    })
}
