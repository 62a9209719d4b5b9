//! Speech from text: the official prompt, token by token until the model ends its speech, and the codec's sound of whole frames.
//!
//! `[START_OF_HUMAN] [BEGIN_OF_TEXT] voice: text [END_OF_TEXT] [END_OF_HUMAN] [START_OF_AI] [START_OF_SPEECH]` is what training has
//! before the audio. The official player leaves out the first frame and the last two, drops code 0, and plays frames before their
//! right-hand side is known; here every whole frame is heard as the codec decodes all of them at once.

use super::folder::Folder;
use super::prepare::{PAGES, Snac};
use crate::codec::{Codec, Codes};
use crate::decode::Decoder;
use crate::error::RunError;
use crate::generate::Settings;
use crate::sampling::Draws;
use crate::speech::{
    Asked, BYTES_A_SECOND, Line, Listener, Programs, Reference, Speaker, Speech, SpokenLines, no_room,
};
use ambitus_data::doubts::{expected_seconds, loops};
use ambitus_data::mel::SAMPLE_RATE;
use ambitus_data::speech::interleave::{Codes as SnacCodes, FRAME_SAMPLES, Frames, SLOTS, interleave};
use ambitus_data::speech::sequence::{END_OF_AI, END_OF_SPEECH, END_OF_TEXT, LAST_AUDIO, START_OF_SPEECH};
use ambitus_data::speech::{Sequences, load_token_clip};
use ambitus_data::text::chunks;
use ambitus_data::{Bpe, DataError};
use ambitus_exec::executor::Executor;
use ambitus_ir::DType;
use ambitus_models::decode::{PREFILL, Room, STEP};
use ambitus_models::orpheus::config::Config;
use ambitus_models::orpheus::model;
use std::path::Path;
use std::sync::Arc;

/// Frames that are decoded at a time: two seconds of sound.
const WINDOW: usize = 24;
/// Frames on both sides of a window that its samples depend on: the codec sees 2.32 frames (facts of snac 1.2.1's layers).
const AROUND: usize = 3;
/// Speech that takes more than this many times the seconds that its text should, and [`SPARE`] more, is cut.
const MOST_TIMES: f64 = 2.0;
const SPARE: f64 = 2.0;
/// The longest piece, about: as long as the clips that such models learn from.
const MOST_SECONDS: f64 = 20.0;

/// A text in one piece.
struct Piece {
    prompt: Vec<u32>,
    expected: f64,
    /// New tokens at most.
    most: usize,
}

/// Lines to be spoken.
struct Speaking {
    config: Config,
    settings: Settings,
    pieces: Vec<Piece>,
    /// Pieces of each line.
    lines: Vec<usize>,
    /// `None` in plans of a model whose codec is not known.
    codec: Option<Box<dyn Codec>>,
    notes: Vec<String>,
    /// Of the tokenizer, while it was there.
    tokenizer: u64,
}

