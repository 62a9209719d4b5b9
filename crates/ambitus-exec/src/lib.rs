//! The executor seam, the null executor and the CPU executor.
