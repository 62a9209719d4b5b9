//! Integration tests that measure what this process allocates, one after another ([`counting::ALONE`]): no other tests may run
//! beside them, so that they have a binary of their own.

mod codes;
mod counting;
mod hostile;
mod memory;
mod pieces;
mod tokenizers;
mod unigram;
