//! From a recipe to a finished run: planning, loading, the loop, checkpoints, metrics, reports.

pub mod asked;
mod average;
pub mod budget;
pub mod cards;
pub mod cluster;
pub mod data;
mod describe;
pub mod device;
pub mod doctor;
mod dump;
pub mod export;
pub mod finish;
pub mod gradients;
mod host;
pub mod launch;
pub mod load;
pub mod loader;
pub mod memory;
pub mod metrics;
pub mod parts;
pub mod pictures;
pub mod pieces;
pub mod placed;
pub mod placements;
mod ranks;
mod refusal;
pub mod resolve;
mod room;
pub mod run;
pub mod run_dir;
pub mod runs;
pub mod saved;

pub mod search;
pub mod session;
pub mod sizes;
pub mod stages;
#[cfg(test)]
mod testing;
pub mod tiers;
pub mod trainer;
pub mod validate;
mod variants;
mod watcher;
pub mod world;

pub use ambitus_compile::passes::shard::{Sharding, Strategy, Units};
pub use ambitus_data::silence_caught_panics;
pub use ambitus_models::f5::config::Variant;
