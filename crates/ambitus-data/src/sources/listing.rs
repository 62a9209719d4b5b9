//! The clips of a data set, as written down: their names in memory, everything else on disk until a clip's turn comes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::corrections::{Correction, Corrections};
use super::{Audio, DataSet, Described, Entry, Lines, clip_bytes};
use crate::error::{DataError, many};
use crate::outcomes::Problem;
use crate::outcomes::{Cause, Outcome, Outcomes, Verdict};
use crate::scratch::Scratch;

/// Longest transcript, bytes. Nobody says more in ten minutes, which is the longest clip there can be.
pub(crate) const MAX_TEXT: usize = 64 << 10;

/// A finished list, sorted by name.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Files that entries are described in.
    files: Vec<PathBuf>,
    names: String,
    rows: Vec<Row>,
    records: Scratch,
    /// Longest transcript with the name of its voice and its ids, bytes.
    pub(crate) longest_text: usize,
    /// Longest description, bytes.
    pub(crate) longest_description: usize,
}

/// Where things of an entry are.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// Its record among all records.
    at: u64,
    /// Its name among all names.
    name: usize,
    length: u32,
    name_length: u32,
}

/// What is on disk of an entry.
#[derive(Serialize, Deserialize)]
struct Record<'a> {
    /// Path of the audio.
    #[serde(borrow)]
    audio: Option<Cow<'a, str>>,
    /// Or its row in the file.
    row: Option<u64>,
    #[serde(borrow)]
    text: Cow<'a, str>,
    #[serde(borrow)]
    voice: Option<Cow<'a, str>>,
    #[serde(borrow)]
    description: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    fields: Cow<'a, [(String, String)]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    ids: Cow<'a, [u32]>,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    weight: f32,
    /// Number of the file; none is the text file next to the audio.
    file: Option<usize>,
    line: u64,
}

fn one() -> f32 {
    1.0
}

fn is_one(weight: &f32) -> bool {
    *weight == 1.0
}

impl Listing {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    fn name(&self, row: &Row) -> &str {
        &self.names[row.name..row.name + row.name_length as usize]
    }

    /// Returns the place of the clip of a name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.rows.binary_search_by(|row| self.name(row).cmp(name)).ok()
    }

    /// Returns the bytes of all names.
    pub(crate) fn name_bytes(&self) -> usize {
        self.names.len()
    }

    /// Returns entry `i` in the order of names.
    pub(crate) fn entry(&self, i: usize) -> Result<Entry, DataError> {
        let row = &self.rows[i];
        let bytes = self.records.read(row.at, row.length as usize)?;
        let record: Record<'_> = serde_json::from_slice(&bytes)
            .map_err(|e| DataError::Invalid(format!("the list of clips cannot be read back: {e}")))?;
        let audio = match (&record.audio, record.row) {
            (Some(path), _) => Audio::File(PathBuf::from(&**path)),
            (None, row) => Audio::Row(row.unwrap_or(0)),
        };
        let file = match (record.file, &audio) {
            (Some(file), _) => self.files[file].clone(),
            (None, Audio::File(path)) => path.with_extension("txt"),
            (None, Audio::Row(_)) => PathBuf::new(),
        };
        Ok(Entry {
            name: self.name(row).to_owned(),
            audio,
            text: record.text.into_owned(),
            voice: record.voice.map(Cow::into_owned),
            description: record.description.map(Cow::into_owned),
            fields: record.fields.into_owned(),
            ids: record.ids.into_owned(),
            weight: record.weight,
            file,
            line: record.line,
        })
    }
}

/// A list that is being made, with what cannot be on it.
pub(super) struct Lister {
    pub(super) listing: Listing,
    pub(super) problems: Outcomes,
    /// Where descriptions are.
    pub(super) described: Described,
    /// How lines without a header are read.
    pub(super) lines: Lines,
    /// What stands before the names of the data set that is read.
    prefix: String,
    /// The voice of those of its clips that name none.
    voice: Option<String>,
    /// Corrections beside data sets are heeded.
    pub(super) corrects: bool,
    corrections: Option<Corrections>,
    scratch: PathBuf,
    /// Paths of audio by their hashes, to find what is named twice.
    seen: HashMap<u64, u32>,
    hasher: RandomState,
    /// Most that the entries may take, bytes.
    room: u64,
    /// What a reader of a table holds of a row, bytes.
    pub(super) row_bytes: u64,
    /// What it holds of the footer.
    pub(super) footer_bytes: u64,
}

/// Bytes of memory for each clip while the list is made: its row, and a path's hash in a table that is between a quarter and
/// seven eighths full, or is copied to one twice as large. Vectors grow by doubling.
const LISTING: u64 = 2 * size_of::<Row>() as u64 + 64;

/// Returns the bytes of a list of `clips` clips with `names` bytes of names.
pub(crate) const fn listing_bytes(clips: usize, names: usize) -> u64 {
    LISTING * clips as u64 + 2 * names as u64
}

