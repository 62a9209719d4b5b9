//! Parquet in a build without it: an error that says how to build with it.

use std::path::Path;

use super::beside::Rows;
use super::listing::Lister;
use crate::audio::AudioInput;
use crate::error::DataError;

/// Returns what every parquet file is answered with.
pub(crate) fn refusal(file: &Path) -> DataError {
    DataError::file(file, REASON)
}

const REASON: &str = "this build does not read parquet files; build it with the feature `parquet`: \
                      cargo build --release --features parquet";

pub(super) fn read(file: &Path, _: &mut Lister) -> Result<(), DataError> {
    Err(refusal(file))
}

pub(super) fn rows(file: &Path, _: u64) -> Result<(Box<dyn Rows>, u64), DataError> {
    Err(refusal(file))
}

/// Never holds a row.
#[derive(Default)]
pub(super) struct AudioRows;

impl AudioRows {
    pub(super) fn audio(&mut self, _: &Path, _: u64) -> Result<AudioInput, String> {
        Err(REASON.into())
    }
}

/// A tokenised row.
pub(crate) struct TokenRow {
    pub(crate) ids: Vec<i64>,
    pub(crate) labels: Option<Vec<i64>>,
    pub(crate) mask: Option<Vec<i64>>,
}

/// Never opens.
pub(crate) struct TokenRows;

impl TokenRows {
    pub(crate) fn open(file: &Path, _: u64) -> Result<Option<Self>, DataError> {
        Err(refusal(file))
    }

    pub(crate) fn rows(&self) -> u64 {
        0
    }

    pub(crate) fn bytes(&self) -> u64 {
        0
    }

    pub(crate) fn next(&mut self) -> Result<TokenRow, String> {
        Err(REASON.into())
    }
}
