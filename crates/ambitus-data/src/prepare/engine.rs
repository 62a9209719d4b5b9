//! What every pass over a data set shares, whatever it makes of a clip: workers, content keys, the cache, verdicts.
//!
//! Clips are taken in the order of their names, a few at a time, and what becomes of each goes to disk in that order. What stays in memory
//! is a row of the index.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::pass::{Framing, Taken, take};
use super::{Policy, PrepareOptions, Progress};
use crate::atomic;
use crate::audio::AudioInput;
use crate::error::DataError;
use crate::files;
use crate::index::ClipMeta;
use crate::measured::{Edited, Measured};
use crate::outcomes::{Cause, Problem, Verdict};
use crate::sources::{Entry, Feed, Source};

/// Clips of a worker that are taken before the next are: what may wait for a slow one.
const AHEAD: usize = 64;

/// Of the files that say what was changed about a clip's sound, and their most bytes.
const EDITED_EXTENSION: &str = "edited";
const MOST_EDITED: u64 = 4096;

/// A clip file, made or found.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Length in the model's sequence.
    pub(crate) frames: u32,
    /// Tokens of the text.
    pub(crate) tokens: u32,
    /// Rows of context, which the others attend to.
    pub(crate) context: u32,
    pub(crate) measured: Measured,
    /// Why it is outside limits that are not part of its key.
    pub(crate) outside: Option<String>,
}

/// What a pass makes of the clips.
pub(crate) trait Make: Sync {
    /// What the text becomes.
    type Text;

    /// Returns the version of the numbers that are made of audio; part of every key.
    fn spec(&self) -> &str;

    /// Of the clip files.
    const EXTENSION: &'static str;

    /// Makes ids of the text; `Err` says what is bad in it, before its audio is opened.
    fn text(&self, entry: &Entry) -> Result<Self::Text, Problem>;

    /// Returns the tokens of the text.
    fn tokens(text: &Self::Text) -> usize;

    /// Hashes everything on which the file depends, except audio and cutting.
    fn key(&self, text: &Self::Text, entry: &Entry, hash: &mut blake3::Hasher);

    /// Returns how often a clip is trained on, in relation to others.
    fn weight(&self, _: &Entry, _: &Found) -> f32 {
        1.0
    }

    /// Returns the file if it is whole and has this key.
    fn cached(&self, text: &Self::Text, path: &Path, key: &[u8; 32]) -> Option<Found>;

    /// Makes and saves a clip of its audio. An error ends the pass.
    fn make(
        &self,
        text: Self::Text,
        entry: &Entry,
        audio: AudioInput,
        file: (&Path, &[u8; 32]),
    ) -> Result<Made, DataError>;
}

/// What became of a clip's audio.
pub(crate) enum Made {
    /// A clip.
    Clip(Found),
    /// Nothing, since something is wrong with it.
    Bad(Problem),
    /// Nothing: it is outside the limits.
    Outside(String),
}

/// Makes a clip of all of its audio at once, which the limits bound: of frames F. The inner error of `make` is a reason why the clip is
/// bad, the outer one ends the pass.
pub(crate) fn make_whole<F: Framing>(
    audio: AudioInput,
    options: &PrepareOptions,
    make: impl FnOnce(Vec<f32>, Measured) -> Result<Result<Found, String>, DataError>,
) -> Result<Made, DataError> {
    let (rows, measured) = match take::<F>(audio, options) {
        Ok(Taken::Clip { rows, measured }) => (rows, measured),
        Ok(Taken::Outside(reason)) => return Ok(Made::Outside(reason)),
        Ok(Taken::Silent { peak }) => return Ok(Made::silent(peak)),
        Err(error) => return Ok(Made::Bad((Cause::Audio, error.to_string()))),
    };
    Ok(match make(rows, measured)? {
        Ok(found) => Made::Clip(found),
        Err(reason) => Made::Bad((Cause::Transcript, reason)),
    })
}

impl Made {
    /// Returns what becomes of audio in which nothing is to be heard.
    pub(crate) fn silent(peak: f32) -> Made {
        let reason = format!("nothing to hear in it (peak {:.0} dBFS)", 20.0 * peak.max(1e-6).log10());
        Made::Bad((Cause::Silent, reason))
    }
}

/// What became of a clip.
pub(crate) struct Done {
    pub(crate) entry: Entry,
    pub(crate) verdict: Verdict,
    /// The clip, if it is usable.
    pub(crate) clip: Option<ClipMeta>,
    /// Tokens of its text.
    pub(crate) tokens: usize,
}

