//! The list of prepared clips, and its split into training and validation.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::atomic;
use crate::clip::Measured;
use crate::error::DataError;
use crate::files;

/// Largest index file, bytes: about a million clips.
const MAX_BYTES: u64 = 512 << 20;

/// One usable clip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipMeta {
    /// Name, unique in the index: the audio's path as the metadata gives it.
    pub name: String,
    /// Length in the model's sequence, which is what packing counts: frames N of the mel, or of a token clip all its ids.
    pub frames: u32,
    /// Tokens Nt of the text.
    pub tokens: u32,
    /// Measured of the audio.
    pub measured: Measured,
    /// Clip file, relative to the index's folder.
    pub file: String,
    /// Content key (hex): changes with audio, text, tokenizer or mel.
    pub key: String,
}

/// Usable clips sorted by name. Can be read without the audio.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipIndex {
    /// Clips in order of their names.
    pub clips: Vec<ClipMeta>,
    /// Where the clip files lie.
    #[serde(skip)]
    pub folder: PathBuf,
}

impl ClipIndex {
    /// Path of clip `i`'s file, for [`load_clip`](crate::load_clip) or [`load_token_clip`](crate::speech::load_token_clip).
    pub fn path(&self, i: usize) -> PathBuf {
        self.folder.join(&self.clips[i].file)
    }

    /// Length of every clip in the model's sequence: frames, or ids of token clips.
    pub fn frames(&self) -> Vec<u32> {
        self.clips.iter().map(|c| c.frames).collect()
    }

    /// Total length, seconds.
    pub fn seconds(&self) -> f64 {
        self.clips.iter().map(|c| c.measured.seconds).sum()
    }

    /// Changes with any clip's content or name: two runs with the same digest train on the same data.
    pub fn digest(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for clip in &self.clips {
            hash.update(&(clip.name.len() as u64).to_le_bytes());
            hash.update(clip.name.as_bytes());
            hash.update(clip.key.as_bytes());
        }
        hash.finalize().to_hex().to_string()
    }

    /// Writes the index as JSON; the file appears whole or not at all.
    pub fn save(&self, path: &Path) -> Result<(), DataError> {
        atomic::write(path, |file| {
            serde_json::to_writer(&mut *file, self)?;
            file.write_all(b"\n")
        })
    }

    /// Reads an index; its clip files lie in the same folder.
    pub fn load(path: &Path) -> Result<Self, DataError> {
        let text = files::read_utf8(path, MAX_BYTES)?;
        let mut index: Self = serde_json::from_str(&text)
            .map_err(|e| DataError::line(path, e.line() as u64, format!("damaged index: {e}")))?;
        index.folder = path.parent().unwrap_or(Path::new("")).to_owned();
        for (i, clip) in index.clips.iter().enumerate() {
            let plain = !clip.file.is_empty() && Path::new(&clip.file).components().count() == 1;
            if !plain || clip.file == ".." || clip.frames == 0 {
                return Err(DataError::file(path, format!("damaged index: clip {i}")));
            }
            if i > 0 && index.clips[i - 1].name >= clip.name {
                return Err(DataError::file(path, format!("damaged index: order at clip {i}")));
            }
        }
        Ok(index)
    }

    /// Holds out the clips that `list` names: a clip's name, or its last part with or without extension. An entry that
    /// fits no clip is an error.
    pub fn split(&self, list: &[String]) -> Result<Split, DataError> {
        let mut held_out = vec![false; self.clips.len()];
        for wanted in list {
            let before = held_out.iter().filter(|h| **h).count();
            for (clip, held) in self.clips.iter().zip(&mut held_out) {
                *held |= matches_name(&clip.name, wanted);
            }
            if held_out.iter().filter(|h| **h).count() == before {
                return Err(DataError::Packing(format!(
                    "the validation list names {wanted:?}, which is not a usable clip of this data"
                )));
            }
        }
        Split::new(&held_out)
    }

    /// Holds out a share of the clips by a seeded hash of the name, so that adding clips moves few others: at least one
    /// of two, unless the share is 0.
    pub fn split_share(&self, share: f64, seed: u64) -> Result<Split, DataError> {
        let n = self.clips.len();
        let mut held_out = vec![false; n];
        if n >= 2 && share > 0.0 {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_cached_key(|&i| {
                let mut hash = blake3::Hasher::new();
                hash.update(&seed.to_le_bytes());
                hash.update(self.clips[i].name.as_bytes());
                *hash.finalize().as_bytes()
            });
            let count = ((n as f64 * share).round() as usize).max(1);
            order.iter().take(count).for_each(|&i| held_out[i] = true);
        }
        Split::new(&held_out)
    }
}

impl Split {
    fn new(held_out: &[bool]) -> Result<Split, DataError> {
        let (validation, train): (Vec<usize>, Vec<usize>) = (0..held_out.len()).partition(|&i| held_out[i]);
        if train.is_empty() {
            return Err(DataError::Packing(format!(
                "no clip is left for training: {} usable, {} held out for validation",
                held_out.len(),
                validation.len()
            )));
        }
        Ok(Split { train, validation })
    }
}

fn matches_name(name: &str, wanted: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    let stem = last.rsplit_once('.').map_or(last, |(stem, _)| stem);
    wanted == name || wanted == last || wanted == stem
}

/// Indices into a [`ClipIndex`], each ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Clips to train on.
    pub train: Vec<usize>,
    /// Clips only for the validation loss; empty for a single clip.
    pub validation: Vec<usize>,
}
