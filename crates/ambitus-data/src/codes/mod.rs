//! Speech as codes of a codec with several codebooks, beside a prompt (what is said) and a description (how).
//!
//! [`prepare_states`] runs each different description through the text encoder, once; [`prepare_codes`] makes clips of codes and prompt
//! ids that name their description ([`CodeClip`]). Both take tokenizer, encoder and codec from the caller, so that encoder and codec
//! need not be in memory at the same time.

mod clip;
mod prepare;
mod states;

pub use clip::{CodeClip, load_code_clip};
pub use prepare::{Codec, CodesOptions, Counts, Frames, Rows, code_lengths, prepare_codes};
pub use states::{Encoder, load_states, longest_description, prepare_states, states_bytes};
pub(crate) use states::{key as states_key, load_states_of};

use crate::sources::Entry;

/// The tokenizer, as passes over a data set see it.
pub trait Texts: Sync {
    /// Returns the ids of what is said, P of them.
    ///
    /// # Errors
    /// Why the text cannot be used.
    fn prompt(&self, text: &str) -> Result<Vec<u32>, String>;

    /// Returns the ids of how it is said, U of them.
    ///
    /// # Errors
    /// Why the text cannot be used.
    fn description(&self, text: &str) -> Result<Vec<u32>, String>;

    /// Returns how many texts there are of each clip besides its description, of which a use in training draws one.
    fn others(&self) -> usize {
        0
    }

    /// Returns one of them, by its number; empty if nothing is said. It follows from what is told of the clip alone.
    fn other(&self, entry: &Entry, number: usize) -> String {
        let _ = (entry, number);
        String::new()
    }

    /// Changes whenever ids or other texts may; part of every key.
    fn fingerprint(&self) -> [u8; 32];
}
