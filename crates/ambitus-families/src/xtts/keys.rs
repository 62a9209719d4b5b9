//! `xtts:` in a recipe.

use ambitus_recipe::recipe::{OwnKey, OwnOption, Section};
use serde::Deserialize;

/// The section.
pub(super) const SECTION: Section = Section {
    name: "xtts",
    keys: &[
        OwnKey {
            name: "language",
            says: "The language of the clips' texts: `en`, `zh-cn`, …. Absent: what `lang.txt` beside the data says.",
            before: None,
            option: Some(OwnOption {
                flag: "language",
                value: Some("CODE"),
                help: "Language of the texts: en, zh-cn, … [default: what lang.txt beside the data says]",
                is_path: false,
            }),
        },
        OwnKey {
            name: "cleaned",
            says: "Texts are as the project's cleaners leave them, numbers in words: they are read as they are. Absent: false.",
            before: None,
            option: Some(OwnOption {
                flag: "cleaned",
                value: None,
                help: "Texts are as the project's cleaners leave them",
                is_path: false,
            }),
        },
        OwnKey {
            name: "mask_prompt",
            says: "Codes of the piece that a clip is conditioned on are not scored, as the project means it. Absent: true.",
            before: None,
            option: None,
        },
    ],
};

/// Its values.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Of the clips' texts.
    pub language: Option<String>,
    /// Texts are cleaned already.
    pub cleaned: bool,
    /// Codes of the conditioning piece are not scored.
    pub mask_prompt: bool,
}

impl Default for Keys {
    fn default() -> Keys {
        Keys { language: None, cleaned: false, mask_prompt: true }
    }
}
