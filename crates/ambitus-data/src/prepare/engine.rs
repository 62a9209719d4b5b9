//! What every pass over a data set shares, whatever it makes of a clip: workers, content keys, the cache, verdicts.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::pass::{Framing, Taken, take};
use super::{Outcome, Policy, PrepareOptions, Prepared, Progress, Summary, Verdict};
use crate::audio::AudioInput;
use crate::clip::Measured;
use crate::error::DataError;
use crate::index::{ClipIndex, ClipMeta};
use crate::sources::{Entry, Feed, Source};

/// A clip file, made or found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// Length in the model's sequence.
    pub(crate) frames: u32,
    /// Tokens of the text.
    pub(crate) tokens: u32,
    pub(crate) measured: Measured,
}

/// What a pass makes of the clips. `i` is the number of the entry in the source.
pub(crate) trait Make: Sync {
    /// What of the audio is kept.
    type Frames: Framing;

    /// Version of the numbers that are made of audio; part of every key.
    const SPEC: &'static str;
    /// Of the clip files.
    const EXTENSION: &'static str;

    /// Everything but the audio and the cutting that the file depends on.
    fn key(&self, i: usize, entry: &Entry, hash: &mut blake3::Hasher);

    /// The file if it is whole and has this key.
    fn cached(&self, i: usize, path: &Path, key: &[u8; 32]) -> Option<Found>;

    /// Makes and saves a clip of audio frames. The inner error is a reason why the clip is bad, the outer one ends the pass.
    fn make(
        &self,
        i: usize,
        entry: &Entry,
        rows: Vec<f32>,
        measured: Measured,
        file: (&Path, &[u8; 32]),
    ) -> Result<Result<Found, String>, DataError>;

    /// Says what is bad in an entry before its audio is opened.
    fn refuse(&self, _i: usize) -> Option<String> {
        None
    }

    /// Says why a clip, made or found, is outside limits that are not part of its key.
    fn outside(&self, _found: &Found) -> Option<String> {
        None
    }
}

/// A verdict, with the clip if it is usable.
pub(crate) type Result1 = (Verdict, Option<ClipMeta>);

/// Makes a clip of each entry on the options' threads; results in the order of the entries.
pub(crate) fn make_all<M: Make>(
    source: &Source,
    maker: &M,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Vec<Result1>, DataError> {
    std::fs::create_dir_all(&options.cache).map_err(|e| DataError::io(&options.cache, e))?;
    let entries = &source.entries;
    // Audio that lies in a table is read in order, so taking an entry and its audio is one step.
    let feed = Mutex::new((0, Feed::default()));
    let take_next = || {
        let mut feed = feed.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, feed) = &mut *feed;
        let entry = entries.get(*next)?;
        *next += 1;
        Some((*next - 1, entry, feed.audio(source, entry)))
    };
    let done = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let results: Vec<Mutex<Option<Result<Result1, DataError>>>> =
        entries.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let Some((i, entry, audio)) = take_next() else { break };
            let result = clip(maker, options, i, entry, audio);
            let failed = result.is_err();
            *results[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
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
        for _ in 1..options.threads {
            scope.spawn(work);
        }
        work();
    });
    in_order(results)
}

/// The results, the first error, or that some are missing.
fn in_order(results: Vec<Mutex<Option<Result<Result1, DataError>>>>) -> Result<Vec<Result1>, DataError> {
    let mut out = Vec::with_capacity(results.len());
    let mut stopped = false;
    for slot in results {
        match slot.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(result) => out.push(result?),
            None => stopped = true,
        }
    }
    if stopped { Err(DataError::Stopped) } else { Ok(out) }
}

