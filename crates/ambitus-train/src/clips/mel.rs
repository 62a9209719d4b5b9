//! F5-TTS: mel frames and text from prepared files, noise, times and spans drawn for each use.

use super::{Clips, Use, When};
use ambitus_data::{ClipIndex, DataError, load_clip};
use ambitus_models::Batch;
use ambitus_models::f5::batch::{self, Clip};
use ambitus_models::f5::draw::{self, Draw};
use std::path::PathBuf;

/// Draws per clip of a validation: enough that a small set of clips gives a steady number.
const ROUNDS: u32 = 4;
/// Epoch of validation draws: none that training reaches.
const VALIDATION: u64 = u64::MAX;

/// Prepared clips on the disk.
pub struct MelClips {
    /// Stable identity for draws, and the prepared file.
    clips: Vec<(u64, PathBuf)>,
    frames: Vec<u32>,
    seed: u64,
}

impl MelClips {
    /// Those clips of an index, in this order; `seed` is that of their draws.
    pub fn new(index: &ClipIndex, chosen: &[usize], seed: u64) -> MelClips {
        MelClips {
            clips: chosen.iter().map(|&i| (sample_id(&index.clips[i].name), index.path(i))).collect(),
            frames: chosen.iter().map(|&i| index.clips[i].frames).collect(),
            seed,
        }
    }

    /// In a validation conditions are never dropped, and the flow times of a clip are spread evenly over 0..1.
    fn draw(&self, of: &Use) -> Draw {
        let key = |epoch: u64| draw::clip_key(self.seed, epoch, self.clips[of.clip].0);
        let frames = self.frames[of.clip] as usize;
        match of.when {
            When::Epoch(epoch) => draw::draw(key(epoch.into()), frames),
            When::Round(round) => {
                let d = draw::draw(key(VALIDATION - u64::from(round)), frames);
                let time = (round as f32 + d.time) / ROUNDS as f32;
                Draw { time, drop_audio: false, drop_text: false, ..d }
            }
        }
    }
}

/// Identity of a clip in random draws: independent of its place in the data.
fn sample_id(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
}

impl Clips for MelClips {
    fn rows(&self) -> &[u32] {
        &self.frames
    }

    fn rounds(&self) -> u32 {
        ROUNDS
    }

    fn norm(&self, uses: &[Use]) -> Result<f32, DataError> {
        let scored = |of: &Use| {
            let d = self.draw(of);
            d.span.1 - d.span.0
        };
        Ok(batch::norm(uses.iter().map(scored).sum()))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let load = |of: &Use| {
            let clip = load_clip(&self.clips[of.clip].1)?;
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
