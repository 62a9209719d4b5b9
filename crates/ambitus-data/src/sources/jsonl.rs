//! JSON lines: one object per line with an audio path and a text.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Number;
use serde_json::value::RawValue;

use super::beside::{Row, Rows};
use super::listing::{Lister, Said};
use super::resolve::Root;
use super::{
    self as sources, AUDIO_KEYS, DESCRIPTION_KEYS, ID_KEYS, PHONEME_KEYS, TEXT_KEYS, VOICE_KEYS, WEIGHT_KEYS,
    add,
};
use crate::error::DataError;
use crate::files::Lines;
use crate::outcomes::Cause;

pub(super) fn read(root: &Root, path: &Path, out: &mut Lister) -> Result<(), DataError> {
    let file = out.file(path);
    let mut lines = Lines::open(path)?;
    while let Some((number, line)) = lines.next()? {
        out.advance(file, number)?;
        let problem = |out: &mut Lister, name: &str, reason: String| {
            out.problem(name, path, Some(number), (Cause::Metadata, reason))
        };
        let line = match line {
            Ok(line) => line,
            Err(reason) => {
                problem(out, "a long line", reason)?;
                continue;
            }
        };
        let start = || line.chars().take(40).collect::<String>();
        let object: Object<'_> = match serde_json::from_str(line) {
            Ok(object) => object,
            Err(error) => {
                problem(out, &start(), format!("not a JSON object: {error}"))?;
                continue;
            }
        };
        // Of music there need be no text.
        let text = object.first(&TEXT_KEYS).and_then(string).or_else(|| out.is_music().then(String::new));
        match (object.audio(), text) {
            (Some(audio), Some(text)) => {
                let voice = object.first(&VOICE_KEYS).and_then(name_or_number);
                let described = |keys: &[&str]| object.first(keys).filter(|_| out.is_described());
                let description = described(&DESCRIPTION_KEYS).and_then(string);
                let id = described(&ID_KEYS).and_then(name_or_number);
                let (voice, description) = (voice.as_deref(), description.as_deref());
                let weight =
                    match object.first(&WEIGHT_KEYS).filter(|_| out.is_music()).map_or(Ok(1.0), weight) {
                        Ok(weight) => weight,
                        Err(reason) => {
                            problem(out, &audio, reason)?;
                            continue;
                        }
                    };
                let spoken = out.lines != sources::Lines::Texts;
                let ids =
                    object.first(&PHONEME_KEYS).filter(|_| spoken).map(|v| serde_json::from_str(v.get()));
                let ids: Vec<u32> = match ids.transpose() {
                    Ok(ids) => ids.unwrap_or_default(),
                    Err(error) => {
                        problem(out, &audio, format!("{}: {error}", PHONEME_KEYS[0]))?;
                        continue;
                    }
                };
                let said = Said {
                    text: &text,
                    voice,
                    description,
                    fields: &[],
                    ids: &ids,
                    weight,
                    id: id.as_deref(),
                    file: Some(file),
                    line: number,
                };
                add(out, &audio, root.audio(&audio), &said)?;
            }
            (None, _) => {
                problem(out, &start(), format!("no audio path (a string under {})", AUDIO_KEYS.join(", ")))?;
            }
            (Some(audio), None) => {
                problem(out, &audio, format!("no text (a string under {})", TEXT_KEYS.join(", ")))?;
            }
        }
    }
    Ok(())
}

/// Returns the rows of a second data set.
pub(super) fn rows(file: &Path) -> Result<impl Rows + use<>, DataError> {
    Ok(Objects(Lines::open(file)?))
}

struct Objects(Lines);

impl Rows for Objects {
    fn next(&mut self) -> Result<Option<Row>, DataError> {
        let Some((line, text)) = self.0.next()? else { return Ok(None) };
        let read = text.and_then(|text| {
            let object: Object<'_> =
                serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
            Ok(Row {
                audio: object.audio(),
                id: object.first(&ID_KEYS).and_then(name_or_number),
                description: object.first(&DESCRIPTION_KEYS).and_then(string),
                ..Row::default()
            })
        });
        let row = read.unwrap_or_else(|reason| Row { problem: Some(reason), ..Row::default() });
        Ok(Some(Row { line, ..row }))
    }
}

/// What an object has under the keys that are read, each at most once: of two texts for one clip, neither can be trusted.
struct Object<'a>(Vec<(&'static str, &'a RawValue)>);

impl Object<'_> {
    fn first(&self, keys: &[&str]) -> Option<&RawValue> {
        keys.iter().find_map(|k| self.0.iter().find(|(key, _)| key == k).map(|(_, v)| *v))
    }

    /// Returns a path; Hugging Face data sets write the audio as an object with one.
    fn audio(&self) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Audio {
            path: String,
        }
        let value = self.first(&AUDIO_KEYS)?;
        string(value).or_else(|| serde_json::from_str::<Audio>(value.get()).ok().map(|audio| audio.path))
    }
}

/// The keys that are read.
const KNOWN: [&[&str]; 7] =
    [&AUDIO_KEYS, &TEXT_KEYS, &VOICE_KEYS, &DESCRIPTION_KEYS, &ID_KEYS, &PHONEME_KEYS, &WEIGHT_KEYS];

fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// Reads how often a clip is trained on: once, where that is null.
fn weight(value: &RawValue) -> Result<f32, String> {
    let weight: Option<f32> = serde_json::from_str(value.get()).map_err(|e| format!("weight: {e}"))?;
    match weight.unwrap_or(1.0) {
        weight if weight > 0.0 && weight.is_finite() => Ok(weight),
        0.0 => Err("its weight is 0, so it is never drawn".to_owned()),
        weight => Err(format!("weight: {weight} is no number above 0")),
    }
}

/// Reads a speaker, which may be a name or a number.
fn name_or_number(value: &RawValue) -> Option<String> {
    string(value).or_else(|| Some(serde_json::from_str::<Number>(value.get()).ok()?.to_string()))
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut pairs: Vec<(&'static str, &'de RawValue)> = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    let Some(known) = KNOWN.into_iter().flatten().find(|k| **k == key).copied() else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    if pairs.iter().any(|(k, _)| *k == known) {
                        return Err(A::Error::custom(format!("key {known:?} twice")));
                    }
                    pairs.push((known, map.next_value()?));
                }
                Ok(Object(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}
