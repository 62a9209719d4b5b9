//! Speech from text, in the voice of a reference clip: the text is cut into pieces, each is generated after the reference, and their
//! sounds are joined (f5-tts 1.1.22, `infer_batch_process`). Noise is drawn by seed, line and piece.

use super::flow::{self, Given};
use super::folder::Folder;
use super::reference::{Piece, TOGETHER, Voice};
use crate::CODECS;
use crate::codec::{self, Vocoder};
use crate::error::RunError;
use crate::generate::{Flow, Settings};
use crate::speech::{
    Asked, BYTES_A_SECOND, Joined, Line, Listener, Programs, Reference, Speaker, Speech, Spoken,
};
use ambitus_data::mel::{HOP, SAMPLE_RATE};
use ambitus_data::text::chunks;
use ambitus_exec::executor::Executor;
use ambitus_models::f5::config::{Config, MAX_FRAMES, MELS};
use ambitus_models::f5::{batch, draw, model};
use ambitus_models::{Capacity, clip_key};
use std::sync::Arc;

/// Name of the program of a step: training's own for samples.
const STEP: &str = "sample";
/// Samples over which a piece fades into the next: 0.15 s.
const FADE: usize = 3600;

/// Lines in a voice.
struct Speaking {
    config: Config,
    flow: Flow,
    seed: u64,
    voice: Voice,
    /// Of each line.
    lines: Vec<Vec<Piece>>,
    notes: Vec<String>,
    vocoder: Box<dyn Vocoder>,
    /// Of the tokenizer: while it was there, and what stays.
    tokenizer: [u64; 2],
}

impl Speaker for Folder {
    fn example(&self) -> Option<&'static str> {
        Some("\"Good morning.\" --ref CLIP.wav --ref-text \"what CLIP says\"")
    }

    fn speech(&self, asked: &Asked<'_>) -> Result<Box<dyn Speech>, RunError> {
        asked.refuse_language()?;
        if asked.voice.is_some() {
            return Err(RunError::Usage(
                "--voice: this model has no named voices; give a clip of the voice (--ref, --ref-text)"
                    .to_owned(),
            ));
        }
        let Some(reference) = asked.reference else {
            return Err(RunError::Usage(
                "--ref: is missing; this model speaks in the voice of a clip: give one of 3 to 12 s and the words in it \
                 (--ref clip.wav --ref-text \"…\")"
                    .to_owned(),
            ));
        };
        let voice = Voice::read(reference)?;
        let tokenizer = self.tokenizer()?;
        let decoder = asked.decoder.or(self.vocoder.as_deref());
        let vocoder = codec::vocoder(CODECS, decoder, asked.threads)?;
        let (mut lines, mut notes) = (Vec::new(), Vec::new());
        let most = voice.most_bytes(asked.most_seconds, asked.speed);
        for line in asked.lines {
            let pieces = match line {
                Line::Clip(path) => vec![voice.piece_of_clip(path, &tokenizer)?],
                Line::Text(text) => {
                    let mut pieces = Vec::new();
                    for chunk in chunks(text, most) {
                        let (piece, unknown) = voice.piece(&chunk, &tokenizer, asked.speed);
                        if let Some(why) = Folder::unknown(&chunk, &unknown) {
                            return Err(RunError::Usage(why));
                        }
                        if !unknown.is_empty() {
                            notes.push(format!(
                                "not in the vocabulary, so read as spaces: {}",
                                unknown.join(" ")
                            ));
                        }
                        pieces.push(piece);
                    }
                    pieces
                }
            };
            let most = pieces.iter().map(|p| p.frames).max().unwrap_or(0);
            if most > MAX_FRAMES {
                return Err(RunError::Usage(format!(
                    "a piece of {most} frames is more than the model's {MAX_FRAMES}; give shorter texts"
                )));
            }
            lines.push(pieces);
        }
        let written = matches!(reference, Reference::Sound(..))
            || asked.lines.iter().any(|line| matches!(line, Line::Text(_)));
        let tokenizer = match written {
            true => [tokenizer.dictionary_bytes(), tokenizer.dictionary_pages()],
            // Ids that are prepared need no dictionary.
            false => [0; 2],
        };
        if decoder.is_none() {
            notes.push(
                "the sound is made by Griffin-Lim, which buzzes: give a vocoder (--vocoder DIR, vocos-mel-24khz)"
                    .to_owned(),
            );
        }
        Ok(Box::new(Speaking {
            config: self.config.clone(),
            flow: asked.settings.flow,
            seed: asked.settings.sampling.seed,
            voice,
            lines,
            notes,
            vocoder,
            tokenizer,
        }))
    }

    fn of_length(&self, seconds: f64, threads: usize) -> Result<Box<dyn Speech>, RunError> {
        let frames = |seconds: f64| (seconds * f64::from(SAMPLE_RATE) / HOP as f64).ceil() as usize;
        let together = USUAL_REFERENCE + seconds;
        let ids = vec![0; (together * BYTES_A_SECOND) as usize];
        Ok(Box::new(Speaking {
            config: self.config.clone(),
            flow: Settings::SPEECH.flow,
            seed: 0,
            voice: Voice::silent(frames(USUAL_REFERENCE)),
            lines: vec![vec![Piece { ids, frames: frames(together) }]],
            notes: Vec::new(),
            vocoder: codec::vocoder(CODECS, self.vocoder.as_deref(), threads)?,
            tokenizer: [0; 2],
        }))
    }

    fn most_seconds(&self) -> f64 {
        TOGETHER - USUAL_REFERENCE
    }
}

