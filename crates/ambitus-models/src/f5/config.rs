//! The shape of an F5-TTS model, from the project's own YAML (`model.arch`, `model.mel_spec`, `model.tokenizer`).

pub use crate::error::ConfigError;
use crate::error::{err, sensible};
use serde::Deserialize;

/// Mel channels of every released model.
pub const MELS: usize = 100;
/// The text position table ends here: longer clips have no position.
pub const MAX_FRAMES: usize = 8192;
/// Groups of the convolutional position embedding.
pub const POSITION_GROUPS: usize = 16;

/// The file as F5-TTS writes it. Sections that only its own trainer reads are accepted and ignored.
#[derive(Clone, Debug, Deserialize)]
pub struct File {
    /// The model section.
    pub model: ModelSection,
}

/// `model:` of the YAML.
#[derive(Clone, Debug, Deserialize)]
pub struct ModelSection {
    /// Name, for messages only.
    #[serde(default)]
    pub name: Option<String>,
    /// `DiT`; `UNetT` is E2.
    #[serde(default)]
    pub backbone: Option<String>,
    /// `pinyin`, `char`, `byte` or `custom`.
    #[serde(default)]
    pub tokenizer: Option<String>,
    /// Vocabulary file of a custom tokenizer.
    #[serde(default)]
    pub tokenizer_path: Option<String>,
    /// Keyword arguments of the package's `DiT`.
    pub arch: Arch,
    /// Mel settings.
    #[serde(default)]
    pub mel_spec: MelSpec,
}

/// `model.arch`: keyword arguments of the package's `DiT`, with its defaults. Other keys are errors there and here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Arch {
    pub dim: usize,
    #[serde(default = "eight")]
    pub depth: usize,
    #[serde(default = "eight")]
    pub heads: usize,
    #[serde(default = "sixty_four")]
    pub dim_head: usize,
    #[serde(default = "tenth")]
    pub dropout: f32,
    #[serde(default = "four")]
    pub ff_mult: f64,
    #[serde(default)]
    pub text_dim: Option<usize>,
    #[serde(default)]
    pub text_mask_padding: Option<bool>,
    #[serde(default)]
    pub text_embedding_average_upsampling: bool,
    #[serde(default)]
    pub qk_norm: Option<String>,
    #[serde(default)]
    pub conv_layers: usize,
    #[serde(default)]
    pub pe_attn_head: PeAttnHead,
    #[serde(default)]
    pub attn_backend: Option<String>,
    #[serde(default)]
    pub attn_mask_enabled: bool,
    #[serde(default)]
    pub long_skip_connection: bool,
    #[serde(default)]
    pub checkpoint_activations: bool,
}

/// `pe_attn_head`: a number of heads, `null` for all, or absent. Absent and null differ: shapes cannot tell v0 from v1, so
/// one of the two keys that do must be written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeAttnHead {
    /// The key is not there.
    #[default]
    Absent,
    /// `null`: every head.
    All,
    /// The first n heads.
    First(usize),
}

impl<'de> Deserialize<'de> for PeAttnHead {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let n = Option::<usize>::deserialize(d)?;
        Ok(n.map_or(PeAttnHead::All, PeAttnHead::First))
    }
}

/// `model.mel_spec`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct MelSpec {
    pub target_sample_rate: u32,
    pub n_mel_channels: usize,
    pub hop_length: usize,
    pub win_length: usize,
    pub n_fft: usize,
    pub mel_spec_type: String,
}

impl Default for MelSpec {
    fn default() -> MelSpec {
        MelSpec {
            target_sample_rate: 24_000,
            n_mel_channels: MELS,
            hop_length: 256,
            win_length: 1024,
            n_fft: 1024,
            mel_spec_type: "vocos".to_owned(),
        }
    }
}

fn eight() -> usize {
    8
}
fn sixty_four() -> usize {
    64
}
fn tenth() -> f32 {
    0.1
}
fn four() -> f64 {
    4.0
}

