//! MusicGen: segments of the codes of prepared files, and states of their texts. Which segment, which text, whether it is dropped and the
//! key of dropout's masks follow from the use alone.

use super::keys::Keys;
use crate::clips::{Clips, Use, When, sample_id};
use ambitus_data::music::{MusicClip, load_music_clip};
use ambitus_data::{ClipIndex, DataError};
use ambitus_ir::ops::random::philox4x32_10;
use ambitus_models::musicgen::batch::{self, Clip};
use ambitus_models::musicgen::config::Config;
use ambitus_models::{Batch, Norms, clip_key};
use std::sync::Arc;

/// Stream of the generator for dropped texts: masks and noise have others.
const DROPS: u32 = 5;

/// Prepared files on the disk.
pub(super) struct MusicClips {
    index: Arc<ClipIndex>,
    /// Which of them.
    chosen: Vec<u32>,
    rows: Vec<u32>,
    /// How often each is trained on; none: all alike.
    weights: Vec<f32>,
    seed: u64,
    config: Config,
    keys: Keys,
}

/// What a use of a file reads.
struct Used {
    clip: MusicClip,
    codes: Vec<u32>,
    /// Tokens of its text; 0 where it has none, or it is dropped.
    text: usize,
    /// Which it is of those that were drawn; none is the description.
    other: Option<usize>,
    key: [u32; 2],
}

impl MusicClips {
    /// Returns those clips of an index, in this order; `seed` is that of their draws in training.
    pub fn new(
        index: Arc<ClipIndex>,
        chosen: &[usize],
        seed: u64,
        (config, keys): (Config, Keys),
    ) -> MusicClips {
        let rows = chosen.iter().map(|&i| index.frames()[i]).collect();
        let weights = chosen.iter().filter_map(|&i| index.weights().get(i).copied()).collect();
        let chosen = chosen.iter().map(|&i| i as u32).collect();
        MusicClips { index, chosen, rows, weights, seed, config, keys }
    }

    /// Returns the key of all that is drawn for a use. A validation draws nothing.
    fn key(&self, of: &Use) -> Option<[u32; 2]> {
        let name = self.index.name(self.chosen[of.clip] as usize);
        match of.when {
            When::Epoch(epoch) => Some(clip_key(self.seed, epoch.into(), sample_id(name))),
            When::Round(_) => None,
        }
    }

    fn frames(&self, of: &Use) -> usize {
        (self.rows[of.clip] as usize).saturating_sub(batch::steps(0))
    }

    fn used(&self, of: &Use) -> Result<Used, DataError> {
        let clip = load_music_clip(&self.index.path(self.chosen[of.clip] as usize))?;
        let key = self.key(of);
        let codes = clip.codes(clip.segment(self.frames(of), key))?;
        let draws = key.map(|key| philox4x32_10([0, 0, 0, DROPS], key));
        let drops = draws.is_some_and(|draws| unit(draws[0]) < self.keys.condition_dropout);
        let others = &clip.kept.others;
        let drawn = draws.filter(|_| !others.is_empty());
        let other = drawn.map(|draws| (unit(draws[1]) * others.len() as f64) as usize);
        let text = match other {
            _ if drops => 0,
            Some(other) => others[other].ids,
            None => clip.kept.plain,
        };
        Ok(Used { clip, codes, text, other, key: key.unwrap_or_default() })
    }
}

/// Returns a number in 0..1.
pub(super) fn unit(word: u32) -> f64 {
    f64::from(word) / 4_294_967_296.0
}

impl Clips for MusicClips {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn weights(&self) -> &[f32] {
        &self.weights
    }

    fn context(&self) -> u32 {
        self.index.context()
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        let frames: Vec<usize> = uses.iter().map(|of| self.frames(of)).collect();
        Ok(batch::norms(&self.config, &frames))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let cfg = &self.config;
        let used = uses.iter().map(|of| self.used(of)).collect::<Result<Vec<_>, DataError>>()?;
        let clips = used.iter().map(|u| Clip { codes: &u.codes, text: u.text, key: u.key });
        batch::fill(cfg, batch, &clips.collect::<Vec<_>>());
        for (i, used) in used.iter().enumerate().filter(|(_, used)| used.text > 0) {
            let states = used.clip.states(self.index.folder(), used.other, cfg.text_dim)?;
            batch::put_states(cfg, batch, i, &states);
        }
        Ok(())
    }
}
