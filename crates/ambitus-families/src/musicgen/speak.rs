//! Music from texts, or music that is continued: texts through the text encoder, codes column by column, and the codec's sound of them.

use super::folder::Folder;
use super::generate::{Asked, Writer, columns};
use super::prepare::open_codec;
use crate::codec::{self, Codec, Codes, Decoding, SideBySide};
use crate::error::RunError;
use crate::generate::Settings;
use crate::sampling::Sampling;
use crate::speech::{self, Line, Listener, Programs, Reference, Speaker, Speech, SpokenLines, no_room};
use crate::t5::Encoder;
use ambitus_data::music::load_music_clip;
use ambitus_data::text::strip;
use ambitus_data::{DataError, Unigram};
use ambitus_exec::executor::Executor;
use ambitus_ir::DType;
use ambitus_models::decode::{PREFILL, Room, STEP};
use ambitus_models::musicgen::config::TEXT_TOKENS;
use ambitus_models::musicgen::model;
use std::path::Path;
use std::sync::Arc;

/// Seconds of music where nothing is said: audiocraft's.
const SECONDS: f64 = 15.0;
/// The longest that the published models learned.
const MOST_SECONDS: f64 = 30.0;

/// Audiocraft's settings (1.3.0, `MusicGen.set_generation_params`).
const SETTINGS: Settings = Settings {
    sampling: Sampling { top_k: 250, ..Sampling::PLAIN },
    max_new: None,
    guidance: Some(3.0),
    ..Settings::SPEECH
};

/// Texts that are to be heard.
struct Music {
    writer: Writer,
    /// One for each channel; none in plans of a model whose codec is not there.
    codecs: Vec<Box<dyn Codec>>,
    rate: u32,
    /// Of tokenizer and text encoder, or of the codec, while they read what is asked.
    read: u64,
}

impl Speaker for Folder {
    fn example(&self) -> Option<&'static str> {
        Some("\"A calm piano piece.\" --seconds 10")
    }

    fn settings(&self) -> Settings {
        SETTINGS
    }

    fn has_length(&self) -> bool {
        true
    }

    fn speech(&self, asked: &speech::Asked<'_>) -> Result<Box<dyn Speech>, RunError> {
        asked.refuse_language()?;
        let refused = [
            (asked.voice.is_some(), "--voice: the text says what is heard; leave it out"),
            (asked.speed != 1.0, "--speed: say the tempo in the text (\"… at 90 bpm\"); leave it out"),
        ];
        if let Some((_, why)) = refused.iter().find(|(refused, _)| *refused) {
            return Err(RunError::Usage((*why).to_owned()));
        }
        let cfg = &self.config;
        let mut codecs = self.codecs(asked.decoder.unwrap_or(&self.codec()), asked.threads)?;
        let frames = (asked.seconds.unwrap_or(SECONDS) * cfg.frame_rate).ceil().max(1.0) as usize;
        let n = match (asked.seconds, asked.settings.max_new) {
            (None, Some(new)) => new.max(columns(cfg, 0)),
            _ => columns(cfg, frames),
        };
        // Nobody who gives no sound wants a clip of the data continued.
        let (begun, of_codec) = match asked.reference {
            Some(Reference::Sound(path, _)) => {
                (begun(&mut codecs, path, n - cfg.longest_delay(), asked.room)?, codecs[0].encode_bytes())
            }
            Some(Reference::Clip(_)) | None => (Vec::new(), 0),
        };
        let begun: Arc<[Vec<u32>]> = begun.into();
        let (states, read) = self.states(asked)?;
        let text = |states: Vec<f32>| Asked { states: states.into(), begun: begun.clone(), columns: n };
        let mut writer = Writer::new(cfg, asked.settings, states.into_iter().map(text).collect(), 3.0);
        let spec = codecs[0].spec();
        writer.codes = spec.codebooks.iter().map(|book| book.size).min().unwrap_or(cfg.vocab);
        let rate = spec.rate;
        Ok(Box::new(Music { writer, codecs, rate, read: read.max(of_codec) }))
    }

    fn of_length(&self, seconds: f64, threads: usize) -> Result<Box<dyn Speech>, RunError> {
        let cfg = &self.config;
        let codecs = match self.has_parts() {
            true => self.codecs(&self.codec(), threads)?,
            false => Vec::new(),
        };
        let pieces = (seconds / MOST_SECONDS).ceil().max(1.0);
        let n = columns(cfg, (seconds / pieces * cfg.frame_rate) as usize);
        let states = vec![0.0; TEXT_TOKENS * cfg.text_dim].into();
        let text = Asked { states, begun: Arc::new([]), columns: n };
        let writer = Writer::new(cfg, &SETTINGS, vec![text; pieces as usize], 3.0);
        let rate = codecs.first().map_or(32_000, |codec| codec.spec().rate);
        Ok(Box::new(Music { writer, codecs, rate, read: 0 }))
    }

    fn most_seconds(&self) -> f64 {
        MOST_SECONDS
    }
}

