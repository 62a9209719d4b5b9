//! Names and fresh values of a Parler-TTS decoder's tensors, and what training it in PyTorch takes.
//!
//! States carry the checkpoint's names: `decoder.model.decoder.layers.0.self_attn.q_proj.weight`.

use super::config::Config;
use crate::init::Init;

/// What stands before the names of the text encoder, and of the audio codec.
const FROZEN: [&str; 2] = ["text_encoder.", "audio_encoder."];
/// The tables of positions.
pub const POSITIONS: [&str; 2] = ["decoder.model.decoder.embed_positions.weights", "embed_positions.weights"];

/// The layers that adapters go to by default: all projections of a block.
pub const ADAPTED: [&str; 6] = ["*.q_proj", "*.k_proj", "*.v_proj", "*.out_proj", "*.fc1", "*.fc2"];

/// Parameters of a DAC at 44.1 kHz, which the project's script keeps beside the model.
const CODEC_PARAMETERS: u64 = 76_651_890;

/// Returns whether a tensor of the project's files is not the decoder's: the frozen text encoder's, or the codec's.
pub fn frozen(name: &str) -> bool {
    FROZEN.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns how a tensor is drawn for training from scratch, as `ParlerTTSPreTrainedModel._init_weights` does.
pub fn init(name: &str, cfg: &Config) -> Init {
    match name.rsplit_once('.') {
        Some((layer, "weight")) if layer.ends_with("layer_norm") => Init::Constant(1.0),
        Some((_, "bias")) => Init::Zero,
        _ => Init::Normal(cfg.spread),
    }
}

/// Returns a table of positions `[n, D]`: of row p the cosines and then the sines of p * w_j, w_j = 10000^(-j / (D/2 - 1))
/// (parler_tts 0.2.3, `ParlerTTSSinusoidalPositionalEmbedding`); `None` for other names.
pub fn made(name: &str, cfg: &Config) -> Option<Vec<f32>> {
    if !POSITIONS.contains(&name) {
        return None;
    }
    let half = cfg.dim / 2;
    let step = (10_000f64.ln() / (half - 1) as f64) as f32;
    let waves: Vec<f32> = (0..half).map(|j| (j as f32 * -step).exp()).collect();
    let row = |p: usize| {
        let angles = waves.iter().map(move |w| p as f32 * w);
        angles.clone().map(f32::cos).chain(angles.map(f32::sin))
    };
    Some((0..cfg.positions).flat_map(row).collect())
}

/// Returns the bytes of the official script's training step, by arithmetic: AdamW and parameters in fp32, attention by SDPA as its
/// published settings have it; `mixed` is bf16 autocast, else fp32.
///
/// States: 16 a trained parameter (weight, gradient, two moments), and a bf16 copy of autocast's (2); 4 a parameter of the DAC. The text
/// encoder is not counted: of the published ones its 0.4 to 1.4 GB come on top. Logits: 14 a row and id of each codebook: bf16 (2;
/// without autocast none), an fp32 copy, log-softmax and its gradient (4 each).
///
/// Activations a row and layer, with width D and inner width f: of each of three norms the residual stream and the normed value (fp32,
/// 24 D), inputs of q, k, v, of the second q and of fc1 cast one by one (10 D), q, k, v, attention's output and log-sum-exp twice (12 D
/// + 8 a head), masks of dropout (3 D), fc1 and its gelu (4 f). In fp32 no value is cast and all have 4 bytes.
pub fn original_bytes(cfg: &Config, parameters: u64, rows: usize, mixed: bool) -> u64 {
    let [d, f, heads] = [cfg.dim, cfg.ffn, cfg.heads].map(|n| n as u64);
    let (each, layer, logit) = match mixed {
        true => (18, 49 * d + 4 * f + 8 * heads, 14),
        false => (16, 51 * d + 8 * f + 8 * heads, 12),
    };
    let per_row = layer * cfg.layers as u64 + 8 * d + logit * (cfg.codebooks * cfg.vocab) as u64;
    parameters * each + 4 * CODEC_PARAMETERS + per_row * rows as u64
}
