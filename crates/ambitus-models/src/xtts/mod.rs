//! XTTS v2: a GPT-2 decoder over a voice's latents, a text and the codes of a codec, with the encoder that makes the latents
//! (`README.md` next to this file).

pub mod batch;
pub mod config;
pub mod model;
pub mod weights;
pub mod writing;

use crate::batch::{Capacity, Layout};
use crate::init::Init;
use crate::model::{Model, Rows};
use ambitus_ir::{Program, Session};
use config::{BANDS, Config, SAMPLES_PER_CODE};
use std::sync::Arc;

/// Outputs of the forward step besides the loss: means over all scored ids of an update.
pub const REPORTED: [&str; 2] = ["loss.text", "loss.mel"];

impl Model for Config {
    fn loss(&self, s: &mut Session, _player: usize, cap: Capacity, name: &str, train: bool) -> Program {
        model::loss(s, self, cap, name, train)
    }

    fn reported(&self) -> &'static [&'static str] {
        &REPORTED
    }

    fn layout(&self, cap: Capacity) -> Layout {
        batch::layout(self, cap)
    }

    /// Returns ids and sound, as if all rows were codes; and the piece that says whose voice it is, with its mel.
    fn clip_bytes(&self, rows: usize) -> u64 {
        let piece = self.frames * (SAMPLES_PER_CODE / 4 + BANDS);
        4 * (rows * (SAMPLES_PER_CODE + 1) + piece) as u64
    }

    fn rows(&self) -> Rows {
        Config::rows(self)
    }

    fn init(&self, name: &str, _dims: &[usize]) -> Init {
        weights::init(name)
    }

    fn adapted(&self) -> &'static [&'static str] {
        &weights::ADAPTED
    }

    fn original_bytes(&self, parameters: u64, rows: usize, mixed: bool) -> u64 {
        weights::original_bytes(self, parameters, rows, mixed)
    }

    fn project(&self) -> &'static str {
        "coqui-tts"
    }

    fn with_dropout(&self, p: f32) -> Option<Arc<dyn Model>> {
        Some(Arc::new(Config { dropout: p, ..self.clone() }))
    }
}
