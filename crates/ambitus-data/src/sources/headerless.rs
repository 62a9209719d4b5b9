//! Lines whose columns have no names.

use super::delimited::Fields;
use crate::error::short;

/// How lines without a header are read, whose columns have no names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lines {
    /// `audio|text`, perhaps with the text as it is spoken in a third column.
    #[default]
    Texts,
    /// As trainers of VITS do: `audio|text`, with `voices` `audio|voice|text`, and with `ids` the text's after it, apart by spaces. In
    /// JSON lines they are an array under `phoneme_ids`.
    Spoken {
        /// Lines name the voice.
        voices: bool,
        /// Lines bring ids.
        ids: bool,
    },
}

/// Reads a line of columns without names.
pub(super) fn read(line: &str, lines: Lines) -> Result<Fields, String> {
    let fields: Vec<&str> = line.splitn(5, '|').collect();
    let spoken = |audio: &str, text: &str| Fields {
        audio: audio.trim().to_owned(),
        text: text.to_owned(),
        ..Fields::default()
    };
    let (voices, ids) = match (lines, &*fields) {
        // The normalised text is the one that is spoken.
        (Lines::Texts | Lines::Spoken { voices: false, ids: false }, &[audio, text]) => {
            return Ok(spoken(audio, text));
        }
        (Lines::Texts | Lines::Spoken { voices: false, ids: false }, &[audio, text, last]) => {
            return Ok(spoken(audio, if last.trim().is_empty() { text } else { last }));
        }
        (Lines::Texts, _) => {
            return Err(format!("{} field(s) where 2 or 3 are expected", fields.len()));
        }
        (Lines::Spoken { voices, ids }, _) => (voices, ids),
    };
    let names = ["audio", "voice", "text", "ids"];
    let there = [true, voices, true, ids];
    let names: Vec<&str> =
        names.into_iter().zip(there).filter_map(|(name, there)| there.then_some(name)).collect();
    if fields.len() != names.len() {
        return Err(format!(
            "{} field(s) where {} are expected: {}",
            fields.len(),
            names.len(),
            names.join("|")
        ));
    }
    let voice = voices.then(|| fields[1].to_owned());
    let text = fields[1 + usize::from(voices)];
    let ids = if ids { numbers(fields[fields.len() - 1])? } else { Vec::new() };
    Ok(Fields { voice, ids, ..spoken(fields[0], text) })
}

/// Reads ids that stand apart by spaces.
fn numbers(text: &str) -> Result<Vec<u32>, String> {
    let number = |word: &str| word.parse().map_err(|_| format!("`{}` is no id", short(word)));
    text.split_whitespace().map(number).collect()
}