impl Speaker for Folder {
    fn example(&self) -> Option<&'static str> {
        (self.config.vocab as u64 > u64::from(LAST_AUDIO)).then_some("\"Good morning.\" --voice NAME")
    }

    fn speech(&self, asked: &Asked<'_>) -> Result<Box<dyn Speech>, RunError> {
        asked.refuse_language()?;
        if let Some(Reference::Sound(..)) = asked.reference {
            return Err(RunError::Usage(
                "--ref: this model's voices have names, and it takes no clip: give one (--voice tara)"
                    .to_owned(),
            ));
        }
        if asked.speed != 1.0 {
            return Err(RunError::Usage("--speed: this model chooses its pace; leave it out".to_owned()));
        }
        if self.example().is_none() {
            return Err(RunError::Model(format!(
                "{}: vocab_size {} has no ids for audio (they end at {LAST_AUDIO}), so it cannot speak: use an Orpheus checkpoint",
                self.dir.display(),
                self.config.vocab
            )));
        }
        let Some(codec) = asked.decoder.or(self.keys.codec.as_deref()) else {
            return Err(RunError::Usage(
                "--codec: is missing; the model writes SNAC's codes: name the folder of that codec (config.json and \
                 pytorch_model.bin of hubertsiuzdak/snac_24khz)"
                    .to_owned(),
            ));
        };
        let codec = Snac::open(codec, asked.threads)?.codec;
        let voice = asked.voice.or(self.keys.voice.as_deref());
        let (mut pieces, mut lines, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        let mut sequences = None;
        for line in asked.lines {
            let before = pieces.len();
            match line {
                Line::Clip(path) => pieces.push(self.piece_of_clip(path, asked.settings)?),
                Line::Text(text) => {
                    let sequences = match &mut sequences {
                        Some(sequences) => sequences,
                        none => {
                            let bpe = Bpe::read(&self.dir, asked.room).map_err(no_room)?;
                            none.insert(Sequences::new(bpe, Default::default())?)
                        }
                    };
                    let most = (asked.most_seconds.min(MOST_SECONDS) * BYTES_A_SECOND) as usize;
                    for chunk in chunks(text, most.max(1)) {
                        let prompt = sequences.prompt(&sequences.text(&chunk, voice)?);
                        pieces.push(piece(prompt, expected_seconds(&chunk, None), asked.settings));
                    }
                }
            }
            lines.push(pieces.len() - before);
        }
        if voice.is_none() {
            notes.push("no voice is named (--voice): the model chooses one".to_owned());
        }
        let settings = asked.settings.clone();
        let tokenizer = sequences.map_or(0, |s| s.bpe().memory_bytes());
        Ok(Box::new(Speaking {
            config: self.config.clone(),
            settings,
            pieces,
            lines,
            codec: Some(codec),
            notes,
            tokenizer,
        }))
    }

    fn of_length(&self, seconds: f64, threads: usize) -> Result<Box<dyn Speech>, RunError> {
        let codec = self.keys.codec.as_deref().map(|dir| Snac::open(dir, threads)).transpose()?;
        let sequences = (seconds / MOST_SECONDS).ceil().max(1.0);
        let each = seconds / sequences;
        // A token of text has some four bytes.
        let prompt = vec![0; AROUND_TEXT + (each * BYTES_A_SECOND / 4.0) as usize];
        let piece = || piece(prompt.clone(), each, &Settings::SPEECH);
        let pieces: Vec<Piece> = (0..sequences as usize).map(|_| piece()).collect();
        Ok(Box::new(Speaking {
            config: self.config.clone(),
            settings: Settings::SPEECH,
            lines: vec![pieces.len()],
            pieces,
            codec: codec.map(|snac| snac.codec),
            notes: Vec::new(),
            tokenizer: 0,
        }))
    }

    fn most_seconds(&self) -> f64 {
        MOST_SECONDS * Settings::SPEECH.sequences as f64
    }
}

/// Tokens of a usual prompt beside those of its text: wrappers and a voice.
const AROUND_TEXT: usize = 16;

/// Returns a piece that may take some more time than is expected, and no more tokens than settings allow.
fn piece(prompt: Vec<u32>, expected: f64, settings: &Settings) -> Piece {
    let seconds = MOST_TIMES * expected + SPARE;
    let frames = (seconds * f64::from(SAMPLE_RATE) / FRAME_SAMPLES as f64).ceil() as usize;
    Piece { prompt, expected, most: (SLOTS * frames).min(settings.max_new.unwrap_or(usize::MAX)) }
}

impl Folder {
    /// Returns the prompt of a prepared clip: all up to its audio.
    fn piece_of_clip(&self, path: &Path, settings: &Settings) -> Result<Piece, RunError> {
        let ids = load_token_clip(path)?.ids;
        let Some(start) = ids.iter().position(|id| *id == START_OF_SPEECH) else {
            let reason = format!("holds no {START_OF_SPEECH}, which begins speech: nothing to speak");
            return Err(DataError::File { path: path.to_owned(), reason }.into());
        };
        let (prompt, audio) = ids.split_at(start + 1);
        let seconds = (audio.len() / SLOTS * FRAME_SAMPLES) as f64 / f64::from(SAMPLE_RATE);
        Ok(piece(prompt.to_vec(), seconds, settings))
    }
}

