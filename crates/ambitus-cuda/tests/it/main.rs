//! All integration tests of this crate, in one binary: each more would be linked anew.

mod compiles;
mod nvml;
