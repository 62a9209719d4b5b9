//! Music as codes of a codec with several codebooks, beside what a text encoder makes of descriptions and metadata.
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
pub use prepare::{
    Counts, LONGEST, MusicOptions, Pieces, Weighting, longest_file, music_lengths, prepare_music,
};

use crate::error::DataError;

/// What a clip's file keeps of its texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Ids of the description as it stands; 0 without.
    pub plain: usize,
    /// Most ids of any use.
    pub longest: usize,
    /// The texts of which a use in training draws one; none: the description is its text.
    pub others: Vec<Other>,
}

/// A text that is not the description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Other {
    /// Its ids; 0 of nothing.
    pub ids: usize,
    /// The key of its states.
    pub(crate) states: [u8; 32],
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
