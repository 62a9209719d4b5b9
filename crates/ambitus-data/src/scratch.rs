//! What is too large for memory while a data set is prepared: written to a file without a name, read back from it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::atomic;
use crate::error::DataError;

/// Bytes that wait to be written.
const BUFFER: usize = 64 << 10;

/// Bytes that are only appended. The file has no name, so nothing of it is left however the program ends.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: PathBuf,
    file: File,
    /// Bytes that are in the file.
    written: u64,
    /// Bytes behind them.
    tail: Vec<u8>,
}

impl Scratch {
    /// Returns an empty file in a folder, which is made if missing.
    pub(crate) fn new(folder: &Path) -> Result<Self, DataError> {
        let file = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        let file = file.map_err(|e| DataError::io(folder, e))?;
        Ok(Self { folder: folder.to_owned(), file, written: 0, tail: Vec::with_capacity(BUFFER) })
    }

    pub(crate) fn len(&self) -> u64 {
        self.written + self.tail.len() as u64
    }

    /// Adds bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        if self.tail.len() + bytes.len() > BUFFER {
            let written = self.file.write_all(&self.tail).and_then(|()| self.file.write_all(bytes));
            written.map_err(|e| DataError::io(&self.folder, e))?;
            self.written += (self.tail.len() + bytes.len()) as u64;
            self.tail.clear();
        } else {
            self.tail.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Adds all that a reader gives.
    pub(crate) fn append_all(&mut self, mut from: impl Read) -> Result<(), DataError> {
        let mut piece = vec![0; BUFFER];
        loop {
            match from.read(&mut piece).map_err(|e| DataError::io(&self.folder, e))? {
                0 => return Ok(()),
                n => self.append(&piece[..n])?,
            }
        }
    }

    /// Returns the bytes from `at` on.
    pub(crate) fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = vec![0; length];
        let read = Reader { of: self, at }.read_exact(&mut bytes);
        read.map_err(|e| DataError::io(&self.folder, e))?;
        Ok(bytes)
    }

    /// Returns all bytes, from the first on.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { of: self, at: 0 }
    }

    /// Makes them a file with a name, whole or not at all.
    pub(crate) fn publish(&self, path: &Path) -> Result<(), DataError> {
        atomic::write(path, |file| io::copy(&mut self.reader(), file).map(|_| ()))
    }
}

/// Reads a [`Scratch`] in order.
pub(crate) struct Reader<'a> {
    of: &'a Scratch,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = match self.at.checked_sub(self.of.written) {
            Some(at) => self.of.tail.get(at as usize..).unwrap_or_default().read(buffer)?,
            None => {
                let left = (self.of.written - self.at).min(buffer.len() as u64) as usize;
                self.of.file.read_at(&mut buffer[..left], self.at)?
            }
        };
        self.at += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_read_anywhere() {
        let dir = tempfile::tempdir().expect("folder");
        let mut scratch = Scratch::new(&dir.path().join("new")).expect("a file");
        let mut expected = Vec::new();
        for i in 0..2000usize {
            let bytes = vec![i as u8; i % 97 * (1 + i / 1000 * 50)];
            scratch.append(&bytes).expect("appended");
            expected.extend(bytes);
        }
        assert_eq!(scratch.len(), expected.len() as u64);
        let mut all = Vec::new();
        scratch.reader().read_to_end(&mut all).expect("read");
        assert!(all == expected);
        for at in [0, 5, BUFFER - 1, expected.len() - 300] {
            assert_eq!(scratch.read(at as u64, 300).expect("read"), &expected[at..at + 300]);
        }
        assert!(scratch.read(expected.len() as u64 - 3, 4).is_err());
        let mut twice = Scratch::new(dir.path()).expect("a file");
        twice.append_all(scratch.reader()).expect("copied");
        twice.publish(&dir.path().join("named")).expect("published");
        assert!(std::fs::read(dir.path().join("named")).expect("there") == expected);
    }
}
