//! A frozen audio codec with a memory (EnCodec), run in windows that go on where the one before them ended: from a folder of its own,
//! out of a model's that holds one, or from audiocraft's checkpoint.
//!
//! The memory reads every frame once, in their order, and what it knows at a window's end is carried to the next. The convolutions
//! before it see a few frames more on either side, and those behind it what it gave for some frames before. So the result is that of the
//! whole sound in one piece, in memory that does not grow with it.

mod folder;
mod package;
#[cfg(test)]
mod tests;

use crate::codec::programs::{Programs, Way};
use crate::codec::{self, Codebook, Codes, Kind, Spec};
use crate::error::RunError;
use ambitus_exec::cpu::CpuExecutor;
use ambitus_exec::executor::Executor;
use ambitus_models::common::codec::{DECODE, ENCODE};
use ambitus_models::encodec::config::Config;
use ambitus_models::encodec::model;
use ambitus_models::encodec::tables::{self, FRAMES, Place, Table};
use folder::Folder;
pub use folder::{CHECKPOINT, as_part};
use std::ops::Range;
use std::path::Path;

/// Samples of a window, at least.
const WINDOW: usize = 72_000;
/// Frames of a window that are enough: each is compared with every entry.
const WINDOW_FRAMES: usize = 512;

/// A product of so few rows is summed in another order: a window has more, so that its numbers are those of any other.
const FEW: usize = 8;

/// The kind of codec, for the registry.
pub struct Encodec;

impl Kind for Encodec {
    fn name(&self) -> &'static str {
        "EnCodec"
    }

    fn files(&self) -> &'static str {
        "config.json of an EncodecModel or MusicGen and model.safetensors, its shards or pytorch_model.bin, or compression_state_dict.bin"
    }

    /// By the type that the configuration names, or that of the audio encoder in it; or by audiocraft's checkpoint.
    fn recognises(&self, dir: &Path) -> bool {
        folder::is_encodec(dir)
    }

    fn open(&self, dir: &Path, threads: usize) -> Result<codec::Opened, RunError> {
        Ok(codec::Opened::Codec(Box::new(Codec::open(dir, threads)?)))
    }
}

/// An opened codec, whose weights and work lie in one planned arena: that of the direction used last.
pub struct Codec {
    folder: Folder,
    spec: Spec,
    /// New frames of a window.
    frames: usize,
    programs: Programs,
}

impl Codec {
    /// Opens a folder and plans. No weight is read before the first use.
    ///
    /// # Errors
    /// Names the file and key, or every tensor that does not fit.
    pub fn open(dir: &Path, threads: usize) -> Result<Codec, RunError> {
        Codec::open_with(dir, threads, 0)
    }

    /// Opens a codec with windows of at least `frames` new frames; 0 leaves them open. More take more memory. See [`Codec::open`].
    ///
    /// # Errors
    /// As [`Codec::open`].
    pub fn open_with(dir: &Path, threads: usize, frames: usize) -> Result<Codec, RunError> {
        let folder = Folder::open(dir)?;
        let cfg = &folder.config;
        let tails = [true, false].map(|encodes| model::tail(cfg, encodes));
        // A window holds more than what it waits for, and more than what is reflected at an end.
        let least = [cfg.encoder_context(), cfg.kernel, FEW].into_iter().chain(tails).max().unwrap_or(0) + 1;
        let wanted = match frames {
            0 => WINDOW.div_ceil(cfg.hop()).min(WINDOW_FRAMES),
            frames => frames,
        };
        let frames = wanted.max(least);
        let programs =
            Programs::plan(threads, |s| model::encode(s, cfg, frames), |s| model::decode(s, cfg, frames));
        let codebooks = vec![Codebook { per_frame: 1, size: cfg.codebook_size }; cfg.codebooks];
        let spec = Spec { rate: cfg.rate, frame: cfg.hop(), tail: 0, codebooks };
        Ok(Codec { folder, spec, frames, programs })
    }

    /// Returns the new frames of a window.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the bytes of the arena that is open, if one is.
    pub fn open_bytes(&self) -> Option<u64> {
        self.programs.open_bytes()
    }
}