/// Which released family the two shape-less switches follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Filler masked, rotary on every head.
    V1,
    /// Filler not masked, rotary on head 0 only.
    V0,
}

/// A checked model shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// D: width.
    pub dim: usize,
    /// Blocks.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels of a head.
    pub dim_head: usize,
    /// Inner width of the feed-forward.
    pub ff_dim: usize,
    /// Dropout probability in training.
    pub dropout: f32,
    /// Width of the text encoder.
    pub text_dim: usize,
    /// ConvNeXt V2 blocks of the text encoder.
    pub conv_layers: usize,
    /// Rows of the text embedding: vocabulary + 1 (row 0 is the filler).
    pub text_rows: usize,
    /// v1: filler positions are zeroed around every text block.
    pub text_mask: bool,
    /// Heads that get rotary positions.
    pub rotated: usize,
    /// RMS norm on queries and keys.
    pub qk_norm: bool,
    /// Concatenate the first block's input to the last block's output.
    pub long_skip: bool,
}

impl Config {
    /// Returns the shape of `F5TTS_v1_Base` (its YAML and vocabulary of 2,545 tokens in F5-TTS 1.1).
    pub fn v1_base() -> Config {
        Config {
            dim: 1024,
            depth: 22,
            heads: 16,
            dim_head: 64,
            ff_dim: 2048,
            dropout: 0.1,
            text_dim: 512,
            conv_layers: 4,
            text_rows: 2546,
            text_mask: true,
            rotated: 16,
            qk_norm: false,
            long_skip: false,
        }
    }
}

