//! Descriptions in a second data set: row by row those of the first, or by the names of their audio where the second has names.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::named::Named;
use super::{Problem, metadata_in, rows_of};
use crate::error::{DataError, many, short};

/// What a row of the second data set says.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Row {
    /// Name of the audio.
    pub(super) audio: Option<String>,
    pub(super) id: Option<String>,
    pub(super) description: Option<String>,
    /// Why nothing can be read of it.
    pub(super) problem: Option<String>,
    /// From 1.
    pub(super) line: u64,
}

/// Rows of a file, in its order.
pub(super) trait Rows {
    /// Returns the next row.
    fn next(&mut self) -> Result<Option<Row>, DataError>;
}

/// A second data set.
pub(super) struct Beside {
    path: PathBuf,
    by: By,
    /// Bytes that are held of it while clips are listed.
    pub(super) bytes: u64,
}

enum By {
    Order(Ordered),
    Name(Named<Row>),
}

impl Beside {
    /// Opens a folder or file, in at most `room` bytes of memory.
    pub(super) fn open(path: &Path, scratch: &Path, room: u64) -> Result<Self, DataError> {
        let meta = std::fs::metadata(path).map_err(|e| DataError::io(path, e))?;
        let files = if meta.is_dir() { metadata_in(path)? } else { vec![path.to_owned()] };
        let mut rows = Ordered { files, file: 0, open: None, ahead: None, current: None, room, bytes: 0 };
        let Some(first) = rows.read()? else {
            return Err(DataError::file(path, "no rows with descriptions in it"));
        };
        if first.audio.is_none() {
            let bytes = rows.bytes;
            rows.ahead = Some(first);
            return Ok(Self { path: path.to_owned(), by: By::Order(rows), bytes });
        }
        let mut named = Named::new(scratch)?;
        let mut next = Some(first);
        while let Some(row) = next {
            // A line that cannot be read names nothing.
            if let Some(name) = &row.audio {
                named.add(name_of(name), &row)?;
            }
            let needed = rows.bytes + named.bytes();
            if needed > room {
                let what = format!("{}: {} or more", path.display(), many(named.len(), "row"));
                return Err(DataError::DoesNotFit { what, needed, room });
            }
            next = rows.read()?;
        }
        named.sort();
        let bytes = named.bytes();
        Ok(Self { path: path.to_owned(), by: By::Name(named), bytes })
    }

    /// Returns whether clips are found by their names, so that they need no order.
    pub(super) fn is_named(&self) -> bool {
        matches!(self.by, By::Name(_))
    }

    /// Goes on to the row of the next clip, of which `place` says something.
    pub(super) fn advance(&mut self, (file, line): (&Path, u64)) -> Result<(), DataError> {
        let By::Order(rows) = &mut self.by else { return Ok(()) };
        rows.current = match rows.ahead.take() {
            Some(row) => Some(row),
            None => rows.read()?,
        };
        match rows.current {
            Some(_) => Ok(()),
            None => Err(DataError::file(
                &self.path,
                format!("has no row for {}:{line}: its rows are not those of the data", file.display()),
            )),
        }
    }

    /// Returns the description of the clip whose turn it is.
    pub(super) fn of(
        &self,
        name: &str,
        id: Option<&str>,
    ) -> Result<Result<Option<String>, Problem>, DataError> {
        let named;
        let row = match &self.by {
            By::Order(rows) => rows.current.as_ref(),
            By::Name(rows) => {
                named = rows.find(name_of(name))?;
                named.as_ref().map(|(_, row)| row)
            }
        };
        let Some(row) = row else { return Ok(Ok(None)) };
        let other = id.zip(row.id.as_deref()).filter(|(id, other)| id != other);
        match (&self.by, other) {
            (By::Order(rows), Some((id, other))) => {
                let [id, other] = [id, other].map(short);
                let reason =
                    format!("the row of {id:?} has the id {other:?}: its rows are not those of the data");
                Err(DataError::line(rows.path().unwrap_or(&self.path), row.line, reason))
            }
            _ => Ok(match &row.problem {
                Some(reason) => Err((crate::outcomes::Cause::Description, reason.clone())),
                None => super::said::description(row.description.as_deref()),
            }),
        }
    }

    /// Ends the reading: nothing may be left over.
    pub(super) fn finish(self) -> Result<(), DataError> {
        let By::Order(mut rows) = self.by else { return Ok(()) };
        let left = match rows.ahead.take() {
            Some(row) => Some(row),
            None => rows.read()?,
        };
        match left {
            None => Ok(()),
            Some(row) => Err(DataError::line(
                rows.path().unwrap_or(&self.path),
                row.line,
                "there are more rows than in the data: its rows are not those of the data",
            )),
        }
    }
}

/// Rows of all files, one after another.
struct Ordered {
    files: Vec<PathBuf>,
    /// Files that were opened.
    file: usize,
    open: Option<Box<dyn Rows>>,
    ahead: Option<Row>,
    current: Option<Row>,
    room: u64,
    /// Bytes that a reader holds at most.
    bytes: u64,
}

impl Ordered {
    fn read(&mut self) -> Result<Option<Row>, DataError> {
        loop {
            if let Some(row) = self.open.as_mut().map(|rows| rows.next()).transpose()?.flatten() {
                return Ok(Some(row));
            }
            self.open = None;
            let Some(path) = self.files.get(self.file) else { return Ok(None) };
            let (rows, bytes) = rows_of(path, self.room)?;
            self.bytes = self.bytes.max(bytes);
            self.open = Some(rows);
            self.file += 1;
        }
    }

    /// Returns the file that is read.
    fn path(&self) -> Option<&Path> {
        self.files.get(self.file.checked_sub(1)?).map(PathBuf::as_path)
    }
}

fn name_of(name: &str) -> &str {
    name.strip_prefix("./").unwrap_or(name)
}
