//! Text and audio to clips of codes, through a codec that the caller brings.
//!
//! The pass is that of [`crate::prepare`](mod@crate::prepare): the same limits, verdicts, cache and resumption. The codec gets whole
//! frames: what is left at a clip's end is cut off.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::Texts;
use super::clip::{self, CodeClip, Facts};
use super::states::{description, key};
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

/// The audio codec. It is called from one thread at a time, in any order of the clips.
pub trait Codec: Send {
    /// Returns the codes of mono samples at the options' rate, whole frames: T of each of C codebooks.
    ///
    /// # Errors
    /// Only what is wrong with the codec: an error ends the pass.
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<Vec<u32>>, String>;

    /// Changes whenever codes may change, as with other weights; part of every key.
    fn fingerprint(&self) -> [u8; 32];
}

/// What there is of a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// P: ids of what is said.
    pub prompt: usize,
    /// T: frames of codes.
    pub frames: usize,
    /// U: ids of how it is said.
    pub description: usize,
}

/// What a clip takes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Rows of its sequence, which is what packing counts.
    pub own: usize,
    /// Rows of context, which the others attend to.
    pub context: usize,
}

/// What comes out of the codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frames {
    /// C: codebooks, each with a code for a frame.
    pub codebooks: usize,
    /// Samples of a frame.
    pub samples: usize,
}

/// What a pass over codes needs besides [`PrepareOptions`].
#[derive(Clone)]
pub struct CodesOptions<'a> {
    /// Description of clips whose data set has none.
    pub description: Option<String>,
    /// Most ids of a description: every row of every clip sees as many as the longest has.
    pub most_description: usize,
    /// Draws of each description's states with the encoder's dropout.
    pub draws: usize,
    /// What comes out of the codec.
    pub frames: Frames,
    /// Returns what a clip takes, or why the model cannot have it.
    pub rows: &'a (dyn Fn(Counts) -> Result<Rows, String> + Sync),
    /// Version of what is made of codes and text, by the model's family; part of every clip's key.
    pub spec: &'static str,
}

impl Frames {
    /// Returns the whole frames of so many samples.
    fn of(self, samples: usize) -> usize {
        samples / self.samples.max(1)
    }

    /// Returns the bound on the memory of [`prepare_codes`] besides tokenizer and codec that does not depend on the data, bytes: per
    /// thread a reader, the longest clip's samples with what `cut` keeps of them, its codes and its prompt.
    pub fn fixed_bound(self, options: &PrepareOptions) -> u64 {
        let frames = self.of(options.most_samples() as usize);
        let numbers = (self.codebooks * frames) as u64 + options.most_chars();
        // Vectors grow by doubling. Of samples: all, and those between silences. Of codes: by codebook, one after another, file image.
        let thread = READER_BYTES as u64
            + 4 * 4 * options.most_samples()
            + 2 * 3 * 4 * numbers
            + (4 << 20)
            + options.edit_bytes();
        options.threads.max(1) as u64 * thread
    }
}

impl CodesOptions<'_> {
    /// Returns the bound on the memory of [`prepare_codes`] with what it returns, besides tokenizer and codec, bytes: what is fixed,
    /// what is held of each clip, a thread's longest texts, of which each byte takes `text` while it is tokenised, and, of a table, the
    /// row's audio.
    pub fn memory_bound(&self, source: &Source, text: u64, options: &PrepareOptions) -> u64 {
        let threads = options.threads.max(1) as u64;
        // A row lies in the reader's page, and twice with the thread that has it: as samples and as a file.
        self.frames.fixed_bound(options)
            + threads * (self.texts_bytes(source, text, options) + 2 * source.row_bytes)
            + source.row_bytes
            + source.held_bytes()
    }

    /// Returns the bytes of the longest texts while they are tokenised.
    fn texts_bytes(&self, source: &Source, text: u64, options: &PrepareOptions) -> u64 {
        let fixed = self.description.as_ref().map_or(0, String::len);
        // Longer ones are not read.
        let prompt = (source.longest_text() as u64).min(4 * options.most_chars());
        text * (prompt + source.longest_description().max(fixed) as u64)
    }
}

