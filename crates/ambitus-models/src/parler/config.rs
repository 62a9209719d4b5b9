//! The shape of a Parler-TTS decoder, from the project's `config.json`.
//!
//! Keys that are not known are passed over, as the project does. Keys that would change numbers in a way that is not computed here
//! are refused. Defaults are those of `ParlerTTSDecoderConfig` (parler_tts 0.2.3), but for sizes, which must be there.

use crate::error::{ConfigError, err, sensible};
use crate::model::Rows;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Codebooks, at most: a table of ids for each is an input.
const MAX_CODEBOOKS: usize = 64;
/// Description tokens of a clip where nothing is known of the data: some 60 words.
pub const DESCRIPTION_TOKENS: usize = 96;

/// `config.json`: what matters of it.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct File {
    /// Ids of prompts.
    pub vocab_size: usize,
    #[serde(default)]
    pub prompt_cross_attention: bool,
    pub text_encoder: TextEncoder,
    #[serde(default)]
    pub audio_encoder: AudioEncoder,
    pub decoder: Decoder,
}

/// `text_encoder`: what the decoder must know of it.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct TextEncoder {
    pub d_model: usize,
}

/// `audio_encoder`: what the decoder must know of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct AudioEncoder {
    pub sampling_rate: Option<f64>,
    /// Where there is none, it is a DAC of the project, with 512 samples a frame.
    pub hop_length: Option<f64>,
    pub downsampling_ratios: Option<Vec<f64>>,
}

/// `decoder`.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Decoder {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub ffn_dim: usize,
    pub num_codebooks: usize,
    #[serde(default)]
    pub max_position_embeddings: Option<usize>,
    #[serde(default)]
    pub num_key_value_heads: Option<usize>,
    #[serde(default)]
    pub num_cross_attention_key_value_heads: Option<usize>,
    #[serde(default)]
    pub activation_function: Option<String>,
    #[serde(default)]
    pub dropout: Option<f64>,
    #[serde(default)]
    pub attention_dropout: Option<f64>,
    #[serde(default)]
    pub activation_dropout: Option<f64>,
    #[serde(default)]
    pub layerdrop: Option<f64>,
    #[serde(default)]
    pub initializer_factor: Option<f64>,
    #[serde(default)]
    pub scale_embedding: Option<bool>,
    #[serde(default)]
    pub tie_word_embeddings: Option<bool>,
    pub pad_token_id: u32,
    pub bos_token_id: u32,
    pub eos_token_id: u32,
    #[serde(default)]
    pub rope_embeddings: Option<bool>,
    #[serde(default)]
    pub rope_theta: Option<f64>,
    #[serde(default)]
    pub use_fused_lm_heads: Option<bool>,
    #[serde(default)]
    pub codebook_weights: Option<Vec<f64>>,
    #[serde(default)]
    pub cross_attention_hidden_size: Option<usize>,
    #[serde(default)]
    quantization_config: Option<IgnoredAny>,
}

/// A checked model shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// D: `hidden_size`.
    pub dim: usize,
    /// Query heads: `num_attention_heads`; divides D.
    pub heads: usize,
    /// Key and value heads of self-attention: `num_key_value_heads`; divides `heads`.
    pub kv_heads: usize,
    /// Of cross-attention: `num_cross_attention_key_value_heads`; divides `heads`.
    pub cross_heads: usize,
    /// `ffn_dim`.
    pub ffn: usize,
    /// `num_hidden_layers`.
    pub layers: usize,
    /// C: `num_codebooks`.
    pub codebooks: usize,
    /// V: `vocab_size` of the decoder, ids of a codebook with its special ones. Embeddings have one row more.
    pub vocab: usize,
    /// The id that ends a codebook, and fills it after that: codes are below.
    pub eos: u32,
    /// The id that begins a codebook.
    pub bos: u32,
    /// Ids of prompts: the top `vocab_size`.
    pub prompts: usize,
    /// Width of description states: `text_encoder.d_model`. Where it is not D, a layer projects them.
    pub text_dim: usize,
    /// Rows of the table of positions: `max_position_embeddings`.
    pub positions: usize,
    /// `rope_theta`, where positions rotate queries and keys; else they are added.
    pub rope: Option<f64>,
    /// All heads are one matrix: `use_fused_lm_heads`.
    pub fused_heads: bool,
    /// Prompts stand in the context, behind descriptions, not before the audio: `prompt_cross_attention`.
    pub prompts_in_context: bool,
    /// What each codebook's loss counts, together 1: `codebook_weights`.
    pub weights: Vec<f32>,
    /// `dropout`: of embeddings and of every residual branch.
    pub dropout: f32,
    /// Standard deviation of a fresh model's matrices: `initializer_factor`.
    pub spread: f32,
    /// Frames of a second of audio.
    pub frame_rate: f64,
    /// U: rows of context (description tokens, and prompts that stand there) that a clip may have.
    pub context: usize,
}

