//! One prepared clip of token ids as a file, with a checksum.
//!
//! Layout, little-endian: magic (8 bytes), key (32), ids u32, name bytes u32, text tokens u32, flags u32, seconds f64, rms,
//! peak f32, name (UTF-8), ids u32 `[T]`, labels i32 `[T]`, blake3 of all before (32). The length follows from the two counts,
//! so a file of another length is refused before anything is made of it.

use std::io::Write;
use std::path::Path;

use crate::atomic;
use crate::clip::Measured;
use crate::error::DataError;
use crate::files;

const MAGIC: &[u8; 8] = b"ambtokn1";
const HEADER: usize = 8 + 32 + 4 * 4 + 8 + 4 + 4;
const CHECKSUM: usize = 32;
/// Most ids of a clip: an hour and a half of speech, far more than any model's context.
pub const MAX_IDS: usize = 1 << 19;
/// Longest name, bytes.
const MAX_NAME: usize = 64 << 10;
const MAX_BYTES: u64 = (HEADER + MAX_NAME + 8 * MAX_IDS + CHECKSUM) as u64;

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

fn file_length(ids: usize, name: usize) -> usize {
    HEADER + name + 8 * ids + CHECKSUM
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
    let mut bytes = Vec::with_capacity(file_length(clip.ids.len(), clip.name.len()));
    let measured = &facts.measured;
    let flags = u32::from(measured.clipped) | u32::from(measured.trimmed) << 1;
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&facts.key);
    for count in [clip.ids.len() as u32, clip.name.len() as u32, facts.text_tokens, flags] {
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    bytes.extend_from_slice(&measured.seconds.to_le_bytes());
    bytes.extend_from_slice(&measured.rms.to_le_bytes());
    bytes.extend_from_slice(&measured.peak.to_le_bytes());
    bytes.extend_from_slice(clip.name.as_bytes());
    clip.ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
    clip.labels.iter().for_each(|l| bytes.extend_from_slice(&l.to_le_bytes()));
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    atomic::write(path, |file| file.write_all(&bytes))
}

pub(crate) fn read(path: &Path) -> Result<(Facts, TokenClip), DataError> {
    let damaged = |what: &str| {
        DataError::file(path, format!("damaged token clip ({what}); delete it and run `prepare` again"))
    };
    let bytes = files::read_bytes(path, MAX_BYTES)?;
    if bytes.len() < HEADER + CHECKSUM || &bytes[..8] != MAGIC {
        return Err(damaged("not a token clip"));
    }
    let word = |at: usize| -> [u8; 4] { bytes[at..at + 4].try_into().expect("four bytes") };
    let count = |at: usize| u32::from_le_bytes(word(at)) as usize;
    let (ids, name) = (count(40), count(44));
    // Together they cannot overflow: both are at most what four bytes hold.
    if bytes.len() as u64 != HEADER as u64 + name as u64 + 8 * ids as u64 + CHECKSUM as u64 {
        return Err(damaged("wrong length"));
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    if blake3::hash(content).as_bytes() != checksum {
        return Err(damaged("wrong checksum"));
    }
    let flags = count(52);
    let facts = Facts {
        key: content[8..40].try_into().expect("32 bytes"),
        text_tokens: count(48) as u32,
        measured: Measured {
            seconds: f64::from_le_bytes(content[56..64].try_into().expect("eight bytes")),
            rms: f32::from_le_bytes(word(64)),
            peak: f32::from_le_bytes(word(68)),
            clipped: flags & 1 != 0,
            trimmed: flags & 2 != 0,
        },
    };
    let (name, numbers) = content[HEADER..].split_at(name);
    let (ids, labels) = numbers.split_at(4 * ids);
    let clip = TokenClip {
        ids: ids.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect(),
        labels: labels.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect(),
        name: String::from_utf8(name.to_vec()).map_err(|_| damaged("its name is not UTF-8"))?,
    };
    Ok((facts, clip))
}

/// Loads a prepared clip. Length and checksum are verified.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn load_token_clip(path: &Path) -> Result<TokenClip, DataError> {
    read(path).map(|(_, clip)| clip)
}
