//! `parler:` in a recipe.

use ambitus_recipe::recipe::{OwnKey, OwnOption, Section};
use serde::Deserialize;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// The section.
pub(super) const SECTION: Section = Section {
    name: "parler",
    keys: &[
        OwnKey {
            name: "description",
            says: "The description of clips whose data set has none (in a column or key `description` or `text_description`): who \
                   speaks, and how, in a sentence. Absent: every clip needs its own.",
            before: None,
            option: Some(OwnOption {
                flag: "description",
                value: Some("TEXT"),
                help: "What is said of the voice, for clips whose data set says nothing: `Jenny speaks slowly, very clear audio.`",
                is_path: false,
            }),
        },
        OwnKey {
            name: "descriptions",
            says: "A second data set (folder or file) with the descriptions, row for row those of `data.dir`, as the project's scripts \
                   make it: `text_description`, and `id` where it has one. Absent: descriptions are in `data.dir`.",
            before: None,
            option: None,
        },
        OwnKey {
            name: "normaliser",
            says: "What an update's loss is divided by: `valid`, the scored ids, or `script`, all cells of its clips padded to the \
                   longest, as the project's training script does (so its rate depends on how clips are padded). Absent: `valid`.",
            before: None,
            option: None,
        },
        OwnKey {
            name: "script_clips",
            says: "With `normaliser: script`: how many clips are padded to one length, those of an update in order of their lengths \
                   (`per_device_train_batch_size` of the script, with `group_by_length`). Absent: all clips of an update.",
            before: None,
            option: None,
        },
        OwnKey {
            name: "encoder_draws",
            says: "How many times each description is read with the text encoder's dropout while preparing, up to 64; each use in \
                   training has one of these draws (the training script draws anew for each, though the encoder is frozen). Their states \
                   lie in `data.cache`. Absent: 0, the encoder drops nothing.",
            before: None,
            option: None,
        },
    ],
};

/// The most draws: each has states on the disk.
const MOST_DRAWS: usize = 64;

/// What a loss is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Normaliser {
    /// The scored ids.
    #[default]
    Valid,
    /// All cells of the padded batch.
    Script,
}

/// Its values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Of clips that have none.
    pub description: Option<String>,
    /// A second data set with the descriptions.
    pub descriptions: Option<PathBuf>,
    /// What a loss is divided by.
    pub normaliser: Normaliser,
    /// Clips that are padded to one length.
    pub script_clips: Option<NonZeroUsize>,
    /// Draws of the encoder's dropout.
    pub encoder_draws: usize,
}

impl Keys {
    /// Checks the values.
    ///
    /// # Errors
    /// The key and what it may be.
    pub fn checked(self) -> Result<Keys, String> {
        match self.encoder_draws {
            0..=MOST_DRAWS => Ok(self),
            n => Err(format!("parler.encoder_draws: {n} is more than {MOST_DRAWS}")),
        }
    }

    /// Returns how many clips are padded to one length, where a loss is divided by all cells.
    pub fn padded(&self) -> Option<usize> {
        let all = self.script_clips.map_or(usize::MAX, NonZeroUsize::get);
        (self.normaliser == Normaliser::Script).then_some(all)
    }
}
