//! Small models without files, one for each kind of rows: subjects of tests that are not about a family.

use crate::f5::F5;
use crate::family::ModelDir;
use crate::orpheus::Orpheus;
use ambitus_models::{f5, orpheus};

/// Returns a model of three blocks over frames, `dim` wide.
pub fn of_frames(dim: usize) -> ModelDir {
    of_blocks(3, dim)
}

/// Returns a model of `depth` blocks over frames, `dim` wide.
pub fn of_blocks(depth: usize, dim: usize) -> ModelDir {
    F5::shaped(f5::config::Config {
        dim,
        depth,
        heads: 2,
        dim_head: dim / 2,
        ff_dim: 2 * dim,
        text_dim: 16,
        conv_layers: 1,
        text_rows: 9,
        rotated: 2,
        ..f5::config::Config::v1_base()
    })
}

/// Returns a model of three blocks over `vocab` tokens, `dim` wide.
pub fn of_tokens(dim: usize, vocab: usize) -> ModelDir {
    Orpheus::shaped(orpheus::config::Config {
        layers: 3,
        dim,
        head_dim: 16,
        ffn: 2 * dim,
        heads: dim / 16,
        kv_heads: dim / 32,
        vocab,
        ..orpheus::config::Config::orpheus_3b()
    })
}
