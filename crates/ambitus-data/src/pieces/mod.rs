//! Speech as text ids and sound, perhaps with codes that are made of it: training cuts a piece of it that differs from use to use.
//!
//! [`prepare_pieces`] makes the clips ([`PieceClip`]) with a tokenizer that the caller brings, and a codec where there are codes.

mod clip;
mod prepare;

pub use clip::{Counts, PieceClip, load_counts, load_piece_clip};
pub use prepare::{PiecesOptions, piece_lengths, prepare_pieces};

use crate::sources::Entry;

/// The tokenizer, as passes over a data set see it.
pub trait Texts: Sync {
    /// Returns the ids of a text, P of them; `entry` says what else the data set does: who speaks, ids of its own.
    ///
    /// # Errors
    /// Why the text cannot be used.
    fn ids(&self, text: &str, entry: &Entry) -> Result<Vec<u32>, String>;

    /// Changes whenever ids may; part of every key.
    fn fingerprint(&self) -> [u8; 32];
}

/// The audio codec, of one codebook. It is called from one thread at a time, in any order of the clips.
pub trait Codec: Send {
    /// Returns the codes of mono samples at the options' rate: one for each frame that they begin.
    ///
    /// # Errors
    /// Only what is wrong with the codec: an error ends the pass.
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<u32>, String>;

    /// Changes whenever codes may change, as with other weights; part of every key.
    fn fingerprint(&self) -> [u8; 32];
}
