//! The pass over a data set: every clip is read, checked, measured and cached, or reported with a reason.
//!
//! Clips outside the length limits follow the [`Policy`]. `skip` leaves them out and counts them; `refuse` ends with an
//! error that lists them; `cut` removes silence at both ends of clips that are too long (keeping 0.1 s) and leaves out
//! those that are still too long, because audio can be cut anywhere but its transcript cannot be cut with it. Clips that
//! are too short are left out by `cut` as well.
//!
//! A prepared clip is one file, named by the content it was made from (audio bytes, text, tokenizer, mel, cutting, edits), and
//! appears whole or not at all. So an interrupted pass continues where it stopped, a changed file is prepared again, and
//! a damaged cache file is replaced.

mod changes;
mod edits;
mod engine;
mod lengths;
mod pass;
mod record;
pub(crate) mod summary;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use crate::outcomes::Problem;
pub(crate) use edits::{Edit, Gauge, Stream};
pub(crate) use engine::{Found, Made, Make, make_all, make_whole};
pub(crate) use lengths::{Length, lengths};
pub(crate) use pass::{SILENT_LEVEL, WaveFrames};
pub(crate) use record::Record;

pub use crate::outcomes::{Cause, Outcome, Outcomes, Verdict};
pub use changes::Changes;
pub use edits::{Edits, LOUDNESS, MOST_SILENCE};
pub use lengths::{Lengths, mel_lengths, speech_lengths};
pub use summary::{ADVISED_MINUTES, LOUD_RMS, Named, Summary};

use crate::audio::{AudioInput, MAX_RATE, MIN_RATE, READER_BYTES};
use crate::clip::{self, Clip};
use crate::error::DataError;
use crate::index::ClipIndex;
use crate::measured::Measured;
use crate::mel::{self, MEL_SPEC, MELS};
use crate::sources::{Entry, Source};
use crate::speech::interleave::{FRAME_SAMPLES, SLOTS};
use crate::text::{MAX_UNKNOWN_SHARE, Tokenizer, strip};
use pass::MelFrames;
use summary::{Advice, Unknown};

/// What to do with clips outside the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Leave them out, counted and listed.
    #[default]
    Skip,
    /// Cut silence at the ends of long ones; leave out the rest.
    Cut,
    /// End with an error.
    Refuse,
}

/// Length limits of clips; the defaults are those of the data set class that is recorded in `parity/`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Shortest clip, seconds.
    pub min_seconds: f64,
    /// Longest clip, seconds.
    pub max_seconds: f64,
    /// Shortest transcript, characters.
    pub min_chars: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { min_seconds: 0.3, max_seconds: 30.0, min_chars: 1 }
    }
}

/// Longest `max_seconds` that is accepted: what a clip file can hold.
pub const MAX_CLIP_SECONDS: f64 = 600.0;

/// How to prepare a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct PrepareOptions {
    /// Length limits.
    pub limits: Limits,
    /// What to do with clips outside them.
    pub policy: Policy,
    /// Folder of the clip files and of `index.json`; made if missing.
    pub cache: PathBuf,
    /// Worker threads, at least 1. The result does not depend on it.
    pub threads: usize,
    /// Of the audio that clips are made of, Hz: the model's. Files of other rates are resampled.
    pub rate: u32,
    /// What is changed about the sound of clips.
    pub edits: Edits,
}

/// Returns the most ids of a spoken text: as many as the longest clip has of audio. One clip with more would make every
/// micro-batch as long.
pub(crate) fn most_text_ids(options: &PrepareOptions) -> u64 {
    options.most_samples().div_ceil(FRAME_SAMPLES as u64) * SLOTS as u64
}

/// Most characters of what is said in a second of the longest clip: some times as many as the fastest speakers say.
const CHARS_A_SECOND: f64 = 100.0;

/// Memory that a text takes while it becomes tokens, for each of its bytes: what the segmentation gathers, and a string for each
/// token.
const TEXT_BYTES: u64 = 160;

impl PrepareOptions {
    /// Returns the bound on the memory of [`prepare`] that does not depend on the data, bytes: per thread a reader, two copies
    /// of the longest clip (a vector that has grown may hold twice its content, of which half was never touched), its file
    /// image and the resampler; and once the tokenizer's dictionary, if it has one. Reading a [`Source`] takes less than a
    /// thread.
    pub fn fixed_bound(&self, tokenizer: &Tokenizer) -> u64 {
        let clip = self.most_mel_frames() * MELS as u64 * 4;
        let thread = READER_BYTES as u64 + 3 * clip + (1 << 20) + self.edit_bytes();
        self.threads.max(1) as u64 * thread + tokenizer.dictionary_bytes()
    }

