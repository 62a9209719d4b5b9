//! Text and audio to clips of text ids and sound, and of codes where the caller brings a codec.
//!
//! The pass is that of [`crate::prepare`](mod@crate::prepare): the same limits, verdicts, cache and resumption.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::clip::{self, Counts, Facts};
use super::{Codec, Texts};
use crate::audio::{AudioInput, READER_BYTES};
use crate::error::DataError;
use crate::measured::Measured;
use crate::prepare::summary::{Advice, Unknown};
use crate::prepare::{
    Cause, Found, Length, Lengths, Made, Make, PrepareOptions, Prepared, Problem, Progress, Record,
    WaveFrames, lengths, make_all, make_whole,
};
use crate::sources::{Entry, Source};
use crate::text::strip;

/// What a pass over pieces needs besides [`PrepareOptions`].
#[derive(Clone)]
pub struct PiecesOptions<'a> {
    /// Samples of a code; the last one may have fewer. Clips have no codes where there is none.
    pub frame: Option<usize>,
    /// Texts are context of a clip's rows, not rows.
    pub context: bool,
    /// Returns the rows that a clip takes of a model, or why the model cannot have it.
    pub rows: &'a (dyn Fn(Counts) -> Result<usize, String> + Sync),
    /// Version of what is made of sound and text, by the model's family; part of every clip's key.
    pub spec: &'static str,
}

impl PiecesOptions<'_> {
    /// Returns the bound on the memory of [`prepare_pieces`] besides tokenizer and codec that does not depend on the data, bytes: per
    /// thread a reader, the longest clip's samples with what `cut` keeps of them, its file, its codes and its text.
    pub fn fixed_bound(frame: Option<usize>, options: &PrepareOptions) -> u64 {
        let samples = options.most_samples();
        let numbers = frame.map_or(0, |frame| samples.div_ceil(frame as u64)) + options.most_chars();
        // Vectors grow by doubling. Of samples: all, and those between silences, or the file that they are written to.
        let thread =
            READER_BYTES as u64 + 4 * 4 * samples + 3 * 4 * numbers + (4 << 20) + options.edit_bytes();
        options.threads.max(1) as u64 * thread
    }

    /// Returns how many codes samples have.
    fn codes(&self, samples: usize) -> usize {
        self.frame.map_or(0, |frame| samples.div_ceil(frame))
    }

    /// Returns the rows of context of a clip.
    fn context_of(&self, counts: Counts) -> usize {
        if self.context { counts.text } else { 0 }
    }

    /// Returns the bound on the memory of [`prepare_pieces`] with what it returns, besides tokenizer and codec, bytes: what is fixed,
    /// what is held of each clip, a thread's longest text, of which each byte takes `text` while it is tokenised, and, of a table, the
    /// row's audio.
    pub fn memory_bound(&self, source: &Source, text: u64, options: &PrepareOptions) -> u64 {
        let threads = options.threads.max(1) as u64;
        // Longer ones are not read.
        let longest = (source.longest_text() as u64).min(4 * options.most_chars());
        // A row lies in the reader's page, and twice with the thread that has it: as samples and as a file.
        Self::fixed_bound(self.frame, options)
            + threads * (text * longest + 2 * source.row_bytes)
            + source.row_bytes
            + source.held_bytes()
    }
}

/// Prepares every clip of `source` as text ids, sound and, of a `codec`, codes. [`ClipIndex::frames`](crate::ClipIndex::frames) are the rows of clips.
/// `progress` is called after each clip, from any worker; when it returns false the pass ends with [`DataError::Stopped`].
///
/// # Errors
/// What ends the pass: options, the cache, the codec, no usable clip, or clips outside the limits under `refuse`. What is
/// wrong with one clip is its verdict.
pub fn prepare_pieces(
    source: &Source,
    texts: &dyn Texts,
    codec: Option<&mut dyn Codec>,
    pieces: &PiecesOptions<'_>,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Prepared, DataError> {
    options.check()?;
    let of_codec = codec.as_ref().map_or([0; 32], |codec| codec.fingerprint());
    let fingerprints = [texts.fingerprint(), of_codec];
    let maker = PieceClips { texts, fingerprints, codec: codec.map(Mutex::new), pieces, options };
    let advice = Advice::default();
    let mut record = Record::new(&source.problems, PieceClips::EXTENSION, options)?;
    make_all(source, &maker, options, progress, |done| record.done(done, &advice))?;
    record.finish(&source.path, options, Unknown::default(), &advice)
}

struct PieceClips<'a, 'c> {
    texts: &'a dyn Texts,
    /// Of tokenizer and codec.
    fingerprints: [[u8; 32]; 2],
    codec: Option<Mutex<&'c mut dyn Codec>>,
    pieces: &'a PiecesOptions<'a>,
    options: &'a PrepareOptions,
}

