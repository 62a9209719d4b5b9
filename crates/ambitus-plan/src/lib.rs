//! What a run will take, phase by phase, and the options with which it fits: decided before a weight is read.

pub mod asked;
pub mod budget;
pub mod cards;
mod change;
pub mod cluster;
pub mod data;
mod describe;
pub mod device;
pub mod dump;
pub mod heard;
mod host;
pub mod inference;
pub mod memory;
pub mod parts;
pub mod placement;
mod precision;
pub mod refusal;
pub mod report;
pub mod resolve;
pub mod resolved;
pub mod samples;
pub mod search;
pub mod session;
pub mod sizes;
pub mod speaking;
#[cfg(test)]
mod testing;
pub mod threads;
mod variants;
