//! `orpheus:` in a recipe.

use ambitus_data::speech::LabelScope;
use ambitus_recipe::recipe::{OwnKey, OwnOption, Section};
use serde::Deserialize;
use std::path::PathBuf;

/// The section.
pub(super) const SECTION: Section = Section {
    name: "orpheus",
    keys: &[
        OwnKey {
            name: "codec",
            says: "Folder of the SNAC codec (`config.json`, `model.safetensors` or `pytorch_model.bin`) that turns audio into \
                   tokens, once: they are kept in `data.cache`. Its memory is released before training. Not needed for data that is \
                   already tokenised.",
            before: Some("data.codec"),
            option: Some(OwnOption {
                flag: "codec",
                value: Some("DIR"),
                help: "Folder of the SNAC codec: turns audio into tokens once, before the first update, in its own memory, which is \
                       then released",
                is_path: true,
            }),
        },
        OwnKey {
            name: "labels",
            says: "Which tokens are scored, `all` or `audio` (from the first audio token to the end: text is not learned; the loss \
                   is a mean over other tokens). Data that is already tokenised brings its own labels. Absent: all, as the official script does.",
            before: Some("data.labels"),
            option: None,
        },
        OwnKey {
            name: "voice",
            says: "The voice of clips whose data set names none (in a column or key `source` or `speaker_id`); it stands before the \
                   text, `voice: text`. Absent: the text alone.",
            before: Some("data.voice"),
            option: None,
        },
        OwnKey {
            name: "max_tokens",
            says: "Longest sequence in tokens (text, audio at 82 a second, and eight that wrap them); longer ones are left out, or \
                   refused with `outside: refuse`. Bounds the largest micro-batch. Absent: as long as `max_seconds` makes them.",
            before: Some("data.max_tokens"),
            option: None,
        },
    ],
};

/// Its values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Folder of the codec.
    pub codec: Option<PathBuf>,
    /// Which tokens are scored.
    pub labels: Option<LabelScope>,
    /// Of clips whose data set names none.
    pub voice: Option<String>,
    /// The longest sequence.
    pub max_tokens: Option<u64>,
}
