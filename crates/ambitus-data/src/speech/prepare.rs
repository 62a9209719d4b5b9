//! Text and audio to token clips, through a codec that the caller brings.
//!
//! The pass is that of [`crate::prepare`](mod@crate::prepare): the same limits, verdicts, cache and resumption. Each file
//! is decoded and resampled from its own rate, piece by piece, and given up where it exceeds the longest clip; so the codec
//! gets at most `max_seconds` of samples, and an hour-long file takes no more memory than a clip. What one pass may take is
//! [`SpeechOptions::memory_bound`], besides the codec's own plan.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::interleave::{CODEBOOK, Codes, FRAME_SAMPLES};
use super::sequence::{LabelScope, Sequences, WRAPPERS};
use super::token_clip::{self, Facts, TokenClip};
use crate::audio::{AudioInput, READER_BYTES};
use crate::error::DataError;
use crate::measured::Measured;
use crate::mel::SAMPLE_RATE;
use crate::prepare::summary::{Advice, Unknown};
use crate::prepare::{
    Cause, Found, Made, Make, PrepareOptions, Prepared, Problem, Progress, Record, WaveFrames, make_all,
    make_whole, most_text_ids,
};
use crate::sources::{Entry, Source};
use crate::text::ENCODING_BYTES;

/// Clips of a data set that begin to work, and of each voice that the authors advise (their README).
pub const ADVISED_CLIPS: (usize, usize) = (50, 300);

/// The audio codec. It is called from one thread at a time, in any order of the clips.
pub trait Codec: Send {
    /// Returns the SNAC codes of mono samples at 24 kHz, one frame for each 2,048 begun.
    ///
    /// # Errors
    /// Only what is wrong with the codec: an error ends the pass.
    fn encode(&mut self, samples: &[f32]) -> Result<Codes, String>;

    /// Changes whenever codes may change, as with other weights; part of every key.
    fn fingerprint(&self) -> [u8; 32];
}

/// What a pass over speech needs besides [`PrepareOptions`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SpeechOptions {
    /// Longest sequence, ids: longer clips are outside the limits.
    pub max_tokens: Option<usize>,
    /// Voice of clips whose data set names none.
    pub voice: Option<String>,
    /// Version of what is made of codes and text, by the model's family; part of every clip's key.
    pub spec: &'static str,
}

impl SpeechOptions {
    /// Returns the bound on the memory of [`prepare_speech`] besides tokenizer and codec that does not depend on the data,
    /// bytes: per thread a reader, the longest clip's samples with what `cut` keeps of them, and its sequence.
    pub fn fixed_bound(&self, options: &PrepareOptions) -> u64 {
        let samples = options.most_samples();
        // As many of text as of audio.
        let ids = 2 * most_text_ids(options) + WRAPPERS as u64;
        // Vectors grow by doubling. Of samples: all, and those between silences. Of ids: codes, ids before and after
        // frames were dropped, labels, file image.
        let thread =
            READER_BYTES as u64 + 4 * 4 * samples + 2 * 6 * 4 * ids + (4 << 20) + options.edit_bytes();
        options.threads.max(1) as u64 * thread
    }

    /// Returns the bound on the memory of [`prepare_speech`] with what it returns, besides the codec, bytes: what is fixed, the
    /// tokenizer, what is held of each clip, a thread's longest text and, of a table, the row's audio.
    pub fn memory_bound(&self, source: &Source, options: &PrepareOptions, sequences: &Sequences) -> u64 {
        let text = source.longest_text() + self.voice.as_ref().map_or(0, String::len);
        let threads = options.threads.max(1) as u64;
        // A row lies in the reader's page, and twice with the thread that has it: as samples and as a file.
        self.fixed_bound(options)
            + threads * (ENCODING_BYTES * text as u64 + 2 * source.row_bytes)
            + source.row_bytes
            + source.held_bytes()
            + sequences.bpe().memory_bytes()
    }
}

