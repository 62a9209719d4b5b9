//! JSON lines: one object per line with an audio path and a text.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

use super::resolve::Root;
use super::{AUDIO_KEYS, Collector, TEXT_KEYS, VOICE_KEYS};

pub(super) fn read(root: &Root, file: &Path, text: &str, out: &mut Collector) {
    for (number, line) in (1u64..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let short: String = line.chars().take(40).collect();
        let Object(object) = match serde_json::from_str(line) {
            Ok(object) => object,
            Err(error) => {
                out.problem(&short, file, Some(number), format!("not a JSON object: {error}"));
                continue;
            }
        };
        let get =
            |keys: &[&str]| keys.iter().find_map(|k| object.iter().find(|(key, _)| key == k).map(|(_, v)| v));
        // Hugging Face data sets write the audio as an object with a path.
        let audio = get(&AUDIO_KEYS).and_then(|v| v.as_str().or_else(|| v.get("path")?.as_str()));
        let text = get(&TEXT_KEYS).and_then(Value::as_str);
        // A speaker may be a name or a number.
        let voice = get(&VOICE_KEYS).and_then(|v| match v {
            Value::String(name) => Some(name.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        });
        match (audio, text) {
            (Some(audio), Some(text)) => {
                out.add(audio, root.audio(audio), (text, voice.as_deref()), file, number);
            }
            (None, _) => {
                let reason = format!("no audio path (a string under {})", AUDIO_KEYS.join(", "));
                out.problem(&short, file, Some(number), reason);
            }
            (Some(audio), None) => {
                let reason = format!("no text (a string under {})", TEXT_KEYS.join(", "));
                out.problem(audio, file, Some(number), reason);
            }
        }
    }
}

/// An object whose keys are unique: of two texts for one clip, neither can be trusted.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut pairs: Vec<(String, Value)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if pairs.iter().any(|(k, _)| *k == key) {
                        return Err(A::Error::custom(format!("key {key:?} twice")));
                    }
                    pairs.push((key, value));
                }
                Ok(Object(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}
