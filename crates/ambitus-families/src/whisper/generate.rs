//! Generation from a batch file: `clips.i.wave` f32 `[n]` at 16 kHz, at most a window, and `clips.i.prompt` i64 `[p]`, ids that are given.
//! What follows is the likeliest; the folder's lists of tokens that are not written hold.

use super::decoding::Decoding;
use super::folder::Folder;
use super::mel;
use super::settings::Generation;
use crate::error::RunError;
use crate::generate::{Generated, Generator, Job, Settings, Values};
use crate::recorded::{BatchFile, Spare};
use crate::sampling::{Draws, Sampling};
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::decode::Room;
use ambitus_models::whisper::config::Config;
use ambitus_models::whisper::{decoder, encoder};
use std::path::Path;

/// A clip of a file.
struct Clip {
    wave: Vec<f32>,
    prompt: Vec<u32>,
    /// New tokens at most.
    most: usize,
}

/// A file's clips.
struct Clips {
    config: Config,
    generation: Generation,
    settings: Settings,
    clips: Vec<Clip>,
}

impl Generator for Folder {
    fn job(&self, file: &Path, settings: &Settings, _spare: Spare) -> Result<Box<dyn Job>, RunError> {
        let plain = Sampling { repetition_penalty: settings.sampling.repetition_penalty, ..Sampling::PLAIN };
        let asked = Sampling { greedy: false, seed: 0, ..settings.sampling };
        if asked != plain {
            let why = "--temperature, --top-k, --top-p: this model writes what is likeliest; leave them out";
            return Err(RunError::Usage(why.to_owned()));
        }
        let mut file = BatchFile::open(file)?;
        let clips = (0..file.clips("wave")?).map(|i| clip(&mut file, i, &self.config, settings.max_new));
        let clips = clips.collect::<Result<_, RunError>>()?;
        let mut settings = settings.clone();
        settings.sampling.greedy = true;
        let (config, generation) = (self.config.clone(), self.generation.clone());
        Ok(Box::new(Clips { config, generation, settings, clips }))
    }
}

/// Reads a clip.
fn clip(file: &mut BatchFile<'_>, i: usize, cfg: &Config, max_new: Option<usize>) -> Result<Clip, RunError> {
    let name = format!("clips.{i}.wave");
    let most = mel::samples(cfg);
    let n = match file.shape(&name)?[..] {
        [n] if (1..=most).contains(&n) => n,
        ref shape => {
            let why = format!("is {shape:?}, not [samples], at most {most} of them at {} Hz", mel::RATE);
            return Err(file.bad(&name, why));
        }
    };
    let wave = file.floats(&name, n)?;
    let name = format!("clips.{i}.prompt");
    let (prompt, _) = file.ids::<u32>(i, "prompt", &["tokens"])?;
    if prompt.is_empty() || prompt.len() + max_new.unwrap_or(0) > cfg.tokens {
        let new = max_new.map_or(String::new(), |new| format!(" and {new} new ones (--max-new)"));
        let why = format!("has {} ids{new}; a text has 1 to {} tokens", prompt.len(), cfg.tokens);
        return Err(file.bad(&name, why));
    }
    if let Some(at) = prompt.iter().position(|id| *id as usize >= cfg.vocab) {
        let why = format!("element {at} is {}; the vocabulary has {} tokens", prompt[at], cfg.vocab);
        return Err(file.bad(&name, why));
    }
    let most = max_new.unwrap_or(cfg.tokens - prompt.len());
    Ok(Clip { wave, prompt, most })
}

/// What was written of a clip.
struct Written<'c> {
    clip: &'c Clip,
    /// Prompt and new tokens.
    tokens: Vec<u32>,
    /// Of every new token, where they are wanted.
    logits: Vec<f32>,
    states: Vec<f32>,
    ended: bool,
}

impl Clips {
    /// Returns the sizes for any group of clips.
    fn room(&self, cache: DType) -> Room {
        let texts: Vec<_> = self.clips.iter().map(|c| (c.prompt.len(), c.most)).collect();
        Room::of(&texts, self.settings.sequences.clamp(1, self.clips.len().max(1)), cache)
    }

