//! Orpheus: audio to token clips through the SNAC codec, or sequences that are tokenised already.

use super::Orpheus;
use super::keys::Keys;
use crate::codec::{self, Codebook, Spec};
use crate::console::Console;
use crate::error::RunError;
use crate::family::Family;
pub(super) use crate::prepare::PAGES;
use crate::prepare::{
    Bound, Job, Made, PREPARE_THREADS, Preparer, Room, What, limited, of_tokenizer, prepare_options, sets,
    shortest, shown,
};
use crate::tokens::{Reader, Reading, Tokens as TextTokens};
use ambitus_data::mel::SAMPLE_RATE;
use ambitus_data::prepare::speech_lengths;
use ambitus_data::sources::Entry;
use ambitus_data::speech::interleave::{CODEBOOK, FRAME_SAMPLES};
use ambitus_data::speech::sequence::{LAST_AUDIO, LabelScope};
use ambitus_data::speech::{
    Codec, Codes, Sequences, SpeechOptions, TokenSource, prepare_speech, prepare_tokens,
};
use ambitus_data::text::TOKENIZER_FILE;
use ambitus_data::{Bpe, PrepareOptions, Source};
use std::path::Path;

/// The codec as preparing sees it.
pub(super) struct Snac {
    pub codec: Box<dyn codec::Codec>,
    fingerprint: [u8; 32],
}

