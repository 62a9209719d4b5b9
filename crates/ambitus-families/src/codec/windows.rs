//! Codecs whose programs have room for a window: samples to codes and back on the CPU, in memory that does not grow with the
//! sound.
//!
//! A program has room for about three seconds at 24 kHz. Longer sound goes through it in windows of whole frames that overlap by
//! as many frames, on both sides, as a frame's codes or samples depend on; what is within reach of a cut is left to the
//! neighbouring window. So the result is that of the whole sound in one piece.

use super::{Codes, Spec, alone};
use crate::error::RunError;
use ambitus_exec::cpu::CpuExecutor;
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{Program, Session};
use ambitus_models::common::codec::rows::{PHASES, Table};
use ambitus_models::common::codec::{DECODE, ENCODE};
use std::path::Path;
use std::sync::Arc;

/// Samples of a window, at least.
const WINDOW: usize = 72_000;
/// Codes of a codebook in a window that are enough: each row is compared with every entry.
const WINDOW_CODES: usize = 512;

/// What a session is for; a decoder that draws noise is another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Samples to codes.
    Encode,
    /// Codes to samples.
    Decode,
    /// Codes and drawn noise to samples.
    DecodeNoisy,
}

/// Takes the values of an input of the program.
pub type Put<'p> = dyn FnMut(&str, &[f32]) -> Result<(), RunError> + 'p;

/// What a kind of codec brings. Its programs are [`ENCODE`] and [`DECODE`], with inputs and outputs as
/// [`Codebooks`](ambitus_models::common::codec::quantizer::Codebooks) has them, `audio` f32 `[samples, 1]` and segment tables.
pub trait Windowed: Send + Sized {
    /// Opens a folder. No weight is read.
    ///
    /// # Errors
    /// Names the file and key, or every tensor that does not fit.
    fn open(dir: &Path) -> Result<Self, RunError>;

    /// Returns what goes in and what comes out.
    fn spec(&self) -> &Spec;

    /// Returns a hash of what codes depend on.
    ///
    /// # Errors
    /// Files that cannot be read.
    fn fingerprint(&self) -> Result<[u8; 32], RunError>;

    /// Builds the program of one direction for a window of `samples` samples.
    fn program(&self, session: &mut Session, direction: Direction, samples: usize) -> Program;

    /// Writes every state of a session.
    ///
    /// # Errors
    /// Unreadable files, and values that are not finite.
    fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError>;

    /// Returns the frames on either side on which a frame's codes depend.
    fn encoder_reach(&self) -> usize;

    /// Returns the frames on either side on which a frame's samples depend.
    fn decoder_reach(&self) -> usize;

    /// Returns the frames of a sound that ends after `samples` samples.
    fn frames(&self, samples: usize) -> usize;

    /// Returns the rows of an encoder's table that are sound when it ends after `samples` samples.
    fn encoder_rows(&self, table: Table, samples: usize) -> usize;

    /// Returns the rows of a decoder's table that are sound of `frames` frames, the last of which ends the sound or does not.
    fn decoder_rows(&self, table: Table, frames: usize, ends: bool) -> usize;

    /// Returns whether its decoder draws noise.
    fn has_noise(&self) -> bool {
        false
    }

    /// Gives the noise of the frames from `first` on: input, values.
    ///
    /// # Errors
    /// Those of `put`.
    fn noise(&self, _seed: u64, _first: usize, _frames: usize, _put: &mut Put<'_>) -> Result<(), RunError> {
        Ok(())
    }
}

/// A codec whose weights and work lie in one planned arena: that of the direction used last.
pub struct Windows<W> {
    kind: W,
    threads: usize,
    /// Frames of a window.
    frames: usize,
    encode: Arc<PlannedSession>,
    decode: Arc<PlannedSession>,
    open: Option<(Direction, CpuExecutor)>,
}

