//! All integration tests of this crate, in one binary: each more would be linked anew.

mod common;
mod decay;
mod detach;
mod golden;
mod golden_steps;
mod gradients;
mod in_backward;
mod lifetimes;
mod named_ops;
mod narrow;
mod numerics;
mod offload;
mod place;
mod plans;
mod precision;
mod random_programs;
mod shard;
mod solve_fuzz;
mod tape;
mod trained;
mod two_players;
mod verifier;
mod whole_updates;
