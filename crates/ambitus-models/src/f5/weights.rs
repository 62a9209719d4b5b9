//! Names, fresh values and gradients' names of F5-TTS tensors.
//!
//! States carry the checkpoint's names without the trainer's prefix: `transformer.transformer_blocks.0.attn.to_q.weight`.

use super::config::Config;
use crate::init::Init;

/// Prefixes under which files hold the transformer's tensors, the longest first: EMA of released files, compiled modules
/// of third parties.
pub const PREFIXES: [&str; 4] = ["ema_model._orig_mod.", "ema_model.", "_orig_mod.", ""];

/// Returns whether files may hold this tensor besides the model's, and loading skips it: EMA's counters, mel buffers.
pub fn ignored(name: &str) -> bool {
    let name = PREFIXES.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
    matches!(name, "initted" | "step" | "update") || name.starts_with("mel_spec.")
}

/// The layers that are adapted by default: attention's projections and the feed-forward.
pub const ADAPTED: [&str; 6] = ["*.to_q", "*.to_k", "*.to_v", "*.to_out.0", "*.ff.ff.0.0", "*.ff.ff.2"];

/// Returns the bytes of the reference package's fp32 step: 20 per parameter (weight, gradient, two moments, EMA), and per frame
/// 72.1 d per block and 119.6 d elsewhere (measured by hooking what autograd saves; fused attention). `mixed`: with autocast, 22
/// per parameter (weights' 16-bit copies live until backward), 50.1 d per block and 68.2 d elsewhere.
pub fn original_bytes(cfg: &Config, parameters: u64, frames: usize, mixed: bool) -> u64 {
    let (each, block, beside) = if mixed { (22, 50.1, 68.2) } else { (20, 72.1, 119.6) };
    let per_frame = (block * cfg.depth as f64 + beside) * cfg.dim as f64;
    parameters * each + (per_frame * frames as f64) as u64
}

/// Returns true for the text embedding, the only tensor whose rows follow the vocabulary.
pub fn is_text_embedding(name: &str) -> bool {
    name == TEXT_EMBEDDING
}

/// The text embedding's name.
pub const TEXT_EMBEDDING: &str = "transformer.text_embed.text_embed.weight";

/// The rotary buffer's name.
pub const INV_FREQ: &str = "transformer.rotary_embed.inv_freq";

/// Returns the rotary buffer's value: 1 / 10000^(2j / dim_head).
pub fn inv_freq(cfg: &Config) -> Vec<f32> {
    let step = |j: usize| 10000f32.powf((2 * j) as f32 / cfg.dim_head as f32);
    (0..cfg.dim_head / 2).map(|j| 1.0 / step(j)).collect()
}

/// Returns how a tensor is drawn for training from scratch, as the package's constructors do. `dims` is its shape.
///
/// Modulation and output layers start at zero: a fresh model predicts 0, and at first only `proj_out` has a gradient.
pub fn init(name: &str, dims: &[usize], cfg: &Config) -> Init {
    let layer = name.rsplit_once('.').map_or(name, |(layer, _)| layer);
    let is_norm = |s: &str| layer.ends_with(s);
    if name == TEXT_EMBEDDING {
        return Init::Normal(1.0);
    }
    if layer.ends_with("attn_norm.linear")
        || layer.ends_with("norm_out.linear")
        || layer.ends_with("proj_out")
        || layer.ends_with(".grn")
    {
        return Init::Zero;
    }
    if is_norm(".norm") || is_norm(".q_norm") || is_norm(".k_norm") {
        return if name.ends_with("bias") { Init::Zero } else { Init::Constant(1.0) };
    }
    let fan_in = if name.ends_with(".weight") { dims[1..].iter().product() } else { bias_fan_in(layer, cfg) };
    Init::Uniform(1.0 / (fan_in as f32).sqrt())
}

/// Returns the inputs of the layer that a bias belongs to.
fn bias_fan_in(layer: &str, cfg: &Config) -> usize {
    use super::config::{MELS, POSITION_GROUPS};
    let ends = |s: &str| layer.ends_with(s);
    if ends("time_mlp.0") {
        256
    } else if ends("dwconv") {
        7
    } else if ends("pwconv1") {
        cfg.text_dim
    } else if ends("pwconv2") {
        2 * cfg.text_dim
    } else if ends("input_embed.proj") {
        2 * MELS + cfg.text_dim
    } else if layer.contains("conv_pos_embed") {
        cfg.dim / POSITION_GROUPS * 31
    } else if ends("to_out.0") {
        cfg.heads * cfg.dim_head
    } else if ends("ff.ff.2") {
        cfg.ff_dim
    } else {
        cfg.dim
    }
}
