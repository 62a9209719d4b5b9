//! From clips of codes and text states to the inputs of the program in [`super::model`].
//!
//! A clip of T frames has T + 1 steps. Codebook k is late by d_k: step s reads its code s - 1 - d_k, the id behind all codes where there is
//! none, and is scored by its code s - d_k. So the last d_k codes of codebook k are read by no step and scored at none, and the last step is
//! not scored (audiocraft 1.3.0, `LMModel.compute_predictions` with `keep_only_valid_steps`).

use super::config::Config;
use crate::batch::{Batch, Capacity, Layout, Norms, starts};

/// A label that is not scored.
const IGNORED: i32 = -100;

/// One clip of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Clip<'a> {
    /// Codes, `[K, T]`.
    pub codes: &'a [u32],
    /// U: tokens of the text; 0 without. Its states follow by [`put_states`].
    pub text: usize,
    /// Key of dropout masks.
    pub key: [u32; 2],
}

impl Clip<'_> {
    /// Returns the number T of frames.
    pub fn frames(&self, cfg: &Config) -> usize {
        self.codes.len() / cfg.codebooks()
    }

    /// Returns the steps of the clip.
    pub fn steps(&self, cfg: &Config) -> usize {
        steps(self.frames(cfg))
    }

    /// Checks codes against the shape.
    ///
    /// # Errors
    /// What is wrong, and with which element.
    pub fn check(&self, cfg: &Config) -> Result<(), String> {
        let frames = self.frames(cfg);
        if self.codes.len() != frames * cfg.codebooks() {
            return Err(format!("codes: {} are not of {} codebooks", self.codes.len(), cfg.codebooks()));
        }
        if frames == 0 {
            return Err("codes: has no frames".to_owned());
        }
        if let Some(i) = self.codes.iter().position(|code| *code as usize >= cfg.vocab) {
            let (k, t, code, vocab) = (i / frames, i % frames, self.codes[i], cfg.vocab);
            return Err(format!("codes[{k}][{t}]: {code} is not below {vocab}, the codes of a codebook"));
        }
        Ok(())
    }
}

/// Returns the steps of a clip of T frames.
pub fn steps(frames: usize) -> usize {
    frames + 1
}

/// Returns the inputs `norm.k` of an update of clips of these frames: of each codebook 1 / (K * scored codes); 0 where none is.
pub fn norms(cfg: &Config, frames: &[usize]) -> Norms {
    let scored = |late: usize| frames.iter().map(|t| t.saturating_sub(late)).sum::<usize>();
    let norm = |late: &usize| match scored(*late) {
        0 => 0.0,
        n => (1.0 / (cfg.codebooks() * n) as f64) as f32,
    };
    cfg.delays.iter().enumerate().map(|(k, late)| (format!("norm.{k}"), norm(late))).collect()
}

/// Returns the inputs of the program at capacity. Those that it does not take are skipped.
pub fn layout(cfg: &Config, cap: Capacity) -> Layout {
    let mut layout = Layout::new(&[], &[("segments", cap.clips + 1), ("keys", 2 * cap.clips)]);
    add_text(cfg, &mut layout, cap.clips);
    for of in ["codes", "labels"] {
        layout.ints.extend((0..cfg.codebooks()).map(|k| (format!("{of}.{k}"), cap.rows)));
    }
    layout
}

/// Adds the inputs of texts.
pub(super) fn add_text(cfg: &Config, layout: &mut Layout, clips: usize) {
    layout.floats.push(("states".to_owned(), clips * cfg.context * cfg.text_dim));
    layout.ints.push(("context".to_owned(), clips + 1));
}

