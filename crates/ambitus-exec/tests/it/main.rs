//! Integration tests of this crate, in one binary: each more would be linked anew. Those that count what the process allocates
//! have their own.

mod decay;
mod in_backward;
mod loss_scale;
mod offload;
mod parts;
mod place;
mod ranks;
mod shard;
mod steps;
mod transfers;
mod whole_updates;
