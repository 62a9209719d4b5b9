//! `musicgen:` in a recipe.

use super::texts::Drawn;
use ambitus_data::music::{Pieces, Weighting};
use ambitus_recipe::recipe::{OwnKey, Section};
use serde::Deserialize;
use std::num::NonZeroUsize;

/// Segments of a file that are encoded where the recipe does not say how many.
const SEGMENTS: usize = 8;
/// The most of them: their sound is held while they are encoded.
const MOST_SEGMENTS: usize = 64;

/// Texts of a clip that are drawn where the recipe says how and not how many.
const TEXTS: usize = 8;
/// The most of them: each has states on the disk.
const MOST_TEXTS: usize = 64;

const fn key(name: &'static str, says: &'static str) -> OwnKey {
    OwnKey { name, says, before: None, option: None }
}

/// The section.
pub(super) const SECTION: Section = Section {
    name: "musicgen",
    keys: &[
        key(
            "condition_dropout",
            "Of how many uses of a clip in training the text is dropped, so that the model also learns music without one, which \
             guidance needs; drawn for each use of each clip (audiocraft draws once for a whole batch). Absent: 0.3.",
        ),
        key(
            "texts",
            "How many texts are drawn of each clip's description and metadata while preparing, up to 64; each use in training draws one \
             of them (audiocraft draws a new one each time). Their states lie in `data.cache`, some 100 KiB each. Absent: none, and a \
             use has the description as it stands; 8 if one of the four keys below is given.",
        ),
        key("word_dropout", "Share of words that drawn texts leave out. Absent: 0.3."),
        key(
            "merge_metadata",
            "Share of drawn texts that have metadata behind the description: key, bpm, genre, moods, keywords and instrument, of the \
             JSON file beside the audio. Absent: 0.25.",
        ),
        key(
            "drop_description",
            "Of the texts with metadata, the share without the description. Absent: 0.5.",
        ),
        key(
            "keep_metadata",
            "Share of metadata that a text with metadata has (audiocraft's `drop_other_p`). Absent: 0.5.",
        ),
        key(
            "codes",
            "What of a file is encoded: `whole`, all of it once, of which each use reads a segment; or `segment`, segments that are \
             drawn while preparing, each by itself, as audiocraft encodes them while it trains. Absent: `whole`.",
        ),
        key(
            "sample_on_weight",
            "Files are trained on as often as the `weight` in their list says. Absent: true; a list without weights has all alike.",
        ),
        key(
            "sample_on_duration",
            "Files are trained on as often as they are long. Absent: false, and each is once an epoch.",
        ),
        key("segments", "With `codes: segment`: how many segments of a file, up to 64. Absent: 8."),
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
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keys {
    /// Share of uses without text.
    pub condition_dropout: f64,
    /// Texts that are drawn of each clip, and how.
    pub texts: Option<NonZeroUsize>,
    pub word_dropout: Option<f64>,
    pub merge_metadata: Option<f64>,
    pub drop_description: Option<f64>,
    pub keep_metadata: Option<f64>,
    /// Files are drawn by their weights.
    pub sample_on_weight: bool,
    /// Files are drawn by their lengths.
    pub sample_on_duration: bool,
    /// What of a file is encoded.
    pub codes: Encoded,
    /// Segments of a file.
    pub segments: Option<NonZeroUsize>,
}

impl Default for Keys {
    /// audiocraft's (`config/conditioner/text2music.yaml`).
    fn default() -> Keys {
        Keys {
            condition_dropout: 0.3,
            texts: None,
            word_dropout: None,
            merge_metadata: None,
            drop_description: None,
            keep_metadata: None,
            sample_on_weight: true,
            sample_on_duration: false,
            codes: Encoded::Whole,
            segments: None,
        }
    }
}

impl Keys {
    /// Checks the values.
    ///
    /// # Errors
    /// The key and what it may be.
    pub fn checked(self) -> Result<Keys, String> {
        for (key, share) in
            [("condition_dropout", Some(self.condition_dropout))].into_iter().chain(self.shares())
        {
            if let Some(x) = share.filter(|x| !(0.0..=1.0).contains(x)) {
                return Err(format!("musicgen.{key}: {x} is not in 0..=1"));
            }
        }
        if let Some(n) = self.texts.filter(|n| n.get() > MOST_TEXTS) {
            return Err(format!("musicgen.texts: {n} is more than {MOST_TEXTS}"));
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

    /// Returns the shares by which texts are drawn.
    fn shares(&self) -> [(&'static str, Option<f64>); 4] {
        [
            ("word_dropout", self.word_dropout),
            ("merge_metadata", self.merge_metadata),
            ("drop_description", self.drop_description),
            ("keep_metadata", self.keep_metadata),
        ]
    }

    /// Returns how texts are drawn; by default as audiocraft does (`config/conditioner/text2music.yaml`).
    pub fn drawn(&self) -> Drawn {
        let says = self.shares().iter().any(|(_, share)| share.is_some());
        Drawn {
            count: self.texts.map_or(if says { TEXTS } else { 0 }, NonZeroUsize::get),
            word_dropout: self.word_dropout.unwrap_or(0.3),
            merge: self.merge_metadata.unwrap_or(0.25),
            drop_description: self.drop_description.unwrap_or(0.5),
            keep_metadata: self.keep_metadata.unwrap_or(0.5),
        }
    }

    /// Returns how often files are trained on.
    pub fn weighting(&self) -> Weighting {
        Weighting { by_weight: self.sample_on_weight, by_duration: self.sample_on_duration }
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
