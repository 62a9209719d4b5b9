//! `piper:` in a recipe.

use ambitus_models::piper::config::Quality;
use ambitus_recipe::recipe::{OwnKey, OwnOption, Section};
use serde::Deserialize;

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
    ],
};

/// Its values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Of a voice without a checkpoint.
    pub quality: Option<Word>,
    /// Metadata brings ids.
    pub phoneme_ids: bool,
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
