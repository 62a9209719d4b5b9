//! F5-TTS: a diffusion transformer over mel frames, trained by conditional flow matching (arXiv 2410.06885).
//!
//! The reference is the package `f5-tts` 1.1.22; `parity/f5/NOTES.md` holds its forward pass line by line.

pub mod batch;
pub mod config;
pub mod draw;
pub mod model;
pub mod weights;