/// Returns the ids of a text.
fn ids(entry: &Entry, texts: &dyn Texts, options: &PrepareOptions) -> Result<Vec<u32>, Problem> {
    let text = options.said(entry)?;
    texts.ids(text, entry).map_err(|reason| (Cause::Transcript, reason))
}

impl PieceClips<'_, '_> {
    fn found(&self, measured: Measured, counts: Counts) -> Found {
        let (frames, outside) = match (self.pieces.rows)(counts) {
            Ok(rows) => (rows as u32, None),
            Err(reason) => (0, Some(reason)),
        };
        let context = self.pieces.context_of(counts) as u32;
        Found { frames, tokens: counts.text as u32, context, measured, outside }
    }

    /// Returns a code of each frame, where there are codes.
    fn encode(&self, samples: &[f32]) -> Result<Vec<u32>, String> {
        let Some(codec) = &self.codec else { return Ok(Vec::new()) };
        let codes = codec.lock().unwrap_or_else(PoisonError::into_inner).encode(samples)?;
        let expected = self.pieces.codes(samples.len());
        match codes.len() == expected {
            true => Ok(codes),
            false => Err(format!("{} codes, where {expected} are expected", codes.len())),
        }
    }

    /// Makes and saves a clip of its frames. The inner error is a reason why it is bad.
    fn of_frames(
        &self,
        ids: Vec<u32>,
        entry: &Entry,
        mut samples: Vec<f32>,
        measured: Measured,
        (path, key): (&Path, &[u8; 32]),
    ) -> Result<Result<Found, String>, DataError> {
        // The last frame was filled up.
        samples.truncate(self.options.samples_of(&measured));
        // Resampling may leave full scale.
        samples.iter_mut().for_each(|x| *x = x.clamp(-1.0, 1.0));
        let codes = self.pieces.codes(samples.len());
        let found = self.found(measured, Counts { text: ids.len(), codes, samples: samples.len() });
        if found.outside.is_some() {
            return Ok(Ok(found));
        }
        let failed = |reason| DataError::Codec { clip: entry.name.clone(), reason };
        let codes = self.encode(&samples).map_err(failed)?;
        clip::save(path, &Facts { key: *key, measured }, (&ids, &codes, &samples))?;
        Ok(Ok(found))
    }
}

impl Make for PieceClips<'_, '_> {
    type Text = Vec<u32>;

    fn spec(&self) -> &str {
        self.pieces.spec
    }

    const EXTENSION: &'static str = "piece";

    fn text(&self, entry: &Entry) -> Result<Vec<u32>, Problem> {
        ids(entry, self.texts, self.options)
    }

    fn tokens(ids: &Vec<u32>) -> usize {
        ids.len()
    }

    fn key(&self, _: &Vec<u32>, entry: &Entry, hash: &mut blake3::Hasher) {
        let [texts, codec] = &self.fingerprints;
        hash.update(texts).update(codec).update(&self.options.rate.to_le_bytes());
        hash.update(strip(&entry.text).as_bytes());
        if let Some(voice) = &entry.voice {
            hash.update(b"\n").update(voice.as_bytes());
        }
        entry.ids.iter().for_each(|id| {
            hash.update(&id.to_le_bytes());
        });
    }

    fn cached(&self, _: &Vec<u32>, path: &Path, key: &[u8; 32]) -> Option<Found> {
        let (facts, clip) = clip::read(path).ok()?;
        (facts.key == *key).then(|| self.found(facts.measured, clip.counts()))
    }

    fn make(
        &self,
        text: Vec<u32>,
        entry: &Entry,
        audio: AudioInput,
        file: (&Path, &[u8; 32]),
    ) -> Result<Made, DataError> {
        make_whole::<WaveFrames>(audio, self.options, |rows, measured| {
            self.of_frames(text, entry, rows, measured, file)
        })
    }
}

/// Returns the rows of the clips that [`prepare_pieces`] would make.
///
/// # Errors
/// As [`prepare_pieces`], but for what only writing meets.
pub fn piece_lengths(
    source: &Source,
    texts: &dyn Texts,
    pieces: &PiecesOptions<'_>,
    options: &PrepareOptions,
    progress: &dyn Fn(Progress<'_>) -> bool,
) -> Result<Lengths, DataError> {
    lengths::<WaveFrames>(source, options, progress, |entry, _, measured| {
        let text = ids(entry, texts, options).ok()?.len();
        let samples = options.samples_of(measured);
        let counts = Counts { text, codes: pieces.codes(samples), samples };
        let rows = (pieces.rows)(counts).ok()?;
        Some(Length { rows, tokens: text, context: pieces.context_of(counts) })
    })
}
