//! Parler-TTS: audio to clips of codes through the folder's own codec, and descriptions to states of its own text encoder.
//!
//! The encoder runs first, over descriptions alone. Its arena is gone when the codec's is opened.

use super::folder::{codec as open_codec, has_parts, tokenizer as read_tokenizer};
use super::keys::Keys;
use crate::codec;
use crate::console::Console;
use crate::error::RunError;
use crate::prepare::{
    Bound, Job, Made, PAGES, PREPARE_THREADS, Preparer, Room, What, limited, of_tokenizer, prepare_options,
    sets, shortest, shown,
};
use crate::t5;
use ambitus_data::codes::{
    self, CodesOptions, Counts, Frames, Rows, Texts, code_lengths, longest_description, prepare_codes,
    prepare_states, states_bytes,
};
use ambitus_data::sources::Sets;
use ambitus_data::text::{SPIECE_FILE, TOKENIZER_FILE, UNIGRAM_ENCODING_BYTES};
use ambitus_data::{DataError, PrepareOptions, Source, Unigram};
use ambitus_models::parler::batch;
use ambitus_models::parler::config::{Config, DESCRIPTION_TOKENS};
use std::path::Path;

/// Version of what is made of codes and text.
const SPEC: &str = "parler-codes-v1";
/// Most ids of a description, as many as the encoder was trained on: with one more, every row would see more of nothing.
const MOST_DESCRIPTION: usize = 512;
/// Of audio without a codec that says it, Hz.
const RATE: u32 = 44_100;

/// Prepares clips of codes.
pub(super) struct Codes<'a> {
    /// The model's folder, with tokenizer, text encoder and codec.
    pub dir: &'a Path,
    /// The model's shape.
    pub config: &'a Config,
    /// `parler:` of the recipe.
    pub keys: &'a Keys,
}

impl Preparer for Codes<'_> {
    fn read(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<Made, RunError> {
        let (what, bytes) = self.made(job, console)?;
        Ok(Made::new(what, job.recipe, &*bytes))
    }

    /// Returns the bound without reading any text: encoder or codec, the longest clip, and what is held of all.
    fn bound<'a>(&'a self, job: &Job<'_>, held: u64) -> Result<Bound<'a>, RunError> {
        let room = Room::new(job, PREPARE_THREADS + job.threads);
        if !has_parts(self.dir) {
            return Ok(Box::new(move |_| room.process));
        }
        let (codec, threads) = (open_codec(self.dir, self.config, job.threads)?, job.threads);
        let encoder = self.encoder(DESCRIPTION_TOKENS, threads)?;
        let options = prepare_options(job.recipe, codec.spec().rate);
        Ok(self.bound_of(&options, &room, (&encoder, &*codec), held))
    }

    fn stays(&self) -> u64 {
        PAGES
    }
}

