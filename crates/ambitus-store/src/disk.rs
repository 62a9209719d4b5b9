//! Every file operation of the save path, behind one trait, and the atomic write built from them.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::files::{Links, open_regular, takes_a_file};
use crate::{Result, StoreError};

/// A file being written. Bytes count as saved only after `sync` has returned `Ok`.
pub trait DiskFile: Write + Send {
    /// Flushes content and length to the device (fsync).
    fn sync(&mut self) -> io::Result<()>;
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// File name without the directory.
    pub name: OsString,
    /// True for a directory (a link to one is not).
    pub is_dir: bool,
}

/// The file system as the save path sees it.
pub trait Disk: Send + Sync {
    /// Creates a file that must not exist.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a regular file for reading from its start; with its length in bytes.
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read>, u64)>;
    /// Returns the entries of a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;
    /// Creates a directory that must not exist.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Renames, replacing a file that is in the way.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file or link.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Flushes a directory's entries to the device.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl DiskFile for fs::File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(fs::File::options().write(true).create_new(true).open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read>, u64)> {
        let (file, len) = open_regular(path, fs::File::options().read(true), Links::Refuse)?;
        Ok((Box::new(file), len))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        fs::read_dir(dir)?
            .map(|e| e.and_then(|e| Ok(Entry { name: e.file_name(), is_dir: e.file_type()?.is_dir() })))
            .collect()
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }
}

/// Replaces `path` by `bytes`, or leaves it as it was: after `Ok` the new content survives a power loss, after `Err`
/// or a kill the file holds all of the old content or all of the new.
pub fn write_atomic(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    write_atomic_on(&RealDisk, path.as_ref(), bytes)
}

/// Replaces `path` by what `fill` writes, or leaves it as it was. See [`write_atomic`].
///
/// # Errors
/// From the disk, and from `fill`.
pub fn write_atomic_with<E: From<StoreError>>(
    path: impl AsRef<Path>,
    fill: impl FnOnce(&mut dyn Write) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let (disk, path) = (&RealDisk, path.as_ref());
    let temp = temp_path(path)?;
    let write = || {
        let mut file = io::BufWriter::new(create_temp(disk, &temp)?);
        fill(&mut file)?;
        let mut file = file.into_inner().map_err(|e| StoreError::io(path, "cannot write", e.into_error()))?;
        file.sync().map_err(|e| StoreError::io(path, "cannot flush to disk", e))?;
        drop(file);
        Ok(publish(disk, &temp, path)?)
    };
    write().inspect_err(|_| drop(disk.remove_file(&temp)))
}

/// Writes a file on the given disk. See [`write_atomic`].
pub fn write_atomic_on(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    let temp = temp_path(path)?;
    let write = || {
        let mut file = create_temp(disk, &temp)?;
        file.write_all(bytes).map_err(|e| StoreError::io(path, "cannot write", e))?;
        file.sync().map_err(|e| StoreError::io(path, "cannot flush to disk", e))?;
        drop(file);
        publish(disk, &temp, path)
    };
    write().inspect_err(|_| drop(disk.remove_file(&temp)))
}

/// Creates the temporary file, in place of a stale one of a killed process.
pub(crate) fn create_temp(disk: &dyn Disk, temp: &Path) -> Result<Box<dyn DiskFile>> {
    let cannot = |e| StoreError::io(temp, "cannot create", e);
    match disk.create(temp) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            disk.remove_file(temp)
                .map_err(|e| StoreError::io(temp, "cannot remove a stale temporary file", e))?;
            disk.create(temp).map_err(cannot)
        }
        made => made.map_err(cannot),
    }
}

/// Gives a synced temporary file its name, durably.
pub(crate) fn publish(disk: &dyn Disk, temp: &Path, path: &Path) -> Result<()> {
    disk.rename(temp, path).map_err(|e| StoreError::io(path, "cannot rename into place", e))?;
    disk.sync_dir(parent_of(path)).map_err(|e| StoreError::io(path, "cannot flush the folder to disk", e))
}

/// Returns `.name.tmp` next to `path`: the same directory, since a rename is atomic only within a file system. It would also take
/// the place of a device or a pipe, which is refused.
pub(crate) fn temp_path(path: &Path) -> Result<PathBuf> {
    let name =
        path.file_name().ok_or_else(|| StoreError::new(path, "is not a file name", "give a file name"))?;
    if !takes_a_file(path) {
        let other = io::Error::new(io::ErrorKind::InvalidInput, "a folder, device or pipe is there");
        return Err(StoreError::io(path, "cannot be written", other));
    }
    let mut temp = OsString::from(".");
    temp.push(name);
    temp.push(".tmp");
    Ok(path.with_file_name(temp))
}

/// Returns the directory that holds `path`; `.` for a bare name.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Removes a directory with all that is in it; what links lead to stays.
pub(crate) fn remove_dir_all(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let fail = |e| StoreError::io(dir, "cannot remove", e);
    for entry in disk.list(dir).map_err(fail)? {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            remove_dir_all(disk, &path)?;
        } else {
            disk.remove_file(&path).map_err(fail)?;
        }
    }
    disk.remove_dir(dir).map_err(fail)
}
