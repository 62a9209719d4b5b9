//! `|`-separated metadata, with and without header.

use std::path::Path;

use super::beside::{Row, Rows};
use super::headerless;
use super::listing::{Lister, Said};
use super::resolve::Root;
use super::{AUDIO_KEYS, DESCRIPTION_KEYS, Format, ID_KEYS, TEXT_KEYS, VOICE_KEYS, add};
use crate::error::DataError;
use crate::files::Lines;
use crate::outcomes::Cause;

/// Most columns that a header may have.
const MAX_COLUMNS: usize = 256;

pub(super) fn read(root: &Root, path: &Path, out: &mut Lister) -> Result<Format, DataError> {
    let file = out.file(path);
    let mut lines = Lines::open(path)?;
    let mut header = None;
    let mut first = true;
    while let Some((number, line)) = lines.next()? {
        let line = match line {
            Ok(line) => line,
            Err(reason) => {
                out.problem("a long line", path, Some(number), (Cause::Metadata, reason))?;
                first = false;
                out.advance(file, number)?;
                continue;
            }
        };
        if std::mem::take(&mut first) {
            header = Columns::of(line, out.is_described());
            if header.is_some() {
                continue;
            }
            if !line.contains('|') {
                return Err(DataError::line(
                    path,
                    number,
                    "no `|` in the line; expected `audio_file|text` (with that header) or `id|text`",
                ));
            }
        }
        out.advance(file, number)?;
        let said = match &header {
            Some(columns) => columns.read(line),
            None => headerless::read(line, out.lines),
        };
        match said {
            Ok(Fields { audio, text, voice, description, id, ids }) => {
                let [voice, description, id] = [&voice, &description, &id].map(Option::as_deref);
                let said = Said {
                    text: &text,
                    voice,
                    description,
                    fields: &[],
                    ids: &ids,
                    weight: 1.0,
                    id,
                    file: Some(file),
                    line: number,
                };
                add(out, &audio, root.audio(&audio), &said)?;
            }
            Err(reason) => {
                let name: String = line.chars().take(40).collect();
                out.problem(&name, path, Some(number), (Cause::Metadata, reason))?;
            }
        }
    }
    Ok(if header.is_some() { Format::Csv } else { Format::Headerless })
}

/// What a line says of a clip.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) audio: String,
    pub(super) text: String,
    pub(super) voice: Option<String>,
    pub(super) description: Option<String>,
    pub(super) id: Option<String>,
    pub(super) ids: Vec<u32>,
}

/// Names in a header, and the places of those that are read.
struct Columns {
    names: usize,
    audio: usize,
    text: usize,
    voice: Option<usize>,
    description: Option<usize>,
    id: Option<usize>,
}

impl Columns {
    /// Returns the columns that a header names; `None` if it is none.
    fn of(line: &str, described: bool) -> Option<Self> {
        let names = names(line);
        let (audio, text) = (column(&names, &AUDIO_KEYS)?, column(&names, &TEXT_KEYS)?);
        let of_described = |keys: &[&str]| column(&names, keys).filter(|_| described);
        let (description, id) = (of_described(&DESCRIPTION_KEYS), of_described(&ID_KEYS));
        Some(Self { names: names.len(), audio, text, voice: column(&names, &VOICE_KEYS), description, id })
    }

    fn read(&self, line: &str) -> Result<Fields, String> {
        let mut fields = fields(line, self.names)?;
        let (names, count) = (self.names, fields.len());
        if count <= self.audio.max(self.text) {
            return Err(format!("{count} field(s) under a header of {names}"));
        }
        let mut take = |at: usize| fields.get_mut(at).map(std::mem::take);
        let audio = take(self.audio).unwrap_or_default().trim().to_owned();
        let text = take(self.text).unwrap_or_default();
        let voice = self.voice.and_then(&mut take);
        let description = self.description.and_then(&mut take);
        Ok(Fields { audio, text, voice, description, id: self.id.and_then(take), ids: Vec::new() })
    }
}

/// Returns the names in a header.
pub(super) fn names(line: &str) -> Vec<&str> {
    line.split('|').map(|f| f.trim().trim_matches('"')).take(MAX_COLUMNS).collect()
}

/// Returns the place of the first of these keys that is there.
pub(super) fn column(names: &[&str], keys: &[&str]) -> Option<usize> {
    keys.iter().find_map(|k| names.iter().position(|n| n == k))
}

