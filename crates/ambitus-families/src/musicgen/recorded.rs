//! Clips of a batch file: `clips.i.text_ids` i64 `[U]`, empty without text, and `clips.i.codes` i64 `[K, T]`.

use super::folder::Folder;
use crate::clips::{Clips, Use};
use crate::error::RunError;
use crate::recorded::{BatchFile, Spare};
use crate::t5::recorded_states;
use ambitus_data::DataError;
use ambitus_models::musicgen::batch::{self, Clip};
use ambitus_models::musicgen::config::Config;
use ambitus_models::{Batch, Norms};
use std::path::Path;

/// A clip as it was given, and the states of its text.
struct Given {
    codes: Vec<u32>,
    states: Vec<f32>,
}

impl Given {
    /// Nothing is drawn for it: it has no key.
    fn clip(&self, cfg: &Config) -> Clip<'_> {
        Clip { codes: &self.codes, text: self.states.len() / cfg.text_dim, key: [0, 0] }
    }
}

/// The clips of a batch file.
pub(super) struct Recorded {
    config: Config,
    clips: Vec<Given>,
    rows: Vec<u32>,
    context: u32,
}

impl Clips for Recorded {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn context(&self) -> u32 {
        self.context
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        let frames = uses.iter().map(|u| self.clips[u.clip].clip(&self.config).frames(&self.config));
        Ok(batch::norms(&self.config, &frames.collect::<Vec<_>>()))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let clips: Vec<Clip<'_>> = uses.iter().map(|u| self.clips[u.clip].clip(&self.config)).collect();
        batch::fill(&self.config, batch, &clips);
        for (i, of) in uses.iter().enumerate() {
            batch::put_states(&self.config, batch, i, &self.clips[of.clip].states);
        }
        Ok(())
    }
}

/// Reads and checks the clips of a file, and encodes their texts with the model's own encoder.
pub(super) fn read(path: &Path, folder: &Folder, spare: Spare) -> Result<Recorded, RunError> {
    let config = &folder.config;
    let mut file = BatchFile::open(path)?;
    let n = file.clips("codes")?;
    let (states, _) = states(folder, &mut file, n, spare)?;
    let mut given = Recorded { config: config.clone(), clips: Vec::new(), rows: Vec::new(), context: 0 };
    for (i, states) in states.into_iter().enumerate() {
        let (codes, shape) = file.ids(i, "codes", &["codebooks", "frames"])?;
        if shape[0] != config.codebooks() {
            let (have, want) = (shape[0], config.codebooks());
            let why = format!("has {have} codebooks, the model {want}");
            return Err(file.bad(&format!("clips.{i}.codes"), why));
        }
        let clip = Given { codes, states };
        clip.clip(config).check(config).map_err(|why| file.bad(&format!("clips.{i}"), why))?;
        given.rows.push(clip.clip(config).steps(config) as u32);
        given.context = given.context.max(clip.clip(config).text as u32);
        given.clips.push(clip);
    }
    Ok(given)
}

/// Returns the states `[U, E]` of the texts of n clips, and the bytes that the encoder took, which is gone: it is read where there is a text.
pub(super) fn states(
    folder: &Folder,
    file: &mut BatchFile<'_>,
    n: usize,
    spare: Spare,
) -> Result<(Vec<Vec<f32>>, u64), RunError> {
    let shapes = (0..n).map(|i| file.shape(&format!("clips.{i}.text_ids")));
    let shapes = shapes.collect::<Result<Vec<_>, RunError>>()?;
    let texts = shapes.iter().any(|shape| shape.iter().product::<usize>() > 0);
    let dir = if texts { folder.text_encoder()? } else { folder.dir.clone() };
    recorded_states(&dir, file, ("text_ids", n, folder.config.text_dim), spare)
}