impl File {
    /// Checks the file against a vocabulary size. `variant`, when given, decides the two switches that no shape shows.
    ///
    /// # Errors
    /// Names the key: an unsupported backbone or mel, impossible sizes, or a v0/v1 ambiguity.
    pub fn config(&self, vocab: usize, variant: Option<Variant>) -> Result<Config, ConfigError> {
        let m = &self.model;
        match m.backbone.as_deref() {
            None | Some("DiT") => {}
            Some("UNetT") => {
                return err(
                    "model.backbone",
                    "UNetT is E2-TTS, which is not supported; use an F5-TTS (DiT) checkpoint",
                );
            }
            Some(other) => return err("model.backbone", format!("`{other}` is unknown; F5-TTS is `DiT`")),
        }
        let s = &m.mel_spec;
        if s.mel_spec_type != "vocos" {
            let why =
                format!("`{}` mel is not supported; every released default is `vocos`", s.mel_spec_type);
            return err("model.mel_spec.mel_spec_type", why);
        }
        let d = MelSpec::default();
        let same = (s.target_sample_rate, s.n_mel_channels, s.hop_length, s.win_length, s.n_fft)
            == (d.target_sample_rate, d.n_mel_channels, d.hop_length, d.win_length, d.n_fft);
        if !same {
            return err(
                "model.mel_spec",
                "only 24000 Hz, 100 channels, hop 256, window and FFT 1024 are supported",
            );
        }
        let a = &m.arch;
        let (text_mask, rotated) = match (variant, a.text_mask_padding, a.pe_attn_head) {
            (Some(Variant::V1), ..) => (true, None),
            (Some(Variant::V0), ..) => (false, Some(1)),
            (None, None, PeAttnHead::Absent) => {
                let why = "v0 and v1 have equal shapes; write `text_mask_padding` and `pe_attn_head` here, or say --variant v0 or v1";
                return err("model.arch", why);
            }
            (None, mask, PeAttnHead::First(n)) => (mask.unwrap_or(true), Some(n)),
            (None, mask, PeAttnHead::All | PeAttnHead::Absent) => (mask.unwrap_or(true), None),
        };
        let positive = |key, n: usize, most: usize| {
            if (1..=most).contains(&n) { Ok(n) } else { err(key, format!("{n} is not in 1..={most}")) }
        };
        positive("model.arch.dim", a.dim, 1 << 16)?;
        if !a.dim.is_multiple_of(POSITION_GROUPS) {
            return err("model.arch.dim", format!("{} is not a multiple of {POSITION_GROUPS}", a.dim));
        }
        positive("model.arch.depth", a.depth, 1024)?;
        positive("model.arch.heads", a.heads, 1024)?;
        positive("model.arch.dim_head", a.dim_head, 256)?;
        if !a.dim_head.is_multiple_of(2) {
            return err("model.arch.dim_head", "rotary positions need an even head width");
        }
        if !(0.0..1.0).contains(&a.dropout) {
            return err("model.arch.dropout", "is not in 0..1");
        }
        let ff_dim = (a.dim as f64 * a.ff_mult) as usize;
        positive("model.arch.ff_mult", ff_dim, 1 << 20)?;
        let text_dim = positive("model.arch.text_dim", a.text_dim.unwrap_or(MELS), 1 << 16)?;
        if a.conv_layers > 0 && !text_dim.is_multiple_of(2) {
            return err("model.arch.text_dim", "the position table needs an even width");
        }
        positive("model.arch.conv_layers", a.conv_layers + 1, 1025)?;
        positive("vocab.txt", vocab, 1 << 24)?;
        if a.text_embedding_average_upsampling {
            return err(
                "model.arch.text_embedding_average_upsampling",
                "is not supported; no released model uses it",
            );
        }
        let qk_norm = match a.qk_norm.as_deref() {
            None => false,
            Some("rms_norm") => true,
            Some(other) => {
                return err("model.arch.qk_norm", format!("`{other}` is unknown; `rms_norm` or null"));
            }
        };
        let (d, inner, ff, text) =
            (a.dim as u64, (a.heads * a.dim_head) as u64, ff_dim as u64, text_dim as u64);
        let block = d * (6 * d + 4 * inner + 2 * ff);
        let parameters = block * a.depth as u64 + text * (vocab as u64 + 4 * text * a.conv_layers as u64);
        sensible("model.arch.dim", parameters)?;
        Ok(Config {
            dim: a.dim,
            depth: a.depth,
            heads: a.heads,
            dim_head: a.dim_head,
            ff_dim,
            dropout: a.dropout,
            text_dim,
            conv_layers: a.conv_layers,
            text_rows: vocab + 1,
            text_mask,
            rotated: rotated.map_or(a.heads, |n: usize| n.min(a.heads)),
            qk_norm,
            long_skip: a.long_skip_connection,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arch: &str) -> Result<Config, ConfigError> {
        let text = format!(r#"{{"model": {{"arch": {{"dim": 1024, "pe_attn_head": null, {arch}}}}}}}"#);
        serde_json::from_str::<File>(&text).expect("JSON").config(2545, None)
    }

    #[test]
    fn sizes_that_are_possible_alone_may_be_too_much_together() {
        // Twenty times the released model.
        config(r#""depth": 60, "heads": 64, "ff_mult": 8"#).expect("a model");
        let deep = r#""depth": 1024, "heads": 1024, "dim_head": 256, "ff_mult": 1000"#;
        let e = config(deep).expect_err("no model");
        assert_eq!(e.key, "model.arch.dim");
        assert!(e.why.contains("3.3e12 parameters"), "{e}");
        let text = r#""text_dim": 65536, "conv_layers": 1024"#;
        assert_eq!(config(text).expect_err("no model").key, "model.arch.dim");
        for bad in [
            r#""depth": 0"#,
            r#""depth": 1000000000"#,
            r#""ff_mult": -1"#,
            r#""ff_mult": 1e308"#,
            r#""dropout": -0.1"#,
        ] {
            let e = config(bad).expect_err(bad);
            assert!(bad.contains(e.key.trim_start_matches("model.arch.")), "{e}");
        }
    }

    #[test]
    fn what_a_file_says_is_repeated_in_part() {
        let e = config(&format!(r#""qk_norm": "{}""#, "ä".repeat(100_000))).expect_err("no norm");
        assert!(e.why.len() < 1000 && e.why.ends_with('…'), "{e}");
    }
}
