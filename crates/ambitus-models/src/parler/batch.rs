//! From clips of codes, prompts and description states to the inputs of the program in [`super::model`].
//!
//! A clip's rows are its prompt, then T + C columns of codes. Codebook k is delayed by k columns (arXiv 2306.05284, figure 2): what
//! is to be said at column j is code j - k of its frames, before that the id that begins a codebook, after them the one that ends
//! it. What is read at a column is what was to be said at the one before. Scored are the frames and one end (parler_tts 0.2.3,
//! `ParlerTTSForCausalLM.forward`).

use super::config::Config;
use crate::batch::{Batch, Capacity, Layout, starts};

/// A label that is not scored.
const IGNORED: i32 = -100;

/// One clip of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Clip<'a> {
    /// Ids of the prompt, `[P]`.
    pub prompt: &'a [u32],
    /// Codes, `[C, T]`.
    pub codes: &'a [u32],
    /// U: tokens of the description. Its states follow by [`put_states`].
    pub described: usize,
    /// Key of dropout masks.
    pub key: [u32; 2],
}

impl Clip<'_> {
    /// Returns the number T of frames.
    pub fn frames(&self, cfg: &Config) -> usize {
        self.codes.len() / cfg.codebooks
    }

    /// Returns the rows of the clip.
    pub fn rows(&self, cfg: &Config) -> usize {
        cfg.rows_of(self.prompt.len(), self.frames(cfg))
    }

    /// Returns its rows of context.
    pub fn context(&self, cfg: &Config) -> usize {
        cfg.context_of(self.prompt.len(), self.described)
    }

    /// Checks ids and lengths against the shape.
    ///
    /// # Errors
    /// What is wrong, and with which element.
    pub fn check(&self, cfg: &Config) -> Result<(), String> {
        let frames = self.frames(cfg);
        if self.codes.len() != frames * cfg.codebooks {
            return Err(format!("codes: {} are not of {} codebooks", self.codes.len(), cfg.codebooks));
        }
        rows(cfg, self.prompt.len(), frames)?;
        if let Some(i) = self.codes.iter().position(|code| *code >= cfg.eos) {
            let (k, t, code, eos) = (i / frames, i % frames, self.codes[i], cfg.eos);
            return Err(format!("codes[{k}][{t}]: {code} is not below {eos}, the id that ends a codebook"));
        }
        if let Some(i) = self.prompt.iter().position(|id| *id as usize >= cfg.prompts) {
            let id = self.prompt[i];
            return Err(format!("prompt_ids[{i}]: {id} is not in the vocabulary of {}", cfg.prompts));
        }
        if self.described == 0 {
            return Err("has no description".to_owned());
        }
        Ok(())
    }
}

/// Returns the rows of a clip of P prompt tokens and T frames.
///
/// # Errors
/// Why the model cannot have such a clip.
pub fn rows(cfg: &Config, prompt: usize, frames: usize) -> Result<usize, String> {
    // Fewer do not reach past the delays: the project trains none of them.
    if frames + 2 < cfg.codebooks || frames == 0 {
        let least = cfg.codebooks.saturating_sub(2).max(1);
        return Err(format!("has {frames} frames; {} codebooks need {least} or more", cfg.codebooks));
    }
    if prompt == 0 {
        return Err("has no prompt".to_owned());
    }
    let rows = cfg.rows_of(prompt, frames);
    if let Some(most) = cfg.rows().most.filter(|most| rows > *most) {
        return Err(format!(
            "has {rows} rows (prompt, frames and codebooks), more than the {most} of max_position_embeddings"
        ));
    }
    if cfg.prompts_in_context && prompt > cfg.positions {
        let most = cfg.positions;
        return Err(format!(
            "has a prompt of {prompt} tokens, more than the {most} of max_position_embeddings"
        ));
    }
    Ok(rows)
}

/// Returns the scored ids of T frames, in each codebook.
pub fn scored(frames: usize) -> usize {
    frames + 1
}

/// Returns 1 / scored ids of a codebook in all clips of the update: the input `norm`.
pub fn norm(scored: usize) -> f32 {
    (1.0 / scored.max(1) as f64) as f32
}

