//! Model families: how a folder is recognised and opened, and how its clips are made, drawn, sampled and exported.
//!
//! Each has a folder here and one of the same name in `ambitus-models`; [`ALL`] registers it.

pub mod batches;
pub mod clips;
pub mod codec;
pub mod console;
pub mod cutting;
pub mod dac;
pub mod decode;
pub mod dvae;
pub mod encodec;
pub mod error;
pub mod f5;
pub mod family;
pub mod generate;
pub mod hearing;
pub mod hifigan;
pub mod hugging_face;
pub mod hydra;
pub mod musicgen;
pub mod orpheus;
pub mod parler;
pub mod piper;
pub mod prepare;
pub mod recorded;
pub mod sample;
pub mod sampling;
pub mod small;
pub mod snac;
pub mod speaker;
pub mod speech;
pub mod stop;
pub mod t5;
pub mod tokens;
pub mod vocos;
pub mod weights;
pub mod whisper;
pub mod xtts;

pub use family::{Families, Family, Opened};

/// The codecs and vocoders that Ambitus runs.
pub static CODECS: codec::Kinds = &[&snac::Snac, &dac::Dac, &vocos::Vocos, &dvae::Dvae, &encodec::Encodec];

/// The models that hear and are not trained.
pub static EARS: hearing::Kinds = &[&whisper::Whisper];

/// The families that Ambitus trains.
pub static ALL: Families =
    &[&f5::F5, &orpheus::Orpheus, &parler::Parler, &xtts::Xtts, &musicgen::Musicgen, &piper::Piper];
