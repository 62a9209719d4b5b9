//! One prepared clip of token ids as a file, with a checksum.
//!
//! Layout, little-endian: magic (8 bytes), key (32), ids u32, name bytes u32, text tokens u32, flags u32, seconds f64, rms,
//! peak f32, name (UTF-8), ids u32 `[T]`, labels i32 `[T]`, blake3 of all before (32). The length follows from the two counts,
//! so a file of another length is refused before anything is made of it.

use std::path::Path;

use crate::error::DataError;
use crate::measured::Measured;
use crate::sealed::{self, BEGINNING, Kind, MEASURED};

const HEADER: usize = BEGINNING + 4 * 4 + MEASURED;
/// Most ids of a clip: an hour and a half of speech, far more than any model's context.
pub const MAX_IDS: usize = 1 << 19;
/// Longest name, bytes.
const MAX_NAME: usize = 64 << 10;
const MAX_BYTES: u64 = (HEADER + MAX_NAME + 8 * MAX_IDS + 32) as u64;
const KIND: Kind = Kind { magic: b"ambtokn1", name: "token clip", header: HEADER, most: MAX_BYTES };

/// A clip as training takes it: T ids and as many labels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenClip {
    /// Ids `[T]`.
    pub ids: Vec<u32>,
    /// Labels `[T]`, not shifted: position t is scored where `labels[t + 1]` is not −100.
    pub labels: Vec<i32>,
    /// Name of the clip in its data set.
    pub name: String,
}

impl TokenClip {
    /// Returns the positions that are scored: labels other than −100, except the first, which nothing predicts.
    pub fn scored(&self) -> usize {
        self.labels.iter().skip(1).filter(|&&l| l != super::sequence::IGNORED).count()
    }
}

/// What a clip's file says besides the clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Facts {
    pub(crate) key: [u8; 32],
    /// Ids of the text alone.
    pub(crate) text_tokens: u32,
    pub(crate) measured: Measured,
}

pub(crate) fn save(path: &Path, facts: &Facts, clip: &TokenClip) -> Result<(), DataError> {
    if clip.ids.len() != clip.labels.len() || clip.ids.len() > MAX_IDS || clip.name.len() > MAX_NAME {
        return Err(DataError::file(
            path,
            format!(
                "{} ids, {} labels and {} bytes of name cannot be one clip (at most {MAX_IDS} ids)",
                clip.ids.len(),
                clip.labels.len(),
                clip.name.len()
            ),
        ));
    }
    let (ids, name, measured) = (clip.ids.len(), clip.name.len(), &facts.measured);
    let mut file = KIND.begin(&facts.key, name + 8 * ids);
    sealed::put(&mut file, [ids as u32, name as u32, facts.text_tokens, measured.flags()]);
    measured.put(&mut file);
    file.extend_from_slice(clip.name.as_bytes());
    sealed::put(&mut file, clip.ids.iter().copied());
    sealed::put(&mut file, clip.labels.iter().map(|l| *l as u32));
    KIND.save(path, file)
}

pub(crate) fn read(path: &Path) -> Result<(Facts, TokenClip), DataError> {
    let counts = |file: &[u8]| [0, 4, 8, 12].map(|at| u64::from(sealed::number(file, BEGINNING + at)));
    let bytes = KIND.read(path, |file| {
        let [ids, name, ..] = counts(file);
        name + 8 * ids
    })?;
    let [ids, name, text_tokens, flags] = counts(&bytes).map(|n| n as u32);
    let measured = Measured::at(&bytes, BEGINNING + 4 * 4, flags);
    let (name, numbers) = bytes[HEADER..].split_at(name as usize);
    let (ids, labels) = numbers.split_at(4 * ids as usize);
    let clip = TokenClip {
        ids: sealed::numbers(ids).collect(),
        labels: sealed::numbers(labels).map(|l| l as i32).collect(),
        name: String::from_utf8(name.to_vec()).map_err(|_| KIND.damaged(path, "its name is not UTF-8"))?,
    };
    Ok((Facts { key: sealed::key(&bytes), text_tokens, measured }, clip))
}

/// Loads a prepared clip. Length and checksum are verified.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn load_token_clip(path: &Path) -> Result<TokenClip, DataError> {
    read(path).map(|(_, clip)| clip)
}
