//! The shape of a MusicGen decoder, from transformers' `config.json`.
//!
//! Keys that are not known are passed over, as transformers does. Keys that would change numbers in a way that is not computed here are
//! refused. Defaults are those of `MusicgenDecoderConfig` (transformers 4.57), which files leave out.

use crate::error::{ConfigError, err, sensible};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Codebooks, at most: a table of ids for each is an input.
const MAX_CODEBOOKS: usize = 64;
/// Columns that a codebook is late, at most.
const MAX_DELAY: usize = 4096;
/// Tokens of a text where nothing is known of the data: some 60 words.
pub const TEXT_TOKENS: usize = 96;

/// `config.json`: what matters of it.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct File {
    pub text_encoder: TextEncoder,
    #[serde(default)]
    pub audio_encoder: AudioEncoder,
    #[serde(default)]
    pub decoder: Decoder,
    #[serde(default)]
    quantization_config: Option<IgnoredAny>,
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
    pub upsampling_ratios: Option<Vec<f64>>,
}

/// `decoder`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Decoder {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub ffn_dim: usize,
    pub num_codebooks: usize,
    pub audio_channels: usize,
    pub pad_token_id: u32,
    pub activation_function: String,
    pub dropout: f64,
    pub attention_dropout: f64,
    pub activation_dropout: f64,
    pub layerdrop: f64,
    pub initializer_factor: f64,
    pub tie_word_embeddings: bool,
    pub cross_attention_hidden_size: Option<usize>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder {
            vocab_size: 2048,
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            ffn_dim: 4096,
            num_codebooks: 4,
            audio_channels: 1,
            pad_token_id: 2048,
            activation_function: "gelu".to_owned(),
            dropout: 0.1,
            attention_dropout: 0.0,
            activation_dropout: 0.0,
            layerdrop: 0.0,
            initializer_factor: 0.02,
            tie_word_embeddings: false,
            cross_attention_hidden_size: None,
        }
    }
}

/// A checked model shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// D: `hidden_size`.
    pub dim: usize,
    /// Heads; divides D.
    pub heads: usize,
    /// Inner width of the feed-forward.
    pub ffn: usize,
    /// Layers.
    pub layers: usize,
    /// V: codes of a codebook. Embeddings have one row more, V, which stands where there is no code.
    pub vocab: usize,
    /// Columns that each of the K codebooks is late, ascending.
    pub delays: Vec<usize>,
    /// Channels of the audio, which are coded apart: codebooks 0, 2, … are the left one's of two.
    pub channels: usize,
    /// E: width of the text encoder's states.
    pub text_dim: usize,
    /// A layer projects them; else E is D.
    pub projects: bool,
    /// Of embeddings and of every residual branch.
    pub dropout: f32,
    /// Standard deviation of a fresh model's matrices: `initializer_factor`.
    pub spread: f32,
    /// Frames of a second of audio.
    pub frame_rate: f64,
    /// U: rows of text that a clip may have.
    pub context: usize,
}

impl Config {
    /// Returns the shape of MusicGen small.
    pub fn small() -> Config {
        Config {
            dim: 1024,
            heads: 16,
            ffn: 4096,
            layers: 24,
            vocab: 2048,
            delays: delays(4, 1),
            channels: 1,
            text_dim: 768,
            projects: true,
            dropout: 0.0,
            spread: 0.02,
            frame_rate: 50.0,
            context: TEXT_TOKENS,
        }
    }

    /// Returns K.
    pub fn codebooks(&self) -> usize {
        self.delays.len()
    }

    /// Returns the id that stands where there is no code.
    pub fn special(&self) -> u32 {
        self.vocab as u32
    }

    /// Returns the columns that the last codebook is late.
    pub fn longest_delay(&self) -> usize {
        self.delays.iter().copied().max().unwrap_or(0)
    }

