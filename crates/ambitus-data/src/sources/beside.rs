//! Descriptions in a second data set: row by row those of the first, or by the names of their audio where the second has names.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Problem, metadata_in, rows_of};
use crate::error::{DataError, many, short};
use crate::scratch::Scratch;

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
    Name(Named),
}

/// Bytes of memory for each row of a set with names, in a vector that grows by doubling.
const NAMED: u64 = 2 * size_of::<Place>() as u64;

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
        let mut named =
            Named { records: Scratch::new(scratch)?, places: Vec::new(), hasher: RandomState::new() };
        let mut next = Some(first);
        while let Some(row) = next {
            named.add(&row, path)?;
            let needed = rows.bytes + NAMED * named.places.len() as u64;
            if needed > room {
                let what = format!("{}: {} or more", path.display(), many(named.places.len(), "row"));
                return Err(DataError::DoesNotFit { what, needed, room });
            }
            next = rows.read()?;
        }
        named.places.sort_unstable_by_key(|place| place.hash);
        let bytes = NAMED * named.places.len() as u64;
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
                named = rows.find(name)?;
                named.as_ref()
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

/// Rows that are found by name. They are on disk; in memory is where.
struct Named {
    records: Scratch,
    places: Vec<Place>,
    hasher: RandomState,
}

struct Place {
    /// Of the name.
    hash: u64,
    at: u64,
    length: u32,
}

fn name_of(name: &str) -> &str {
    name.strip_prefix("./").unwrap_or(name)
}

impl Named {
    fn add(&mut self, row: &Row, path: &Path) -> Result<(), DataError> {
        // A line that cannot be read names nothing.
        let Some(name) = &row.audio else { return Ok(()) };
        let hash = self.hasher.hash_one(name_of(name));
        let json = serde_json::to_vec(row).map_err(|e| DataError::io(path, e.into()))?;
        self.places.push(Place { hash, at: self.records.len(), length: json.len() as u32 });
        self.records.append(&json)
    }

    /// Returns the row of a clip; the first, if there are several.
    fn find(&self, name: &str) -> Result<Option<Row>, DataError> {
        let hash = self.hasher.hash_one(name_of(name));
        let from = self.places.partition_point(|place| place.hash < hash);
        for place in self.places[from..].iter().take_while(|place| place.hash == hash) {
            let bytes = self.records.read(place.at, place.length as usize)?;
            let row: Option<Row> = serde_json::from_slice(&bytes).ok();
            if let Some(row) = row.filter(|row| row.audio.as_deref().map(name_of) == Some(name_of(name))) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}
