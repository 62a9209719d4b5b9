//! What is written of a window, by the package's rules: hotter while it repeats itself or is unlikely, and cut at its times.

use super::decoding::Decoding;
use super::listen::Listener;
use super::mel::{HOP, RATE, STATE};
use super::rules::{self, log_sum};
use super::words::{self, Piece};
use crate::error::RunError;
use crate::hearing::Mark;
use crate::sampling::{Draws, Sampling};
use ambitus_data::text::strip;
use ambitus_exec::executor::Executor;

/// Tried one after the other while a text repeats itself or is unlikely.
const TEMPERATURES: [f32; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
/// A text that packs better than this repeats itself.
const MOST_REPEATED: f64 = 2.4;
/// The least mean of logarithms of probabilities.
const LEAST_LIKELY: f64 = -1.0;
/// Above it a window is silence, if its text is unlikely as well.
const MOST_SILENT: f64 = 0.6;

/// What was written of a window.
pub(super) struct Written {
    pub tokens: Vec<u32>,
    pub mark: Mark,
}

impl Written {
    /// Returns whether nothing is said in the window.
    pub fn is_silence(&self) -> bool {
        self.mark.no_speech_prob > MOST_SILENT && self.mark.avg_logprob <= LEAST_LIKELY
    }
}

impl Listener<'_> {
    /// Writes a window's text, hotter while what is written repeats itself or is unlikely.
    pub(super) fn written(
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

    /// Cuts what was written of a window of `size` frames at its times: pieces, the frame of the next window, and whether the last time
    /// stands alone, after which nothing is said.
    pub(super) fn cut(&self, written: &[u32], seek: usize, size: usize) -> (Vec<Piece>, usize, bool) {
        let times = self.tokens.times;
        let offset = seek as f64 * HOP as f64 / f64::from(RATE);
        let is_time = |id: &u32| *id >= times;
        let of = |id: u32| f64::from(id - times) * STATE;
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
