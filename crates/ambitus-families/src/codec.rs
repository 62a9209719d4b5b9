//! Frozen audio codecs and vocoders as values: samples to codes and back, mel frames to samples, in pieces, in memory that does
//! not grow with the sound.
//!
//! Each kind has a folder here and one of the same name in `ambitus-models`; [`CODECS`](crate::CODECS) registers it.

pub(crate) mod alone;
mod codes;
mod files;
#[cfg(test)]
pub(crate) mod made;
pub mod programs;
pub mod tensors;
mod vocoder;
pub mod windows;

pub use codes::CodesFile;
pub use files::{
    decode_file, decode_mel_file, decode_stereo_file, encode_file, encode_stereo_file, write_sound,
};
pub use vocoder::{GRIFFIN_LIM_ROUNDS, GriffinLim, Mels, Vocoder, vocoder};

use crate::error::RunError;
use ambitus_data::DataError;
use std::path::Path;

/// The kinds of codecs and vocoders of a program.
pub type Kinds = &'static [&'static dyn Kind];

/// A kind of codec or vocoder.
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
    fn open(&self, dir: &Path, threads: usize) -> Result<Opened, RunError>;
}

/// An opened folder.
pub enum Opened {
    /// Makes codes of sound and sound of codes.
    Codec(Box<dyn Codec>),
    /// Makes sound of mel frames.
    Vocoder(Box<dyn Vocoder>),
}

/// Opens a codec's folder.
///
/// # Errors
/// A folder that no kind recognises, or a vocoder's; else as [`Kind::open`].
pub fn open(kinds: Kinds, dir: &Path, threads: usize) -> Result<Box<dyn Codec>, RunError> {
    match open_any(kinds, dir, threads)? {
        Opened::Codec(codec) => Ok(codec),
        Opened::Vocoder(vocoder) => Err(RunError::Model(format!(
            "{}: holds {}, which makes sound of mel frames and has no codes; give a codec's folder, or mel frames",
            dir.display(),
            vocoder.name()
        ))),
    }
}

/// Opens a vocoder's folder.
///
/// # Errors
/// A folder that no kind recognises, or a codec's; else as [`Kind::open`].
pub fn open_vocoder(kinds: Kinds, dir: &Path, threads: usize) -> Result<Box<dyn Vocoder>, RunError> {
    match open_any(kinds, dir, threads)? {
        Opened::Vocoder(vocoder) => Ok(vocoder),
        Opened::Codec(_) => Err(RunError::Model(format!(
            "{}: holds a codec, which makes sound of codes and takes no mel frames; give a vocoder's folder, or codes",
            dir.display()
        ))),
    }
}

fn open_any(kinds: Kinds, dir: &Path, threads: usize) -> Result<Opened, RunError> {
    if let Some(kind) = kinds.iter().find(|kind| kind.recognises(dir)) {
        return kind.open(dir, threads);
    }
    let files: Vec<String> = kinds.iter().map(|kind| format!("{} ({})", kind.files(), kind.name())).collect();
    let configs = ["config.json", "config.yaml"].map(|name| dir.join(name));
    let why = match configs.iter().find(|path| path.is_file()) {
        Some(config) => format!("{}: is that of no codec that is known here", config.display()),
        None => format!("{}: is missing", configs[0].display()),
    };
    Err(RunError::Model(format!("{why}; give a folder with {}", files.join(", or with "))))
}

/// The codes of a sound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Codes {
    /// The codes of each codebook, in the codec's order.
    pub layers: Vec<Vec<u32>>,
}

impl Codes {
    /// Returns the codes of two channels that were coded apart: of the first codebook left and right, of the second left and right, as
    /// stereo models have them.
    pub fn of_channels(left: Codes, right: Codes) -> Codes {
        let pairs = left.layers.into_iter().zip(right.layers);
        Codes { layers: pairs.flat_map(|(left, right)| [left, right]).collect() }
    }

    /// Returns the codes of each channel; the inverse of [`Codes::of_channels`].
    pub fn channels(self) -> [Codes; 2] {
        let (mut left, mut right) = (Codes::default(), Codes::default());
        for (i, layer) in self.layers.into_iter().enumerate() {
            let channel = if i % 2 == 0 { &mut left } else { &mut right };
            channel.layers.push(layer);
        }
        [left, right]
    }
}

