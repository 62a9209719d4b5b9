//! Orpheus' clips of a batch file: `clips.i.input_ids` i64 `[T]`, `clips.i.labels` i64 `[T]` (not shifted, -100 not scored).

use crate::clips::{Clips, Use};
use crate::error::RunError;
use crate::recorded::BatchFile;
use ambitus_data::DataError;
use ambitus_models::orpheus::batch::{self, Clip};
use ambitus_models::orpheus::config::Config;
use ambitus_models::{Batch, Norms, one_norm};
use std::path::Path;

/// The clips of a batch file.
pub struct Given {
    clips: Vec<(Vec<u32>, Vec<i32>)>,
    rows: Vec<u32>,
}

impl Given {
    fn clip(&self, i: usize) -> Clip<'_> {
        let (ids, labels) = &self.clips[i];
        Clip { ids, labels }
    }
}

impl Clips for Given {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        Ok(one_norm(batch::norm(uses.iter().map(|u| self.clip(u.clip).scored()).sum())))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let clips: Vec<Clip<'_>> = uses.iter().map(|u| self.clip(u.clip)).collect();
        batch::fill(batch, &clips);
        Ok(())
    }
}

/// Reads and checks the clips of a file.
pub fn read(path: &Path, cfg: &Config) -> Result<Given, RunError> {
    let mut file = BatchFile::open(path)?;
    let mut given = Given { clips: Vec::new(), rows: Vec::new() };
    for i in 0..file.clips("input_ids")? {
        let (ids, _) = file.ids(i, "input_ids", &["tokens"])?;
        let (labels, _) = file.ids(i, "labels", &["tokens"])?;
        given.clips.push((ids, labels));
        let clip = given.clip(i);
        clip.check(cfg.vocab).map_err(|why| file.bad(&format!("clips.{i}"), why))?;
        given.rows.push(clip.tokens() as u32);
    }
    if (0..given.clips.len()).all(|i| given.clip(i).scored() == 0) {
        return Err(RunError::Usage(format!(
            "{}: no token is scored: all labels after the first of each clip are -100",
            path.display()
        )));
    }
    Ok(given)
}
