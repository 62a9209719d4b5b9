//! A frozen audio codec (DAC), run in windows ([`crate::codec::windows`]): from a folder of its own, or out of a model's that holds
//! one.

mod folder;
#[cfg(test)]
mod tests;

use crate::codec::windows::{Direction, Windowed, Windows};
use crate::codec::{self, Codebook, Kind, Spec};
use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_ir::{Program, Session};
use ambitus_models::common::codec::rows::Table;
use ambitus_models::dac::model;
use folder::Folder;
use std::path::Path;

/// The kind of codec, for the registry.
pub struct Dac;

impl Kind for Dac {
    fn name(&self) -> &'static str {
        "DAC"
    }

    fn files(&self) -> &'static str {
        "config.json of a DacModel or Parler-TTS and model.safetensors, its shards or pytorch_model.bin"
    }

    /// By the type that the configuration names, or that of the audio encoder in it.
    fn recognises(&self, dir: &Path) -> bool {
        folder::is_dac(dir)
    }

    fn open(&self, dir: &Path, threads: usize) -> Result<codec::Opened, RunError> {
        Ok(codec::Opened::Codec(Box::new(Codec::open(dir, threads)?)))
    }
}

/// An opened codec.
pub type Codec = Windows<OfFolder>;

/// A folder with a codec's configuration and weights, maybe among a model's.
pub struct OfFolder {
    folder: Folder,
    spec: Spec,
}

impl Windowed for OfFolder {
    fn open(dir: &Path) -> Result<OfFolder, RunError> {
        let folder = Folder::open(dir)?;
        let cfg = &folder.config;
        let book = Codebook { per_frame: 1, size: cfg.codebook_size };
        let codebooks = vec![book; cfg.vq_strides.len()];
        let spec = Spec { rate: folder.rate, frame: cfg.hop(), tail: cfg.tail(), codebooks };
        Ok(OfFolder { folder, spec })
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
            Direction::Decode | Direction::DecodeNoisy => model::decode(session, cfg, samples),
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

    /// Returns the frames that are whole: nothing is padded, as by `DacModel.encode` and in what Parler-TTS trains on.
    fn frames(&self, samples: usize) -> usize {
        self.folder.config.frames(samples)
    }

    fn encoder_rows(&self, table: Table, samples: usize) -> usize {
        self.folder.config.encoder_rows(table, samples)
    }

    fn decoder_rows(&self, table: Table, frames: usize, ends: bool) -> usize {
        self.folder.config.decoder_rows(table.stride, frames, ends)
    }
}
