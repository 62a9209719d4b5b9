//! Orpheus: sequences of token ids and their labels from prepared files. Nothing is drawn.

use super::{Clips, Use};
use ambitus_data::speech::{TokenClip, load_token_clip};
use ambitus_data::{ClipIndex, DataError};
use ambitus_models::Batch;
use ambitus_models::orpheus::batch::{self, Clip};
use std::path::PathBuf;

/// Prepared clips on the disk.
pub struct TokenClips {
    files: Vec<PathBuf>,
    tokens: Vec<u32>,
}

impl TokenClips {
    /// Those clips of an index, in this order.
    pub fn new(index: &ClipIndex, chosen: &[usize]) -> TokenClips {
        TokenClips {
            files: chosen.iter().map(|&i| index.path(i)).collect(),
            tokens: chosen.iter().map(|&i| index.clips[i].frames).collect(),
        }
    }

    fn load(&self, uses: &[Use]) -> Result<Vec<TokenClip>, DataError> {
        uses.iter().map(|of| load_token_clip(&self.files[of.clip])).collect()
    }
}

impl Clips for TokenClips {
    fn rows(&self) -> &[u32] {
        &self.tokens
    }

    fn norm(&self, uses: &[Use]) -> Result<f32, DataError> {
        // One clip at a time: an update may have more of them than fit into memory.
        let scored = |of: &Use| Ok(load_token_clip(&self.files[of.clip])?.scored());
        Ok(batch::norm(uses.iter().map(scored).sum::<Result<usize, DataError>>()?))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let loaded = self.load(uses)?;
        let clips: Vec<Clip<'_>> =
            loaded.iter().map(|clip| Clip { ids: &clip.ids, labels: &clip.labels }).collect();
        batch::fill(batch, &clips);
        Ok(())
    }
}
