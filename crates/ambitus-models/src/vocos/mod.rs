//! Vocos, a vocoder: mel frames to the spectra of the sound (Siuzdak, arXiv 2306.00814; `vocos` 0.1).

pub mod config;
pub mod head;
pub mod model;
