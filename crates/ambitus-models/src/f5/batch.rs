//! From clips to the inputs of the programs in [`super::model`].

use super::config::{Config, MELS};
use super::draw::{self, Draw};
use super::model::Capacity;

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
    /// N.
    pub fn frames(&self) -> usize {
        self.mel.len() / MELS
    }

    /// Whether frame i is predicted.
    fn predicted(&self, i: usize) -> bool {
        match self.span {
            Some(span) => span[i],
            None => (self.draw.span.0..self.draw.span.1).contains(&i),
        }
    }

    /// Predicted frames.
    pub fn span_frames(&self) -> usize {
        (0..self.frames()).filter(|i| self.predicted(*i)).count()
    }
}

/// Host copies of the inputs `mel`, `noise`, `cond_mask`, `span`, `time`, `text`, `text_mask`, `segments`, `keys`, at
/// capacity. Reused from batch to batch.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Batch {
    pub mel: Vec<f32>,
    pub noise: Vec<f32>,
    pub cond_mask: Vec<f32>,
    pub span: Vec<f32>,
    pub time: Vec<f32>,
    pub text: Vec<i32>,
    pub text_mask: Vec<f32>,
    pub segments: Vec<i32>,
    pub keys: Vec<i32>,
}

impl Batch {
    /// An empty batch.
    pub fn new(cap: Capacity) -> Batch {
        Batch {
            mel: vec![0.0; cap.frames * MELS],
            noise: vec![0.0; cap.frames * MELS],
            cond_mask: vec![0.0; cap.frames],
            span: vec![0.0; cap.frames],
            time: vec![0.0; cap.clips],
            text: vec![0; cap.frames],
            text_mask: vec![0.0; cap.frames],
            segments: vec![0; cap.clips + 1],
            keys: vec![0; cap.clips * 2],
        }
    }

    /// Bytes of one batch on the host.
    pub fn bytes(cap: Capacity) -> u64 {
        let per_frame = (2 * MELS + 4) * 4;
        (cap.frames * per_frame + cap.clips * 16 + 4) as u64
    }

    /// Lays clips end to end.
    ///
    /// # Panics
    /// When they exceed the capacity: packing has checked it.
    pub fn fill(&mut self, clips: &[Clip<'_>]) {
        for zeroed in [
            &mut self.mel,
            &mut self.noise,
            &mut self.cond_mask,
            &mut self.span,
            &mut self.time,
            &mut self.text_mask,
        ] {
            zeroed.fill(0.0);
        }
        self.text.fill(0);
        self.keys.fill(0);
        let mut at = 0;
        for (s, clip) in clips.iter().enumerate() {
            let n = clip.frames();
            self.segments[s] = at as i32;
            self.mel[at * MELS..(at + n) * MELS].copy_from_slice(clip.mel);
            let noise = &mut self.noise[at * MELS..(at + n) * MELS];
            match clip.noise {
                Some(given) => noise.copy_from_slice(given),
                None => draw::noise(clip.draw.key, noise),
            }
            self.time[s] = clip.draw.time;
            for (k, word) in clip.draw.key.iter().enumerate() {
                self.keys[2 * s + k] = *word as i32;
            }
            for i in 0..n {
                let predicted = clip.predicted(i);
                self.span[at + i] = f32::from(u8::from(predicted));
                let known = !predicted && !clip.draw.drop_audio;
                self.cond_mask[at + i] = f32::from(u8::from(known));
                // Row 0 of the embedding is the filler: ids move up by one. The mask is of the text before dropping.
                let id = clip.text.get(i).map_or(0, |id| id + 1);
                self.text_mask[at + i] = f32::from(u8::from(id != 0));
                self.text[at + i] = if clip.draw.drop_text { 0 } else { id };
            }
            at += n;
        }
        self.segments[clips.len()..].fill(at as i32);
    }

    /// The float inputs by name. `text_mask` and `keys` belong to programs that take them; callers skip absent ones.
    pub fn floats(&self) -> [(&'static str, &[f32]); 6] {
        [
            ("mel", &self.mel),
            ("noise", &self.noise),
            ("cond_mask", &self.cond_mask),
            ("span", &self.span),
            ("time", &self.time),
            ("text_mask", &self.text_mask),
        ]
    }

    /// The integer inputs by name.
    pub fn ints(&self) -> [(&'static str, &[i32]); 3] {
        [("text", &self.text), ("segments", &self.segments), ("keys", &self.keys)]
    }
}

/// 1 / (M * predicted frames of all clips of the update): the input `norm`.
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