/// What is said of a clip.
#[derive(Clone, Copy)]
pub(super) struct Said<'a> {
    pub(super) text: &'a str,
    pub(super) voice: Option<&'a str>,
    pub(super) description: Option<&'a str>,
    /// Metadata of music: names and values.
    pub(super) fields: &'a [(String, String)],
    /// Of the transcript, where a data set brings them.
    pub(super) ids: &'a [u32],
    /// How often it is trained on, of music: 1 elsewhere.
    pub(super) weight: f32,
    /// By which rows of two data sets are compared.
    pub(super) id: Option<&'a str>,
    /// Number of the file that says so; none is the text file next to the audio.
    pub(super) file: Option<usize>,
    pub(super) line: u64,
}

impl<'a> Said<'a> {
    /// Returns what a text file next to the audio says.
    pub(super) fn beside(text: &'a str) -> Self {
        Self {
            text,
            voice: None,
            description: None,
            fields: &[],
            ids: &[],
            weight: 1.0,
            id: None,
            file: None,
            line: 1,
        }
    }
}

impl Lister {
    pub(super) fn new(
        (described, lines): (Described, Lines),
        scratch: &Path,
        room: u64,
    ) -> Result<Self, DataError> {
        let listing = Listing {
            files: Vec::new(),
            names: String::new(),
            rows: Vec::new(),
            records: Scratch::new(scratch)?,
            longest_text: 0,
            longest_description: 0,
        };
        let problems = Outcomes::new(scratch)?;
        let (seen, hasher) = (HashMap::new(), RandomState::new());
        // What is read beside them goes first.
        let room = match &described {
            Described::Beside(beside) => room.saturating_sub(beside.bytes),
            Described::No | Described::Own | Described::Music => room,
        };
        let (prefix, voice, row_bytes, footer_bytes) = (String::new(), None, 0, 0);
        Ok(Self {
            listing,
            problems,
            described,
            lines,
            prefix,
            voice,
            corrects: true,
            corrections: None,
            scratch: scratch.to_owned(),
            seen,
            hasher,
            room,
            row_bytes,
            footer_bytes,
        })
    }

    /// Goes on to a data set, which lies in a folder: how many clips are listed, with those that cannot be used.
    pub(super) fn begin(&mut self, set: &DataSet, folder: &Path) -> Result<usize, DataError> {
        self.prefix = set.name.as_ref().map_or(String::new(), |name| format!("{name}/"));
        self.voice.clone_from(&set.voice);
        if self.corrects {
            let scratch = self.scratch.clone();
            let corrections = Corrections::open(folder, &scratch, self.room, self)?;
            self.room -= corrections.as_ref().map_or(0, Corrections::bytes).min(self.room);
            self.corrections = corrections;
        }
        Ok(self.listed())
    }

    /// Ends the data set.
    pub(super) fn end(&mut self) -> Result<(), DataError> {
        self.corrections.take().map_or(Ok(()), |corrections| corrections.finish(self))
    }

    /// Returns what is corrected of a clip, and the number of the file that says so.
    pub(super) fn corrected(&mut self, name: &str) -> Result<Option<(usize, Correction)>, DataError> {
        self.corrections.as_mut().map_or(Ok(None), |corrections| corrections.of(name))
    }

    /// Returns how many clips are listed, with those that cannot be used.
    pub(super) fn listed(&self) -> usize {
        self.listing.len() + self.problems.len()
    }

    /// Returns the bytes that are left for more.
    #[cfg(feature = "parquet")]
    pub(super) fn room(&self) -> u64 {
        self.room.saturating_sub(clip_bytes(self.listing.len(), self.listing.names.len()))
    }

    /// Returns whether descriptions are read of what describes clips.
    pub(super) fn is_described(&self) -> bool {
        !matches!(self.described, Described::No)
    }

    /// Returns whether what is listed is music.
    pub(super) fn is_music(&self) -> bool {
        matches!(self.described, Described::Music)
    }

    /// Goes on to a row of a file, whatever becomes of it.
    pub(super) fn advance(&mut self, file: usize, line: u64) -> Result<(), DataError> {
        match &mut self.described {
            Described::Beside(beside) => beside.advance((&self.listing.files[file], line)),
            Described::No | Described::Own | Described::Music => Ok(()),
        }
    }

    /// Returns what a second data set says of how a clip is spoken; the inner error is what is wrong with that.
    pub(super) fn beside(
        &self,
        name: &str,
        id: Option<&str>,
    ) -> Result<Result<Option<String>, Problem>, DataError> {
        match &self.described {
            Described::Beside(beside) => beside.of(name, id),
            Described::No | Described::Own | Described::Music => Ok(Ok(None)),
        }
    }

