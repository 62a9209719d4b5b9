//! Forward steps small enough for a slow interpreter, named `micro`: subjects of tests that are not about a family.

use crate::{Capacity, f5, orpheus};
use ambitus_ir::{Program, Session};

/// Mel channels of frames.
pub const MELS: usize = f5::config::MELS;
/// Of micro-batches of frames.
pub const FRAMES: Capacity = Capacity { rows: 17, clips: 3 };
/// Of micro-batches of tokens.
pub const TOKENS: Capacity = Capacity { rows: 15, clips: 3 };
fn frames(text_mask: bool, rotated: usize) -> f5::config::Config {
    f5::config::Config {
        dim: 16,
        depth: 2,
        heads: 2,
        dim_head: 4,
        ff_dim: 24,
        dropout: 0.2,
        text_dim: 8,
        conv_layers: 2,
        text_rows: 12,
        text_mask,
        rotated,
        qk_norm: text_mask,
        long_skip: text_mask,
    }
}

/// Builds the loss of flow matching over frames, filler masked, rotary on every head.
pub fn frames_v1(s: &mut Session) -> Program {
    f5::model::loss(s, &frames(true, 2), FRAMES, "micro", true)
}

/// Builds the loss of flow matching over frames, filler not masked, rotary on one head.
pub fn frames_v0(s: &mut Session) -> Program {
    f5::model::loss(s, &frames(false, 1), FRAMES, "micro", true)
}

/// Returns a small Llama of many words.
pub fn wide_config() -> orpheus::config::Config {
    orpheus::config::Config {
        dim: 16,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        layers: 1,
        vocab: 2500,
        ..tokens()
    }
}

/// Builds the loss of a tied Llama of many words.
pub fn tokens_wide(s: &mut Session) -> Program {
    orpheus::model::loss(s, &wide_config(), TOKENS, "micro")
}

/// Builds the loss of a Llama of many words with a head of its own.
pub fn tokens_wide_untied(s: &mut Session) -> Program {
    orpheus::model::loss(s, &orpheus::config::Config { tied: false, ..wide_config() }, TOKENS, "micro")
}

/// Builds the loss of a small Llama of many words in rows with pads.
pub fn tokens_odd(s: &mut Session) -> Program {
    let cfg = orpheus::config::Config { dim: 35, vocab: 16_500, ..wide_config() };
    orpheus::model::loss(s, &cfg, TOKENS, "micro")
}

/// Builds the loss of [`frames_v1`] with four blocks.
pub fn frames_deep(s: &mut Session) -> Program {
    let cfg = f5::config::Config { depth: 4, ..frames(true, 2) };
    f5::model::loss(s, &cfg, FRAMES, "micro", true)
}

/// Returns a tied Llama of three layers.
pub fn tokens_deep(s: &mut Session) -> Program {
    orpheus::model::loss(s, &orpheus::config::Config { layers: 3, ..tokens() }, TOKENS, "micro")
}

/// Builds the loss of a Llama of three layers with a head of its own.
pub fn tokens_untied(s: &mut Session) -> Program {
    let cfg = orpheus::config::Config { layers: 3, tied: false, ..tokens() };
    orpheus::model::loss(s, &cfg, TOKENS, "micro")
}

/// Builds the loss of a tied Llama of two layers.
pub fn tokens_loss(s: &mut Session) -> Program {
    orpheus::model::loss(s, &tokens(), TOKENS, "micro")
}

fn tokens() -> orpheus::config::Config {
    orpheus::config::Config {
        dim: 12,
        heads: 6,
        kv_heads: 2,
        head_dim: 4,
        ffn: 20,
        layers: 2,
        vocab: 23,
        eps: 1e-5,
        rope_base: 10_000.0,
        stretch: Some(orpheus::config::Stretch { factor: 4.0, low: 1.0, high: 4.0, original: 64.0 }),
        tied: true,
        spread: 0.02,
    }
}
