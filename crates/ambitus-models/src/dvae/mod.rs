//! A discrete variational autoencoder of mel frames (`DiscreteVAE` of coqui-tts 0.28): frames to codes and back.

pub mod config;
pub mod model;
pub mod weights;