    /// Returns the number of a file that describes clips.
    pub(super) fn file(&mut self, path: &Path) -> usize {
        self.listing.files.push(path.to_owned());
        self.listing.files.len() - 1
    }

    pub(super) fn path(&self, file: usize) -> &Path {
        &self.listing.files[file]
    }

    /// Returns where something is said of a clip with this audio.
    pub(super) fn place(&self, said: &Said<'_>, audio: &Path) -> PathBuf {
        said.file.map_or_else(|| audio.with_extension("txt"), |file| self.path(file).to_owned())
    }

    /// Notes something that cannot be used.
    pub(super) fn problem(
        &mut self,
        name: &str,
        file: &Path,
        line: Option<u64>,
        (cause, reason): (Cause, String),
    ) -> Result<(), DataError> {
        self.problems.push(Outcome {
            name: crate::error::short(&format!("{}{name}", self.prefix)).into_owned(),
            file: file.to_owned(),
            line,
            verdict: Verdict::Bad { cause, reason },
        })
    }

    /// Adds a clip whose audio is a file. The same file may come only once.
    pub(super) fn add_file(&mut self, name: &str, audio: &Path, said: &Said<'_>) -> Result<(), DataError> {
        let place = self.place(said, audio);
        let Some(path) = audio.to_str() else {
            let reason = "its name is not UTF-8; rename it".to_owned();
            return self.problem(name, &place, Some(said.line), (Cause::NoAudio, reason));
        };
        let hash = self.hasher.hash_one(audio);
        if let Some(&i) = self.seen.get(&hash) {
            let earlier = self.listing.entry(i as usize)?;
            // Two paths of one hash are as rare as they are harmless.
            if earlier.audio == Audio::File(audio.to_owned()) {
                let reason =
                    format!("the same audio is already at {}:{}", earlier.file.display(), earlier.line);
                return self.problem(name, &place, Some(said.line), (Cause::Twice, reason));
            }
        }
        self.add(name, Some(path), None, said)?;
        self.seen.insert(hash, self.listing.len() as u32 - 1);
        Ok(())
    }

    /// Adds a clip whose audio is a row of a table.
    #[cfg(feature = "parquet")]
    pub(super) fn add_row(&mut self, name: &str, row: u64, said: &Said<'_>) -> Result<(), DataError> {
        self.add(name, None, Some(row), said)
    }

    fn add(
        &mut self,
        name: &str,
        audio: Option<&str>,
        row: Option<u64>,
        said: &Said<'_>,
    ) -> Result<(), DataError> {
        let clips = self.listing.len() + 1;
        let length = self.prefix.len() + name.len();
        let voice = said.voice.or(self.voice.as_deref());
        let needed = clip_bytes(clips, self.listing.names.len() + length);
        if needed > self.room || clips > u32::MAX as usize {
            let what = format!("the data's {} or more", many(clips, "clip"));
            return Err(DataError::DoesNotFit { what, needed, room: self.room });
        }
        let record = Record {
            audio: audio.map(Cow::Borrowed),
            row,
            text: Cow::Borrowed(said.text),
            voice: voice.map(Cow::Borrowed),
            description: said.description.map(Cow::Borrowed),
            fields: Cow::Borrowed(said.fields),
            ids: Cow::Borrowed(said.ids),
            weight: said.weight,
            file: said.file,
            line: said.line,
        };
        let list = &mut self.listing;
        let json = serde_json::to_vec(&record)
            .map_err(|e| DataError::Invalid(format!("the list of clips cannot be written: {e}")))?;
        let row = Row {
            at: list.records.len(),
            name: list.names.len(),
            length: json.len() as u32,
            name_length: length as u32,
        };
        list.records.append(&json)?;
        list.names.push_str(&self.prefix);
        list.names.push_str(name);
        list.rows.push(row);
        let spoken = said.text.len() + voice.map_or(0, str::len) + size_of_val(said.ids);
        list.longest_text = list.longest_text.max(spoken);
        let fields: usize = said.fields.iter().map(|(key, value)| key.len() + value.len()).sum();
        let described = said.description.map_or(0, str::len) + fields;
        list.longest_description = list.longest_description.max(described);
        Ok(())
    }

    /// Puts the list of what lies at `path` into the order of names.
    pub(super) fn sort(&mut self, path: &Path) -> Result<(), DataError> {
        drop(std::mem::take(&mut self.seen));
        let mut rows = std::mem::take(&mut self.listing.rows);
        let names = &self.listing.names;
        let name = |row: &Row| &names[row.name..row.name + row.name_length as usize];
        rows.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        let twice = rows.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])).map(|pair| name(&pair[0]));
        if let Some(twice) = twice {
            // A path is written in two ways of which one is absolute and means another file.
            let reason = format!("two clips are called {:?}; rename one", crate::error::short(twice));
            return Err(DataError::file(path, reason));
        }
        self.listing.rows = rows;
        Ok(())
    }
}
