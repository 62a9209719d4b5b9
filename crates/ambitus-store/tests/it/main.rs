//! All integration tests of this crate, in one binary: each more would be linked anew.
//!
//! Its allocator counts what each thread allocates ([`counted`]), so that tests may run at the same time.

mod checkpoint;
mod common;
mod counted;
mod faults;
mod fuzz;
mod hostile;
mod pieces;
mod power_loss;
mod safetensors;
mod torch;
mod torch_writer;
