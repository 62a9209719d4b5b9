//! One prepared clip of codes as a file, with a checksum.
//!
//! Layout, little-endian: magic (8 bytes), key (32), key of its description's states (32), codebooks C u32, frames T u32, prompt ids
//! P u32, ids of the description U u32, flags u32, seconds f64, rms, peak f32, prompt ids u32 `[P]`, codes u32 `[C, T]`, blake3 of all before (32).

use std::path::Path;

use crate::error::DataError;
use crate::measured::Measured;
use crate::sealed::{self, BEGINNING, Kind, MEASURED};

/// Where the counts are.
const COUNTS: usize = BEGINNING + 32;
const HEADER: usize = COUNTS + 5 * 4 + MEASURED;
/// Ten minutes of audio in 64 codebooks, and more.
const KIND: Kind = Kind { magic: b"ambcode1", name: "clip of codes", header: HEADER, most: 64 << 20 };

/// A clip as training takes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CodeClip {
    /// Ids of what is said, `[P]`.
    pub prompt: Vec<u32>,
    /// Codes, `[C, T]`.
    pub codes: Vec<u32>,
    /// The number C of codebooks.
    pub codebooks: usize,
    /// The number U of ids that say how, and the key of their states, for [`load_states`](super::load_states).
    pub described: usize,
    pub(crate) states: [u8; 32],
}

impl CodeClip {
    /// Returns the number T of frames.
    pub fn frames(&self) -> usize {
        self.codes.len() / self.codebooks.max(1)
    }
}

/// What a clip's file says besides the clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Facts {
    pub(crate) key: [u8; 32],
    pub(crate) measured: Measured,
}

pub(crate) fn save(path: &Path, facts: &Facts, clip: &CodeClip) -> Result<(), DataError> {
    let CodeClip { prompt, codes, codebooks, described, states } = clip;
    let mut file = KIND.begin(&facts.key, 4 * (prompt.len() + codes.len()));
    file.extend_from_slice(states);
    let counts = [*codebooks, clip.frames(), prompt.len(), *described].map(|n| n as u32);
    sealed::put(&mut file, counts.into_iter().chain([facts.measured.flags()]));
    facts.measured.put(&mut file);
    sealed::put(&mut file, prompt.iter().chain(codes).copied());
    KIND.save(path, file)
}

pub(crate) fn read(path: &Path) -> Result<(Facts, CodeClip), DataError> {
    let counts = |file: &[u8]| [0, 4, 8, 12, 16].map(|at| u64::from(sealed::number(file, COUNTS + at)));
    let bytes = KIND.read(path, |file| {
        let [codebooks, frames, prompt, ..] = counts(file);
        // Of two that are each at most what four bytes hold.
        codebooks.saturating_mul(frames).saturating_add(prompt).saturating_mul(4)
    })?;
    let [codebooks, _, prompt, described, flags] = counts(&bytes);
    let (prompt, codes) = bytes[HEADER..].split_at(4 * prompt as usize);
    let clip = CodeClip {
        prompt: sealed::numbers(prompt).collect(),
        codes: sealed::numbers(codes).collect(),
        codebooks: codebooks as usize,
        described: described as usize,
        states: sealed::array(&bytes, BEGINNING),
    };
    let measured = Measured::at(&bytes, COUNTS + 5 * 4, flags as u32);
    Ok((Facts { key: sealed::key(&bytes), measured }, clip))
}

/// Loads a prepared clip. Length and checksum are verified.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn load_code_clip(path: &Path) -> Result<CodeClip, DataError> {
    read(path).map(|(_, clip)| clip)
}
