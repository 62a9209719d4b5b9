//! Audio files to checked, cut, tokenised and cached clips.
//!
//! [`Source::read`] finds out which clips a folder describes, [`prepare()`] turns them into clip files and a
//! [`ClipIndex`], [`load_clip`] reads one back ([`speech`] does the same for sequences of codec tokens, [`codes`] for codes beside
//! descriptions, [`pieces`] for codes with their sound), and [`pack`]/[`updates`] say which clips train together. [`check`] says what is
//! wrong with a data set before.

mod atomic;
pub mod audio;
pub mod check;
mod clip;
pub mod codes;
pub mod cut;
pub mod doubts;
mod error;
mod files;
pub mod griffin_lim;
mod guard;
mod index;
pub mod istft;
mod loudness;
mod measured;
pub mod mel;
pub mod music;
mod order;
mod outcomes;
pub mod pack;
pub mod pieces;
pub mod prepare;
mod rng;
mod scratch;
mod sealed;
mod sound;
pub mod sources;
pub mod speech;
pub mod text;
pub mod updates;
pub mod wav;

pub use clip::{Clip, load_clip};
pub use error::{AudioFault, DataError};
pub use guard::silence_caught_panics;
pub use index::{ClipIndex, ClipMeta, INDEX_FILE, Split, read_index};
pub use measured::{Edited, Measured};
pub use outcomes::{Cause, OUTCOMES_FILE, Outcome, Outcomes, Verdict};
pub use prepare::{Edits, Limits, Policy, PrepareOptions, Prepared, prepare};
pub use sound::SoundWriter;
pub use sources::Source;
pub use text::{Bpe, Tokenizer, TokenizerKind, Unigram, Vocab};
