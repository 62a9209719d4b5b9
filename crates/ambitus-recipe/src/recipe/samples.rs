//! `samples:`, the sentences that are spoken while a run trains.

use super::forms::{Forms, read};
use super::validate::{Invalid, refuse};
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::PathBuf;

/// The most texts of a run.
const MOST_TEXTS: usize = 64;
/// The longest text, bytes.
const MOST_BYTES: usize = 4096;

/// What is spoken while a run trains.
#[derive(Clone, Debug, PartialEq)]
pub enum Samples {
    /// Nothing.
    Off,
    /// These.
    Of(Box<Sentences>),
}

/// The sentences, and who speaks them when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sentences {
    /// The texts. Absent: what is said in two of the validation clips.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<String>,
    /// The clip whose voice speaks, of models that clone voices: (a part of) the name of a validation clip, or an audio file of 3 to
    /// 12 s. Absent: the validation clip whose length is nearest to 6 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<String>,
    /// The words in `clip`, where it is a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_text: Option<String>,
    /// The voice that speaks, of models that have named ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voice: Option<String>,
    /// Seconds of each, of models that make sound as long as is asked for. Absent: about those of the longest clip, but no more than 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Folder of a Whisper model that hears them, of models that speak: how many of the words of `texts` are not heard is their word error
    /// rate, in `samples.json`, the notes, the summary and the pages. It runs on the processor, after they are spoken, within the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard_by: Option<PathBuf>,
    /// The language of `texts` (`en`), for `heard_by`. Absent: the one that is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// `validation`, or a number of updates. They are also spoken before the first update and after the last.
    pub every: Every,
}

/// When samples are spoken, besides before the first update and after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Every {
    /// After each validation.
    #[default]
    Validation,
    /// After so many updates.
    Updates(u64),
}

impl Sentences {
    /// Checks the values.
    ///
    /// # Errors
    /// By key.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.texts.len() > MOST_TEXTS {
            refuse("samples.texts", format!("has {} texts; {MOST_TEXTS} at most", self.texts.len()))?;
        }
        for text in &self.texts {
            if !text.chars().any(char::is_alphanumeric) {
                refuse("samples.texts", format!("`{text}` has no words to say"))?;
            }
            if text.len() > MOST_BYTES {
                refuse("samples.texts", format!("a text has {} bytes; {MOST_BYTES} at most", text.len()))?;
            }
        }
        if let Some(seconds) = self.seconds.filter(|s| !(s.is_finite() && (0.1..=300.0).contains(s))) {
            refuse("samples.seconds", format!("{seconds} is not from 0.1 to 300"))?;
        }
        if self.heard_by.is_some() && self.texts.is_empty() {
            refuse("samples.heard_by", "needs samples.texts: what is heard is compared with them")?;
        }
        if self.language.is_some() && self.heard_by.is_none() {
            refuse("samples.language", "is of samples.heard_by, which is missing")?;
        }
        if self.clip_text.is_some() && self.clip.is_none() {
            refuse("samples.clip_text", "says what is spoken in samples.clip, which is missing")?;
        }
        Ok(())
    }
}

impl Serialize for Samples {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Samples::Off => s.serialize_bool(false),
            Samples::Of(sentences) => sentences.serialize(s),
        }
    }
}

impl<'de> Forms<'de> for Samples {
    const EXPECTED: &'static str = "false, true, or {texts: [...], clip: NAME, every: validation}";
    fn flag(on: bool) -> Option<Samples> {
        Some(if on { Samples::Of(Box::default()) } else { Samples::Off })
    }
    fn map<A: MapAccess<'de>>(map: A) -> Option<Result<Samples, A::Error>> {
        Some(Sentences::deserialize(MapAccessDeserializer::new(map)).map(|s| Samples::Of(Box::new(s))))
    }
}

impl<'de> Deserialize<'de> for Samples {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Samples, D::Error> {
        read(d)
    }
}

impl Serialize for Every {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Every::Validation => s.serialize_str("validation"),
            Every::Updates(n) => s.serialize_u64(*n),
        }
    }
}

impl Forms<'_> for Every {
    const EXPECTED: &'static str = "validation, or a number of updates";
    fn text(text: &str) -> Option<Every> {
        (text == "validation").then_some(Every::Validation)
    }
    fn number(n: u64) -> Option<Every> {
        (n > 0).then_some(Every::Updates(n))
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Every, D::Error> {
        read(d)
    }
}
