//! A file to text: window by window as the package does it (`transcribe.py`, 20250625), or how well a given text fits it.

mod judge;

use super::decoding::Decoding;
use super::folder::Folder;
use super::mel;
use super::sound::Sound;
use super::tokens::Tokens;
use super::words::{self, Piece};
use super::write::Written;
use crate::error::RunError;
use crate::hearing::{Asked, Ear, Judged, Scored, Segment, Transcript};
use ambitus_data::text::strip;
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::decode::Room;
use ambitus_models::whisper::config::Config;
use ambitus_models::whisper::score;
use ambitus_models::whisper::{decoder, encoder};
use std::path::Path;

/// Tokens of a text at least, with what stands around it.
const LEAST_TOKENS: usize = 16;
/// Above it, what was written is no context for what follows.
const HOT: f32 = 0.5;

/// A model that hears.
pub(super) struct Listener<'f> {
    pub folder: &'f Folder,
    pub tokens: Tokens,
    pub asked: Asked<'f>,
    /// Where texts are written in several languages.
    multilingual: bool,
    /// Tokens of the longest text that is scored, with all around it.
    pub scored: usize,
    pub never: Vec<u32>,
    pub never_first: Vec<u32>,
}

impl<'f> Listener<'f> {
    /// Reads the tokenizer, and checks what is asked.
    ///
    /// # Errors
    /// A tokenizer that is not the model's, a language that it does not have, texts that are too long.
    pub fn new(folder: &'f Folder, asked: &Asked<'f>) -> Result<Listener<'f>, RunError> {
        let cfg = &folder.config;
        let tokens = Tokens::read(&folder.dir)?;
        if tokens.size() > cfg.vocab || tokens.times as usize >= cfg.vocab {
            return Err(RunError::Model(format!(
                "{}: tokenizer.json has {} tokens, the model {}: it is another model's; copy the model's own",
                folder.dir.display(),
                tokens.size(),
                cfg.vocab
            )));
        }
        if cfg.tokens < LEAST_TOKENS {
            return Err(RunError::Model(format!(
                "{}: config.json: max_target_positions: {} has no room for a text",
                folder.dir.display(),
                cfg.tokens
            )));
        }
        let multilingual = folder.generation.multilingual.unwrap_or(!tokens.languages.is_empty());
        let known = |code: &str| match multilingual {
            true => tokens.languages.iter().any(|(known, _)| known == code),
            false => code == "en",
        };
        if let Some(code) = asked.language.filter(|code| !known(code)) {
            return Err(RunError::Usage(format!("--language {code}: the model does not know it")));
        }
        let generation = &folder.generation;
        let mut never = generation.never.clone().unwrap_or_else(|| tokens.signs());
        never.extend(tokens.special());
        let never_first = generation.never_first.clone().unwrap_or_else(|| tokens.blank());
        let mut listener =
            Listener { folder, tokens, asked: *asked, multilingual, scored: 0, never, never_first };
        listener.scored = match asked.texts {
            None => (cfg.tokens / 2 + 5).min(cfg.tokens),
            Some(texts) => {
                let mut most = 0;
                for text in texts {
                    most = most.max(listener.ids(text)?.len() + 5);
                }
                most.min(cfg.tokens)
            }
        };
        Ok(listener)
    }

    pub fn config(&self) -> &'f Config {
        &self.folder.config
    }

    fn room(&self, cache: DType) -> Room {
        let tokens = self.config().tokens;
        Room { sequences: 1, tokens, prompts: (tokens / 2 + 3).min(tokens), cache }
    }

    /// Returns a text's ids as the model writes it: behind a space.
    fn ids(&self, text: &str) -> Result<Vec<u32>, RunError> {
        self.tokens.encode(&format!(" {}", strip(text)))
    }

    /// Returns the language of a sound: the one that was asked for, or the likeliest.
    fn language(
        &self,
        exec: &mut dyn Executor,
        decoding: &mut Decoding<'_>,
        window: impl FnOnce() -> Result<Vec<f32>, RunError>,
    ) -> Result<String, RunError> {
        if let Some(code) = self.asked.language.or((!self.multilingual).then_some("en")) {
            return Ok(code.to_owned());
        }
        decoding.encode(exec, 0, &window()?, None)?;
        let logits = decoding.prefill(exec, &[&[self.tokens.sot]], None)?;
        let of = |id: &u32| logits[*id as usize];
        let best = self.tokens.languages.iter().rev().max_by(|a, b| of(&a.1).total_cmp(&of(&b.1)));
        best.map(|(code, _)| code.clone()).ok_or_else(|| {
            let why = "tokenizer.json has no languages; copy the model's own";
            RunError::Model(format!("{}: {why}", self.folder.dir.display()))
        })
    }

    /// Returns what stands before a text.
    fn begins(&self, language: &str) -> Vec<u32> {
        let tokens = &self.tokens;
        let mut ids = vec![tokens.sot];
        if self.multilingual {
            ids.extend(tokens.languages.iter().find(|(code, _)| code == language).map(|(_, id)| *id));
            ids.push(if self.asked.translate { tokens.translate } else { tokens.transcribe });
        }
        ids
    }
}

