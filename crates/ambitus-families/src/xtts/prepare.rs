//! XTTS v2: audio to clips of codes with their sound, through the folder's own DVAE, and texts to ids in one language.
//!
//! What the project passes over in silence is named (coqui-tts 0.28, `XTTSDataset`): clips under half a second, texts of more than 200
//! tokens or with some that no text may have. Beyond these, what the tables of positions have no room for.

use super::keys::Keys;
use super::text::{Texts, VOCAB_FILE, language_of, readings};
use crate::codec::Codec as _;
use crate::console::Console;
use crate::dvae;
use crate::error::RunError;
use crate::prepare::{
    Bound, Job, Made, PAGES, PREPARE_THREADS, Preparer, Room, What, limited, of_tokenizer, prepare_options,
    sets, shortest, shown,
};
use ambitus_data::pieces::{self, Counts, PiecesOptions, piece_lengths, prepare_pieces};
use ambitus_data::sources::{Entry, Sets};
use ambitus_data::text::ENCODING_BYTES;
use ambitus_data::{DataError, PrepareOptions, Source};
use ambitus_models::xtts::batch;
use ambitus_models::xtts::config::{BANDS, Config, RATE, SAMPLES_PER_CODE};
use ambitus_recipe::recipe::Recipe;
use std::path::Path;

/// Version of what is made of sound and text.
const SPEC: &str = "xtts-pieces-v1";
/// Shortest clip, seconds.
const LEAST_SECONDS: f64 = 0.5;
/// Most tokens of a text (`max_text_length`).
const MOST_TEXT: usize = 200;
/// Bytes of a cleaned text for each of the text: a sign becomes words, between which stands `[SPACE]`. The most is 42, of `@` in Hindi.
const CLEANED_BYTES: u64 = 48;

/// Prepares clips of codes with their sound.
pub(super) struct Pieces<'a> {
    /// The model's folder, with tokenizer and DVAE.
    pub dir: &'a Path,
    /// The model's shape.
    pub config: &'a Config,
    /// `xtts:` of the recipe.
    pub keys: &'a Keys,
}

impl Preparer for Pieces<'_> {
    fn read(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<Made, RunError> {
        let (what, bytes) = self.made(job, console)?;
        Ok(Made::new(what, job.recipe, &*bytes))
    }

    /// Returns the bound without reading any text: the codec, the longest clip, and what is held of all.
    fn bound<'a>(&'a self, job: &Job<'_>, held: u64) -> Result<Bound<'a>, RunError> {
        let room = Room::new(job, PREPARE_THREADS + job.threads);
        if self.missing().is_some() {
            return Ok(Box::new(move |_| room.process));
        }
        let beside = self.codec(job.threads)?.encode_bytes()
            + readings(self.keys.cleaned, self.keys.language.as_deref()).0
            + held;
        Ok(bound(&options(job.recipe), &room, beside))
    }

    fn stays(&self) -> u64 {
        PAGES + readings(self.keys.cleaned, self.keys.language.as_deref()).1
    }
}

/// Returns a recipe's options with this model's rate and shortest clip.
fn options(recipe: &Recipe) -> PrepareOptions {
    let mut options = prepare_options(recipe, RATE);
    options.limits.min_seconds = options.limits.min_seconds.max(LEAST_SECONDS);
    options
}

/// Returns what preparing takes by the longest clip's seconds, besides `beside` bytes that do not depend on it.
fn bound<'a>(options: &PrepareOptions, room: &Room, beside: u64) -> Bound<'a> {
    let beside = room.process + beside;
    limited(options, move |o| beside + PiecesOptions::fixed_bound(Some(SAMPLES_PER_CODE), o))
}

