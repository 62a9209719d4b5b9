//! From clips of texts, codes and conditioning mels to the inputs of the program in [`super::model`].
//!
//! A clip's rows are its prompt of 32 latents, the start of its text and the text, the start of its codes, the codes and three stops.
//! What follows a row is scored: the text and its stop, the codes and four stops (coqui-tts 0.28, `GPT.forward`, of a clip alone).

use super::config::{BANDS, Config, LATENTS, STOPS};
use crate::batch::{Batch, Capacity, Layout, Norms};

/// A label that is not scored.
const IGNORED: i32 = -100;
/// The inputs of one number a row: ids and places of text and codes, the latent of the prompt, and what is scored.
pub(super) const ROWS: [&str; 7] =
    ["text", "text_places", "codes", "code_places", "prompt", "text_labels", "code_labels"];

/// One clip of a micro-batch. Its conditioning mel follows by [`put_mel`].
#[derive(Clone, Copy, Debug)]
pub struct Clip<'a> {
    /// Ids of the text, `[t]`.
    pub text: &'a [u32],
    /// Codes, `[n]`.
    pub codes: &'a [u32],
    /// Codes `[from, to)` that are not scored.
    pub left_out: [usize; 2],
    /// Key of dropout masks.
    pub key: [u32; 2],
}

impl Clip<'_> {
    /// Returns the rows of the clip.
    pub fn rows(&self, cfg: &Config) -> usize {
        cfg.rows_of(self.text.len(), self.codes.len())
    }

    /// Checks ids and lengths against the shape.
    ///
    /// # Errors
    /// What is wrong, and with which element.
    pub fn check(&self, cfg: &Config) -> Result<(), String> {
        lengths(cfg, self.text.len(), self.codes.len())?;
        if let Some(i) = self.text.iter().position(|id| *id as usize >= cfg.text_vocab) {
            let id = self.text[i];
            return Err(format!("text_ids[{i}]: {id} is not in the vocabulary of {}", cfg.text_vocab));
        }
        let special = |id: u32| id as usize >= cfg.codes || id == cfg.start || id == cfg.stop;
        if let Some(i) = self.codes.iter().position(|id| special(*id)) {
            let (id, most) = (self.codes[i], cfg.codes);
            return Err(format!(
                "codes[{i}]: {id} is no code: those are below {most}, without start and stop"
            ));
        }
        let ([from, to], n) = (self.left_out, self.codes.len());
        if from > to || to > n {
            return Err(format!("prompt_codes: [{from}, {to}) is no range of the {n} codes"));
        }
        Ok(())
    }
}

/// Checks that the tables of positions have room for t text ids and n codes, as the project pads them.
///
/// # Errors
/// Which are too many.
pub fn lengths(cfg: &Config, text: usize, codes: usize) -> Result<(), String> {
    let [most_text, most_codes] = [cfg.most_text(), cfg.code_positions.saturating_sub(STOPS + 1)];
    match (text, codes) {
        (0, _) => Err("has no text".to_owned()),
        (_, 0) => Err("has no codes".to_owned()),
        _ if text > most_text => Err(format!("has {text} text ids, more than the {most_text} of the model")),
        _ if codes > most_codes => Err(format!("has {codes} codes, more than the {most_codes} of the model")),
        _ => Ok(()),
    }
}

/// Returns what is scored of a clip: text ids and their stop, codes and their stops.
pub fn scored(clip: &Clip<'_>) -> [usize; 2] {
    let [from, to] = clip.left_out;
    [clip.text.len() + 1, clip.codes.len() + STOPS - (to - from)]
}

/// Returns 1 / scored ids of all clips of the update, of text and of codes.
pub fn norms<'c>(clips: impl Iterator<Item = Clip<'c>>) -> Norms {
    let [text, codes] = clips.map(|clip| scored(&clip)).fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    let norm = |n: usize| (1.0 / n.max(1) as f64) as f32;
    vec![("norm.text".to_owned(), norm(text)), ("norm.mel".to_owned(), norm(codes))]
}

/// Returns the inputs of the program at capacity. Those that it does not take are skipped.
pub fn layout(cfg: &Config, cap: Capacity) -> Layout {
    let rows = ROWS.map(|name| (name, cap.rows));
    let tables = ["segments", "frames", "latent_segments", "seen_segments"].map(|name| (name, cap.clips + 1));
    let ints = [&rows[..], &tables, &[("keys", 2 * cap.clips)]].concat();
    Layout::new(&[("mel", cap.clips * cfg.frames * BANDS)], &ints)
}

/// Fills the tables of a conditioning program: every clip has its frames, also one that is not there.
pub(super) fn fill_frames(cfg: &Config, batch: &mut Batch) {
    let each =
        [("frames", cfg.frames), ("latent_segments", LATENTS), ("seen_segments", LATENTS + cfg.frames)];
    for (name, each) in each {
        batch.int(name).iter_mut().enumerate().for_each(|(s, to)| *to = (s * each) as i32);
    }
}