impl codec::Codec for Codec {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        self.folder.fingerprint()
    }

    fn bytes(&self) -> u64 {
        self.programs.bytes(Way::Encode).max(self.programs.bytes(Way::Decode))
    }

    fn encode_bytes(&self) -> u64 {
        self.programs.bytes(Way::Encode)
    }

    fn close(&mut self) {
        self.programs.close();
    }

    fn encoding(&mut self) -> Result<Box<dyn codec::Encoding + '_>, RunError> {
        let cfg = &self.folder.config;
        let exec = self.programs.ready(Way::Encode, |exec| self.folder.tensors.load(exec))?;
        let codes = Codes { layers: vec![Vec::new(); cfg.codebooks] };
        let window = Window { exec, cfg, frames: self.frames, start: 0, done: 0, memory: memory(cfg, true) };
        Ok(Box::new(Encoding { window, held: Vec::new(), codes }))
    }

    fn decoding_of<'c>(
        &'c mut self,
        codes: &'c Codes,
        total: usize,
        seed: Option<u64>,
    ) -> Result<Box<dyn codec::Decoding + 'c>, RunError> {
        if seed.is_some() {
            let why = "this codec's decoder draws no noise; leave the seed out";
            return Err(RunError::Usage(why.to_owned()));
        }
        let cfg = &self.folder.config;
        let audio = vec![0.0; (self.frames + model::tail(cfg, false)) * cfg.hop()];
        let exec = self.programs.ready(Way::Decode, |exec| self.folder.tensors.load(exec))?;
        let window = Window { exec, cfg, frames: self.frames, start: 0, done: 0, memory: memory(cfg, false) };
        Ok(Box::new(Decoding { window, codes, total, audio }))
    }
}

/// What is carried from window to window: the program's input, values.
type Memory = Vec<(String, Vec<f32>)>;

/// Returns what there is before a sound.
fn memory(cfg: &Config, encodes: bool) -> Memory {
    let zeros = |(name, rows)| (name, vec![0.0; rows * cfg.memory()]);
    model::carries(cfg, encodes).into_iter().map(zeros).collect()
}

/// The window that is next.
struct Window<'c> {
    exec: &'c mut CpuExecutor,
    cfg: &'c Config,
    /// New frames, at most.
    frames: usize,
    /// The first new frame.
    start: usize,
    /// Frames whose results are known.
    done: usize,
    memory: Memory,
}

impl Window<'_> {
    /// Runs a program for `new` new frames of sound, and takes what it carries on. `place`: where the sound lies in the rows of a table.
    fn run(&mut self, program: &str, new: usize, place: impl Fn(&Table) -> Place) -> Result<(), RunError> {
        let tables = self.exec.planned().program(program).map_or(Vec::new(), |p| tables::tables(&p.program));
        for (table, len) in tables {
            let rows = table.fill(self.cfg, place(&table), len);
            self.exec.write_i32(program, &table.name(), 0, &rows)?;
        }
        if self.cfg.lstm_layers > 0 {
            self.exec.write_i32(program, FRAMES, 0, &[0, new as i32])?;
        }
        for (name, values) in &self.memory {
            self.exec.write_f32(program, name, 0, values)?;
        }
        self.exec.run(program, 0)?;
        for (name, values) in &mut self.memory {
            self.exec.read_f32(program, &model::next(name), 0, values)?;
        }
        Ok(())
    }

    /// Returns where the sound lies in rows that begin `before` frames before the first new one.
    fn place(&self, before: usize, samples: usize, ends: bool) -> Place {
        Place { before: before.saturating_sub(self.start), samples, begins: self.start <= before, ends }
    }

    /// Returns where the sound lies in rows that begin with the tail, of `tail` frames, and have `new` new ones.
    fn place_of_tail(&self, tail: usize, new: usize, ends: bool) -> Place {
        self.place(tail, (self.start.min(tail) + new) * self.cfg.hop(), ends)
    }

    /// Goes on behind `new` new frames. Returns the frames whose results that gave, as rows that begin with the tail.
    fn advance(&mut self, encodes: bool, new: usize, ends: bool) -> Range<usize> {
        let (tail, delay) = (model::tail(self.cfg, encodes), model::delay(self.cfg, encodes));
        let end = self.start + new;
        let until = if ends { end } else { end - delay };
        let rows = self.done + tail - self.start..until + tail - self.start;
        (self.start, self.done) = (end, until);
        rows
    }
}

