//! `musicgen:` in a recipe.

use ambitus_data::music::Pieces;
use ambitus_recipe::recipe::{OwnKey, Section};
use serde::Deserialize;
use std::num::NonZeroUsize;

/// Segments of a file that are encoded where the recipe does not say how many.
const SEGMENTS: usize = 8;
/// The most of them: their sound is held while they are encoded.
const MOST_SEGMENTS: usize = 64;

/// The section.
pub(super) const SECTION: Section = Section {
    name: "musicgen",
    keys: &[
        OwnKey {
            name: "condition_dropout",
            says: "Of how many uses of a clip in training the text is dropped, so that the model also learns music without one, which \
                   guidance needs; drawn for each use of each clip (audiocraft draws once for a whole batch). Absent: 0.3.",
            before: None,
            option: None,
        },
        OwnKey {
            name: "codes",
            says: "What of a file is encoded: `whole`, all of it once, of which each use reads a segment; or `segment`, segments that are \
                   drawn while preparing, each by itself, as audiocraft encodes them while it trains. Absent: `whole`.",
            before: None,
            option: None,
        },
        OwnKey {
            name: "segments",
            says: "With `codes: segment`: how many segments of a file, up to 64. Absent: 8.",
            before: None,
            option: None,
        },
    ],
};

/// What of a file is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Encoded {
    /// All of it.
    #[default]
    Whole,
    /// Segments.
    Segment,
}

/// Its values.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Share of uses without text.
    pub condition_dropout: f64,
    /// What of a file is encoded.
    pub codes: Encoded,
    /// Segments of a file.
    pub segments: Option<NonZeroUsize>,
}

impl Default for Keys {
    /// audiocraft's (`config/conditioner/text2music.yaml`).
    fn default() -> Keys {
        Keys { condition_dropout: 0.3, codes: Encoded::Whole, segments: None }
    }
}

impl Keys {
    /// Checks the values.
    ///
    /// # Errors
    /// The key and what it may be.
    pub fn checked(self) -> Result<Keys, String> {
        if !(0.0..=1.0).contains(&self.condition_dropout) {
            return Err(format!("musicgen.condition_dropout: {} is not in 0..=1", self.condition_dropout));
        }
        match (self.codes, self.segments) {
            (Encoded::Whole, Some(_)) => Err(
                "musicgen.segments: says something with `codes: segment` alone; add that, or leave this out"
                    .to_owned(),
            ),
            (_, Some(n)) if n.get() > MOST_SEGMENTS => {
                Err(format!("musicgen.segments: {n} is more than {MOST_SEGMENTS}"))
            }
            _ => Ok(self),
        }
    }

    /// Returns what of a file is encoded; `seed` draws segments.
    pub fn pieces(&self, seed: u64) -> Pieces {
        match self.codes {
            Encoded::Whole => Pieces::Whole,
            Encoded::Segment => {
                Pieces::Drawn { count: self.segments.map_or(SEGMENTS, NonZeroUsize::get), seed }
            }
        }
    }
}
