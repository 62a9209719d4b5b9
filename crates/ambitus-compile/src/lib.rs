//! How a step gets better: a program goes through passes and comes out planned.
//!
//! [`pipeline`] is the readable list. Nothing here knows of devices, files or configuration; what an executor must be
//! asked goes through [`Target`](ambitus_ir::target::Target).

pub mod autodiff;
mod error;
pub mod optimizer;
pub mod passes;
pub mod pipeline;
pub mod plan;
mod player;

pub use error::CompileError;