/// What goes into a codec and what comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Of the audio, Hz.
    pub rate: u32,
    /// Samples of a frame, for which there are codes of every codebook.
    pub frame: usize,
    /// Samples that are missing from the last frame's sound, of codecs with strides that leave some out.
    pub tail: usize,
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
    /// Returns the samples that `frames` frames give.
    pub fn samples(&self, frames: usize) -> usize {
        (frames * self.frame).saturating_sub(self.tail)
    }

    /// Returns what codes of two channels are ([`Codes::of_channels`]).
    pub fn stereo(&self) -> Spec {
        Spec { codebooks: self.codebooks.iter().flat_map(|book| [*book, *book]).collect(), ..self.clone() }
    }

    /// Returns the number of frames, if these are codes of such a codec, or why they are not.
    ///
    /// # Errors
    /// Names the codebook and the code.
    pub fn frames(&self, codes: &Codes) -> Result<usize, String> {
        let (have, want) = (codes.layers.len(), self.codebooks.len());
        if have != want {
            return Err(format!("codes: {have} lists are given, the codec has {want} codebooks"));
        }
        let frames = match (codes.layers.first(), self.codebooks.first()) {
            (Some(first), Some(book)) => first.len() / book.per_frame,
            _ => 0,
        };
        for (i, (layer, book)) in codes.layers.iter().zip(&self.codebooks).enumerate() {
            let want = frames * book.per_frame;
            if layer.len() != want {
                return Err(format!("codes[{i}]: {} codes, {want} belong to {frames} frames", layer.len()));
            }
            if let Some(at) = layer.iter().position(|c| *c as usize >= book.size) {
                let code = layer[at];
                return Err(format!(
                    "codes[{i}][{at}]: {code} is not below the codebook's size {}",
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

    /// Returns the frames that its [`Decoding`] gives in place of samples, row after row, of a codec that makes codes of such frames. A
    /// vocoder would make sound of them.
    fn mels(&self) -> Option<Mels> {
        None
    }

    /// Returns the bytes of the arena, the larger of the two directions.
    fn bytes(&self) -> u64;

    /// Returns the bytes of the arena while encoding: weights and a window's values.
    fn encode_bytes(&self) -> u64;

    /// Gives the arena back; the next use opens it again.
    fn close(&mut self);

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

    /// Returns the codes of a sound at the codec's rate: of whole frames, to which a codec may pad it with zeros.
    ///
    /// # Errors
    /// The executor; weights that cannot be read; numbers that are not finite.
    fn encode(&mut self, samples: &[f32]) -> Result<Codes, RunError> {
        let mut encoding = self.encoding()?;
        encoding.push(samples)?;
        encoding.finish()
    }

    /// Returns the samples of codes ([`Spec::samples`]), without noise.
    ///
    /// # Errors
    /// As [`Codec::decoding`].
    fn decode(&mut self, codes: &Codes) -> Result<Vec<f32>, RunError> {
        whole(&mut *self.decoding(codes, None)?)
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

/// Codes or mel frames being decoded.
pub trait Decoding {
    /// Returns the next samples; `None` at the end.
    ///
    /// # Errors
    /// The executor.
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError>;
}

/// Two channels being decoded apart, whose samples come in turn. Each has its own codec: their pieces are made side by side.
pub struct SideBySide<'c> {
    channels: [Box<dyn Decoding + 'c>; 2],
    pair: Vec<f32>,
}

impl<'c> SideBySide<'c> {
    /// Bytes of a piece of both, about: a window of a codec has a few seconds.
    pub const BYTES: u64 = 1 << 20;

    /// Begins to decode the codes of each channel ([`Codes::channels`]), without noise.
    ///
    /// # Errors
    /// As [`Codec::decoding`].
    pub fn new(
        [left, right]: [&'c mut dyn Codec; 2],
        [of_left, of_right]: &'c [Codes; 2],
    ) -> Result<SideBySide<'c>, RunError> {
        let channels = [left.decoding(of_left, None)?, right.decoding(of_right, None)?];
        Ok(SideBySide { channels, pair: Vec::new() })
    }
}

impl Decoding for SideBySide<'_> {
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError> {
        let [left, right] = &mut self.channels;
        let (Some(left), Some(right)) = (left.next_piece()?, right.next_piece()?) else { return Ok(None) };
        self.pair.clear();
        self.pair.extend(left.iter().zip(right).flat_map(|(left, right)| [*left, *right]));
        Ok(Some(&self.pair))
    }
}

/// Returns all samples.
fn whole(decoding: &mut dyn Decoding) -> Result<Vec<f32>, RunError> {
    let mut all = Vec::new();
    while let Some(piece) = decoding.next_piece()? {
        all.extend_from_slice(piece);
    }
    Ok(all)
}