    /// Checks sizes and delays, by the names that a file has for them: of width, heads, inner width, layers, codes and codebooks.
    ///
    /// # Errors
    /// Names the key.
    pub fn checked(self, keys: [&'static str; 6]) -> Result<Config, ConfigError> {
        let [width, heads, ffn, layers, vocab, codebooks] = keys;
        within(width, self.dim, 1 << 16)?;
        within(heads, self.heads, 1024)?;
        if !self.dim.is_multiple_of(self.heads) || self.dim / self.heads > 256 {
            let why = format!("{} is not {} heads of at most 256 channels", self.dim, self.heads);
            return err(width, why);
        }
        if self.dim < 4 {
            return err(width, format!("{} channels are too few for positions; 4 is the least", self.dim));
        }
        within(ffn, self.ffn, 1 << 20)?;
        within(layers, self.layers, 1024)?;
        within(vocab, self.vocab, 1 << 20)?;
        within(codebooks, self.codebooks(), MAX_CODEBOOKS)?;
        let layer = self.dim * (8 * self.dim + 2 * self.ffn);
        sensible(width, (layer * self.layers + self.dim * 2 * self.codebooks() * self.vocab) as u64)?;
        Ok(self)
    }
}

/// Returns how late the codebooks are where nothing else is said (arXiv 2306.05284, figure 2): one column each, or of two channels each
/// pair.
pub fn delays(codebooks: usize, channels: usize) -> Vec<usize> {
    (0..codebooks).map(|k| k / channels.max(1)).collect()
}

/// Checks delays of `codebooks` codebooks.
///
/// # Errors
/// Why they cannot be.
pub fn check_delays(delays: &[usize], codebooks: usize) -> Result<(), String> {
    if delays.len() != codebooks {
        return Err(format!("{} delays are of {codebooks} codebooks", delays.len()));
    }
    if !delays.is_sorted() || delays.last().is_some_and(|last| *last > MAX_DELAY) {
        return Err(format!("{delays:?} do not ascend, to {MAX_DELAY} at most"));
    }
    Ok(())
}

fn within(key: &'static str, n: usize, most: usize) -> Result<(), ConfigError> {
    if (1..=most).contains(&n) { Ok(()) } else { err(key, format!("{n} is not in 1..={most}")) }
}

impl File {
    /// Checks the file.
    ///
    /// # Errors
    /// Names the key: something that is not computed here, or impossible sizes.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let d = &self.decoder;
        d.refuse_others()?;
        if self.quantization_config.is_some() {
            let why = "quantised weights cannot be trained; use the checkpoint that they were made from";
            return err("quantization_config", why);
        }
        within("text_encoder.d_model", self.text_encoder.d_model, 1 << 16)?;
        within("decoder.num_codebooks", d.num_codebooks, MAX_CODEBOOKS)?;
        if !(1..=2).contains(&d.audio_channels) || !d.num_codebooks.is_multiple_of(d.audio_channels) {
            let why = format!("{} channels do not share {} codebooks", d.audio_channels, d.num_codebooks);
            return err("decoder.audio_channels", why);
        }
        if !(0.0..1.0).contains(&d.dropout) {
            return err("decoder.dropout", format!("{} is not in 0..1", d.dropout));
        }
        if !(d.initializer_factor > 0.0 && d.initializer_factor < 10.0) {
            let why = format!("{} is not above 0 and below 10", d.initializer_factor);
            return err("decoder.initializer_factor", why);
        }
        let config = Config {
            dim: d.hidden_size,
            heads: d.num_attention_heads,
            ffn: d.ffn_dim,
            layers: d.num_hidden_layers,
            vocab: d.vocab_size,
            delays: delays(d.num_codebooks, d.audio_channels),
            channels: d.audio_channels,
            text_dim: self.text_encoder.d_model,
            projects: self.text_encoder.d_model != d.hidden_size,
            dropout: d.dropout as f32,
            spread: d.initializer_factor as f32,
            frame_rate: self.audio_encoder.frame_rate()?,
            context: TEXT_TOKENS,
        };
        let config = config.checked([
            "decoder.hidden_size",
            "decoder.num_attention_heads",
            "decoder.ffn_dim",
            "decoder.num_hidden_layers",
            "decoder.vocab_size",
            "decoder.num_codebooks",
        ])?;
        if d.pad_token_id != config.special() {
            let (pad, row) = (d.pad_token_id, config.special());
            let why = format!(
                "{pad} is not {row}, vocab_size: the id behind all codes is read where there is none"
            );
            return err("decoder.pad_token_id", why);
        }
        Ok(config)
    }
}

