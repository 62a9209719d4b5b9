//! Recordings of any length to clips of one or two sentences.
//!
//! A recording is decoded to its end first, so that whatever is wrong with it is known before anything is written. It is then
//! listened to (`activity`), pauses are found (`pauses`), stretches between them are joined to clips (`plan`), and clips are
//! written while it is decoded once more (`write`). Where a transcript comes along (`transcripts`), its segments are the
//! stretches, and their edges are moved into the pauses that are heard near them. Memory is that of the decoder, 450 kB for each
//! hour of sound, and the transcript.

pub(crate) mod activity;
pub(crate) mod pauses;
mod plan;
mod recordings;
mod table;
mod transcripts;
mod write;

use std::path::PathBuf;

pub use recordings::recordings;
pub use write::{Options, cut};

/// A stretch of a recording, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    pub(crate) start: f64,
    pub(crate) end: f64,
}

impl Span {
    pub(crate) fn seconds(self) -> f64 {
        self.end - self.start
    }
}

/// How long clips may be, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Shorter ones are joined to a neighbour where that fits.
    pub least: f64,
    /// Only a stretch without a pause is longer.
    pub most: f64,
}

impl Limits {
    /// Of most speech models: 2 to 12 s.
    pub const USUAL: Limits = Limits { least: 2.0, most: 12.0 };

    /// Returns the length that is wanted: as far above the shortest as below the longest, by their ratios.
    fn wanted(self) -> f64 {
        (self.least * self.most).sqrt()
    }
}

/// What the first look at a recording found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Heard {
    /// Hz.
    pub(crate) rate: u32,
    /// Of a channel.
    pub(crate) samples: u64,
    /// Largest magnitude, 1 = full scale.
    pub(crate) peak: f32,
}

impl Heard {
    pub(crate) fn seconds(&self) -> f64 {
        self.samples as f64 / f64::from(self.rate)
    }
}

/// A recording, and the transcript that comes along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// Audio, or video with an audio track.
    pub path: PathBuf,
    /// SRT, VTT or JSON.
    pub transcript: Option<PathBuf>,
    /// What its clips are called: unique, and of characters that every file system takes.
    pub name: String,
}

/// A clip that was cut.
#[derive(Debug, Clone, PartialEq)]
pub struct Cut {
    /// Its file, below the folder.
    pub file: PathBuf,
    /// What it was cut from, as it was given.
    pub source: PathBuf,
    /// Where it begins there, seconds.
    pub start: f64,
    /// Where it ends there, seconds.
    pub end: f64,
    /// Stretches of speech, or segments, that were joined.
    pub joined: usize,
    /// What is said, where a transcript says so.
    pub text: Option<String>,
    /// Why it ends where it does.
    pub reason: String,
    /// What is wrong with it.
    pub note: Option<Note>,
}

/// What is wrong with a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Longer than clips may be: no pause was heard in it.
    Over,
    /// Longer than clips may be: one segment of a transcript, with nothing by which its text could be parted.
    Segment,
    /// Shorter than clips shall be: no neighbour that it could be joined to.
    Under,
}

/// A stretch of a recording that is in no clip, although it is no pause.
#[derive(Debug, Clone, PartialEq)]
pub struct Left {
    /// Recording, as it was given.
    pub source: PathBuf,
    /// Where it begins, seconds.
    pub start: f64,
    /// Where it ends, seconds.
    pub end: f64,
    /// Why.
    pub reason: String,
}

/// What became of recordings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Clips {
    /// Clips, in the order of recordings and times.
    pub cuts: Vec<Cut>,
    /// What is in no clip.
    pub left: Vec<Left>,
    /// Of all recordings, seconds.
    pub seconds: f64,
    /// Clips that were there already.
    pub there: usize,
}