/// Returns the fields of a line under a header of `names` names.
pub(super) fn fields(line: &str, names: usize) -> Result<Vec<String>, String> {
    let fields = quoted_fields(line, names)?;
    let count = fields.len();
    if count <= names {
        return Ok(fields);
    }
    let all = count + line.matches('|').count().saturating_sub(count);
    Err(format!("{all} fields under a header of {names}; a text with `|` in it must stand in double quotes"))
}

/// Returns the rows of a second data set.
pub(super) fn rows(path: &Path) -> Result<impl Rows + use<>, DataError> {
    let mut lines = Lines::open(path)?;
    let header = match lines.next()? {
        Some((_, Ok(line))) => line.to_owned(),
        Some((number, Err(reason))) => return Err(DataError::line(path, number, reason)),
        None => String::new(),
    };
    let names = names(&header);
    let places = [&AUDIO_KEYS[..], &ID_KEYS, &DESCRIPTION_KEYS].map(|keys| column(&names, keys));
    if places[2].is_none() {
        let reason = format!("no column of descriptions ({}) in its header", DESCRIPTION_KEYS.join(", "));
        return Err(DataError::line(path, 1, reason));
    }
    Ok(Described { names: names.len(), places, lines })
}

/// Lines with descriptions.
struct Described {
    names: usize,
    /// Columns of audio, id and description.
    places: [Option<usize>; 3],
    lines: Lines,
}

impl Rows for Described {
    fn next(&mut self) -> Result<Option<Row>, DataError> {
        let Some((line, text)) = self.lines.next()? else { return Ok(None) };
        let row = match text.and_then(|text| fields(text, self.names)) {
            Err(reason) => Row { problem: Some(reason), ..Row::default() },
            Ok(mut fields) => {
                let [audio, id, description] = self.places.map(|at| fields.get_mut(at?).map(std::mem::take));
                Row { audio: audio.map(|name| name.trim().to_owned()), id, description, ..Row::default() }
            }
        };
        Ok(Some(Row { line, ..row }))
    }
}

/// Returns the fields of a line. A field in double quotes loses them, and `""` in it means `"`; quotes anywhere else, and text
/// that merely begins with a quotation, are literal. A quote that is opened and not closed is an error rather than, as CSV has
/// it, a text over the following lines: that swallows the other clips. Only one more than `most` is given.
fn quoted_fields(line: &str, most: usize) -> Result<Vec<String>, &'static str> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let quoted = rest.strip_prefix('"').and_then(closed);
        let (field, after) = match quoted {
            Some((field, after)) => (field, after),
            None if rest.starts_with('"')
                && rest[1..].split('|').next().is_some_and(|f| !f.contains('"')) =>
            {
                return Err("a field begins with a double quote that is not closed");
            }
            None => {
                let end = rest.find('|').unwrap_or(rest.len());
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        fields.push(field);
        if fields.len() > most {
            return Ok(fields);
        }
        match after.strip_prefix('|') {
            Some(next) => rest = next,
            None => return Ok(fields),
        }
    }
}

/// Returns the text up to a closing quote at the end of the field, and what follows; `None` if there is no such quote.
fn closed(text: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let at = rest.find('"')?;
        field.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match rest.strip_prefix('"') {
            Some(next) => {
                field.push('"');
                rest = next;
            }
            None if rest.is_empty() || rest.starts_with('|') => return Some((field, rest)),
            None => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes() {
        let fields = |line| quoted_fields(line, 9).expect("valid");
        assert_eq!(fields("a|b|c"), ["a", "b", "c"]);
        assert_eq!(fields(r#"a|"say ""hi"" | now"|c"#), ["a", r#"say "hi" | now"#, "c"]);
        assert_eq!(fields(r#"a|he said "hi"|c"#), ["a", r#"he said "hi""#, "c"]);
        assert_eq!(fields(r#"a|"Hello," she said."#), ["a", r#""Hello," she said."#]);
        assert_eq!(fields(r"a|back\slash \n \|b"), ["a", r"back\slash \n \", "b"]);
        assert_eq!(fields("a|"), ["a", ""]);
        assert_eq!(fields(r#""a"|"""#).len(), 2);
        assert!(quoted_fields(r#"a|"never closed"#, 9).is_err());
    }
}
