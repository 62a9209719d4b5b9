//! DAC, the Descript audio codec (Kumar et al., arXiv 2306.06546; `descript-audio-codec` 1.0): samples to codes and back.

pub mod config;
pub mod model;
pub mod weights;
