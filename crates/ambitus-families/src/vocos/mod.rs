//! A frozen vocoder (Vocos): mel frames to samples on the CPU, in memory that does not grow with the sound.
//!
//! The program has room for a window of frames. Longer sound goes through it in windows that overlap by as many frames, on both
//! sides, as a frame's spectrum depends on ([`model::reach`]), and as lie over the first sample that is given
//! ([`ambitus_data::istft`]). So the samples are those of the whole in one piece.

mod folder;
#[cfg(test)]
mod tests;

use crate::codec::{self, Kind, Mels, alone};
use crate::error::RunError;
use ambitus_data::istft::Istft;
use ambitus_exec::cpu::CpuExecutor;
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_models::vocos::config::Config;
use ambitus_models::vocos::head::spectrum;
use ambitus_models::vocos::model::{self, DECODE};
use folder::Folder;
use std::path::Path;
use std::sync::Arc;

/// Frames of a window: over five seconds at 24 kHz. Of the published shape 457 are new in each that follows another.
const WINDOW: usize = 512;

/// The kind of vocoder, for the registry.
pub struct Vocos;

impl Kind for Vocos {
    fn name(&self) -> &'static str {
        "Vocos, of mel frames"
    }

    fn files(&self) -> &'static str {
        "config.yaml and model.safetensors or pytorch_model.bin"
    }

    /// By the classes that the configuration names: they are the package's.
    fn recognises(&self, dir: &Path) -> bool {
        folder::is_vocos(dir)
    }

    fn open(&self, dir: &Path, threads: usize) -> Result<codec::Opened, RunError> {
        Ok(codec::Opened::Vocoder(Box::new(Vocoder::open(dir, threads)?)))
    }
}

/// A vocoder whose weights and work lie in one planned arena.
pub struct Vocoder {
    folder: Folder,
    threads: usize,
    /// Frames of a window.
    frames: usize,
    planned: Arc<PlannedSession>,
    work: Option<Work>,
}

/// The filled arena, and what the host takes besides.
struct Work {
    exec: CpuExecutor,
    istft: Istft,
    /// `[frames, M]` of a window.
    mel: Vec<f32>,
    /// `[frames, N + 2]`.
    head: Vec<f32>,
}

impl Vocoder {
    /// Opens a folder with `config.yaml` and `model.safetensors` or `pytorch_model.bin`, and plans. No weight is read before the
    /// first use.
    ///
    /// # Errors
    /// Names the file and key, or every tensor that does not fit.
    pub fn open(dir: &Path, threads: usize) -> Result<Vocoder, RunError> {
        Vocoder::open_with(dir, threads, WINDOW)
    }

    /// Opens a vocoder with windows of at least `frames` frames: more take more memory and overlap less. See
    /// [`Vocoder::open`].
    ///
    /// # Errors
    /// As [`Vocoder::open`].
    pub fn open_with(dir: &Path, threads: usize, frames: usize) -> Result<Vocoder, RunError> {
        let folder = Folder::open(dir)?;
        let cfg = &folder.config;
        let frames = frames.max(2 * model::reach(cfg) + over_a_sample(cfg));
        let threads = threads.max(1);
        let planned = alone::planned(threads, |s| model::decode(s, cfg, frames));
        Ok(Vocoder { folder, threads, frames, planned, work: None })
    }

    /// Opens and fills the arena, once.
    fn work(&mut self) -> Result<&mut Work, RunError> {
        let (cfg, frames) = (&self.folder.config, self.frames);
        let work = match self.work.take() {
            Some(work) => work,
            None => {
                let mut exec = CpuExecutor::open(self.planned.clone(), self.threads)?;
                let window = self.folder.load(&mut exec)?;
                let istft = Istft::new(window, cfg.hop, frames);
                let (mel, head) = (vec![0.0; frames * cfg.mels], vec![0.0; frames * (cfg.n_fft + 2)]);
                Work { exec, istft, mel, head }
            }
        };
        Ok(self.work.insert(work))
    }
}

