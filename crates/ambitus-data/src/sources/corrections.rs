//! `corrections.csv` beside the clips: what someone who listened to them writes instead, and what is left out. The page of
//! `ambitus prepare --page` saves it, and so may anybody.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::delimited::{column, fields, names};
use super::listing::Lister;
use super::named::Named;
use super::{AUDIO_KEYS, TEXT_KEYS};
use crate::error::{DataError, many, short};
use crate::files::Lines;
use crate::outcomes::{Cause, Problem};

/// Name of the file of corrections in the folder of a data set.
pub const CORRECTIONS_FILE: &str = "corrections.csv";
/// Names that the column of verdicts may have.
const VERDICT_KEYS: [&str; 1] = ["verdict"];

/// What is corrected of a clip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    /// Line in the file, from 1.
    pub line: u64,
    /// Its text, if another than in the data.
    pub text: Option<String>,
    /// Whether it is used; none: nobody has said.
    pub keep: Option<bool>,
}

/// The corrections of a data set.
pub(super) struct Corrections {
    path: PathBuf,
    /// Number of the file.
    file: usize,
    rows: Named<Correction>,
    /// Of each row: its clip was found.
    used: Vec<bool>,
}

/// A file of corrections, row by row.
pub(super) struct Reader {
    lines: Lines,
    names: usize,
    audio: usize,
    text: Option<usize>,
    verdict: Option<usize>,
}

/// A row, and the name of its clip; what is wrong with its line.
type Row = Result<(String, Correction), (u64, String)>;

impl Reader {
    /// Opens the file of a folder, if there is one.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, DataError> {
        if !path.try_exists().map_err(|e| DataError::io(path, e))? {
            return Ok(None);
        }
        let mut lines = Lines::open(path)?;
        let header = match lines.next()? {
            Some((_, Ok(line))) => line.to_owned(),
            Some((number, Err(reason))) => return Err(DataError::line(path, number, reason)),
            None => return Ok(None),
        };
        let names = names(&header);
        let Some(audio) = column(&names, &AUDIO_KEYS) else {
            let reason = "not a header of corrections: audio_file|text|verdict (a file of this name corrects the clips beside it)";
            return Err(DataError::line(path, 1, reason));
        };
        let [text, verdict] = [&TEXT_KEYS[..], &VERDICT_KEYS].map(|keys| column(&names, keys));
        Ok(Some(Self { names: names.len(), audio, text, verdict, lines }))
    }

    pub(super) fn next(&mut self) -> Result<Option<Row>, DataError> {
        let Some((line, text)) = self.lines.next()? else { return Ok(None) };
        let row = text.and_then(|text| {
            let mut fields = fields(text, self.names)?;
            let mut take = |at: Option<usize>| at.and_then(|at| fields.get_mut(at)).map(std::mem::take);
            let name = take(Some(self.audio)).filter(|name| !name.is_empty()).ok_or("no audio file named")?;
            let keep = match take(self.verdict).unwrap_or_default().trim() {
                "" => None,
                "keep" => Some(true),
                "drop" => Some(false),
                other => return Err(format!("the verdict {:?} is neither keep nor drop", short(other))),
            };
            let text = take(self.text).filter(|text| !text.trim().is_empty());
            Ok((name, Correction { line, text, keep }))
        });
        Ok(Some(row.map_err(|reason| (line, reason))))
    }
}

impl Corrections {
    /// Reads those of a folder, if there are any, in at most `room` bytes of memory; lines that cannot be read become problems.
    pub(super) fn open(
        folder: &Path,
        scratch: &Path,
        room: u64,
        out: &mut Lister,
    ) -> Result<Option<Self>, DataError> {
        let path = folder.join(CORRECTIONS_FILE);
        let Some(mut reader) = Reader::open(&path)? else { return Ok(None) };
        let mut rows = Named::new(scratch)?;
        while let Some(row) = reader.next()? {
            match row {
                Ok((name, correction)) => rows.add(&name, &correction)?,
                Err((line, reason)) => {
                    out.problem("a correction", &path, Some(line), (Cause::Metadata, reason))?;
                }
            }
            if rows.bytes() > room {
                let what = format!("{}: {} or more", path.display(), many(rows.len(), "row"));
                return Err(DataError::DoesNotFit { what, needed: rows.bytes(), room });
            }
        }
        rows.sort();
        let (file, used) = (out.file(&path), vec![false; rows.len()]);
        Ok(Some(Self { path, file, rows, used }))
    }

    /// Returns the bytes of memory that are taken.
    pub(super) fn bytes(&self) -> u64 {
        self.rows.bytes() + self.used.len() as u64
    }

    /// Returns what is corrected of a clip, and the number of the file that says so.
    pub(super) fn of(&mut self, name: &str) -> Result<Option<(usize, Correction)>, DataError> {
        let Some((at, correction)) = self.rows.find(name)? else { return Ok(None) };
        self.used[at] = true;
        Ok(Some((self.file, correction)))
    }

    /// Names the rows that correct nothing: of no clip of the data, or the second of one.
    pub(super) fn finish(self, out: &mut Lister) -> Result<(), DataError> {
        for at in (0..self.used.len()).filter(|at| !self.used[*at]) {
            let (name, correction) = self.rows.row(at)?;
            let first = self.rows.find(&name)?.filter(|(first, _)| *first != at && self.used[*first]);
            let reason = match first {
                Some((_, first)) => format!("line {} corrects this clip already", first.line),
                None => "corrects no clip of the data; take the line out".to_owned(),
            };
            out.problem(&name, &self.path, Some(correction.line), (Cause::Metadata, reason))?;
        }
        Ok(())
    }
}

/// What is wrong with a clip that was left out by hand.
pub(super) fn dropped() -> Problem {
    (Cause::Dropped, "left out by hand".to_owned())
}

/// Returns the corrections of a folder, by the names of its clips, in the order of the file. Lines that cannot be read are not among them.
///
/// # Errors
/// A file that cannot be read.
pub fn corrections(folder: &Path) -> Result<Vec<(String, Correction)>, DataError> {
    let mut all = Vec::new();
    if let Some(mut reader) = Reader::open(&folder.join(CORRECTIONS_FILE))? {
        while let Some(row) = reader.next()? {
            all.extend(row.ok());
        }
    }
    Ok(all)
}
