//! A frozen generator (HiFi-GAN): frames of any kind to samples on the CPU, in memory that does not grow with the sound.
//!
//! The program has room for a window of frames. Longer sound goes through it in windows that overlap by as many frames, on both
//! sides, as a frame's samples depend on ([`Config::reach`]). So the samples are those of the whole in one piece. It has no folder of its
//! own: a speech model's files hold it, and its family says what frames are.

#[cfg(test)]
mod tests;

use crate::codec::tensors::Tensors;
use crate::codec::{self, alone};
use crate::error::RunError;
use crate::weights::Weights;
use ambitus_data::DataError;
use ambitus_exec::cpu::CpuExecutor;
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_models::common::codec::DECODE;
use ambitus_models::hifigan::config::Config;
use ambitus_models::hifigan::{model, weights};
use std::sync::Arc;

/// Frames of a window: two and a half seconds at 24 kHz with 256 samples a frame.
const WINDOW: usize = 240;

/// Writes frames from a number on, as many as there is room for: `[n, input]`. It is asked for them again where windows overlap.
pub type Frames<'f> = dyn FnMut(usize, &mut [f32]) + 'f;

/// A generator whose weights and work lie in one planned arena.
pub struct Generator {
    cfg: Config,
    tensors: Tensors,
    threads: usize,
    /// Frames of a window.
    window: usize,
    planned: Arc<PlannedSession>,
    open: Option<CpuExecutor>,
}

impl Generator {
    /// Finds the weights of a generator of this shape and plans. No weight is read before the first use. `name_of`: what the files call
    /// a tensor; `ignored`: what they may hold besides.
    ///
    /// # Errors
    /// Sizes that do not go together; every tensor that does not fit.
    pub fn open(
        cfg: Config,
        weights: Weights,
        name_of: impl Fn(&str) -> String,
        ignored: impl Fn(&str) -> bool,
        threads: usize,
    ) -> Result<Generator, RunError> {
        Generator::open_with(cfg, weights, name_of, ignored, threads, WINDOW)
    }

    /// Opens a generator with windows of at least `frames` frames: more take more memory and overlap less. See [`Generator::open`].
    ///
    /// # Errors
    /// As [`Generator::open`].
    pub fn open_with(
        cfg: Config,
        weights: Weights,
        name_of: impl Fn(&str) -> String,
        ignored: impl Fn(&str) -> bool,
        threads: usize,
        frames: usize,
    ) -> Result<Generator, RunError> {
        let path = weights.path.display().to_string();
        cfg.check().map_err(|e| RunError::Model(format!("{path}: the generator's {e}")))?;
        let all = weights::tensors(&cfg);
        let found = Tensors::find_among(weights, all, name_of, ignored, "the architecture");
        let tensors = found.map_err(|problems| {
            let problems = problems.join("\n  ");
            RunError::Model(format!(
                "{path}: the generator is not whole:\n  {problems}\nfetch the model's files again"
            ))
        })?;
        let window = frames.max(2 * cfg.reach() + 1).next_multiple_of(cfg.phases());
        let threads = threads.max(1);
        let planned = alone::planned(threads, |s| model::decode(s, &cfg, window));
        Ok(Generator { cfg, tensors, threads, window, planned, open: None })
    }

    /// Returns the shape.
    pub fn config(&self) -> &Config {
        &self.cfg
    }

    /// Returns the bytes of the arena and of a window's frames and samples: the same for sound of any length.
    pub fn bytes(&self) -> u64 {
        self.planned.arena_bytes() + 4 * (self.window * (self.cfg.input + self.cfg.hop())) as u64
    }

    /// Gives the arena back; the next use opens it again.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Begins to make sound of `total` frames, [`Config::hop`] samples each, in pieces. `voice`: what the configuration says, else none.
    ///
    /// # Errors
    /// A voice of another length; the executor; weights that cannot be read.
    pub fn sound<'g>(
        &'g mut self,
        frames: Box<Frames<'g>>,
        total: usize,
        voice: &[f32],
    ) -> Result<Sound<'g>, RunError> {
        let want = self.cfg.voice.unwrap_or(0);
        if voice.len() != want {
            let why = format!("a voice of {} numbers; the generator takes {want}", voice.len());
            return Err(RunError::Data(DataError::Invalid(why)));
        }
        let mut exec = match self.open.take() {
            Some(exec) => exec,
            None => {
                let mut exec = CpuExecutor::open(self.planned.clone(), self.threads)?;
                self.tensors.load(&mut exec)?;
                exec
            }
        };
        if want > 0 {
            exec.write_f32(DECODE, "voice", 0, voice)?;
        }
        let exec = self.open.insert(exec);
        let (cfg, window) = (&self.cfg, self.window);
        let audio = vec![0.0; window * cfg.hop()];
        let held = vec![0.0; window * cfg.input];
        Ok(Sound { exec, cfg, window, frames, held, total, start: 0, done: 0, audio })
    }
}

/// Frames being made sound.
pub struct Sound<'g> {
    exec: &'g mut CpuExecutor,
    cfg: &'g Config,
    window: usize,
    frames: Box<Frames<'g>>,
    /// `[window, input]`.
    held: Vec<f32>,
    /// Frames in all.
    total: usize,
    /// First frame of the next window.
    start: usize,
    /// Frames whose samples were given.
    done: usize,
    /// Of a window.
    audio: Vec<f32>,
}

impl codec::Decoding for Sound<'_> {
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError> {
        if self.done == self.total {
            return Ok(None);
        }
        let (start, reach, hop) = (self.start, self.cfg.reach(), self.cfg.hop());
        let valid = self.window.min(self.total - start);
        let until = if start + valid == self.total { self.total } else { start + valid - reach };
        let (now, rest) = self.held.split_at_mut(valid * self.cfg.input);
        (self.frames)(start, now);
        rest.fill(0.0);
        alone::write_tables(self.exec, DECODE, self.window * hop, |table| valid * hop / table.stride)?;
        self.exec.write_f32(DECODE, "frames", 0, &self.held)?;
        self.exec.run(DECODE, 0)?;
        self.exec.read_f32(DECODE, "audio", 0, &mut self.audio)?;
        let piece = &self.audio[(self.done - start) * hop..(until - start) * hop];
        self.done = until;
        self.start = until.saturating_sub(reach);
        if piece.iter().any(|x| !x.is_finite()) {
            let why = "the generator gives numbers that are not finite; check the frames and its weights";
            return Err(RunError::Model(why.to_owned()));
        }
        Ok(Some(piece))
    }
}
