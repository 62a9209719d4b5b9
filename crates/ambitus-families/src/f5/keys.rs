//! `f5:` in a recipe.

use ambitus_data::TokenizerKind;
use ambitus_models::f5::config::Variant;
use ambitus_recipe::recipe::{OwnKey, OwnOption, Section};
use serde::Deserialize;
use std::path::PathBuf;

/// The section.
pub(super) const SECTION: Section = Section {
    name: "f5",
    keys: &[
        OwnKey {
            name: "variant",
            says: "`v0` or `v1`, where the model's YAML does not say (their shapes are equal).",
            before: Some("model.variant"),
            option: Some(OwnOption {
                flag: "variant",
                value: Some("v0|v1"),
                help: "v0 or v1, where the model's config.yaml does not say",
                is_path: false,
            }),
        },
        OwnKey {
            name: "extend_vocab",
            says: "Add new rows for tokens that the checkpoint's vocabulary lacks; old ids stay.",
            before: Some("model.extend_vocab"),
            option: Some(OwnOption {
                flag: "extend-vocab",
                value: None,
                help: "Add embedding rows for a vocabulary longer than the checkpoint's",
                is_path: false,
            }),
        },
        OwnKey {
            name: "tokenizer",
            says: "`pinyin`, `char`, `byte` or `custom`. Absent: the model's own.",
            before: Some("data.tokenizer"),
            option: None,
        },
        OwnKey {
            name: "vocoder",
            says: "Folder of the vocoder (vocos-mel-24khz) that makes the sound of `samples`. Absent: Griffin-Lim, which buzzes.",
            before: None,
            option: Some(OwnOption {
                flag: "vocoder",
                value: Some("DIR"),
                help: "Folder of the vocoder (vocos-mel-24khz) that makes the sound of samples; without, Griffin-Lim, which buzzes",
                is_path: true,
            }),
        },
    ],
};

/// Its values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Which released generation, where the configuration does not say.
    pub variant: Option<Variant>,
    /// Accept a vocabulary longer than the checkpoint's: its new rows are drawn, old ids keep theirs.
    pub extend_vocab: bool,
    /// Instead of the configuration's.
    pub tokenizer: Option<TokenizerKind>,
    /// Folder of the vocoder.
    pub vocoder: Option<PathBuf>,
}
