//! Orpheus: audio to token clips through the SNAC codec, or sequences that are tokenised already.

use super::{Room, no_data, numbers, prepare_options, progress};
use crate::codec;
use crate::device::Device;
use crate::error::RunError;
use crate::model_dir::ModelDir;
use crate::recipe::Recipe;
use crate::resolve::{Console, PREPARE_THREADS};
use crate::size::ByteSize;
use ambitus_data::prepare::Progress;
use ambitus_data::speech::interleave::{CODEBOOK, FRAME_SAMPLES};
use ambitus_data::speech::sequence::LAST_AUDIO;
use ambitus_data::speech::{
    Codec, Codes, Sequences, SpeechOptions, TokenSource, prepare_speech, prepare_tokens,
};
use ambitus_data::{Bpe, DataError, Prepared, Source};
use std::path::Path;
use std::sync::Mutex;

/// The codec as preparing sees it.
struct Snac {
    codec: codec::Codec,
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
    fn open(dir: &Path, threads: usize) -> Result<Snac, RunError> {
        let codec = codec::Codec::open(dir, threads)?;
        let cfg = codec.config();
        let known = cfg.frame() == FRAME_SAMPLES
            && cfg.vq_strides == [4, 2, 1]
            && cfg.codebook_size == CODEBOOK as usize;
        if !known {
            return Err(RunError::Model(format!(
                "{}: is not the codec that Orpheus speaks: frames of {} samples, strides {:?}, codebooks of {}; it takes \
                 SNAC at 24 kHz ({FRAME_SAMPLES} samples, [4, 2, 1], {CODEBOOK}; hubertsiuzdak/snac_24khz)",
                dir.display(),
                cfg.frame(),
                cfg.vq_strides,
                cfg.codebook_size
            )));
        }
        let fingerprint = codec.fingerprint()?;
        Ok(Snac { codec, fingerprint })
    }
}

/// Token clips of a recipe's data, and the bound on the memory that preparing them takes.
pub(super) fn prepare(
    recipe: &Recipe,
    model: &ModelDir,
    vocabulary: usize,
    device: &Device,
    console: &mut dyn Console,
) -> Result<(Prepared, u64), RunError> {
    let dir = recipe.data.dir.as_ref().ok_or_else(no_data)?;
    let options = prepare_options(recipe);
    let max_tokens = recipe.data.max_tokens.map(|n| n as usize);
    let console = Mutex::new(console);
    let room = Room::new(recipe, device, PREPARE_THREADS + device.threads())?;
    if let Some(source) = room.read(0, TokenSource::open(dir, room.beside(0, "data not read yet")?))? {
        let of_audio = [
            (recipe.data.codec.is_some(), "codec (--codec)"),
            (recipe.data.labels.is_some(), "labels"),
            (recipe.data.voice.is_some(), "voice"),
        ];
        if let Some((_, key)) = of_audio.iter().find(|(given, _)| *given) {
            return Err(RunError::Usage(format!(
                "data.{key}: {} is tokenised already, which this would not change: leave it out",
                dir.display()
            )));
        }
        let report = |p: Progress<'_>| progress(&console, &p);
        let prepared = prepare_tokens(&source, vocabulary as u32, max_tokens, &options, &report)?;
        return Ok((prepared, source.memory_bytes()));
    }
    if vocabulary as u64 <= u64::from(LAST_AUDIO) {
        return Err(RunError::Model(format!(
            "{}: vocab_size {vocabulary} has no ids for audio (they end at {LAST_AUDIO}): use an Orpheus checkpoint \
             (156939 or 156940 ids)",
            model.dir.display()
        )));
    }
    let Some(codec_dir) = &recipe.data.codec else {
        return Err(RunError::Usage(
            "data.codec: is missing; Orpheus speaks SNAC's tokens: name the folder of that codec (config.json and \
             pytorch_model.bin of hubertsiuzdak/snac_24khz; --codec DIR), or give data that is tokenised already"
                .to_owned(),
        ));
    };
    let speech = SpeechOptions { max_tokens, voice: recipe.data.voice.clone() };
    let fixed = speech.fixed_bound(&options);
    let left = room.beside(fixed, &format!("audio {}", ByteSize(fixed)))?;
    let read = room.read(fixed, Bpe::read(&model.dir, left)).map_err(of_model)?;
    let sequences = Sequences::new(read, recipe.data.labels.unwrap_or_default());
    let sequences = sequences.map_err(|e| of_model(e.into()))?;
    let mut codec = Snac::open(codec_dir, device.threads())?;
    let encoding = codec.codec.encode_bytes();
    let beside = fixed + encoding + sequences.bpe().memory_bytes();
    let parts =
        |bound: u64| format!("codec {} · text and audio {}", ByteSize(encoding), ByteSize(bound - encoding));
    let left = room.beside(beside, &parts(beside))?;
    let source = room.read(beside, Source::read(dir, &options.cache, left))?;
    let bound = encoding + speech.memory_bound(&source, &options, &sequences);
    room.beside(bound, &format!("{} ({})", parts(bound), numbers(&source)))?;
    let report = |p: Progress<'_>| progress(&console, &p);
    let prepared = prepare_speech(&source, &sequences, &mut codec, &speech, &options, &report)?;
    Ok((prepared, room.process + bound))
}

/// What is wrong with a tokenizer is the model's, not the data's.
fn of_model(e: RunError) -> RunError {
    match e {
        RunError::Data(e @ (DataError::File { .. } | DataError::Io { .. })) => RunError::Model(e.to_string()),
        other => other,
    }
}
