//! Parquet files: speech in the Hugging Face audio layout, and sequences that are tokenised already.
//!
//! Read through `parquet` of arrow-rs, row by row, with one page of each needed column in memory. Before a page is read,
//! its sizes are compared with the file's ([`pages`]). Uncompressed, snappy and zstd files can be read, which is what
//! pyarrow, pandas and `datasets` write.

mod pages;
mod table;

use std::path::{Path, PathBuf};

use super::beside::{Row, Rows};
use super::listing::{Lister, Said};
use super::resolve::Root;
use super::said::{description, voice};
use super::{DESCRIPTION_KEYS, ID_KEYS, TEXT_KEYS, VOICE_KEYS};
use crate::audio::AudioInput;
use crate::error::{DataError, short};
use crate::outcomes::Cause;
use crate::outcomes::Problem;
use table::{Cell, Cursor, Table};

/// Names of the column of audio.
const AUDIO: &str = "audio";
/// Longest audio of one row, bytes.
const MAX_ROW: usize = 512 << 20;

/// Lists the rows of a file in the audio layout.
pub(super) fn read(file: &Path, out: &mut Lister) -> Result<(), DataError> {
    let number = out.file(file);
    let table = Table::open(file, out.room())?;
    let columns = || short(&table.names().join(", ")).into_owned();
    if table.leaf(&["input_ids"]).is_some() {
        let reason = "the rows are tokenised already (`input_ids`), so there is no audio in them; only a family that \
                      trains on token sequences can read them";
        return Err(DataError::file(file, reason));
    }
    let Some(text) = TEXT_KEYS.iter().find_map(|key| table.leaf(&[key])) else {
        let reason = format!("no text column ({}) among its columns: {}", TEXT_KEYS.join(", "), columns());
        return Err(DataError::file(file, reason));
    };
    let audio = AudioColumns::find(&table).ok_or_else(|| {
        let reason = format!(
            "no `{AUDIO}` column of {{bytes, path}} or {{array, sampling_rate}} among its columns: {}",
            columns()
        );
        DataError::file(file, reason)
    })?;
    let described = |keys: &[&str]| leaf(&table, keys).filter(|_| out.is_described());
    let columns = [Some(text), leaf(&table, &VOICE_KEYS), described(&DESCRIPTION_KEYS), described(&ID_KEYS)];
    let leaves: Vec<usize> = columns.into_iter().flatten().collect();
    // Texts are read first, then audio.
    for leaves in [&audio.leaves(), &leaves] {
        out.row_bytes = out.row_bytes.max(table.held_bytes(leaves, out.room())?);
    }
    out.footer_bytes = out.footer_bytes.max(table.footer_bytes());
    let (rows, stem) = (table.rows(), file.file_stem().unwrap_or_default().to_string_lossy().into_owned());
    let width = rows.to_string().len();
    let mut cursor = Cursor::new(table, leaves);
    for row in 0..rows {
        let name = format!("{stem}#{row:0width$}");
        let line = row + 1;
        let cells = cursor.next().map_err(|reason| DataError::line(file, line, reason))?;
        out.advance(number, line)?;
        let texts = Texts::read(cells, columns.map(|leaf| leaf.is_some()));
        let described = match &texts {
            Ok(Texts { id, .. }) => out.beside(&name, id.as_deref())?,
            Err(_) => Ok(None),
        };
        match texts.and_then(|texts| Ok((texts, described?))) {
            Ok((Texts { text, voice, description, id }, beside)) => {
                let [voice, id] = [&voice, &id].map(Option::as_deref);
                let description = beside.as_deref().or(description.as_deref());
                let said = Said {
                    text: &text,
                    voice,
                    description,
                    fields: &[],
                    ids: &[],
                    weight: 1.0,
                    id,
                    file: Some(number),
                    line,
                };
                out.add_row(&name, row, &said)?;
            }
            Err(problem) => out.problem(&name, file, Some(line), problem)?,
        }
    }
    Ok(())
}

/// What a row says.
struct Texts {
    text: String,
    voice: Option<String>,
    description: Option<String>,
    id: Option<String>,
}

impl Texts {
    /// Reads the cells of text, voice, description and id, of those that there are.
    fn read(cells: Vec<Cell>, there: [bool; 4]) -> Result<Self, Problem> {
        let mut cells = cells.into_iter();
        let [text, label, said, id] = there.map(|there| if there { cells.next() } else { None });
        let of_text = |reason| (Cause::Transcript, reason);
        let text = match text {
            None | Some(Cell::Null) => return Err(of_text("no text".into())),
            Some(cell) => cell.text().and_then(checked_text).map_err(of_text)?,
        };
        let label = label_of(label).map_err(of_text)?;
        let voice = voice(label.as_deref()).map_err(of_text)?.map(str::to_owned);
        let description = said_of(said).and_then(|said| description(said.as_deref()))?;
        let id = label_of(id).map_err(|reason| (Cause::Metadata, reason))?;
        Ok(Self { text, voice, description, id })
    }
}

