//! Tests through the crate's public interface, in one binary.

mod families;
mod piper;
mod toy;
