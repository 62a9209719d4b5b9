//! Audio and what is told of it to files of codes, through a codec that the caller brings.
//!
//! The pass is that of [`crate::prepare`](mod@crate::prepare): the same verdicts, cache and resumption, but for the length of files, of
//! which memory holds a piece of sound, and the codes.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::clip::{self, Facts, MusicClip};
use super::hearing::{Heard, Hearing, Unheard};
use super::{Codec, Kept, Other};
use crate::audio::{AudioInfo, AudioInput, AudioReader, READER_BYTES};
use crate::codes::{Frames, Rows, Texts, states_key};
use crate::error::DataError;
use crate::index::{ClipIndex, ClipMeta};
use crate::measured::Measured;
use crate::prepare::summary::{Advice, Unknown};
use crate::prepare::{
    Cause, Found, Lengths, Limits, Made, Make, Policy, PrepareOptions, Prepared, Problem, Progress, Record,
    make_all,
};
use crate::sources::{Entry, Feed, Source};
use crate::text::strip;

/// Longest file, seconds: its codes are held while they are made.
pub const LONGEST: f64 = 3.0 * 3600.0;
/// Seconds by which a file may become longer where it is resampled.
const RESAMPLED: f64 = 1.0;
/// Bytes between the parts of a text that description and metadata are put together to.
const SEPARATORS: u64 = 32;
/// Of the file names of clips that have no file.
const NO_FILE: &str = "none";

/// What of a file is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pieces {
    /// All of it, once, as one sound.
    #[default]
    Whole,
    /// So many segments, each by itself, at places that the seed and the file's content draw. A file that is no longer than a segment is
    /// encoded once.
    Drawn {
        /// Segments of a file.
        count: usize,
        /// Draws their places.
        seed: u64,
    },
}

/// How often a file is trained on, in relation to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weighting {
    /// As its list says ([`Entry::weight`]).
    pub by_weight: bool,
    /// As it is long.
    pub by_duration: bool,
}

impl Weighting {
    fn weight(self, entry: &Entry, seconds: f64) -> f32 {
        let weight = if self.by_weight { entry.weight } else { 1.0 };
        if self.by_duration { weight * seconds as f32 } else { weight }
    }
}

/// What there is of a clip, for what it takes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Frames of every use.
    pub frames: usize,
    /// Most ids of a use's text; 0 without.
    pub text: usize,
}

/// What a pass over music needs besides [`PrepareOptions`], of which `max_seconds` is the length of a segment.
#[derive(Clone)]
pub struct MusicOptions<'a> {
    /// What comes out of the codec, of all channels together.
    pub frames: Frames,
    /// Channels, which are coded apart, 1 or 2: of one codebook left and right follow each other.
    pub channels: usize,
    /// What is encoded.
    pub pieces: Pieces,
    /// How often files are trained on.
    pub weighting: Weighting,
    /// Seconds of the longest file that is read: [`longest_file`], or [`LONGEST`] where no file is known.
    pub longest: f64,
    /// Most ids of a description.
    pub most_text: usize,
    /// Returns what a clip takes, or why the model cannot have it.
    pub rows: &'a (dyn Fn(Counts) -> Result<Rows, String> + Sync),
    /// Version of what is made of codes and text, by the model's family; part of every file's key.
    pub spec: &'static str,
}

