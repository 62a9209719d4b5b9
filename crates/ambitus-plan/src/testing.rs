//! What several modules' tests share.

use ambitus_families::console::Console;
use ambitus_models::f5::config::Config;
use ambitus_models::orpheus;

/// A console that says nothing.
pub struct Quiet;

impl Console for Quiet {
    fn line(&mut self, _: &str) {}
    fn progress(&mut self, _: &str) {}
}

/// An F5 of three blocks.
pub fn f5() -> Config {
    Config {
        dim: 32,
        depth: 3,
        heads: 2,
        dim_head: 16,
        ff_dim: 64,
        text_dim: 16,
        conv_layers: 1,
        text_rows: 9,
        rotated: 2,
        ..Config::v1_base()
    }
}

/// A Llama of three blocks.
pub fn orpheus() -> orpheus::config::Config {
    orpheus::config::Config {
        layers: 3,
        dim: 32,
        head_dim: 16,
        ffn: 64,
        heads: 2,
        kv_heads: 1,
        vocab: 64,
        ..orpheus::config::Config::orpheus_3b()
    }
}

/// Bytes that decide draws, the same on every machine.
pub fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..256).map(|_| next()).collect()
}
