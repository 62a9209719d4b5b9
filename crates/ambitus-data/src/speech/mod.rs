//! Speech as one sequence of token ids, for language models over codec tokens.
//!
//! [`interleave`] lays the three layers of SNAC codes out as seven ids a frame, [`sequence`] puts text and audio between
//! their wrapper ids, [`token_clip`] is the prepared file, [`prepare_speech`] makes such files of text and audio.
//! Sets that are tokenised already go through [`prepare_tokens`].

pub mod interleave;
mod prepare;
pub mod sequence;
pub mod token_clip;
mod tokenised;

pub use interleave::Codes;
pub use prepare::{ADVISED_CLIPS, Codec, SpeechOptions, prepare_speech};
pub use sequence::{LabelScope, Sequences};
pub use token_clip::{TokenClip, load_token_clip};
pub use tokenised::{TokenSource, prepare_tokens};
