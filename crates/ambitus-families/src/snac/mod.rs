//! A frozen audio codec (SNAC at 24 kHz), run in windows ([`crate::codec::windows`]).

mod folder;
#[cfg(test)]
mod tests;

use crate::codec::windows::{Direction, Put, Windowed, Windows};
use crate::codec::{self, Codebook, Kind, Spec};
use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_ir::{Program, Session};
use ambitus_models::common::codec::rows::Table;
use ambitus_models::snac::config::SAMPLE_RATE;
use ambitus_models::snac::{model, noise};
use folder::Folder;
use std::path::Path;

/// The kind of codec, for the registry.
pub struct Snac;

impl Kind for Snac {
    fn name(&self) -> &'static str {
        "SNAC at 24 kHz"
    }

    fn files(&self) -> &'static str {
        "config.json and model.safetensors or pytorch_model.bin"
    }

    /// By the key that no other codec's configuration has: it names no architecture.
    fn recognises(&self, dir: &Path) -> bool {
        folder::is_snac(dir)
    }

    fn open(&self, dir: &Path, threads: usize) -> Result<codec::Opened, RunError> {
        Ok(codec::Opened::Codec(Box::new(Codec::open(dir, threads)?)))
    }
}

/// An opened codec.
pub type Codec = Windows<Snac24>;

/// A folder with `config.json` and `model.safetensors` or `pytorch_model.bin`.
pub struct Snac24 {
    folder: Folder,
    spec: Spec,
}

impl Windowed for Snac24 {
    fn open(dir: &Path) -> Result<Snac24, RunError> {
        let folder = Folder::open(dir)?;
        let cfg = &folder.config;
        let book = |i| Codebook { per_frame: cfg.codes_per_frame(i), size: cfg.codebook_size };
        let codebooks = (0..cfg.vq_strides.len()).map(book).collect();
        let spec = Spec { rate: SAMPLE_RATE, frame: cfg.frame(), tail: 0, codebooks };
        Ok(Snac24 { folder, spec })
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        self.folder.fingerprint()
    }

    fn program(&self, session: &mut Session, direction: Direction, samples: usize) -> Program {
        let cfg = &self.folder.config;
        match direction {
            Direction::Encode => model::encode(session, cfg, samples),
            Direction::Decode => model::decode(session, cfg, samples, false),
            Direction::DecodeNoisy => model::decode(session, cfg, samples, true),
        }
    }

    fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError> {
        self.folder.tensors.load(exec)
    }

    fn encoder_reach(&self) -> usize {
        self.folder.config.encoder_reach()
    }

    fn decoder_reach(&self) -> usize {
        self.folder.config.decoder_reach()
    }

    /// Returns the frames that have begun: the package pads the last with zeros.
    fn frames(&self, samples: usize) -> usize {
        samples.div_ceil(self.spec.frame)
    }

    fn encoder_rows(&self, table: Table, samples: usize) -> usize {
        self.decoder_rows(table, self.frames(samples), true)
    }

    fn decoder_rows(&self, table: Table, frames: usize, _ends: bool) -> usize {
        frames * self.spec.frame / table.stride
    }

    fn has_noise(&self) -> bool {
        self.folder.config.noise
    }

    fn noise(&self, seed: u64, first: usize, frames: usize, put: &mut Put<'_>) -> Result<(), RunError> {
        let cfg = &self.folder.config;
        let mut per_frame = cfg.vq_strides[0];
        for (j, rate) in cfg.decoder_rates.iter().enumerate() {
            per_frame *= rate;
            let mut drawn = vec![0.0; frames * per_frame];
            noise::noise(seed, j, (first * per_frame) as u64, &mut drawn);
            put(&format!("noise.{j}"), &drawn)?;
        }
        Ok(())
    }
}
