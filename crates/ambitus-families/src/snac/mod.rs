//! A frozen audio codec (SNAC at 24 kHz): samples to codes and back on the CPU, in memory that does not grow with the sound.
//!
//! A program has room for about three seconds. Longer sound goes through it in windows of whole frames that overlap by as
//! many frames, on both sides, as a frame's codes or samples depend on ([`rows::encoder_reach`], [`rows::decoder_reach`]);
//! what is within reach of a cut is left to the neighbouring window. So the result is that of the whole sound in one piece.

mod folder;
#[cfg(test)]
mod tests;

use crate::codec::{self, Codebook, Codes, Kind, Spec};
use crate::error::RunError;
use ambitus_compile::{pipeline, plan};
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::Session;
use ambitus_ir::plan::PlannedSession;
use ambitus_models::snac::config::{Config, SAMPLE_RATE};
use ambitus_models::snac::model::{self, DECODE, ENCODE};
use ambitus_models::snac::{noise, rows};
use folder::Folder;
use std::path::Path;
use std::sync::Arc;

/// Samples of a window, at least.
const WINDOW: usize = 72_000;
/// Latent rows of a window that are enough: each is compared with every entry of a codebook.
const WINDOW_ROWS: usize = 512;

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

/// What a session is for; the decoder with noise blocks is another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Encode,
    Decode,
    DecodeNoisy,
}

/// A codec whose weights and work lie in one planned arena: that of the direction used last.
pub struct Codec {
    folder: Folder,
    spec: Spec,
    threads: usize,
    /// Frames of a window.
    frames: usize,
    encode: Arc<PlannedSession>,
    decode: Arc<PlannedSession>,
    open: Option<(Direction, CpuExecutor)>,
}

impl Codec {
    /// Opens a folder with `config.json` and `model.safetensors` or `pytorch_model.bin`, and plans. No weight is read before
    /// the first use.
    ///
    /// # Errors
    /// Names the file and key, or every tensor that does not fit.
    pub fn open(dir: &Path, threads: usize) -> Result<Codec, RunError> {
        Codec::open_with(dir, threads, 0)
    }

    /// Opens a codec with windows of at least `frames` frames: more take more memory and overlap less. See [`Codec::open`].
    ///
    /// # Errors
    /// As [`Codec::open`].
    pub fn open_with(dir: &Path, threads: usize, frames: usize) -> Result<Codec, RunError> {
        let folder = Folder::open(dir)?;
        let cfg = &folder.config;
        let reach = rows::encoder_reach(cfg).max(rows::decoder_reach(cfg));
        let least = if frames == 0 {
            WINDOW.min(WINDOW_ROWS * cfg.hop()).div_ceil(cfg.frame()).max(4 * reach)
        } else {
            frames
        };
        let frames = least.max(2 * reach + 1).next_multiple_of(rows::PHASES);
        let threads = threads.max(1);
        let encode = planned(cfg, Direction::Encode, frames, threads);
        let decode = planned(cfg, Direction::Decode, frames, threads);
        let book = |i| Codebook { per_frame: cfg.codes_per_frame(i), size: cfg.codebook_size };
        let codebooks = (0..cfg.vq_strides.len()).map(book).collect();
        let spec = Spec { rate: SAMPLE_RATE, frame: cfg.frame(), codebooks };
        Ok(Codec { folder, spec, threads, frames, encode, decode, open: None })
    }

    /// Returns the codec's shape.
    pub fn config(&self) -> &Config {
        &self.folder.config
    }

    /// Opens and fills the arena of a direction, after the other's was given back.
    fn ready(&mut self, direction: Direction) -> Result<(), RunError> {
        if self.open.as_ref().is_some_and(|(d, _)| *d == direction) {
            return Ok(());
        }
        self.open = None;
        let planned = match direction {
            Direction::Encode => self.encode.clone(),
            Direction::Decode => self.decode.clone(),
            Direction::DecodeNoisy => planned(self.config(), direction, self.frames, self.threads),
        };
        let mut exec = CpuExecutor::open(planned, self.threads)?;
        self.folder.load(&mut exec)?;
        self.open = Some((direction, exec));
        Ok(())
    }