/// Prepares every clip of `source` as codes and prompt ids, with descriptions whose states [`prepare_states`](super::prepare_states())
/// has made with the encoder of this fingerprint. [`ClipIndex::frames`](crate::ClipIndex::frames) are the rows of clips, and
/// [`ClipIndex::context`](crate::ClipIndex::context) the most that one has of context. `progress` is called after each clip, from any
/// worker; when it returns false the pass ends with [`DataError::Stopped`].
///
/// # Errors
/// What ends the pass: options, the cache, the codec, no usable clip, or clips outside the limits under `refuse`. What is
/// wrong with one clip is its verdict.
pub fn prepare_codes(
    source: &Source,
    texts: &dyn Texts,
    (codec, encoder): (&mut dyn Codec, [u8; 32]),
    codes: &CodesOptions<'_>,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Prepared, DataError> {
    options.check()?;
    let fingerprints = [texts.fingerprint(), encoder, codec.fingerprint()];
    let maker = CodeClips { texts, fingerprints, codec: Mutex::new(codec), codes, options };
    let advice = Advice::default();
    let mut record = Record::new(&source.problems, CodeClips::EXTENSION, options)?;
    make_all(source, &maker, options, progress, |done| record.done(done, &advice))?;
    record.finish(&source.path, options, Unknown::default(), &advice)
}

struct CodeClips<'a> {
    texts: &'a dyn Texts,
    /// Of tokenizer, encoder and codec.
    fingerprints: [[u8; 32]; 3],
    codec: Mutex<&'a mut dyn Codec>,
    codes: &'a CodesOptions<'a>,
    options: &'a PrepareOptions,
}

/// What is said of a clip, and how.
struct Said {
    prompt: Vec<u32>,
    /// Ids of the description.
    description: usize,
    /// Of its states.
    states: [u8; 32],
}

/// Returns the ids of what is said, and the text and number of ids of how.
fn said<'e>(
    entry: &'e Entry,
    texts: &dyn Texts,
    codes: &'e CodesOptions<'_>,
    options: &PrepareOptions,
) -> Result<(Vec<u32>, &'e str, usize), Problem> {
    let of_text = |reason| (Cause::Transcript, reason);
    let text = options.said(entry)?;
    let prompt = texts.prompt(text).map_err(of_text)?;
    let of_description = |reason| (Cause::Description, reason);
    let text = description(entry, codes).ok_or_else(|| of_description(NO_DESCRIPTION.to_owned()))?;
    let ids = texts.description(text).map_err(of_description)?.len();
    let most = codes.most_description;
    if ids == 0 || ids > most {
        return Err(of_description(format!(
            "{ids} tokens of description; at least one and at most {most} are read"
        )));
    }
    Ok((prompt, text, ids))
}

const NO_DESCRIPTION: &str = "no description: give one in a column or key `description` or `text_description`, or one for all clips that have \
                              none (--description)";

