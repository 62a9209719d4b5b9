//! All integration tests of this crate, in one binary: each more would be linked anew.

mod common;
mod text;
mod text_fuzz;
