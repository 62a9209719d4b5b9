//! Errors of a data set, worded for the person who owns it.

use std::path::{Path, PathBuf};

/// Error of reading, checking or caching data. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// An audio file that cannot be used.
    #[error("{}: {reason}", path.display())]
    Audio {
        /// Audio file.
        path: PathBuf,
        /// Why.
        reason: AudioFault,
    },
    /// A metadata or transcript file that cannot be used.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// Metadata file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Why.
        reason: String,
    },
    /// A file that is not what it should be (vocabulary, cache, index, data folder).
    #[error("{}: {reason}", path.display())]
    File {
        /// File or folder.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// Too many tokens of the transcripts are not in the vocabulary.
    #[error(
        "{missing} of {total} tokens ({:.1} %) are not in the vocabulary, more than {:.0} % allowed; they would all be \
         read as a space. Most frequent: {}. Check that the vocabulary belongs to this language and tokenizer. If it does, \
         extend it: append the missing tokens to vocab.txt, a line each, and give --extend-vocab{}", 100.0 * *missing as f64 / *total as f64, 100.0 * crate::text::MAX_UNKNOWN_SHARE,
        top(tokens), beside(others)
    )]
    UnknownTokens {
        /// Tokens not in the vocabulary.
        missing: u64,
        /// All tokens.
        total: u64,
        /// Unknown tokens with their counts, most frequent first; not all where there are very many.
        tokens: Vec<(String, u64)>,
        /// Lines on clips that cannot be used for other reasons.
        others: Vec<String>,
    },
    /// Clips outside the length limits under refuse.
    #[error("{} outside the limits and the recipe says `refuse`:\n{}", are(*clips, "clip"), lines.join("\n"))]
    OutsideLimits {
        /// How many.
        clips: usize,
        /// Lines on the first of them and all else that is not usable.
        lines: Vec<String>,
    },
    /// Nothing usable is left.
    #[error("{}: no usable clip: {reason}", path.display())]
    NoClips {
        /// Data folder or metadata file.
        path: PathBuf,
        /// The first reasons.
        reason: String,
    },
    /// Several recordings that cannot be cut.
    #[error("{} cannot be cut; nothing was written:\n{}", many(lines.len(), "recording"), lines.join("\n"))]
    Recordings {
        /// What is wrong with each.
        lines: Vec<String>,
    },
    /// Clips that cannot be formed into updates or micro-batches, split or loaded as asked.
    #[error("{0}")]
    Packing(String),
    /// An option that cannot be followed.
    #[error("{0}")]
    Invalid(String),
    /// What would have to be held is more than may be. Nothing of it was read.
    #[error("{what}: takes {needed} bytes of memory, {room} may be used")]
    DoesNotFit {
        /// The file, or whatever takes too much.
        what: String,
        /// Bytes, at least.
        needed: u64,
        /// Bytes that there are for it.
        room: u64,
    },
    /// The audio codec failed, which is no fault of the clip.
    #[error("{clip}: the audio codec failed: {reason}")]
    Codec {
        /// Clip it was given.
        clip: String,
        /// What it said.
        reason: String,
    },
    /// The text encoder failed, which is no fault of the description.
    #[error("{clip}: the text encoder failed on its description: {reason}")]
    Encoder {
        /// Clip whose description it was given.
        clip: String,
        /// What it said.
        reason: String,
    },
    /// The caller's progress function asked to stop; what is cached stays.
    #[error("stopped; clips prepared so far stay in the cache")]
    Stopped,
}

/// Why an audio file cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AudioFault {
    /// Nothing in it.
    #[error("no audio samples in the file")]
    Empty,
    /// Not one of the known containers.
    #[error("not a wav, flac, mp3, ogg/vorbis, m4a, aac, mp4 or mkv file ({0})")]
    Unknown(String),
    /// Container known, codec or variant not.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The header contradicts itself or the file.
    #[error("damaged header: {0}")]
    Header(String),
    /// Less audio than the header promises.
    #[error("truncated: {0}")]
    Truncated(String),
    /// The stream cannot be decoded.
    #[error("damaged at {seconds:.2} s: {reason}")]
    Damaged {
        /// Position of the last good sample, seconds.
        seconds: f64,
        /// What the decoder said.
        reason: String,
    },
    /// Sample rate out of range, Hz.
    #[error("sample rate {0} Hz; from {min} to {max} Hz can be read", min = crate::audio::MIN_RATE, max = crate::audio::MAX_RATE)]
    Rate(u32),
    /// Channel count out of range.
    #[error("{0} channels; from 1 to {max} can be read", max = crate::audio::MAX_CHANNELS)]
    Channels(usize),
    /// NaN, infinity or a value far beyond full scale.
    #[error("sample {value} at {seconds:.3} s; floating-point audio must be finite and within -1 to 1")]
    Sample {
        /// The value.
        value: f32,
        /// Position, seconds.
        seconds: f64,
    },
    /// Shorter than one analysis window.
    #[error("{0} samples at 24 kHz; the mel needs at least {min}", min = crate::mel::MIN_SAMPLES)]
    TooShort(u64),
}

impl DataError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn line(path: &Path, line: u64, reason: impl Into<String>) -> Self {
        Self::Line { path: path.to_owned(), line, reason: reason.into() }
    }

    pub(crate) fn audio(path: &Path, reason: AudioFault) -> Self {
        Self::Audio { path: path.to_owned(), reason }
    }
}

/// Tokens that a message names.
const SHOWN: usize = 10;

/// Returns the beginning of what a file says, to quote it in a message.
pub(crate) fn short(text: &str) -> std::borrow::Cow<'_, str> {
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Returns `1 clip`, `2 clips`.
pub(crate) fn many(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn are(n: usize, what: &str) -> String {
    format!("{} {}", many(n, what), if n == 1 { "is" } else { "are" })
}

fn top(tokens: &[(String, u64)]) -> String {
    let shown: Vec<_> = tokens.iter().take(SHOWN).map(|(t, n)| format!("{t:?} x {n}")).collect();
    shown.join(", ")
}

fn beside(lines: &[String]) -> String {
    match lines {
        [] => String::new(),
        lines => format!("\nbesides that, not usable so far:\n{}", lines.join("\n")),
    }
}
