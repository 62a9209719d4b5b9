//! How long the clips of a data set would be, and which could be used: the pass of [`prepare`](super::prepare()) without what
//! it makes. A clip at a time is decoded and none of it is kept, so it takes next to no memory and writes no file.

use std::path::Path;

use super::pass::{Framing, MelFrames, Taken, WaveFrames, take};
use super::{Edits, Policy, PrepareOptions, Progress, most_text_ids};
use crate::error::DataError;
use crate::index::{ClipIndex, ClipMeta, read_index};
use crate::measured::Measured;
use crate::mel::SAMPLE_RATE;
use crate::sources::{Entry, Feed, Source};
use crate::speech::interleave::{FRAME_SAMPLES, SLOTS};
use crate::speech::sequence::WRAPPERS;
use crate::text::Tokenizer;

/// Reasons that are named where clips are outside the limits.
const NAMED: usize = 20;
/// Of the file names of clips that have no file.
const EXTENSION: &str = "none";

/// Clips and the seconds of their audio.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// The clips.
    pub index: ClipIndex,
    /// Of each, in the same order.
    pub seconds: Vec<f64>,
}

impl Lengths {
    /// Returns those of an index file.
    ///
    /// # Errors
    /// As [`read_index`].
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let mut seconds = Vec::new();
        read_index(path, |clip| {
            seconds.push(clip.measured.seconds);
            Ok(())
        })?;
        Ok(Self { index: ClipIndex::load(path)?, seconds })
    }

    /// Returns the clips of at most `seconds`.
    pub fn up_to(&self, seconds: f64) -> ClipIndex {
        self.index.keep(|i| self.seconds[i] <= seconds)
    }

    /// Returns the seconds of the shortest and the longest.
    pub fn ends(&self) -> [f64; 2] {
        let least = self.seconds.iter().copied().fold(f64::INFINITY, f64::min);
        [least, self.seconds.iter().copied().fold(0.0, f64::max)]
    }
}

/// Returns the frames of the clips that [`prepare`](super::prepare()) would make.
///
/// # Errors
/// As [`prepare`](super::prepare()), but for what only writing meets.
pub fn mel_lengths(
    source: &Source,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
    progress: &dyn Fn(Progress<'_>) -> bool,
) -> Result<Lengths, DataError> {
    options.check_rate(SAMPLE_RATE)?;
    let most = options.most_mel_frames();
    lengths::<MelFrames>(source, options, progress, |entry, frames, _| {
        // One text position a frame, and a token for each character at least.
        if entry.text.chars().count() as u64 > most {
            return None;
        }
        let text = tokenizer.encode(&entry.text).ids.len();
        (text <= frames).then_some(Length { rows: frames, tokens: text, context: 0 })
    })
}

/// Returns the most ids that [`prepare_speech`](crate::speech::prepare_speech()) would make of each clip: frames of audio that
/// repeat are counted, which it drops. `text`: ids of an entry's text with its voice, or the most there may be; `None` of what
/// cannot be used.
///
/// # Errors
/// As [`mel_lengths`].
pub fn speech_lengths(
    source: &Source,
    text: &dyn Fn(&Entry) -> Option<usize>,
    max_tokens: Option<usize>,
    options: &PrepareOptions,
    progress: &dyn Fn(Progress<'_>) -> bool,
) -> Result<Lengths, DataError> {
    options.check_rate(SAMPLE_RATE)?;
    let most = most_text_ids(options) as usize;
    lengths::<WaveFrames>(source, options, progress, |entry, _, measured| {
        let text = text(entry).filter(|ids| *ids <= most)?;
        let ids = WRAPPERS + text + SLOTS * options.samples_of(measured).div_ceil(FRAME_SAMPLES);
        let rows = max_tokens.map_or(ids, |most| ids.min(most));
        Some(Length { rows, tokens: text, context: 0 })
    })
}

/// The rows of a clip are counted.
#[derive(Default)]
struct Counted<F> {
    of: F,
    rows: Vec<f32>,
}

impl<F: Framing> Framing for Counted<F> {
    const WIDTH: usize = 1;

    fn frames(samples: u64) -> u64 {
        F::frames(samples)
    }

    fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>) {
        self.of.push(samples, &mut self.rows);
        let whole = self.rows.len() / F::WIDTH;
        self.rows.drain(..whole * F::WIDTH);
        rows.resize(rows.len() + whole, 0.0);
    }

    fn finish(mut self, rows: &mut Vec<f32>) -> Result<(), u64> {
        self.of.finish(&mut self.rows)?;
        rows.resize(rows.len() + self.rows.len() / F::WIDTH, 0.0);
        Ok(())
    }
}

/// How long a clip is.
pub(crate) struct Length {
    pub(crate) rows: usize,
    /// Ids of its text.
    pub(crate) tokens: usize,
    /// Rows of context.
    pub(crate) context: usize,
}

/// Measures the clips of a source. `of`: from a clip's frames and what was measured, if it can be used.
pub(crate) fn lengths<F: Framing>(
    source: &Source,
    options: &PrepareOptions,
    progress: &dyn Fn(Progress<'_>) -> bool,
    of: impl Fn(&Entry, usize, &Measured) -> Option<Length>,
) -> Result<Lengths, DataError> {
    options.check()?;
    // A gain changes no length.
    let edits = Edits { loudness: None, ..options.edits };
    let options = &PrepareOptions { edits, ..options.clone() };
    let mut made = Lengths { index: ClipIndex::new(&options.cache, EXTENSION), seconds: Vec::new() };
    let (mut feed, mut outside, mut first) = (Feed::default(), 0, Vec::new());
    for (i, entry) in source.entries().enumerate() {
        let entry = entry?;
        let taken = match feed.audio(&entry) {
            Ok(_) if entry.text.chars().count() < options.limits.min_chars => {
                Taken::Outside("too little text".to_owned())
            }
            // What is wrong with a clip is said where it is prepared.
            Ok(audio) => take::<Counted<F>>(audio, options).unwrap_or(Taken::Silent { peak: 0.0 }),
            Err(_) => Taken::Silent { peak: 0.0 },
        };
        match taken {
            Taken::Clip { rows, measured } => {
                if let Some(Length { rows, tokens, context }) = of(&entry, rows.len(), &measured) {
                    made.seconds.push(measured.seconds);
                    let clip = ClipMeta {
                        name: entry.name.clone(),
                        frames: rows as u32,
                        tokens: tokens as u32,
                        context: context as u32,
                        weight: 1.0,
                        measured,
                        file: ClipMeta::file_name(&[0; 32], EXTENSION),
                        key: String::new(),
                    };
                    made.index.push(&clip).map_err(|reason| DataError::file(&source.path, reason))?;
                }
            }
            Taken::Outside(reason) => {
                outside += 1;
                if first.len() < NAMED {
                    first.push(format!("{}: {reason}", entry.name));
                }
            }
            Taken::Silent { .. } => {}
        }
        if !progress(Progress { done: i + 1, total: source.len(), name: &entry.name }) {
            return Err(DataError::Stopped);
        }
    }
    if options.policy == Policy::Refuse && outside > 0 {
        return Err(DataError::OutsideLimits { clips: outside, lines: first });
    }
    if made.index.is_empty() {
        let reason = first.into_iter().next().unwrap_or("no audio that can be read".to_owned());
        return Err(DataError::NoClips { path: source.path.clone(), reason });
    }
    Ok(made)
}
