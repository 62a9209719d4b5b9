//! What a run is asked to be: recipes in YAML, and other trainers' settings read into one.

pub mod import;
pub mod near;
pub mod rates;
pub mod recipe;
pub mod size;
