//! Where bytes lie between runs, and the one way in which transfers reach them: byte ranges, whatever the elements.

use super::arena::Arena;
use super::disk::Disk;
use crate::executor::ExecError;
use std::path::Path;

/// Stretches of bytes at offsets.
pub(super) trait Bytes {
    /// Reads the bytes from `at` on.
    fn get(&self, at: u64, out: &mut [u8]);
    /// Writes bytes from `at` on.
    fn put(&mut self, at: u64, data: &[u8]);
}

impl Bytes for Arena {
    fn get(&self, at: u64, out: &mut [u8]) {
        out.copy_from_slice(self.raw(at, out.len()));
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        self.raw_mut(at, data.len()).copy_from_slice(data);
    }
}

impl Bytes for Disk {
    fn get(&self, at: u64, out: &mut [u8]) {
        self.fetch(at, out);
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        self.store(at, data);
    }
}

/// The host arena.
#[derive(Debug)]
pub(super) enum Host {
    /// In this process's memory.
    Memory(Arena),
    /// In a file.
    File(Disk),
}

impl Host {
    /// Reserves `bytes` in a file of `folder`, or in memory.
    ///
    /// # Errors
    /// When the system refuses the memory, or the disk the file.
    pub fn new(bytes: u64, folder: Option<&Path>) -> Result<Host, ExecError> {
        Ok(match folder {
            Some(folder) => Host::File(Disk::new(folder, bytes)?),
            None => Host::Memory(Arena::new(bytes)?),
        })
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &dyn Bytes {
        match self {
            Host::Memory(arena) => arena,
            Host::File(disk) => disk,
        }
    }

    /// Returns its bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut dyn Bytes {
        match self {
            Host::Memory(arena) => arena,
            Host::File(disk) => disk,
        }
    }

    /// For a run: the first byte, of what is in memory, or the file.
    pub fn running(&mut self) -> (*mut u8, Option<&Disk>) {
        match self {
            Host::Memory(arena) => (arena.base(), None),
            Host::File(disk) => (std::ptr::null_mut(), Some(disk)),
        }
    }

    /// What went wrong since it was opened.
    ///
    /// # Errors
    /// The first failed copy.
    pub fn check(&self) -> Result<(), ExecError> {
        match self {
            Host::Memory(_) => Ok(()),
            Host::File(disk) => disk.check(),
        }
    }
}
