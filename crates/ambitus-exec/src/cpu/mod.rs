//! The CPU executor: one arena, all cores.
//!
//! At open every instruction of every program is resolved, once, into a kernel bound to its places; a run walks that list.
//! Nothing is allocated in between: scratch is planned with the values.

#[cfg(exec_wip)]
mod arena;
#[cfg(exec_wip)]
mod core_ops;
#[cfg(exec_wip)]
mod dispatch;
#[cfg(exec_wip)]
mod executor;
#[cfg(exec_wip)]
mod k;
pub mod kernels;
#[cfg(exec_wip)]
mod operand;
#[cfg(exec_wip)]
mod target;
#[cfg(all(test, exec_wip))]
mod tests;
#[cfg(exec_wip)]
mod workspace;

#[cfg(exec_wip)]
pub use arena::Arena;
#[cfg(exec_wip)]
pub use executor::{AsyncMode, CpuExecutor, CpuOptions};
#[cfg(exec_wip)]
pub use target::{CpuTarget, Rates};