/// Returns the codes of a sound that is continued, in at most `room` bytes; `most` frames are written in all.
fn begun(
    codecs: &mut [Box<dyn Codec>],
    sound: &Path,
    most: usize,
    room: u64,
) -> Result<Vec<Vec<u32>>, RunError> {
    let [codec, others @ ..] = codecs else { return Ok(Vec::new()) };
    let needed = codec.encode_bytes();
    if needed > room {
        let what = format!("the codec, for {}", sound.display());
        return Err(no_room(DataError::DoesNotFit { what, needed, room }));
    }
    let file = match others.is_empty() {
        true => codec::encode_file(&mut **codec, sound)?,
        false => codec::encode_stereo_file(&mut **codec, sound)?,
    };
    codec.close();
    let (frames, seconds) = (file.codes.first().map_or(0, Vec::len), |frames: usize| {
        (frames * codec.spec().frame) as f64 / f64::from(codec.spec().rate)
    });
    if frames < most {
        return Ok(file.codes);
    }
    Err(RunError::Usage(format!(
        "--ref: {} takes {:.2} s, and {:.2} s are to be written with what follows: ask for more (--seconds), or cut it",
        sound.display(),
        seconds(frames),
        seconds(most)
    )))
}

impl Folder {
    /// Opens a codec for each channel: they are decoded side by side.
    fn codecs(&self, dir: &Path, threads: usize) -> Result<Vec<Box<dyn Codec>>, RunError> {
        (0..self.config.channels).map(|_| open_codec(dir, &self.config, threads)).collect()
    }

    /// Returns the states of each line's text, and the bytes that reading them took.
    fn states(&self, asked: &speech::Asked<'_>) -> Result<(Vec<Vec<f32>>, u64), RunError> {
        let width = self.config.text_dim;
        let text = |line: &Line| match line {
            Line::Text(text) => Some(strip(text).to_owned()).filter(|text| !text.is_empty()),
            Line::Clip(_) => None,
        };
        let texts: Vec<Option<String>> = asked.lines.iter().map(text).collect();
        let (mut ids, mut read) = (vec![Vec::new(); texts.len()], 0);
        if texts.iter().any(Option::is_some) {
            let tokenizer = Unigram::read(&self.text_encoder()?, asked.room).map_err(no_room)?;
            for (ids, text) in ids.iter_mut().zip(&texts) {
                *ids = text.as_ref().map(|text| tokenizer.encode(text)).transpose()?.unwrap_or_default();
            }
            read = tokenizer.memory_bytes();
        }
        let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
        let mut encoder = match longest {
            0 => None,
            longest => Some(self.encoder(longest, asked.threads)?),
        };
        read += encoder.as_ref().map_or(0, Encoder::bytes);
        if read > asked.room {
            let what = format!("the text encoder of {}", self.dir.display());
            return Err(no_room(DataError::DoesNotFit { what, needed: read, room: asked.room }));
        }
        let mut states = Vec::with_capacity(ids.len());
        for (line, ids) in asked.lines.iter().zip(&ids) {
            states.push(match (line, &mut encoder) {
                (Line::Clip(path), _) => {
                    let clip = load_music_clip(path)?;
                    let folder = path.parent().unwrap_or(Path::new("."));
                    if clip.kept.plain == 0 { Vec::new() } else { clip.states(folder, None, width)? }
                }
                (Line::Text(_), Some(encoder)) if !ids.is_empty() => encoder.states(ids)?,
                (Line::Text(_), _) => Vec::new(),
            });
        }
        Ok((states, read))
    }

