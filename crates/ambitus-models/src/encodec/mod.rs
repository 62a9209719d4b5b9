//! EnCodec, a neural audio codec with a memory (Défossez et al., arXiv 2210.13438; transformers' `EncodecModel`, audiocraft's SEANet):
//! samples to codes and back.

pub mod config;
pub mod model;
pub mod tables;
pub mod weights;