impl MusicOptions<'_> {
    /// Returns the frames of a segment: whole ones.
    pub fn segment(&self, options: &PrepareOptions) -> usize {
        (options.most_samples() as usize / self.frames.samples.max(1)).max(1)
    }

    /// Returns the bound on the memory of [`prepare_music`] besides texts and codec that does not depend on the data, bytes: per thread a
    /// reader, the codes of the longest file, and of segments that are drawn their sound.
    pub fn fixed_bound(&self, options: &PrepareOptions) -> u64 {
        let samples = self.longest * f64::from(options.rate);
        let codes = self.frames.codebooks as u64 * (samples as u64).div_ceil(self.frames.samples as u64);
        let sound = match self.pieces {
            Pieces::Whole => 0,
            Pieces::Drawn { count, .. } => {
                4 * count as u64 * (self.segment(options) * self.frames.samples) as u64
            }
        };
        // Vectors grow by doubling. Of codes: by codebook, by frame, and the file's image.
        let thread = READER_BYTES as u64
            + 4 * 4 * codes
            + sound
            + (4 << 20)
            + options.edits.bytes(self.channels as f64 * self.longest);
        options.threads.max(1) as u64 * thread
    }

    /// Returns the bound on the memory of [`prepare_music`] with what it returns, besides texts and codec, bytes: what is fixed, what is held
    /// of each clip, and a thread's longest texts, of which each byte takes `text` while it is read.
    pub fn memory_bound(&self, source: &Source, text: u64, options: &PrepareOptions) -> u64 {
        let threads = options.threads.max(1) as u64;
        let longest = source.longest_description() as u64 + SEPARATORS;
        self.fixed_bound(options) + threads * text * longest + source.held_bytes()
    }
}

/// Prepares every file of `source`, read by [`Source::read_music`], as codes, with what `texts` keep of what is told of it. Its states are
/// those that [`prepare_states`](crate::codes::prepare_states) makes with the encoder of this fingerprint and ids of the same texts.
/// [`ClipIndex::frames`](crate::ClipIndex::frames) are the rows of a use. `progress` is called after each clip, and within long ones, from any worker;
/// when it returns false the pass ends with [`DataError::Stopped`].
///
/// # Errors
/// What ends the pass: options, the cache, the codec, no usable clip, or clips outside the limits under `refuse`. What is
/// wrong with one clip is its verdict.
pub fn prepare_music(
    source: &Source,
    texts: &dyn Texts,
    (codec, encoder): (&mut dyn Codec, [u8; 32]),
    music: &MusicOptions<'_>,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Prepared, DataError> {
    options.check()?;
    let fingerprints = [texts.fingerprint(), encoder, codec.fingerprint()];
    let (done, segment, inner) = (AtomicUsize::new(0), music.segment(options), unlimited(options));
    let total = source.len();
    let within = |name: &str| progress(Progress { done: done.load(Ordering::Relaxed), total, name });
    let hearing = Hearing { codec: Mutex::new(codec), music, segment, options: &inner, within: &within };
    let maker = MusicClips { texts, fingerprints, music, segment, options: &inner, hearing };
    let after = |p: Progress<'_>| {
        done.store(p.done, Ordering::Relaxed);
        progress(p)
    };
    let advice = Advice::default();
    let mut record = Record::new(&source.problems, MusicClips::EXTENSION, options)?;
    make_all(source, &maker, &inner, &after, |done| record.done(done, &advice))?;
    record.finish(&source.path, options, Unknown::default(), &advice)
}

/// Returns the options without what limits clips that are read at once: files are as long as they are, and may have no text.
fn unlimited(options: &PrepareOptions) -> PrepareOptions {
    let limits = Limits { max_seconds: LONGEST, min_chars: 0, ..options.limits };
    let policy = if options.policy == Policy::Cut { Policy::Skip } else { options.policy };
    PrepareOptions { limits, policy, ..options.clone() }
}

struct MusicClips<'a> {
    texts: &'a dyn Texts,
    /// Of texts, encoder and codec.
    fingerprints: [[u8; 32]; 3],
    music: &'a MusicOptions<'a>,
    /// Frames of a segment.
    segment: usize,
    options: &'a PrepareOptions,
    hearing: Hearing<'a>,
}

/// What is kept of what is told, and the key of the description's states.
struct Read {
    kept: Kept,
    states: [u8; 32],
}

