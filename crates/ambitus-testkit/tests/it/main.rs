//! All integration tests of this crate, in one binary: each more would be linked anew.

mod alignment;
mod formulas;
mod narrow;
mod ops;
mod spline;
