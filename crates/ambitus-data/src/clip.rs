//! One prepared clip as a file: log-mel, token ids and what was measured, with a checksum.
//!
//! Layout, little-endian: magic (8 bytes), key (32), frames u32, tokens u32, seconds f64, rms, peak f32, flags u32,
//! token ids u32 [tokens], mel f32 `[frames, 100]`, blake3 of all before (32). The length follows from the two counts, so
//! a file of another length is refused before anything is allocated.

use std::path::Path;

use crate::error::DataError;
use crate::measured::Measured;
use crate::mel::MELS;
use crate::sealed::{self, BEGINNING, Kind, MEASURED};

const HEADER: usize = BEGINNING + 2 * 4 + MEASURED + 4;
/// At most ten minutes of audio.
const KIND: Kind = Kind { magic: b"ambclip1", name: "clip", header: HEADER, most: 64 << 20 };

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

pub(crate) fn save(path: &Path, key: &[u8; 32], clip: &Clip, measured: &Measured) -> Result<(), DataError> {
    let (frames, tokens) = (clip.frames(), clip.ids.len());
    let mut file = KIND.begin(key, 4 * (tokens + MELS * frames));
    sealed::put(&mut file, [frames as u32, tokens as u32]);
    measured.put(&mut file);
    sealed::put(&mut file, [measured.flags()]);
    sealed::put(&mut file, clip.ids.iter().copied());
    sealed::put(&mut file, clip.mel.iter().map(|v| v.to_bits()));
    KIND.save(path, file)
}

/// Reads a clip file with its key and measurements; a damaged one is an error.
pub(crate) fn read(path: &Path) -> Result<([u8; 32], Clip, Measured), DataError> {
    let counts = |file: &[u8]| [BEGINNING, BEGINNING + 4].map(|at| u64::from(sealed::number(file, at)));
    let bytes = KIND.read(path, |file| {
        let [frames, tokens] = counts(file);
        4 * (tokens + MELS as u64 * frames)
    })?;
    let measured = Measured::at(&bytes, BEGINNING + 8, sealed::number(&bytes, HEADER - 4));
    let [_, tokens] = counts(&bytes);
    let (ids, mel) = bytes[HEADER..].split_at(4 * tokens as usize);
    let clip =
        Clip { ids: sealed::numbers(ids).collect(), mel: sealed::numbers(mel).map(f32::from_bits).collect() };
    Ok((sealed::key(&bytes), clip, measured))
}

/// Loads a prepared clip. Length and checksum are verified.
pub fn load_clip(path: &Path) -> Result<Clip, DataError> {
    read(path).map(|(_, clip, _)| clip)
}
