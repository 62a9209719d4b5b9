//! From clips of phonemes, spectrograms and samples to the inputs of the programs in [`super::model`].

use super::config::Config;
use crate::batch::{Batch, Capacity, Layout, Norms, starts};

/// What the parts of the losses are divided by: clips, frames and phonemes of the update.
pub(super) const NORMS: [&str; 3] = ["norm.clips", "norm.frames", "norm.phonemes"];

/// One clip of a micro-batch. Its spectrogram, samples and noise follow by [`put`].
#[derive(Clone, Copy, Debug)]
pub struct Clip<'a> {
    /// Ids of the text, `[P]`.
    pub phonemes: &'a [u32],
    /// T: frames of the spectrogram.
    pub frames: usize,
    /// The first frame of the slice.
    pub slice: usize,
    /// Who speaks; 0 where the model has one speaker.
    pub speaker: u32,
    /// Key of dropout masks.
    pub key: [u32; 2],
}

/// The numbers of a clip.
#[derive(Clone, Copy, Debug)]
pub struct Sound<'a> {
    /// Its spectrogram `[T, bins]`.
    pub spec: &'a [f32],
    /// The samples of its slice `[slice]`.
    pub real: &'a [f32],
    /// Normal numbers `[T, inter]`.
    pub noise: &'a [f32],
    /// Normal numbers `[P, 2]`; none where durations are predicted plainly.
    pub duration_noise: &'a [f32],
}

impl Clip<'_> {
    /// Checks ids and lengths against the shape.
    ///
    /// # Errors
    /// What is wrong, and with which element.
    pub fn check(&self, cfg: &Config) -> Result<(), String> {
        let t = self.frames;
        if let Some(i) = self.phonemes.iter().position(|id| *id as usize >= cfg.symbols) {
            let id = self.phonemes[i];
            return Err(format!("phoneme_ids[{i}]: {id} is not among the {} of the model", cfg.symbols));
        }
        if self.phonemes.is_empty() {
            return Err("has no phonemes".to_owned());
        }
        if t < cfg.segment {
            return Err(format!("has {t} frames, fewer than the {} of a slice", cfg.segment));
        }
        if self.slice > t - cfg.segment {
            return Err(format!("slice: {} is none of {} frames of {t}", self.slice, cfg.segment));
        }
        if self.speaker as usize >= cfg.speakers {
            return Err(format!("speaker: {} is not among the {} of the model", self.speaker, cfg.speakers));
        }
        Ok(())
    }
}

/// Returns 1 / clips, frames and phonemes of the update.
pub fn norms<'c>(clips: impl Iterator<Item = Clip<'c>>) -> Norms {
    let add = |[n, t, p]: [usize; 3], clip: Clip<'c>| [n + 1, t + clip.frames, p + clip.phonemes.len()];
    let sums = clips.fold([0, 0, 0], add);
    let norm = |n: usize| (1.0 / n.max(1) as f64) as f32;
    NORMS.iter().zip(sums).map(|(name, n)| ((*name).to_owned(), norm(n))).collect()
}

/// Returns the inputs of the programs at capacity. Those that one does not take are skipped.
pub fn layout(cfg: &Config, cap: Capacity) -> Layout {
    let floats = [
        ("spec", cap.rows * cfg.spectra.bins()),
        ("noise", cap.rows * cfg.inter),
        ("duration_noise", 2 * cap.clips * cfg.context),
        ("real", cap.clips * cfg.slice()),
        ("present", cap.clips),
    ];
    let ints = [
        ("phonemes", cap.clips * cfg.context),
        ("segments", cap.clips + 1),
        ("text_segments", cap.clips + 1),
        ("slice_rows", cap.clips * cfg.segment),
        ("speakers", cap.clips),
        ("keys", 2 * cap.clips),
    ];
    Layout::new(&floats, &ints)
}

/// Lays clips end to end in a batch of [`layout`], but for their numbers.
///
/// # Panics
/// When they exceed the capacity: packing has checked it.
pub fn fill(cfg: &Config, batch: &mut Batch, clips: &[Clip<'_>]) {
    for name in ["spec", "noise", "duration_noise", "real", "present"] {
        batch.float(name).fill(0.0);
    }
    batch.float("present")[..clips.len()].fill(1.0);
    let frames = starts(clips.iter().map(|clip| clip.frames));
    let texts = starts(clips.iter().map(|clip| clip.phonemes.len()));
    for (name, starts) in [("segments", &frames), ("text_segments", &texts)] {
        let table = batch.int(name);
        table.iter_mut().enumerate().for_each(|(s, to)| *to = starts[s.min(clips.len())] as i32);
    }
    for (name, none) in [("phonemes", -1), ("slice_rows", -1), ("speakers", 0), ("keys", 0)] {
        batch.int(name).fill(none);
    }
    for (s, clip) in clips.iter().enumerate() {
        let ids = &mut batch.int("phonemes")[texts[s]..texts[s + 1]];
        ids.iter_mut().zip(clip.phonemes).for_each(|(to, id)| *to = *id as i32);
        let rows = &mut batch.int("slice_rows")[s * cfg.segment..][..cfg.segment];
        rows.iter_mut().enumerate().for_each(|(i, to)| *to = (frames[s] + clip.slice + i) as i32);
        batch.int("speakers")[s] = clip.speaker as i32;
        batch.int("keys")[2 * s..][..2].copy_from_slice(&clip.key.map(|word| word as i32));
    }
}

/// Puts the numbers of clip `s` into a batch that was filled, one clip at a time: they are larger than all else.
///
/// # Panics
/// When it is not the clip that the batch was filled with.
pub fn put(cfg: &Config, batch: &mut Batch, s: usize, sound: &Sound<'_>) {
    let [frame, text] = ["segments", "text_segments"].map(|name| batch.int(name)[s] as usize);
    let places = [
        ("spec", frame * cfg.spectra.bins(), sound.spec),
        ("noise", frame * cfg.inter, sound.noise),
        ("duration_noise", 2 * text, sound.duration_noise),
        ("real", s * cfg.slice(), sound.real),
    ];
    for (name, at, values) in places {
        batch.float(name)[at..][..values.len()].copy_from_slice(values);
    }
}