    /// Returns the bound on the memory of [`prepare`], with what it returns, bytes: what is fixed, what is held of each clip, a
    /// thread's longest text and, of a table, the row's audio.
    pub fn memory_bound(&self, tokenizer: &Tokenizer, source: &Source) -> u64 {
        // Longer ones are not read.
        let text = (source.longest_text() as u64).min(4 * self.most_mel_frames());
        let thread = TEXT_BYTES * text + 2 * source.row_bytes;
        self.fixed_bound(tokenizer)
            + source.held_bytes()
            + source.row_bytes
            + self.threads.max(1) as u64 * thread
    }

    /// Returns the samples of the longest clip.
    pub(crate) fn most_samples(&self) -> u64 {
        (self.limits.max_seconds * f64::from(self.rate)) as u64
    }

    /// Returns the most samples of a file of which the loudness is measured.
    pub(crate) fn most_measured(&self) -> u64 {
        (MAX_CLIP_SECONDS * f64::from(self.rate)) as u64
    }

    /// Returns the bytes of a thread that finding what to change about a clip takes.
    pub(crate) fn edit_bytes(&self) -> u64 {
        self.edits.bytes(MAX_CLIP_SECONDS)
    }

    /// Returns the mel frames of the longest clip.
    fn most_mel_frames(&self) -> u64 {
        mel::frames(self.most_samples())
    }

    /// Returns the seconds of so many samples.
    pub(crate) fn seconds(&self, samples: u64) -> f64 {
        samples as f64 / f64::from(self.rate)
    }

    /// Returns the samples of a clip.
    pub(crate) fn samples_of(&self, clip: &Measured) -> usize {
        (clip.seconds * f64::from(self.rate)).round() as usize
    }

    /// Returns the most characters of what is said in a clip.
    pub(crate) fn most_chars(&self) -> u64 {
        (self.limits.max_seconds * CHARS_A_SECOND) as u64
    }

    /// Returns what is said in a clip, unless that is more than tokenising has memory for.
    pub(crate) fn said<'e>(&self, entry: &'e Entry) -> Result<&'e str, Problem> {
        let (text, most) = (strip(&entry.text), self.most_chars());
        let chars = text.chars().count() as u64;
        if chars <= most {
            return Ok(text);
        }
        let reason = format!(
            "{chars} characters of text, more than {most}, which nobody says in the {} s of the longest clip",
            self.limits.max_seconds
        );
        Err((Cause::Transcript, reason))
    }

    /// Refuses another rate than that of the numbers that are made.
    pub(crate) fn check_rate(&self, of: u32) -> Result<(), DataError> {
        match self.rate == of {
            true => Ok(()),
            false => Err(DataError::Invalid(format!("audio at {} Hz where {of} Hz are taken", self.rate))),
        }
    }

    pub(crate) fn check(&self) -> Result<(), DataError> {
        let Limits { min_seconds, max_seconds, .. } = self.limits;
        if !(min_seconds >= 0.0 && max_seconds > min_seconds && max_seconds <= MAX_CLIP_SECONDS) {
            return Err(DataError::Invalid(format!(
                "length limits {min_seconds} to {max_seconds} s: the first must not be negative, the second larger \
                 and at most {MAX_CLIP_SECONDS}"
            )));
        }
        if !(MIN_RATE..=MAX_RATE).contains(&self.rate) {
            return Err(DataError::Invalid(format!(
                "audio at {} Hz: {MIN_RATE} to {MAX_RATE} can be made",
                self.rate
            )));
        }
        self.edits.check()
    }
}

/// A prepared data set.
#[derive(Debug)]
pub struct Prepared {
    /// Usable clips.
    pub index: Arc<ClipIndex>,
    /// Every clip of the source, with what became of it.
    pub outcomes: Outcomes,
    /// Overview.
    pub summary: Summary,
}

/// How far the pass is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Clips done.
    pub done: usize,
    /// All clips.
    pub total: usize,
    /// The clip just done.
    pub name: &'a str,
}