/// Returns the number of frames whose windows lie over one sample, at most.
fn over_a_sample(cfg: &Config) -> usize {
    cfg.n_fft.div_ceil(cfg.hop)
}

impl codec::Vocoder for Vocoder {
    fn name(&self) -> &'static str {
        "Vocos"
    }

    fn mels(&self) -> Mels {
        let cfg = &self.folder.config;
        Mels { rate: cfg.rate, hop: cfg.hop, channels: cfg.mels }
    }

    fn samples(&self, frames: usize) -> usize {
        self.folder.config.samples(frames)
    }

    /// Returns the arena, a window's frames, spectra and samples.
    fn bytes(&self) -> u64 {
        let cfg = &self.folder.config;
        let values = self.frames * (cfg.mels + cfg.n_fft + 2);
        self.planned.arena_bytes() + 4 * values as u64 + Istft::bytes(cfg.n_fft, cfg.hop, self.frames)
    }

    fn close(&mut self) {
        self.work = None;
    }

    fn decoding<'v>(
        &'v mut self,
        mel: &'v [f32],
        _seed: u64,
    ) -> Result<Box<dyn codec::Decoding + 'v>, RunError> {
        let (cfg, window) = (self.folder.config.clone(), self.frames);
        let (total, given) = (mel.len() / cfg.mels, cfg.trim());
        Ok(Box::new(Decoding { work: self.work()?, cfg, window, mel, total, start: 0, given }))
    }
}

/// Frames being decoded. Samples are counted from the first frame's window on.
struct Decoding<'v> {
    work: &'v mut Work,
    cfg: Config,
    /// Frames of a window.
    window: usize,
    /// `[total, M]`.
    mel: &'v [f32],
    total: usize,
    /// First frame of the next window.
    start: usize,
    /// Samples that were given or left out.
    given: usize,
}

impl codec::Decoding for Decoding<'_> {
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError> {
        let (hop, first, given) = (self.cfg.hop, self.start, self.given);
        let end = self.cfg.trim() + self.cfg.samples(self.total);
        if given >= end {
            return Ok(None);
        }
        let valid = self.window.min(self.total - first);
        self.run(valid)?;
        let mut until = end;
        if first + valid < self.total {
            // Frames from here on do not know what follows; the next window begins so far before that its first frames, which
            // do not know what precedes, lie over samples that are given.
            let (known, reach) = (first + valid - model::reach(&self.cfg), model::reach(&self.cfg));
            until = known * hop;
            self.start = known + 1 - over_a_sample(&self.cfg) - reach;
        }
        self.given = until;
        let piece = &self.work.istft.wave()[given - first * hop..until - first * hop];
        if piece.iter().any(|x| !x.is_finite()) {
            return Err(RunError::Model(
                "the vocoder gives numbers that are not finite; check the mel frames and the vocoder's weights".to_owned(),
            ));
        }
        Ok(Some(piece))
    }
}

impl Decoding<'_> {
    /// Makes the wave of the window, of which `valid` frames are there.
    fn run(&mut self, valid: usize) -> Result<(), RunError> {
        let (cfg, work) = (&self.cfg, &mut *self.work);
        let (frames, rest) = work.mel.split_at_mut(valid * cfg.mels);
        frames.copy_from_slice(&self.mel[self.start * cfg.mels..(self.start + valid) * cfg.mels]);
        rest.fill(0.0);
        work.exec.write_f32(DECODE, "mel", 0, &work.mel)?;
        work.exec.write_i32(DECODE, "segments", 0, &[0, valid as i32])?;
        work.exec.run(DECODE, 0)?;
        work.exec.read_f32(DECODE, "head", 0, &mut work.head)?;
        work.istft.resize(valid);
        let (istft, head, wide) = (&mut work.istft, &work.head, cfg.n_fft + 2);
        istft.run(|f, to| {
            for (to, (re, im)) in to.iter_mut().zip(spectrum(cfg, &head[f * wide..(f + 1) * wide])) {
                (to.re, to.im) = (re, im);
            }
        });
        Ok(())
    }
}
