//! A file to text: window by window as the package does it (`transcribe.py`, 20250625), or how well a given text fits it.

use super::align::{self, Scores};
use super::decoding::Decoding;
use super::folder::Folder;
use super::mel::{self, HOP, RATE};
use super::rules::{self, log_sum};
use super::sound::Sound;
use super::tokens::Tokens;
use super::words::{self, Piece, Timing};
use crate::batches::write_batch;
use crate::error::RunError;
use crate::hearing::{Asked, Ear, Mark, Scored, ScoredWord, Segment, Transcript};
use crate::sampling::{Draws, Sampling};
use ambitus_data::DataError;
use ambitus_data::text::strip;
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::Batch;
use ambitus_models::decode::Room;
use ambitus_models::whisper::config::Config;
use ambitus_models::whisper::score::{self, SCORE};
use ambitus_models::whisper::{decoder, encoder};
use std::path::Path;

/// Seconds of a state, by which times are told.
const STEP: f64 = 0.02;
/// Tried one after the other while a text repeats itself or is unlikely.
const TEMPERATURES: [f32; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
/// A text that packs better than this repeats itself.
const MOST_REPEATED: f64 = 2.4;
/// The least mean of logarithms of probabilities.
const LEAST_LIKELY: f64 = -1.0;
/// A window that is less likely to have speech is silence, where its text is unlikely as well.
const MOST_SILENT: f64 = 0.6;
/// Tokens of a text at least, with what stands around it.
const LEAST_TOKENS: usize = 16;
/// Above it, what was written is no context for what follows.
const HOT: f32 = 0.5;

/// A model that hears.
pub(super) struct Listener<'f> {
    folder: &'f Folder,
    tokens: Tokens,
    asked: Asked<'f>,
    /// Where texts are written in several languages.
    multilingual: bool,
    /// Tokens of the longest text that is scored, with all around it.
    scored: usize,
    never: Vec<u32>,
    never_first: Vec<u32>,
}

/// What was written of a window.
struct Written {
    tokens: Vec<u32>,
    mark: Mark,
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

    fn config(&self) -> &'f Config {
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

    /// Returns the logarithms of the probabilities of a text's tokens and of its end, after `begins`, in the window that was encoded last;
    /// and the weights `[U + 1, sound]` of where each token is said, where these are wanted for so many states.
    fn scores(
        &self,
        exec: &mut dyn Executor,
        (begins, text): (&[u32], &[u32]),
        sound: Option<usize>,
    ) -> Result<(Vec<f64>, Vec<f64>), RunError> {
        let (cfg, rows) = (self.config(), self.scored);
        let mut batch = Batch::new(&score::layout(rows));
        let ids = [begins, &[self.tokens.no_timestamps], text, &[self.tokens.eot]].concat();
        score::fill(cfg, &mut batch, &ids);
        write_batch(exec, SCORE, &batch)?;
        exec.run(SCORE, 0)?;
        let mut logprobs = vec![0.0; rows];
        exec.read_f32(SCORE, "logprobs", 0, &mut logprobs)?;
        let own = begins.len()..ids.len() - 1;
        let logprobs = logprobs[own.clone()].iter().map(|x| f64::from(*x)).collect();
        let Some(sound) = sound else { return Ok((logprobs, Vec::new())) };
        let heads = &self.folder.generation.heads;
        let mut all = vec![0.0; heads.len() * rows * cfg.states];
        exec.read_f32(SCORE, "attended", 0, &mut all)?;
        let mut sum = vec![0.0; ids.len() * sound];
        for values in all.chunks(rows * cfg.states) {
            let head = Scores { values, tokens: ids.len(), states: cfg.states, sound };
            align::add_head(&head, cfg.median, &mut sum);
        }
        sum.iter_mut().for_each(|x| *x /= heads.len() as f64);
        Ok((logprobs, sum[own.start * sound..own.end * sound].to_vec()))
    }

