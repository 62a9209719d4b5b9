//! Speech from text in the voice of a reference clip: latents of the clip, codes of the text, and the vocoder's sound of the states that
//! chose them (`Xtts.inference` of coqui-tts 0.28).

use super::conditioning::{self, reference, rows};
use super::folder::Folder;
use super::generate::{Heard, Said, Writer};
use super::text::{Texts, readings};
use super::vocoder::{Rates, Vocoder};
use crate::error::RunError;
use crate::generate::Settings;
use crate::sampling::Sampling;
use crate::speech::{
    Asked, BYTES_A_SECOND, Line, Listener, Programs, Reference, Speaker, Speech, SpokenLines, no_room,
};
use ambitus_data::DataError;
use ambitus_data::doubts::{expected_seconds, loops};
use ambitus_data::pieces::load_piece_clip;
use ambitus_data::text::chunks;
use ambitus_exec::executor::Executor;
use ambitus_ir::DType;
use ambitus_models::decode::{PREFILL, Room, STEP};
use ambitus_models::xtts::config::{BANDS, RATE, SAMPLES_PER_CODE};
use ambitus_models::xtts::model;
use std::path::Path;
use std::sync::Arc;

/// Speech that takes more than this many times the seconds that its text should, and [`SPARE`] more, is cut.
const MOST_TIMES: f64 = 2.0;
const SPARE: f64 = 2.0;
/// The longest piece, about: the project's limit of 250 letters.
const MOST_SECONDS: f64 = 16.0;
/// Seconds of a usual reference, for plans.
const USUAL_REFERENCE: usize = 6;
/// Codes of a second.
const CODES_A_SECOND: f64 = RATE as f64 / SAMPLES_PER_CODE as f64;
/// What the project's penalty of repetition sees before a text's codes: its stand-ins for the prompt, a 1, and the start.
const STAND_IN: u32 = 1;

/// The project's settings (`Xtts.inference`).
const SETTINGS: Settings = Settings {
    sampling: Sampling {
        greedy: false,
        repetition_penalty: 10.0,
        temperature: 0.75,
        top_k: 50,
        top_p: 0.85,
        seed: 0,
    },
    ..Settings::SPEECH
};

/// Whose voice it is: a reference's, which the speaker encoder hears at the first use.
struct Voice {
    /// At the model's rate; none in plans.
    clips: Vec<Vec<f32>>,
    known: Option<Vec<f32>>,
    /// What the encoder takes.
    bytes: u64,
}

impl Voice {
    /// Returns the bytes of the clips.
    fn held(&self) -> u64 {
        self.clips.iter().map(|clip| 4 * clip.len() as u64).sum()
    }
}

/// Lines in a voice.
struct Speaking {
    writer: Writer,
    /// Seconds that each piece should take as it is written.
    expected: Vec<f64>,
    /// Pieces of each line.
    lines: Vec<usize>,
    /// Of the reference.
    voice: Voice,
    speed: f64,
    /// `None` in plans of a model whose vocoder is not there.
    vocoder: Option<Vocoder>,
    rate: u32,
    /// Of the tokenizer, while it was there.
    read: u64,
    /// Pages of a dictionary that stay.
    stays: u64,
}

