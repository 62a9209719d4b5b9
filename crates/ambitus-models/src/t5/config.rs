//! The shape of a T5 encoder, from Hugging Face's `config.json`: its own, or the object `text_encoder` of a larger model's.
//!
//! Keys that are not known are passed over, as transformers does: the file is its, and most of it is about the decoder. Keys that
//! would change numbers in a way that is not computed here are refused. Defaults are `T5Config`'s (transformers 4.46), but for
//! sizes, which must be there.

use super::pairs::{BUCKETS, FARTHEST};
use crate::error::{ConfigError, err, sensible};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The keys of an encoder: what matters of them.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct File {
    #[serde(default)]
    pub model_type: Option<String>,
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_kv: usize,
    pub d_ff: usize,
    pub num_layers: usize,
    pub num_heads: usize,
    #[serde(default)]
    pub relative_attention_num_buckets: Option<usize>,
    #[serde(default)]
    pub relative_attention_max_distance: Option<usize>,
    #[serde(default)]
    pub layer_norm_epsilon: Option<f64>,
    #[serde(default)]
    pub dropout_rate: Option<f64>,
    #[serde(default)]
    pub feed_forward_proj: Option<String>,
    /// What `feed_forward_proj` says, once more.
    #[serde(default)]
    pub dense_act_fn: Option<String>,
    /// What `feed_forward_proj` says, once more.
    #[serde(default)]
    pub is_gated_act: Option<bool>,
    #[serde(default)]
    quantization_config: Option<IgnoredAny>,
}

/// A checked encoder shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// D: `d_model`.
    pub dim: usize,
    /// H: `num_heads`.
    pub heads: usize,
    /// Channels of a head: `d_kv`. Heads together need not be as wide as the model.
    pub head_dim: usize,
    /// `d_ff`.
    pub ffn: usize,
    /// `num_layers`, of the encoder.
    pub layers: usize,
    /// V: `vocab_size`.
    pub vocab: usize,
    /// `layer_norm_epsilon`.
    pub eps: f32,
    /// `feed_forward_proj`: `gated-gelu`, else `relu`.
    pub gated: bool,
    /// `dropout_rate`, in training.
    pub dropout: f32,
}

impl Config {
    /// Returns the shape of `t5-base`.
    pub fn t5_base() -> Config {
        Config {
            dim: 768,
            heads: 12,
            head_dim: 64,
            ffn: 3072,
            layers: 12,
            vocab: 32_128,
            eps: 1e-6,
            gated: false,
            dropout: 0.1,
        }
    }

    /// Returns the shape of `google/flan-t5-large`.
    pub fn flan_t5_large() -> Config {
        Config { dim: 1024, heads: 16, ffn: 2816, layers: 24, gated: true, ..Config::t5_base() }
    }

    /// Returns the width of all heads together.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }
}