    /// Returns the words of a window's text with their times in it.
    fn timings(
        &self,
        exec: &mut dyn Executor,
        begins: &[u32],
        text: &[u32],
        (language, sound): (&str, usize),
    ) -> Result<Vec<Timing>, RunError> {
        if text.is_empty() || sound == 0 || self.folder.generation.heads.is_empty() {
            return Ok(Vec::new());
        }
        let (logprobs, weights) = self.scores(exec, (begins, text), Some(sound))?;
        let states = align::path(&weights, sound);
        let words = self.tokens.words(&[text, &[self.tokens.eot]].concat(), Some(language));
        let mut at = 0;
        let timing = |(word, ids): (String, Vec<u32>)| {
            let (from, to) = (at, at + ids.len());
            at = to;
            let end = states.get(to).or(states.last()).copied().unwrap_or(0);
            let logprob = logprobs[from..to.min(logprobs.len())].iter().sum();
            Timing {
                word,
                tokens: ids.len(),
                start: states[from] as f64 * STEP,
                end: end as f64 * STEP,
                logprob,
            }
        };
        // The end is no word.
        let most = words.len().saturating_sub(1);
        Ok(words.into_iter().take(most).map(timing).collect())
    }

    /// Writes a window's text, hotter while what is written repeats itself or is unlikely.
    fn written(
        &self,
        exec: &mut dyn Executor,
        decoding: &mut Decoding<'_>,
        (context, begins): (&[u32], &[u32]),
        seek: usize,
    ) -> Result<Written, RunError> {
        let mut prompt = Vec::new();
        if !context.is_empty() {
            let most = self.config().tokens / 2 - 1;
            prompt.push(self.tokens.prev);
            prompt.extend_from_slice(&context[context.len().saturating_sub(most)..]);
        }
        let at = prompt.len();
        prompt.extend_from_slice(begins);
        let mut attempt = 0;
        loop {
            let temperature = TEMPERATURES[attempt];
            let draws = (seek * TEMPERATURES.len() + attempt) as u32;
            let written = self.attempt(exec, decoding, (&prompt, at), (temperature, draws))?;
            let Mark { avg_logprob, compression_ratio, no_speech_prob, .. } = written.mark;
            let unlikely = avg_logprob < LEAST_LIKELY;
            let silent = unlikely && no_speech_prob > MOST_SILENT;
            let again = (unlikely || compression_ratio > MOST_REPEATED) && !silent;
            attempt += 1;
            if !(again && self.asked.fallback && attempt < TEMPERATURES.len()) {
                return Ok(written);
            }
        }
    }

    /// Writes a window's text at a temperature.
    fn attempt(
        &self,
        exec: &mut dyn Executor,
        decoding: &mut Decoding<'_>,
        (prompt, start): (&[u32], usize),
        (temperature, draws): (f32, u32),
    ) -> Result<Written, RunError> {
        let (cfg, tokens) = (self.config(), &self.tokens);
        let sampling = Sampling {
            greedy: temperature == 0.0,
            temperature: if temperature == 0.0 { 1.0 } else { temperature },
            seed: self.asked.seed,
            ..Sampling::PLAIN
        };
        let mut silence = vec![0.0; cfg.vocab];
        let mut logits = decoding.prefill(exec, &[prompt], Some((start, &mut silence)))?;
        let of_silence = |id: u32| f64::from(silence[id as usize]) - log_sum(&silence);
        let no_speech_prob = tokens.no_speech.map_or(0.0, |id| of_silence(id).exp());
        let (mut new, mut sum) = (Vec::new(), 0.0);
        for step in 0..cfg.tokens / 2 {
            let begins = if step == 0 { &self.never_first[..] } else { &[] };
            self.never.iter().chain(begins).for_each(|id| logits[*id as usize] = f32::NEG_INFINITY);
            rules::apply(tokens, logits, &new);
            let all = log_sum(logits);
            let before: Vec<f32> = logits.to_vec();
            let next = sampling.choose(logits, &[], Draws::Keyed { sequence: draws, step: step as u32 });
            sum += f64::from(before[next as usize]) - all;
            if next == tokens.eot {
                break;
            }
            new.push(next);
            let place = prompt.len() + new.len() - 1;
            if place >= cfg.tokens || step + 1 == cfg.tokens / 2 {
                break;
            }
            logits = decoding.step(exec, &[Some((next, place))])?;
        }
        let text = tokens.decode(&new.iter().copied().filter(|id| *id < tokens.times).collect::<Vec<_>>());
        let mark = Mark {
            temperature,
            avg_logprob: sum / (new.len() + 1) as f64,
            compression_ratio: words::compression_ratio(strip(&text)),
            no_speech_prob,
        };
        Ok(Written { tokens: new, mark })
    }

