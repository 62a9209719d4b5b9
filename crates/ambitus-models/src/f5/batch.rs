//! From clips to the inputs of the programs in [`super::model`].

use super::config::{Config, MELS};
use super::draw::{self, Draw};
use crate::batch::{Batch, Capacity, Layout};

/// One clip of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Clip<'a> {
    /// Log-mel `[N, M]`, row-major.
    pub mel: &'a [f32],
    /// Token ids as lines of vocab.txt, from 0; -1 is filler. Longer text is cut to the frames.
    pub text: &'a [i32],
    /// The random choices.
    pub draw: Draw,
    /// Noise `[N, M]`; drawn from the draw's key when absent.
    pub noise: Option<&'a [f32]>,
    /// 1 where the frame is predicted, `[N]`; overrides the draw's span when given.
    pub span: Option<&'a [bool]>,
}

impl Clip<'_> {
    /// Returns the number N of frames.
    pub fn frames(&self) -> usize {
        self.mel.len() / MELS
    }

    /// Returns whether frame i is predicted.
    fn predicted(&self, i: usize) -> bool {
        match self.span {
            Some(span) => span[i],
            None => (self.draw.span.0..self.draw.span.1).contains(&i),
        }
    }

    /// Returns the predicted frames.
    pub fn span_frames(&self) -> usize {
        (0..self.frames()).filter(|i| self.predicted(*i)).count()
    }
}

/// Returns the inputs of the programs in [`super::model`] at capacity. `text_mask` and `keys` belong to programs that take them.
pub fn layout(cap: Capacity) -> Layout {
    let (rows, clips) = (cap.rows, cap.clips);
    Layout::new(
        &[
            ("mel", rows * MELS),
            ("noise", rows * MELS),
            ("cond_mask", rows),
            ("span", rows),
            ("text_mask", rows),
            ("time", clips),
        ],
        &[("text", rows), ("segments", clips + 1), ("keys", 2 * clips)],
    )
}

/// Lays clips end to end in a batch of [`layout`].
///
/// # Panics
/// When they exceed the capacity: packing has checked it.
pub fn fill(batch: &mut Batch, clips: &[Clip<'_>]) {
    let (mut floats, [text, segments, keys]) = batch.tables::<6, 3>();
    floats.iter_mut().for_each(|f| f.fill(0.0));
    let [mel, noise, cond_mask, span, text_mask, time] = floats;
    text.fill(0);
    keys.fill(0);
    let mut at = 0;
    for (s, clip) in clips.iter().enumerate() {
        let n = clip.frames();
        segments[s] = at as i32;
        mel[at * MELS..(at + n) * MELS].copy_from_slice(clip.mel);
        let noise = &mut noise[at * MELS..(at + n) * MELS];
        match clip.noise {
            Some(given) => noise.copy_from_slice(given),
            None => draw::noise(clip.draw.key, noise),
        }
        time[s] = clip.draw.time;
        for (k, word) in clip.draw.key.iter().enumerate() {
            keys[2 * s + k] = *word as i32;
        }
        for i in 0..n {
            let predicted = clip.predicted(i);
            span[at + i] = f32::from(u8::from(predicted));
            let known = !predicted && !clip.draw.drop_audio;
            cond_mask[at + i] = f32::from(u8::from(known));
            // Row 0 of the embedding is the filler: ids move up by one. The mask is of the text before dropping.
            let id = clip.text.get(i).map_or(0, |id| id + 1);
            text_mask[at + i] = f32::from(u8::from(id != 0));
            text[at + i] = if clip.draw.drop_text { 0 } else { id };
        }
        at += n;
    }
    segments[clips.len()..].fill(at as i32);
}

/// Returns 1 / (M * predicted frames of all clips of the update): the input `norm`.
pub fn norm(span_frames: usize) -> f32 {
    (1.0 / (MELS as f64 * span_frames.max(1) as f64)) as f32
}

/// Checks a clip's text ids against the embedding.
///
/// # Errors
/// The first id that has no row.
pub fn check_text(text: &[i32], cfg: &Config) -> Result<(), i32> {
    let fits = |id: &i32| (-1..cfg.text_rows as i32 - 1).contains(id);
    text.iter().find(|id| !fits(id)).map_or(Ok(()), |id| Err(*id))
}
