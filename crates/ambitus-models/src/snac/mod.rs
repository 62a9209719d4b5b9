//! SNAC, a neural audio codec (Siuzdak et al., arXiv 2410.14411; `snac` 1.2): samples to codes of several rates and back.

pub mod config;
pub mod model;
pub mod noise;
pub mod weights;
