//! Names and fresh values of a MusicGen decoder's tensors, and what training it in PyTorch takes.
//!
//! States carry the names of `MusicgenForConditionalGeneration`: `decoder.model.decoder.layers.0.self_attn.q_proj.weight`. [`names`] gives
//! them for audiocraft's.

use super::config::Config;
use crate::init::Init;

/// What stands before the names of the text encoder.
pub const TEXT: &str = "text_encoder.";
/// What stands before those of the audio codec.
pub const AUDIO: &str = "audio_encoder.";
const FROZEN: [&str; 2] = [TEXT, AUDIO];
/// The table of positions, which files of transformers before 4.44 hold: it follows from the width.
const POSITIONS: &str = "decoder.model.decoder.embed_positions.weights";

/// The layers that adapters go to by default: all projections of a block.
pub const ADAPTED: [&str; 6] = ["*.q_proj", "*.k_proj", "*.v_proj", "*.out_proj", "*.fc1", "*.fc2"];

/// Parts of a layer in transformers and in audiocraft.
const ATTENTION: [(&str, &str); 2] = [("self_attn", "self_attn"), ("encoder_attn", "cross_attention")];
/// One matrix in audiocraft.
const PROJECTIONS: [&str; 3] = ["q_proj", "k_proj", "v_proj"];
/// In audiocraft, and in transformers.
const PARTS: [(&str, &str); 5] = [
    ("norm1.", "self_attn_layer_norm."),
    ("norm_cross.", "encoder_attn_layer_norm."),
    ("norm2.", "final_layer_norm."),
    ("linear1.", "fc1."),
    ("linear2.", "fc2."),
];

/// Parameters of T5-base's encoder, and of EnCodec at 32 kHz, which audiocraft keeps beside the model.
const BESIDE_PARAMETERS: u64 = 109_628_544 + 56_884_674;

/// Returns whether a tensor of transformers' files is not the decoder's: the frozen text encoder's, or the codec's.
pub fn frozen(name: &str) -> bool {
    FROZEN.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether a tensor of transformers' files is none of a session's.
pub fn beside(name: &str) -> bool {
    frozen(name) || name == POSITIONS
}

/// Returns how a tensor is drawn for training from scratch, as `MusicgenPreTrainedModel._init_weights` does.
pub fn init(name: &str, cfg: &Config) -> Init {
    match name.rsplit_once('.') {
        Some((layer, "weight")) if layer.ends_with("layer_norm") => Init::Constant(1.0),
        Some((_, "bias")) => Init::Zero,
        _ => Init::Normal(cfg.spread),
    }
}

/// Returns the model's names of a tensor of audiocraft's `LMModel` (1.3.0), `conditioner` being the text's: those of equal parts along its
/// first axis, in their order. None: it is not the model's.
pub fn names(theirs: &str, conditioner: &str) -> Vec<String> {
    let leaf = |name: Option<String>| name.into_iter().collect();
    let model = "decoder.model.decoder";
    if let Some(k) = numbered(theirs, "emb.", ".weight") {
        return vec![format!("{model}.embed_tokens.{k}.weight")];
    }
    if let Some(k) = numbered(theirs, "linears.", ".weight") {
        return vec![format!("decoder.lm_heads.{k}.weight")];
    }
    if let Some(end) = theirs.strip_prefix("out_norm.") {
        return vec![format!("{model}.layer_norm.{end}")];
    }
    if let Some(rest) = theirs.strip_prefix("condition_provider.conditioners.") {
        let end = rest.strip_prefix(conditioner).and_then(|rest| rest.strip_prefix(".output_proj."));
        return leaf(end.map(|end| format!("enc_to_dec_proj.{end}")));
    }
    let Some((i, part)) = theirs.strip_prefix("transformer.layers.").and_then(|rest| rest.split_once('.'))
    else {
        return Vec::new();
    };
    let layer = format!("{model}.layers.{i}");
    for (its, own) in ATTENTION {
        let Some(leaf) = part.strip_prefix(own).and_then(|rest| rest.strip_prefix('.')) else { continue };
        // Attention that is torch's own has one module more.
        return match leaf.strip_prefix("mha.").unwrap_or(leaf) {
            "in_proj_weight" => PROJECTIONS.map(|of| format!("{layer}.{its}.{of}.weight")).into(),
            "out_proj.weight" => vec![format!("{layer}.{its}.out_proj.weight")],
            _ => Vec::new(),
        };
    }
    let found = PARTS.iter().find_map(|(own, its)| Some((its, part.strip_prefix(own)?)));
    leaf(found.map(|(its, end)| format!("{layer}.{its}{end}")))
}

/// Returns the name of a tensor of the model in audiocraft's `LMModel`, and which of how many parts of that tensor it is. The inverse of
/// [`names`].
pub fn package_name(own: &str, conditioner: &str) -> (String, (usize, usize)) {
    let whole = |name: String| (name, (0, 1));
    if let Some(end) = own.strip_prefix("enc_to_dec_proj.") {
        return whole(format!("condition_provider.conditioners.{conditioner}.output_proj.{end}"));
    }
    if let Some(rest) = own.strip_prefix("decoder.lm_heads.") {
        return whole(format!("linears.{rest}"));
    }
    let Some(body) = own.strip_prefix("decoder.model.decoder.") else { return whole(own.to_owned()) };
    if let Some(rest) = body.strip_prefix("embed_tokens.") {
        return whole(format!("emb.{rest}"));
    }
    if let Some(rest) = body.strip_prefix("layer_norm.") {
        return whole(format!("out_norm.{rest}"));
    }
    let Some((i, part)) = body.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) else {
        return whole(own.to_owned());
    };
    let layer = format!("transformer.layers.{i}");
    for (its, theirs) in ATTENTION {
        let Some(leaf) = part.strip_prefix(its).and_then(|rest| rest.strip_prefix('.')) else { continue };
        let projection = PROJECTIONS.iter().position(|of| leaf.strip_suffix(".weight") == Some(*of));
        return match projection {
            Some(k) => (format!("{layer}.{theirs}.in_proj_weight"), (k, PROJECTIONS.len())),
            None => whole(format!("{layer}.{theirs}.{leaf}")),
        };
    }
    let found = PARTS.iter().find_map(|(theirs, its)| Some((theirs, part.strip_prefix(its)?)));
    whole(found.map_or(own.to_owned(), |(theirs, end)| format!("{layer}.{theirs}{end}")))
}

