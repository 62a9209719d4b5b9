//! Finding audio files without leaving the data folder.

use std::path::{Component, Path, PathBuf};

use super::EXTENSIONS;
use crate::error::{DataError, short};

/// The data folder.
pub(super) struct Root {
    pub(super) given: PathBuf,
    real: PathBuf,
}

impl Root {
    pub(super) fn new(folder: &Path) -> Result<Self, DataError> {
        Ok(Self {
            given: folder.to_owned(),
            real: folder.canonicalize().map_err(|e| DataError::io(folder, e))?,
        })
    }

    /// The file that `name` means: the path itself or below `wavs/`, as written or with an audio extension added.
    pub(super) fn audio(&self, name: &str) -> Result<PathBuf, String> {
        if name.is_empty() {
            return Err("no audio file named".into());
        }
        if name.contains('\0') {
            return Err("binary data in the audio path".into());
        }
        if Path::new(name).is_absolute() {
            return Self::among([PathBuf::from(name)].into_iter())
                .ok_or_else(|| "the audio file does not exist".into());
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
            let candidates = [self.given.join(path), self.given.join("wavs").join(path)];
            if let Some(found) = Self::among(candidates.into_iter()) {
                return self.inside(&found).map(|()| found);
            }
        }
        let name = short(name);
        Err(format!("no such audio file ({name}, wavs/{name}, or either with .{})", EXTENSIONS.join(", .")))
    }

    fn among(candidates: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
        for path in candidates {
            if path.is_file() {
                return Some(path);
            }
            for extension in EXTENSIONS {
                let mut with = path.clone().into_os_string();
                with.push(".");
                with.push(extension);
                if Path::new(&with).is_file() {
                    return Some(with.into());
                }
            }
        }
        None
    }

    /// Links inside the folder may point around inside it, not out of it.
    pub(super) fn inside(&self, path: &Path) -> Result<(), String> {
        match path.canonicalize() {
            Ok(real) if real.starts_with(&self.real) => Ok(()),
            Ok(_) => Err("a link to outside the data folder; name the file by its absolute path".into()),
            Err(error) => Err(format!("cannot be opened ({error})")),
        }
    }
}