    /// Returns the number of samples of a window.
    fn window(&self) -> usize {
        self.frames * self.config().frame()
    }

    fn exec(&mut self) -> Result<&mut CpuExecutor, RunError> {
        let open = self.open.as_mut().map(|(_, exec)| exec);
        open.ok_or_else(|| RunError::Training("the codec was used before it was opened".to_owned()))
    }

    /// Tells a program how many of its frames are sound.
    fn write_tables(&mut self, program: &str, valid: usize) -> Result<(), RunError> {
        let (window, valid) = (self.window(), valid * self.config().frame());
        let exec = self.exec()?;
        let tables = exec.planned().program(program).map_or(Vec::new(), |p| rows::tables(&p.program));
        for table in tables {
            exec.write_i32(program, &table.name(), 0, &table.fill(window, valid))?;
        }
        Ok(())
    }
}

impl codec::Codec for Codec {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        self.folder.fingerprint()
    }

    /// Returns the larger arena of the two directions: only that of the direction used last is held.
    fn bytes(&self) -> u64 {
        self.encode_bytes().max(self.decode.arena_bytes())
    }

    fn encode_bytes(&self) -> u64 {
        self.encode.arena_bytes()
    }

    fn close(&mut self) {
        self.open = None;
    }

    fn encoding(&mut self) -> Result<Box<dyn codec::Encoding + '_>, RunError> {
        self.ready(Direction::Encode)?;
        let codes = Codes { layers: vec![Vec::new(); self.config().vq_strides.len()] };
        Ok(Box::new(Encoding { codec: self, held: Vec::new(), start: 0, done: 0, codes }))
    }

    fn decoding_of<'c>(
        &'c mut self,
        codes: &'c Codes,
        total: usize,
        seed: Option<u64>,
    ) -> Result<Box<dyn codec::Decoding + 'c>, RunError> {
        if seed.is_some() && !self.config().noise {
            let why = "this codec has no noise blocks (config.json: \"noise\": false); leave the seed out";
            return Err(RunError::Usage(why.to_owned()));
        }
        self.ready(if seed.is_some() { Direction::DecodeNoisy } else { Direction::Decode })?;
        let audio = vec![0.0; self.frames * self.config().frame()];
        Ok(Box::new(Decoding { codec: self, codes, seed, total, start: 0, done: 0, audio }))
    }
}

/// Returns the session of one direction: one program.
fn planned(cfg: &Config, direction: Direction, frames: usize, threads: usize) -> Arc<PlannedSession> {
    let (target, samples) = (CpuTarget::new(threads), frames * cfg.frame());
    let mut s = Session::default();
    let p = match direction {
        Direction::Encode => model::encode(&mut s, cfg, samples),
        Direction::Decode => model::decode(&mut s, cfg, samples, false),
        Direction::DecodeNoisy => model::decode(&mut s, cfg, samples, true),
    };
    let p = pipeline::plain(&mut s, p, &target);
    s.programs = vec![p];
    Arc::new(plan::plan(s, &target, 1))
}

/// A sound being encoded.
struct Encoding<'c> {
    codec: &'c mut Codec,
    /// Samples from the frame `start` on, at most a window.
    held: Vec<f32>,
    start: usize,
    /// Frames whose codes are known.
    done: usize,
    codes: Codes,
}

