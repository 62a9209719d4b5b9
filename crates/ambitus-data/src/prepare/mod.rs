//! The pass over a data set: every clip is read, checked, measured and cached, or reported with a reason.
//!
//! Clips outside the length limits follow the [`Policy`]. `skip` leaves them out and counts them; `refuse` ends with an
//! error that lists them; `cut` removes silence at both ends of clips that are too long (keeping 0.1 s) and leaves out
//! those that are still too long, because audio can be cut anywhere but its transcript cannot be cut with it. Clips that
//! are too short are left out by `cut` as well.
//!
//! A prepared clip is one file, named by the content it was made from (audio bytes, text, tokenizer, mel, cutting), and
//! appears whole or not at all. So an interrupted pass continues where it stopped, a changed file is prepared again, and
//! a damaged cache file is replaced.

mod engine;
mod pass;
pub(crate) mod summary;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use engine::{Found, Make, conclude, finish, make_all};
pub(crate) use pass::WaveFrames;

pub use summary::{ADVISED_MINUTES, LOUD_RMS, Summary};

use crate::audio::READER_BYTES;
use crate::clip::{self, Clip, Measured};
use crate::error::DataError;
use crate::index::ClipIndex;
use crate::mel::{self, MEL_SPEC, MELS};
use crate::sources::{Entry, Source};
use crate::text::{MAX_UNKNOWN_SHARE, Tokenizer};
use pass::MelFrames;
use summary::Advice;

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

/// Length limits of clips; the defaults are those of the f5-tts data set class.
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
}

impl PrepareOptions {
    /// Bound on the memory of [`prepare`] beyond its result, bytes: per thread a reader, two copies of the longest clip,
    /// its file image and the resampler; and once the tokenizer's dictionary, if it has one.
    pub fn memory_bound(&self, tokenizer: &Tokenizer) -> u64 {
        let frames = mel::frames((self.limits.max_seconds * f64::from(mel::SAMPLE_RATE)) as u64);
        let clip = frames * MELS as u64 * 4;
        // Vectors grow by doubling, so each of the three may hold twice its content.
        let thread = READER_BYTES as u64 + 6 * clip + (4 << 20);
        self.threads.max(1) as u64 * thread + tokenizer.dictionary_bytes()
    }
}

impl PrepareOptions {
    pub(crate) fn check(&self) -> Result<(), DataError> {
        let Limits { min_seconds, max_seconds, .. } = self.limits;
        if !(min_seconds >= 0.0 && max_seconds > min_seconds && max_seconds <= MAX_CLIP_SECONDS) {
            return Err(DataError::Invalid(format!(
                "length limits {min_seconds} to {max_seconds} s: the first must not be negative, the second larger \
                 and at most {MAX_CLIP_SECONDS}"
            )));
        }
        Ok(())
    }
}

/// What became of one clip of the source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the clip.
    pub name: String,
    /// File to look at when it is not usable.
    pub file: PathBuf,
    /// Line in it.
    pub line: Option<u64>,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Usable or not.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// Usable.
    Ok {
        /// It was in the cache already.
        cached: bool,
    },
    /// Cannot be used.
    Bad {
        /// Why.
        reason: String,
        /// Because nothing is to be heard in it.
        silent: bool,
    },
    /// Outside the limits.
    Outside {
        /// How.
        reason: String,
    },
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        match &self.verdict {
            Verdict::Ok { .. } => write!(f, ": {}: ok", self.name),
            Verdict::Bad { reason, .. } => write!(f, ": {}: not used: {reason}", self.name),
            Verdict::Outside { reason } => {
                write!(f, ": {}: outside the limits: {reason}", self.name)
            }
        }
    }
}

/// A prepared data set.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Usable clips.
    pub index: ClipIndex,
    /// Every clip of the source, sorted by name, with what became of it.
    pub outcomes: Vec<Outcome>,
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
    // Text first: a wrong vocabulary shows at once, not after hours of audio.
    let (texts, tokens, unknown) = encode_all(&source.entries, tokenizer)?;
    let maker = MelClips { texts, fingerprint: tokenizer.fingerprint() };
    let results = make_all(source, &maker, options, progress)?;
    let advice = Advice { minutes: Some(ADVISED_MINUTES), sentences: Some(2), ..Advice::default() };
    finish(source, results, options, |index, outcomes| {
        Summary::new(index, outcomes, &source.entries, (tokens, unknown), &advice)
    })
}

type Texts = (Vec<Vec<u32>>, u64, Vec<(String, u64)>);

fn encode_all(entries: &[Entry], tokenizer: &Tokenizer) -> Result<Texts, DataError> {
    let mut counts: HashMap<String, u64> = HashMap::new();
    let mut total = 0;
    let texts = entries
        .iter()
        .map(|entry| {
            let encoded = tokenizer.encode(&entry.text);
            total += encoded.ids.len() as u64;
            for token in encoded.unknown {
                *counts.entry(token).or_default() += 1;
            }
            encoded.ids
        })
        .collect();
    let mut unknown: Vec<(String, u64)> = counts.into_iter().collect();
    unknown.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let missing: u64 = unknown.iter().map(|(_, n)| n).sum();
    if missing as f64 > MAX_UNKNOWN_SHARE * total as f64 {
        return Err(DataError::UnknownTokens { unknown: missing, total, tokens: unknown });
    }
    Ok((texts, total, unknown))
}

/// Makes clips of mel frames and text ids.
struct MelClips {
    texts: Vec<Vec<u32>>,
    fingerprint: [u8; 32],
}

impl Make for MelClips {
    type Frames = MelFrames;

    const SPEC: &'static str = MEL_SPEC;
    const EXTENSION: &'static str = "clip";

    fn key(&self, _: usize, entry: &Entry, hash: &mut blake3::Hasher) {
        hash.update(&self.fingerprint);
        hash.update(entry.text.as_bytes());
    }

    fn cached(&self, i: usize, path: &Path, key: &[u8; 32]) -> Option<Found> {
        let (found, clip, measured) = clip::read(path).ok()?;
        (found == *key && clip.ids == self.texts[i]).then(|| Found::of_clip(&clip, measured))
    }

    fn make(
        &self,
        i: usize,
        _: &Entry,
        mel: Vec<f32>,
        measured: Measured,
        (path, key): (&Path, &[u8; 32]),
    ) -> Result<Result<Found, String>, DataError> {
        let clip = Clip { mel, ids: self.texts[i].clone() };
        if clip.ids.len() > clip.frames() {
            return Ok(Err(format!(
                "{} tokens of text for {} frames of audio ({:.1} s); the model has one text position per frame, so \
                 audio and text cannot belong together",
                clip.ids.len(),
                clip.frames(),
                measured.seconds
            )));
        }
        clip::save(path, key, &clip, &measured)?;
        Ok(Ok(Found::of_clip(&clip, measured)))
    }
}

impl Found {
    fn of_clip(clip: &Clip, measured: Measured) -> Self {
        Self { frames: clip.frames() as u32, tokens: clip.ids.len() as u32, measured }
    }
}
