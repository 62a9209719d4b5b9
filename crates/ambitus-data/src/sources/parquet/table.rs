//! A parquet file as rows of the leaves that are asked for.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::basic::Type;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::super::said::speakable;
use super::pages;
use crate::error::DataError;
use crate::files;
use crate::guard;

/// Largest footer, bytes: tens of thousands of row groups.
const MAX_FOOTER: u64 = 64 << 20;
/// Memory that a footer takes for each of its bytes, once it is read.
const FOOTER_MEMORY: u64 = 16;
/// Values that a row may have in pages after its first: of samples, some minutes; of ids, as many as a clip may have.
const MORE_SAMPLES: u64 = 16 << 20;
const MORE_IDS: u64 = 1 << 19;
/// Memory for each value of a row: itself and two levels, in vectors that grow by doubling, and its copy as what is made of it.
const SAMPLE_MEMORY: u64 = 2 * (4 + 2 * 2) + 8;
const ID_MEMORY: u64 = 2 * (8 + 2 * 2) + 8;

/// An opened file whose row groups lie inside it.
pub(super) struct Table {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    footer_bytes: u64,
}

/// A value of one row. Lists are whole.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    /// Nothing, or an empty list.
    Null,
    Int(i64),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    /// Part of the page that it is in.
    Bytes(ByteArray),
}

impl Cell {
    pub(super) fn text(&self) -> Result<String, String> {
        match self {
            Self::Bytes(bytes) => {
                let text = std::str::from_utf8(bytes.data()).map_err(|_| "the text is not UTF-8")?;
                speakable(text)?;
                Ok(text.to_owned())
            }
            _ => Err("not text".into()),
        }
    }

    /// Returns a name or number that stands for a voice.
    pub(super) fn label(&self) -> Result<Option<String>, String> {
        Ok(match self {
            Self::Null => None,
            Self::Int(n) => Some(n.to_string()),
            other => Some(other.text()?.trim().to_owned()).filter(|name| !name.is_empty()),
        })
    }

    pub(super) fn ints(self) -> Result<Vec<i64>, String> {
        match self {
            Self::Null => Ok(Vec::new()),
            Self::Ints(list) => Ok(list),
            _ => Err("not a list of whole numbers".into()),
        }
    }
}

/// Runs the decoder; a panic in it becomes a fault of the file.
fn guarded<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match guard::guarded(work) {
        Some(Ok(value)) => Ok(value),
        Some(Err(ParquetError::NYI(what))) => Err(format!("written in a way that is not read ({what})")),
        Some(Err(error)) => Err(format!("damaged ({error})")),
        None => Err("damaged (the decoder gave up on it)".into()),
    }
}

impl Table {
    /// Opens a file whose footer takes at most `room` bytes of memory.
    pub(super) fn open(path: &Path, room: u64) -> Result<Self, DataError> {
        let io = |e| DataError::io(path, e);
        let refused = |reason: String| DataError::file(path, reason);
        let (mut file, length) = files::open(path)?;
        let mut tail = [0; 8];
        if length >= 12 {
            file.seek(SeekFrom::Start(length - 8)).and_then(|_| file.read_exact(&mut tail)).map_err(io)?;
        }
        let [a, b, c, d, ref magic @ ..] = tail;
        let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
        if magic != b"PAR1" {
            return Err(refused("not a parquet file, or not all of one: it does not end as one".into()));
        }
        if footer > (length - 12).min(MAX_FOOTER) {
            return Err(refused(format!("damaged: a footer of {footer} bytes in a file of {length}")));
        }
        let footer_bytes = FOOTER_MEMORY * footer;
        if footer_bytes > room {
            let what = format!("{}: its footer", path.display());
            return Err(DataError::DoesNotFit { what, needed: footer_bytes, room });
        }
        let reader = guarded(|| SerializedFileReader::new(file)).map_err(refused)?;
        let rows: i64 = reader.metadata().row_groups().iter().map(|g| g.num_rows().max(0)).sum();
        if rows != reader.metadata().file_metadata().num_rows() {
            return Err(refused("damaged: its row groups do not have the rows that it says".into()));
        }
        Ok(Self { path: path.to_owned(), reader, footer_bytes })
    }