impl AudioEncoder {
    fn frame_rate(&self) -> Result<f64, ConfigError> {
        let frame: f64 = self.upsampling_ratios.as_ref().map_or(640.0, |ratios| ratios.iter().product());
        let rate = self.sampling_rate.unwrap_or(32_000.0) / frame;
        if rate.is_finite() && (0.01..=1e6).contains(&rate) {
            return Ok(rate);
        }
        err("audio_encoder.sampling_rate", format!("gives {rate} frames a second"))
    }
}

impl Decoder {
    /// Refuses what would change numbers and is not computed here.
    fn refuse_others(&self) -> Result<(), ConfigError> {
        if self.activation_function != "gelu" {
            let why = format!("`{}` is not supported; MusicGen has `gelu`", self.activation_function);
            return err("decoder.activation_function", why);
        }
        let absent = [
            ("decoder.attention_dropout", self.attention_dropout),
            ("decoder.activation_dropout", self.activation_dropout),
            ("decoder.layerdrop", self.layerdrop),
        ];
        if let Some((key, _)) = absent.into_iter().find(|(_, p)| *p != 0.0) {
            return err(key, "is not supported; MusicGen is trained without: set it to 0.0");
        }
        if self.tie_word_embeddings {
            return err("decoder.tie_word_embeddings", "is not supported; MusicGen has heads of their own");
        }
        if self.cross_attention_hidden_size.is_some() {
            return err("decoder.cross_attention_hidden_size", "is not supported; leave it out");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn file(change: impl Fn(&mut Value)) -> Result<Config, ConfigError> {
        let mut json = json!({
            "text_encoder": {"d_model": 768, "model_type": "t5"},
            "audio_encoder": {"sampling_rate": 32000, "upsampling_ratios": [8, 5, 4, 4]},
            "decoder": {"hidden_size": 1024, "dropout": 0.0, "model_type": "musicgen_decoder"},
        });
        change(&mut json);
        serde_json::from_value::<File>(json).expect("its form").config()
    }

    #[test]
    fn a_file_without_sizes_is_small() {
        assert_eq!(file(|_| ()).unwrap(), Config::small());
        let stereo = file(|json| {
            json["decoder"]["num_codebooks"] = 8.into();
            json["decoder"]["audio_channels"] = 2.into();
        });
        assert_eq!(stereo.unwrap().delays, [0, 0, 1, 1, 2, 2, 3, 3]);
        assert!(!file(|json| json["text_encoder"]["d_model"] = 1024.into()).unwrap().projects);
    }

    #[test]
    fn what_is_not_computed_is_named() {
        for (key, value, said) in [
            ("activation_function", json!("relu"), "decoder.activation_function: `relu`"),
            ("layerdrop", json!(0.1), "decoder.layerdrop: "),
            ("attention_dropout", json!(0.1), "decoder.attention_dropout: "),
            ("tie_word_embeddings", json!(true), "decoder.tie_word_embeddings: "),
            ("cross_attention_hidden_size", json!(8), "decoder.cross_attention_hidden_size: "),
            ("hidden_size", json!(1023), "decoder.hidden_size: 1023"),
            ("hidden_size", json!(0), "decoder.hidden_size: 0"),
            ("num_codebooks", json!(65), "decoder.num_codebooks: 65"),
            ("audio_channels", json!(3), "decoder.audio_channels: 3"),
            ("pad_token_id", json!(7), "decoder.pad_token_id: 7 is not 2048"),
            ("dropout", json!(1.0), "decoder.dropout: 1"),
        ] {
            let why = file(|json| json["decoder"][key] = value.clone()).unwrap_err().to_string();
            assert!(why.starts_with(said), "{why}");
        }
        let why = file(|json| json["audio_encoder"]["sampling_rate"] = 0.into()).unwrap_err().to_string();
        assert!(why.starts_with("audio_encoder.sampling_rate: "), "{why}");
    }

    #[test]
    fn delays_ascend_and_are_of_all_codebooks() {
        assert!(check_delays(&[0, 1, 1, 5], 4).is_ok());
        assert!(check_delays(&[0, 1], 4).unwrap_err().starts_with("2 delays"));
        assert!(check_delays(&[1, 0], 2).unwrap_err().contains("do not ascend"));
    }
}
