//! Reading small text files with bounds.

use std::io::Read;
use std::path::Path;

use crate::error::DataError;

/// Reads a regular file of at most `limit` bytes.
pub(crate) fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, DataError> {
    let meta = std::fs::metadata(path).map_err(|e| DataError::io(path, e))?;
    if !meta.is_file() {
        return Err(DataError::file(path, "not a regular file"));
    }
    if meta.len() > limit {
        return Err(DataError::file(path, format!("{} bytes; at most {limit} are read", meta.len())));
    }
    let file = std::fs::File::open(path).map_err(|e| DataError::io(path, e))?;
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(limit).read_to_end(&mut bytes).map_err(|e| DataError::io(path, e))?;
    Ok(bytes)
}

/// Reads a text file without its byte-order mark. Not UTF-8, or binary, is an error with the line.
pub(crate) fn read_utf8(path: &Path, limit: u64) -> Result<String, DataError> {
    let bytes = read_bytes(path, limit)?;
    let line_of = |at: usize| bytes[..at].iter().filter(|&&b| b == b'\n').count() as u64 + 1;
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(DataError::line(path, 1, "the text is UTF-16; save it as UTF-8"));
    }
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        return Err(DataError::line(path, line_of(at), "binary data, not text"));
    }
    if let Err(error) = std::str::from_utf8(&bytes) {
        let at = error.valid_up_to();
        return Err(DataError::line(
            path,
            line_of(at),
            format!("the text is not UTF-8 (byte {:#04x}); save it as UTF-8", bytes[at]),
        ));
    }
    let text = String::from_utf8(bytes).expect("just checked");
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}
