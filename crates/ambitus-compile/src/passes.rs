//! Passes: each takes a program and gives a better one that computes the same.

pub mod accumulate;
pub mod checkpoint;
pub mod dead;
pub mod freeze;
pub mod fuse;
pub mod in_backward;
pub mod lora;
pub mod lower;
pub mod offload;
pub mod pattern;
pub mod place;
pub mod policy;
pub mod precision;
pub mod pure;
pub mod rows;
pub mod schedule;
pub mod shard;
pub mod simplify;
pub mod unroll;

use crate::CompileError;
use ambitus_ir::{Program, Session};
use std::fmt;

/// What a pass may do to numbers. `tests/numerics.rs` takes every pass off and on, and holds it to this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Numerics {
    /// Bit-equal on and off.
    #[default]
    Exact,
    /// The same sums in another order.
    Reordered,
    /// Other numbers; never chosen unless the recipe allows it.
    Changed,
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Numerics::Exact => "same numbers",
            Numerics::Reordered => "reordered sums",
            Numerics::Changed => "changed numerics",
        })
    }
}

/// One rewrite of one program.
pub trait Pass {
    /// Returns the name in dumps.
    fn name(&self) -> &'static str;
    /// Returns what it may do to numbers.
    fn numerics(&self) -> Numerics;
    /// Changes a session's states before the first program is rewritten. A second call changes nothing.
    fn declare(&self, _: &mut Session) {}
    /// Rewrites the program; may declare states.
    ///
    /// # Errors
    /// What the user asked for and this model cannot give, by name.
    fn run(&self, session: &mut Session, program: Program) -> Result<Program, CompileError>;
}