/// Lays clips end to end in a batch of [`layout`], but for their mels.
///
/// # Panics
/// When they exceed the capacity: packing has checked it.
pub fn fill(cfg: &Config, batch: &mut Batch, clips: &[Clip<'_>]) {
    fill_frames(cfg, batch);
    batch.float("mel").fill(0.0);
    for name in ROWS {
        let none = if name.ends_with("labels") { IGNORED } else { -1 };
        batch.int(name).fill(none);
    }
    let keys = batch.int("keys");
    keys.fill(0);
    let words = clips.iter().flat_map(|clip| clip.key);
    keys.iter_mut().zip(words).for_each(|(to, word)| *to = word as i32);
    let mut starts = vec![0];
    for (s, clip) in clips.iter().enumerate() {
        let mut put = |name: &str, at: usize, values: &mut dyn Iterator<Item = i32>| {
            let to = batch.int(name)[starts[s] + at..].iter_mut();
            to.zip(values).for_each(|(to, value)| *to = value);
        };
        let (t, n) = (clip.text.len(), clip.codes.len());
        let (text_at, codes_at) = (LATENTS, LATENTS + t + 1);
        put("prompt", 0, &mut (0..LATENTS).map(|i| (s * LATENTS + i) as i32));
        let text = || clip.text.iter().map(|id| *id as i32);
        put("text", text_at, &mut std::iter::once(cfg.text_start as i32).chain(text()));
        put("text_places", text_at, &mut (0..=t as i32));
        put("text_labels", text_at, &mut text().chain([cfg.text_stop as i32]));
        let codes = || clip.codes.iter().map(|id| *id as i32);
        let stops = std::iter::repeat_n(cfg.stop as i32, STOPS);
        let read = std::iter::once(cfg.start as i32).chain(codes()).chain(stops.clone().skip(1));
        put("codes", codes_at, &mut { read });
        put("code_places", codes_at, &mut (0..(n + STOPS) as i32));
        let [from, to] = clip.left_out;
        let scored = codes().enumerate().map(|(i, id)| if (from..to).contains(&i) { IGNORED } else { id });
        put("code_labels", codes_at, &mut scored.chain(stops));
        starts.push(starts[s] + clip.rows(cfg));
    }
    let segments = batch.int("segments");
    for (s, to) in segments.iter_mut().enumerate() {
        *to = starts[s.min(clips.len())] as i32;
    }
}

/// Puts the conditioning mel `[F, 80]` of a clip into a batch that was filled, one clip at a time: they are larger than all else.
///
/// # Panics
/// When it has more frames than the batch has room for.
pub fn put_mel(batch: &mut Batch, clip: usize, mel: &[f32]) {
    batch.float("mel")[clip * mel.len()..][..mel.len()].copy_from_slice(mel);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn config() -> Config {
        Config {
            text_vocab: 20,
            text_start: 18,
            codes: 12,
            start: 10,
            stop: 11,
            text_positions: 6,
            code_positions: 9,
            frames: 2,
            ..Config::v2()
        }
    }

    #[test]
    fn what_follows_a_row_is_scored() {
        let cfg = config();
        let clip = Clip { text: &[5, 6], codes: &[1, 2, 3], left_out: [1, 2], key: [7, 8] };
        clip.check(&cfg).unwrap();
        assert_eq!((clip.rows(&cfg), scored(&clip)), (42, [3, 6]));
        let mut batch = Batch::new(&layout(&cfg, Capacity { rows: 44, clips: 2 }));
        fill(&cfg, &mut batch, &[clip]);
        put_mel(&mut batch, 0, &[0.5; 160]);
        let ints: BTreeMap<String, Vec<i32>> =
            batch.ints().map(|(n, d)| (n.to_owned(), d.to_vec())).collect();
        assert_eq!(ints["prompt"][30..], [[30, 31].as_slice(), &[-1; 12]].concat());
        let from = |name: &str| ints[name][32..].to_vec();
        assert_eq!(from("text"), [18, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1]);
        assert_eq!(from("text_labels"), [5, 6, 0, -100, -100, -100, -100, -100, -100, -100, -100, -100]);
        assert_eq!(from("codes"), [-1, -1, -1, 10, 1, 2, 3, 11, 11, 11, -1, -1]);
        assert_eq!(from("code_labels"), [-100, -100, -100, 1, -100, 3, 11, 11, 11, 11, -100, -100]);
        assert_eq!(from("code_places"), [-1, -1, -1, 0, 1, 2, 3, 4, 5, 6, -1, -1]);
        assert_eq!((&*ints["segments"], &*ints["seen_segments"]), (&[0, 42, 42][..], &[0, 34, 68][..]));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let cfg = config();
        let check = |text: &[u32], codes: &[u32], left_out| {
            Clip { text, codes, left_out, key: [0, 0] }.check(&cfg).unwrap_err()
        };
        assert!(check(&[1], &[1, 11], [0, 0]).starts_with("codes[1]: 11"));
        assert!(check(&[20], &[1], [0, 0]).starts_with("text_ids[0]: 20"));
        assert!(check(&[1; 5], &[1], [0, 0]).contains("5 text ids, more than the 4"));
        assert!(check(&[1], &[1; 5], [0, 0]).contains("5 codes, more than the 4"));
        assert!(check(&[1], &[1], [0, 2]).starts_with("prompt_codes: [0, 2)"));
        assert!(check(&[], &[1], [0, 0]).contains("no text"));
    }
}
