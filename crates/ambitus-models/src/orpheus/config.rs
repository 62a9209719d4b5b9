//! The shape of a Llama model, from Hugging Face's `config.json`.
//!
//! Keys that are not known are passed over, as transformers does: the file is its. Keys that would change numbers in a way
//! that is not computed here are refused. Defaults are `LlamaConfig`'s (transformers 4.57), but for sizes, which must be there.

use crate::error::{ConfigError, err, sensible};
use crate::model::Rows;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// A token of a packed batch. A second of audio has 24,000 / 2,048 SNAC frames of 7 tokens.
pub const ROWS: Rows = Rows { unit: "tokens", per_second: 7.0 * 24_000.0 / 2_048.0, most: None };

/// `config.json`: what matters of it.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct File {
    #[serde(default)]
    pub architectures: Option<Vec<String>>,
    #[serde(default)]
    pub model_type: Option<String>,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    #[serde(default)]
    pub num_key_value_heads: Option<usize>,
    #[serde(default)]
    pub head_dim: Option<usize>,
    #[serde(default)]
    pub hidden_act: Option<String>,
    #[serde(default)]
    pub rms_norm_eps: Option<f64>,
    #[serde(default)]
    pub attention_bias: Option<bool>,
    #[serde(default)]
    pub mlp_bias: Option<bool>,
    #[serde(default)]
    pub attention_dropout: Option<f64>,
    #[serde(default)]
    pub tie_word_embeddings: Option<bool>,
    #[serde(default)]
    pub initializer_range: Option<f64>,
    /// transformers 4.
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// transformers 4.
    #[serde(default)]
    pub rope_scaling: Option<Rope>,
    /// transformers 5.
    #[serde(default)]
    pub rope_parameters: Option<Rope>,
    #[serde(default)]
    pub partial_rotary_factor: Option<f64>,
    #[serde(default)]
    quantization_config: Option<IgnoredAny>,
}

/// `rope_scaling` of transformers 4, `rope_parameters` of transformers 5.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Rope {
    pub rope_type: Option<String>,
    /// The older name of `rope_type`.
    #[serde(rename = "type")]
    pub old_type: Option<String>,
    pub rope_theta: Option<f64>,
    pub factor: Option<f64>,
    pub low_freq_factor: Option<f64>,
    pub high_freq_factor: Option<f64>,
    pub original_max_position_embeddings: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
}

/// How Llama 3.1 stretches long wavelengths (`rope_type: llama3`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// `factor` by which the longest waves are stretched.
    pub factor: f64,
    /// `low_freq_factor`: waves longer than `original / low` are the longest.
    pub low: f64,
    /// `high_freq_factor`: waves shorter than `original / high` stay.
    pub high: f64,
    /// `original_max_position_embeddings`.
    pub original: f64,
}

/// A checked model shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// D: `hidden_size`.
    pub dim: usize,
    /// Query heads: `num_attention_heads`.
    pub heads: usize,
    /// Key and value heads: `num_key_value_heads`; divides `heads`.
    pub kv_heads: usize,
    /// Channels of a head, even.
    pub head_dim: usize,
    /// `intermediate_size`.
    pub ffn: usize,
    /// `num_hidden_layers`.
    pub layers: usize,
    /// V: `vocab_size`.
    pub vocab: usize,
    /// `rms_norm_eps`.
    pub eps: f32,
    /// `rope_theta`.
    pub rope_base: f64,
    /// `rope_type: llama3`; `default` without.
    pub stretch: Option<Stretch>,
    /// The head is the embedding: `tie_word_embeddings`.
    pub tied: bool,
    /// Standard deviation of a fresh model's matrices: `initializer_range`.
    pub spread: f32,
}

impl Config {
    /// Returns the shape of Orpheus 3B: Llama-3.2-3B with the vocabulary of the fine-tuned release.
    pub fn orpheus_3b() -> Config {
        Config {
            dim: 3072,
            heads: 24,
            kv_heads: 8,
            head_dim: 128,
            ffn: 8192,
            layers: 28,
            vocab: 156_940,
            eps: 1e-5,
            rope_base: 500_000.0,
            stretch: Some(Stretch { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 }),
            tied: true,
            spread: 0.02,
        }
    }
}

fn positive(key: &'static str, n: usize, most: usize) -> Result<usize, ConfigError> {
    if (1..=most).contains(&n) { Ok(n) } else { err(key, format!("{n} is not in 1..={most}")) }
}

fn real(key: &'static str, x: f64, fits: bool, wanted: &str) -> Result<f64, ConfigError> {
    if fits && x.is_finite() { Ok(x) } else { err(key, format!("{x} is not {wanted}")) }
}