fn label_of(cell: Option<Cell>) -> Result<Option<String>, String> {
    cell.map_or(Ok(None), |cell| cell.label())
}

fn said_of(cell: Option<Cell>) -> Result<Option<String>, Problem> {
    match cell {
        None | Some(Cell::Null) => Ok(None),
        Some(cell) => cell.text().map(Some).map_err(|reason| (Cause::Description, reason)),
    }
}

/// Returns the column of the first of these names that is there.
fn leaf(table: &Table, keys: &[&str]) -> Option<usize> {
    keys.iter().find_map(|key| table.leaf(&[key]))
}

/// Returns the rows of a second data set, and the bytes that reading them holds.
pub(super) fn rows(file: &Path, room: u64) -> Result<(Box<dyn Rows>, u64), DataError> {
    let table = Table::open(file, room)?;
    let columns = [leaf(&table, &DESCRIPTION_KEYS), leaf(&table, &ID_KEYS)];
    if columns[0].is_none() {
        let names = table.names().join(", ");
        let reason = format!(
            "no column of descriptions ({}) among its columns: {}",
            DESCRIPTION_KEYS.join(", "),
            short(&names)
        );
        return Err(DataError::file(file, reason));
    }
    let leaves: Vec<usize> = columns.into_iter().flatten().collect();
    let bytes = table.footer_bytes() + table.held_bytes(&leaves, room)?;
    let there = columns.map(|leaf| leaf.is_some());
    Ok((Box::new(Described { file: file.to_owned(), there, cursor: Cursor::new(table, leaves) }), bytes))
}

/// Rows with descriptions.
struct Described {
    file: PathBuf,
    /// Which columns there are: of descriptions, and of ids.
    there: [bool; 2],
    cursor: Cursor,
}

impl Rows for Described {
    fn next(&mut self) -> Result<Option<Row>, DataError> {
        let line = self.cursor.position() + 1;
        if line > self.cursor.rows() {
            return Ok(None);
        }
        let cells = self.cursor.next().map_err(|reason| DataError::line(&self.file, line, reason))?;
        let mut cells = cells.into_iter();
        let [said, id] = self.there.map(|there| if there { cells.next() } else { None });
        let row = match (said_of(said), label_of(id)) {
            (Ok(description), Ok(id)) => Row { description, id, ..Row::default() },
            (Err((_, reason)), _) | (_, Err(reason)) => Row { problem: Some(reason), ..Row::default() },
        };
        Ok(Some(Row { line, ..row }))
    }
}

/// Returns a text as it stands: the official preprocessing changes nothing in it.
fn checked_text(text: String) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("empty text".into());
    }
    match text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        Some(c) => Err(format!("binary data in the text (U+{:04X})", c as u32)),
        None => Ok(text),
    }
}

/// Leaves of the audio column, of those that there are.
struct AudioColumns {
    bytes: Option<usize>,
    path: Option<usize>,
    samples: Option<(usize, usize)>,
}

impl AudioColumns {
    fn find(table: &Table) -> Option<Self> {
        let leaf = |name: &str| table.leaf(&[AUDIO, name]);
        let columns = Self {
            bytes: leaf("bytes"),
            path: leaf("path"),
            samples: leaf("array").zip(leaf("sampling_rate")),
        };
        (columns.bytes.is_some() || columns.path.is_some() || columns.samples.is_some()).then_some(columns)
    }

    fn leaves(&self) -> Vec<usize> {
        let samples = self.samples.map(|(array, rate)| [array, rate]);
        self.bytes.into_iter().chain(self.path).chain(samples.into_iter().flatten()).collect()
    }
}

/// Audio of rows, read in order.
#[derive(Default)]
pub(super) struct AudioRows {
    open: Option<Open>,
}

struct Open {
    file: PathBuf,
    columns: AudioColumns,
    cursor: Cursor,
    /// Why nothing more can be read of the file.
    failed: Option<String>,
}

