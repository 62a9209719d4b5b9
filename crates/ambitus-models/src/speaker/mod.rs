//! A speaker encoder: mel rows of a voice to a direction that says whose it is (`ResNetSpeakerEncoder` of coqui-tts 0.28: a residual
//! network with squeeze and excitation, and attentive statistics over time; Heo et al., arXiv 2009.14153).

pub mod config;
pub mod model;