/// Returns the inputs of the program at capacity. Those that it does not take are skipped.
pub fn layout(cfg: &Config, cap: Capacity) -> Layout {
    let ints = [("places", cap.rows), ("segments", cap.clips + 1), ("keys", 2 * cap.clips)];
    let mut layout = Layout::new(&[], &ints);
    add_context(cfg, &mut layout, cap.clips, cap.rows);
    for of in ["codes", "labels"] {
        layout.ints.extend((0..cfg.codebooks).map(|k| (format!("{of}.{k}"), cap.rows)));
    }
    layout
}

/// Adds the inputs of context, and that of prompts.
pub(super) fn add_context(cfg: &Config, layout: &mut Layout, clips: usize, rows: usize) {
    let context = clips * cfg.context;
    let mixed = if cfg.prompts_in_context { context } else { 0 };
    let prompts = if cfg.prompts_in_context { context } else { rows };
    let ints = [("context", clips + 1), ("described", mixed), ("prompt_places", mixed), ("prompt", prompts)];
    let Layout { floats, ints } = Layout::new(&[("states", context * cfg.text_dim)], &ints);
    layout.floats.extend(floats);
    layout.ints.extend(ints);
}

/// Lays clips end to end in a batch of [`layout`], but for states.
///
/// # Panics
/// When they exceed the capacity: packing has checked it.
pub fn fill(cfg: &Config, batch: &mut Batch, clips: &[Clip<'_>]) {
    fill_context(cfg, batch, clips.iter().map(|clip| (clip.prompt, clip.described)));
    let first = |clip: &Clip<'_>| clip.rows(cfg) - clip.frames(cfg) - cfg.codebooks;
    let starts = starts(clips.iter().map(|clip| clip.rows(cfg)));
    let segments = batch.int("segments");
    for (s, to) in segments.iter_mut().enumerate() {
        *to = starts[s.min(clips.len())] as i32;
    }
    let places = batch.int("places");
    places.fill(-1);
    for (clip, &at) in clips.iter().zip(&starts) {
        (0..clip.rows(cfg)).for_each(|i| places[at + i] = i as i32);
    }
    let keys = batch.int("keys");
    keys.fill(0);
    let words = clips.iter().flat_map(|clip| clip.key);
    keys.iter_mut().zip(words).for_each(|(to, word)| *to = word as i32);
    if !cfg.prompts_in_context {
        let prompt = batch.int("prompt");
        prompt.fill(-1);
        for (clip, &at) in clips.iter().zip(&starts) {
            clip.prompt.iter().enumerate().for_each(|(i, id)| prompt[at + i] = *id as i32);
        }
    }
    for k in 0..cfg.codebooks {
        for (table, none, of) in [("codes", -1, read as OfColumn), ("labels", IGNORED, scored_id)] {
            let table = batch.int(&format!("{table}.{k}"));
            table.fill(none);
            for (clip, &at) in clips.iter().zip(&starts) {
                for j in 0..clip.frames(cfg) + cfg.codebooks {
                    table[at + first(clip) + j] = of(cfg, clip, k, j);
                }
            }
        }
    }
}

/// Puts the states `[U, E]` of a clip's description into a batch that was filled, one clip at a time: they are larger than all else.
///
/// # Panics
/// When there are more than the batch has room for.
pub fn put_states(cfg: &Config, batch: &mut Batch, clip: usize, states: &[f32]) {
    let at = batch.int("context")[clip] as usize * cfg.text_dim;
    batch.float("states")[at..][..states.len()].copy_from_slice(states);
}

/// Fills the inputs of context, but for states, from each clip's prompt and the tokens of its description.
pub(super) fn fill_context<'c>(
    cfg: &Config,
    batch: &mut Batch,
    clips: impl Iterator<Item = (&'c [u32], usize)> + Clone,
) {
    let starts = starts(clips.clone().map(|(prompt, described)| cfg.context_of(prompt.len(), described)));
    let last = starts.len() - 1;
    batch.int("context").iter_mut().enumerate().for_each(|(s, to)| *to = starts[s.min(last)] as i32);
    batch.float("states").fill(0.0);
    if !cfg.prompts_in_context {
        return;
    }
    // In a clip's rows, descriptions stand before prompts.
    for name in ["described", "prompt", "prompt_places"] {
        let table = batch.int(name);
        table.fill(-1);
        for ((prompt, described), &at) in clips.clone().zip(&starts) {
            let rows = &mut table[at..at + described + prompt.len()];
            for (r, to) in rows.iter_mut().enumerate() {
                *to = match (name, r.checked_sub(described)) {
                    ("described", None) => (at + r) as i32,
                    ("prompt", Some(i)) => prompt[i] as i32,
                    ("prompt_places", Some(i)) => i as i32,
                    _ => -1,
                };
            }
        }
    }
}

/// Of codebook k and column j of a clip.
type OfColumn = fn(&Config, &Clip<'_>, usize, usize) -> i32;

/// Returns what is to be said.
fn said(cfg: &Config, clip: &Clip<'_>, k: usize, j: usize) -> u32 {
    let frames = clip.frames(cfg);
    match j.checked_sub(k) {
        None => cfg.bos,
        Some(t) if t < frames => clip.codes[k * frames + t],
        Some(_) => cfg.eos,
    }
}

/// Returns what is read: what was to be said at the column before.
fn read(cfg: &Config, clip: &Clip<'_>, k: usize, j: usize) -> i32 {
    j.checked_sub(1).map_or(cfg.bos, |j| said(cfg, clip, k, j)) as i32
}

/// Returns what is scored: frames, and one end.
fn scored_id(cfg: &Config, clip: &Clip<'_>, k: usize, j: usize) -> i32 {
    if (k..=k + clip.frames(cfg)).contains(&j) { said(cfg, clip, k, j) as i32 } else { IGNORED }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config { codebooks: 3, vocab: 20, eos: 16, bos: 17, text_dim: 2, context: 4, ..Config::mini_v1() }
    }

    /// The table of the project's documentation: every codebook one column later than the one before.
    #[test]
    fn codebooks_are_delayed_and_end_once() {
        let (cfg, cap) = (config(), Capacity { rows: 9, clips: 2 });
        let mut batch = Batch::new(&layout(&cfg, cap));
        let codes = [1, 2, 3, 4, 5, 6];
        let clip = Clip { prompt: &[7, 8], codes: &codes, described: 3, key: [1, 2] };
        clip.check(&cfg).unwrap();
        fill(&cfg, &mut batch, &[clip]);
        put_states(&cfg, &mut batch, 0, &[0.5; 6]);
        let states: Vec<f32> = batch.floats().find(|(n, _)| *n == "states").unwrap().1.to_vec();
        assert_eq!(states, [[0.5; 6].as_slice(), &[0.0; 10]].concat());
        let ints: std::collections::BTreeMap<String, Vec<i32>> =
            batch.ints().map(|(n, d)| (n.to_owned(), d.to_vec())).collect();
        assert_eq!(ints["prompt"], [7, 8, -1, -1, -1, -1, -1, -1, -1]);
        assert_eq!(ints["places"], [0, 1, 2, 3, 4, 5, 6, -1, -1]);
        assert_eq!((&*ints["segments"], &*ints["context"]), (&[0, 7, 7][..], &[0, 3, 3][..]));
        assert_eq!(ints["codes.0"], [-1, -1, 17, 1, 2, 16, 16, -1, -1]);
        assert_eq!(ints["codes.2"], [-1, -1, 17, 17, 17, 5, 6, -1, -1]);
        assert_eq!(ints["labels.0"], [-100, -100, 1, 2, 16, -100, -100, -100, -100]);
        assert_eq!(ints["labels.2"], [-100, -100, -100, -100, 5, 6, 16, -100, -100]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let cfg = config();
        let check = |prompt: &[u32], codes: &[u32]| {
            Clip { prompt, codes, described: 1, key: [0, 0] }.check(&cfg).unwrap_err()
        };
        assert!(check(&[1], &[1, 2, 16]).starts_with("codes[2][0]: 16"));
        assert!(check(&[40_000], &[1, 2, 3]).starts_with("prompt_ids[0]: 40000"));
        assert!(check(&[1], &[]).contains("0 frames"));
        let nine = Config { codebooks: 9, ..cfg.clone() };
        let short = Clip { prompt: &[1], codes: &[1; 54], described: 1, key: [0, 0] };
        assert!(short.check(&nine).unwrap_err().contains("6 frames; 9 codebooks need 7"));
    }
}
