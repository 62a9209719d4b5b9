//! What is written beside the clips: what was cut from where and why, and the metadata that training reads.

use std::io::Write;
use std::path::Path;

use super::{Clips, Cut, Note};
use crate::atomic;
use crate::error::DataError;

/// Every clip and all that is in none, a line each, apart by tabs. Not `.csv`: a folder's only file of that kind is read as metadata.
pub(super) const TABLE: &str = "clips.tsv";
/// Clips with their texts, as training reads them.
pub(super) const METADATA: &str = "metadata.csv";

impl Note {
    /// Returns it in words.
    pub fn text(self) -> &'static str {
        match self {
            Note::Over => "over the limit: no pause of 0.15 s was heard in it",
            Note::Segment => {
                "over the limit: a segment of the transcript, without times of words to part it by"
            }
            Note::Under => "under the least: nothing near enough to join it to",
        }
    }
}

pub(super) fn write(out: &Path, clips: &Clips) -> Result<(), DataError> {
    if clips.cuts.iter().any(|cut| cut.text.is_some()) {
        atomic::write(&out.join(METADATA), |to| {
            to.write_all(b"audio_file|text\n")?;
            let mut said = clips.cuts.iter().filter_map(|cut| Some((cut, cut.text.as_deref()?)));
            said.try_for_each(|(cut, text)| writeln!(to, "{}|{}", file(cut), quoted(text)))
        })?;
    }
    // The last file of all: where it is, nothing is missing.
    atomic::write(&out.join(TABLE), |to| {
        to.write_all(b"file\tsource\tstart\tend\tjoined\treason\tnote\ttext\n")?;
        for cut in &clips.cuts {
            let Cut { source, start, end, joined, reason, note, text, .. } = cut;
            let (file, source, text) = (file(cut), plain(source), text.as_deref().unwrap_or_default());
            let note = note.map_or("", Note::text);
            writeln!(to, "{file}\t{source}\t{start:.3}\t{end:.3}\t{joined}\t{reason}\t{note}\t{text}")?;
        }
        for left in &clips.left {
            let source = plain(&left.source);
            writeln!(to, "\t{source}\t{:.3}\t{:.3}\t\tleft out: {}\t\t", left.start, left.end, left.reason)?;
        }
        Ok(())
    })
}

/// Returns a clip's file as metadata has it.
fn file(cut: &Cut) -> String {
    cut.file.to_string_lossy().replace('\\', "/")
}

/// Returns a path without what would end its field.
fn plain(path: &Path) -> String {
    path.to_string_lossy().replace(char::is_control, "?")
}

/// Returns a text as a field of metadata: in double quotes where it would be read otherwise.
fn quoted(text: &str) -> String {
    match text.contains('|') || text.starts_with('"') {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