impl Speaking {
    fn sequences(&self) -> usize {
        self.settings.sequences.clamp(1, self.pieces.len().max(1))
    }

    /// Returns the sizes for any group of pieces.
    fn room(&self, cache: DType) -> Room {
        let pieces: Vec<_> = self.pieces.iter().map(|p| (p.prompt.len(), p.most)).collect();
        Room::of(&pieces, self.sequences(), cache)
    }
}

impl Speech for Speaking {
    fn programs(&self) -> Programs {
        let (config, room) = (self.config.clone(), self.room(DType::F32));
        Arc::new(move |session, cache| model::generate(session, &config, Room { cache, ..room }))
    }

    fn runs(&self) -> Vec<(String, f64)> {
        let tokens = |p: &Piece| p.expected * f64::from(SAMPLE_RATE) / FRAME_SAMPLES as f64 * SLOTS as f64;
        let longest = |some: &[Piece]| some.iter().map(tokens).fold(0.0, f64::max);
        let groups = self.pieces.chunks(self.sequences());
        vec![(PREFILL.to_owned(), groups.len() as f64), (STEP.to_owned(), groups.map(longest).sum())]
    }

    fn read_bytes(&self) -> u64 {
        self.tokenizer + self.resting_bytes()
    }

    fn bytes(&self) -> u64 {
        let (room, v) = (self.room(DType::F32), self.config.vocab);
        let written = room.sequences * room.tokens * 3;
        // Logits of a step, and what sorts one sequence's; ids and codes; a window's sound.
        let sound = 2 * (WINDOW + 2 * AROUND) * FRAME_SAMPLES;
        (4 * (v * (room.sequences + 4) + written + sound)) as u64
            + self.codec.as_ref().map_or(0, |codec| codec.bytes())
            + self.resting_bytes()
    }

    fn resting_bytes(&self) -> u64 {
        let ids: usize = self.pieces.iter().map(|p| 4 * p.prompt.len() + size_of::<Piece>()).sum();
        ids as u64 + if self.tokenizer > 0 { PAGES } else { 0 }
    }

    fn rest(&mut self) {
        if let Some(codec) = &mut self.codec {
            codec.close();
        }
    }

    fn rate(&self) -> u32 {
        SAMPLE_RATE
    }

