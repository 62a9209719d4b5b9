//! Finding audio files without leaving the data folder.

use std::cell::RefCell;
use std::path::{Component, Path, PathBuf};

use super::{EXTENSIONS, is_audio};
use crate::error::{DataError, short};

/// Folders that are remembered: nearly all lines of a listing name files of one or two.
const REMEMBERED: usize = 4;

/// The data folder.
pub(super) struct Root {
    pub(super) given: PathBuf,
    real: PathBuf,
    /// Folders that were asked for lately, and whether they lie in it; `None`: they do not exist.
    folders: RefCell<Vec<(PathBuf, Option<bool>)>>,
}

impl Root {
    pub(super) fn new(folder: &Path) -> Result<Self, DataError> {
        Ok(Self {
            given: folder.to_owned(),
            real: folder.canonicalize().map_err(|e| DataError::io(folder, e))?,
            folders: RefCell::default(),
        })
    }

    /// Returns the file that `name` means: the path itself or below `wavs/` or `wav/`, as written or, of a name without one, with an audio
    /// extension added.
    pub(super) fn audio(&self, name: &str) -> Result<PathBuf, String> {
        if name.is_empty() {
            return Err("no audio file named".into());
        }
        if name.contains('\0') {
            return Err("binary data in the audio path".into());
        }
        if Path::new(name).is_absolute() {
            let found = self.among([PathBuf::from(name)]).map(|found| found.path);
            return found.ok_or_else(|| "the audio file does not exist".into());
        }
        // Metadata written on Windows separates with backslashes; a file that really has one in its name goes first.
        let slashes = Some(name.replace('\\', "/")).filter(|other| other != name);
        for name in [Some(name), slashes.as_deref()].into_iter().flatten() {
            let path = Path::new(name);
            if path.components().any(|c| c == Component::ParentDir) {
                return Err(
                    "its path leads out of the data folder with `..`; give the absolute path if that is meant".into(),
                );
            }
            let candidates = ["", "wavs", "wav"].map(|folder| self.given.join(folder).join(path));
            if let Some(found) = self.among(candidates) {
                return self.has(&found).map(|()| found.path);
            }
        }
        let added = match is_audio(Path::new(name)) {
            true => String::new(),
            false => format!(", or either with .{}", EXTENSIONS.join(", .")),
        };
        let name = short(name);
        Err(format!("no such audio file ({name}, wavs/{name}{added})"))
    }

    fn among<const N: usize>(&self, candidates: [PathBuf; N]) -> Option<Found> {
        for path in candidates {
            if path.parent().is_none_or(|folder| self.holds(folder).is_none()) {
                continue;
            }
            let added = EXTENSIONS.iter().filter(|_| !is_audio(&path)).map(|extension| {
                let mut with = path.clone().into_os_string();
                with.push(".");
                with.push(extension);
                PathBuf::from(with)
            });
            let found = std::iter::once(path.clone()).chain(added).find_map(Found::at);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Returns whether a folder really lies in this one; `None` if it does not exist.
    fn holds(&self, folder: &Path) -> Option<bool> {
        let mut folders = self.folders.borrow_mut();
        if let Some((_, known)) = folders.iter().find(|(path, _)| path == folder) {
            return *known;
        }
        let holds = folder.canonicalize().ok().map(|real| real.starts_with(&self.real));
        folders.truncate(REMEMBERED - 1);
        folders.insert(0, (folder.to_owned(), holds));
        holds
    }

    /// Refuses a path that leads out of this folder. Links inside the folder may point around inside it, not out of it.
    pub(super) fn inside(&self, path: &Path) -> Result<(), String> {
        let is_link = path.symlink_metadata().map_or(true, |meta| meta.is_symlink());
        self.has(&Found { path: path.to_owned(), is_link })
    }

    /// Refuses a file that lies outside this folder. See [`Root::inside`].
    fn has(&self, found: &Found) -> Result<(), String> {
        let holds = match found.path.parent().filter(|_| !found.is_link) {
            Some(folder) => Ok(self.holds(folder).unwrap_or(false)),
            None => found.path.canonicalize().map(|real| real.starts_with(&self.real)),
        };
        match holds {
            Ok(true) => Ok(()),
            Ok(false) => Err("a link to outside the data folder; name the file by its absolute path".into()),
            Err(error) => Err(format!("cannot be opened ({error})")),
        }
    }
}

/// A file.
struct Found {
    path: PathBuf,
    is_link: bool,
}

impl Found {
    fn at(path: PathBuf) -> Option<Found> {
        let meta = path.symlink_metadata().ok()?;
        let is_link = meta.is_symlink();
        (meta.is_file() || (is_link && path.is_file())).then_some(Found { path, is_link })
    }
}
