//! How well texts fit a file that is no longer than the model's window: a given one, and the one that the model finds likeliest.

use super::super::decoding::Decoding;
use super::super::mel::{self, RATE};
use super::Listener;
use crate::error::RunError;
use crate::hearing::{Judged, Scored, ScoredWord};
use ambitus_data::DataError;
use ambitus_data::text::strip;
use ambitus_exec::executor::Executor;
use ambitus_ir::DType;
use std::path::Path;

/// A file that was encoded.
struct Clip<'a> {
    decoding: Decoding<'a>,
    language: String,
    begins: Vec<u32>,
}

impl Listener<'_> {
    /// See [`crate::hearing::Ear::score`].
    pub(super) fn given(&self, exec: &mut dyn Executor, path: &Path, text: &str) -> Result<Scored, RunError> {
        self.clip(exec, path, text).and_then(|(clip, ids)| self.fit(exec, &clip, &ids))
    }

    /// See [`crate::hearing::Ear::judge`].
    pub(super) fn judged(
        &self,
        exec: &mut dyn Executor,
        path: &Path,
        text: &str,
    ) -> Result<Judged, RunError> {
        let (mut clip, ids) = self.clip(exec, path, text)?;
        let given = self.fit(exec, &clip, &ids)?;
        let own = self.likeliest(exec, &mut clip)?;
        Ok(Judged { given, own: self.fit(exec, &clip, &own)? })
    }

    /// Encodes a file, and returns the ids of its text.
    fn clip(
        &self,
        exec: &mut dyn Executor,
        path: &Path,
        text: &str,
    ) -> Result<(Clip<'_>, Vec<u32>), RunError> {
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
        Ok((Clip { decoding, language, begins }, ids))
    }

    /// Returns how well a text fits the file that was encoded last.
    fn fit(&self, exec: &mut dyn Executor, clip: &Clip, ids: &[u32]) -> Result<Scored, RunError> {
        let (logprobs, _) = self.scores(exec, (&clip.begins, ids), None)?;
        let mut at = 0;
        let word = |(word, of): (String, Vec<u32>)| {
            at += of.len();
            ScoredWord { word, logprob: logprobs[at - of.len()..at].iter().sum() }
        };
        let words = self.tokens.words(ids, Some(&clip.language)).into_iter().map(word).collect();
        let (end, text_of) = logprobs.split_last().map_or((0.0, &[][..]), |(end, of)| (*end, of));
        Ok(Scored {
            text: strip(&self.tokens.decode(ids)).to_owned(),
            language: clip.language.clone(),
            words,
            tokens: ids.len(),
            logprob: text_of.iter().sum(),
            end_logprob: end,
        })
    }

    /// Returns the ids of the file's text, the likeliest token after the other, without times: as texts are scored.
    fn likeliest(&self, exec: &mut dyn Executor, clip: &mut Clip) -> Result<Vec<u32>, RunError> {
        let tokens = &self.tokens;
        let prompt = [&clip.begins[..], &[tokens.no_timestamps]].concat();
        let most = self.scored - prompt.len() - 1;
        let mut logits = clip.decoding.prefill(exec, &[&prompt], None)?;
        let mut new = Vec::new();
        loop {
            let begins = if new.is_empty() { &self.never_first[..] } else { &[] };
            self.never.iter().chain(begins).for_each(|id| logits[*id as usize] = f32::NEG_INFINITY);
            let likely = logits.iter().enumerate().take(tokens.times as usize);
            let next = likely.max_by(|a, b| a.1.total_cmp(b.1)).map_or(tokens.eot, |(id, _)| id as u32);
            if next == tokens.eot || new.len() == most {
                return Ok(new);
            }
            new.push(next);
            logits = clip.decoding.step(exec, &[Some((next, prompt.len() + new.len() - 1))])?;
        }
    }
}
