//! Integration tests of this crate, in one binary: each more would be linked anew. Those that measure what the process allocates
//! have [another](../alone/main.rs).

mod audio;
mod check;
mod codes;
mod corrections;
mod cut;
mod doubts;
mod edits;
mod mels;
mod music;
mod pack;
#[cfg(feature = "parquet")]
mod parquet;
mod pieces;
mod prepare;
mod sets;
mod speech;
mod unigram;
mod vectors;
