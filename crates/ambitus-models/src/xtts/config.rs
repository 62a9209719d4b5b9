//! The shape of an XTTS v2 decoder: `model_args` of the project's `config.json`, ids of `vocab.json`, and what shapes of tensors say.
//!
//! Absent keys are the published model's (coqui-tts 0.28, `XttsArgs`, where AllTalk's `GPTArgs` says nothing else). Keys that are not
//! known are passed over, as the project does; those that would change numbers in a way that is not computed here are refused.

use crate::error::{ConfigError, err, sensible};
use crate::model::Rows;
use serde::Deserialize;

/// Latents of the perceiver: rows of the prompt before the text.
pub const LATENTS: usize = 32;
/// Layers of the perceiver.
pub const RESAMPLER_LAYERS: usize = 2;
/// Heads of the perceiver, and channels of one.
pub const RESAMPLER_HEADS: [usize; 2] = [8, 64];
/// Attention blocks of the conditioning encoder.
pub const ENCODER_BLOCKS: usize = 6;
/// Bands of the conditioning mel.
pub const BANDS: usize = 80;
/// Frames of the conditioning mel in training: six seconds.
pub const FRAMES: usize = 517;
/// Audio samples of a code.
pub const SAMPLES_PER_CODE: usize = 1024;
/// Of audio, Hz.
pub const RATE: u32 = 22_050;
/// Stops that are scored after the last code, the first of which is read thrice.
pub const STOPS: usize = 4;
/// Most ids of a text, and of audio.
pub const MOST_IDS: usize = 1 << 20;
/// Most channels of a head: what attention computes.
const MOST_HEAD: usize = 256;

/// `model_args` of `config.json`: what matters of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Args {
    pub gpt_layers: Option<usize>,
    pub gpt_n_model_channels: Option<usize>,
    pub gpt_n_heads: Option<usize>,
    pub gpt_max_audio_tokens: Option<usize>,
    pub gpt_max_text_tokens: Option<usize>,
    pub gpt_number_text_tokens: Option<usize>,
    pub gpt_num_audio_tokens: Option<usize>,
    pub gpt_start_audio_token: Option<u32>,
    pub gpt_stop_audio_token: Option<u32>,
    pub gpt_start_text_token: Option<u32>,
    pub gpt_stop_text_token: Option<u32>,
    pub gpt_code_stride_len: Option<usize>,
    pub gpt_use_perceiver_resampler: Option<bool>,
    pub input_sample_rate: Option<u32>,
}

/// What `vocab.json` says, before the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    /// The largest id + 1.
    pub size: Option<usize>,
    /// The id of `[START]`.
    pub start: Option<u32>,
    /// The id of `[STOP]`.
    pub stop: Option<u32>,
}

/// What shapes of tensors say, before the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Blocks of the decoder.
    pub layers: Option<usize>,
    /// D.
    pub dim: Option<usize>,
    /// Rows of the text embedding.
    pub text_vocab: Option<usize>,
    /// Rows of the code embedding.
    pub codes: Option<usize>,
    /// Rows of the table of text positions.
    pub text_positions: Option<usize>,
    /// Rows of the table of code positions.
    pub code_positions: Option<usize>,
}

/// A checked model shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// D: `gpt_n_model_channels`.
    pub dim: usize,
    /// Heads of the decoder and of the conditioning encoder: `gpt_n_heads`; divides D.
    pub heads: usize,
    /// `gpt_layers`.
    pub layers: usize,
    /// Text ids.
    pub text_vocab: usize,
    /// The id that begins a text.
    pub text_start: u32,
    /// The id that ends it.
    pub text_stop: u32,
    /// Audio ids, codes and special ones: `gpt_num_audio_tokens`.
    pub codes: usize,
    /// The id that begins audio.
    pub start: u32,
    /// The id that ends it.
    pub stop: u32,
    /// Rows of the table of text positions: `gpt_max_text_tokens` + 2.
    pub text_positions: usize,
    /// Rows of the table of code positions: `gpt_max_audio_tokens` + 3.
    pub code_positions: usize,
    /// Of embeddings and of every residual branch, in training.
    pub dropout: f32,
    /// F: frames of the conditioning mel of every clip.
    pub frames: usize,
}

