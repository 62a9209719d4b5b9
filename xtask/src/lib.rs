//! What is done by hand, as a library so that tests can do it on the emulated card: `cargo xtask gpu` runs everything that
//! needs a card ([`gpu`]), `cargo xtask nvrtc` fetches the compiler for kernels ([`nvrtc`]), `cargo xtask grade` measures whether plans are kept ([`grade`]).

pub mod gpu;
pub mod grade;
pub mod keys;
pub mod nvrtc;
pub mod ops;
pub mod parity;
pub mod peers;
pub mod programs;
pub mod report;
