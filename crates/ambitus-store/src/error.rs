//! The one error of this crate: which file, which tensor, what is wrong, what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Result with [`StoreError`].
pub type Result<T> = std::result::Result<T, StoreError>;

/// What went wrong with a file, for a person to act on.
#[derive(Debug)]
pub struct StoreError {
    /// The file or directory.
    pub path: PathBuf,
    /// The tensor (or key) in it, where the trouble has one.
    pub tensor: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What to do about it; empty if there is nothing to add.
    pub remedy: String,
    /// The operating system's error, if that is the cause.
    pub source: Option<io::Error>,
}

impl StoreError {
    pub(crate) fn new(path: &Path, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { path: path.into(), tensor: None, what: what.into(), remedy: remedy.into(), source: None }
    }

    pub(crate) fn io(path: &Path, doing: &str, source: io::Error) -> Self {
        let remedy = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space on this disk and try again"
            }
            io::ErrorKind::FileTooLarge => "raise the limit of file sizes (ulimit -f)",
            io::ErrorKind::PermissionDenied => "check the permissions of the file and its folder",
            io::ErrorKind::ReadOnlyFilesystem => "choose a folder that can be written",
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::UnexpectedEof => {
                "the file is shorter than when it was opened; fetch or write it again"
            }
            _ => "",
        };
        let what = format!("{doing}: {source}");
        Self { path: path.into(), tensor: None, what, remedy: remedy.into(), source: Some(source) }
    }

    /// Returns the error of a file that cannot be opened. What is not a file is wrong in itself, not a failure of the system.
    pub(crate) fn opening(path: &Path, e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::InvalidInput => {
                Self::new(path, e.to_string(), "put a file where this folder, pipe, device or link is")
            }
            _ => Self::io(path, "cannot open", e),
        }
    }

    pub(crate) fn of(mut self, tensor: &str) -> Self {
        self.tensor = Some(printable(tensor));
        self
    }

    /// Returns true if the operating system failed (disk full, unreadable sector, permission), false if the content is wrong.
    pub fn is_io(&self) -> bool {
        self.source.is_some()
    }

    /// Returns true if the disk, or the user's share of it, is full: the same may succeed later.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        self.source.as_ref().is_some_and(|e| matches!(e.kind(), StorageFull | QuotaExceeded))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if let Some(tensor) = &self.tensor {
            write!(f, "tensor `{tensor}`: ")?;
        }
        f.write_str(&self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

/// Returns a name from a file as it may be shown: control characters escaped, long ones cut.
pub(crate) fn printable(name: &str) -> String {
    const SHOWN: usize = 200;
    let mut shown: String = name.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}
