//! MusicGen: music to codes through the folder's own codec, and texts to states of its own text encoder.
//!
//! The encoder runs first, over texts alone. Its arena is gone when the codec's is opened.

use super::folder::Folder;
use super::texts::Drawn;
use crate::codec::{self, Codebook, Spec};
use crate::console::Console;
use crate::error::RunError;
use crate::prepare::{
    Bound, Job, Made, PAGES, PREPARE_THREADS, Preparer, Room, What, limited, of_tokenizer, prepare_options,
    sets, shortest, shown,
};
use crate::t5;
use ambitus_data::codes::{
    self, CodesOptions, Frames, Rows, Texts, longest_description, prepare_states, states_bytes,
};
use ambitus_data::music::{self, Counts, MusicOptions, Sound, longest_file, music_lengths, prepare_music};
use ambitus_data::sources::Entry;
use ambitus_data::text::{SPIECE_FILE, TOKENIZER_FILE, UNIGRAM_ENCODING_BYTES};
use ambitus_data::{DataError, PrepareOptions, Source, Unigram};
use ambitus_models::musicgen::batch::steps;
use ambitus_models::musicgen::config::{Config, TEXT_TOKENS};
use ambitus_recipe::recipe::Recipe;
use std::path::{Path, PathBuf};

/// Version of what is made of codes and text.
const SPEC: &str = "musicgen-codes-v1";
/// Most tokens of a text, as many as the encoder was trained on: with one more, every step would see more of nothing.
const MOST_TEXT: usize = 512;
/// Of audio without a codec that says it, Hz.
const RATE: u32 = 32_000;

/// Prepares files of music.
pub(super) struct Music<'a> {
    /// The model's folder, with tokenizer, text encoder and codec.
    pub folder: &'a Folder,
}

/// Returns what a use of a file takes.
fn rows(counts: Counts) -> Result<Rows, String> {
    Ok(Rows { own: steps(counts.frames), context: counts.text })
}

/// Of texts alone.
fn no_rows(_: codes::Counts) -> Result<Rows, String> {
    Ok(Rows { own: 0, context: 0 })
}

/// Opens a folder's codec and compares it with the decoder.
pub(super) fn open_codec(
    dir: &Path,
    config: &Config,
    threads: usize,
) -> Result<Box<dyn codec::Codec>, RunError> {
    let codec = codec::open(crate::CODECS, dir, threads)?;
    let Spec { codebooks: books, .. } = codec.spec();
    let fits = |book: &Codebook| book.per_frame == 1 && book.size <= config.vocab;
    if books.len() * config.channels == config.codebooks() && books.iter().all(fits) {
        return Ok(codec);
    }
    let of: Vec<String> = books.iter().map(|b| format!("{} of {}", b.per_frame, b.size)).collect();
    Err(RunError::Model(format!(
        "{}: its codec has frames with codes {}, the decoder reads {} of at most {} each, of {} channels: put the model's own codec there",
        dir.display(),
        of.join(", "),
        config.codebooks(),
        config.vocab,
        config.channels
    )))
}

/// Refuses what is asked for that is of speech alone.
fn of_music(recipe: &Recipe) -> Result<(), RunError> {
    match recipe.data.trim {
        None => Ok(()),
        Some(_) => Err(RunError::Usage(
            "data.trim (--trim): silence is found by where somebody speaks, which music has not: leave it out".to_owned(),
        )),
    }
}

impl Preparer for Music<'_> {
    fn read(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<Made, RunError> {
        let (what, bytes) = self.made(job, console)?;
        Ok(Made::new(what, job.recipe, &*bytes))
    }

    /// Returns the bound without reading any text: encoder or codec, the longest file, and what is held of all.
    fn bound<'a>(&'a self, job: &Job<'_>, held: u64) -> Result<Bound<'a>, RunError> {
        of_music(job.recipe)?;
        let room = Room::new(job, PREPARE_THREADS + job.threads);
        if !self.folder.has_parts() {
            return Ok(Box::new(move |_| room.process));
        }
        let codec = open_codec(&self.folder.codec(), &self.folder.config, job.threads)?;
        let encoder = t5::Encoder::open(&self.folder.text_encoder()?, TEXT_TOKENS, job.threads)?;
        let options = prepare_options(job.recipe, codec.spec().rate);
        let music = self.options(codec.spec().frame, job.recipe.seed);
        Ok(self.bound_of((&music, &options), &room, (Some(&encoder), &*codec), held))
    }

    fn stays(&self) -> u64 {
        PAGES
    }
}