/// Seconds of a usual reference.
const USUAL_REFERENCE: f64 = 6.0;

impl Speaking {
    fn most_frames(&self) -> usize {
        self.lines.iter().flatten().map(|p| p.frames).max().unwrap_or(1)
    }

    /// Returns the size for any of the pieces.
    fn capacity(&self) -> Capacity {
        let clips = flow::clips(self.flow);
        Capacity { rows: clips * self.most_frames(), clips }
    }
}

impl Speech for Speaking {
    fn programs(&self) -> Programs {
        let (config, capacity) = (self.config.clone(), self.capacity());
        Arc::new(move |session, _| vec![model::sample(session, &config, capacity, STEP)])
    }

    fn runs(&self) -> Vec<(String, f64)> {
        let pieces: usize = self.lines.iter().map(Vec::len).sum();
        vec![(STEP.to_owned(), (pieces * self.flow.steps) as f64)]
    }

    fn read_bytes(&self) -> u64 {
        self.tokenizer[0] + self.resting_bytes()
    }

    fn bytes(&self) -> u64 {
        let (frames, rows) = (self.most_frames(), self.capacity().rows);
        // Of a piece what is given, its noise and its result; of a step its inputs, x, conditions and velocity; the ends that are joined.
        let of_flow = 4 * (3 * frames * MELS + 3 * rows * MELS + 4 * FADE);
        of_flow as u64 + batch::layout(self.capacity()).bytes() + self.vocoder.bytes() + self.resting_bytes()
    }

    fn resting_bytes(&self) -> u64 {
        let ids: usize = self.lines.iter().flatten().map(|p| 4 * p.ids.len() + size_of::<Piece>()).sum();
        (ids + 4 * self.voice.mel.len()) as u64 + self.tokenizer[1]
    }

    fn rest(&mut self) {
        self.vocoder.close();
    }

    fn rate(&self) -> u32 {
        SAMPLE_RATE
    }

    fn pieces(&self) -> Vec<usize> {
        self.lines.iter().map(Vec::len).collect()
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
        let (program, capacity) = (name(STEP), self.capacity());
        let given = self.voice.mel.len() / MELS;
        for (i, pieces) in self.lines.iter().enumerate() {
            let mut joined = Joined::new(FADE);
            for (k, piece) in pieces.iter().enumerate() {
                let mut mel = self.voice.mel.clone();
                mel.resize(piece.frames * MELS, 0.0);
                let mut noise = vec![0.0; mel.len()];
                draw::noise(clip_key(self.seed, i as u64, k as u64), &mut noise);
                let wanted =
                    Given { mel: &mel, text: &piece.ids, generated: given..piece.frames, noise: &noise };
                let mel = flow::integrate(exec, (&program, capacity), &wanted, self.flow)?;
                // The reference's last frame is the first of what is heard, as in the package.
                let heard = &mel[self.voice.frames() * MELS..];
                joined.begin(self.vocoder.samples(heard.len() / MELS));
                let mut decoding = self.vocoder.decoding(heard, self.seed)?;
                while let Some(samples) = decoding.next_piece()? {
                    let samples: Vec<f32> = samples.iter().map(|x| x * self.voice.gain).collect();
                    joined.push(&samples, |x| to.samples(i, x))?;
                }
            }
            joined.finish(|x| to.samples(i, x))?;
            to.ended(i, Spoken::default())?;
        }
        Ok(())
    }
}
