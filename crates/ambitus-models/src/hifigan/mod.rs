//! HiFi-GAN's generator (Kong et al., arXiv 2010.05646): frames of any kind to samples, maybe in the voice that a vector says.

pub mod config;
pub mod model;
pub mod weights;
