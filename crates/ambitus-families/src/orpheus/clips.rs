//! Orpheus: sequences of token ids and their labels from prepared files. Nothing is drawn.

use crate::clips::{Clips, Use};
use ambitus_data::speech::{TokenClip, load_token_clip};
use ambitus_data::{ClipIndex, DataError};
use ambitus_models::orpheus::batch::{self, Clip};
use ambitus_models::{Batch, Norms, one_norm};
use std::path::PathBuf;
use std::sync::Arc;

/// Prepared clips on the disk.
pub struct TokenClips {
    index: Arc<ClipIndex>,
    /// Which of them.
    chosen: Vec<u32>,
    tokens: Vec<u32>,
}

impl TokenClips {
    /// Returns those clips of an index, in this order.
    pub fn new(index: Arc<ClipIndex>, chosen: &[usize]) -> TokenClips {
        let tokens = chosen.iter().map(|&i| index.frames()[i]).collect();
        TokenClips { index, chosen: chosen.iter().map(|&i| i as u32).collect(), tokens }
    }

    fn path(&self, of: &Use) -> PathBuf {
        self.index.path(self.chosen[of.clip] as usize)
    }

    fn load(&self, uses: &[Use]) -> Result<Vec<TokenClip>, DataError> {
        uses.iter().map(|of| load_token_clip(&self.path(of))).collect()
    }
}

impl Clips for TokenClips {
    fn rows(&self) -> &[u32] {
        &self.tokens
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        // One clip at a time: an update may have more of them than fit into memory.
        let scored = |of: &Use| Ok(load_token_clip(&self.path(of))?.scored());
        Ok(one_norm(batch::norm(uses.iter().map(scored).sum::<Result<usize, DataError>>()?)))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let loaded = self.load(uses)?;
        let clips: Vec<Clip<'_>> =
            loaded.iter().map(|clip| Clip { ids: &clip.ids, labels: &clip.labels }).collect();
        batch::fill(batch, &clips);
        Ok(())
    }
}