impl File {
    /// Checks the keys.
    ///
    /// # Errors
    /// Names the key: another model, something that is not computed here, or impossible sizes.
    pub fn config(&self) -> Result<Config, ConfigError> {
        if let Some(kind) = self.model_type.as_deref().filter(|kind| *kind != "t5") {
            return err("model_type", format!("`{kind}` is not supported, `t5` is"));
        }
        if self.quantization_config.is_some() {
            return err("quantization_config", "use the checkpoint that the quantised one was made from");
        }
        let gated = self.gated()?;
        for (key, have, known) in [
            ("relative_attention_num_buckets", self.relative_attention_num_buckets, BUCKETS),
            ("relative_attention_max_distance", self.relative_attention_max_distance, FARTHEST),
        ] {
            if let Some(n) = have.filter(|n| *n != known) {
                return err(key, format!("{n} is not supported; published encoders have {known}"));
            }
        }
        let eps = self.layer_norm_epsilon.unwrap_or(1e-6);
        if !(eps > 0.0 && eps < 1.0) {
            return err("layer_norm_epsilon", format!("{eps} is not above 0 and below 1"));
        }
        let dropout = self.dropout_rate.unwrap_or(0.1);
        if !(0.0..1.0).contains(&dropout) {
            return err("dropout_rate", format!("{dropout} is not from 0 to below 1"));
        }
        let within = |key, n: usize, most: usize| {
            if (1..=most).contains(&n) { Ok(n) } else { err(key, format!("{n} is not in 1..={most}")) }
        };
        let config = Config {
            dim: within("d_model", self.d_model, 1 << 16)?,
            heads: within("num_heads", self.num_heads, 1024)?,
            head_dim: within("d_kv", self.d_kv, 1024)?,
            ffn: within("d_ff", self.d_ff, 1 << 20)?,
            layers: within("num_layers", self.num_layers, 1024)?,
            vocab: within("vocab_size", self.vocab_size, 1 << 24)?,
            eps: eps as f32,
            gated,
            dropout: dropout as f32,
        };
        let layer = config.dim * (4 * config.inner() + 3 * config.ffn);
        sensible("d_model", (layer * config.layers + config.vocab * config.dim) as u64)?;
        Ok(config)
    }

    /// Returns whether the feed-forward layers are gated.
    fn gated(&self) -> Result<bool, ConfigError> {
        let gated = match self.feed_forward_proj.as_deref().unwrap_or("relu") {
            "relu" => false,
            "gated-gelu" => true,
            other => {
                let why = format!("`{other}` is not supported; `relu` and `gated-gelu` are");
                return err("feed_forward_proj", why);
            }
        };
        // transformers believes these where they are there.
        let function = if gated { "gelu_new" } else { "relu" };
        if let Some(other) = self.dense_act_fn.as_deref().filter(|name| *name != function) {
            return err(
                "dense_act_fn",
                format!("`{other}` is not `{function}`, which feed_forward_proj means"),
            );
        }
        if self.is_gated_act.is_some_and(|said| said != gated) {
            return err(
                "is_gated_act",
                "is not what feed_forward_proj says: set it to that, or leave it out",
            );
        }
        Ok(gated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn published() -> Value {
        json!({
            "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 32128, "d_model": 1024,
            "d_kv": 64, "d_ff": 2816, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 16, "dropout_rate": 0.1,
            "layer_norm_epsilon": 1e-6, "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 32,
        })
    }

    fn read(value: Value) -> Result<Config, ConfigError> {
        serde_json::from_value::<File>(value).expect("the keys of a file").config()
    }

    #[test]
    fn the_published_encoders() {
        assert_eq!(read(published()), Ok(Config::flan_t5_large()));
        let base = json!({
            "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12,
        });
        assert_eq!(read(base), Ok(Config::t5_base()));
    }

    #[test]
    fn bad_configurations_name_their_key() {
        for (key, value) in [
            ("model_type", json!("umt5")),
            ("quantization_config", json!({ "bits": 4 })),
            ("feed_forward_proj", json!("gated-silu")),
            ("dense_act_fn", json!("silu")),
            ("is_gated_act", json!(false)),
            ("relative_attention_num_buckets", json!(64)),
            ("relative_attention_max_distance", json!(20)),
            ("layer_norm_epsilon", json!(0.0)),
            ("d_model", json!(usize::MAX)),
            ("d_kv", json!(0)),
            ("d_ff", json!(0)),
            ("num_layers", json!(1025)),
            ("num_heads", json!(0)),
            ("vocab_size", json!(0)),
        ] {
            let mut file = published();
            file[key] = value;
            assert_eq!(read(file).expect_err("refused").key, key);
        }
        let mut vast = published();
        for (key, n) in [("d_model", 1 << 16), ("d_ff", 1 << 20), ("num_layers", 1024)] {
            vast[key] = n.into();
        }
        assert_eq!(read(vast).expect_err("refused").key, "d_model");
    }
}
