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

mod pass;
mod summary;

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

pub use summary::{ADVISED_MINUTES, LOUD_RMS, Summary};

use crate::audio::READER_BYTES;
use crate::clip::{self, Clip};
use crate::error::DataError;
use crate::index::{ClipIndex, ClipMeta};
use crate::mel::{self, MEL_SPEC, MELS};
use crate::sources::{Entry, Source};
use crate::text::{MAX_UNKNOWN_SHARE, Tokenizer};
use pass::{Taken, take};

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

/// Prepares every clip of `source`. `progress` is called after each clip, from any worker; when it returns false the
/// pass ends with [`DataError::Stopped`].
pub fn prepare(
    source: &Source,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Prepared, DataError> {
    check(options)?;
    std::fs::create_dir_all(&options.cache).map_err(|e| DataError::io(&options.cache, e))?;
    // Text first: a wrong vocabulary shows at once, not after hours of audio.
    let (texts, tokens, unknown) = encode_all(&source.entries, tokenizer)?;
    let worker = Worker { fingerprint: tokenizer.fingerprint(), options };
    let results = run(&source.entries, &texts, &worker, progress)?;

    let mut outcomes: Vec<Outcome> = source
        .problems
        .iter()
        .map(|p| Outcome {
            name: p.name.clone(),
            file: p.file.clone(),
            line: p.line,
            verdict: Verdict::Bad { reason: p.reason.clone(), silent: false },
        })
        .collect();
    let mut index = ClipIndex { clips: Vec::new(), folder: options.cache.clone() };
    for (entry, (verdict, meta)) in source.entries.iter().zip(results) {
        index.clips.extend(meta);
        outcomes.push(Outcome {
            name: entry.name.clone(),
            file: entry.file.clone(),
            line: Some(entry.line),
            verdict,
        });
    }
    outcomes.sort_by(|a, b| a.name.cmp(&b.name).then(a.line.cmp(&b.line)));
    let outside: Vec<String> = outcomes
        .iter()
        .filter_map(|o| match &o.verdict {
            Verdict::Outside { reason } => Some(format!("{}: {reason}", o.name)),
            _ => None,
        })
        .collect();
    if options.policy == Policy::Refuse && !outside.is_empty() {
        return Err(DataError::OutsideLimits { clips: outside });
    }
    if index.clips.is_empty() {
        let reasons: Vec<String> = outcomes.iter().take(3).map(Outcome::to_string).collect();
        return Err(DataError::NoClips { path: source.path.clone(), reason: reasons.join("; ") });
    }
    index.save(&options.cache.join("index.json"))?;
    let summary = Summary::new(&index, &outcomes, &source.entries, tokens, unknown);
    Ok(Prepared { index, outcomes, summary })
}

fn check(options: &PrepareOptions) -> Result<(), DataError> {
    let Limits { min_seconds, max_seconds, .. } = options.limits;
    if !(min_seconds >= 0.0 && max_seconds > min_seconds && max_seconds <= MAX_CLIP_SECONDS) {
        return Err(DataError::Invalid(format!(
            "length limits {min_seconds} to {max_seconds} s: the first must not be negative, the second larger and at \
             most {MAX_CLIP_SECONDS}"
        )));
    }
    Ok(())
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

type Result1 = (Verdict, Option<ClipMeta>);

/// Runs the worker over all entries on the options' threads; results in the order of the entries.
fn run(
    entries: &[Entry],
    texts: &[Vec<u32>],
    worker: &Worker<'_>,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Vec<Result1>, DataError> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let results: Vec<Mutex<Option<Result<Result1, DataError>>>> =
        entries.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = entries.get(i) else { break };
            let result = worker.clip(entry, &texts[i]);
            let failed = result.is_err();
            *results[i].lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
            let now = Progress {
                done: done.fetch_add(1, Ordering::Relaxed) + 1,
                total: entries.len(),
                name: &entry.name,
            };
            if failed || !progress(now) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..worker.options.threads {
            scope.spawn(work);
        }
        work();
    });
    let mut out = Vec::with_capacity(entries.len());
    let mut stopped = false;
    for slot in results {
        match slot.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(result) => out.push(result?),
            None => stopped = true,
        }
    }
    if stopped {
        return Err(DataError::Stopped);
    }
    Ok(out)
}