impl Speaker for Folder {
    fn example(&self) -> Option<&'static str> {
        Some("\"Good morning.\" --ref CLIP.wav --language en")
    }

    fn settings(&self) -> Settings {
        SETTINGS
    }

    fn speech(&self, asked: &Asked<'_>) -> Result<Box<dyn Speech>, RunError> {
        if asked.voice.is_some() {
            let why = "--voice: this model has no named voices; give a clip of the voice (--ref)";
            return Err(RunError::Usage(why.to_owned()));
        }
        let settings = self.conditioning;
        let sound = match asked.reference {
            None => {
                return Err(RunError::Usage(
                    "--ref: is missing; this model speaks in the voice of a clip: give one of 3 to 12 s (--ref clip.wav)"
                        .to_owned(),
                ));
            }
            Some(Reference::Sound(path, _)) => reference(path, &settings)?,
            Some(Reference::Clip(path)) => {
                let clip = load_piece_clip(path)?;
                let n = clip.counts().samples.min((settings.file * RATE) as usize);
                clip.sound(0..n).collect()
            }
        };
        let sound = [sound];
        let mels: Arc<[Vec<f32>]> = rows(&sound, &self.statistics()?, &settings)?.into();
        let vocoder = self.vocoder(asked.decoder, asked.threads)?;
        let voice = Voice { bytes: vocoder.voice_bytes(sound[0].len()), clips: sound.into(), known: None };
        let mut read = 0;
        let (mut said, mut expected, mut lines) = (Vec::new(), Vec::new(), Vec::new());
        let mut texts: Option<Texts> = None;
        for line in asked.lines {
            let before = said.len();
            match line {
                Line::Clip(path) => {
                    let clip = load_piece_clip(path)?;
                    let seconds = clip.counts().samples as f64 / f64::from(RATE);
                    said.push(self.said(clip.text(), &mels, seconds, asked.settings)?);
                    expected.push(seconds);
                }
                Line::Text(text) => {
                    let texts = match &mut texts {
                        Some(texts) => texts,
                        none => none.insert(self.texts(asked.room, asked.cleaned)?),
                    };
                    let language = self.language(asked.language)?;
                    let most = (asked.most_seconds.min(MOST_SECONDS) * BYTES_A_SECOND) as usize;
                    for chunk in chunks(text, most.max(1)) {
                        let ids = texts.encode(&chunk, language).map_err(of_line)?;
                        if let Some(why) = texts.refused(&ids) {
                            return Err(RunError::Usage(format!("`{chunk}` {why}")));
                        }
                        let seconds = expected_seconds(&chunk, None);
                        said.push(self.said(ids, &mels, seconds, asked.settings)?);
                        expected.push(seconds);
                    }
                }
            }
            lines.push(said.len() - before);
        }
        let stays = texts.map_or(0, |texts| {
            let language = asked.language.or(self.keys.language.as_deref());
            let (bytes, pages) = readings(asked.cleaned || self.keys.cleaned, language);
            read = texts.bpe().memory_bytes() + bytes;
            pages
        });
        let writer = self.writer(asked.settings, said);
        let rate = vocoder.rate();
        let (speed, vocoder) = (asked.speed, Some(vocoder));
        Ok(Box::new(Speaking { writer, expected, lines, voice, speed, vocoder, rate, read, stays }))
    }

    fn of_length(&self, seconds: f64, threads: usize) -> Result<Box<dyn Speech>, RunError> {
        let vocoder = match self.has_vocoder() {
            true => Some(self.vocoder(None, threads)?),
            false => None,
        };
        let sequences = (seconds / MOST_SECONDS).ceil().max(1.0);
        let each = seconds / sequences;
        let front = conditioning::FRONT;
        let frames = self.conditioning.chunk as usize * RATE as usize / front.hop + 1;
        let mels: Arc<[Vec<f32>]> = vec![vec![0.0; frames * BANDS]].into();
        let ids = ((each * super::TEXT_PER_SECOND) as usize + 1).min(self.config.most_text());
        let said = self.said(vec![0; ids], &mels, each, &SETTINGS)?;
        let said = vec![said; sequences as usize];
        let samples = USUAL_REFERENCE * RATE as usize;
        Ok(Box::new(Speaking {
            expected: vec![each; said.len()],
            lines: vec![said.len()],
            writer: self.writer(&SETTINGS, said),
            voice: Voice {
                bytes: vocoder
                    .as_ref()
                    .map_or(0, |vocoder| vocoder.voice_bytes(samples) + 4 * samples as u64),
                clips: Vec::new(),
                known: None,
            },
            speed: 1.0,
            stays: 0,
            read: 0,
            rate: vocoder.as_ref().map_or(Rates::PUBLISHED.output, Vocoder::rate),
            vocoder,
        }))
    }

    fn most_seconds(&self) -> f64 {
        MOST_SECONDS * SETTINGS.sequences as f64
    }
}

/// Turns what is wrong with a text, or its language, into a fault of who asks for it.
fn of_line(e: DataError) -> RunError {
    match e {
        DataError::Invalid(why) => RunError::Usage(why),
        e => no_room(e),
    }
}

impl Folder {
    fn writer(&self, settings: &Settings, said: Vec<Said>) -> Writer {
        let before = vec![STAND_IN, self.config.start];
        Writer { config: self.config.clone(), settings: settings.clone(), said, before }
    }

