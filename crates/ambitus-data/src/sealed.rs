//! Prepared files: a magic number and a key, a header of counts and measurements, what was prepared, and a checksum (blake3) of all
//! that. Little-endian. A file's length follows from its header, so one of another length is refused before anything is made of it.

use std::io::{Read, Write};
use std::path::Path;

use crate::atomic;
use crate::error::DataError;
use crate::files;
use crate::measured::Measured;

const CHECKSUM: usize = 32;
/// Bytes of magic number and key.
pub(crate) const BEGINNING: usize = 8 + 32;
/// Bytes of what was measured, without its flags.
pub(crate) const MEASURED: usize = 8 + 4 + 4;

/// A kind of file.
pub(crate) struct Kind {
    pub(crate) magic: &'static [u8; 8],
    /// For people: `token clip`.
    pub(crate) name: &'static str,
    /// Bytes before what was prepared, with magic number and key.
    pub(crate) header: usize,
    /// Longest file, bytes.
    pub(crate) most: u64,
}

impl Kind {
    /// Begins a file that holds `bytes` bytes after its header.
    pub(crate) fn begin(&self, key: &[u8; 32], bytes: usize) -> Vec<u8> {
        let mut file = Vec::with_capacity(self.header + bytes + CHECKSUM);
        file.extend_from_slice(self.magic);
        file.extend_from_slice(key);
        file
    }

    /// Ends a file and saves it, whole or not at all.
    pub(crate) fn save(&self, path: &Path, mut bytes: Vec<u8>) -> Result<(), DataError> {
        if (bytes.len() + CHECKSUM) as u64 > self.most {
            let reason =
                format!("{} bytes would be in it; a {} has {} at most", bytes.len(), self.name, self.most);
            return Err(DataError::file(path, reason));
        }
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        atomic::write(path, |file| file.write_all(&bytes))
    }

    /// Returns a file's bytes without the checksum, once length and checksum are right. `length`: bytes after the header, as it says.
    pub(crate) fn read(&self, path: &Path, length: impl Fn(&[u8]) -> u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = files::read_bytes(path, self.most)?;
        self.check(path, &bytes, bytes.len() as u64, length)?;
        let checksum = bytes.split_off(bytes.len() - CHECKSUM);
        if blake3::hash(&bytes).as_bytes()[..] != checksum {
            return Err(self.damaged(path, "wrong checksum"));
        }
        Ok(bytes)
    }

    /// Returns a file's bytes up to what was prepared, once the length is right. `length`: bytes after these, as they say.
    pub(crate) fn header(&self, path: &Path, length: impl Fn(&[u8]) -> u64) -> Result<Vec<u8>, DataError> {
        let (file, bytes) = files::open(path)?;
        let mut header = Vec::with_capacity(self.header);
        file.take(self.header as u64).read_to_end(&mut header).map_err(|e| DataError::io(path, e))?;
        self.check(path, &header, bytes, length)?;
        Ok(header)
    }

    /// Checks the length of a file of `bytes` bytes by its beginning.
    fn check(
        &self,
        path: &Path,
        begins: &[u8],
        bytes: u64,
        length: impl Fn(&[u8]) -> u64,
    ) -> Result<(), DataError> {
        let around = (self.header + CHECKSUM) as u64;
        if begins.len() < self.header || bytes < around || !begins.starts_with(self.magic) {
            return Err(self.damaged(path, &format!("not a {}", self.name)));
        }
        match length(begins).checked_add(around) == Some(bytes) {
            true => Ok(()),
            false => Err(self.damaged(path, "wrong length")),
        }
    }

    /// Returns the error of a file that is not as it was written.
    pub(crate) fn damaged(&self, path: &Path, what: &str) -> DataError {
        let reason = format!("damaged {} ({what}); delete it and run `prepare` again", self.name);
        DataError::file(path, reason)
    }
}

/// Returns a file's key.
pub(crate) fn key(bytes: &[u8]) -> [u8; 32] {
    array(bytes, 8)
}

/// Returns the bytes from `at` on, which are inside the header.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many as that")
}

/// Returns the number at a place of the header.
pub(crate) fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// Appends numbers.
pub(crate) fn put(file: &mut Vec<u8>, numbers: impl IntoIterator<Item = u32>) {
    numbers.into_iter().for_each(|n| file.extend_from_slice(&n.to_le_bytes()));
}

/// Returns all numbers.
pub(crate) fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b))
}

impl Measured {
    /// Returns what is a yes or no.
    pub(crate) fn flags(&self) -> u32 {
        u32::from(self.clipped) | u32::from(self.trimmed) << 1
    }

    /// Appends the rest.
    pub(crate) fn put(&self, file: &mut Vec<u8>) {
        file.extend_from_slice(&self.seconds.to_le_bytes());
        put(file, [self.rms, self.peak].map(f32::to_bits));
    }

    /// Returns what is at a place of the header, with these flags.
    pub(crate) fn at(bytes: &[u8], at: usize, flags: u32) -> Self {
        Self {
            seconds: f64::from_le_bytes(array(bytes, at)),
            rms: f32::from_bits(number(bytes, at + 8)),
            peak: f32::from_bits(number(bytes, at + 12)),
            clipped: flags & 1 != 0,
            trimmed: flags & 2 != 0,
            edited: None,
        }
    }
}