fn numbered<'n>(name: &'n str, before: &str, after: &str) -> Option<&'n str> {
    let k = name.strip_prefix(before)?.strip_suffix(after)?;
    k.bytes().all(|b| b.is_ascii_digit()).then_some(k)
}

/// Returns the bytes of audiocraft's training step, by arithmetic: AdamW and its average in fp32 on the same device, memory-efficient
/// attention; `mixed` is fp16 autocast, else fp32.
///
/// States: 20 a trained parameter (weight, gradient, two moments, average), and an fp16 copy of autocast's (2); 4 a parameter of T5-base and
/// EnCodec. Activations a row and layer, with width D: 50 D, in fp32 80 D; besides 13 D a row, and of each codebook's id a logit, its
/// log-softmax and gradient (14; in fp32 12). Saved tensors of audiocraft 1.3.0 were counted: 50.15 D and 80.15 D.
pub fn original_bytes(cfg: &Config, parameters: u64, rows: usize, mixed: bool) -> u64 {
    let dim = cfg.dim as u64;
    let (each, layer, logit) = if mixed { (22, 50 * dim, 14) } else { (20, 80 * dim, 12) };
    let per_row = layer * cfg.layers as u64 + 13 * dim + logit * (cfg.codebooks() * cfg.vocab) as u64;
    parameters * each + 4 * BESIDE_PARAMETERS + per_row * rows as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Capacity;
    use crate::musicgen::config::delays;
    use ambitus_ir::Session;
    use std::collections::BTreeSet;

    /// As audiocraft counts them, and with the text's projection.
    #[test]
    fn published_shapes_have_as_many_parameters() {
        let of = |dim: usize, layers, books| Config {
            dim,
            layers,
            heads: dim / 64,
            ffn: 4 * dim,
            delays: delays(books, 1),
            ..Config::small()
        };
        for (cfg, want) in [
            (Config::small(), 420_371_456),
            (of(1536, 48, 4), 1_838_737_920),
            (of(2048, 48, 4), 3_256_956_928),
            (of(1024, 24, 8), 420_371_456 + 4 * 1024 * (2049 + 2048)),
        ] {
            let mut session = Session::default();
            crate::musicgen::model::loss(&mut session, &cfg, Capacity { rows: 4, clips: 1 }, "micro", true);
            let elements = session.states.iter().map(|s| s.ty.shape.elements()).sum::<usize>();
            assert_eq!(elements, want);
        }
    }

    /// Every tensor of the decoder is one of audiocraft's, or a third of one, and no other is.
    #[test]
    fn audiocrafts_names_are_all_of_the_models() {
        let cfg = Config { layers: 2, dim: 16, heads: 2, ffn: 24, ..Config::small() };
        let mut session = Session::default();
        super::super::model::loss(&mut session, &cfg, Capacity { rows: 4, clips: 1 }, "micro", true);
        let own: BTreeSet<String> = session.states.iter().map(|s| s.name.clone()).collect();
        let mut theirs = vec!["out_norm.weight".to_owned(), "out_norm.bias".to_owned()];
        let text = "condition_provider.conditioners.description.output_proj";
        theirs.extend(["weight", "bias"].map(|end| format!("{text}.{end}")));
        theirs.extend((0..4).flat_map(|k| [format!("emb.{k}.weight"), format!("linears.{k}.weight")]));
        for i in 0..2 {
            let norms = ["norm1", "norm_cross", "norm2"];
            let norms = norms.iter().flat_map(|n| ["weight", "bias"].map(|end| format!("{n}.{end}")));
            let attention = ["self_attn", "cross_attention"].into_iter();
            let parts =
                attention.flat_map(|a| ["in_proj_weight", "out_proj.weight"].map(|w| format!("{a}.{w}")));
            let rest = ["linear1.weight", "linear2.weight"].map(str::to_owned);
            let all = norms.chain(parts).chain(rest);
            theirs.extend(all.map(|part| format!("transformer.layers.{i}.{part}")));
        }
        let found: BTreeSet<String> = theirs.iter().flat_map(|name| names(name, "description")).collect();
        assert_eq!(found, own);
        for theirs in &theirs {
            let parts = names(theirs, "description");
            for (i, own) in parts.iter().enumerate() {
                assert_eq!(package_name(own, "description"), (theirs.clone(), (i, parts.len())));
            }
        }
        let torch = names("transformer.layers.1.self_attn.mha.in_proj_weight", "description");
        assert_eq!(torch, names("transformer.layers.1.self_attn.in_proj_weight", "description"));
        for none in
            ["emb.x.weight", "linears.0.bias", "condition_provider.conditioners.self_wav.output_proj.bias"]
        {
            assert!(names(none, "description").is_empty(), "{none}");
        }
        assert!(beside(POSITIONS) && !frozen(POSITIONS) && frozen("audio_encoder.x"));
    }
}