impl Music<'_> {
    /// Returns the options of a codec's frames of so many samples; `seed` draws segments.
    fn options(&self, samples: usize, seed: u64) -> MusicOptions<'static> {
        let config = &self.folder.config;
        MusicOptions {
            frames: Frames { codebooks: config.codebooks(), samples },
            channels: config.channels,
            pieces: self.folder.keys.pieces(seed),
            weighting: self.folder.keys.weighting(),
            longest: music::LONGEST,
            most_text: MOST_TEXT,
            rows: &rows,
            spec: SPEC,
        }
    }

    /// Returns what preparing takes by the seconds of a segment, besides `held` bytes: what the encoder takes or, if that is more, the codec
    /// with the files.
    fn bound_of<'a>(
        &self,
        (music, options): (&MusicOptions<'static>, &PrepareOptions),
        room: &Room,
        (encoder, codec): (Option<&t5::Encoder>, &dyn codec::Codec),
        held: u64,
    ) -> Bound<'a> {
        let beside = room.process + held;
        let width = self.folder.config.text_dim;
        let encoding = encoder.map_or(0, |e| e.bytes() + states_bytes(e.tokens(), width));
        let (codes, music) = (codec.encode_bytes(), music.clone());
        limited(options, move |o| beside + encoding.max(codes + music.fixed_bound(o)))
    }

    /// Returns the clips, or only their lengths, and the bound on the memory that preparing them takes.
    fn made<'a>(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<(What, Bound<'a>), RunError> {
        let data = sets(job.recipe)?;
        of_music(job.recipe)?;
        let room = Room::new(job, PREPARE_THREADS + job.threads);
        let config = &self.folder.config;
        let of_text = self.folder.text_encoder();
        let has = |dir: &PathBuf| [TOKENIZER_FILE, SPIECE_FILE].iter().any(|name| dir.join(name).is_file());
        let has_tokenizer = of_text.as_ref().is_ok_and(has);
        if !(job.run || has_tokenizer && self.folder.has_parts()) {
            let frame = (f64::from(RATE) / config.frame_rate).round().max(1.0) as usize;
            let options = prepare_options(job.recipe, RATE);
            let source = room.read(0, Source::read_music(&data, &options.cache, room.left(0)))?;
            let why = "the model folder has no tokenizer, or no weights of its text encoder and codec, so at most that many rows, a byte of \
                       text a token";
            let music = self.options(frame, job.recipe.seed);
            let texts = Bytes { drawn: self.folder.keys.drawn() };
            let lengths = music_lengths(&source, &texts, &music, &options, &shown(console))?;
            let process = room.process;
            return Ok((What::Lengths(Box::new(lengths), why.to_owned()), Box::new(move |_| process)));
        }
        let (dir, dir_of_codec) = (&of_text?, &self.folder.codec());
        let mut codec = open_codec(dir_of_codec, config, job.threads)?;
        let options = prepare_options(job.recipe, codec.spec().rate);
        // Until the files are known, of none.
        let mut music = MusicOptions { longest: 0.0, ..self.options(codec.spec().frame, job.recipe.seed) };
        let fixed = codec.encode_bytes() + music.fixed_bound(&shortest(&options));
        let tokenizer = room.read(fixed, Unigram::read(dir, room.left(fixed))).map_err(of_tokenizer)?;
        let texts = Reader { tokenizer, drawn: self.folder.keys.drawn() };
        let beside = fixed + texts.tokenizer.memory_bytes();
        let source = room.read(beside, Source::read_music(&data, &options.cache, room.left(beside)))?;
        music.longest = longest_file(&source, &options, &shown(console))?;
        let states = CodesOptions {
            description: None,
            most_description: MOST_TEXT,
            draws: 0,
            frames: music.frames,
            rows: &no_rows,
            spec: SPEC,
        };
        let longest = longest_description(&source, &texts, &states)?;
        // Music without any text needs no encoder.
        let mut encoder = match longest {
            0 => None,
            longest => Some(t5::Encoder::open(dir, longest, job.threads)?),
        };
        let held = music.memory_bound(&source, UNIGRAM_ENCODING_BYTES, &options)
            - music.fixed_bound(&options)
            + texts.tokenizer.memory_bytes();
        let bytes = self.bound_of((&music, &options), &room, (encoder.as_ref(), &*codec), held);
        if let Some(why) = room.too_small(bytes(job.recipe.data.max_seconds), &source)? {
            let lengths = music_lengths(&source, &texts, &music, &options, &shown(console))?;
            return Ok((What::Lengths(Box::new(lengths), why), bytes));
        }
        let mut of_encoder = [0; 32];
        if let Some(encoder) = &mut encoder {
            of_encoder = encoder.fingerprint()?;
            let by = (encoder as &mut dyn codes::Encoder, &of_encoder);
            prepare_states(&source, &texts, by, &states, &options, &shown(console))?;
        }
        drop(encoder);
        let fingerprint = codec.fingerprint()?;
        let mut codec = Own { codec: &mut *codec, fingerprint };
        let codec = (&mut codec as &mut dyn music::Codec, of_encoder);
        let prepared = prepare_music(&source, &texts, codec, &music, &options, &shown(console))?;
        Ok((What::Clips(Box::new(prepared)), bytes))
    }
}