/// A sound being encoded.
struct Encoding<'c> {
    window: Window<'c>,
    /// Samples from the first frame on that the next window sees.
    held: Vec<f32>,
    codes: Codes,
}

impl codec::Encoding for Encoding<'_> {
    fn push(&mut self, mut samples: &[f32]) -> Result<(), RunError> {
        while !samples.is_empty() {
            let room = self.room();
            if self.held.len() == room {
                // More follows.
                self.run(false)?;
                continue;
            }
            let (now, later) = samples.split_at(samples.len().min(room - self.held.len()));
            self.held.extend_from_slice(now);
            samples = later;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Codes, RunError> {
        while self.window.start < self.first() + self.window.cfg.frames(self.held.len()) {
            self.run(true)?;
        }
        Ok(self.codes)
    }
}

impl Encoding<'_> {
    /// Returns the first frame of what is held.
    fn first(&self) -> usize {
        self.window.start.saturating_sub(self.window.cfg.encoder_context())
    }

    /// Returns the samples that the next window sees.
    fn room(&self) -> usize {
        let frames =
            self.window.start - self.first() + self.window.frames + self.window.cfg.encoder_context();
        frames * self.window.cfg.hop()
    }

    /// Encodes the next window of what is held, which is as much as it sees, or all that is left of a sound that `ends`.
    fn run(&mut self, ends: bool) -> Result<(), RunError> {
        let (first, window) = (self.first(), &mut self.window);
        let (cfg, around, tail) = (window.cfg, window.cfg.encoder_context(), model::tail(window.cfg, true));
        let left = first + cfg.frames(self.held.len()) - window.start;
        let new = window.frames.min(left);
        let last = ends && new == left;
        let mut audio = vec![0.0; (around - (window.start - first)) * cfg.hop()];
        audio.extend_from_slice(&self.held);
        audio.resize((window.frames + 2 * around) * cfg.hop(), 0.0);
        window.exec.write_f32(ENCODE, "audio", 0, &audio)?;
        let of_audio = window.place(around, self.held.len(), ends);
        let of_frames = window.place_of_tail(tail, new, last);
        window.run(ENCODE, new, |table| if table.stride() == cfg.hop() { of_frames } else { of_audio })?;
        let rows = window.advance(true, new, last);
        for (i, layer) in self.codes.layers.iter_mut().enumerate() {
            let mut codes = vec![0.0; tail + window.frames];
            window.exec.read_f32(ENCODE, &format!("codes.{i}"), 0, &mut codes)?;
            let kept = &codes[rows.clone()];
            if kept.iter().any(|c| *c as usize >= cfg.codebook_size) {
                return Err(RunError::Model(
                    "the codec gives numbers that are not finite; check the audio's samples and the codec's weights"
                        .to_owned(),
                ));
            }
            layer.extend(kept.iter().map(|c| *c as u32));
        }
        let seen = (self.first() - first) * cfg.hop();
        self.held.drain(..seen);
        Ok(())
    }
}

/// Codes being decoded.
struct Decoding<'c> {
    window: Window<'c>,
    codes: &'c Codes,
    /// Frames in all.
    total: usize,
    /// Samples of the tail and the new frames.
    audio: Vec<f32>,
}

impl codec::Decoding for Decoding<'_> {
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError> {
        let window = &mut self.window;
        if window.done == self.total {
            return Ok(None);
        }
        let (cfg, new) = (window.cfg, window.frames.min(self.total - window.start));
        let ends = window.start + new == self.total;
        let frames = tables::frames_read(cfg, window.start, window.frames, self.total);
        for (i, layer) in self.codes.layers.iter().enumerate() {
            let ids: Vec<i32> = frames.iter().map(|at| at.map_or(-1, |at| layer[at] as i32)).collect();
            window.exec.write_i32(DECODE, &format!("codes.{i}"), 0, &ids)?;
        }
        let place = window.place_of_tail(model::tail(cfg, false), new, ends);
        window.run(DECODE, new, |_| place)?;
        let rows = window.advance(false, new, ends);
        window.exec.read_f32(DECODE, "audio", 0, &mut self.audio)?;
        Ok(Some(&self.audio[rows.start * cfg.hop()..rows.end * cfg.hop()]))
    }
}