    fn pieces(&self) -> Vec<usize> {
        self.lines.clone()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn speak(
        &mut self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        to: &mut dyn Listener,
    ) -> Result<(), RunError> {
        let room = self.room(DType::F32);
        let Speaking { settings, pieces, lines, codec, config, .. } = self;
        let codec = codec.as_mut().ok_or_else(|| RunError::Usage("--codec: is missing".to_owned()))?;
        let stops = vec![END_OF_SPEECH, END_OF_AI, END_OF_TEXT];
        let mut decoder = Decoder { name, room, vocabulary: config.vocab, most: Vec::new(), stops };
        let of_piece: Vec<usize> = lines.iter().enumerate().flat_map(|(i, n)| vec![i; *n]).collect();
        let mut spoken = SpokenLines::new(lines.len());
        for first in (0..pieces.len()).step_by(room.sequences) {
            let group = &pieces[first..pieces.len().min(first + room.sequences)];
            let prompts: Vec<&[u32]> = group.iter().map(|p| &*p.prompt).collect();
            decoder.most = group.iter().map(|p| p.most).collect();
            let mut voices: Vec<Voice> =
                group.iter().map(|_| Voice { frame: FRAME_SAMPLES, ..Voice::default() }).collect();
            spoken.end_before(of_piece[first], to)?;
            let all = decoder.run(exec, &prompts, &mut |i, before, logits| {
                let step = (before.len() - prompts[i].len()) as u32;
                let draws = Draws::Keyed { sequence: (first + i) as u32, step };
                let id = settings.sampling.choose(logits, before, draws);
                voices[i].frames.push(id);
                // The first is heard while it is written.
                if i == 0 {
                    voices[0].heard(&mut **codec, false, &mut |x| to.samples(of_piece[first], x))?;
                }
                Ok(id)
            })?;
            for (i, (ids, voice)) in all.iter().zip(&mut voices).enumerate() {
                let line = of_piece[first + i];
                spoken.end_before(line, to)?;
                voice.heard(&mut **codec, true, &mut |x| to.samples(line, x))?;
                let of_line = spoken.line(line);
                of_line.reached_limit |= !ids.last().is_some_and(|id| decoder.stops.contains(id));
                of_line.expected_seconds = of_line.expected_seconds.map(|s| s + group[i].expected);
                let codes = Codes { layers: voice.frames.codes(0..voice.frames.len()).into() };
                if let Some(loops) = loops(&interleaved(codes)?, SLOTS) {
                    let frames_a_second = f64::from(SAMPLE_RATE) / FRAME_SAMPLES as f64;
                    of_line.oddities.push(loops.doubt(frames_a_second).to_string());
                }
                of_line.dropped += voice.frames.dropped();
            }
        }
        spoken.end_before(lines.len(), to)
    }
}

/// Returns the ids of codes, frame by frame.
fn interleaved(codes: Codes) -> Result<Vec<u32>, RunError> {
    let bug = |_| RunError::Training("whole frames are not whole".to_owned());
    let layers: [Vec<u32>; 3] = codes.layers.try_into().map_err(bug)?;
    let codes = SnacCodes::new(layers).map_err(RunError::Training)?;
    Ok(interleave(&codes))
}

/// Frames of a piece, of which some were heard.
#[derive(Default)]
struct Voice {
    frames: Frames,
    heard: usize,
    /// Samples of a frame.
    frame: usize,
}

impl Voice {
    /// Decodes the frames whose neighbours are there, and at the `end` all; every sample is that of all frames decoded at once.
    fn heard(
        &mut self,
        codec: &mut dyn Codec,
        end: bool,
        to: &mut dyn FnMut(&[f32]) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let all = self.frames.len();
        while self.heard < all && (end || self.heard + WINDOW + AROUND <= all) {
            let until = (self.heard + WINDOW).min(all);
            let from = self.heard.saturating_sub(AROUND);
            let around = from..(until + AROUND).min(all);
            let (skip, take) = ((self.heard - from) * self.frame, (until - self.heard) * self.frame);
            let n = around.len();
            let codes = Codes { layers: self.frames.codes(around).into() };
            let mut decoding = codec.decoding_of(&codes, n, None)?;
            let mut at = 0;
            while let Some(samples) = decoding.next_piece()? {
                let (first, last) = (skip.max(at), (skip + take).min(at + samples.len()));
                if first < last {
                    to(&samples[first - at..last - at])?;
                }
                at += samples.len();
            }
            self.heard = until;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use ambitus_data::speech::sequence::FIRST_AUDIO;

    /// Sound that is heard while ids come, window by window, is that of all frames decoded at once.
    #[test]
    fn windows_are_the_whole() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/snac/fixtures/strides");
        let mut codec = codec::open(crate::CODECS, &dir, 1).expect("a codec");
        let spec = codec.spec().clone();
        let book = spec.codebooks[0].size as u32;
        for frames in [1, 5, WINDOW, 2 * WINDOW + 1, 3 * WINDOW + AROUND] {
            let mut voice = Voice { frame: spec.frame, ..Voice::default() };
            let mut heard = Vec::new();
            for i in 0..(frames * SLOTS) as u32 {
                voice.frames.push(FIRST_AUDIO + i % SLOTS as u32 * 4096 + (i * 37 + 11) % book);
                let take = &mut |x: &[f32]| {
                    heard.extend_from_slice(x);
                    Ok(())
                };
                voice.heard(&mut *codec, false, take).expect("decodes");
            }
            let before = heard.len();
            let take = &mut |x: &[f32]| {
                heard.extend_from_slice(x);
                Ok(())
            };
            voice.heard(&mut *codec, true, take).expect("decodes");
            assert!(before > 0 || frames < WINDOW + AROUND, "{frames}: nothing was heard early");
            let whole = Codes { layers: voice.frames.codes(0..frames).into() };
            let whole = codec.decode(&whole).expect("decodes");
            assert_eq!(heard.len(), whole.len(), "{frames}");
            let off = heard.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-6, "{frames}: {off}");
        }
    }
}