impl Codes<'_> {
    fn options<'o>(&self, frames: Frames, rows: &'o RowsOf<'_>) -> CodesOptions<'o> {
        CodesOptions {
            description: self.keys.description.clone(),
            most_description: MOST_DESCRIPTION,
            draws: self.keys.encoder_draws,
            frames,
            rows,
            spec: SPEC,
        }
    }

    /// Opens the text encoder, with dropout where it is drawn.
    fn encoder(&self, tokens: usize, threads: usize) -> Result<t5::Encoder, RunError> {
        t5::Encoder::open_with(self.dir, tokens, threads, self.keys.encoder_draws > 0)
    }

    /// Returns what preparing takes by the longest clip's seconds, besides `held` bytes: what the encoder takes or, if that is more, the
    /// codec with the clips.
    fn bound_of<'a>(
        &self,
        options: &PrepareOptions,
        room: &Room,
        (encoder, codec): (&t5::Encoder, &dyn codec::Codec),
        held: u64,
    ) -> Bound<'a> {
        let beside = room.process + held;
        let encoding = encoder.bytes() + states_bytes(encoder.tokens(), self.config.text_dim);
        let (codes, frames) = (codec.encode_bytes(), self.frames(codec.spec().frame));
        limited(options, move |o| beside + encoding.max(codes + frames.fixed_bound(o)))
    }

    fn frames(&self, samples: usize) -> Frames {
        Frames { codebooks: self.config.codebooks, samples }
    }

    /// Returns the clips, or only their lengths, and the bound on the memory that preparing them takes.
    fn made<'a>(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<(What, Bound<'a>), RunError> {
        let data = sets(job.recipe)?;
        let room = Room::new(job, PREPARE_THREADS + job.threads);
        let tokenizer = [TOKENIZER_FILE, SPIECE_FILE].iter().any(|name| self.dir.join(name).is_file());
        let rows = |counts| self.rows(counts);
        let whole = tokenizer && has_parts(self.dir);
        if !(job.run || whole) {
            let frame = (f64::from(RATE) / self.config.frame_rate).round().max(1.0) as usize;
            let options = prepare_options(job.recipe, RATE);
            let codes = self.options(self.frames(frame), &rows);
            let source = room.read(0, self.source(&data, &options, room.left(0)))?;
            let why = "the model folder has no tokenizer, or no weights of its text encoder and codec, so at most that many rows, a byte of \
                       text one";
            let lengths = code_lengths(&source, &Bytes, &codes, &options, &shown(console))?;
            let process = room.process;
            return Ok((What::Lengths(Box::new(lengths), why.to_owned()), Box::new(move |_| process)));
        }
        let mut codec = open_codec(self.dir, self.config, job.threads)?;
        let options = prepare_options(job.recipe, codec.spec().rate);
        let codes = self.options(self.frames(codec.spec().frame), &rows);
        let fixed = codec.encode_bytes() + codes.frames.fixed_bound(&shortest(&options));
        let tokenizer = room.read(fixed, read_tokenizer(self.dir, room.left(fixed))).map_err(of_tokenizer)?;
        let texts = Reader { tokenizer, config: self.config };
        let beside = fixed + texts.tokenizer.memory_bytes();
        let source = room.read(beside, self.source(&data, &options, room.left(beside)))?;
        let longest = longest_description(&source, &texts, &codes)?;
        let mut encoder = self.encoder(longest.max(1), job.threads)?;
        let held = codes.memory_bound(&source, UNIGRAM_ENCODING_BYTES, &options)
            - codes.frames.fixed_bound(&options)
            + texts.tokenizer.memory_bytes();
        let bytes = self.bound_of(&options, &room, (&encoder, &*codec), held);
        if let Some(why) = room.too_small(bytes(job.recipe.data.max_seconds), &source)? {
            let lengths = code_lengths(&source, &texts, &codes, &options, &shown(console))?;
            return Ok((What::Lengths(Box::new(lengths), why), bytes));
        }
        let of_encoder = encoder.fingerprint()?;
        let states = (&mut encoder as &mut dyn codes::Encoder, &of_encoder);
        prepare_states(&source, &texts, states, &codes, &options, &shown(console))?;
        drop(encoder);
        let fingerprint = codec.fingerprint()?;
        let mut codec = Own { codec: &mut *codec, fingerprint };
        let codec = (&mut codec as &mut dyn codes::Codec, of_encoder);
        let prepared = prepare_codes(&source, &texts, codec, &codes, &options, &shown(console))?;
        Ok((What::Clips(Box::new(prepared)), bytes))
    }

    fn source(&self, data: &Sets, options: &PrepareOptions, room: u64) -> Result<Source, DataError> {
        Source::read_described(data, self.keys.descriptions.as_deref(), &options.cache, room)
    }

    fn rows(&self, counts: Counts) -> Result<Rows, String> {
        let Counts { prompt, frames, description } = counts;
        let own = batch::rows(self.config, prompt, frames)?;
        Ok(Rows { own, context: self.config.context_of(prompt, description) })
    }
}

type RowsOf<'a> = dyn Fn(Counts) -> Result<Rows, String> + Sync + 'a;

/// The folder's tokenizer, which reads prompts as well as descriptions.
struct Reader<'a> {
    tokenizer: Unigram,
    config: &'a Config,
}

impl Texts for Reader<'_> {
    fn prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        let ids = self.tokenizer.encode(text).map_err(|e| e.to_string())?;
        let most = self.config.prompts;
        match ids.iter().find(|id| **id as usize >= most) {
            Some(id) => Err(format!(
                "{}: gives the token {id}, but the model has {most} for prompts (vocab_size): prompts and descriptions are read with one \
                 tokenizer here, so a model with a second one cannot be trained",
                self.tokenizer.path().display()
            )),
            None => Ok(ids),
        }
    }

    fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokenizer.encode(text).map_err(|e| e.to_string())
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.tokenizer.fingerprint()
    }
}

/// Stands in for a tokenizer: as many ids as a text may have.
struct Bytes;

impl Texts for Bytes {
    fn prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        // And the space that is put before it, and the end.
        Ok(vec![0; text.len() + 2])
    }

    fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(vec![0; (text.len() + 2).min(MOST_DESCRIPTION)])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// The codec as preparing sees it.
struct Own<'a> {
    codec: &'a mut dyn codec::Codec,
    fingerprint: [u8; 32],
}

impl codes::Codec for Own<'_> {
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<Vec<u32>>, String> {
        Ok(self.codec.encode(samples).map_err(|e| e.to_string())?.layers)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}
