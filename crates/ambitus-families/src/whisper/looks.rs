//! How likely a text is in a window, and when its words are said.

use super::align::{self, Scores};
use super::listen::Listener;
use super::mel::STATE;
use super::words::Timing;
use crate::batches::write_batch;
use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_models::Batch;
use ambitus_models::whisper::score::{self, SCORE};

impl Listener<'_> {
    /// Returns the logarithms of the probabilities of a text's tokens and of its end, after `begins`, in the window that was encoded last;
    /// and the weights `[U + 1, sound]` of where each token is said, where these are wanted for so many states.
    pub(super) fn scores(
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
    pub(super) fn timings(
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
                start: states[from] as f64 * STATE,
                end: end as f64 * STATE,
                logprob,
            }
        };
        // The end is no word.
        let most = words.len().saturating_sub(1);
        Ok(words.into_iter().take(most).map(timing).collect())
    }
}
