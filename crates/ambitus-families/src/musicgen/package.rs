//! The configuration in audiocraft's checkpoints: YAML of a whole training run, of which four sections say what the model is
//! (`audiocraft/models/builders.py`, `modules/codebooks_patterns.py` and `modules/transformer.py` of 1.3.0).

use super::folder::no_melody;
use crate::hydra::{read, section};
use ambitus_models::ConfigError;
use ambitus_models::musicgen::config::{Config, check_delays};
use ambitus_recipe::recipe::short;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Of `transformer_lm`, what says what is computed. Whether there are biases is said by the tensors.
#[derive(Deserialize)]
struct Lm {
    dim: usize,
    num_heads: usize,
    num_layers: usize,
    n_q: usize,
    card: usize,
    #[serde(default = "four")]
    hidden_scale: f64,
    #[serde(flatten)]
    others: Map<String, Value>,
}

fn four() -> f64 {
    4.0
}

/// `codebooks_pattern`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Pattern {
    modeling: Option<String>,
    delay: Delay,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Delay {
    delays: Option<Vec<usize>>,
    flatten_first: usize,
    empty_initial: usize,
}

/// `fuser`: which conditions are read how.
#[derive(Deserialize)]
struct Fuser {
    cross: Vec<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Default for Fuser {
    fn default() -> Fuser {
        Fuser { cross: vec!["description".to_owned()], others: Map::new() }
    }
}

/// Values of `transformer_lm` that are computed, where they are there.
fn computed() -> [(&'static str, Value); 14] {
    [
        ("activation", "gelu".into()),
        ("norm", "layer_norm".into()),
        ("norm_first", true.into()),
        ("causal", true.into()),
        ("positional_embedding", "sin".into()),
        ("positional_scale", 1.0.into()),
        ("max_period", 10_000.0.into()),
        ("dropout", 0.0.into()),
        ("attention_dropout", 0.0.into()),
        ("past_context", Value::Null),
        ("layer_scale", Value::Null),
        ("qk_layer_norm", false.into()),
        ("qk_layer_norm_cross", false.into()),
        ("kv_repeat", 1.into()),
    ]
}

/// Returns whether both say the same: numbers as such.
fn alike(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|x| b.as_f64() == Some(x))
}

/// Reads the model's shape but for the width of texts, and the name of the condition that is one.
///
/// # Errors
/// Names the key: what is missing, or not computed here.
pub(super) fn config(yaml: &str) -> Result<(Config, String), String> {
    let whole = read(yaml)?;
    let conditioner = conditioner(&whole)?;
    let lm: Lm = section(&whole, "transformer_lm")?;
    for (key, want) in computed() {
        // Dropout of attention is that of all where it is not said.
        if let Some(is) = lm.others.get(key).filter(|is| !alike(is, &want) && !is.is_null()) {
            return Err(format!(
                "transformer_lm.{key}: {} is not computed; {want} is",
                short(&is.to_string())
            ));
        }
    }
    let pattern: Pattern = match whole.get("codebooks_pattern") {
        Some(_) => section(&whole, "codebooks_pattern")?,
        None => Pattern::default(),
    };
    if let Some(other) = pattern.modeling.filter(|name| name != "delay") {
        return Err(format!("codebooks_pattern.modeling: `{}` is not computed; delay is", short(&other)));
    }
    let Delay { delays, flatten_first, empty_initial } = pattern.delay;
    for (key, n) in [("flatten_first", flatten_first), ("empty_initial", empty_initial)] {
        if n != 0 {
            return Err(format!("codebooks_pattern.delay.{key}: {n} is not computed; 0 is"));
        }
    }
    let delays = delays.unwrap_or_else(|| (0..lm.n_q).collect());
    check_delays(&delays, lm.n_q).map_err(|why| format!("codebooks_pattern.delay.delays: {why}"))?;
    let channels = whole.get("channels").and_then(Value::as_u64).unwrap_or(1);
    if !(1..=2).contains(&channels) || !(lm.n_q as u64).is_multiple_of(channels) {
        return Err(format!("channels: {channels} channels do not share {} codebooks", lm.n_q));
    }
    let inner = lm.hidden_scale * lm.dim as f64;
    let config = Config {
        dim: lm.dim,
        heads: lm.num_heads,
        ffn: if inner >= 0.0 && inner < f64::from(u32::MAX) { inner as usize } else { 0 },
        layers: lm.num_layers,
        vocab: lm.card,
        delays,
        channels: channels as usize,
        projects: true,
        ..Config::small()
    };
    let keys = [
        "transformer_lm.dim",
        "transformer_lm.num_heads",
        "transformer_lm.hidden_scale",
        "transformer_lm.num_layers",
        "transformer_lm.card",
        "transformer_lm.n_q",
    ];
    let config = config.checked(keys).map_err(|ConfigError { key, why }| format!("{key}: {why}"))?;
    Ok((config, conditioner))
}

/// Returns the condition that is read across: a text by a frozen T5, and no other.
fn conditioner(whole: &Value) -> Result<String, String> {
    let has = |key: &str| whole.get(key).is_some_and(|value| !value.is_null());
    let all: Map<String, Value> =
        if has("conditioners") { section(whole, "conditioners")? } else { Map::new() };
    let of = |key: &str| all.get(key).and_then(|of| of.get("model")).and_then(Value::as_str);
    if let Some(melody) = all.keys().find(|key| matches!(of(key), Some("chroma_stem" | "style"))) {
        return Err(format!("conditioners.{melody}: {}", no_melody()));
    }
    // Files of other tools may leave out what is the same in all.
    let fuser: Fuser = if has("fuser") { section(whole, "fuser")? } else { Fuser::default() };
    let [text] = &*fuser.cross else {
        return Err(format!("fuser.cross: {} conditions are not read; one text is", fuser.cross.len()));
    };
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    for key in ["sum", "prepend", "input_interpolate"] {
        if fuser.others.get(key).is_some_and(|value| !empty(value)) {
            return Err(format!("fuser.{key}: conditions are read through fuser.cross alone"));
        }
    }
    if fuser.others.get("cross_attention_pos_emb").is_some_and(|value| *value == Value::Bool(true)) {
        return Err("fuser.cross_attention_pos_emb: positions of texts are not computed".to_owned());
    }
    if of(text) != Some("t5") && has("conditioners") {
        let is = of(text).unwrap_or("nothing");
        return Err(format!("conditioners.{text}.model: `{}` is not computed; t5 is", short(is)));
    }
    let t5 = all.get(text).and_then(|of| of.get("t5"));
    let set = |key: &str| t5.and_then(|t5| t5.get(key)) == Some(&Value::Bool(true));
    if let Some(key) = ["finetune", "normalize_text"].into_iter().find(|key| set(key)) {
        return Err(format!("conditioners.{text}.t5.{key}: true is not computed; false is"));
    }
    Ok(text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_models::musicgen::config::delays;

    /// The sections of a checkpoint of `musicgen_base_32khz`, as audiocraft's configuration files make them.
    const PUBLISHED: &str = include_str!("package.yaml");

    #[test]
    fn the_published_model() {
        let (config, text) = config(PUBLISHED).unwrap();
        assert_eq!((config, &*text), (Config::small(), "description"));
        let stereo = PUBLISHED
            .replacen("channels: 1", "channels: 2", 1)
            .replacen("n_q: 4", "n_q: 8", 1)
            .replacen("delays: [0, 1, 2, 3]", "delays: [0, 0, 1, 1, 2, 2, 3, 3]", 1);
        let (stereo, _) = super::config(&stereo).unwrap();
        assert_eq!((stereo.delays, stereo.channels), (delays(8, 2), 2));
        let bare = PUBLISHED.replacen("fuser:", "other:", 1).replacen("conditioners:", "more:", 1);
        assert_eq!(super::config(&bare).unwrap(), super::config(PUBLISHED).unwrap());
        let none = PUBLISHED.replacen("delays: [0, 1, 2, 3]", "delays: null", 1);
        assert_eq!(super::config(&none).unwrap().0.delays, [0, 1, 2, 3]);
    }

    #[test]
    fn what_is_not_computed_is_named() {
        for (from, to, said) in [
            ("norm_first: true", "norm_first: false", "transformer_lm.norm_first: false"),
            ("activation: gelu", "activation: relu", "transformer_lm.activation: \"relu\""),
            ("dropout: 0.0", "dropout: 0.1", "transformer_lm.dropout: 0.1"),
            ("layer_scale: null", "layer_scale: 0.1", "transformer_lm.layer_scale: 0.1"),
            ("embedding: sin", "embedding: rope", "transformer_lm.positional_embedding: "),
            ("modeling: delay", "modeling: parallel", "codebooks_pattern.modeling: `parallel`"),
            ("empty_initial: 0", "empty_initial: 1", "codebooks_pattern.delay.empty_initial: 1"),
            ("[0, 1, 2, 3]", "[0, 1, 2]", "codebooks_pattern.delay.delays: 3 delays"),
            ("channels: 1", "channels: 3", "channels: 3"),
            ("num_heads: 16", "num_heads: 15", "transformer_lm.dim: 1024 is not 15 heads"),
            ("cross: [description]", "cross: [description, genre]", "fuser.cross: 2"),
            ("prepend: []", "prepend: [description]", "fuser.prepend: "),
            ("pos_emb: false", "pos_emb: true", "fuser.cross_attention_pos_emb: "),
            ("model: t5", "model: clap", "conditioners.description.model: `clap`"),
            ("model: t5", "model: chroma_stem", "conditioners.description: melody"),
            ("finetune: false", "finetune: true", "conditioners.description.t5.finetune: true"),
            ("fuser:\n", "fuser: {sum: []}\nfusers:\n", "fuser: missing field `cross`"),
            ("transformer_lm:", "{", ""),
        ] {
            assert!(PUBLISHED.contains(from), "{from}");
            let why = config(&PUBLISHED.replacen(from, to, 1)).unwrap_err();
            assert!(why.contains(said), "{to}: {why}");
        }
    }
}
