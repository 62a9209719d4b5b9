//! Whisper: an encoder of log-mel frames and a decoder that writes what is said (Radford et al., arXiv 2212.04356).

pub mod config;
pub mod decoder;
pub mod encoder;
mod layers;
pub mod score;
