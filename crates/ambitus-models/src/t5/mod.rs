//! T5's encoder: token ids of a text to the states that speech and music models attend to (Raffel et al., arXiv 1910.10683;
//! `README.md` next to this file).

pub mod config;
pub mod model;
pub mod pairs;
pub mod weights;
