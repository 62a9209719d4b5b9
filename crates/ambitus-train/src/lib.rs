//! From a recipe to a finished run: planning, loading, the loop, checkpoints, metrics, reports.

pub mod budget;
pub mod doctor;
pub mod error;
pub mod gradients;
pub mod load;
pub mod memory;
pub mod model_dir;
pub mod metrics;
pub mod pictures;
pub mod recipe;
pub mod runs;
pub mod schedule;
pub mod session;
pub mod size;