impl File {
    /// Checks the file.
    ///
    /// # Errors
    /// Names the key: another architecture, something that is not computed here, or impossible sizes.
    pub fn config(&self) -> Result<Config, ConfigError> {
        self.refuse_others()?;
        let dim = positive("hidden_size", self.hidden_size, 1 << 16)?;
        let heads = positive("num_attention_heads", self.num_attention_heads, 1024)?;
        let kv_heads = positive("num_key_value_heads", self.num_key_value_heads.unwrap_or(heads), heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return err("num_key_value_heads", format!("{kv_heads} does not divide the {heads} heads"));
        }
        let head_dim = match self.head_dim {
            Some(n) => n,
            None if dim.is_multiple_of(heads) => dim / heads,
            None => {
                return err("hidden_size", format!("{dim} is not whole heads of {heads}: say head_dim"));
            }
        };
        positive("head_dim", head_dim, 256)?;
        if !head_dim.is_multiple_of(2) {
            return err("head_dim", format!("{head_dim} is odd; rotary positions need an even head width"));
        }
        let eps = self.rms_norm_eps.unwrap_or(1e-6);
        let spread = self.initializer_range.unwrap_or(0.02);
        let (rope_base, stretch) = self.rope()?;
        let ffn = positive("intermediate_size", self.intermediate_size, 1 << 20)?;
        let layers = positive("num_hidden_layers", self.num_hidden_layers, 1024)?;
        let vocab = positive("vocab_size", self.vocab_size, 1 << 24)?;
        let layer = dim * (2 * (heads + kv_heads) * head_dim + 3 * ffn);
        sensible("hidden_size", (layer * layers + 2 * vocab * dim) as u64)?;
        Ok(Config {
            dim,
            heads,
            kv_heads,
            head_dim,
            ffn,
            layers,
            vocab,
            eps: real("rms_norm_eps", eps, eps > 0.0 && eps < 1.0, "above 0 and below 1")? as f32,
            rope_base,
            stretch,
            tied: self.tie_word_embeddings.unwrap_or(false),
            spread: real("initializer_range", spread, spread > 0.0 && spread < 10.0, "above 0 and below 10")?
                as f32,
        })
    }

    /// Refuses what would change numbers and is not computed here.
    fn refuse_others(&self) -> Result<(), ConfigError> {
        if let Some(names) = self.architectures.as_ref().filter(|n| !n.is_empty())
            && !names.iter().any(|n| n == "LlamaForCausalLM")
        {
            let why = format!("{} is not supported; Orpheus is `LlamaForCausalLM`", names.join(", "));
            return err("architectures", why);
        }
        if let Some(kind) = self.model_type.as_deref().filter(|kind| *kind != "llama") {
            return err("model_type", format!("`{kind}` is not supported; Orpheus is `llama`"));
        }
        if let Some(act) = self.hidden_act.as_deref().filter(|act| !["silu", "swish"].contains(act)) {
            return err("hidden_act", format!("`{act}` is not supported; Orpheus has `silu`"));
        }
        for (key, bias) in [("attention_bias", self.attention_bias), ("mlp_bias", self.mlp_bias)] {
            if bias == Some(true) {
                return err(key, "biases are not supported; Orpheus has none");
            }
        }
        if self.attention_dropout.is_some_and(|p| p != 0.0) {
            return err("attention_dropout", "is not supported; Orpheus is trained without: set it to 0.0");
        }
        let partial = [&self.rope_scaling, &self.rope_parameters].into_iter().flatten();
        let mut partial = partial.map(|r| r.partial_rotary_factor).chain([self.partial_rotary_factor]);
        if partial.any(|p| p.is_some_and(|p| p != 1.0)) {
            return err("partial_rotary_factor", "is not supported; Orpheus rotates whole heads");
        }
        if self.quantization_config.is_some() {
            return err(
                "quantization_config",
                "quantised weights cannot be trained; use the checkpoint that they were made from",
            );
        }
        Ok(())
    }

    /// Reads theta and scaling, in either spelling.
    fn rope(&self) -> Result<(f64, Option<Stretch>), ConfigError> {
        let (key, rope) = match (&self.rope_parameters, &self.rope_scaling) {
            (Some(new), Some(old)) if !agree(new, old, self.rope_theta) => {
                let why = "says something else than rope_scaling and rope_theta: keep one spelling";
                return err("rope_parameters", why);
            }
            (Some(new), _) => ("rope_parameters", new.clone()),
            (None, old) => ("rope_scaling", old.clone().unwrap_or_default()),
        };
        let theta = match (rope.rope_theta, self.rope_theta) {
            (Some(a), Some(b)) if a != b => {
                return err("rope_theta", format!("{b}, but {key}.rope_theta is {a}: keep one"));
            }
            (a, b) => a.or(b).unwrap_or(10_000.0),
        };
        let theta = real("rope_theta", theta, theta > 1.0 && theta < 1e12, "above 1 and below 1e12")?;
        match rope.kind() {
            "default" => Ok((theta, None)),
            "llama3" => Ok((theta, Some(rope.stretch(key)?))),
            other => {
                let why = format!("rope_type `{other}` is not supported; `llama3` and `default` are");
                err(key, why)
            }
        }
    }
}

/// Returns whether a file that has both spellings means one thing.
fn agree(new: &Rope, old: &Rope, theta: Option<f64>) -> bool {
    let named = |r: &Rope| Rope {
        rope_type: Some(r.kind().to_owned()),
        old_type: None,
        rope_theta: r.rope_theta.or(theta),
        ..r.clone()
    };
    named(new) == named(old)
}

impl Rope {
    fn kind(&self) -> &str {
        self.rope_type.as_deref().or(self.old_type.as_deref()).unwrap_or("default")
    }

    fn stretch(&self, key: &'static str) -> Result<Stretch, ConfigError> {
        let of = |name: &str, x: Option<f64>| match x {
            Some(x) if x > 0.0 && x.is_finite() => Ok(x),
            Some(x) => err(key, format!("{name}: {x} is not above 0")),
            None => err(key, format!("{name} is missing; rope_type `llama3` needs it")),
        };
        let stretch = Stretch {
            factor: of("factor", self.factor)?,
            low: of("low_freq_factor", self.low_freq_factor)?,
            high: of("high_freq_factor", self.high_freq_factor)?,
            original: of("original_max_position_embeddings", self.original_max_position_embeddings)?,
        };
        if stretch.factor < 1.0 || stretch.high <= stretch.low {
            return err(key, "factor must be at least 1, and high_freq_factor above low_freq_factor");
        }
        Ok(stretch)
    }
}