impl AudioRows {
    /// Returns the audio of a row of `file`.
    pub(super) fn audio(&mut self, file: &Path, row: u64) -> Result<AudioInput, String> {
        let behind =
            |open: &Open| open.file != file || (open.failed.is_none() && open.cursor.position() > row);
        if self.open.as_ref().is_none_or(behind) {
            self.open = None;
            // What it takes was asked when the data was listed.
            let table = Table::open(file, u64::MAX).map_err(|e| e.to_string())?;
            let columns = AudioColumns::find(&table).ok_or("its audio column is gone")?;
            let leaves = columns.leaves();
            table.held_bytes(&leaves, u64::MAX).map_err(|e| e.to_string())?;
            let cursor = Cursor::new(table, leaves);
            self.open = Some(Open { file: file.to_owned(), columns, cursor, failed: None });
        }
        let open = self.open.as_mut().ok_or("not open")?;
        if let Some(reason) = &open.failed {
            return Err(reason.clone());
        }
        let read = open.cursor.skip_to(row).and_then(|()| open.cursor.next());
        let cells = read.map_err(|reason| {
            let reason = format!("{reason}; neither this row nor what follows in the file can be read");
            open.failed.insert(reason).clone()
        })?;
        open.columns.input(cells, file, row)
    }
}

impl AudioColumns {
    fn input(&self, cells: Vec<Cell>, file: &Path, row: u64) -> Result<AudioInput, String> {
        let mut name = file.as_os_str().to_owned();
        name.push(format!("#{}", row + 1));
        let name = PathBuf::from(name);
        let mut cells = cells.into_iter();
        let bytes = self.bytes.and_then(|_| cells.next());
        let path = self.path.and_then(|_| cells.next());
        let samples = self.samples.and_then(|_| cells.next().zip(cells.next()));
        if let Some(Cell::Bytes(bytes)) = bytes {
            let bytes = bytes.data();
            if bytes.len() > MAX_ROW {
                return Err(format!("{} bytes of audio in one row; at most {MAX_ROW} are read", bytes.len()));
            }
            return Ok(AudioInput::Memory { name, bytes: bytes.into() });
        }
        if let Some((Cell::Floats(samples), rate)) = samples {
            let rate = match rate {
                Cell::Int(rate) => u32::try_from(rate).map_err(|_| format!("sampling_rate {rate}"))?,
                _ => return Err("no sampling_rate".into()),
            };
            return AudioInput::of_samples(name, &samples, rate);
        }
        match path {
            Some(path @ Cell::Bytes(_)) => {
                let folder = file.parent().unwrap_or(Path::new("."));
                let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                let root = Root::new(folder).map_err(|e| e.to_string())?;
                Ok(AudioInput::File(root.audio(&path.text()?)?))
            }
            _ => Err("no audio in the row: neither bytes, samples nor a path".into()),
        }
    }
}

/// A tokenised row: whole numbers as they stand.
pub(crate) struct TokenRow {
    pub(crate) ids: Vec<i64>,
    pub(crate) labels: Option<Vec<i64>>,
    /// `None` if all ids count.
    pub(crate) mask: Option<Vec<i64>>,
}

/// Rows of a file with a column `input_ids`, and perhaps `labels` and `attention_mask`.
pub(crate) struct TokenRows {
    cursor: Cursor,
    bytes: u64,
    labels: bool,
    mask: bool,
}

impl TokenRows {
    /// Opens a file of which a row takes at most `room` bytes of memory. `None` if it has no `input_ids`.
    pub(crate) fn open(file: &Path, room: u64) -> Result<Option<Self>, DataError> {
        let table = Table::open(file, room)?;
        let Some(ids) = table.leaf(&["input_ids"]) else { return Ok(None) };
        let labels = table.leaf(&["labels"]);
        // A mask of ones is often one run of a hundred million values, which says nothing.
        let mask = table.leaf(&["attention_mask"]).filter(|&leaf| !table.is_all_ones(leaf));
        let leaves: Vec<usize> = [Some(ids), labels, mask].into_iter().flatten().collect();
        let bytes = table.footer_bytes() + table.held_bytes(&leaves, room)?;
        let (labels, mask) = (labels.is_some(), mask.is_some());
        Ok(Some(Self { cursor: Cursor::new(table, leaves), bytes, labels, mask }))
    }

    /// Returns the number of rows of the file.
    pub(crate) fn rows(&self) -> u64 {
        self.cursor.rows()
    }

    /// Returns the bytes of memory that reading a row takes at most.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next row. After an error nothing more can be read.
    pub(crate) fn next(&mut self) -> Result<TokenRow, String> {
        let mut cells = self.cursor.next()?.into_iter();
        let mut list =
            |present: bool| present.then(|| cells.next().map_or(Ok(Vec::new()), Cell::ints)).transpose();
        let ids = list(true)?.unwrap_or_default();
        Ok(TokenRow { ids, labels: list(self.labels)?, mask: list(self.mask)? })
    }
}
