//! The CPU executor: one arena, all cores.
//!
//! At open every instruction of every program is resolved, once, into a kernel bound to its places; a run walks that list.
//! Nothing is allocated in between: scratch is planned with the values.

mod arena;
mod core_ops;
mod disk;
mod dispatch;
mod executor;
mod host;
pub mod kernels;
mod operand;
mod ops;
mod ranks;
mod target;
#[cfg(test)]
mod tests;
mod types;

pub use arena::{Arena, return_freed};
pub use executor::{AsyncMode, CpuExecutor, CpuOptions};
pub use target::CpuTarget;