impl<W: Windowed> Windows<W> {
    /// Opens a folder and plans. No weight is read before the first use.
    ///
    /// # Errors
    /// As [`Windowed::open`].
    pub fn open(dir: &Path, threads: usize) -> Result<Windows<W>, RunError> {
        Windows::open_with(dir, threads, 0)
    }

    /// Opens a codec with windows of at least `frames` frames: more take more memory and overlap less. See [`Windows::open`].
    ///
    /// # Errors
    /// As [`Windowed::open`].
    pub fn open_with(dir: &Path, threads: usize, frames: usize) -> Result<Windows<W>, RunError> {
        Ok(Windows::new(W::open(dir)?, threads, frames))
    }

    /// Plans windows of at least `frames` frames; 0 leaves them open.
    fn new(kind: W, threads: usize, frames: usize) -> Windows<W> {
        let reach = kind.encoder_reach().max(kind.decoder_reach());
        let (frame, books) = (kind.spec().frame, &kind.spec().codebooks);
        let codes = books.iter().map(|book| book.per_frame).max().unwrap_or(1);
        let least = match frames {
            0 => WINDOW.div_ceil(frame).min(WINDOW_CODES.div_ceil(codes)).max(4 * reach),
            frames => frames,
        };
        let frames = least.max(2 * reach + 1).next_multiple_of(PHASES);
        let threads = threads.max(1);
        let encode = planned(&kind, Direction::Encode, frames, threads);
        let decode = planned(&kind, Direction::Decode, frames, threads);
        Windows { kind, threads, frames, encode, decode, open: None }
    }

    /// Returns what its kind brought.
    pub fn kind(&self) -> &W {
        &self.kind
    }

    /// Returns the frames of a window.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the bytes of the arena that is open, if one is.
    pub fn open_bytes(&self) -> Option<u64> {
        self.open.as_ref().map(|(_, exec)| exec.arena_bytes())
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
            Direction::DecodeNoisy => planned(&self.kind, direction, self.frames, self.threads),
        };
        let mut exec = CpuExecutor::open(planned, self.threads)?;
        self.kind.load(&mut exec)?;
        self.open = Some((direction, exec));
        Ok(())
    }

    /// Returns the number of samples of a window.
    fn window(&self) -> usize {
        self.frames * self.kind.spec().frame
    }

    /// Returns the arena that is open, and the kind.
    fn exec(&mut self) -> Result<(&mut CpuExecutor, &W), RunError> {
        match &mut self.open {
            Some((_, exec)) => Ok((exec, &self.kind)),
            None => Err(RunError::Training("the codec was used before it was opened".to_owned())),
        }
    }

    /// Tells a program how many rows of each of its tables are sound.
    fn write_tables(&mut self, program: &str, valid: impl Fn(&W, Table) -> usize) -> Result<(), RunError> {
        let window = self.window();
        let (exec, kind) = self.exec()?;
        alone::write_tables(exec, program, window, |table| valid(kind, table))
    }
}

impl<W: Windowed> super::Codec for Windows<W> {
    fn spec(&self) -> &Spec {
        self.kind.spec()
    }

    fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        self.kind.fingerprint()
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

    fn encoding(&mut self) -> Result<Box<dyn super::Encoding + '_>, RunError> {
        self.ready(Direction::Encode)?;
        let codes = Codes { layers: vec![Vec::new(); self.spec().codebooks.len()] };
        Ok(Box::new(Encoding { codec: self, held: Vec::new(), start: 0, done: 0, codes }))
    }

    fn decoding_of<'c>(
        &'c mut self,
        codes: &'c Codes,
        total: usize,
        seed: Option<u64>,
    ) -> Result<Box<dyn super::Decoding + 'c>, RunError> {
        if seed.is_some() && !self.kind.has_noise() {
            let why = "this codec's decoder draws no noise; leave the seed out";
            return Err(RunError::Usage(why.to_owned()));
        }
        self.ready(if seed.is_some() { Direction::DecodeNoisy } else { Direction::Decode })?;
        let audio = vec![0.0; self.window()];
        Ok(Box::new(Decoding { codec: self, codes, seed, total, start: 0, done: 0, audio }))
    }
}

