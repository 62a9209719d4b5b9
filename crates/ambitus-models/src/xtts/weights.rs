//! Names and fresh values of an XTTS v2 decoder's tensors, and what training it in PyTorch takes.
//!
//! States carry the names of `model.pth`: `gpt.gpt.h.0.attn.c_attn.weight`.

use super::config::{Config, FRAMES};
use crate::init::Init;

/// How names of layers end whose weights lie `[In, Out]`: all matrices of a block.
pub const BY_COLUMNS: [&str; 4] = [".attn.c_attn", ".attn.c_proj", ".mlp.c_fc", ".mlp.c_proj"];
/// The layers that adapters go to by default: the same.
pub const ADAPTED: [&str; 4] = ["*.attn.c_attn", "*.attn.c_proj", "*.mlp.c_fc", "*.mlp.c_proj"];
/// What the project's trainer leaves out of weight decay (`optimizer_wd_only_on_weights`): biases, torch's norms and embeddings. The
/// perceiver's norm and latents decay.
pub const NO_DECAY: [&str; 5] = ["*.bias", "*.ln_*", "*.final_norm", "*.attn.*.norm", "*_embedding"];
/// Parameters of codec, vocoder and speaker encoder, which the project's trainer keeps beside the model.
const FROZEN_PARAMETERS: u64 = 24_251_392 + 27_315_792 + 17_827_808 + 8_028_492;

/// Returns how a tensor is drawn for training from scratch, as the project's `GPT` does: GPT-2's spread, torch's fan-in elsewhere.
pub fn init(name: &str) -> Init {
    let (layer, kind) = name.rsplit_once('.').unwrap_or(("", name));
    let norm = ["ln_1", "ln_2", "ln_f", "final_norm", ".norm"].iter().any(|n| layer.ends_with(n));
    match kind {
        "gamma" => Init::Constant(1.0),
        "weight" if norm => Init::Constant(1.0),
        "bias" => Init::Zero,
        // A residual branch that begins as none.
        "weight" if layer.ends_with("proj_out") => Init::Zero,
        _ => Init::Normal(0.02),
    }
}

/// Returns the bytes of the project's training step, by arithmetic: AdamW, fp32, attention by SDPA in math, nothing recomputed; `mixed`
/// is autocast to 16 bits.
///
/// States: 16 a trained parameter (weight, gradient, two moments), with autocast 18; 4 a frozen one. Numbers that are saved for backward
/// (coqui-tts 0.28, torch 2.6, counted by hooks: of a clip of 11 s 83 MiB a layer, and 219 MiB besides): of a row and layer 36 D, and the
/// scores of all heads before and after dropout; of each of six conditioning blocks 7 D a frame, and the scores once; logits thrice.
pub fn original_bytes(cfg: &Config, parameters: u64, rows: usize, mixed: bool) -> u64 {
    let [d, layers, heads, rows] = [cfg.dim, cfg.layers, cfg.heads, rows].map(|n| n as u64);
    let clip = cfg.rows_of(150, 237) as u64;
    let clips = rows.div_ceil(clip);
    let (each, wide) = if mixed { (18, 2) } else { (16, 4) };
    let layer = 36 * d * wide + 2 * wide * heads * clip.min(rows);
    let encoder = 6 * wide * (7 * d * FRAMES as u64 + heads * (FRAMES * FRAMES) as u64);
    let heads_of = 3 * wide * (cfg.text_vocab + cfg.codes) as u64;
    parameters * each + 4 * FROZEN_PARAMETERS + rows * (layer * layers + heads_of) + clips * encoder
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What hooks counted of one clip of 11 s with 150 ids: 2.65 GiB, besides states.
    #[test]
    fn activations_are_those_that_were_counted() {
        let cfg = Config::v2();
        let of = |rows| original_bytes(&cfg, 0, rows, false) - 4 * FROZEN_PARAMETERS;
        let gib = of(cfg.rows_of(150, 237)) as f64 / f64::from(1 << 30);
        assert!((gib / 2.65 - 1.0).abs() < 0.03, "{gib}");
    }
}