impl CodeClips<'_> {
    fn found(&self, facts: &Facts, clip: &CodeClip) -> Found {
        let (prompt, measured) = (clip.prompt.len(), facts.measured);
        let counts = Counts { prompt, frames: clip.frames(), description: clip.described };
        let (rows, outside) = match (self.codes.rows)(counts) {
            Ok(rows) => (rows, None),
            Err(reason) => (Rows { own: 0, context: 0 }, Some(reason)),
        };
        Found {
            frames: rows.own as u32,
            tokens: prompt as u32,
            context: rows.context as u32,
            measured,
            outside,
        }
    }

    /// Returns the codes of whole frames, `[C, T]`.
    fn encode(&self, samples: &[f32]) -> Result<Vec<u32>, String> {
        let Frames { codebooks, samples: frame } = self.codes.frames;
        let frames = self.codes.frames.of(samples.len());
        if frames == 0 {
            return Ok(Vec::new());
        }
        let layers = {
            let mut codec = self.codec.lock().unwrap_or_else(PoisonError::into_inner);
            codec.encode(&samples[..frames * frame])?
        };
        match layers.iter().all(|layer| layer.len() == frames) && layers.len() == codebooks {
            true => Ok(layers.concat()),
            false => {
                let lengths: Vec<usize> = layers.iter().map(Vec::len).collect();
                Err(format!(
                    "codes of {lengths:?} frames, where {codebooks} codebooks of {frames} are expected"
                ))
            }
        }
    }

    /// Makes and saves a clip of its frames. The inner error is a reason why it is bad.
    fn of_frames(
        &self,
        said: Said,
        entry: &Entry,
        mut samples: Vec<f32>,
        measured: Measured,
        (path, key): (&Path, &[u8; 32]),
    ) -> Result<Result<Found, String>, DataError> {
        // The last frame was filled up.
        samples.truncate(self.options.samples_of(&measured));
        let failed = |reason| DataError::Codec { clip: entry.name.clone(), reason };
        let codes = self.encode(&samples).map_err(failed)?;
        drop(samples);
        let Said { prompt, description: described, states } = said;
        let clip = CodeClip { prompt, codes, codebooks: self.codes.frames.codebooks, described, states };
        let facts = Facts { key: *key, measured };
        clip::save(path, &facts, &clip)?;
        Ok(Ok(self.found(&facts, &clip)))
    }
}

impl Make for CodeClips<'_> {
    type Text = Said;

    fn spec(&self) -> &str {
        self.codes.spec
    }

    const EXTENSION: &'static str = "codes";

    fn text(&self, entry: &Entry) -> Result<Said, Problem> {
        let (prompt, text, description) = said(entry, self.texts, self.codes, self.options)?;
        let [texts, encoder, _] = &self.fingerprints;
        Ok(Said { prompt, description, states: key(text, texts, encoder) })
    }

    fn tokens(said: &Said) -> usize {
        said.prompt.len()
    }

    fn key(&self, said: &Said, entry: &Entry, hash: &mut blake3::Hasher) {
        let [texts, _, codec] = &self.fingerprints;
        hash.update(texts).update(codec).update(&self.options.rate.to_le_bytes());
        // Which says all of the encoder and the description.
        hash.update(&said.states).update(strip(&entry.text).as_bytes());
    }

    fn cached(&self, _: &Said, path: &Path, key: &[u8; 32]) -> Option<Found> {
        let (facts, clip) = clip::read(path).ok()?;
        (facts.key == *key).then(|| self.found(&facts, &clip))
    }

    fn make(
        &self,
        text: Said,
        entry: &Entry,
        audio: AudioInput,
        file: (&Path, &[u8; 32]),
    ) -> Result<Made, DataError> {
        make_whole::<WaveFrames>(audio, self.options, |rows, measured| {
            self.of_frames(text, entry, rows, measured, file)
        })
    }
}

/// Returns the rows of the clips that [`prepare_codes`] would make.
///
/// # Errors
/// As [`prepare_codes`], but for what only writing meets.
pub fn code_lengths(
    source: &Source,
    texts: &dyn Texts,
    codes: &CodesOptions<'_>,
    options: &PrepareOptions,
    progress: &dyn Fn(Progress<'_>) -> bool,
) -> Result<Lengths, DataError> {
    lengths::<WaveFrames>(source, options, progress, |entry, _, measured| {
        let (prompt, _, description) = said(entry, texts, codes, options).ok()?;
        let frames = codes.frames.of(options.samples_of(measured));
        let rows = (codes.rows)(Counts { prompt: prompt.len(), frames, description }).ok()?;
        Some(Length { rows: rows.own, tokens: prompt.len(), context: rows.context })
    })
}
