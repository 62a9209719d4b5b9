//! From a recipe to a finished run: planning, loading, the loop, checkpoints, metrics, reports.

pub mod budget;
pub mod cards;
mod describe;
pub mod device;
pub mod doctor;
pub mod error;
pub mod export;
pub mod finish;
pub mod gradients;
mod host;
pub mod load;
pub mod loader;
pub mod memory;
pub mod metrics;
pub mod model_dir;
pub mod pictures;
pub mod recipe;
pub mod resolve;
pub mod run;
pub mod run_dir;
pub mod runs;
pub mod sample;
pub mod saved;
pub mod schedule;
pub mod search;
pub mod session;
pub mod size;
pub mod stages;
pub mod stop;
pub mod tiers;
pub mod trainer;
pub mod validate;
mod variants;

pub use ambitus_models::f5::config::Variant;