impl Codec for Snac {
    fn encode(&mut self, samples: &[f32]) -> Result<Codes, String> {
        let layers = self.codec.encode(samples).map_err(|e| e.to_string())?.layers;
        // `open` has checked that there are three.
        Codes::new(layers.try_into().map_err(|_| "the codec has not three codebooks".to_owned())?)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

impl Snac {
    pub fn open(dir: &Path, threads: usize) -> Result<Snac, RunError> {
        let codec = codec::open(crate::CODECS, dir, threads)?;
        let Spec { rate, frame, codebooks, .. } = codec.spec();
        let size = CODEBOOK as usize;
        let known = [1, 2, 4].map(|per_frame| Codebook { per_frame, size });
        if (*rate, *frame, &**codebooks) != (SAMPLE_RATE, FRAME_SAMPLES, &known[..]) {
            let books: Vec<String> =
                codebooks.iter().map(|b| format!("{} of {}", b.per_frame, b.size)).collect();
            return Err(RunError::Model(format!(
                "{}: is not the codec that Orpheus speaks: {rate} Hz, frames of {frame} samples with codes {}; it takes \
                 SNAC at 24 kHz ({FRAME_SAMPLES} samples, 1, 2 and 4 of {CODEBOOK}; hubertsiuzdak/snac_24khz)",
                dir.display(),
                books.join(", ")
            )));
        }
        let fingerprint = codec.fingerprint()?;
        Ok(Snac { codec, fingerprint })
    }
}

/// Version of what is made of codes and text.
const SPEC: &str = "orpheus-snac-24k-v1";

/// Prepares sequences of tokens.
pub(super) struct Tokens<'a> {
    /// The model's folder, with the tokenizer.
    pub dir: &'a Path,
    /// `orpheus:` of the recipe.
    pub keys: &'a Keys,
    /// Ids of the model.
    pub vocabulary: usize,
}

impl Preparer for Tokens<'_> {
    fn read(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<Made, RunError> {
        let (what, bytes) = read(self, job, console)?;
        Ok(Made::new(what, job.recipe, &*bytes))
    }

    /// Returns the bound without reading any text: the codec, if one is named, the longest clip, and what is held of all.
    fn bound<'a>(&'a self, job: &Job<'_>, held: u64) -> Result<Bound<'a>, RunError> {
        let codec = &self.keys.codec;
        let encoding = match codec {
            Some(dir) => codec::open(crate::CODECS, dir, job.threads)?.encode_bytes(),
            None => 0,
        };
        let room = Room::new(job, PREPARE_THREADS + job.threads);
        Ok(bound(&prepare_options(job.recipe, SAMPLE_RATE), &room, codec.is_some(), encoding + held))
    }

    fn stays(&self) -> u64 {
        PAGES
    }
}

/// Returns what reads texts: as prompts, if vocabulary and tokenizer are Orpheus's; else as the tokenizer gives them.
pub(super) fn reader<'a>(dir: &Path, vocabulary: usize, reading: &Reading) -> Result<Reader<'a>, RunError> {
    let read = || Bpe::read(dir, u64::MAX).map_err(|e| of_tokenizer(e.into()));
    let bpe = read()?;
    let speaks = vocabulary as u64 > u64::from(LAST_AUDIO);
    let sequences = if speaks { Sequences::new(read()?, LabelScope::default()).ok() } else { None };
    let family = if sequences.is_some() { Orpheus.name() } else { "a Llama without ids for audio" };
    reading.has(family, false, sequences.is_some())?;
    let voice = reading.voice.clone();
    Ok(Box::new(move |text| {
        let ids = match &sequences {
            Some(sequences) => sequences.prompt(&sequences.text(text, voice.as_deref())?),
            None => bpe.encode(text)?,
        };
        let pieces = ids.iter().map(|id| bpe.piece(*id).unwrap_or_default()).collect();
        Ok(TextTokens { ids, pieces })
    }))
}

/// Returns the token clips, or only their lengths, and the bound on the memory that preparing them takes by the longest clip's
/// seconds.
fn read<'a>(
    tokens: &Tokens<'_>,
    job: &Job<'_>,
    console: &mut dyn Console,
) -> Result<(What, Bound<'a>), RunError> {
    let (recipe, keys, run, vocabulary) = (job.recipe, tokens.keys, job.run, tokens.vocabulary);
    let data = sets(recipe)?;
    let options = prepare_options(recipe, SAMPLE_RATE);
    let max_tokens = keys.max_tokens.map(|n| n as usize);
    let room = Room::new(job, PREPARE_THREADS + job.threads);
    for set in data.iter() {
        let dir = &*set.path;
        let Some(source) = room.read(0, TokenSource::open(dir, room.left(0)))? else { continue };
        if data.single().is_none() {
            return Err(RunError::Usage(format!(
                "data.sets: {} is tokenised already, and such data is not mixed with others: give it alone as data.dir, or give \
                 audio with transcripts",
                dir.display()
            )));
        }
        let of_audio = [
            (keys.codec.is_some(), "orpheus.codec (--codec)"),
            (keys.labels.is_some(), "orpheus.labels"),
            (keys.voice.is_some(), "orpheus.voice"),
            (recipe.data.loudness.or(recipe.data.trim).is_some(), "data.loudness or data.trim"),
        ];
        if let Some((_, key)) = of_audio.into_iter().find(|(given, _)| *given) {
            return Err(RunError::Usage(format!(
                "{key}: has no effect, because {} is tokenised already: leave it out",
                dir.display()
            )));
        }
        let prepared = prepare_tokens(&source, vocabulary as u32, max_tokens, &options, &shown(console))?;
        let bytes = room.process + source.memory_bytes();
        return Ok((What::Clips(Box::new(prepared)), Box::new(move |_| bytes)));
    }
    let tokenizer = tokens.dir.join(TOKENIZER_FILE).is_file();
    let prepares = run || (tokenizer && keys.codec.is_some());
    if prepares && vocabulary as u64 <= u64::from(LAST_AUDIO) {
        return Err(RunError::Model(format!(
            "{}: vocab_size {vocabulary} has no ids for audio (they end at {LAST_AUDIO}): use an Orpheus checkpoint \
             (156939 or 156940 ids)",
            tokens.dir.display()
        )));
    }
    if run && keys.codec.is_none() {
        return Err(RunError::Usage(
            "orpheus.codec: is missing; Orpheus speaks SNAC's tokens: name the folder of that codec (config.json and \
             pytorch_model.bin of hubertsiuzdak/snac_24khz; --codec DIR), or give data that is tokenised already"
                .to_owned(),
        ));
    }
    let speech = SpeechOptions { max_tokens, voice: keys.voice.clone(), spec: SPEC };
    let fixed = speech.fixed_bound(&shortest(&options));
    let sequences = match prepares || tokenizer {
        true => {
            let read = room.read(fixed, Bpe::read(tokens.dir, room.left(fixed))).map_err(of_tokenizer)?;
            let sequences = Sequences::new(read, keys.labels.unwrap_or_default());
            Some(sequences.map_err(|e| of_tokenizer(e.into()))?)
        }
        false => None,
    };
    let mut codec = match &keys.codec {
        Some(codec) => Some(Snac::open(codec, job.threads)?),
        None => None,
    };
    let encoding = codec.as_ref().map_or(0, |codec| codec.codec.encode_bytes());
    let beside = fixed + encoding + sequences.as_ref().map_or(0, |s| s.bpe().memory_bytes());
    let source = room.read(beside, Source::read(&data, &options.cache, room.left(beside)))?;
    // Of the arguments only the longest clip changes.
    let held = match &sequences {
        Some(sequences) => speech.memory_bound(&source, &options, sequences) - speech.fixed_bound(&options),
        None => source.held_bytes(),
    };
    let bytes = bound(&options, &room, codec.is_some(), held + encoding);
    let lengths = |why: &str, console: &mut dyn Console| {
        let text = |entry: &Entry| text_ids(keys, entry, sequences.as_ref());
        let lengths = speech_lengths(&source, &text, max_tokens, &options, &shown(console))?;
        Ok::<_, RunError>(What::Lengths(Box::new(lengths), why.to_owned()))
    };
    let made = match (&mut codec, &sequences) {
        (None, _) => lengths("no codec is named (--codec), so at most that many tokens", console)?,
        (_, None) => lengths(
            "the model folder has no tokenizer.json, so at most that many tokens, a byte of text one",
            console,
        )?,
        (Some(codec), Some(sequences)) => match room.too_small(bytes(recipe.data.max_seconds), &source)? {
            Some(why) => lengths(&why, console)?,
            None => What::Clips(Box::new(prepare_speech(
                &source,
                sequences,
                codec,
                &speech,
                &options,
                &shown(console),
            )?)),
        },
    };
    Ok((made, bytes))
}

/// Returns the ids of an entry's text with its voice; without a tokenizer the most that there may be. `None`: it cannot be used.
fn text_ids(keys: &Keys, entry: &Entry, sequences: Option<&Sequences>) -> Option<usize> {
    let voice = entry.voice.as_deref().or(keys.voice.as_deref());
    match sequences {
        Some(sequences) => sequences.text(&entry.text, voice).ok().map(|ids| ids.len()),
        // A token of a byte-level tokenizer has a byte or more; before them is the id that begins a text.
        None => Some(1 + entry.text.len() + voice.map_or(0, |v| v.len() + 2)),
    }
}

/// Returns what preparing takes by the longest clip's seconds, besides `beside` bytes that do not depend on it. Without a codec
/// that is the process alone.
fn bound<'a>(options: &PrepareOptions, room: &Room, codec: bool, beside: u64) -> Bound<'a> {
    let process = room.process;
    if !codec {
        return Box::new(move |_| process);
    }
    let beside = process + beside;
    limited(options, move |o| beside + SpeechOptions::default().fixed_bound(o))
}
