//! Speech from text: a description of the voice through the text encoder, the text as prompt, column by column until all codebooks have
//! ended, and the codec's sound of what they wrote.

use super::folder::{Folder, codec, tokenizer};
use super::generate::{Lengths, Said, Writer};
use crate::codec::{Codec, Codes};
use crate::error::RunError;
use crate::generate::Settings;
use crate::sampling::Sampling;
use crate::speech::{
    Asked, BYTES_A_SECOND, Line, Listener, Programs, Reference, Speaker, Speech, SpokenLines, no_room,
};
use crate::t5::Encoder;
use ambitus_data::codes::{load_code_clip, load_states};
use ambitus_data::doubts::{expected_seconds, loops};
use ambitus_data::text::{chunks, strip};
use ambitus_data::{DataError, Unigram};
use ambitus_exec::executor::Executor;
use ambitus_ir::DType;
use ambitus_models::decode::{PREFILL, Room, STEP};
use ambitus_models::parler::config::DESCRIPTION_TOKENS;
use ambitus_models::parler::model;
use std::path::Path;
use std::sync::Arc;

/// Speech that takes more than this many times the seconds that its text should, and [`SPARE`] more, is cut.
const MOST_TIMES: f64 = 2.0;
const SPARE: f64 = 2.0;
/// The longest piece, about: as long as the clips that such models learn from.
const MOST_SECONDS: f64 = 20.0;

/// The project's settings: transformers' own, where `do_sample` alone is set.
const SETTINGS: Settings =
    Settings { sampling: Sampling { top_k: 50, ..Sampling::PLAIN }, ..Settings::SPEECH };

/// A described voice.
struct Voice {
    tokenizer: Unigram,
    /// Of the description, `[U, E]`.
    states: Arc<[f32]>,
    /// Of tokenizer and text encoder while both were there.
    bytes: u64,
}

/// Lines to be spoken.
struct Speaking {
    writer: Writer,
    /// Seconds that each piece should take.
    expected: Vec<f64>,
    /// Pieces of each line.
    lines: Vec<usize>,
    /// `None` in plans of a model whose codec is not there.
    codec: Option<Box<dyn Codec>>,
    rate: u32,
    /// Of the tokenizer and the text encoder, while they were there.
    read: u64,
}

impl Speaker for Folder {
    fn example(&self) -> Option<&'static str> {
        Some("\"Good morning.\" --voice DESCRIPTION")
    }

    fn settings(&self) -> Settings {
        SETTINGS
    }

    fn speech(&self, asked: &Asked<'_>) -> Result<Box<dyn Speech>, RunError> {
        asked.refuse_language()?;
        if let Some(Reference::Sound(..)) = asked.reference {
            return Err(RunError::Usage(
                "--ref: this model's voices are described, and it takes no clip: describe one (--voice \"A woman speaks slowly, \
                 very clear audio.\")"
                    .to_owned(),
            ));
        }
        if asked.speed != 1.0 {
            return Err(RunError::Usage(
                "--speed: describe the pace (--voice \"… speaks fast\"); leave it out".to_owned(),
            ));
        }
        let codec = codec(asked.decoder.unwrap_or(&self.dir), &self.config, asked.threads)?;
        let (mut said, mut expected, mut lines, mut read) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut voice: Option<Voice> = None;
        let lengths = Lengths::read(&self.dir)?;
        for line in asked.lines {
            let before = said.len();
            let text = match line {
                Line::Text(text) => text,
                Line::Clip(path) => {
                    let (one, seconds) = self.said_in(path, asked.settings, &lengths)?;
                    said.push(one);
                    expected.push(seconds);
                    lines.push(1);
                    continue;
                }
            };
            let most = (asked.most_seconds.min(MOST_SECONDS) * BYTES_A_SECOND) as usize;
            let voice = match &mut voice {
                Some(voice) => voice,
                none => none.insert(self.voice(asked)?),
            };
            read = voice.bytes;
            for chunk in chunks(text, most.max(1)) {
                let prompt = voice.tokenizer.encode(strip(&chunk))?;
                let seconds = expected_seconds(&chunk, None);
                let columns = self.columns(prompt.len(), seconds, asked.settings, &lengths);
                said.push(Said { prompt, states: voice.states.clone(), columns });
                expected.push(seconds);
            }
            lines.push(said.len() - before);
        }
        let rate = codec.spec().rate;
        let writer = Writer::new(&self.config, asked.settings, said, lengths.min_new_tokens.unwrap_or(0));
        Ok(Box::new(Speaking { writer, expected, lines, codec: Some(codec), rate, read }))
    }

    fn of_length(&self, seconds: f64, threads: usize) -> Result<Box<dyn Speech>, RunError> {
        let codec = match self.has_parts() {
            true => Some(codec(&self.dir, &self.config, threads)?),
            false => None,
        };
        let sequences = (seconds / MOST_SECONDS).ceil().max(1.0);
        let each = seconds / sequences;
        // A token of text has some four bytes.
        let prompt = (each * BYTES_A_SECOND / 4.0) as usize + 1;
        let columns = self.columns(prompt, each, &SETTINGS, &Lengths::default());
        let states = vec![0.0; DESCRIPTION_TOKENS * self.config.text_dim].into();
        let said = Said { prompt: vec![0; prompt], states, columns };
        let said = vec![said; sequences as usize];
        let rate = codec.as_ref().map_or(44_100, |codec| codec.spec().rate);
        Ok(Box::new(Speaking {
            expected: vec![each; said.len()],
            lines: vec![said.len()],
            writer: Writer::new(&self.config, &SETTINGS, said, 0),
            codec,
            rate,
            read: 0,
        }))
    }

    fn most_seconds(&self) -> f64 {
        MOST_SECONDS * Settings::SPEECH.sequences as f64
    }
}