    pub(super) fn rows(&self) -> u64 {
        self.reader.metadata().file_metadata().num_rows().max(0) as u64
    }

    /// Returns the names of the columns.
    pub(super) fn names(&self) -> Vec<&str> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.root_schema().get_fields().iter().map(|f| f.name()).collect()
    }

    /// Returns the leaf at this path, or the only one below it.
    pub(super) fn leaf(&self, path: &[&str]) -> Option<usize> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let below = |leaf: &usize| {
            let parts = schema.column(*leaf);
            let parts = parts.path().parts();
            parts.len() >= path.len() && parts.iter().zip(path).all(|(a, b)| a == b)
        };
        let mut found = (0..schema.num_columns()).filter(below);
        found.next().filter(|_| found.next().is_none())
    }

    /// Returns whether the statistics say that a column of whole numbers holds only ones.
    pub(super) fn is_all_ones(&self, leaf: usize) -> bool {
        let one = |bytes: Option<&[u8]>| {
            bytes.is_some_and(|b| b.first() == Some(&1) && b[1..].iter().all(|&b| b == 0))
        };
        self.reader.metadata().row_groups().iter().all(|group| {
            let statistics = group.column(leaf).statistics();
            statistics.is_some_and(|s| {
                s.null_count_opt() == Some(0) && one(s.min_bytes_opt()) && one(s.max_bytes_opt())
            })
        })
    }

    /// Returns the bytes that the footer takes.
    pub(super) fn footer_bytes(&self) -> u64 {
        self.footer_bytes
    }

    /// Checks every page of these leaves against the file; bytes that a page and a row of them take. With the footer's they are at
    /// most `room`.
    pub(super) fn held_bytes(&self, leaves: &[usize], room: u64) -> Result<u64, DataError> {
        let mut file = File::open(&self.path).map_err(|e| DataError::io(&self.path, e))?;
        let length = file.metadata().map_err(|e| DataError::io(&self.path, e))?.len();
        let mut most = 0;
        for group in self.reader.metadata().row_groups() {
            let mut held = 0;
            for &leaf in leaves {
                let chunk = group.column(leaf);
                // The decoder's own `byte_range` panics at negative numbers.
                let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
                let range = u64::try_from(start).ok().zip(u64::try_from(chunk.compressed_size()).ok());
                let range =
                    range.and_then(|(at, bytes)| Some((at, at.checked_add(bytes).filter(|&e| e <= length)?)));
                let sizes = range.ok_or_else(|| "damaged: a column lies outside the file".to_owned());
                let sizes = sizes.and_then(|(at, end)| pages::check(&mut file, at, end));
                let sizes = sizes.map_err(|reason| self.fault(leaf, reason))?;
                let values = u64::try_from(chunk.num_values()).unwrap_or(0);
                held += sizes.held() + self.row_bytes(leaf, values, sizes.values);
            }
            most = most.max(held);
        }
        let needed = self.footer_bytes + most;
        if needed > room {
            let what = format!("{}: a page and a row of it", self.path.display());
            return Err(DataError::DoesNotFit { what, needed, room });
        }
        Ok(most)
    }

    /// Returns the bytes of a row of a leaf that has lists, with `of_chunk` values in the chunk and `of_page` in the page. A row
    /// of any other leaf is in its page.
    fn row_bytes(&self, leaf: usize, of_chunk: u64, of_page: u64) -> u64 {
        match self.more_values(leaf) {
            Some((more, memory)) => memory * of_chunk.min(of_page + more),
            None => 0,
        }
    }

    /// Returns the values that a row of a list may have in pages after its first, and the memory of each.
    fn more_values(&self, leaf: usize) -> Option<(u64, u64)> {
        let column = self.reader.metadata().file_metadata().schema_descr().column(leaf);
        let is_float = matches!(column.physical_type(), Type::FLOAT | Type::DOUBLE);
        let bounds = if is_float { (MORE_SAMPLES, SAMPLE_MEMORY) } else { (MORE_IDS, ID_MEMORY) };
        (column.max_rep_level() > 0).then_some(bounds)
    }

    fn fault(&self, leaf: usize, reason: String) -> DataError {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        DataError::file(&self.path, format!("column {}: {reason}", schema.column(leaf).path().string()))
    }

    /// Returns a reader of one leaf in a row group, with its largest levels.
    fn column(&self, group: usize, leaf: usize) -> Result<Column, String> {
        let description = self.reader.metadata().file_metadata().schema_descr().column(leaf);
        let pages = guarded(|| self.reader.get_row_group(group)?.get_column_page_reader(leaf))?;
        let more = self.more_values(leaf).map_or(u64::MAX, |(more, _)| more);
        let left = Arc::new(AtomicU64::new(FIRST_PAGE));
        let pages = Bounded { pages, left: left.clone(), more };
        let reader = guarded(|| Ok(get_column_reader(description.clone(), Box::new(pages))))?;
        Ok(Column { reader, left, list: description.max_rep_level() > 0, name: description.path().string() })
    }
}