/// Makes a clip of each entry on the options' threads, and gives what became of them to `each` in the order of the entries.
pub(crate) fn make_all<M: Make>(
    source: &Source,
    maker: &M,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
    mut each: impl FnMut(Done) -> Result<(), DataError>,
) -> Result<(), DataError> {
    // Audio that lies in a table is read in order, so taking an entry and its audio is one step.
    let feed = Mutex::new((0, Feed::default()));
    let (done, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let total = source.len();
    let threads = options.threads.max(1);
    for first in (0..total).step_by(AHEAD * threads) {
        let end = total.min(first + AHEAD * threads);
        let results: Vec<Mutex<Option<Result<Done, DataError>>>> =
            (first..end).map(|_| Mutex::new(None)).collect();
        let take_next = || {
            let mut feed = feed.lock().unwrap_or_else(PoisonError::into_inner);
            let (next, feed) = &mut *feed;
            let i = Some(*next).filter(|next| *next < end)?;
            *next += 1;
            let taken = source.entry(i).map(|entry| {
                let audio = feed.audio(&entry);
                (entry, audio)
            });
            Some((i, taken))
        };
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let Some((i, taken)) = take_next() else { break };
                let result = taken.and_then(|(entry, audio)| clip(maker, options, entry, audio));
                let now = done.fetch_add(1, Ordering::Relaxed) + 1;
                let name = result.as_ref().map_or("", |done| &done.entry.name);
                if result.is_err() || !progress(Progress { done: now, total, name }) {
                    stop.store(true, Ordering::Relaxed);
                }
                *results[i - first].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let mut results: Vec<_> =
            results.into_iter().map(|r| r.into_inner().unwrap_or_else(PoisonError::into_inner)).collect();
        // An error goes before what is missing because of it.
        if let Some(failed) = results.iter().position(|r| matches!(r, Some(Err(_)))) {
            return results.swap_remove(failed).map_or(Ok(()), |r| r.map(|_| ()));
        }
        for result in results {
            each(result.ok_or(DataError::Stopped)??)?;
        }
    }
    Ok(())
}

/// Prepares one clip. An error is one of the cache, which ends the pass; what is wrong with the clip is a verdict.
fn clip<M: Make>(
    maker: &M,
    options: &PrepareOptions,
    entry: Entry,
    audio: Result<AudioInput, String>,
) -> Result<Done, DataError> {
    let text = maker.text(&entry);
    let tokens = text.as_ref().map_or(0, M::tokens);
    let (verdict, clip) = judge(maker, options, &entry, text, audio)?;
    Ok(Done { entry, verdict, clip, tokens })
}

fn judge<M: Make>(
    maker: &M,
    options: &PrepareOptions,
    entry: &Entry,
    text: Result<M::Text, Problem>,
    audio: Result<AudioInput, String>,
) -> Result<(Verdict, Option<ClipMeta>), DataError> {
    let limits = &options.limits;
    let outside = |reason: String| Ok((Verdict::Outside { reason }, None));
    let bad = |(cause, reason): Problem| Ok((Verdict::Bad { cause, reason }, None));
    let chars = entry.text.chars().count();
    if chars < limits.min_chars {
        return outside(format!("{chars} characters of text, fewer than {}", limits.min_chars));
    }
    let text = match text {
        Ok(text) => text,
        Err(problem) => return bad(problem),
    };
    let audio = match audio {
        Ok(audio) => audio,
        Err(reason) => return bad((Cause::Audio, reason)),
    };
    let key = match audio.hash() {
        Ok(hash) => key(maker, options, &text, entry, hash),
        Err(error) => return bad((Cause::Audio, error.to_string())),
    };
    let file = ClipMeta::file_name(&key, M::EXTENSION);
    let path = options.cache.join(&file);
    let beside = options.cache.join(ClipMeta::file_name(&key, EDITED_EXTENSION));
    let usable = |found: Found, cached: bool| match found.outside {
        Some(reason) => outside(reason),
        None => {
            let meta = ClipMeta {
                name: entry.name.clone(),
                frames: found.frames,
                tokens: found.tokens,
                context: found.context,
                weight: maker.weight(entry, &found),
                measured: found.measured,
                file,
                key: blake3::Hash::from_bytes(key).to_hex().to_string(),
            };
            Ok((Verdict::Ok { cached, edited: found.measured.edited.unwrap_or_default() }, Some(meta)))
        }
    };
    if path.exists()
        && let Some(mut found) = maker.cached(&text, &path, &key)
        && let Some(edited) = if options.edits.any() { read_edited(&beside, &key).map(Some) } else { Some(None) }
        // The limits are not part of the key: a narrower limit must not use a longer clip from before.
        && (limits.min_seconds..=limits.max_seconds).contains(&found.measured.seconds)
    {
        found.measured.edited = edited;
        return usable(found, true);
    }
    match maker.make(text, entry, audio, (&path, &key))? {
        Made::Clip(found) => {
            if let Some(edited) = &found.measured.edited {
                write_edited(&beside, &key, edited)?;
            }
            usable(found, false)
        }
        Made::Outside(reason) => outside(reason),
        Made::Bad(problem) => bad(problem),
    }
}

/// Writes what was changed about a clip.
fn write_edited(path: &Path, key: &[u8; 32], edited: &Edited) -> Result<(), DataError> {
    let key = blake3::Hash::from_bytes(*key).to_hex().to_string();
    let json = serde_json::to_vec(&(key, edited)).map_err(|e| DataError::io(path, e.into()))?;
    atomic::write(path, |file| file.write_all(&json))
}

/// Returns what was changed about the clip with this key, where that is known.
fn read_edited(path: &Path, key: &[u8; 32]) -> Option<Edited> {
    let bytes = files::read_bytes(path, MOST_EDITED).ok()?;
    let (found, edited): (String, Edited) = serde_json::from_slice(&bytes).ok()?;
    (found == blake3::Hash::from_bytes(*key).to_hex().as_str()).then_some(edited)
}

/// Returns the content key: audio bytes, cutting, edits, and what the maker adds.
fn key<M: Make>(
    maker: &M,
    options: &PrepareOptions,
    text: &M::Text,
    entry: &Entry,
    audio: blake3::Hash,
) -> [u8; 32] {
    let mut key = blake3::Hasher::new();
    key.update(maker.spec().as_bytes());
    if options.policy == Policy::Cut {
        key.update(&options.limits.max_seconds.to_le_bytes());
    }
    options.edits.key(&mut key);
    key.update(audio.as_bytes());
    maker.key(text, entry, &mut key);
    *key.finalize().as_bytes()
}