/// Lays clips end to end in a batch of [`layout`], but for states.
///
/// # Panics
/// When they exceed the capacity: packing has checked it.
pub fn fill(cfg: &Config, batch: &mut Batch, clips: &[Clip<'_>]) {
    fill_text(batch, clips.iter().map(|clip| clip.text));
    let starts = starts(clips.iter().map(|clip| clip.steps(cfg)));
    let segments = batch.int("segments").iter_mut().enumerate();
    segments.for_each(|(s, to)| *to = starts[s.min(clips.len())] as i32);
    let keys = batch.int("keys");
    keys.fill(0);
    let words = clips.iter().flat_map(|clip| clip.key);
    keys.iter_mut().zip(words).for_each(|(to, word)| *to = word as i32);
    for (k, &late) in cfg.delays.iter().enumerate() {
        for (table, none, of) in [("codes", -1, read as OfStep), ("labels", IGNORED, scored)] {
            let table = batch.int(&format!("{table}.{k}"));
            table.fill(none);
            for (clip, &at) in clips.iter().zip(&starts) {
                let frames = clip.frames(cfg);
                let codes = &clip.codes[k * frames..][..frames];
                for s in 0..clip.steps(cfg) {
                    table[at + s] = of(cfg, codes, late, s);
                }
            }
        }
    }
}

/// Puts the states `[U, E]` of a clip's text into a batch that was filled, one clip at a time: they are larger than all else.
///
/// # Panics
/// When there are more than the batch has room for.
pub fn put_states(cfg: &Config, batch: &mut Batch, clip: usize, states: &[f32]) {
    let at = batch.int("context")[clip] as usize * cfg.text_dim;
    batch.float("states")[at..][..states.len()].copy_from_slice(states);
}

/// Fills the inputs of texts, but for states, from the tokens of each clip's.
pub(super) fn fill_text(batch: &mut Batch, tokens: impl Iterator<Item = usize>) {
    let starts = starts(tokens);
    let last = starts.len() - 1;
    batch.int("context").iter_mut().enumerate().for_each(|(s, to)| *to = starts[s.min(last)] as i32);
    batch.float("states").fill(0.0);
}

/// Of a codebook's codes, how late it is, and a step.
type OfStep = fn(&Config, &[u32], usize, usize) -> i32;

fn read(cfg: &Config, codes: &[u32], late: usize, step: usize) -> i32 {
    let code = step.checked_sub(1 + late).and_then(|t| codes.get(t));
    code.copied().unwrap_or(cfg.special()) as i32
}

fn scored(_: &Config, codes: &[u32], late: usize, step: usize) -> i32 {
    // The last step's code would be the one behind the last frame.
    let code = if step < codes.len() { step.checked_sub(late) } else { None };
    code.map_or(IGNORED, |t| codes[t] as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::musicgen::config::delays;

    fn config(delays: Vec<usize>) -> Config {
        Config { vocab: 16, delays, text_dim: 2, context: 3, ..Config::small() }
    }

    /// audiocraft 1.3.0's `build_pattern_sequence` of five frames, with valid steps only, and what `revert_pattern_logits` masks.
    #[test]
    fn codebooks_are_late_and_score_what_was_read() {
        let (cfg, cap) = (config(delays(3, 1)), Capacity { rows: 11, clips: 3 });
        let codes: Vec<u32> = (0..15).collect();
        let clips =
            [Clip { codes: &codes, text: 2, key: [1, 2] }, Clip { codes: &[7, 8, 9], text: 0, key: [3, 4] }];
        clips.iter().for_each(|clip| clip.check(&cfg).unwrap());
        let mut batch = Batch::new(&layout(&cfg, cap));
        fill(&cfg, &mut batch, &clips);
        put_states(&cfg, &mut batch, 0, &[0.5; 4]);
        let ints: std::collections::BTreeMap<String, Vec<i32>> =
            batch.ints().map(|(n, d)| (n.to_owned(), d.to_vec())).collect();
        assert_eq!((&*ints["segments"], &*ints["context"]), (&[0, 6, 8, 8][..], &[0, 2, 2, 2][..]));
        assert_eq!(ints["codes.0"], [16, 0, 1, 2, 3, 4, 16, 7, -1, -1, -1]);
        assert_eq!(ints["codes.2"], [16, 16, 16, 10, 11, 12, 16, 16, -1, -1, -1]);
        assert_eq!(ints["labels.0"], [0, 1, 2, 3, 4, -100, 7, -100, -100, -100, -100]);
        assert_eq!(ints["labels.2"], [-100, -100, 10, 11, 12, -100, -100, -100, -100, -100, -100]);
        assert_eq!(ints["keys"], [1, 2, 3, 4, 0, 0]);
        let states = batch.floats().find(|(n, _)| *n == "states").unwrap().1;
        assert_eq!(states, [[0.5; 4].as_slice(), &[0.0; 14]].concat());
    }

    #[test]
    fn every_codebook_has_its_norm() {
        let cfg = config(vec![0, 0, 4]);
        let norms = norms(&cfg, &[5, 1]);
        let of = |scored: f32| 1.0 / (3.0 * scored);
        assert_eq!(norms.iter().map(|(_, x)| *x).collect::<Vec<_>>(), [of(6.0), of(6.0), of(1.0)]);
        assert_eq!(norms[2].0, "norm.2");
        assert_eq!(super::norms(&cfg, &[4])[2].1, 0.0);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let cfg = config(delays(2, 1));
        let check = |codes: &[u32]| Clip { codes, text: 0, key: [0, 0] }.check(&cfg).unwrap_err();
        assert!(check(&[1, 2, 16, 1]).starts_with("codes[1][0]: 16"));
        assert!(check(&[]).contains("no frames"));
        assert!(check(&[1, 2, 3]).contains("3 are not of 2 codebooks"));
    }
}