impl Config {
    /// Returns the shape of Parler-TTS Mini v1.
    pub fn mini_v1() -> Config {
        Config {
            dim: 1024,
            heads: 16,
            kv_heads: 16,
            cross_heads: 16,
            ffn: 4096,
            layers: 24,
            codebooks: 9,
            vocab: 1088,
            eos: 1024,
            bos: 1025,
            prompts: 32_128,
            text_dim: 1024,
            positions: 4096,
            rope: None,
            fused_heads: false,
            prompts_in_context: false,
            weights: vec![1.0 / 9.0; 9],
            dropout: 0.1,
            spread: 0.02,
            frame_rate: 44_100.0 / 512.0,
            context: DESCRIPTION_TOKENS,
        }
    }

    /// Returns the rows of a clip of P prompt tokens and T frames: prompts that stand before the audio, frames, and a column for
    /// each codebook's delay.
    pub fn rows_of(&self, prompt: usize, frames: usize) -> usize {
        let before = if self.prompts_in_context { 0 } else { prompt };
        before + frames + self.codebooks
    }

    /// Returns the rows of context of a clip of P prompt tokens and U description tokens.
    pub fn context_of(&self, prompt: usize, description: usize) -> usize {
        description + if self.prompts_in_context { prompt } else { 0 }
    }

    /// Returns whether a layer projects description states.
    pub fn projects(&self) -> bool {
        self.text_dim != self.dim
    }

    /// Returns the channels of a head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    /// Returns what a row is.
    pub fn rows(&self) -> Rows {
        let most = self.rope.is_none().then_some(self.positions);
        Rows { unit: "rows", per_second: self.frame_rate, most }
    }
}

fn within(key: &'static str, n: usize, most: usize) -> Result<usize, ConfigError> {
    if (1..=most).contains(&n) { Ok(n) } else { err(key, format!("{n} is not in 1..={most}")) }
}

fn probability(key: &'static str, p: Option<f64>, default: f64) -> Result<f64, ConfigError> {
    let p = p.unwrap_or(default);
    if (0.0..1.0).contains(&p) { Ok(p) } else { err(key, format!("{p} is not in 0..1")) }
}

