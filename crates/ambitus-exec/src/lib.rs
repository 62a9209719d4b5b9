//! The executor seam, the null executor and the CPU executor.
//!
//! An executor takes a [`PlannedSession`](ambitus_ir::plan::PlannedSession), allocates its arena once and runs its
//! programs there. It can only use what the plan gave it.

pub mod cpu;
pub mod executor;
pub mod null;
pub mod transfer;