/// Reads what is told of a clip; keys of states are those of the fingerprints of texts and encoder.
fn read(
    entry: &Entry,
    texts: &dyn Texts,
    [of_texts, of_encoder]: [&[u8; 32]; 2],
    most: usize,
) -> Result<Read, Problem> {
    let of_text = |reason| (Cause::Description, reason);
    let told = |text: &str| match text.is_empty() {
        true => Ok(Other { ids: 0, states: [0; 32] }),
        false => {
            let ids = texts.description(text).map_err(of_text)?.len();
            Ok(Other { ids, states: states_key(text, of_texts, of_encoder) })
        }
    };
    let plain = told(entry.description.as_deref().map(strip).unwrap_or_default())?;
    let silent = plain.ids == 0 && entry.fields.is_empty();
    let others = if silent { 0 } else { texts.others() };
    let others = (0..others).map(|number| told(&texts.other(entry, number)));
    let others = others.collect::<Result<Vec<_>, Problem>>()?;
    let longest = others.iter().map(|other| other.ids).max().unwrap_or(0).max(plain.ids);
    match longest <= most {
        true => Ok(Read { kept: Kept { plain: plain.ids, longest, others }, states: plain.states }),
        false => Err(of_text(format!("{longest} tokens of text; at most {most} are read"))),
    }
}

impl MusicClips<'_> {
    fn found(&self, measured: Measured, clip: (usize, &Kept)) -> Found {
        let (frames, kept) = clip;
        let counts = Counts { frames: frames.min(self.segment), text: kept.longest };
        let (rows, outside) = match (self.music.rows)(counts) {
            Ok(rows) => (rows, None),
            Err(reason) => (Rows { own: 0, context: 0 }, Some(reason)),
        };
        let (frames, context) = (rows.own as u32, rows.context as u32);
        Found { frames, tokens: kept.plain as u32, context, measured, outside }
    }
}

impl Make for MusicClips<'_> {
    type Text = Read;

    fn spec(&self) -> &str {
        self.music.spec
    }

    const EXTENSION: &'static str = "music";

    fn text(&self, entry: &Entry) -> Result<Read, Problem> {
        let [texts, encoder, _] = &self.fingerprints;
        read(entry, self.texts, [texts, encoder], self.music.most_text)
    }

    fn tokens(read: &Read) -> usize {
        read.kept.plain
    }

    fn key(&self, read: &Read, entry: &Entry, hash: &mut blake3::Hasher) {
        let [texts, _, codec] = &self.fingerprints;
        hash.update(texts).update(codec).update(&self.options.rate.to_le_bytes());
        // Which says all of the encoder and the description.
        hash.update(&read.states).update(&(self.music.channels as u64).to_le_bytes());
        if let Pieces::Drawn { count, seed } = self.music.pieces {
            for n in [count as u64, seed, self.segment as u64] {
                hash.update(&n.to_le_bytes());
            }
        }
        for text in entry.fields.iter().flat_map(|(name, value)| [name, value]).chain([&entry.text]) {
            hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
    }

    fn weight(&self, entry: &Entry, found: &Found) -> f32 {
        self.music.weighting.weight(entry, found.measured.seconds)
    }

    fn cached(&self, _: &Read, path: &Path, key: &[u8; 32]) -> Option<Found> {
        let (facts, clip) = clip::read(path).ok().filter(|(facts, _)| facts.key == *key)?;
        clip.codes(0..clip.frames()).ok()?;
        Some(self.found(facts.measured, (uses(&clip), &clip.kept)))
    }

    fn make(
        &self,
        read: Read,
        entry: &Entry,
        audio: AudioInput,
        (path, key): (&Path, &[u8; 32]),
    ) -> Result<Made, DataError> {
        let heard = match self.music.pieces {
            Pieces::Whole => self.hearing.whole(&audio, entry),
            Pieces::Drawn { count, seed } => self.hearing.drawn(&audio, entry, (count, seed), key),
        };
        let Heard { measured, ends, codes } = match heard {
            Ok(heard) => heard,
            Err(Unheard::Clip(made)) => return Ok(made),
            Err(Unheard::Pass(error)) => return Err(error),
        };
        let Read { kept, states } = read;
        let found = self.found(measured, (ends[0] as usize, &kept));
        clip::save(
            path,
            &Facts { key: *key, states, measured },
            &kept,
            (&ends, &codes, self.music.frames.codebooks),
        )?;
        Ok(Made::Clip(found))
    }
}

/// Returns the frames of a piece of a file: all have as many.
fn uses(clip: &MusicClip) -> usize {
    clip.segment(usize::MAX, None).len()
}

