//! What is told of music beside its audio: a JSON file of the audio's name, as audiocraft reads it (`data/music_dataset.py` and
//! `data/info_audio_dataset.py` of 1.3.0), or a text.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::listing::{Lister, Said};
use super::said::{MAX_DESCRIPTION, description, voice};
use crate::error::DataError;
use crate::outcomes::{Cause, Problem};

/// Largest JSON file beside an audio file, bytes; audiocraft's have some hundred. Read, each byte takes up to 32.
const MAX_JSON: u64 = 64 << 10;
/// Names of the lists that audiocraft writes, the preferred first.
const LISTS: [&str; 2] = ["data.jsonl", "data.jsonl.gz"];

/// Returns the list that a folder has, if it has one.
pub(super) fn listed_in(folder: &Path) -> Option<PathBuf> {
    LISTS.iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

/// Adds an audio file with what is told of it: by the JSON file beside it, else by what describes it or its text.
pub(super) fn add(lister: &mut Lister, name: &str, audio: &Path, said: &Said<'_>) -> Result<(), DataError> {
    let told = || {
        let of_text = |reason| (Cause::Transcript, reason);
        let json = beside(audio)?;
        let texts =
            [json.text("description"), said.description.map(str::to_owned), Some(said.text.to_owned())];
        let text = texts.into_iter().flatten().find(|text| !text.trim().is_empty());
        Ok((description(text.as_deref())?, bounded(json.fields())?, voice(said.voice).map_err(of_text)?))
    };
    match told() {
        Ok((description, fields, voice)) => {
            let (text, description) = (description.as_deref().unwrap_or_default(), description.as_deref());
            lister.add_file(name, audio, &Said { text, voice, description, fields: &fields, ..*said })
        }
        Err(problem) => {
            let place = lister.place(said, audio);
            lister.problem(name, &place, Some(said.line), problem)
        }
    }
}

/// The JSON beside an audio file; nothing where there is none.
struct Json(Map<String, Value>);

fn beside(audio: &Path) -> Result<Json, Problem> {
    let path = audio.with_extension("json");
    if !path.is_file() {
        return Ok(Json(Map::new()));
    }
    let bad = |reason: String| (Cause::Metadata, format!("{}: {reason}", path.display()));
    let text = crate::files::read_utf8(&path, MAX_JSON).map_err(|e| (Cause::Metadata, e.to_string()))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(Json(map)),
        Ok(_) => Err(bad("is no JSON object".to_owned())),
        Err(error) => Err(bad(error.to_string())),
    }
}

impl Json {
    /// `get_string`: not empty, and not the word None.
    fn text(&self, key: &str) -> Option<String> {
        let text = self.0.get(key)?.as_str()?;
        (!text.is_empty() && text != "None").then(|| text.trim().to_owned())
    }

    /// Returns what metadata is put behind a description, in the order of `MusicInfo`'s fields.
    fn fields(&self) -> Vec<(String, String)> {
        let word = |key: &str| self.text(key).map(|text| text.to_lowercase());
        let values = [
            // Several keys are none.
            ("key", self.text("key").filter(|key| !key.contains(',')).map(|key| key.to_lowercase())),
            ("bpm", self.0.get("bpm").and_then(number)),
            ("genre", word("genre")),
            ("moods", self.0.get("moods").and_then(words)),
            ("keywords", self.0.get("keywords").and_then(words)),
            ("instrument", word("instrument")),
        ];
        let some =
            |(key, value): (&str, Option<String>)| Some((key.to_owned(), value.filter(|v| !v.is_empty())?));
        values.into_iter().filter_map(some).collect()
    }
}

/// Refuses metadata that is longer than a description may be.
fn bounded(fields: Vec<(String, String)>) -> Result<Vec<(String, String)>, Problem> {
    match fields.iter().find(|(_, value)| value.len() > MAX_DESCRIPTION) {
        Some((key, value)) => {
            let reason = format!("`{key}` of {} bytes; at most {MAX_DESCRIPTION} are read", value.len());
            Err((Cause::Metadata, reason))
        }
        None => Ok(fields),
    }
}

/// `str(float(value))` of Python.
fn number(value: &Value) -> Option<String> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    number.is_finite().then(|| format!("{number:?}"))
}

/// `", ".join(get_keyword_list(value))`.
fn words(value: &Value) -> Option<String> {
    let all: Vec<&str> = match value {
        Value::String(text) => text.split(|c: char| c == ',' || c.is_whitespace()).collect(),
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let sound = |word: &&str| !word.is_empty() && *word != "None";
    let words: Vec<String> = all.into_iter().filter(sound).map(|word| word.trim().to_lowercase()).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json(serde_json::from_str(text).expect("an object"))
    }

    /// As `MusicInfo.from_dict` and `process_value` of audiocraft 1.3.0 make them.
    #[test]
    fn metadata_is_what_audiocraft_puts_into_texts() {
        let all = json(
            r#"{"key": " C Minor ", "bpm": 120, "genre": "Rock", "moods": ["Calm", "", "None", " Sad "], "keywords": "Slow, guitar  LOUD",
                "instrument": "None", "title": "A", "artist": "B", "name": "x", "description": " A slow song. "}"#,
        );
        let fields = all.fields();
        let fields: Vec<_> = fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(
            fields,
            [
                ("key", "c minor"),
                ("bpm", "120.0"),
                ("genre", "rock"),
                ("moods", "calm, sad"),
                ("keywords", "slow, guitar, loud")
            ]
        );
        assert_eq!(all.text("description").as_deref(), Some("A slow song."));
        let none = json(
            r#"{"key": "C, D", "bpm": "fast", "genre": 3, "moods": null, "keywords": [], "description": ""}"#,
        );
        assert_eq!(none.fields(), []);
        assert_eq!(none.text("description"), None);
        assert_eq!(json(r#"{"bpm": "98.5"}"#).fields(), [("bpm".to_owned(), "98.5".to_owned())]);
    }
}
