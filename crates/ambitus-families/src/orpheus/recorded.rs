//! Orpheus' clips of a batch file: `clips.i.input_ids` i64 `[T]`, `clips.i.labels` i64 `[T]` (not shifted, -100 not scored).

use crate::clips::{Clips, Use};
use crate::error::RunError;
use crate::weights::STAGING_BYTES;
use ambitus_data::DataError;
use ambitus_models::orpheus::batch::{self, Clip};
use ambitus_models::orpheus::config::Config;
use ambitus_models::{Batch, Norms, one_norm};
use ambitus_store::TensorFile;
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
    let file = TensorFile::open(path)?;
    let bad = |name: &str, why: String| RunError::Usage(format!("{}: {name}: {why}", path.display()));
    let mut scratch = vec![0u8; STAGING_BYTES];
    let mut given = Given { clips: Vec::new(), rows: Vec::new() };
    while file.contains(&format!("clips.{}.input_ids", given.clips.len())) {
        let i = given.clips.len();
        let mut read = |leaf: &str| -> Result<Vec<i64>, RunError> {
            let name = format!("clips.{i}.{leaf}");
            let tensor = file.get(&name)?;
            if tensor.shape().len() != 1 || tensor.elements() > u32::MAX as usize {
                return Err(bad(&name, format!("is {:?}, not [tokens]", tensor.shape())));
            }
            let mut out = vec![0i64; tensor.elements()];
            file.read_i64(&name, &mut out, &mut scratch)?;
            Ok(out)
        };
        // What does not fit the narrower type is in no vocabulary.
        let ids = read("input_ids")?.iter().map(|id| u32::try_from(*id).unwrap_or(u32::MAX)).collect();
        let labels = read("labels")?.iter().map(|l| i32::try_from(*l).unwrap_or(i32::MIN)).collect();
        given.clips.push((ids, labels));
        let clip = given.clip(i);
        clip.check(cfg.vocab).map_err(|why| bad(&format!("clips.{i}"), why))?;
        given.rows.push(clip.tokens() as u32);
    }
    if given.clips.is_empty() {
        return Err(bad("clips.0.input_ids", "is missing; the batch has no clip".to_owned()));
    }
    if (0..given.clips.len()).all(|i| given.clip(i).scored() == 0) {
        return Err(RunError::Usage(format!(
            "{}: no token is scored: all labels after the first of each clip are -100",
            path.display()
        )));
    }
    Ok(given)
}
