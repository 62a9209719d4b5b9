//! F5-TTS: mel frames and text from prepared files, noise, times and spans drawn for each use.

use crate::clips::{Clips, Use, VALIDATION_SEED, When, sample_id};
use ambitus_data::{ClipIndex, DataError, load_clip};
use ambitus_models::f5::batch::{self, Clip};
use ambitus_models::f5::draw::{self, Draw};
use ambitus_models::{Batch, Norms, clip_key, one_norm};
use std::sync::Arc;

/// Epoch of validation draws: none that training reaches.
const VALIDATION: u64 = u64::MAX;

/// Prepared clips on the disk.
pub struct MelClips {
    index: Arc<ClipIndex>,
    /// Which of them.
    chosen: Vec<u32>,
    frames: Vec<u32>,
    seed: u64,
}

impl MelClips {
    /// Draws per clip of a validation: enough that a small set of clips gives a steady number.
    pub const ROUNDS: u32 = 4;

    /// Returns those clips of an index, in this order; `seed` is that of their draws in training.
    pub fn new(index: Arc<ClipIndex>, chosen: &[usize], seed: u64) -> MelClips {
        let frames = chosen.iter().map(|&i| index.frames()[i]).collect();
        MelClips { index, chosen: chosen.iter().map(|&i| i as u32).collect(), frames, seed }
    }

    fn place(&self, of: &Use) -> usize {
        self.chosen[of.clip] as usize
    }

    /// Draws for one use of a clip. In a validation conditions are never dropped, and the flow times of a clip are spread
    /// evenly over 0..1.
    fn draw(&self, of: &Use) -> Draw {
        let id = sample_id(self.index.name(self.place(of)));
        let frames = self.frames[of.clip] as usize;
        match of.when {
            When::Epoch(epoch) => draw::draw(clip_key(self.seed, epoch.into(), id), frames),
            When::Round(round) => {
                let key = clip_key(VALIDATION_SEED, VALIDATION - u64::from(round), id);
                let d = draw::draw(key, frames);
                let time = (round as f32 + d.time) / Self::ROUNDS as f32;
                Draw { time, drop_audio: false, drop_text: false, ..d }
            }
        }
    }
}

impl Clips for MelClips {
    fn rows(&self) -> &[u32] {
        &self.frames
    }

    fn rounds(&self) -> u32 {
        Self::ROUNDS
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        let scored = |of: &Use| {
            let d = self.draw(of);
            d.span.1 - d.span.0
        };
        Ok(one_norm(batch::norm(uses.iter().map(scored).sum())))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let load = |of: &Use| {
            let clip = load_clip(&self.index.path(self.place(of)))?;
            let text: Vec<i32> = clip.ids.iter().map(|id| *id as i32).collect();
            Ok((clip.mel, text, self.draw(of)))
        };
        let loaded = uses.iter().map(load).collect::<Result<Vec<_>, DataError>>()?;
        let clips: Vec<Clip<'_>> = loaded
            .iter()
            .map(|(mel, text, draw)| Clip { mel, text, draw: *draw, noise: None, span: None })
            .collect();
        batch::fill(batch, &clips);
        Ok(())
    }
}
