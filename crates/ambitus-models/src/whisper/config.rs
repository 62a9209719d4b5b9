//! The shape of a Whisper model, from Hugging Face's `config.json`.
//!
//! Keys that are not known are passed over, as transformers does: most of the file is about training and generation. Keys that would
//! change numbers in a way that is not computed here are refused. Defaults are `WhisperConfig`'s (transformers 4.57), but for sizes, which
//! must be there.

use crate::error::{ConfigError, err, sensible};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The keys of a configuration: what matters of them.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct File {
    #[serde(default)]
    pub model_type: Option<String>,
    pub vocab_size: usize,
    pub num_mel_bins: usize,
    pub d_model: usize,
    pub encoder_layers: usize,
    pub encoder_attention_heads: usize,
    pub encoder_ffn_dim: usize,
    pub decoder_layers: usize,
    pub decoder_attention_heads: usize,
    pub decoder_ffn_dim: usize,
    #[serde(default = "positions")]
    pub max_source_positions: usize,
    #[serde(default = "places")]
    pub max_target_positions: usize,
    #[serde(default = "median")]
    pub median_filter_width: usize,
    #[serde(default)]
    pub activation_function: Option<String>,
    #[serde(default)]
    pub scale_embedding: bool,
    #[serde(default = "tied")]
    pub tie_word_embeddings: bool,
    #[serde(default)]
    quantization_config: Option<IgnoredAny>,
}

fn positions() -> usize {
    1500
}

fn places() -> usize {
    448
}

fn median() -> usize {
    7
}

fn tied() -> bool {
    true
}

/// One of the two stacks of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Layers.
    pub layers: usize,
    /// Heads; divides the model's width.
    pub heads: usize,
    /// Inner width of the feed-forward.
    pub ffn: usize,
}

/// A checked shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// M: bands of a mel frame.
    pub mels: usize,
    /// D.
    pub dim: usize,
    /// Of the encoder.
    pub encoder: Stack,
    /// Of the decoder.
    pub decoder: Stack,
    /// V.
    pub vocab: usize,
    /// N: states of a window, each of two mel frames.
    pub states: usize,
    /// Tokens of a text at most, with what stands before it.
    pub tokens: usize,
    /// Width of the median filter of word times; odd.
    pub median: usize,
    /// The head is the embedding.
    pub tied: bool,
}

impl Config {
    /// Returns the shape of `openai/whisper-tiny`.
    pub fn tiny() -> Config {
        let stack = Stack { layers: 4, heads: 6, ffn: 1536 };
        Config {
            mels: 80,
            dim: 384,
            encoder: stack,
            decoder: stack,
            vocab: 51_865,
            states: 1500,
            tokens: 448,
            median: 7,
            tied: true,
        }
    }

    /// Returns the shape of `openai/whisper-large-v3-turbo`.
    pub fn large_v3_turbo() -> Config {
        let stack = Stack { layers: 32, heads: 20, ffn: 5120 };
        let decoder = Stack { layers: 4, ..stack };
        Config { mels: 128, dim: 1280, encoder: stack, decoder, vocab: 51_866, ..Config::tiny() }
    }

    /// Returns the mel frames of a window.
    pub fn frames(&self) -> usize {
        2 * self.states
    }
}

impl File {
    /// Checks the keys.
    ///
    /// # Errors
    /// Names the key: another model, something that is not computed here, or impossible sizes.
    pub fn config(&self) -> Result<Config, ConfigError> {
        if let Some(kind) = self.model_type.as_deref().filter(|kind| *kind != "whisper") {
            return err("model_type", format!("`{kind}` is not supported, `whisper` is"));
        }
        if self.quantization_config.is_some() {
            return err("quantization_config", "use the checkpoint that the quantised one was made from");
        }
        if let Some(other) = self.activation_function.as_deref().filter(|name| *name != "gelu") {
            return err("activation_function", format!("`{other}` is not supported, `gelu` is"));
        }
        if self.scale_embedding {
            return err("scale_embedding", "true is not supported; no published model has it");
        }
        if self.median_filter_width.is_multiple_of(2) || self.median_filter_width > 99 {
            let why = format!("{} is not odd and below 100", self.median_filter_width);
            return err("median_filter_width", why);
        }
        let within = |key, n: usize, most: usize| {
            if (1..=most).contains(&n) { Ok(n) } else { err(key, format!("{n} is not in 1..={most}")) }
        };
        let dim = within("d_model", self.d_model, 1 << 16)?;
        let heads = |key, n: usize| match within(key, n, 1024)? {
            n if dim.is_multiple_of(n) => Ok(n),
            n => err(key, format!("{n} does not divide d_model, {dim}")),
        };
        let config = Config {
            mels: within("num_mel_bins", self.num_mel_bins, 1024)?,
            dim,
            encoder: Stack {
                layers: within("encoder_layers", self.encoder_layers, 1024)?,
                heads: heads("encoder_attention_heads", self.encoder_attention_heads)?,
                ffn: within("encoder_ffn_dim", self.encoder_ffn_dim, 1 << 20)?,
            },
            decoder: Stack {
                layers: within("decoder_layers", self.decoder_layers, 1024)?,
                heads: heads("decoder_attention_heads", self.decoder_attention_heads)?,
                ffn: within("decoder_ffn_dim", self.decoder_ffn_dim, 1 << 20)?,
            },
            vocab: within("vocab_size", self.vocab_size, 1 << 24)?,
            states: within("max_source_positions", self.max_source_positions, 1 << 16)?,
            tokens: within("max_target_positions", self.max_target_positions, 1 << 16)?,
            median: self.median_filter_width,
            tied: self.tie_word_embeddings,
        };
        let layer = |attentions: usize, ffn: usize| dim * (4 * attentions * dim + 2 * ffn);
        let encoder = config.encoder.layers * layer(1, config.encoder.ffn);
        let decoder = config.decoder.layers * layer(2, config.decoder.ffn);
        let tables = dim * (config.vocab + config.states + config.tokens);
        sensible("d_model", (encoder + decoder + tables) as u64)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn published() -> Value {
        json!({
            "model_type": "whisper", "vocab_size": 51_866, "num_mel_bins": 128, "d_model": 1280, "encoder_layers": 32,
            "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_layers": 4, "decoder_attention_heads": 20,
            "decoder_ffn_dim": 5120, "activation_function": "gelu", "scale_embedding": false, "median_filter_width": 7,
        })
    }

    fn read(value: Value) -> Result<Config, ConfigError> {
        serde_json::from_value::<File>(value).expect("the keys of a file").config()
    }

    #[test]
    fn a_published_model() {
        assert_eq!(read(published()), Ok(Config::large_v3_turbo()));
    }

    #[test]
    fn bad_configurations_name_their_key() {
        for (key, value) in [
            ("model_type", json!("mctct")),
            ("quantization_config", json!({ "bits": 4 })),
            ("activation_function", json!("relu")),
            ("scale_embedding", json!(true)),
            ("median_filter_width", json!(8)),
            ("d_model", json!(usize::MAX)),
            ("encoder_attention_heads", json!(7)),
            ("decoder_layers", json!(0)),
            ("num_mel_bins", json!(0)),
            ("max_target_positions", json!(0)),
        ] {
            let mut file = published();
            file[key] = value;
            assert_eq!(read(file).expect_err("refused").key, key);
        }
        let mut vast = published();
        for (key, n) in [("d_model", 20 << 11), ("encoder_ffn_dim", 1 << 20), ("encoder_layers", 1024)] {
            vast[key] = n.into();
        }
        assert_eq!(read(vast).expect_err("refused").key, "d_model");
    }
}
