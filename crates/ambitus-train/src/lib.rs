//! From a planned run to a finished one: loading, the loop, ranks, checkpoints, metrics, exports, reports.

pub mod check;
pub mod data_loader;
pub mod doctor;
pub mod export;
pub mod finish;
pub mod follow;
pub mod generate;
pub mod gradients;
pub mod hear;
pub mod inference;
pub mod launch;
pub mod listen;
pub mod metrics;
pub mod pictures;
pub mod report;
mod room;
pub mod run;
pub mod run_dir;
pub mod runs_table;
mod samples;
pub mod saved;
pub mod say;
mod stopping;
pub mod tensor_ranges;
mod tensorboard;
pub mod trained;
pub mod trainer;
pub mod validate;
mod watcher;
pub mod weights;
pub mod world;
pub mod writing;

pub use ambitus_compile::passes::shard::{Sharding, Strategy, Units};
pub use ambitus_data::silence_caught_panics;
