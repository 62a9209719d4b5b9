//! Rows that are found by name. They are on disk; in memory is where.

use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::DataError;
use crate::scratch::Scratch;

/// Rows of a kind.
pub(super) struct Named<R> {
    folder: PathBuf,
    records: Scratch,
    places: Vec<Place>,
    hasher: RandomState,
    row: PhantomData<fn() -> R>,
}

struct Place {
    /// Of the name.
    hash: u64,
    at: u64,
    length: u32,
}

/// Bytes of memory for each row, in a vector that grows by doubling.
const ROW: u64 = 2 * size_of::<Place>() as u64;

impl<R: Serialize + DeserializeOwned> Named<R> {
    /// Returns no rows, for which there is a file without a name in the folder `scratch`.
    pub(super) fn new(scratch: &Path) -> Result<Self, DataError> {
        let (records, hasher) = (Scratch::new(scratch)?, RandomState::new());
        Ok(Self { folder: scratch.to_owned(), records, places: Vec::new(), hasher, row: PhantomData })
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the bytes of memory that are taken.
    pub(super) fn bytes(&self) -> u64 {
        ROW * self.len() as u64
    }

    /// Adds a row.
    pub(super) fn add(&mut self, name: &str, row: &R) -> Result<(), DataError> {
        let hash = self.hasher.hash_one(name);
        let json = serde_json::to_vec(&(name, row)).map_err(|e| DataError::io(&self.folder, e.into()))?;
        self.places.push(Place { hash, at: self.records.len(), length: json.len() as u32 });
        self.records.append(&json)
    }

    /// Puts all rows into the order in which they are found, once they are there.
    pub(super) fn sort(&mut self) {
        self.places.sort_by_key(|place| place.hash);
    }

    /// Returns the row of a name, and its place among all; the first that was added, if there are several.
    pub(super) fn find(&self, name: &str) -> Result<Option<(usize, R)>, DataError> {
        let hash = self.hasher.hash_one(name);
        let from = self.places.partition_point(|place| place.hash < hash);
        let same = self.places[from..].iter().take_while(|place| place.hash == hash).count();
        for at in from..from + same {
            let (other, row) = self.row(at)?;
            if other == name {
                return Ok(Some((at, row)));
            }
        }
        Ok(None)
    }

    /// Returns the name and the row at a place.
    pub(super) fn row(&self, at: usize) -> Result<(String, R), DataError> {
        let place = &self.places[at];
        let bytes = self.records.read(place.at, place.length as usize)?;
        serde_json::from_slice(&bytes).map_err(|e| DataError::io(&self.folder, e.into()))
    }
}