impl codec::Encoding for Encoding<'_> {
    fn push(&mut self, mut samples: &[f32]) -> Result<(), RunError> {
        let (frame, window) = (self.codec.config().frame(), self.codec.window());
        let reach = rows::encoder_reach(self.codec.config());
        while !samples.is_empty() {
            if self.held.len() == window {
                // More follows: the last frames wait for what is within their reach.
                let until = self.start + self.codec.frames - reach;
                self.run(self.codec.frames, until)?;
                let next = until - reach;
                self.held.drain(..(next - self.start) * frame);
                self.start = next;
            }
            let (now, later) = samples.split_at(samples.len().min(window - self.held.len()));
            self.held.extend_from_slice(now);
            samples = later;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Codes, RunError> {
        let valid = self.held.len().div_ceil(self.codec.config().frame());
        if valid > 0 {
            self.run(valid, self.start + valid)?;
        }
        Ok(self.codes)
    }
}

impl Encoding<'_> {
    /// Encodes the window, of which `valid` frames are sound, and keeps the codes of the frames `done..until`.
    fn run(&mut self, valid: usize, until: usize) -> Result<(), RunError> {
        let len = self.held.len();
        self.held.resize(self.codec.window(), 0.0);
        self.codec.write_tables(ENCODE, valid)?;
        let (frames, cfg) = (self.codec.frames, self.codec.config().clone());
        let exec = self.codec.exec()?;
        exec.write_f32(ENCODE, "audio", 0, &self.held)?;
        exec.run(ENCODE, 0)?;
        for (i, layer) in self.codes.layers.iter_mut().enumerate() {
            let each = cfg.codes_per_frame(i);
            let mut codes = vec![0.0; frames * each];
            exec.read_f32(ENCODE, &format!("codes.{i}"), 0, &mut codes)?;
            let kept = &codes[(self.done - self.start) * each..(until - self.start) * each];
            if kept.iter().any(|c| *c as usize >= cfg.codebook_size) {
                return Err(RunError::Model(
                    "the codec gives numbers that are not finite; check the audio's samples and the codec's weights"
                        .to_owned(),
                ));
            }
            layer.extend(kept.iter().map(|c| *c as u32));
        }
        self.held.truncate(len);
        self.done = until;
        Ok(())
    }
}

/// Codes being decoded.
struct Decoding<'c> {
    codec: &'c mut Codec,
    codes: &'c Codes,
    seed: Option<u64>,
    /// Frames in all.
    total: usize,
    /// First frame of the next window.
    start: usize,
    /// Frames whose samples were given.
    done: usize,
    audio: Vec<f32>,
}

impl codec::Decoding for Decoding<'_> {
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError> {
        if self.done == self.total {
            return Ok(None);
        }
        let (frames, cfg) = (self.codec.frames, self.codec.config().clone());
        let (reach, frame) = (rows::decoder_reach(&cfg), cfg.frame());
        let start = self.start;
        let valid = frames.min(self.total - start);
        let last = start + valid == self.total;
        let until = if last { self.total } else { start + valid - reach };
        self.codec.write_tables(DECODE, valid)?;
        let exec = self.codec.exec()?;
        for (i, layer) in self.codes.layers.iter().enumerate() {
            let each = cfg.codes_per_frame(i);
            let mut ids = vec![-1; frames * each];
            let codes = &layer[start * each..(start + valid) * each];
            ids.iter_mut().zip(codes).for_each(|(id, code)| *id = *code as i32);
            exec.write_i32(DECODE, &format!("codes.{i}"), 0, &ids)?;
        }
        if let Some(seed) = self.seed {
            let mut per_frame = cfg.vq_strides[0];
            for (j, rate) in cfg.decoder_rates.iter().enumerate() {
                per_frame *= rate;
                let mut drawn = vec![0.0; frames * per_frame];
                noise::noise(seed, j, (start * per_frame) as u64, &mut drawn);
                exec.write_f32(DECODE, &format!("noise.{j}"), 0, &drawn)?;
            }
        }
        exec.run(DECODE, 0)?;
        exec.read_f32(DECODE, "audio", 0, &mut self.audio)?;
        let kept = (self.done - start) * frame..(until - start) * frame;
        self.done = until;
        self.start = until.saturating_sub(reach);
        Ok(Some(&self.audio[kept]))
    }
}
