//! Pictures of a run as PNG: loss over the updates, memory over the step, mels of a clip with a masked middle.
//!
//! Drawn by a small canvas of our own with a built-in font: no font files, no system libraries, few dependencies
//! (`docs/decisions/0003-pictures.md`). Every picture has a fixed size, so drawing takes at most [`MEMORY_BYTES`].

mod axes;
mod canvas;
mod font;
mod loss;
mod mel;
mod memory;

use std::path::Path;

use thiserror::Error;

pub use loss::{Curve, LossPicture, Points};
pub use mel::MelPicture;
pub use memory::MemoryPicture;

/// Width of every picture in pixels.
pub const WIDTH: usize = 1200;
/// Height of every picture in pixels.
pub const HEIGHT: usize = 675;
/// Bound on the memory of drawing and writing one picture, beyond its input, for up to 10,000 validations: canvas, compressor
/// and file.
pub const MEMORY_BYTES: u64 = 5 << 20;

/// A picture that cannot be drawn or written.
#[derive(Debug, Error)]
pub enum PictureError {
    /// The input does not fit together.
    #[error("the picture cannot be drawn: {0}")]
    Input(String),
    /// The file cannot be written.
    #[error("{file}: {source}")]
    Write {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Something that can be drawn.
pub trait Picture {
    /// The PNG file's bytes, [`WIDTH`] x [`HEIGHT`] RGB.
    fn png(&self) -> Result<Vec<u8>, PictureError>;

    /// Writes the PNG; it appears whole or not at all.
    fn save(&self, path: &Path) -> Result<(), PictureError> {
        let png = self.png()?;
        let temporary = path.with_extension("png.tmp");
        let written = std::fs::write(&temporary, png).and_then(|()| std::fs::rename(&temporary, path));
        written.map_err(|source| {
            let _ = std::fs::remove_file(&temporary);
            PictureError::Write { file: path.display().to_string(), source }
        })
    }
}

#[cfg(test)]
mod tests;
