//! Vocoders as values: mel frames to samples.

use super::{Decoding, Kinds, open_vocoder, whole};
use crate::error::RunError;
use ambitus_data::{griffin_lim, mel};
use std::path::Path;

/// Rounds of Griffin-Lim: enough for a speaker to be known by.
pub const GRIFFIN_LIM_ROUNDS: usize = 48;

/// The mel frames that a vocoder takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mels {
    /// Of the sound, Hz.
    pub rate: u32,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Channels of a frame.
    pub channels: usize,
}

impl Mels {
    /// The frames that clips are made of.
    pub const OF_CLIPS: Mels = Mels { rate: mel::SAMPLE_RATE, hop: mel::HOP, channels: mel::MELS };
}

/// An opened vocoder.
pub trait Vocoder: Send {
    /// For people: `Vocos`.
    fn name(&self) -> &'static str;

    /// Returns the frames that it takes.
    fn mels(&self) -> Mels;

    /// Returns the samples that `frames` frames give.
    fn samples(&self, frames: usize) -> usize;

    /// Returns the bytes that it takes besides the frames and the samples that its caller keeps: known before any weight is
    /// read, and the same for sound of any length.
    fn bytes(&self) -> u64;

    /// Gives back what it holds of [`bytes`](Vocoder::bytes); the next use opens it again.
    fn close(&mut self) {}

    /// Begins to make sound of frames `[T, channels]`, in pieces. The seed is of what is drawn, if anything is.
    ///
    /// # Errors
    /// The executor; weights that cannot be read.
    fn decoding<'v>(&'v mut self, mel: &'v [f32], seed: u64) -> Result<Box<dyn Decoding + 'v>, RunError>;

    /// Returns the samples of frames `[T, channels]`.
    ///
    /// # Errors
    /// As [`Vocoder::decoding`]; frames or weights that do not give numbers.
    fn decode(&mut self, mel: &[f32], seed: u64) -> Result<Vec<f32>, RunError> {
        whole(&mut *self.decoding(mel, seed)?)
    }
}

/// Opens the vocoder of a folder for the frames of clips; without a folder it is [`GriffinLim`].
///
/// # Errors
/// A vocoder of other frames; else as [`open_vocoder`].
pub fn vocoder(kinds: Kinds, dir: Option<&Path>, threads: usize) -> Result<Box<dyn Vocoder>, RunError> {
    let Some(dir) = dir else { return Ok(Box::new(GriffinLim)) };
    let vocoder = open_vocoder(kinds, dir, threads)?;
    let (have, want) = (vocoder.mels(), Mels::OF_CLIPS);
    if have == want {
        return Ok(vocoder);
    }
    let said = |m: Mels| format!("{} channels every {} samples at {} Hz", m.channels, m.hop, m.rate);
    Err(RunError::Model(format!(
        "{}: takes mel frames of {}, the model's have {}; use vocos-mel-24khz",
        dir.display(),
        said(have),
        said(want)
    )))
}

/// Griffin-Lim: no weights, and it buzzes.
pub struct GriffinLim;

impl Vocoder for GriffinLim {
    fn name(&self) -> &'static str {
        "Griffin-Lim"
    }

    fn mels(&self) -> Mels {
        Mels::OF_CLIPS
    }

    fn samples(&self, frames: usize) -> usize {
        frames.saturating_sub(1) * mel::HOP
    }

    fn bytes(&self) -> u64 {
        griffin_lim::GriffinLim::BYTES
    }

    fn decoding<'v>(&'v mut self, mel: &'v [f32], seed: u64) -> Result<Box<dyn Decoding + 'v>, RunError> {
        Ok(Box::new(griffin_lim::GriffinLim::new(mel, GRIFFIN_LIM_ROUNDS, seed)))
    }
}

impl Decoding for griffin_lim::GriffinLim<'_> {
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError> {
        Ok(griffin_lim::GriffinLim::next_piece(self))
    }
}
