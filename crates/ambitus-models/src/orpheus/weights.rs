//! Names and fresh values of Llama tensors, and what training them in PyTorch takes.
//!
//! States carry the checkpoint's names: `model.layers.0.self_attn.q_proj.weight`.

use super::config::Config;
use crate::init::Init;

/// The embedding, and the head of a tied model.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// The head; files of tied models may hold a copy of the embedding under this name.
pub const HEAD: &str = "lm_head.weight";

/// The layers that the official script adapts: all seven projections of a block.
pub const ADAPTED: [&str; 7] =
    ["*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj", "*.gate_proj", "*.up_proj", "*.down_proj"];

/// What transformers' `Trainer` leaves out of weight decay: norms. It leaves out biases as well, of which there are none.
pub const NO_DECAY: [&str; 1] = ["*norm"];

/// Returns whether files may hold this tensor besides the model's, and loading skips it: the rotary buffers of old releases.
pub fn ignored(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}

/// Returns the second names of tensors: a tied model's embedding is the head too.
pub fn aliases(cfg: &Config) -> &'static [(&'static str, &'static str)] {
    if cfg.tied { &[(EMBEDDING, HEAD)] } else { &[] }
}

/// Returns how a tensor is drawn for training from scratch, as `LlamaPreTrainedModel._init_weights` does.
pub fn init(name: &str, cfg: &Config) -> Init {
    let norm = name.rsplit('.').nth(1).is_some_and(|layer| layer.ends_with("norm"));
    if norm { Init::Constant(1.0) } else { Init::Normal(cfg.spread) }
}

/// Returns the bytes of the official script's training step, by arithmetic: transformers 4, AdamW and parameters in fp32;
/// `mixed` is bf16 autocast with flash attention, else fp32.
///
/// States: 16 a parameter (weight, gradient, two moments); autocast keeps a bf16 copy of every weight until backward is over
/// (2). Logits: 14 a token and vocabulary entry: autocast's bf16 (2; without it none), an fp32 copy, log-softmax and its
/// gradient (4 each).
///
/// Activations a token and block, with width d, key width e and inner width f: of each norm the residual stream and the normed
/// value (fp32, 8 d), the inputs of q, k, v, gate and up cast one by one (bf16, 10 d), q and attention's output (4 d), k and v
/// (4 e), attention's log-sum-exp (4 a head), gate, silu, up and their product (8 f): 30 d + 4 e + 8 f + 4 heads, 162 KB of
/// Orpheus 3B. In fp32 the cast inputs are one fp32 value for each norm: 32 d + 8 e + 16 f + 4 heads.
pub fn original_bytes(cfg: &Config, parameters: u64, tokens: usize, mixed: bool) -> u64 {
    let [d, e, f] = [cfg.dim, cfg.kv_heads * cfg.head_dim, cfg.ffn].map(|n| n as u64);
    let heads = cfg.heads as u64;
    let (each, block, last, logit) = if mixed {
        (18, 30 * d + 4 * e + 8 * f + 4 * heads, 10 * d, 14)
    } else {
        (16, 32 * d + 8 * e + 16 * f + 4 * heads, 12 * d, 12)
    };
    let per_token = block * cfg.layers as u64 + last + logit * cfg.vocab as u64;
    parameters * each + per_token * tokens as u64
}