/// Prepares every clip of `source` as mel frames and characters. `progress` is called after each clip, from any worker;
/// when it returns false the pass ends with [`DataError::Stopped`].
pub fn prepare(
    source: &Source,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Prepared, DataError> {
    options.check()?;
    options.check_rate(mel::SAMPLE_RATE)?;
    let advice = Advice { minutes: Some(ADVISED_MINUTES), sentences: Some(2), ..Advice::default() };
    let maker = MelClips {
        options,
        tokenizer,
        fingerprint: tokenizer.fingerprint(),
        most_frames: options.most_mel_frames(),
        max_seconds: options.limits.max_seconds,
    };
    let mut record = Record::new(&source.problems, MelClips::EXTENSION, options)?;
    // Text first: a wrong vocabulary shows at once, not after hours of audio.
    let (unknown, total) = maker.unknown(source)?;
    if unknown.missing as f64 > MAX_UNKNOWN_SHARE * total as f64 {
        record.look_at_audio(source)?;
        return Err(record.refuse(unknown, total));
    }
    make_all(source, &maker, options, progress, |done| record.done(done, &advice))?;
    record.finish(&source.path, options, unknown, &advice)
}

/// Makes clips of mel frames and text ids.
struct MelClips<'a> {
    options: &'a PrepareOptions,
    tokenizer: &'a Tokenizer,
    fingerprint: [u8; 32],
    most_frames: u64,
    max_seconds: f64,
}

impl MelClips<'_> {
    /// Returns the tokens of all texts that are not in the vocabulary, and the number of all.
    fn unknown(&self, source: &Source) -> Result<(Unknown, u64), DataError> {
        let (mut unknown, mut total) = (Unknown::default(), 0);
        for entry in source.entries() {
            let entry = entry?;
            if self.fits(&entry).is_ok() {
                let encoded = self.tokenizer.encode(&entry.text);
                total += encoded.ids.len() as u64;
                encoded.unknown.into_iter().for_each(|token| unknown.add(token));
            }
        }
        Ok((unknown, total))
    }

    /// Refuses a text that is too long for every clip: each character is a token at least.
    fn fits(&self, entry: &Entry) -> Result<(), String> {
        let (chars, frames) = (entry.text.chars().count() as u64, self.most_frames);
        if chars <= frames {
            return Ok(());
        }
        Err(format!(
            "{chars} characters of text for {frames} frames of the longest clip ({} s); {ONE_PER_FRAME}",
            self.max_seconds
        ))
    }

    /// Makes and saves a clip of its frames. The inner error is a reason why it is bad.
    fn of_frames(
        &self,
        ids: Vec<u32>,
        _: &Entry,
        mel: Vec<f32>,
        measured: Measured,
        (path, key): (&Path, &[u8; 32]),
    ) -> Result<Result<Found, String>, DataError> {
        let clip = Clip { mel, ids };
        if clip.ids.len() > clip.frames() {
            return Ok(Err(format!(
                "{} tokens of text for {} frames of audio ({:.1} s); {ONE_PER_FRAME}",
                clip.ids.len(),
                clip.frames(),
                measured.seconds
            )));
        }
        clip::save(path, key, &clip, &measured)?;
        Ok(Ok(Found::of_clip(&clip, measured)))
    }
}

const ONE_PER_FRAME: &str =
    "the model has one text position per frame, so audio and text cannot belong together";

impl Make for MelClips<'_> {
    type Text = Vec<u32>;

    fn spec(&self) -> &str {
        MEL_SPEC
    }

    const EXTENSION: &'static str = "clip";

    fn text(&self, entry: &Entry) -> Result<Vec<u32>, Problem> {
        let ids = self.fits(entry).map(|()| self.tokenizer.encode(&entry.text).ids);
        ids.map_err(|reason| (Cause::Transcript, reason))
    }

    fn tokens(ids: &Vec<u32>) -> usize {
        ids.len()
    }

    fn key(&self, _: &Vec<u32>, entry: &Entry, hash: &mut blake3::Hasher) {
        hash.update(&self.fingerprint);
        hash.update(entry.text.as_bytes());
    }

    fn cached(&self, ids: &Vec<u32>, path: &Path, key: &[u8; 32]) -> Option<Found> {
        let (found, clip, measured) = clip::read(path).ok()?;
        (found == *key && clip.ids == *ids).then(|| Found::of_clip(&clip, measured))
    }

    fn make(
        &self,
        text: Vec<u32>,
        entry: &Entry,
        audio: AudioInput,
        file: (&Path, &[u8; 32]),
    ) -> Result<Made, DataError> {
        make_whole::<MelFrames>(audio, self.options, |rows, measured| {
            self.of_frames(text, entry, rows, measured, file)
        })
    }
}

impl Found {
    fn of_clip(clip: &Clip, measured: Measured) -> Self {
        let (frames, tokens) = (clip.frames() as u32, clip.ids.len() as u32);
        Self { frames, tokens, context: 0, measured, outside: None }
    }
}
