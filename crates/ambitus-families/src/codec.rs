//! Frozen audio codecs as values: samples to codes and back, in pieces, in memory that does not grow with the sound.
//!
//! Each kind of codec has a folder here and one of the same name in `ambitus-models`; [`CODECS`](crate::CODECS) registers it.

mod files;

pub use files::{CodesFile, decode_file, encode_file};

use crate::error::RunError;
use ambitus_data::DataError;
use std::path::Path;

/// The kinds of codecs of a program.
pub type Kinds = &'static [&'static dyn Kind];

/// A kind of codec.
pub trait Kind: Sync {
    /// For people: `SNAC`.
    fn name(&self) -> &'static str;

    /// Returns the files of its folders, for people.
    fn files(&self) -> &'static str;

    /// Returns whether the folder is one of its own.
    fn recognises(&self, dir: &Path) -> bool;

    /// Opens a folder and plans. No weight is read before the first use.
    ///
    /// # Errors
    /// Names the file and key, or every tensor that does not fit.
    fn open(&self, dir: &Path, threads: usize) -> Result<Box<dyn Codec>, RunError>;
}

/// Opens a codec's folder.
///
/// # Errors
/// A folder that no kind recognises; else as [`Kind::open`].
pub fn open(kinds: Kinds, dir: &Path, threads: usize) -> Result<Box<dyn Codec>, RunError> {
    if let Some(kind) = kinds.iter().find(|kind| kind.recognises(dir)) {
        return kind.open(dir, threads);
    }
    let files: Vec<String> = kinds.iter().map(|kind| format!("{} ({})", kind.files(), kind.name())).collect();
    let config = dir.join("config.json");
    let why = match config.is_file() {
        true => format!("{}: is that of no codec that is known here", config.display()),
        false => format!("{}: is missing", config.display()),
    };
    Err(RunError::Model(format!("{why}; give a folder with {}", files.join(", or with "))))
}

/// The codes of a sound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Codes {
    /// The codes of each codebook, in the codec's order.
    pub layers: Vec<Vec<u32>>,
}

/// What goes into a codec and what comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Of the audio, Hz.
    pub rate: u32,
    /// Samples of a frame, for which there are codes of every codebook.
    pub frame: usize,
    /// The codebooks, in their order.
    pub codebooks: Vec<Codebook>,
}

/// One codebook of a codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codebook {
    /// Codes of a frame.
    pub per_frame: usize,
    /// Entries: codes are below.
    pub size: usize,
}

impl Spec {
    /// Returns the number of frames, if these are codes of such a codec, or why they are not.
    ///
    /// # Errors
    /// Names the codebook and the code.
    pub fn frames(&self, codes: &Codes) -> Result<usize, String> {
        let (have, want) = (codes.layers.len(), self.codebooks.len());
        if have != want {
            return Err(format!("layers: {have} are given, the codec has {want} codebooks"));
        }
        let frames = match (codes.layers.first(), self.codebooks.first()) {
            (Some(first), Some(book)) => first.len() / book.per_frame,
            _ => 0,
        };
        for (i, (layer, book)) in codes.layers.iter().zip(&self.codebooks).enumerate() {
            let want = frames * book.per_frame;
            if layer.len() != want {
                return Err(format!("layers[{i}]: {} codes, {want} belong to {frames} frames", layer.len()));
            }
            if let Some(at) = layer.iter().position(|c| *c as usize >= book.size) {
                let code = layer[at];
                return Err(format!(
                    "layers[{i}][{at}]: {code} is not below the codebook's size {}",
                    book.size
                ));
            }
        }
        Ok(frames)
    }
}

/// An opened codec, whose weights and work lie in one planned arena.
pub trait Codec: Send {
    /// Returns what goes in and what comes out.
    fn spec(&self) -> &Spec;

    /// Changes whenever codes may: of configuration and weights.
    ///
    /// # Errors
    /// Files that cannot be read.
    fn fingerprint(&self) -> Result<[u8; 32], RunError>;

    /// Returns the bytes of the arena, the larger of the two directions.
    fn bytes(&self) -> u64;

    /// Returns the bytes of the arena while encoding: weights and a window's values.
    fn encode_bytes(&self) -> u64;

    /// Begins to encode a sound at the codec's rate that comes in pieces.
    ///
    /// # Errors
    /// The executor; weights that cannot be read.
    fn encoding(&mut self) -> Result<Box<dyn Encoding + '_>, RunError>;

    /// Begins to decode codes, `frames` of them, in pieces. With a seed, a decoder that draws noise adds it.
    ///
    /// # Errors
    /// A seed for a codec without noise; the executor; weights that cannot be read.
    fn decoding_of<'c>(
        &'c mut self,
        codes: &'c Codes,
        frames: usize,
        seed: Option<u64>,
    ) -> Result<Box<dyn Decoding + 'c>, RunError>;

    /// Begins to decode in pieces. With a seed, a decoder that draws noise adds it: a function of the seed and the place in the sound.
    ///
    /// # Errors
    /// Codes that are not this codec's; as [`Codec::decoding_of`].
    fn decoding<'c>(
        &'c mut self,
        codes: &'c Codes,
        seed: Option<u64>,
    ) -> Result<Box<dyn Decoding + 'c>, RunError> {
        let frames = self.spec().frames(codes).map_err(|why| RunError::Data(DataError::Invalid(why)))?;
        self.decoding_of(codes, frames, seed)
    }

    /// Codes of a sound at the codec's rate, padded with zeros to whole frames.
    ///
    /// # Errors
    /// The executor; weights that cannot be read; numbers that are not finite.
    fn encode(&mut self, samples: &[f32]) -> Result<Codes, RunError> {
        let mut encoding = self.encoding()?;
        encoding.push(samples)?;
        encoding.finish()
    }

    /// Returns the samples of codes, whole frames, without noise.
    ///
    /// # Errors
    /// As [`Codec::decoding`].
    fn decode(&mut self, codes: &Codes) -> Result<Vec<f32>, RunError> {
        let mut decoding = self.decoding(codes, None)?;
        let mut all = Vec::new();
        while let Some(piece) = decoding.next_piece()? {
            all.extend_from_slice(piece);
        }
        Ok(all)
    }
}

/// A sound being encoded.
pub trait Encoding {
    /// Takes the next samples.
    ///
    /// # Errors
    /// The executor; samples or weights that do not give numbers.
    fn push(&mut self, samples: &[f32]) -> Result<(), RunError>;

    /// Ends the sound and gives its codes.
    ///
    /// # Errors
    /// As [`Encoding::push`].
    fn finish(self: Box<Self>) -> Result<Codes, RunError>;
}

/// Codes being decoded.
pub trait Decoding {
    /// Returns the next samples, whole frames; `None` at the end.
    ///
    /// # Errors
    /// The executor.
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError>;
}
