//! MusicGen: a decoder over codebooks of an audio codec, each later than the one before, which reads a text across (`README.md` next to
//! this file).

pub mod batch;
pub mod config;
pub mod model;
pub mod weights;
pub mod written;

use crate::batch::{Capacity, Layout};
use crate::init::Init;
use crate::model::{Model, Rows};
use ambitus_ir::{Program, Session};
use config::Config;
use std::sync::Arc;

impl Model for Config {
    fn loss(&self, s: &mut Session, _player: usize, cap: Capacity, name: &str, train: bool) -> Program {
        model::loss(s, self, cap, name, train)
    }

    fn layout(&self, cap: Capacity) -> Layout {
        batch::layout(self, cap)
    }

    /// Returns codes of all codebooks, and the states of a text.
    fn clip_bytes(&self, rows: usize) -> u64 {
        4 * (self.codebooks() * rows + self.context * self.text_dim) as u64
    }

    fn rows(&self) -> Rows {
        Rows { unit: "steps", per_second: self.frame_rate, most: None }
    }

    fn init(&self, name: &str, _dims: &[usize]) -> Init {
        weights::init(name, self)
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

    fn with_dropout(&self, p: f32) -> Option<Arc<dyn Model>> {
        Some(Arc::new(Config { dropout: p, ..self.clone() }))
    }

    fn with_context(&self, rows: usize) -> Option<Arc<dyn Model>> {
        Some(Arc::new(Config { context: rows.max(1), ..self.clone() }))
    }
}