impl Folder {
    /// Reads the voice that is asked for: tokenizer, and states of its description.
    fn voice(&self, asked: &Asked<'_>) -> Result<Voice, RunError> {
        let described = asked.voice.or(self.keys.description.as_deref()).map(strip);
        let Some(description) = described.filter(|d| !d.is_empty()) else {
            return Err(RunError::Usage(
                "--voice: is missing; describe who speaks, and how (--voice \"A woman speaks slowly, very clear audio.\")"
                    .to_owned(),
            ));
        };
        let tokenizer = tokenizer(&self.dir, asked.room).map_err(no_room)?;
        let ids = tokenizer.encode(description)?;
        let mut encoder = Encoder::open(&self.dir, ids.len(), asked.threads)?;
        let bytes = tokenizer.memory_bytes() + encoder.bytes();
        if bytes > asked.room {
            let what = format!("the text encoder of {}", self.dir.display());
            return Err(no_room(DataError::DoesNotFit { what, needed: bytes, room: asked.room }));
        }
        Ok(Voice { tokenizer, states: encoder.states(&ids)?.into(), bytes })
    }

    /// Returns prompt and states of a prepared clip, and the seconds of its audio.
    fn said_in(&self, path: &Path, settings: &Settings, lengths: &Lengths) -> Result<(Said, f64), RunError> {
        let clip = load_code_clip(path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let states = load_states(folder, &clip, None, self.config.text_dim)?;
        let seconds = clip.frames() as f64 / self.config.frame_rate;
        let columns = self.columns(clip.prompt.len(), seconds, settings, lengths);
        Ok((Said { prompt: clip.prompt, states: states.into(), columns }, seconds))
    }

    /// Returns the columns that a text may take: some more time than is expected, and no more than settings, the folder and positions
    /// allow.
    fn columns(&self, prompt: usize, expected: f64, settings: &Settings, lengths: &Lengths) -> usize {
        let cfg = &self.config;
        let frames = ((MOST_TIMES * expected + SPARE) * cfg.frame_rate).ceil() as usize;
        let by_time = frames + cfg.codebooks;
        let by_place = cfg.rows().most.map_or(usize::MAX, |most| most - cfg.rows_of(prompt, 0).min(most));
        let by_settings = settings.max_new.map_or(usize::MAX, |new| new + 1);
        let most = by_time.min(by_place).min(by_settings).min(lengths.max_length.unwrap_or(usize::MAX));
        most.max(2 * cfg.codebooks - 1)
    }
}

impl Speech for Speaking {
    fn programs(&self) -> Programs {
        let (config, room) = (self.writer.config.clone(), self.writer.room(DType::F32));
        Arc::new(move |session, cache| model::generate(session, &config, Room { cache, ..room }))
    }

    fn runs(&self) -> Vec<(String, f64)> {
        let columns = |s: &f64| s * self.writer.config.frame_rate + self.writer.config.codebooks as f64;
        let longest = |some: &[f64]| some.iter().map(columns).fold(0.0, f64::max);
        let groups = self.expected.chunks(self.writer.sequences());
        vec![(PREFILL.to_owned(), groups.len() as f64), (STEP.to_owned(), groups.map(longest).sum())]
    }

    fn read_bytes(&self) -> u64 {
        self.read + self.resting_bytes()
    }

    fn bytes(&self) -> u64 {
        self.writer.bytes() + self.codec.as_ref().map_or(0, |codec| codec.bytes()) + self.resting_bytes()
    }

    fn resting_bytes(&self) -> u64 {
        self.writer.said_bytes()
    }

    fn rest(&mut self) {
        if let Some(codec) = &mut self.codec {
            codec.close();
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
        let Speaking { writer, expected, lines, codec, .. } = self;
        let codec =
            codec.as_mut().ok_or_else(|| RunError::Usage("the model has no codec here".to_owned()))?;
        let of_piece: Vec<usize> = lines.iter().enumerate().flat_map(|(i, n)| vec![i; *n]).collect();
        let mut spoken = SpokenLines::new(lines.len());
        for first in (0..of_piece.len()).step_by(writer.sequences()) {
            let all = writer.write(exec, name, first)?;
            for (i, written) in all.iter().enumerate() {
                let line = of_piece[first + i];
                spoken.end_before(line, to)?;
                let layers = written.codes(&writer.config);
                let of_line = spoken.line(line);
                of_line.reached_limit |= !written.has_ended();
                of_line.expected_seconds = of_line.expected_seconds.map(|s| s + expected[first + i]);
                if let Some(loops) = layers.first().and_then(|first| loops(first, 1)) {
                    of_line.oddities.push(loops.doubt(writer.config.frame_rate).to_string());
                }
                let codes = Codes { layers };
                let mut decoding = codec.decoding(&codes, None)?;
                while let Some(samples) = decoding.next_piece()? {
                    to.samples(line, samples)?;
                }
            }
        }
        spoken.end_before(lines.len(), to)
    }
}

/// Returns what reads texts: as prompts and descriptions both.
pub(super) fn reader<'a>(dir: &Path) -> Result<crate::tokens::Reader<'a>, RunError> {
    let tokenizer = tokenizer(dir, u64::MAX).map_err(|e| RunError::Model(e.to_string()))?;
    Ok(Box::new(move |text| {
        let ids = tokenizer.encode(strip(text))?;
        let pieces = ids.iter().map(|id| tokenizer.piece(*id).unwrap_or_default()).collect();
        Ok(crate::tokens::Tokens { ids, pieces })
    }))
}