struct Worker<'a> {
    fingerprint: [u8; 32],
    options: &'a PrepareOptions,
}

impl Worker<'_> {
    /// One clip. An error is one of the cache, which ends the pass; what is wrong with the clip is a verdict.
    fn clip(&self, entry: &Entry, ids: &[u32]) -> Result<Result1, DataError> {
        let limits = &self.options.limits;
        let chars = entry.text.chars().count();
        if chars < limits.min_chars {
            let reason = format!("{chars} characters of text, fewer than {}", limits.min_chars);
            return Ok((Verdict::Outside { reason }, None));
        }
        let bad = |reason: String, silent: bool| Ok((Verdict::Bad { reason, silent }, None));
        let key = match self.key(&entry.audio, &entry.text) {
            Ok(key) => key,
            Err(error) => return bad(error.to_string(), false),
        };
        let hex = blake3::Hash::from_bytes(key).to_hex();
        let file = format!("{}.clip", &hex[..32]);
        let path = self.options.cache.join(&file);
        let meta = |frames: usize, measured| ClipMeta {
            name: entry.name.clone(),
            frames: frames as u32,
            tokens: ids.len() as u32,
            measured,
            file: file.clone(),
            key: hex.to_string(),
        };
        if path.exists()
            && let Ok((found, clip, measured)) = clip::read(&path)
            && found == key
            && clip.ids == ids
        {
            // The limits are not part of the key: a narrower limit must not use a longer clip from before.
            let outside = measured.seconds > limits.max_seconds || measured.seconds < limits.min_seconds;
            if !outside {
                return Ok((Verdict::Ok { cached: true }, Some(meta(clip.frames(), measured))));
            }
        }
        let (mel, measured) = match take(&entry.audio, limits, self.options.policy) {
            Ok(Taken::Clip { mel, measured }) => (mel, measured),
            Ok(Taken::Outside(reason)) => return Ok((Verdict::Outside { reason }, None)),
            Ok(Taken::Silent { peak }) => {
                return bad(
                    format!("nothing to hear in it (peak {:.0} dBFS)", 20.0 * peak.max(1e-6).log10()),
                    true,
                );
            }
            Err(error) => return bad(error.to_string(), false),
        };
        let clip = Clip { mel, ids: ids.to_vec() };
        if clip.ids.len() > clip.frames() {
            return bad(
                format!(
                    "{} tokens of text for {} frames of audio ({:.1} s); the model has one text position per frame, so \
                     audio and text cannot belong together",
                    clip.ids.len(),
                    clip.frames(),
                    measured.seconds
                ),
                false,
            );
        }
        clip::save(&path, &key, &clip, &measured)?;
        Ok((Verdict::Ok { cached: false }, Some(meta(clip.frames(), measured))))
    }

    /// Content key: audio bytes, text, tokenizer, mel, cutting.
    fn key(&self, audio: &Path, text: &str) -> Result<[u8; 32], DataError> {
        let io = |e| DataError::io(audio, e);
        if !std::fs::metadata(audio).map_err(io)?.is_file() {
            return Err(DataError::file(audio, "not a regular file"));
        }
        let mut file = std::fs::File::open(audio).map_err(io)?;
        let mut hash = blake3::Hasher::new();
        let mut buffer = vec![0u8; 1 << 16];
        loop {
            match file.read(&mut buffer).map_err(io)? {
                0 => break,
                n => hash.update(&buffer[..n]),
            };
        }
        let audio = hash.finalize();
        let mut key = blake3::Hasher::new();
        key.update(MEL_SPEC.as_bytes());
        if self.options.policy == Policy::Cut {
            key.update(&self.options.limits.max_seconds.to_le_bytes());
        }
        key.update(audio.as_bytes());
        key.update(&self.fingerprint);
        key.update(text.as_bytes());
        Ok(*key.finalize().as_bytes())
    }
}