/// Prepares every clip of `source` as ids: [`ClipIndex::frames`](crate::ClipIndex::frames) gives their counts, which is
/// what packing takes. `progress` is called after each clip, from any worker; when it returns false the pass ends with
/// [`DataError::Stopped`].
///
/// # Errors
/// What ends the pass: options, the cache, the codec, no usable clip, or clips outside the limits under `refuse`. What is
/// wrong with one clip is its verdict.
pub fn prepare_speech(
    source: &Source,
    sequences: &Sequences,
    codec: &mut dyn Codec,
    speech: &SpeechOptions,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Prepared, DataError> {
    options.check()?;
    options.check_rate(SAMPLE_RATE)?;
    let maker = SpeechClips {
        sequences,
        fingerprint: codec.fingerprint(),
        codec: Mutex::new(codec),
        speech,
        most_text: most_text_ids(options) as usize,
        options,
    };
    let advice = Advice { clips: Some(ADVISED_CLIPS), ..Advice::default() };
    let mut record = Record::new(&source.problems, SpeechClips::EXTENSION, options)?;
    make_all(source, &maker, options, progress, |done| record.done(done, &advice))?;
    record.finish(&source.path, options, Unknown::default(), &advice)
}

struct SpeechClips<'a> {
    sequences: &'a Sequences,
    fingerprint: [u8; 32],
    codec: Mutex<&'a mut dyn Codec>,
    speech: &'a SpeechOptions,
    /// Most tokens of a text.
    most_text: usize,
    options: &'a PrepareOptions,
}

impl SpeechClips<'_> {
    /// Returns who speaks, if anything says so.
    fn voice<'e>(&'e self, entry: &'e Entry) -> Option<&'e str> {
        entry.voice.as_deref().or(self.speech.voice.as_deref())
    }

    fn found(&self, facts: &Facts, clip: &TokenClip) -> Found {
        let (ids, measured) = (clip.ids.len(), facts.measured);
        let most = self.speech.max_tokens.filter(|&most| ids > most);
        let outside = most.map(|most| format!("{ids} ids ({:.1} s), more than {most}", measured.seconds));
        Found { frames: ids as u32, tokens: facts.text_tokens, context: 0, measured, outside }
    }

    /// Makes and saves a clip of its frames. The inner error is a reason why it is bad.
    fn of_frames(
        &self,
        text: Vec<u32>,
        entry: &Entry,
        mut samples: Vec<f32>,
        measured: Measured,
        (path, key): (&Path, &[u8; 32]),
    ) -> Result<Result<Found, String>, DataError> {
        // The last frame was filled up.
        samples.truncate(self.options.samples_of(&measured));
        let failed = |reason: String| DataError::Codec { clip: entry.name.clone(), reason };
        let codes = {
            let mut codec = self.codec.lock().unwrap_or_else(PoisonError::into_inner);
            codec.encode(&samples).map_err(failed)?
        };
        let expected = samples.len().div_ceil(FRAME_SAMPLES);
        if codes.frames() != expected {
            let reason = format!(
                "{} frames of codes for {} samples; {expected} expected ({FRAME_SAMPLES} samples each, of {CODEBOOK} codes)",
                codes.frames(),
                samples.len()
            );
            return Err(failed(reason));
        }
        drop(samples);
        let (ids, labels) = self.sequences.whole(&text, &codes);
        let clip = TokenClip { ids, labels, name: entry.name.clone() };
        let facts = Facts { key: *key, text_tokens: text.len() as u32, measured };
        token_clip::save(path, &facts, &clip)?;
        Ok(Ok(self.found(&facts, &clip)))
    }
}

impl Make for SpeechClips<'_> {
    type Text = Vec<u32>;

    fn spec(&self) -> &str {
        self.speech.spec
    }

    const EXTENSION: &'static str = "tokens";

    fn text(&self, entry: &Entry) -> Result<Vec<u32>, Problem> {
        let bad = |reason| (Cause::Transcript, reason);
        let ids = self.sequences.text(&entry.text, self.voice(entry)).map_err(|e| bad(e.to_string()))?;
        if ids.len() <= self.most_text {
            return Ok(ids);
        }
        Err(bad(format!(
            "{} tokens of text for {} of the longest clip's audio ({} s), so audio and text cannot belong together",
            ids.len(),
            self.most_text,
            self.options.limits.max_seconds
        )))
    }

    fn tokens(ids: &Vec<u32>) -> usize {
        ids.len()
    }

    fn key(&self, _: &Vec<u32>, entry: &Entry, hash: &mut blake3::Hasher) {
        hash.update(&self.fingerprint);
        hash.update(&self.sequences.bpe().fingerprint());
        hash.update(&[match self.sequences.labels {
            LabelScope::All => 0,
            LabelScope::Audio => 1,
        }]);
        let voice = self.voice(entry);
        for part in [Some(entry.name.as_str()), voice, Some(entry.text.as_str())] {
            // A missing voice is not an empty one.
            hash.update(&part.map_or(u64::MAX, |p| p.len() as u64).to_le_bytes());
            hash.update(part.unwrap_or_default().as_bytes());
        }
    }

    fn cached(&self, _: &Vec<u32>, path: &Path, key: &[u8; 32]) -> Option<Found> {
        let (facts, clip) = token_clip::read(path).ok()?;
        (facts.key == *key).then(|| self.found(&facts, &clip))
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
