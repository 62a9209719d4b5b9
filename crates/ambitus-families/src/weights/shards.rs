//! A checkpoint's files of weights: one, or the shards that an index names.

use super::{FROZEN_FILES, LISTED, Weights, listed, read_text, say};
use crate::error::RunError;
use ambitus_store::TensorFile;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The file of a checkpoint in one file.
pub const SINGLE: &str = "model.safetensors";
/// The index of one in several.
pub const INDEX: &str = "model.safetensors.index.json";
/// The most bytes that an index of shards may have.
const MAX_INDEX_BYTES: u64 = 4 << 20;

/// An index of shards, as transformers writes it.
#[derive(Deserialize)]
struct Shards {
    /// The file of every tensor.
    weight_map: Places,
}

/// Tensor and file, as they stand: a map would hide a tensor that is named twice.
struct Places(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Places, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Places;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Places, A::Error> {
                let mut places = Vec::new();
                while let Some(place) = map.next_entry()? {
                    places.push(place);
                }
                Ok(Places(places))
            }
        }
        de.deserialize_map(Pairs)
    }
}

/// Opens the weights of a frozen model whose names stand behind `prefix`: `model.safetensors`, else the shards of its index, else
/// `pytorch_model.bin`. `remedy` is for when there is none.
///
/// # Errors
/// Says which files are looked for, and what is wrong with those that there are.
pub fn open_frozen(dir: &Path, prefix: &str, remedy: &str) -> Result<Weights, RunError> {
    let prefix = prefix.to_owned();
    if !dir.join(SINGLE).is_file() && dir.join(INDEX).is_file() {
        let path = dir.join(INDEX);
        return Ok(Weights { files: open_shards(dir, &path)?, prefix, path });
    }
    let names = FROZEN_FILES.map(|name| dir.join(name));
    let Some(path) = names.into_iter().find(|path| path.is_file()) else {
        let [first, last] = FROZEN_FILES;
        let why = format!("{}: no {first}, {INDEX} or {last} in this folder", dir.display());
        return Err(RunError::Model(format!("{why}; {remedy}")));
    };
    Ok(Weights { files: vec![TensorFile::open(&path)?], prefix, path })
}

/// Returns every shard that the index names.
///
/// # Errors
/// One message for all that is wrong with them.
pub fn open_shards(dir: &Path, index: &Path) -> Result<Vec<TensorFile>, RunError> {
    let text = read_text(index, MAX_INDEX_BYTES, "copy it from the checkpoint's own folder")?;
    let shards: Shards = serde_json::from_str(&text)
        .map_err(|e| RunError::Model(format!("{}: {e}; fetch it again", index.display())))?;
    let (mut by_shard, mut named) = (BTreeMap::<&str, Vec<&str>>::new(), BTreeMap::<&str, Vec<&str>>::new());
    for (tensor, shard) in &shards.weight_map.0 {
        by_shard.entry(shard).or_default().push(tensor);
        named.entry(tensor).or_default().push(shard);
    }
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    say(&mut problems, "tensors twice in the index", several(&named));
    for (shard, tensors) in &by_shard {
        let plain =
            Path::new(shard).components().count() == 1 && !shard.contains(['/', '\\']) && *shard != "..";
        if !plain {
            problems.push(format!("`{}` is not a file of this folder", shard.escape_debug()));
            continue;
        }
        let path: PathBuf = dir.join(shard);
        if !path.is_file() {
            let names: Vec<String> = tensors.iter().map(|t| (*t).to_owned()).collect();
            problems.push(format!(
                "{shard} is missing, which holds {} tensors: {}",
                names.len(),
                listed(&names)
            ));
            continue;
        }
        match TensorFile::open(&path) {
            Err(e) => problems.push(e.to_string()),
            Ok(file) => {
                let absent = tensors.iter().filter(|t| !file.contains(t)).map(|t| (*t).to_owned()).collect();
                say(&mut problems, &format!("tensors missing from {shard}"), absent);
                files.push((*shard, file));
            }
        }
    }
    let mut holders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (shard, file) in &files {
        for tensor in file.tensors() {
            holders.entry(tensor.name()).or_default().push(shard);
        }
    }
    say(&mut problems, "tensors in two shards", several(&holders));
    if problems.is_empty() {
        return Ok(files.into_iter().map(|(_, file)| file).collect());
    }
    if let Some(more) = problems.len().checked_sub(LISTED).filter(|more| *more > 0) {
        problems.truncate(LISTED);
        problems.push(format!("and {more} more"));
    }
    Err(RunError::Model(format!(
        "{}: does not fit its shards:\n  {}\nfetch the folder again, whole: shards and index of one checkpoint",
        index.display(),
        problems.join("\n  ")
    )))
}

/// Returns those tensors that are in more than one place, with the places.
fn several(places: &BTreeMap<&str, Vec<&str>>) -> Vec<String> {
    let twice = places.iter().filter(|(_, shards)| shards.len() > 1);
    twice.map(|(tensor, shards)| format!("{tensor} (in {})", shards.join(" and "))).collect()
}