/// The folder's tokenizer, and how texts are drawn.
struct Reader {
    tokenizer: Unigram,
    drawn: Drawn,
}

impl Texts for Reader {
    /// Nothing is said.
    fn prompt(&self, _: &str) -> Result<Vec<u32>, String> {
        Ok(Vec::new())
    }

    fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokenizer.encode(text).map_err(|e| e.to_string())
    }

    fn others(&self) -> usize {
        self.drawn.count
    }

    fn other(&self, entry: &Entry, number: usize) -> String {
        self.drawn.text(entry, number)
    }

    fn fingerprint(&self) -> [u8; 32] {
        let of_ids = self.tokenizer.fingerprint();
        let Drawn { count, word_dropout, merge, drop_description, keep_metadata } = self.drawn;
        if count == 0 {
            return of_ids;
        }
        let mut hash = blake3::Hasher::new();
        hash.update(&of_ids).update(&(count as u64).to_le_bytes());
        for share in [word_dropout, merge, drop_description, keep_metadata] {
            hash.update(&share.to_le_bytes());
        }
        *hash.finalize().as_bytes()
    }
}

/// Stands in for a tokenizer: as many tokens as a text may have.
struct Bytes {
    drawn: Drawn,
}

impl Texts for Bytes {
    fn prompt(&self, _: &str) -> Result<Vec<u32>, String> {
        Ok(Vec::new())
    }

    fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        // And the space that is put before it, and the end.
        Ok(vec![0; (text.len() + 2).min(MOST_TEXT)])
    }

    fn others(&self) -> usize {
        self.drawn.count
    }

    fn other(&self, entry: &Entry, number: usize) -> String {
        self.drawn.text(entry, number)
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

impl music::Codec for Own<'_> {
    fn encode(&mut self, sound: &mut Sound<'_>) -> Result<Result<Vec<Vec<u32>>, String>, DataError> {
        let mut encoding = match self.codec.encoding() {
            Ok(encoding) => encoding,
            Err(e) => return Ok(Err(e.to_string())),
        };
        while let Some(piece) = sound()? {
            if let Err(e) = encoding.push(&piece) {
                return Ok(Err(e.to_string()));
            }
        }
        Ok(encoding.finish().map(|codes| codes.layers).map_err(|e| e.to_string()))
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}