    /// Opens the text encoder for texts of up to `tokens` tokens.
    fn encoder(&self, tokens: usize, threads: usize) -> Result<Encoder, RunError> {
        let encoder = Encoder::open(&self.text_encoder()?, tokens, threads)?;
        let (dim, width) = (encoder.config().dim, self.config.text_dim);
        if dim == width {
            return Ok(encoder);
        }
        Err(RunError::Model(format!(
            "{}: its text encoder gives {dim} numbers a token, the model reads {width}: put the model's own encoder there",
            self.dir.display()
        )))
    }
}

impl Speech for Music {
    fn programs(&self) -> Programs {
        let (config, room) = (self.writer.config.clone(), self.writer.room(DType::F32));
        Arc::new(move |session, cache| model::generate(session, &config, Room { cache, ..room }))
    }

    fn runs(&self) -> Vec<(String, f64)> {
        let groups = self.writer.asked.chunks(self.writer.sequences());
        let longest = |some: &[Asked]| some.iter().map(|a| a.columns - 1).max().unwrap_or(0) as f64;
        vec![(PREFILL.to_owned(), groups.len() as f64), (STEP.to_owned(), groups.map(longest).sum())]
    }

    fn read_bytes(&self) -> u64 {
        self.read + self.resting_bytes()
    }

    fn bytes(&self) -> u64 {
        let pair = if self.codecs.len() > 1 { SideBySide::BYTES } else { 0 };
        let codecs: u64 = self.codecs.iter().map(|codec| codec.bytes()).sum();
        self.writer.bytes() + codecs + pair + self.resting_bytes()
    }

    fn resting_bytes(&self) -> u64 {
        self.writer.asked_bytes()
    }

    fn rest(&mut self) {
        self.codecs.iter_mut().for_each(|codec| codec.close());
    }

    fn rate(&self) -> u32 {
        self.rate
    }

    fn channels(&self) -> usize {
        self.writer.config.channels
    }

    fn pieces(&self) -> Vec<usize> {
        vec![1; self.writer.asked.len()]
    }

    fn speak(
        &mut self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        to: &mut dyn Listener,
    ) -> Result<(), RunError> {
        let Music { writer, codecs, .. } = self;
        let mut heard = SpokenLines::new(writer.asked.len());
        for first in (0..writer.asked.len()).step_by(writer.sequences()) {
            for (i, written) in writer.write(exec, name, first)?.iter().enumerate() {
                heard.end_before(first + i, to)?;
                // It is as long as was asked for.
                heard.line(first + i).expected_seconds = None;
                let codes = Codes { layers: written.codes(&writer.config) };
                hear(codecs, codes, &mut |samples| to.samples(first + i, samples))?;
            }
        }
        heard.end_before(writer.asked.len(), to)
    }
}

/// Makes the sound of codes, piece by piece.
fn hear(
    codecs: &mut [Box<dyn Codec>],
    codes: Codes,
    to: &mut dyn FnMut(&[f32]) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let mut all = |decoding: &mut dyn Decoding| {
        while let Some(samples) = decoding.next_piece()? {
            to(samples)?;
        }
        Ok(())
    };
    match codecs {
        [] => Err(RunError::Usage("the model has no codec here".to_owned())),
        [codec] => all(&mut *codec.decoding(&codes, None)?),
        [left, right, ..] => all(&mut SideBySide::new([&mut **left, &mut **right], &codes.channels())?),
    }
}
