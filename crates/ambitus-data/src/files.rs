//! Reading text files with bounds.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::DataError;

/// Longest line of a metadata file that is read, bytes.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// Opens a regular file; its length, bytes. Opening a pipe would wait for a writer, so the kind is looked at first.
pub(crate) fn open(path: &Path) -> Result<(File, u64), DataError> {
    let io = |e| DataError::io(path, e);
    let irregular = || DataError::file(path, "not a regular file");
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(irregular());
    }
    let file = File::open(path).map_err(io)?;
    // It may be another one meanwhile.
    let meta = file.metadata().map_err(io)?;
    if meta.is_file() { Ok((file, meta.len())) } else { Err(irregular()) }
}

/// Reads a regular file of at most `limit` bytes.
pub(crate) fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, DataError> {
    let (file, length) = open(path)?;
    if length > limit {
        return Err(DataError::file(path, format!("{length} bytes; at most {limit} are read")));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(limit).read_to_end(&mut bytes).map_err(|e| DataError::io(path, e))?;
    Ok(bytes)
}

const UTF_16: &str = "the text is UTF-16; save it as UTF-8";
const BINARY: &str = "binary data, not text";
const BOM: &[u8] = "\u{feff}".as_bytes();

fn is_utf_16(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff])
}

fn not_utf_8(byte: u8) -> String {
    format!("the text is not UTF-8 (byte {byte:#04x}); save it as UTF-8")
}

/// Reads a text file without its byte-order mark. Not UTF-8, or binary, is an error with the line.
pub(crate) fn read_utf8(path: &Path, limit: u64) -> Result<String, DataError> {
    let bytes = read_bytes(path, limit)?;
    let line_of = |at: usize| bytes[..at].iter().filter(|&&b| b == b'\n').count() as u64 + 1;
    if is_utf_16(&bytes) {
        return Err(DataError::line(path, 1, UTF_16));
    }
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        return Err(DataError::line(path, line_of(at), BINARY));
    }
    if let Err(error) = std::str::from_utf8(&bytes) {
        let at = error.valid_up_to();
        return Err(DataError::line(path, line_of(at), not_utf_8(bytes[at])));
    }
    let text = String::from_utf8(bytes).expect("just checked");
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

/// A text file line by line, with one line in memory; packed, where its name ends in `.gz`.
pub(crate) struct Lines {
    path: PathBuf,
    reader: BufReader<Box<dyn Read + Send>>,
    line: Vec<u8>,
    number: u64,
}

/// A line without its end; `Err` says why it is not read.
pub(crate) type Line<'a> = Result<&'a str, String>;

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let (file, _) = open(path)?;
        let packed = path.extension().is_some_and(|e| e == "gz");
        let file: Box<dyn Read + Send> = if packed {
            Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(file)))
        } else {
            Box::new(file)
        };
        let reader = BufReader::with_capacity(64 << 10, file);
        Ok(Self { path: path.to_owned(), reader, line: Vec::new(), number: 0 })
    }

    /// Returns the next line that is not blank, and its number from 1.
    ///
    /// # Errors
    /// The file cannot be read, or is not UTF-8 text from this line on.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Line<'_>)>, DataError> {
        loop {
            let Some(length) = self.fill()? else { return Ok(None) };
            if length > MAX_LINE as u64 {
                let reason = format!("a line of {length} bytes; at most {MAX_LINE} are read");
                return Ok(Some((self.number, Err(reason))));
            }
            let text = std::str::from_utf8(self.line.strip_prefix(BOM).unwrap_or(&self.line));
            if !text.is_ok_and(|text| text.trim().is_empty()) {
                break;
            }
        }
        let refused = |reason: String| DataError::line(&self.path, self.number, reason);
        let mut bytes = &self.line[..];
        if self.number == 1 {
            if is_utf_16(bytes) {
                return Err(refused(UTF_16.into()));
            }
            bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
        }
        if bytes.contains(&0) {
            return Err(refused(BINARY.into()));
        }
        let text = std::str::from_utf8(bytes).map_err(|e| refused(not_utf_8(bytes[e.valid_up_to()])))?;
        Ok(Some((self.number, Ok(text.strip_suffix('\r').unwrap_or(text)))))
    }

    /// Reads a line into memory, up to its longest length; its whole length, without the end.
    fn fill(&mut self) -> Result<Option<u64>, DataError> {
        self.line.clear();
        let (mut length, mut ended, mut any) = (0u64, false, false);
        while !ended {
            let bytes = self.reader.fill_buf().map_err(|e| DataError::io(&self.path, e))?;
            if bytes.is_empty() {
                break;
            }
            any = true;
            let end = bytes.iter().position(|&b| b == b'\n');
            let (piece, used) = end.map_or((bytes, bytes.len()), |at| (&bytes[..at], at + 1));
            let room = (MAX_LINE + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            length += piece.len() as u64;
            ended = end.is_some();
            self.reader.consume(used);
        }
        self.number += u64::from(any);
        Ok(any.then_some(length))
    }
}
