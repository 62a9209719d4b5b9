//! Pictures of a run as PNG: loss over the updates, memory over the step, mels of a clip with a masked middle.
//!
//! Drawn by a small canvas of our own with a built-in font: no font files, no system libraries, few dependencies
//! (`docs/decisions/0003-pictures.md`). Every picture has a fixed size, so drawing takes at most [`PICTURE_BYTES`](ambitus_plan::budget::PICTURE_BYTES).

mod axes;
mod canvas;
mod font;
mod loss;
mod mel;
mod memory;

use ambitus_families::error::RunError;
use std::path::Path;

use thiserror::Error;

pub(crate) use axes::ticks;
pub use loss::{Curve, LossPicture, Points};
pub use mel::MelPicture;
pub use memory::MemoryPicture;

/// Width of every picture in pixels.
pub const WIDTH: usize = 1200;
/// Height of every picture in pixels.
pub const HEIGHT: usize = 675;

/// A picture that cannot be drawn or written.
#[derive(Debug, Error)]
pub enum PictureError {
    /// The input does not fit together.
    #[error("the picture cannot be drawn: {0}")]
    Input(String),
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] ambitus_store::StoreError),
}

/// Something that can be drawn.
pub trait Picture {
    /// Returns the PNG file's bytes, [`WIDTH`] x [`HEIGHT`] RGB.
    fn png(&self) -> Result<Vec<u8>, PictureError>;

    /// Writes the PNG; it appears whole or not at all.
    fn save(&self, path: &Path) -> Result<(), PictureError> {
        Ok(ambitus_store::write_atomic(path, &self.png()?)?)
    }
}

#[cfg(test)]
mod tests;

impl From<PictureError> for RunError {
    fn from(e: PictureError) -> RunError {
        match e {
            PictureError::Write(e) => e.into(),
            e => RunError::Io(e.to_string()),
        }
    }
}
