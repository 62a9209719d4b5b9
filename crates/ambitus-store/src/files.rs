//! Opens files that a user or another file named: only regular ones, without ever waiting, and reading at most what was asked
//! for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::disk::{RealDisk, create_temp, publish, temp_path};
use crate::{Result, StoreError, Written};

/// Bytes copied or hashed at a time.
const CHUNK: usize = 1 << 16;

/// Whether a link in place of the file is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Refuse,
}

/// What is wrong with a pipe, device, socket, folder or refused link.
const NOT_A_FILE: &str = "is not a file";

/// Opens a regular file, with its length. It is looked at before it is opened, since to open a pipe is to wait for its other
/// end and to open a device may do something; and again after, since it may have been swapped in between.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions, links: Links) -> io::Result<(File, u64)> {
    let other = || io::Error::new(io::ErrorKind::InvalidInput, NOT_A_FILE);
    let (look, flags): (fn(&Path) -> io::Result<fs::Metadata>, _) = match links {
        Links::Follow => (|path| fs::metadata(path), 0),
        Links::Refuse => (|path| fs::symlink_metadata(path), libc::O_NOFOLLOW),
    };
    match look(path) {
        Ok(meta) if !meta.is_file() => return Err(other()),
        // It may be about to be made.
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = options
        .custom_flags(flags | libc::O_NONBLOCK)
        .open(path)
        .map_err(|e| if e.raw_os_error() == Some(libc::ELOOP) { other() } else { e })?;
    let meta = file.metadata()?;
    if meta.is_file() { Ok((file, meta.len())) } else { Err(other()) }
}

/// Opens a regular file for reading, with its length in bytes. Links are followed.
///
/// # Errors
/// Pipes, devices and folders; a file that is missing or may not be read.
pub fn open_file(path: impl AsRef<Path>) -> Result<(File, u64)> {
    let path = path.as_ref();
    open_regular(path, OpenOptions::new().read(true), Links::Follow).map_err(|e| StoreError::opening(path, e))
}

/// Opens a file of our own for reading and writing, made where it is missing. A link is refused: it could lead anywhere.
///
/// # Errors
/// Links, pipes, devices and folders; a file that may not be written.
pub fn open_own_file(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    let mut options = OpenOptions::new();
    let opened =
        open_regular(path, options.read(true).write(true).create(true).truncate(false), Links::Refuse);
    opened.map(|(file, _)| file).map_err(|e| StoreError::opening(path, e))
}

/// Returns a whole regular file of at most `most` bytes.
///
/// # Errors
/// As [`open_file`]; more bytes than that.
pub fn read_file(path: impl AsRef<Path>, most: u64) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let (file, len) = open_bounded(path, most)?;
    let mut bytes = Vec::with_capacity(len as usize);
    // It may grow while it is read, and files of the system do not tell their length.
    file.take(most + 1).read_to_end(&mut bytes).map_err(|e| StoreError::io(path, "cannot read", e))?;
    if bytes.len() as u64 > most { Err(too_long(path, bytes.len() as u64, most)) } else { Ok(bytes) }
}

/// Returns whether a file may be put at this path: nothing is there, or a regular file. A link counts as what it leads to.
pub fn takes_a_file(path: impl AsRef<Path>) -> bool {
    fs::metadata(path).map_or(true, |there| there.is_file())
}

/// Copies a regular file of at most `most` bytes in small pieces; the copy appears whole or not at all, and only if `accept`
/// takes its BLAKE3 (lower-case hex) and does not say what is wrong with it. Gives length and hash.
///
/// # Errors
/// As [`read_file`]; what `accept` says; a copy that cannot be written.
pub fn copy_file(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    most: u64,
    accept: impl FnOnce(&str) -> std::result::Result<(), String>,
) -> Result<Written> {
    let to = to.as_ref();
    let temp = temp_path(to)?;
    let copy = || {
        let mut file = create_temp(&RealDisk, &temp)?;
        let (bytes, blake3) = stream(from.as_ref(), most, |piece| {
            file.write_all(piece).map_err(|e| StoreError::io(to, "cannot write", e))
        })?;
        accept(&blake3).map_err(|what| StoreError::new(from.as_ref(), what, ""))?;
        file.sync().map_err(|e| StoreError::io(to, "cannot flush to disk", e))?;
        drop(file);
        publish(&RealDisk, &temp, to)?;
        Ok(Written { path: to.into(), bytes, blake3 })
    };
    copy().inspect_err(|_| drop(fs::remove_file(&temp)))
}

fn open_bounded(path: &Path, most: u64) -> Result<(File, u64)> {
    let (file, len) = open_file(path)?;
    if len > most { Err(too_long(path, len, most)) } else { Ok((file, len)) }
}

fn too_long(path: &Path, len: u64, most: u64) -> StoreError {
    StoreError::new(
        path,
        format!("has {len} bytes, more than the {most} that are read"),
        "check that it is the right file",
    )
}

