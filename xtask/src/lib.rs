//! What is done by hand, as a library so that tests can do it on the emulated card: `cargo xtask gpu` runs everything that
//! needs a card ([`gpu`]), `cargo xtask nvrtc` fetches the compiler for kernels ([`nvrtc`]).

pub mod f5;
pub mod gpu;
pub mod nvrtc;
pub mod ops;
pub mod peers;
pub mod programs;
pub mod report;
