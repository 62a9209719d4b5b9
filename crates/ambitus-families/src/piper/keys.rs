//! `piper:` in a recipe.

use ambitus_models::piper::config::Quality;
use ambitus_recipe::recipe::{OwnKey, OwnOption, Section};
use serde::Deserialize;
use serde_json::Value;

/// The section.
pub(super) const SECTION: Section = Section {
    name: "piper",
    keys: &[
        OwnKey {
            name: "quality",
            says: "Of a voice that is trained from scratch, or planned without its checkpoint: `x-low`, `low`, `medium` or `high`. Absent: what \
               the checkpoint is, else `medium`.",
            before: None,
            option: Some(OwnOption {
                flag: "quality",
                value: Some("NAME"),
                help: "Of a voice without a checkpoint: x-low, low, medium, high [default: medium]",
                is_path: false,
            }),
        },
        OwnKey {
            name: "phoneme_ids",
            says: "Lines of the metadata end with the ids of their phonemes, `file|text|1 0 27 0 2`, so that espeak-ng is not needed. JSON \
                   lines with `phoneme_ids` need no key. Absent: false.",
            before: None,
            option: Some(OwnOption {
                flag: "phoneme-ids",
                value: None,
                help: "Lines of the metadata end with the ids of their phonemes",
                is_path: false,
            }),
        },
        OwnKey {
            name: WARM_START,
            says: "Which parts of `model.ckpt` a run begins with: `all`; `vocoder`, which is the generator's `dec`, `enc_q` and `flow`; or a list of \
                   its modules, `[dec, enc_q, flow, enc_p, dp, emb_g, d]`, of which `d` are the discriminators. The others are drawn by the \
                   seed, as from scratch. Without `enc_p`, `config.json` says how many symbols there are (`num_symbols`). Absent: `all`.",
            before: None,
            option: Some(OwnOption {
                flag: "warm-start",
                value: Some("PARTS"),
                help: "Parts of the checkpoint to begin with: all, vocoder, or modules, as dec,enc_q,flow,enc_p,dp,emb_g,d [default: all]",
                is_path: false,
            }),
        },
        OwnKey {
            name: "speakers",
            says: "How many speakers the voice has, where they are others than the checkpoint's: their table, and the layers that a voice of one \
                   speaker lacks, are drawn by the seed. Absent: those of the checkpoint; from scratch, `num_speakers` in `config.json`.",
            before: None,
            option: Some(OwnOption {
                flag: "speakers",
                value: Some("N"),
                help: "Speakers of the voice, where they are others than the checkpoint's: their table is drawn anew",
                is_path: false,
            }),
        },
    ],
};

/// The key of the parts that a run begins with.
pub(super) const WARM_START: &str = "warm_start";
/// Parts of the generator that make sound of spectrograms.
pub(super) const VOCODER: [&str; 3] = ["model_g.dec", "model_g.enc_q", "model_g.flow"];
/// Speakers, at most.
const MOST_SPEAKERS: u64 = 1 << 16;

/// Its values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Of a voice without a checkpoint.
    pub quality: Option<Word>,
    /// Metadata brings ids.
    pub phoneme_ids: bool,
    /// What is taken of the checkpoint.
    pub warm_start: Option<Parts>,
    /// Other speakers than the checkpoint's.
    pub speakers: Option<Speakers>,
}

/// Parts of a checkpoint, as its names begin; the empty name is all of it. On the command line there are commas between them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Parts(pub Vec<String>);

impl TryFrom<Value> for Parts {
    type Error = String;

    fn try_from(value: Value) -> Result<Parts, String> {
        let words: Option<Vec<&str>> = match &value {
            Value::String(text) => Some(text.split(',').map(str::trim).collect()),
            Value::Array(all) => all.iter().map(Value::as_str).collect(),
            _ => None,
        };
        let words = words.filter(|words| !words.is_empty() && words.iter().all(|word| !word.is_empty()));
        let words = words.ok_or_else(|| {
            format!("{value} names no parts: say all, vocoder, or modules, as [dec, enc_q, flow, enc_p, dp, emb_g, d]")
        })?;
        let names = |word: &str| match word {
            "all" => vec![String::new()],
            "vocoder" => VOCODER.map(str::to_owned).to_vec(),
            "d" => vec!["model_d".to_owned()],
            module => vec![format!("model_g.{module}")],
        };
        Ok(Parts(words.into_iter().flat_map(names).collect()))
    }
}

/// How many speakers there are, which the command line says as a text.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Speakers(pub usize);

impl TryFrom<Value> for Speakers {
    type Error = String;

    fn try_from(value: Value) -> Result<Speakers, String> {
        let n = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let n = n.filter(|n| (1..=MOST_SPEAKERS).contains(n));
        n.map(|n| Speakers(n as usize))
            .ok_or_else(|| format!("{value} is no number of speakers from 1 to {MOST_SPEAKERS}"))
    }
}

/// A quality, as it is written.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Word {
    XLow,
    Low,
    Medium,
    High,
}

impl From<Word> for Quality {
    fn from(word: Word) -> Quality {
        match word {
            Word::XLow => Quality::XLow,
            Word::Low => Quality::Low,
            Word::Medium => Quality::Medium,
            Word::High => Quality::High,
        }
    }
}