impl File {
    /// Checks the file.
    ///
    /// # Errors
    /// Names the key: something that is not computed here, or impossible sizes.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let d = &self.decoder;
        d.refuse_others()?;
        let dim = within("decoder.hidden_size", d.hidden_size, 1 << 16)?;
        let heads = within("decoder.num_attention_heads", d.num_attention_heads, 1024)?;
        if !dim.is_multiple_of(heads) || dim / heads > 256 {
            return err("decoder.hidden_size", format!("{dim} is not {heads} heads of at most 256 channels"));
        }
        let group = |key, n: Option<usize>, default| {
            let n = within(key, n.unwrap_or(default), heads)?;
            if heads.is_multiple_of(n) {
                Ok(n)
            } else {
                err(key, format!("{n} does not divide the {heads} heads"))
            }
        };
        let kv_heads = group("decoder.num_key_value_heads", d.num_key_value_heads, heads)?;
        let cross = d.num_cross_attention_key_value_heads;
        let cross_heads = group("decoder.num_cross_attention_key_value_heads", cross, kv_heads)?;
        let rope = d.rope_embeddings.unwrap_or(false).then(|| d.rope_theta.unwrap_or(10_000.0));
        if let Some(theta) = rope.filter(|theta| !(*theta > 1.0 && *theta < 1e12)) {
            return err("decoder.rope_theta", format!("{theta} is not above 1 and below 1e12"));
        }
        // A table of positions has pairs of columns, and so have heads that rotate.
        let (key, width) = match rope {
            Some(_) => ("decoder.num_attention_heads", dim / heads),
            None => ("decoder.hidden_size", dim),
        };
        if !width.is_multiple_of(2) || (rope.is_none() && dim < 4) || (self.prompt_cross_attention && dim < 4)
        {
            return err(key, format!("{width} channels do not pair for positions"));
        }
        let ffn = within("decoder.ffn_dim", d.ffn_dim, 1 << 20)?;
        let layers = within("decoder.num_hidden_layers", d.num_hidden_layers, 1024)?;
        let codebooks = within("decoder.num_codebooks", d.num_codebooks, MAX_CODEBOOKS)?;
        let vocab = within("decoder.vocab_size", d.vocab_size, 1 << 20)?;
        let prompts = within("vocab_size", self.vocab_size, 1 << 24)?;
        let positions =
            within("decoder.max_position_embeddings", d.max_position_embeddings.unwrap_or(2048), 1 << 20)?;
        let text_dim = within("text_encoder.d_model", self.text_encoder.d_model, 1 << 16)?;
        let layer = dim * (8 * dim + 2 * ffn);
        sensible("decoder.hidden_size", (layer * layers + dim * (2 * codebooks * vocab + prompts)) as u64)?;
        let spread = d.initializer_factor.unwrap_or(0.02);
        if !(spread > 0.0 && spread < 10.0) {
            return err("decoder.initializer_factor", format!("{spread} is not above 0 and below 10"));
        }
        Ok(Config {
            dim,
            heads,
            kv_heads,
            cross_heads,
            ffn,
            layers,
            codebooks,
            vocab,
            eos: d.end()?,
            bos: d.special("decoder.bos_token_id", d.bos_token_id)?,
            prompts,
            text_dim,
            positions,
            rope,
            fused_heads: d.use_fused_lm_heads.unwrap_or(false),
            prompts_in_context: self.prompt_cross_attention,
            weights: d.weights(codebooks)?,
            dropout: probability("decoder.dropout", d.dropout, 0.1)? as f32,
            spread: spread as f32,
            frame_rate: self.audio_encoder.frame_rate()?,
            context: DESCRIPTION_TOKENS,
        })
    }
}

impl AudioEncoder {
    /// Returns frames of a second: `frame_rate` of the file is rounded, so it is not read.
    fn frame_rate(&self) -> Result<f64, ConfigError> {
        let hop = match &self.downsampling_ratios {
            Some(ratios) => ratios.iter().product(),
            None => self.hop_length.unwrap_or(512.0),
        };
        let rate = self.sampling_rate.unwrap_or(44_100.0) / hop;
        if rate.is_finite() && (1.0..=1e6).contains(&rate) {
            return Ok(rate);
        }
        err("audio_encoder.sampling_rate", format!("gives {rate} frames a second"))
    }
}

impl Decoder {
    /// Refuses what would change numbers and is not computed here.
    fn refuse_others(&self) -> Result<(), ConfigError> {
        if let Some(act) = self.activation_function.as_deref().filter(|act| *act != "gelu") {
            return err(
                "decoder.activation_function",
                format!("`{act}` is not supported; Parler-TTS has `gelu`"),
            );
        }
        let absent = [
            ("decoder.attention_dropout", self.attention_dropout),
            ("decoder.activation_dropout", self.activation_dropout),
            ("decoder.layerdrop", self.layerdrop),
        ];
        if let Some((key, _)) = absent.into_iter().find(|(_, p)| p.is_some_and(|p| p != 0.0)) {
            return err(key, "is not supported; Parler-TTS is trained without: set it to 0.0");
        }
        if self.scale_embedding == Some(true) {
            return err(
                "decoder.scale_embedding",
                "is not supported; the project never uses it: set it to false",
            );
        }
        if self.tie_word_embeddings == Some(true) {
            return err("decoder.tie_word_embeddings", "is not supported; Parler-TTS has heads of their own");
        }
        if self.cross_attention_hidden_size.is_some() {
            return err("decoder.cross_attention_hidden_size", "is not supported; leave it out");
        }
        if self.pad_token_id != self.eos_token_id {
            let (pad, eos) = (self.pad_token_id, self.eos_token_id);
            return err(
                "decoder.pad_token_id",
                format!("{pad} is not eos_token_id, {eos}; Parler-TTS fills with it"),
            );
        }
        if self.quantization_config.is_some() {
            return err(
                "decoder.quantization_config",
                "quantised weights cannot be trained; use the checkpoint that they were made from",
            );
        }
        Ok(())
    }