/// One clip. An error is one of the cache, which ends the pass; what is wrong with the clip is a verdict.
fn clip<M: Make>(
    maker: &M,
    options: &PrepareOptions,
    i: usize,
    entry: &Entry,
    audio: Result<AudioInput, String>,
) -> Result<Result1, DataError> {
    let limits = &options.limits;
    let outside = |reason: String| Ok((Verdict::Outside { reason }, None));
    let bad = |reason: String, silent: bool| Ok((Verdict::Bad { reason, silent }, None));
    let chars = entry.text.chars().count();
    if chars < limits.min_chars {
        return outside(format!("{chars} characters of text, fewer than {}", limits.min_chars));
    }
    if let Some(reason) = maker.refuse(i) {
        return bad(reason, false);
    }
    let audio = match audio {
        Ok(audio) => audio,
        Err(reason) => return bad(reason, false),
    };
    let key = match audio.hash() {
        Ok(hash) => key(maker, options, i, entry, hash),
        Err(error) => return bad(error.to_string(), false),
    };
    let hex = blake3::Hash::from_bytes(key).to_hex();
    let file = format!("{}.{}", &hex[..32], M::EXTENSION);
    let path = options.cache.join(&file);
    let usable = |found: Found, cached: bool| match maker.outside(&found) {
        Some(reason) => outside(reason),
        None => {
            let meta = ClipMeta {
                name: entry.name.clone(),
                frames: found.frames,
                tokens: found.tokens,
                measured: found.measured,
                file: file.clone(),
                key: hex.to_string(),
            };
            Ok((Verdict::Ok { cached }, Some(meta)))
        }
    };
    if path.exists()
        && let Some(found) = maker.cached(i, &path, &key)
        // The limits are not part of the key: a narrower limit must not use a longer clip from before.
        && (limits.min_seconds..=limits.max_seconds).contains(&found.measured.seconds)
    {
        return usable(found, true);
    }
    let (rows, measured) = match take::<M::Frames>(audio, limits, options.policy) {
        Ok(Taken::Clip { rows, measured }) => (rows, measured),
        Ok(Taken::Outside(reason)) => return outside(reason),
        Ok(Taken::Silent { peak }) => {
            let reason = format!("nothing to hear in it (peak {:.0} dBFS)", 20.0 * peak.max(1e-6).log10());
            return bad(reason, true);
        }
        Err(error) => return bad(error.to_string(), false),
    };
    match maker.make(i, entry, rows, measured, (&path, &key))? {
        Ok(found) => usable(found, false),
        Err(reason) => bad(reason, false),
    }
}

/// Content key: audio bytes, cutting, and what the maker adds.
fn key<M: Make>(
    maker: &M,
    options: &PrepareOptions,
    i: usize,
    entry: &Entry,
    audio: blake3::Hash,
) -> [u8; 32] {
    let mut key = blake3::Hasher::new();
    key.update(M::SPEC.as_bytes());
    if options.policy == Policy::Cut {
        key.update(&options.limits.max_seconds.to_le_bytes());
    }
    key.update(audio.as_bytes());
    maker.key(i, entry, &mut key);
    *key.finalize().as_bytes()
}

/// Outcomes, index and summary of a finished pass; writes `index.json`.
pub(crate) fn finish(
    source: &Source,
    results: Vec<Result1>,
    options: &PrepareOptions,
    summary: impl FnOnce(&ClipIndex, &[Outcome]) -> Summary,
) -> Result<Prepared, DataError> {
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
    conclude(&source.path, index, outcomes, options, summary)
}

/// As [`finish`], with outcomes that are complete and sorted.
pub(crate) fn conclude(
    path: &Path,
    index: ClipIndex,
    outcomes: Vec<Outcome>,
    options: &PrepareOptions,
    summary: impl FnOnce(&ClipIndex, &[Outcome]) -> Summary,
) -> Result<Prepared, DataError> {
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
        return Err(DataError::NoClips { path: path.to_owned(), reason: reasons.join("; ") });
    }
    index.save(&options.cache.join("index.json"))?;
    let summary = summary(&index, &outcomes);
    Ok(Prepared { index, outcomes, summary })
}
