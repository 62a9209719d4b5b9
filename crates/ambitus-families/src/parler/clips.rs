//! Parler-TTS: codes, prompts and states of descriptions from prepared files; which draw of the states, and keys of dropout, follow from
//! each use.

use super::keys::Keys;
use crate::clips::{Clips, Use, When, sample_id};
use ambitus_data::codes::{CodeClip, load_code_clip, load_states};
use ambitus_data::{ClipIndex, DataError};
use ambitus_ir::ops::random::philox4x32_10;
use ambitus_models::parler::batch::{self, Clip};
use ambitus_models::parler::config::Config;
use ambitus_models::{Batch, Norms, clip_key, one_norm};
use std::sync::Arc;

/// Stream of the generator for draws of states: masks have others.
const DRAWS: u32 = 7;

/// Prepared clips on the disk.
pub(super) struct CodeClips {
    index: Arc<ClipIndex>,
    /// Which of them.
    chosen: Vec<u32>,
    rows: Vec<u32>,
    seed: u64,
    config: Config,
    /// Clips that the script pads to one length, where a loss is divided as there.
    padded: Option<usize>,
    /// Draws of a description's states.
    draws: usize,
}

impl CodeClips {
    /// Returns those clips of an index, in this order; `seed` is that of their draws in training.
    pub fn new(
        index: Arc<ClipIndex>,
        chosen: &[usize],
        seed: u64,
        (config, keys): (Config, &Keys),
    ) -> CodeClips {
        let rows = chosen.iter().map(|&i| index.frames()[i]).collect();
        let chosen = chosen.iter().map(|&i| i as u32).collect();
        CodeClips { index, chosen, rows, seed, config, padded: keys.padded(), draws: keys.encoder_draws }
    }

    fn place(&self, of: &Use) -> usize {
        self.chosen[of.clip] as usize
    }

    fn load(&self, of: &Use) -> Result<CodeClip, DataError> {
        load_code_clip(&self.index.path(self.place(of)))
    }

    /// Returns which draw of its description's states a use has. A validation has those without dropout.
    fn draw(&self, of: &Use) -> Option<usize> {
        let trains = self.draws > 0 && matches!(of.when, When::Epoch(_));
        let word = || philox4x32_10([0, 0, 0, DRAWS], self.key(of))[0];
        trains.then(|| ((u64::from(word()) * self.draws as u64) >> 32) as usize)
    }

    /// Returns the key of dropout masks. A validation has none.
    fn key(&self, of: &Use) -> [u32; 2] {
        match of.when {
            When::Epoch(epoch) => {
                clip_key(self.seed, epoch.into(), sample_id(self.index.name(self.place(of))))
            }
            When::Round(_) => [0, 0],
        }
    }
}

impl Clips for CodeClips {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn context(&self) -> u32 {
        self.index.context()
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        // One clip at a time: an update may have more of them than fit into memory.
        let frames = uses.iter().map(|of| Ok(self.load(of)?.frames()));
        let mut frames = frames.collect::<Result<Vec<_>, DataError>>()?;
        // The script, too, measures a validation by what is scored.
        let trains = uses.iter().all(|of| matches!(of.when, When::Epoch(_)));
        Ok(one_norm(batch::norm(match self.padded {
            Some(together) if trains => {
                frames.sort_unstable();
                // The longest together, as transformers' sampler has them.
                let cells = |some: &[usize]| some.len() * (some[some.len() - 1] + self.config.codebooks);
                frames.rchunks(together).map(cells).sum()
            }
            Some(_) | None => frames.into_iter().map(batch::scored).sum(),
        })))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let cfg = &self.config;
        let clips = uses.iter().map(|of| self.load(of)).collect::<Result<Vec<_>, DataError>>()?;
        let laid = clips.iter().zip(uses).map(|(clip, of)| Clip {
            prompt: &clip.prompt,
            codes: &clip.codes,
            described: clip.described,
            key: self.key(of),
        });
        batch::fill(cfg, batch, &laid.collect::<Vec<_>>());
        for (i, (clip, of)) in clips.iter().zip(uses).enumerate() {
            let states = load_states(self.index.folder(), clip, self.draw(of), cfg.text_dim)?;
            batch::put_states(cfg, batch, i, &states);
        }
        Ok(())
    }
}