/// What is left to a row that has no page yet: its first is its own, whatever its size.
const FIRST_PAGE: u64 = u64::MAX;

/// Pages of a column, with a bound on those that a row may take: the decoder gathers a row before it says how long it is.
struct Bounded {
    pages: Box<dyn PageReader>,
    /// Values in further pages that the row may still take, or [`FIRST_PAGE`].
    left: Arc<AtomicU64>,
    more: u64,
}

impl PageReader for Bounded {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.pages.get_next_page()?;
        let values = match &page {
            Some(Page::DataPage { num_values, .. } | Page::DataPageV2 { num_values, .. }) => *num_values,
            _ => return Ok(page),
        };
        let left = match self.left.load(Ordering::Relaxed) {
            FIRST_PAGE => self.more,
            left => left
                .checked_sub(u64::from(values))
                .ok_or_else(|| ParquetError::General(format!("a row of more than {} values", self.more)))?,
        };
        self.left.store(left, Ordering::Relaxed);
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.pages.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>, ParquetError> {
        self.pages.take_deferred_dictionary()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for Bounded {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

struct Column {
    reader: ColumnReader,
    /// Of [`Bounded`].
    left: Arc<AtomicU64>,
    list: bool,
    name: String,
}

impl Column {
    fn next(&mut self) -> Result<Cell, String> {
        let list = self.list;
        self.left.store(FIRST_PAGE, Ordering::Relaxed);
        let read = match &mut self.reader {
            ColumnReader::Int32ColumnReader(r) => {
                values(r, list).map(|v| ints(v.into_iter().map(i64::from).collect(), list))
            }
            ColumnReader::Int64ColumnReader(r) => values(r, list).map(|v| ints(v, list)),
            ColumnReader::FloatColumnReader(r) => values(r, list).map(floats),
            ColumnReader::DoubleColumnReader(r) => {
                values(r, list).map(|v| floats(v.into_iter().map(|x| x as f32).collect()))
            }
            ColumnReader::ByteArrayColumnReader(r) => values(r, list).and_then(|mut v| match v.len() {
                0 => Ok(Cell::Null),
                1 => Ok(v.pop().map_or(Cell::Null, Cell::Bytes)),
                _ => Err("a list where one value is expected".into()),
            }),
            _ => Err("a type that is not read".into()),
        };
        read.map_err(|reason| format!("column {}: {reason}", self.name))
    }

    fn skip(&mut self, rows: usize) -> Result<(), String> {
        let skipped = match &mut self.reader {
            ColumnReader::Int32ColumnReader(r) => guarded(|| r.skip_records(rows)),
            ColumnReader::Int64ColumnReader(r) => guarded(|| r.skip_records(rows)),
            ColumnReader::FloatColumnReader(r) => guarded(|| r.skip_records(rows)),
            ColumnReader::DoubleColumnReader(r) => guarded(|| r.skip_records(rows)),
            ColumnReader::ByteArrayColumnReader(r) => guarded(|| r.skip_records(rows)),
            _ => Ok(rows),
        };
        match skipped {
            Ok(n) if n == rows => Ok(()),
            Ok(_) => Err(format!("column {}: damaged (fewer rows than it says)", self.name)),
            Err(reason) => Err(format!("column {}: {reason}", self.name)),
        }
    }
}

/// Returns the values of the next row.
fn values<T: DataType>(reader: &mut ColumnReaderImpl<T>, list: bool) -> Result<Vec<T::T>, String> {
    let (mut definition, mut repetition, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let read = guarded(|| reader.read_records(1, Some(&mut definition), Some(&mut repetition), &mut values));
    let (records, found, levels) = read?;
    if records != 1 {
        return Err("damaged (fewer rows than it says)".into());
    }
    // A single level without a value is a missing or empty list, or a missing value.
    if list && found < levels && levels > 1 {
        return Err("a missing value inside a list".into());
    }
    Ok(values)
}

fn ints(mut values: Vec<i64>, list: bool) -> Cell {
    match (list, values.len()) {
        (_, 0) => Cell::Null,
        (false, _) => values.pop().map_or(Cell::Null, Cell::Int),
        (true, _) => Cell::Ints(values),
    }
}

fn floats(values: Vec<f32>) -> Cell {
    if values.is_empty() { Cell::Null } else { Cell::Floats(values) }
}

/// Goes through the rows of some leaves, one row group after another.
pub(super) struct Cursor {
    table: Table,
    leaves: Vec<usize>,
    /// The next group to open.
    group: usize,
    columns: Vec<Column>,
    left: u64,
    row: u64,
}

impl Cursor {
    pub(super) fn new(table: Table, leaves: Vec<usize>) -> Self {
        Self { table, leaves, group: 0, columns: Vec::new(), left: 0, row: 0 }
    }

    /// Returns the row that comes next, from 0.
    pub(super) fn position(&self) -> u64 {
        self.row
    }

    pub(super) fn rows(&self) -> u64 {
        self.table.rows()
    }

    /// Returns the number of rows of a group.
    fn rows_of(&self, group: usize) -> Option<u64> {
        let groups = self.table.reader.metadata().row_groups();
        groups.get(group).map(|g| g.num_rows().max(0) as u64)
    }

    /// Makes sure that a row is left in the open group.
    fn open_next(&mut self) -> Result<(), String> {
        while self.left == 0 {
            let rows = self.rows_of(self.group).ok_or("no further row")?;
            self.columns.clear();
            if rows > 0 {
                let open = |&leaf: &usize| self.table.column(self.group, leaf);
                self.columns = self.leaves.iter().map(open).collect::<Result<_, _>>()?;
            }
            self.left = rows;
            self.group += 1;
        }
        Ok(())
    }

    /// Returns the cells of the next row, in the order of the leaves.
    pub(super) fn next(&mut self) -> Result<Vec<Cell>, String> {
        self.open_next()?;
        let cells = self.columns.iter_mut().map(Column::next).collect::<Result<_, _>>()?;
        self.left -= 1;
        self.row += 1;
        Ok(cells)
    }

    /// Moves on to a row that is not behind; groups in between are not opened.
    pub(super) fn skip_to(&mut self, row: u64) -> Result<(), String> {
        while self.row < row {
            if self.left == 0 {
                match self.rows_of(self.group) {
                    Some(rows) if rows <= row - self.row => {
                        self.group += 1;
                        self.row += rows;
                        continue;
                    }
                    _ => self.open_next()?,
                }
            }
            let step = (row - self.row).min(self.left);
            for column in &mut self.columns {
                column.skip(step as usize)?;
            }
            self.left -= step;
            self.row += step;
        }
        Ok(())
    }
}
