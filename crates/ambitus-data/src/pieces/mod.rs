//! Speech as text ids and codes, with the sound of which the codes were made: training cuts a piece of it that differs from use to use.
//!
//! [`prepare_pieces`] makes the clips ([`PieceClip`]) with a tokenizer and a codec that the caller brings.

mod clip;
mod prepare;

pub use clip::{Counts, PieceClip, load_counts, load_piece_clip};
pub use prepare::{PiecesOptions, piece_lengths, prepare_pieces};

/// The tokenizer, as passes over a data set see it.
pub trait Texts: Sync {
    /// Returns the ids of a text, P of them.
    ///
    /// # Errors
    /// Why the text cannot be used.
    fn ids(&self, text: &str) -> Result<Vec<u32>, String>;

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
