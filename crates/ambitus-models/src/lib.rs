//! Model families as programs: what is computed, in the reference's own tensor names. No passes, devices or files here.

pub mod batch;
pub mod common;
pub mod dac;
pub mod decode;
pub mod dvae;
pub mod encodec;
pub mod error;
pub mod f5;
pub mod hifigan;
pub mod init;
mod model;
pub mod musicgen;
pub mod orpheus;
pub mod parler;
pub mod piper;
pub mod small;
pub mod snac;
pub mod speaker;
pub mod t5;
pub mod vocos;
pub mod whisper;
pub mod xtts;

pub use batch::{Batch, Capacity, Layout, Norms, clip_key, one_norm};
pub use error::ConfigError;
pub use model::{Model, Player, Rows};
