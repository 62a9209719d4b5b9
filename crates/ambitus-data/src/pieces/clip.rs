//! One prepared clip of text ids, codes and sound as a file, with a checksum.
//!
//! Layout, little-endian: magic (8 bytes), key (32), text ids P u32, codes N u32, samples L u32, flags u32, seconds f64, rms, peak f32,
//! text ids u32 `[P]`, codes u32 `[N]`, samples f32 `[L]`, blake3 of all before (32).

use std::ops::Range;
use std::path::Path;

use crate::error::DataError;
use crate::measured::Measured;
use crate::sealed::{self, BEGINNING, Kind, MEASURED};

/// Where the counts are.
const COUNTS: usize = BEGINNING;
const HEADER: usize = COUNTS + 4 * 4 + MEASURED;
/// Ten minutes at 192 kHz, and more.
const KIND: Kind = Kind { magic: b"ambpiec1", name: "clip with its sound", header: HEADER, most: 512 << 20 };

/// What there is of a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// P: ids of the text.
    pub text: usize,
    /// N: codes.
    pub codes: usize,
    /// L: samples.
    pub samples: usize,
}

impl Counts {
    /// Reads a header.
    fn at(header: &[u8]) -> Self {
        let [text, codes, samples] = [0, 4, 8].map(|at| sealed::number(header, COUNTS + at) as usize);
        Self { text, codes, samples }
    }

    /// Returns the bytes after the header.
    fn bytes(&self) -> u64 {
        // Each is at most what four bytes hold.
        4 * (self.text as u64 + self.codes as u64 + self.samples as u64)
    }
}

/// A clip as training takes it: its file, of which only what is asked for is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceClip {
    counts: Counts,
    bytes: Vec<u8>,
}

impl PieceClip {
    /// Returns what there is of it.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the ids of the text, `[P]`.
    pub fn text(&self) -> Vec<u32> {
        self.numbers(0, 0..self.counts.text).collect()
    }

    /// Returns the codes, `[N]`.
    pub fn codes(&self) -> Vec<u32> {
        self.numbers(self.counts.text, 0..self.counts.codes).collect()
    }

    /// Returns the samples of a range, mono, within full scale.
    ///
    /// # Panics
    /// Beyond the clip's end.
    pub fn sound(&self, range: Range<usize>) -> impl Iterator<Item = f32> + '_ {
        self.numbers(self.counts.text + self.counts.codes, range).map(f32::from_bits)
    }

    fn numbers(&self, before: usize, range: Range<usize>) -> impl Iterator<Item = u32> + '_ {
        sealed::numbers(&self.bytes[HEADER + 4 * (before + range.start)..HEADER + 4 * (before + range.end)])
    }
}

/// What a clip's file says besides the clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Facts {
    pub(super) key: [u8; 32],
    pub(super) measured: Measured,
}

pub(super) fn save(
    path: &Path,
    facts: &Facts,
    (text, codes, sound): (&[u32], &[u32], &[f32]),
) -> Result<(), DataError> {
    let counts = Counts { text: text.len(), codes: codes.len(), samples: sound.len() };
    let mut file = KIND.begin(&facts.key, counts.bytes() as usize);
    sealed::put(&mut file, [counts.text, counts.codes, counts.samples].map(|n| n as u32));
    sealed::put(&mut file, [facts.measured.flags()]);
    facts.measured.put(&mut file);
    sealed::put(&mut file, text.iter().chain(codes).copied());
    sealed::put(&mut file, sound.iter().map(|x| x.to_bits()));
    KIND.save(path, file)
}

pub(super) fn read(path: &Path) -> Result<(Facts, PieceClip), DataError> {
    let bytes = KIND.read(path, |file| Counts::at(file).bytes())?;
    let flags = sealed::number(&bytes, COUNTS + 3 * 4);
    let facts = Facts { key: sealed::key(&bytes), measured: Measured::at(&bytes, COUNTS + 4 * 4, flags) };
    Ok((facts, PieceClip { counts: Counts::at(&bytes), bytes }))
}

/// Loads a prepared clip. Length and checksum are verified.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn load_piece_clip(path: &Path) -> Result<PieceClip, DataError> {
    read(path).map(|(_, clip)| clip)
}

/// Returns what there is of a prepared clip, of which only the header is read. The length is verified; [`load_piece_clip`] verifies the
/// rest.
///
/// # Errors
/// The file cannot be read, or is of another length.
pub fn load_counts(path: &Path) -> Result<Counts, DataError> {
    KIND.header(path, |file| Counts::at(file).bytes()).map(|header| Counts::at(&header))
}
