//! The CUDA executor.
//!
//! From the plan to the card: `bind` turns every instruction into [`Step`](step::Step)s (kernel launches, matrix
//! products, copies) with the addresses that the plan gave; the [`driver`] records the steps of a program once, as a
//! CUDA graph, and replays it. Kernels lie in `kernels/`, `<family>.cu` beside `<family>.rs`.
//!
//! Nothing of CUDA is needed to build: libraries are loaded at run time.

mod bind;
pub mod driver;
mod executor;
mod kernels;
pub mod libraries;
pub mod nvml;
pub mod nvrtc;
pub mod reserve;
pub mod step;
mod target;

pub use executor::CudaExecutor;
pub use target::{CudaTarget, Rates};