impl Config {
    /// Returns the published shape, of version 2.0.3.
    pub fn v2() -> Config {
        Config {
            dim: 1024,
            heads: 16,
            layers: 30,
            text_vocab: 6681,
            text_start: 261,
            text_stop: 0,
            codes: 1026,
            start: 1024,
            stop: 1025,
            text_positions: 404,
            code_positions: 608,
            dropout: 0.1,
            frames: FRAMES,
        }
    }

    /// Returns the rows of a clip of t text ids and n codes in training: the prompt, the text and its start, the codes, their start and
    /// three of their stops. (The text's stop is no key, and nothing follows from it; the last stop is only said.)
    pub fn rows_of(&self, text: usize, codes: usize) -> usize {
        LATENTS + text + 1 + codes + STOPS
    }

    /// Returns the channels of a head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    /// Returns the inner width of the perceiver's feed-forward layers.
    pub fn resampler_ffn(&self) -> usize {
        8 * self.dim / 3
    }

    /// Returns the groups of the conditioning encoder's norms (coqui-tts 0.28, `arch_utils.normalization`).
    pub fn groups(&self) -> usize {
        groups(self.dim)
    }

    /// Returns the ids of a text at most, as the project pads it.
    pub fn most_text(&self) -> usize {
        self.text_positions.saturating_sub(2)
    }

    /// Returns the codes that may be written of a text at most: `gpt_max_audio_tokens` - 3.
    pub fn most_codes(&self) -> usize {
        self.code_positions.saturating_sub(6)
    }

    /// Returns what a row is.
    pub fn rows(&self) -> Rows {
        let per_second = f64::from(RATE) / SAMPLES_PER_CODE as f64;
        Rows { unit: "rows", per_second, most: Some(LATENTS + self.text_positions + self.code_positions) }
    }
}

fn groups(dim: usize) -> usize {
    let mut groups = match dim {
        ..=16 => 8,
        17..=64 => 16,
        _ => 32,
    };
    while groups > 0 && !dim.is_multiple_of(groups) {
        groups /= 2;
    }
    groups
}

fn within(key: &'static str, n: usize, most: usize) -> Result<usize, ConfigError> {
    if (1..=most).contains(&n) { Ok(n) } else { err(key, format!("{n} is not in 1..={most}")) }
}

fn id(key: &'static str, id: u32, of: usize) -> Result<u32, ConfigError> {
    if (id as usize) < of { Ok(id) } else { err(key, format!("{id} is not below {of}, the number of ids")) }
}