    /// Writes a group of clips.
    fn write<'c>(
        &self,
        exec: &mut dyn Executor,
        decoding: &mut Decoding<'_>,
        group: &'c [Clip],
    ) -> Result<Vec<Written<'c>>, RunError> {
        let (cfg, settings) = (&self.config, &self.settings);
        let begun = |clip: &'c Clip| {
            let states = if settings.states { vec![0.0; cfg.states * cfg.dim] } else { Vec::new() };
            let tokens = clip.prompt.clone();
            Written { clip, tokens, logits: Vec::new(), states, ended: clip.most == 0 }
        };
        let mut all: Vec<Written<'c>> = group.iter().map(begun).collect();
        for (s, written) in all.iter_mut().enumerate() {
            let states = settings.states.then_some(&mut written.states[..]);
            decoding.encode(exec, s, &mel::window(cfg, &written.clip.wave), states)?;
        }
        let prompts: Vec<&[u32]> = group.iter().map(|clip| &*clip.prompt).collect();
        let mut logits = decoding.prefill(exec, &prompts, None)?;
        while all.iter().any(|written| !written.ended) {
            for (written, logits) in all.iter_mut().zip(logits.chunks_mut(cfg.vocab)) {
                if !written.ended {
                    self.push(written, logits);
                }
            }
            // The last token is not read yet.
            let reads =
                |w: &Written<'_>| (!w.ended).then(|| (w.tokens[w.tokens.len() - 1], w.tokens.len() - 1));
            let tokens: Vec<Option<(u32, usize)>> = all.iter().map(reads).collect();
            if tokens.iter().any(Option::is_some) {
                logits = decoding.step(exec, &tokens)?;
            }
        }
        Ok(all)
    }

    /// Takes the next token of a text.
    fn push(&self, written: &mut Written<'_>, logits: &mut [f32]) {
        if self.settings.logits {
            written.logits.extend_from_slice(logits);
        }
        let new = written.tokens.len() - written.clip.prompt.len();
        self.generation.suppress(logits, new == 0);
        let none = Draws::Keyed { sequence: 0, step: 0 };
        let next = self.settings.sampling.choose(logits, &written.tokens, none);
        written.tokens.push(next);
        written.ended = self.generation.ends.contains(&next) || new + 1 == written.clip.most;
    }
}

impl Job for Clips {
    fn programs(&self, session: &mut Session, cache: DType) -> Vec<Program> {
        let room = self.room(cache);
        let mut programs = vec![encoder::encode(session, &self.config, room)];
        programs.extend(decoder::generate(session, &self.config, room));
        programs
    }

    fn bytes(&self) -> u64 {
        let cfg = &self.config;
        let waves: usize = self.clips.iter().map(|c| c.wave.len()).sum();
        let new: usize = self.clips.iter().map(|c| c.most).sum();
        let logits = if self.settings.logits { new * cfg.vocab } else { 0 };
        let states = if self.settings.states { self.clips.len() * cfg.states * cfg.dim } else { 0 };
        // A window's frames, and its samples with the transform's.
        let window = (cfg.frames() + 1) * cfg.mels + 2 * mel::samples(cfg);
        Decoding::bytes(cfg, self.room(DType::F32)) + 4 * (waves + 3 * new + logits + states + window) as u64
    }

    fn run(&mut self, exec: &mut dyn Executor) -> Result<Vec<Generated>, RunError> {
        let (cfg, room) = (&self.config, self.room(DType::F32));
        let mut decoding = Decoding::new(cfg, room);
        let mut results = Vec::new();
        for (k, group) in self.clips.chunks(room.sequences).enumerate() {
            for (i, mut written) in self.write(exec, &mut decoding, group)?.into_iter().enumerate() {
                let name = |leaf: &str| format!("clips.{}.{leaf}", k * room.sequences + i);
                let new = written.tokens.split_off(written.clip.prompt.len());
                let n = new.len();
                let tokens = Values::I64(new.into_iter().map(i64::from).collect());
                let mut give =
                    |leaf, shape, values| results.push(Generated { name: name(leaf), shape, values });
                give("tokens", vec![n], tokens);
                if self.settings.logits {
                    give("logits", vec![n, cfg.vocab], Values::F32(written.logits));
                }
                if self.settings.states {
                    give("states", vec![cfg.states, cfg.dim], Values::F32(written.states));
                }
            }
        }
        Ok(results)
    }
}