    /// Cuts what was written of a window of `size` frames at its times: pieces, and the frames until the next window.
    fn cut(&self, written: &[u32], seek: usize, size: usize) -> (Vec<Piece>, usize, bool) {
        let times = self.tokens.times;
        let offset = seek as f64 * HOP as f64 / f64::from(RATE);
        let is_time = |id: &u32| *id >= times;
        let of = |id: u32| f64::from(id - times) * STEP;
        let n = written.len();
        // A text that ends with one time: nothing is said after it.
        let alone = n > 1 && is_time(&written[n - 1]) && !is_time(&written[n - 2]);
        let piece = |start, end, ids: &[u32]| {
            let text: Vec<u32> = ids.iter().copied().filter(|id| *id < self.tokens.eot).collect();
            Piece { start: offset + start, end: offset + end, all: ids.to_vec(), text, words: Vec::new() }
        };
        let mut cuts: Vec<usize> =
            (1..n).filter(|i| is_time(&written[i - 1]) && is_time(&written[*i])).collect();
        if cuts.is_empty() {
            let last = written.iter().rev().find(|id| is_time(id)).filter(|id| **id != times);
            let end = last.map_or(size as f64 * HOP as f64 / f64::from(RATE), |id| of(*id));
            return (vec![piece(0.0, end, written)], seek + size, alone);
        }
        if alone {
            cuts.push(n);
        }
        let (mut pieces, mut from) = (Vec::new(), 0);
        for to in cuts {
            let ids = &written[from..to];
            let time = |id: u32| if is_time(&id) { of(id) } else { of(times) };
            pieces.push(piece(time(ids[0]), time(ids[ids.len() - 1]), ids));
            from = to;
        }
        let frames = 2 * written[from - 1].saturating_sub(times) as usize;
        (pieces, if alone { seek + size } else { seek + frames }, alone)
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
            let Written { tokens, mark } =
                self.written(exec, &mut decoding, (&all[since..], &begins), seek)?;
            if mark.no_speech_prob > MOST_SILENT && mark.avg_logprob <= LEAST_LIKELY {
                seek += size;
                continue;
            }
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
        let cfg = self.config();
        let ids = self.ids(text)?;
        let seconds = mel::samples(cfg) as f64 / f64::from(RATE);
        let wave = ambitus_data::audio::load(path, RATE, seconds)?;
        if wave.len() > mel::samples(cfg) {
            return Err(DataError::Invalid(format!("{}: longer than {seconds} s", path.display())).into());
        }
        let mut decoding = Decoding::new(cfg, self.room(DType::F32));
        let window = mel::window(cfg, &wave);
        let language = self.language(exec, &mut decoding, || Ok(window.clone()))?;
        let begins = self.begins(&language);
        let most = self.scored - begins.len() - 2;
        if ids.len() > most {
            let why = format!("its text has {} tokens, the model reads {most}: cut both", ids.len());
            return Err(DataError::Invalid(format!("{}: {why}", path.display())).into());
        }
        decoding.encode(exec, 0, &window, None)?;
        let (logprobs, _) = self.scores(exec, (&begins, &ids), None)?;
        let mut at = 0;
        let word = |(word, of): (String, Vec<u32>)| {
            at += of.len();
            ScoredWord { word, logprob: logprobs[at - of.len()..at].iter().sum() }
        };
        let words = self.tokens.words(&ids, Some(&language)).into_iter().map(word).collect();
        let (end, text_of) = logprobs.split_last().map_or((0.0, &[][..]), |(end, of)| (*end, of));
        Ok(Scored {
            text: strip(text).to_owned(),
            language,
            words,
            tokens: ids.len(),
            logprob: text_of.iter().sum(),
            end_logprob: end,
        })
    }
}