impl Args {
    /// Checks the configuration. What the vocabulary and the tensors say goes before it.
    ///
    /// # Errors
    /// Names the key: something that is not computed here, or impossible sizes.
    pub fn config(&self, vocabulary: Vocabulary, sizes: Sizes) -> Result<Config, ConfigError> {
        if self.gpt_use_perceiver_resampler == Some(false) {
            let why = "false is XTTS v1, which is not supported; use an XTTS v2 checkpoint";
            return err("gpt_use_perceiver_resampler", why);
        }
        if let Some(n) = self.gpt_code_stride_len.filter(|n| *n != SAMPLES_PER_CODE) {
            return err(
                "gpt_code_stride_len",
                format!("{n} is not supported; XTTS v2 has {SAMPLES_PER_CODE}"),
            );
        }
        if let Some(n) = self.input_sample_rate.filter(|n| *n != RATE) {
            return err("input_sample_rate", format!("{n} is not supported; XTTS v2 has {RATE}"));
        }
        let base = Config::v2();
        let or = |sizes: Option<usize>, key: Option<usize>, base: usize| sizes.or(key).unwrap_or(base);
        let dim = or(sizes.dim, self.gpt_n_model_channels, base.dim);
        let dim = within("gpt_n_model_channels", dim, 1 << 14)?;
        let heads = within("gpt_n_heads", self.gpt_n_heads.unwrap_or(base.heads), 1024)?;
        if !dim.is_multiple_of(heads) || dim / heads > MOST_HEAD {
            let why = format!("{heads} heads are not of at most {MOST_HEAD} of the {dim} channels each");
            return err("gpt_n_heads", why);
        }
        if groups(dim) <= 2 {
            return err(
                "gpt_n_model_channels",
                format!("{dim} channels do not group for the conditioning encoder"),
            );
        }
        let layers = within("gpt_layers", or(sizes.layers, self.gpt_layers, base.layers), 1024)?;
        let text_vocab = vocabulary.size.or(sizes.text_vocab).or(self.gpt_number_text_tokens);
        let text_vocab = within("gpt_number_text_tokens", text_vocab.unwrap_or(base.text_vocab), MOST_IDS)?;
        let codes = or(sizes.codes, self.gpt_num_audio_tokens, base.codes);
        let codes = within("gpt_num_audio_tokens", codes, MOST_IDS)?;
        let table = |key, sizes: Option<usize>, tokens: Option<usize>, more: usize, base: usize| {
            within(key, sizes.or(tokens.map(|n| n.saturating_add(more))).unwrap_or(base), 1 << 16)
        };
        let text_positions = table(
            "gpt_max_text_tokens",
            sizes.text_positions,
            self.gpt_max_text_tokens,
            2,
            base.text_positions,
        )?;
        let code_positions = table(
            "gpt_max_audio_tokens",
            sizes.code_positions,
            self.gpt_max_audio_tokens,
            3,
            base.code_positions,
        )?;
        let tables = 2 * (text_vocab + codes) + text_positions + code_positions;
        let blocks = 12 * layers + 4 * ENCODER_BLOCKS + 24 * RESAMPLER_LAYERS;
        sensible("gpt_n_model_channels", (dim as u64) * (dim * blocks + tables) as u64)?;
        let start = vocabulary.start.or(self.gpt_start_text_token).unwrap_or(base.text_start);
        let stop = vocabulary.stop.or(self.gpt_stop_text_token).unwrap_or(base.text_stop);
        Ok(Config {
            dim,
            heads,
            layers,
            text_vocab,
            text_start: id("gpt_start_text_token", start, text_vocab)?,
            text_stop: id("gpt_stop_text_token", stop, text_vocab)?,
            codes,
            start: id("gpt_start_audio_token", self.gpt_start_audio_token.unwrap_or(base.start), codes)?,
            stop: id("gpt_stop_audio_token", self.gpt_stop_audio_token.unwrap_or(base.stop), codes)?,
            text_positions,
            code_positions,
            ..base
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_keys_are_the_published_models() {
        let said = (Vocabulary::default(), Sizes::default());
        assert_eq!(Args::default().config(said.0, said.1).unwrap(), Config::v2());
        assert_eq!((Config::v2().resampler_ffn(), Config::v2().most_codes()), (2730, 602));
    }

    #[test]
    fn vocabulary_and_tensors_go_before_the_configuration() {
        let args = Args { gpt_number_text_tokens: Some(100), gpt_layers: Some(9), ..Args::default() };
        let vocabulary = Vocabulary { size: Some(300), start: Some(7), stop: Some(3) };
        let cfg = args.config(vocabulary, Sizes { layers: Some(2), ..Sizes::default() }).unwrap();
        assert_eq!((cfg.text_vocab, cfg.text_start, cfg.text_stop, cfg.layers), (300, 7, 3, 2));
        let key = |args: Args| args.config(Vocabulary::default(), Sizes::default()).unwrap_err().key;
        assert_eq!(key(args), "gpt_start_text_token");
        assert_eq!(key(Args { gpt_n_heads: Some(7), ..Args::default() }), "gpt_n_heads");
        let odd = Args { gpt_n_model_channels: Some(33), gpt_n_heads: Some(3), ..Args::default() };
        assert_eq!(key(odd), "gpt_n_model_channels");
        let first = Args { gpt_use_perceiver_resampler: Some(false), ..Args::default() };
        assert_eq!(key(first), "gpt_use_perceiver_resampler");
        assert_eq!(key(Args { gpt_stop_audio_token: Some(1026), ..Args::default() }), "gpt_stop_audio_token");
    }

    #[test]
    fn groups_follow_the_width() {
        let of = [16, 24, 40, 64, 96, 100, 1024].map(groups);
        assert_eq!(of, [8, 8, 8, 16, 32, 4, 32]);
    }
}
