//! The CUDA executor.
//!
//! From the plan to the card: `ops`, the list of what there is for each op, turns every instruction into [`Step`](step::Step)s
//! (kernel launches, matrix products, copies) with the addresses that the plan gave; `driver` records the steps of a program
//! once, as a CUDA graph, and replays it. Kernels are in `kernels/`, `<family>.cu` next to `<family>.rs`.
//!
//! Nothing of CUDA is needed to build: libraries are loaded at run time. Without the feature `driver` there is only what
//! compilation asks of a card ([`CudaTarget`]): plans for any card are made on any machine.

// Then plans ask kernels for their scratch, and nothing launches them.
#![cfg_attr(not(feature = "driver"), allow(dead_code))]

mod bind;
mod kernels;
mod ops;
pub mod step;
mod target;
mod together;

pub use target::{CudaTarget, STATED_RESERVE};

// What runs on a card.
#[cfg(feature = "driver")]
pub mod driver;
#[cfg(feature = "driver")]
mod executor;
#[cfg(feature = "driver")]
pub mod libraries;
#[cfg(feature = "driver")]
pub mod nccl;
#[cfg(feature = "driver")]
pub mod nvml;
#[cfg(feature = "driver")]
pub mod nvrtc;
#[cfg(feature = "driver")]
mod programs;
#[cfg(feature = "driver")]
pub mod reserve;
#[cfg(feature = "driver")]
pub use executor::{CudaExecutor, Ranks, Unopened};
#[cfg(feature = "driver")]
pub use programs::launches;
