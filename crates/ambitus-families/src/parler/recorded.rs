//! Clips of a batch file: `clips.i.description_ids` i64 `[U]`, `clips.i.prompt_ids` i64 `[P]`, `clips.i.codes` i64 `[C, T]`.

use crate::clips::{Clips, Use};
use crate::error::RunError;
use crate::recorded::{BatchFile, Spare};
use crate::t5::recorded_states;
use ambitus_data::DataError;
use ambitus_models::parler::batch::{self, Clip};
use ambitus_models::parler::config::Config;
use ambitus_models::{Batch, Norms, one_norm};
use std::path::Path;

/// A clip as it was given, and the states of its description.
struct Given {
    prompt: Vec<u32>,
    codes: Vec<u32>,
    /// Tokens of the description.
    described: usize,
    states: Vec<f32>,
}

impl Given {
    /// Nothing is drawn for it: it has no key.
    fn clip(&self) -> Clip<'_> {
        Clip { prompt: &self.prompt, codes: &self.codes, described: self.described, key: [0, 0] }
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
        let scored = |u: &Use| batch::scored(self.clips[u.clip].clip().frames(&self.config));
        Ok(one_norm(batch::norm(uses.iter().map(scored).sum())))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let clips: Vec<Clip<'_>> = uses.iter().map(|u| self.clips[u.clip].clip()).collect();
        batch::fill(&self.config, batch, &clips);
        for (i, of) in uses.iter().enumerate() {
            batch::put_states(&self.config, batch, i, &self.clips[of.clip].states);
        }
        Ok(())
    }
}

/// Reads and checks the clips of a file, and encodes their descriptions with the model's own encoder.
pub(super) fn read(path: &Path, dir: &Path, config: &Config, spare: Spare) -> Result<Recorded, RunError> {
    let mut file = BatchFile::open(path)?;
    let n = file.clips("codes")?;
    let (states, _) = states((dir, config), &mut file, n, spare)?;
    let mut given = Recorded { config: config.clone(), clips: Vec::new(), rows: Vec::new(), context: 0 };
    for (i, states) in states.into_iter().enumerate() {
        let (codes, shape) = file.ids(i, "codes", &["codebooks", "frames"])?;
        if shape[0] != config.codebooks {
            let (have, want) = (shape[0], config.codebooks);
            return Err(
                file.bad(&format!("clips.{i}.codes"), format!("has {have} codebooks, the model {want}"))
            );
        }
        let (prompt, _) = file.ids(i, "prompt_ids", &["tokens"])?;
        let clip = Given { prompt, codes, described: states.len() / config.text_dim, states };
        clip.clip().check(config).map_err(|why| file.bad(&format!("clips.{i}"), why))?;
        given.rows.push(clip.clip().rows(config) as u32);
        given.context = given.context.max(clip.clip().context(config) as u32);
        given.clips.push(clip);
    }
    Ok(given)
}

/// Returns the states `[U, E]` of the descriptions of n clips, and the bytes that the encoder took, which is gone.
pub(super) fn states(
    (dir, config): (&Path, &Config),
    file: &mut BatchFile<'_>,
    n: usize,
    spare: Spare,
) -> Result<(Vec<Vec<f32>>, u64), RunError> {
    let (states, bytes) = recorded_states(dir, file, ("description_ids", n, config.text_dim), spare)?;
    match states.iter().position(Vec::is_empty) {
        Some(i) => Err(file.bad(&format!("clips.{i}.description_ids"), "is [0], not [tokens]")),
        None => Ok((states, bytes)),
    }
}