/// Hands a file to `take` in pieces, and gives its length and BLAKE3.
fn stream(path: &Path, most: u64, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<(u64, String)> {
    let (file, _) = open_bounded(path, most)?;
    let (mut file, mut hash) = (file.take(most + 1), blake3::Hasher::new());
    let (mut chunk, mut read) = ([0; CHUNK], 0);
    loop {
        let n = match file.read(&mut chunk) {
            Ok(0) => return Ok((read, hash.finalize().to_hex().to_string())),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(StoreError::io(path, "cannot read", e)),
        };
        read += n as u64;
        if read > most {
            return Err(too_long(path, read, most));
        }
        hash.update(&chunk[..n]);
        take(&chunk[..n])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn pipe(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo runs").success());
    }

    /// A rename would put the file there, and root may rename over devices.
    #[test]
    fn nothing_but_a_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        pipe(&at("pipe"));
        symlink(at("pipe"), at("to-pipe")).unwrap();
        fs::write(at("file"), "old").unwrap();
        for path in [at("pipe"), at("to-pipe"), dir.path().to_owned()] {
            for e in [
                crate::write_atomic(&path, b"new").unwrap_err(),
                copy_file(at("file"), &path, 9, |_| Ok(())).unwrap_err(),
                crate::SafetensorsWriter::create(&path, Vec::new(), &Default::default())
                    .map(drop)
                    .unwrap_err(),
            ] {
                assert!(e.to_string().contains("a folder, device or pipe is there"), "{e}");
            }
        }
        assert!(
            !fs::metadata(at("pipe")).unwrap().is_file() && fs::read_dir(dir.path()).unwrap().count() == 3
        );
        crate::write_atomic(at("file"), b"new").unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
    }

    #[test]
    fn pipes_devices_and_folders_are_no_files_and_nobody_waits() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        pipe(&at("pipe"));
        symlink("/dev/zero", at("zero")).unwrap();
        symlink(at("pipe"), at("to-pipe")).unwrap();
        for path in [at("pipe"), at("zero"), at("to-pipe"), dir.path().to_owned(), "/dev/zero".into()] {
            for e in [
                open_file(&path).map(drop).unwrap_err(),
                read_file(&path, 100).map(drop).unwrap_err(),
                open_own_file(&path).map(drop).unwrap_err(),
                crate::TensorFile::open(&path).map(drop).unwrap_err(),
            ] {
                assert!(!e.is_io() && e.to_string().contains(NOT_A_FILE), "{e}");
            }
        }
        let e = open_file(at("none")).map(drop).unwrap_err();
        assert!(e.is_io() && e.to_string().contains("check the path"), "{e}");
    }

    #[test]
    fn a_file_of_our_own_is_made_and_never_reached_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (own, link, other) = (dir.path().join("own"), dir.path().join("link"), dir.path().join("other"));
        open_own_file(&own).unwrap().write_all(b"abc").unwrap();
        open_own_file(&own).unwrap().write_all(b"x").unwrap();
        assert_eq!(read_file(&own, 3).unwrap(), b"xbc");
        symlink(&other, &link).unwrap();
        assert!(open_own_file(&link).is_err() && !other.exists());
        symlink(&own, dir.path().join("to-own")).unwrap();
        assert!(open_own_file(dir.path().join("to-own")).is_err());
        assert_eq!(read_file(dir.path().join("to-own"), 3).unwrap(), b"xbc");
    }

    #[test]
    fn no_more_is_read_than_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let (big, copy) = (dir.path().join("big"), dir.path().join("copy"));
        fs::write(&copy, "old").unwrap();
        // A hole of 3 GiB.
        File::create(&big).unwrap().set_len(3 << 30).unwrap();
        for e in [read_file(&big, 1 << 20).map(drop), copy_file(&big, &copy, 1 << 20, |_| Ok(())).map(drop)] {
            assert!(e.unwrap_err().to_string().contains("3221225472 bytes, more than the 1048576"));
        }
        assert_eq!(fs::read(&copy).unwrap(), b"old");
        // A file of the system has no length that one could go by.
        assert!(!read_file("/proc/self/status", 1 << 16).unwrap().is_empty());
        assert!(read_file("/proc/self/status", 10).is_err());
    }

    #[test]
    fn a_copy_is_whole_and_accepted_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let bytes: Vec<u8> = (0..3 * CHUNK + 5).map(|i| i as u8).collect();
        fs::write(&from, &bytes).unwrap();
        let refused = copy_file(&from, &to, 1 << 20, |_| Err("is another".to_owned()));
        assert!(refused.is_err() && fs::read_dir(dir.path()).unwrap().count() == 1);
        let copy = copy_file(&from, &to, 1 << 20, |_| Ok(())).unwrap();
        assert_eq!(
            (copy.bytes, copy.blake3.as_str()),
            (bytes.len() as u64, blake3::hash(&bytes).to_hex().as_str())
        );
        assert_eq!(fs::read(&to).unwrap(), bytes);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