/// Returns the session of one direction.
fn planned<W: Windowed>(
    kind: &W,
    direction: Direction,
    frames: usize,
    threads: usize,
) -> Arc<PlannedSession> {
    alone::planned(threads, |s| kind.program(s, direction, frames * kind.spec().frame))
}

/// A sound being encoded.
struct Encoding<'c, W> {
    codec: &'c mut Windows<W>,
    /// Samples from the frame `start` on, at most a window.
    held: Vec<f32>,
    start: usize,
    /// Frames whose codes are known.
    done: usize,
    codes: Codes,
}

impl<W: Windowed> super::Encoding for Encoding<'_, W> {
    fn push(&mut self, mut samples: &[f32]) -> Result<(), RunError> {
        let (frame, window) = (self.codec.kind.spec().frame, self.codec.window());
        let reach = self.codec.kind.encoder_reach();
        while !samples.is_empty() {
            if self.held.len() == window {
                // More follows: the last frames wait for what is within their reach.
                let until = self.start + self.codec.frames - reach;
                self.run(until)?;
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
        let until = self.start + self.codec.kind.frames(self.held.len());
        if until > self.done {
            self.run(until)?;
        }
        Ok(self.codes)
    }
}

impl<W: Windowed> Encoding<'_, W> {
    /// Encodes what is held, and keeps the codes of the frames `done..until`.
    fn run(&mut self, until: usize) -> Result<(), RunError> {
        let len = self.held.len();
        self.held.resize(self.codec.window(), 0.0);
        self.codec.write_tables(ENCODE, |kind, table| kind.encoder_rows(table, len))?;
        let frames = self.codec.frames;
        let (exec, kind) = self.codec.exec()?;
        exec.write_f32(ENCODE, "audio", 0, &self.held)?;
        exec.run(ENCODE, 0)?;
        for (i, (layer, book)) in self.codes.layers.iter_mut().zip(&kind.spec().codebooks).enumerate() {
            let each = book.per_frame;
            let mut codes = vec![0.0; frames * each];
            exec.read_f32(ENCODE, &format!("codes.{i}"), 0, &mut codes)?;
            let kept = &codes[(self.done - self.start) * each..(until - self.start) * each];
            if kept.iter().any(|c| *c as usize >= book.size) {
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
struct Decoding<'c, W> {
    codec: &'c mut Windows<W>,
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

impl<W: Windowed> super::Decoding for Decoding<'_, W> {
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError> {
        if self.done == self.total {
            return Ok(None);
        }
        let (frames, start) = (self.codec.frames, self.start);
        let reach = self.codec.kind.decoder_reach();
        let valid = frames.min(self.total - start);
        let last = start + valid == self.total;
        let until = if last { self.total } else { start + valid - reach };
        self.codec.write_tables(DECODE, |kind, table| kind.decoder_rows(table, valid, last))?;
        let (exec, kind) = self.codec.exec()?;
        for (i, (layer, book)) in self.codes.layers.iter().zip(&kind.spec().codebooks).enumerate() {
            let each = book.per_frame;
            let mut ids = vec![-1; frames * each];
            let codes = &layer[start * each..(start + valid) * each];
            ids.iter_mut().zip(codes).for_each(|(id, code)| *id = *code as i32);
            exec.write_i32(DECODE, &format!("codes.{i}"), 0, &ids)?;
        }
        if let Some(seed) = self.seed {
            kind.noise(
                seed,
                start,
                frames,
                &mut |name, values| Ok(exec.write_f32(DECODE, name, 0, values)?),
            )?;
        }
        exec.run(DECODE, 0)?;
        exec.read_f32(DECODE, "audio", 0, &mut self.audio)?;
        let frame = kind.spec().frame;
        let first = (self.done - start) * frame;
        let end = if last { kind.spec().samples(valid) } else { (until - start) * frame };
        self.done = until;
        self.start = until.saturating_sub(reach);
        Ok(Some(&self.audio[first..end]))
    }
}
