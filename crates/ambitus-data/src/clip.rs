//! One prepared clip as a file: log-mel, token ids and what was measured, with a checksum.
//!
//! Layout, little-endian: magic (8 bytes), key (32), frames u32, tokens u32, seconds f64, rms, peak f32, flags u32,
//! token ids u32 [tokens], mel f32 `[frames, 100]`, blake3 of all before (32). The length follows from the two counts, so
//! a file of another length is refused before anything is allocated.

use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::atomic;
use crate::error::DataError;
use crate::files;
use crate::mel::MELS;

const MAGIC: &[u8; 8] = b"ambclip1";
const HEADER: usize = 8 + 32 + 4 + 4 + 8 + 4 + 4 + 4;
const CHECKSUM: usize = 32;
/// Longest clip file, bytes: ten minutes of audio.
const MAX_BYTES: u64 = 64 << 20;

/// A clip as training takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Clip {
    /// Log-mel `[N, 100]`, row-major.
    pub mel: Vec<f32>,
    /// Token ids, Nt of them.
    pub ids: Vec<u32>,
}

impl Clip {
    /// Returns the number N of frames.
    pub fn frames(&self) -> usize {
        self.mel.len() / MELS
    }
}

/// What was measured of a clip's audio.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Length, seconds.
    pub seconds: f64,
    /// Root mean square, 1 = full scale.
    pub rms: f32,
    /// Largest sample, 1 = full scale.
    pub peak: f32,
    /// Samples at full scale in a row.
    pub clipped: bool,
    /// Silence was cut off at its ends.
    pub trimmed: bool,
}

pub(crate) fn save(path: &Path, key: &[u8; 32], clip: &Clip, measured: &Measured) -> Result<(), DataError> {
    let mut bytes = Vec::with_capacity(file_length(clip.frames(), clip.ids.len()));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&(clip.frames() as u32).to_le_bytes());
    bytes.extend_from_slice(&(clip.ids.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&measured.seconds.to_le_bytes());
    bytes.extend_from_slice(&measured.rms.to_le_bytes());
    bytes.extend_from_slice(&measured.peak.to_le_bytes());
    let flags = u32::from(measured.clipped) | u32::from(measured.trimmed) << 1;
    bytes.extend_from_slice(&flags.to_le_bytes());
    clip.ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
    clip.mel.iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    atomic::write(path, |file| file.write_all(&bytes))
}

fn file_length(frames: usize, tokens: usize) -> usize {
    HEADER + 4 * tokens + 4 * MELS * frames + CHECKSUM
}

/// Reads a clip file with its key and measurements; a damaged one is an error.
pub(crate) fn read(path: &Path) -> Result<([u8; 32], Clip, Measured), DataError> {
    let damaged = |what: &str| {
        DataError::file(path, format!("damaged clip ({what}); delete it and run `prepare` again"))
    };
    let bytes = files::read_bytes(path, MAX_BYTES)?;
    if bytes.len() < HEADER + CHECKSUM || &bytes[..8] != MAGIC {
        return Err(damaged("not a clip file"));
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (frames, tokens) = (u32_at(40) as usize, u32_at(44) as usize);
    if bytes.len() != file_length(frames, tokens) {
        return Err(damaged("wrong length"));
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    if blake3::hash(content).as_bytes() != checksum {
        return Err(damaged("wrong checksum"));
    }
    let key = content[8..40].try_into().expect("32 bytes");
    let flags = u32_at(64);
    let measured = Measured {
        seconds: f64::from_le_bytes(content[48..56].try_into().expect("eight bytes")),
        rms: f32::from_bits(u32_at(56)),
        peak: f32::from_bits(u32_at(60)),
        clipped: flags & 1 != 0,
        trimmed: flags & 2 != 0,
    };
    let words = |from: &[u8]| -> Vec<u32> {
        from.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    };
    let (ids, mel) = content[HEADER..].split_at(4 * tokens);
    let clip = Clip { ids: words(ids), mel: words(mel).into_iter().map(f32::from_bits).collect() };
    Ok((key, clip, measured))
}

/// Loads a prepared clip. Length and checksum are verified.
pub fn load_clip(path: &Path) -> Result<Clip, DataError> {
    read(path).map(|(_, clip, _)| clip)
}