    /// Returns an id that has a row of the embeddings.
    fn special(&self, key: &'static str, id: u32) -> Result<u32, ConfigError> {
        if id as usize <= self.vocab_size && id > 0 {
            return Ok(id);
        }
        err(key, format!("{id} is not in 1..={}, the last row of an embedding", self.vocab_size))
    }

    /// Returns the id that heads write where a codebook ends.
    fn end(&self) -> Result<u32, ConfigError> {
        let key = "decoder.eos_token_id";
        let id = self.special(key, self.eos_token_id)?;
        if (id as usize) < self.vocab_size {
            return Ok(id);
        }
        err(key, format!("{id} is not below vocab_size {}: no head writes it", self.vocab_size))
    }

    fn weights(&self, codebooks: usize) -> Result<Vec<f32>, ConfigError> {
        let Some(weights) = &self.codebook_weights else {
            return Ok(vec![(1.0 / codebooks as f64) as f32; codebooks]);
        };
        if weights.len() != codebooks {
            let n = weights.len();
            return err("decoder.codebook_weights", format!("{n} weights for {codebooks} codebooks"));
        }
        let sum: f64 = weights.iter().sum();
        if !weights.iter().all(|w| w.is_finite() && *w >= 0.0) || sum <= 0.0 {
            return err("decoder.codebook_weights", "must not be negative, nor all 0");
        }
        Ok(weights.iter().map(|w| (w / sum) as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn file(change: impl Fn(&mut Value)) -> Result<Config, ConfigError> {
        let mut json = json!({
            "vocab_size": 60, "text_encoder": {"d_model": 24},
            "audio_encoder": {"sampling_rate": 44100, "frame_rate": 86},
            "decoder": {
                "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
                "num_codebooks": 3, "pad_token_id": 16, "bos_token_id": 17, "eos_token_id": 16,
            },
        });
        change(&mut json);
        serde_json::from_value::<File>(json).expect("its form").config()
    }

    #[test]
    fn absent_keys_are_the_projects_defaults() {
        let cfg = file(|_| ()).unwrap();
        assert_eq!((cfg.kv_heads, cfg.cross_heads, cfg.positions, cfg.rope), (4, 4, 2048, None));
        assert_eq!((cfg.dropout, cfg.projects(), cfg.rows_of(7, 10)), (0.1, true, 20));
        assert!((cfg.frame_rate - 86.1328125).abs() < 1e-9);
        let grouped = file(|f| f["decoder"]["num_key_value_heads"] = json!(2)).unwrap();
        assert_eq!((grouped.kv_heads, grouped.cross_heads), (2, 2));
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let of = |key: &str, value: Value| file(|f| f["decoder"][key] = value.clone()).unwrap_err().key;
        assert_eq!(of("activation_function", json!("relu")), "decoder.activation_function");
        assert_eq!(of("attention_dropout", json!(0.1)), "decoder.attention_dropout");
        assert_eq!(of("pad_token_id", json!(15)), "decoder.pad_token_id");
        assert_eq!(of("bos_token_id", json!(21)), "decoder.bos_token_id");
        assert_eq!(of("codebook_weights", json!([1, 2])), "decoder.codebook_weights");
        assert_eq!(of("num_key_value_heads", json!(3)), "decoder.num_key_value_heads");
        assert_eq!(of("hidden_size", json!(33)), "decoder.hidden_size");
        assert_eq!(of("num_codebooks", json!(65)), "decoder.num_codebooks");
    }
}
