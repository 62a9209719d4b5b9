//! The data sets that are read as one.

use std::path::{Path, PathBuf};

/// A folder or a metadata file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSet {
    /// Where it lies.
    pub path: PathBuf,
    /// What stands before the names of its clips, `NAME/clip.wav`; without, they are as written.
    pub name: Option<String>,
    /// The voice of those of its clips that name none.
    pub voice: Option<String>,
}

/// One data set, or several with names of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sets(Vec<DataSet>);

impl Sets {
    /// Returns these; of more than one, each has another name.
    pub fn new(sets: Vec<DataSet>) -> Sets {
        Sets(sets)
    }

    /// Returns each.
    pub fn iter(&self) -> std::slice::Iter<'_, DataSet> {
        self.0.iter()
    }

    /// Returns the only one that there is.
    pub fn single(&self) -> Option<&DataSet> {
        let [one] = &*self.0 else { return None };
        Some(one)
    }

    /// Returns all paths, for messages.
    pub fn path(&self) -> PathBuf {
        match &*self.0 {
            [one] => one.path.clone(),
            all => all.iter().map(|set| set.path.to_string_lossy()).collect::<Vec<_>>().join(", ").into(),
        }
    }
}

impl From<&Path> for Sets {
    fn from(path: &Path) -> Sets {
        Sets(vec![DataSet { path: path.to_owned(), name: None, voice: None }])
    }
}

impl From<&PathBuf> for Sets {
    fn from(path: &PathBuf) -> Sets {
        path.as_path().into()
    }
}

impl From<&Sets> for Sets {
    fn from(sets: &Sets) -> Sets {
        sets.clone()
    }
}
