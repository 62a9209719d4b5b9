//! Music as codes of a codec with several codebooks, beside what a text encoder or its reader makes of descriptions and metadata.
//!
//! A file is encoded once, whole and piece by piece, whatever its length ([`prepare_music`]); files are never cut on the disk. Training
//! draws a segment of the codes for each use ([`MusicClip::segment`]), and reads those alone. With [`Pieces::Drawn`] some segments are drawn while
//! preparing instead and each is encoded by itself, as a codec with a memory hears it then. Descriptions as states are those of
//! [`codes`](crate::codes).
//!
//! A segment is as long as `data.max_seconds`, and ends within the file: audiocraft's may begin nearer to the end than that, is filled up
//! with zeros and trained on their codes.

mod clip;
mod hearing;
mod prepare;

pub use clip::{MusicClip, load_music_clip};
pub use prepare::{Counts, LONGEST, MusicOptions, Pieces, longest_file, music_lengths, prepare_music};

use crate::error::DataError;

/// What is told of a clip.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// Its description, not empty.
    pub description: Option<&'a str>,
    /// Its metadata: names and values, see [`Entry::fields`](crate::sources::Entry::fields).
    pub fields: &'a [(String, String)],
}

/// What a clip's file keeps of what is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Numbers that only the model's family reads: what a use draws its text from.
    pub numbers: Vec<u32>,
    /// Ids of the description as it stands; 0 without.
    pub plain: usize,
    /// Most ids of any use.
    pub longest: usize,
}

/// The reader of texts, as passes over a data set see it.
pub trait Texts: Sync {
    /// Returns what is kept of what is told.
    ///
    /// # Errors
    /// Why it cannot be used.
    fn kept(&self, told: Told<'_>) -> Result<Kept, String>;

    /// Changes whenever that may; part of every key.
    fn fingerprint(&self) -> [u8; 32];
}

/// Gives the next samples of a sound; `None` at its end.
pub type Sound<'s> = dyn FnMut() -> Result<Option<Vec<f32>>, DataError> + 's;

/// The audio codec, of one channel. It is called from one thread at a time, in any order of the clips.
pub trait Codec: Send {
    /// Returns the codes of a sound at the options' rate, a code of each codebook for each frame that it begins. It comes in pieces. The
    /// inner error is what is wrong with the codec, which ends the pass; the outer one is the sound's.
    ///
    /// # Errors
    /// Those of `sound`.
    fn encode(&mut self, sound: &mut Sound<'_>) -> Result<Result<Vec<Vec<u32>>, String>, DataError>;

    /// Changes whenever codes may change, as with other weights; part of every key.
    fn fingerprint(&self) -> [u8; 32];
}
