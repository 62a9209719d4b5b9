//! The `ambitus` command line.
fn main() {}
