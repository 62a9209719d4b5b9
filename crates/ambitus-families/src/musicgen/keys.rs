//! `musicgen:` in a recipe.

use ambitus_recipe::recipe::{OwnKey, Section};
use serde::Deserialize;

/// The section.
pub(super) const SECTION: Section = Section {
    name: "musicgen",
    keys: &[OwnKey {
        name: "condition_dropout",
        says: "Of how many uses of a clip in training the text is dropped, so that the model also learns music without one, which guidance \
               needs; drawn for each use of each clip (audiocraft draws once for a whole batch). Absent: 0.3.",
        before: None,
        option: None,
    }],
};

/// Its values.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Share of uses without text.
    pub condition_dropout: f64,
}

impl Default for Keys {
    /// audiocraft's (`config/conditioner/text2music.yaml`).
    fn default() -> Keys {
        Keys { condition_dropout: 0.3 }
    }
}

impl Keys {
    /// Checks the values.
    ///
    /// # Errors
    /// The key and what it may be.
    pub fn checked(self) -> Result<Keys, String> {
        match (0.0..=1.0).contains(&self.condition_dropout) {
            true => Ok(self),
            false => Err(format!("musicgen.condition_dropout: {} is not in 0..=1", self.condition_dropout)),
        }
    }
}
