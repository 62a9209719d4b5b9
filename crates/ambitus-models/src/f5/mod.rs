//! F5-TTS: a diffusion transformer over mel frames, trained by conditional flow matching (arXiv 2410.06885).
//!
//! The reference is the package `f5-tts` 1.1.22; `parity/f5/NOTES.md` holds its forward pass line by line.

pub mod batch;
pub mod config;
pub mod draw;
pub mod model;
pub mod weights;

use crate::batch::{Capacity, Layout};
use crate::init::Init;
use crate::model::{Model, Rows};
use ambitus_ir::{Program, Session};
use config::{Config, MAX_FRAMES, MELS};
use std::sync::Arc;

impl Model for Config {
    fn loss(&self, s: &mut Session, _player: usize, cap: Capacity, name: &str, train: bool) -> Program {
        model::loss(s, self, cap, name, train)
    }

    fn sample(&self, s: &mut Session, cap: Capacity, name: &str) -> Option<Program> {
        Some(model::sample(s, self, cap, name))
    }

    fn layout(&self, cap: Capacity) -> Layout {
        batch::layout(cap)
    }

    fn clip_bytes(&self, rows: usize) -> u64 {
        (4 * MELS * rows) as u64
    }

    /// Returns rows as frames of 256 samples at 24 kHz. The text encoder's positions end at [`MAX_FRAMES`].
    fn rows(&self) -> Rows {
        let most = (self.conv_layers > 0).then_some(MAX_FRAMES);
        Rows { unit: "frames", per_second: 24_000.0 / 256.0, most }
    }

    fn init(&self, name: &str, dims: &[usize]) -> Init {
        weights::init(name, dims, self)
    }

    fn made(&self, name: &str) -> Option<Vec<f32>> {
        (name == weights::INV_FREQ).then(|| weights::inv_freq(self))
    }

    fn adapted(&self) -> &'static [&'static str] {
        &weights::ADAPTED
    }

    fn original_bytes(&self, parameters: u64, rows: usize, mixed: bool) -> u64 {
        weights::original_bytes(self, parameters, rows, mixed)
    }

    fn project(&self) -> &'static str {
        "F5-TTS"
    }

    /// Returns the command of F5-TTS that speaks with an export (`f5_tts/infer/infer_cli.py`).
    fn listen(&self, export: &str) -> Option<String> {
        Some(format!(
            "f5-tts_infer-cli --model_cfg {export}/config.yaml --ckpt_file {export}/model.safetensors --vocab_file \
             {export}/vocab.txt --ref_audio CLIP.wav --ref_text 'what CLIP says' --gen_text 'what to say'"
        ))
    }

    fn with_dropout(&self, p: f32) -> Option<Arc<dyn Model>> {
        Some(Arc::new(Config { dropout: p, ..self.clone() }))
    }
}