impl Ear for Listener<'_> {
    fn programs(&self, session: &mut Session, cache: DType) -> Vec<Program> {
        let (cfg, room) = (self.config(), self.room(cache));
        let transcribes = self.asked.texts.is_none();
        let heads = if transcribes { &self.folder.generation.heads[..] } else { &[] };
        let mut programs = vec![encoder::encode(session, cfg, room)];
        programs.extend(decoder::generate(session, cfg, room));
        programs.push(score::score(session, cfg, self.scored, cache, heads));
        programs
    }

    fn bytes(&self) -> u64 {
        let cfg = self.config();
        let (rows, heads) = (self.scored, self.folder.generation.heads.len());
        // Of scores with their softmax, and of the path through them.
        let looks = 4 * heads * rows * cfg.states + 32 * rows * cfg.states;
        let logits = 16 * cfg.vocab;
        let clip = 8 * mel::samples(cfg);
        Decoding::bytes(cfg, self.room(DType::F32))
            + Sound::bytes(cfg)
            + self.tokens.bytes()
            + (looks + logits + clip) as u64
    }

    fn transcribe(
        &mut self,
        exec: &mut dyn Executor,
        path: &Path,
        heard: &mut dyn FnMut(f64, f64),
    ) -> Result<Transcript, RunError> {
        let cfg = self.config();
        let mut decoding = Decoding::new(cfg, self.room(DType::F32));
        let mut sound = Sound::open(cfg, path)?;
        let language = self.language(exec, &mut decoding, || sound.window(0, true))?;
        let begins = self.begins(&language);
        let mut transcript =
            Transcript { text: String::new(), language: language.clone(), segments: Vec::new() };
        let (mut all, mut since, mut seek, mut spoken) = (Vec::new(), 0, 0, 0.0);
        while seek < sound.content {
            heard(seek as f64 / 100.0, sound.seconds());
            let size = cfg.frames().min(sound.content - seek);
            decoding.encode(exec, 0, &sound.window(seek, false)?, None)?;
            let written = self.written(exec, &mut decoding, (&all[since..], &begins), seek)?;
            if written.is_silence() {
                seek += size;
                continue;
            }
            let Written { tokens, mark } = written;
            let (mut pieces, mut next, alone) = self.cut(&tokens, seek, size);
            let text: Vec<u32> = pieces.iter().flat_map(|p| p.text.iter().copied()).collect();
            let timings = self.timings(exec, &begins, &text, (&language, size / 2))?;
            let offset = seek as f64 / 100.0;
            let end = words::place(timings, &mut pieces, offset, &mut spoken);
            if let Some(end) = end.filter(|end| !alone && *end > offset) {
                next = (end * 100.0).round_ties_even() as usize;
            }
            // What does not move on would never end.
            seek = if next > seek { next } else { seek + size };
            for Piece { start, end, all: ids, text, words } in pieces {
                let text = self.tokens.decode(&text);
                if start == end || strip(&text).is_empty() {
                    continue;
                }
                all.extend(ids);
                transcript.segments.push(Segment { start, end, text, words, mark });
            }
            if !self.asked.context || mark.temperature > HOT {
                since = all.len();
            }
        }
        all.retain(|id| *id < self.tokens.eot);
        // At once: a character may lie in two segments.
        transcript.text = strip(&self.tokens.decode(&all)).to_owned();
        Ok(transcript)
    }

    fn score(&mut self, exec: &mut dyn Executor, path: &Path, text: &str) -> Result<Scored, RunError> {
        self.given(exec, path, text)
    }

    fn judge(&mut self, exec: &mut dyn Executor, path: &Path, text: &str) -> Result<Judged, RunError> {
        self.judged(exec, path, text)
    }
}
