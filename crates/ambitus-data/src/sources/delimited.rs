//! `|`-separated metadata, with and without header.

use std::path::Path;

use super::resolve::Root;
use super::{AUDIO_KEYS, Collector, Format, TEXT_KEYS, VOICE_KEYS};
use crate::error::DataError;

pub(super) fn read(root: &Root, file: &Path, text: &str, out: &mut Collector) -> Result<Format, DataError> {
    let mut lines = (1u64..)
        .zip(text.split('\n'))
        .map(|(n, line)| (n, line.strip_suffix('\r').unwrap_or(line)))
        .filter(|(_, line)| !line.trim().is_empty())
        .peekable();
    let Some(&(number, first)) = lines.peek() else {
        return Ok(Format::Headerless);
    };
    let names: Vec<&str> = first.split('|').map(|f| f.trim().trim_matches('"')).collect();
    let column = |keys: &[&str]| keys.iter().find_map(|k| names.iter().position(|n| n == k));
    match (column(&AUDIO_KEYS), column(&TEXT_KEYS)) {
        (Some(audio), Some(text)) => {
            lines.next();
            let columns = Columns { names: names.len(), audio, text, voice: column(&VOICE_KEYS) };
            for (number, line) in lines {
                with_header(root, file, number, line, &columns, out);
            }
            Ok(Format::Csv)
        }
        _ if names.len() >= 2 => {
            for (number, line) in lines {
                without_header(root, file, number, line, out);
            }
            Ok(Format::Headerless)
        }
        _ => Err(DataError::line(
            file,
            number,
            "no `|` in the line; expected `audio_file|text` (with that header) or `id|text`",
        )),
    }
}

/// Names in a header, and the places of those that are read.
struct Columns {
    names: usize,
    audio: usize,
    text: usize,
    voice: Option<usize>,
}

fn with_header(root: &Root, file: &Path, number: u64, line: &str, columns: &Columns, out: &mut Collector) {
    let fields = match quoted_fields(line) {
        Ok(fields) => fields,
        Err(reason) => return out.problem(&shorten(line), file, Some(number), reason),
    };
    let names = columns.names;
    if fields.len() > names {
        let reason = format!(
            "{} fields under a header of {names}; a text with `|` in it must stand in double quotes",
            fields.len()
        );
        return out.problem(&shorten(line), file, Some(number), reason);
    }
    let (Some(audio), Some(text)) = (fields.get(columns.audio), fields.get(columns.text)) else {
        let reason = format!("{} field(s) under a header of {names}", fields.len());
        return out.problem(&shorten(line), file, Some(number), reason);
    };
    let audio = audio.trim();
    let voice = columns.voice.and_then(|at| fields.get(at)).map(String::as_str);
    out.add(audio, root.audio(audio), (text, voice), file, number);
}

/// `id|text` or `id|text|normalised text`; the normalised text is the one that is spoken.
fn without_header(root: &Root, file: &Path, number: u64, line: &str, out: &mut Collector) {
    let fields: Vec<&str> = line.split('|').collect();
    let (id, text) = match fields[..] {
        [id, text] => (id.trim(), text),
        [id, text, normalised] if normalised.trim().is_empty() => (id.trim(), text),
        [id, _, normalised] => (id.trim(), normalised),
        _ => {
            let reason = format!("{} field(s) where 2 or 3 are expected", fields.len());
            return out.problem(&shorten(line), file, Some(number), reason);
        }
    };
    out.add(id, root.audio(id), (text, None), file, number);
}

/// Fields of a line. A field that stands in double quotes loses them, and `""` in it means `"`; quotes anywhere else,
/// and text that merely begins with a quotation, are literal. A quote that is opened and not closed is an error rather
/// than, as CSV has it, a text over the following lines: that swallows the other clips.
fn quoted_fields(line: &str) -> Result<Vec<String>, &'static str> {
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
        match after.strip_prefix('|') {
            Some(next) => rest = next,
            None => return Ok(fields),
        }
    }
}

/// The text up to a closing quote at the end of the field, and what follows; `None` if there is no such quote.
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

/// The beginning of a line, to name a clip that has no name.
fn shorten(line: &str) -> String {
    line.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes() {
        let fields = |line| quoted_fields(line).expect("valid");
        assert_eq!(fields("a|b|c"), ["a", "b", "c"]);
        assert_eq!(fields(r#"a|"say ""hi"" | now"|c"#), ["a", r#"say "hi" | now"#, "c"]);
        assert_eq!(fields(r#"a|he said "hi"|c"#), ["a", r#"he said "hi""#, "c"]);
        assert_eq!(fields(r#"a|"Hello," she said."#), ["a", r#""Hello," she said."#]);
        assert_eq!(fields(r"a|back\slash \n \|b"), ["a", r"back\slash \n \", "b"]);
        assert_eq!(fields("a|"), ["a", ""]);
        assert_eq!(fields(r#""a"|"""#).len(), 2);
        assert!(quoted_fields(r#"a|"never closed"#).is_err());
    }
}
