//! Which files of a folder describe its clips.

use std::path::{Path, PathBuf};

use super::corrections::CORRECTIONS_FILE;
use crate::error::DataError;

/// Returns the metadata files of a folder; none means that the audio files speak for themselves.
pub(super) fn metadata_in(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).map_err(|e| DataError::io(folder, e))? {
        let path = item.map_err(|e| DataError::io(folder, e))?.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        let corrects = path.file_name().is_some_and(|name| name == CORRECTIONS_FILE);
        if matches!(extension, "csv" | "jsonl") && !corrects && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    let named = |name: &str| found.iter().find(|p| p.file_name().is_some_and(|n| n == name)).cloned();
    if let Some(one) = named("metadata.csv").or_else(|| named("metadata.jsonl")) {
        return Ok(vec![one]);
    }
    // AllTalk writes its own split; both halves are the data set, and `split_described` holds one of them out.
    if let (Some(train), Some(eval)) = (named("metadata_train.csv"), named("metadata_eval.csv")) {
        return Ok(vec![train, eval]);
    }
    if found.is_empty() {
        return parquet_files(folder);
    }
    if found.len() > 1 {
        let names: Vec<_> = found.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy()).collect();
        return Err(DataError::file(
            folder,
            format!("several metadata files ({}); give the one to use as the data path", names.join(", ")),
        ));
    }
    Ok(found)
}

/// Returns whether a file's name says that it is parquet.
pub(crate) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "parquet")
}

/// Returns the parquet files of a folder, sorted, all of one split: `train-00003-of-00007.parquet` is a part of `train`.
pub(crate) fn parquet_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).map_err(|e| DataError::io(folder, e))? {
        let path = item.map_err(|e| DataError::io(folder, e))?.path();
        if is_parquet(&path) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    let split = |path: &PathBuf| -> String {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let numbers = |part: &str| part.chars().all(|c| c.is_ascii_digit());
        let parts: Vec<&str> = stem.rsplitn(4, '-').collect();
        match parts[..] {
            [of, "of", part, name] if numbers(of) && numbers(part) => name.to_owned(),
            _ => stem.into_owned(),
        }
    };
    let mut splits: Vec<String> = found.iter().map(split).collect();
    splits.dedup();
    if splits.len() > 1 {
        let reason = format!(
            "parquet files of several splits ({}); give the file to use as the data path, or a folder with one split",
            splits.join(", ")
        );
        return Err(DataError::file(folder, reason));
    }
    Ok(found)
}