    /// Returns a text that takes some more time than is expected at most.
    fn said(
        &self,
        text: Vec<u32>,
        mels: &Arc<[Vec<f32>]>,
        seconds: f64,
        settings: &Settings,
    ) -> Result<Said, RunError> {
        let (n, most) = (text.len(), self.config.most_text());
        if n > most {
            let why =
                format!("a text of {n} ids is more than the model's {most}: give it in shorter sentences");
            return Err(RunError::Usage(why));
        }
        let by_time = ((MOST_TIMES * seconds + SPARE) * CODES_A_SECOND).ceil() as usize;
        let by_settings = settings.max_new.unwrap_or(usize::MAX);
        let most = by_time.min(by_settings).min(self.config.most_codes());
        Ok(Said { text, mels: mels.clone(), most })
    }

    /// Opens the vocoder of the folder, or of another model's.
    fn vocoder(&self, of: Option<&Path>, threads: usize) -> Result<Vocoder, RunError> {
        let (path, prefix) = super::folder::frozen_file(of.unwrap_or(&self.dir))?;
        Vocoder::open(&path, &prefix, self.rates, threads)
    }
}

impl Speech for Speaking {
    fn programs(&self) -> Programs {
        let (config, room, frames) =
            (self.writer.config.clone(), self.writer.room(DType::F32), self.writer.frames());
        Arc::new(move |session, cache| model::generate(session, &config, Room { cache, ..room }, &frames))
    }

    fn runs(&self) -> Vec<(String, f64)> {
        let codes = |s: &f64| s * CODES_A_SECOND + 1.0;
        let longest = |some: &[f64]| some.iter().map(codes).fold(0.0, f64::max);
        let groups = self.expected.chunks(self.writer.sequences());
        // All lines have one voice.
        let pieces = self.writer.said.first().map_or(&[][..], |said| &said.mels);
        let of = |frames: &usize| pieces.iter().filter(|mel| mel.len() == frames * BANDS).count() as f64;
        let frames = self.writer.frames();
        let heard = frames.iter().map(|frames| (model::condition(*frames), of(frames)));
        let written = [(PREFILL, groups.len() as f64), (STEP, groups.map(longest).sum())];
        heard.chain(written.map(|(name, times)| (name.to_owned(), times))).collect()
    }

    fn read_bytes(&self) -> u64 {
        self.read + self.resting_bytes()
    }

    fn bytes(&self) -> u64 {
        // The voice is known before there is any sound.
        let heard = self.vocoder.as_ref().map_or(0, Vocoder::bytes).max(self.voice.bytes);
        self.writer.bytes() + self.voice.held() + self.stays + heard
    }

    fn resting_bytes(&self) -> u64 {
        self.writer.said_bytes() + self.voice.held() + self.stays
    }

    fn rest(&mut self) {
        if let Some(vocoder) = &mut self.vocoder {
            vocoder.close();
        }
    }

    fn rate(&self) -> u32 {
        self.rate
    }

    fn pieces(&self) -> Vec<usize> {
        self.lines.clone()
    }

    fn speak(
        &mut self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        to: &mut dyn Listener,
    ) -> Result<(), RunError> {
        let Speaking { writer, expected, lines, voice, speed, vocoder, .. } = self;
        let vocoder =
            vocoder.as_mut().ok_or_else(|| RunError::Usage("the model has no vocoder here".to_owned()))?;
        let voice = match &mut voice.known {
            Some(known) => known,
            // Its clips are heard once.
            none => none.insert(vocoder.voice(&std::mem::take(&mut voice.clips))?),
        };
        let of_piece: Vec<usize> = lines.iter().enumerate().flat_map(|(i, n)| vec![i; *n]).collect();
        let (mut spoken, mut heard) = (SpokenLines::new(lines.len()), Heard::default());
        for first in (0..of_piece.len()).step_by(writer.sequences()) {
            let all = writer.write(exec, name, first, &mut heard)?;
            for (i, written) in all.iter().enumerate() {
                let line = of_piece[first + i];
                spoken.end_before(line, to)?;
                let of_line = spoken.line(line);
                of_line.reached_limit |= written.codes.last() != Some(&writer.config.stop);
                of_line.expected_seconds = of_line.expected_seconds.map(|s| s + expected[first + i] / *speed);
                if let Some(loops) = loops(&written.codes, 1) {
                    of_line.oddities.push(loops.doubt(CODES_A_SECOND * *speed).to_string());
                }
                let mut sound = vocoder.sound(&written.states, voice, *speed)?;
                while let Some(samples) = sound.next_piece()? {
                    to.samples(line, samples)?;
                }
            }
        }
        spoken.end_before(lines.len(), to)
    }
}