/// Returns the rows of the clips that [`prepare_music`] would make. The seconds of a clip are those of a use.
///
/// # Errors
/// As [`prepare_music`], but for what only encoding and writing meet.
pub fn music_lengths(
    source: &Source,
    texts: &dyn Texts,
    music: &MusicOptions<'_>,
    options: &PrepareOptions,
    progress: &dyn Fn(Progress<'_>) -> bool,
) -> Result<Lengths, DataError> {
    options.check()?;
    let (segment, inner) = (music.segment(options), unlimited(options));
    let mut made = Lengths { index: ClipIndex::new(&options.cache, NO_FILE), seconds: Vec::new() };
    let mut feed = Feed::default();
    for (i, entry) in source.entries().enumerate() {
        let entry = entry?;
        // What is wrong with a clip is said where it is prepared.
        let mut of = || {
            let kept = read(&entry, texts, [&[0; 32]; 2], music.most_text).ok()?.kept;
            let samples = samples(feed.audio(&entry).ok()?, options.rate)?;
            let frames = samples.div_ceil(music.frames.samples).min(segment);
            let seconds = options.seconds(samples as u64);
            let rows = (music.rows)(Counts { frames, text: kept.longest }).ok()?;
            (seconds >= inner.limits.min_seconds && seconds <= LONGEST).then_some((kept, rows, seconds))
        };
        if let Some((kept, rows, seconds)) = of() {
            made.seconds.push(seconds.min(options.limits.max_seconds));
            let measured = Measured { seconds, ..Measured::default() };
            let clip = ClipMeta {
                name: entry.name.clone(),
                frames: rows.own as u32,
                tokens: kept.plain as u32,
                context: rows.context as u32,
                weight: music.weighting.weight(&entry, seconds),
                measured,
                file: ClipMeta::file_name(&[0; 32], NO_FILE),
                key: String::new(),
            };
            made.index.push(&clip).map_err(|reason| DataError::file(&source.path, reason))?;
        }
        if !progress(Progress { done: i + 1, total: source.len(), name: &entry.name }) {
            return Err(DataError::Stopped);
        }
    }
    match made.index.is_empty() {
        true => Err(DataError::NoClips {
            path: source.path.clone(),
            reason: "no audio that can be read".to_owned(),
        }),
        false => Ok(made),
    }
}

/// Returns the seconds of the longest file, by headers; [`LONGEST`] where one does not count its samples. A file that has more than its
/// header says is refused where it is read.
///
/// # Errors
/// Of reading the list again; a pass that was stopped.
pub fn longest_file(
    source: &Source,
    options: &PrepareOptions,
    progress: &dyn Fn(Progress<'_>) -> bool,
) -> Result<f64, DataError> {
    let (mut feed, mut longest) = (Feed::default(), 0.0_f64);
    for (i, entry) in source.entries().enumerate() {
        let entry = entry?;
        // What cannot be read is said where it is prepared.
        let info = feed.audio(&entry).ok().and_then(|audio| Some(AudioReader::read(audio).ok()?.info()));
        longest = longest.max(match info {
            Some(AudioInfo { frames: Some(frames), rate, .. }) => frames as f64 / f64::from(rate) + RESAMPLED,
            Some(_) => LONGEST,
            None => 0.0,
        });
        if longest >= LONGEST {
            return Ok(LONGEST);
        }
        if !progress(Progress { done: i + 1, total: source.len(), name: &entry.name }) {
            return Err(DataError::Stopped);
        }
    }
    Ok(longest.max(options.limits.min_seconds))
}

/// Returns the samples of a file at a rate: of a header that counts them, else of all that is there.
fn samples(audio: AudioInput, rate: u32) -> Option<usize> {
    let mut reader = AudioReader::read(audio).ok()?;
    let (of, info) = (
        |frames: u64, from: u32| (u128::from(frames) * u128::from(rate)).div_ceil(u128::from(from)),
        reader.info(),
    );
    let frames = match info.frames {
        Some(frames) => frames,
        None => {
            while reader.next_chunk().ok()?.is_some() {}
            reader.stats().frames
        }
    };
    usize::try_from(of(frames, info.rate)).ok()
}