impl Pieces<'_> {
    /// Returns a file without which no clip is made.
    fn missing(&self) -> Option<&'static str> {
        [VOCAB_FILE, dvae::WEIGHTS, dvae::STATISTICS].into_iter().find(|name| !self.dir.join(name).is_file())
    }

    /// Returns the clips, or only their lengths, and the bound on the memory that preparing them takes.
    fn made<'a>(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<(What, Bound<'a>), RunError> {
        let data = sets(job.recipe)?;
        let (room, options) = (Room::new(job, PREPARE_THREADS + job.threads), options(job.recipe));
        let rows = |counts| self.rows(counts);
        let pieces = PiecesOptions { frame: Some(SAMPLES_PER_CODE), context: false, rows: &rows, spec: SPEC };
        let source = |beside| room.read(beside, Source::read(&data, &options.cache, room.left(beside)));
        if let Some(name) = self.missing() {
            if job.run {
                return Err(RunError::Model(format!(
                    "{}: has no {name}; training makes ids of texts with {VOCAB_FILE} and codes of audio with {} and {}: copy them \
                     from the model that you fine-tune",
                    self.dir.display(),
                    dvae::WEIGHTS,
                    dvae::STATISTICS
                )));
            }
            let lengths = piece_lengths(&source(0)?, &Most, &pieces, &options, &shown(console))?;
            let why = format!(
                "the model folder has no {name}, so at most that many rows, {MOST_TEXT} of them of each text"
            );
            let process = room.process;
            return Ok((What::Lengths(Box::new(lengths), why), Box::new(move |_| process)));
        }
        let mut codec = self.codec(job.threads)?;
        let fixed =
            codec.encode_bytes() + PiecesOptions::fixed_bound(Some(SAMPLES_PER_CODE), &shortest(&options));
        let texts = room.read(fixed, Texts::read(self.dir, room.left(fixed), self.keys.cleaned));
        let texts = Reader::new(texts.map_err(of_tokenizer)?, self.keys, &data)?;
        let of_texts =
            texts.texts.bpe().memory_bytes() + readings(self.keys.cleaned, self.keys.language.as_deref()).0;
        let source = source(fixed + of_texts)?;
        let held = pieces.memory_bound(&source, CLEANED_BYTES * ENCODING_BYTES, &options)
            - PiecesOptions::fixed_bound(Some(SAMPLES_PER_CODE), &options);
        let bytes = bound(&options, &room, codec.encode_bytes() + of_texts + held);
        if let Some(why) = room.too_small(bytes(job.recipe.data.max_seconds), &source)? {
            let lengths = piece_lengths(&source, &texts, &pieces, &options, &shown(console))?;
            return Ok((What::Lengths(Box::new(lengths), why), bytes));
        }
        let fingerprint = codec.fingerprint()?;
        let mut codec = Own { codec: &mut codec, fingerprint };
        let prepared = prepare_pieces(&source, &texts, Some(&mut codec), &pieces, &options, &shown(console))?;
        Ok((What::Clips(Box::new(prepared)), bytes))
    }

    /// Opens the folder's DVAE.
    fn codec(&self, threads: usize) -> Result<dvae::Codec, RunError> {
        let codec = dvae::Codec::open(self.dir, threads)?;
        let (spec, bands) = (codec.spec(), codec.mels().map_or(0, |mels| mels.channels));
        let (size, most) = (spec.codebooks[0].size, self.config.start.min(self.config.stop));
        if (spec.frame, bands) != (SAMPLES_PER_CODE, BANDS) || size > most as usize {
            return Err(RunError::Model(format!(
                "{}: makes {size} different codes, of {} samples and {bands} bands, but the model takes {most}, of {SAMPLES_PER_CODE} \
                 samples and {BANDS} bands; copy the file of the model that you fine-tune",
                self.dir.join(dvae::WEIGHTS).display(),
                spec.frame
            )));
        }
        Ok(codec)
    }

    fn rows(&self, counts: Counts) -> Result<usize, String> {
        batch::lengths(self.config, counts.text, counts.codes)?;
        Ok(self.config.rows_of(counts.text, counts.codes))
    }
}

/// The folder's tokenizer, in the language of the clips.
struct Reader {
    texts: Texts,
    language: String,
    cleaned: bool,
}

impl Reader {
    /// Takes the language that the recipe names, or the data set.
    fn new(texts: Texts, keys: &Keys, data: &Sets) -> Result<Reader, RunError> {
        let mut named = keys.language.clone();
        for set in data.iter().filter(|_| keys.language.is_none()) {
            let Some(own) = language_of(&set.path)? else { continue };
            if let Some(other) = named.replace(own.clone()).filter(|other| *other != own) {
                return Err(RunError::Usage(format!(
                    "xtts.language: the data sets are in {other} and {own}, and a run reads all texts in one language: train one after \
                     the other (stages of their own recipes)"
                )));
            }
        }
        let language = named.ok_or_else(|| {
            let why = "is missing; in which language are the texts? Write en, zh-cn, … into lang.txt beside the data, or set the key \
                       (--language en)";
            RunError::Usage(format!("xtts.language: {why}"))
        })?;
        // A language that cannot be read would be wrong with every clip.
        texts.encode("", &language).map_err(|e| match e {
            DataError::Invalid(why) => RunError::Usage(format!("xtts.language: {why}")),
            other => of_tokenizer(other.into()),
        })?;
        Ok(Reader { texts, language, cleaned: keys.cleaned })
    }
}

impl pieces::Texts for Reader {
    fn ids(&self, text: &str, _: &Entry) -> Result<Vec<u32>, String> {
        let ids = self.texts.encode(text, &self.language).map_err(|e| e.to_string())?;
        if let Some(why) = self.texts.refused(&ids) {
            return Err(format!("the text {why}"));
        }
        match ids.len() <= MOST_TEXT {
            true => Ok(ids),
            false => Err(format!(
                "{} tokens of text, more than the {MOST_TEXT} that the project trains on; split the clip with its text",
                ids.len()
            )),
        }
    }

    fn fingerprint(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.texts.bpe().fingerprint()).update(&[u8::from(self.cleaned)]);
        *hash.update(self.language.as_bytes()).finalize().as_bytes()
    }
}

/// Stands in for a tokenizer: as many ids as a text may have.
struct Most;

impl pieces::Texts for Most {
    fn ids(&self, _: &str, _: &Entry) -> Result<Vec<u32>, String> {
        Ok(vec![0; MOST_TEXT])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// The codec as preparing sees it.
struct Own<'a> {
    codec: &'a mut dvae::Codec,
    fingerprint: [u8; 32],
}

impl pieces::Codec for Own<'_> {
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<u32>, String> {
        self.codec.encode_clip(samples).map_err(|e| e.to_string())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}
