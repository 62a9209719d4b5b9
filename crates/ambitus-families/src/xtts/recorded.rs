//! Clips of a batch file: `clips.i.text_ids` i64 `[t]`, `clips.i.codes` i64 `[n]`, `clips.i.cond_mel` f32 `[517, 80]` (frames, bands), and
//! perhaps `clips.i.prompt_codes` i64 `[2]`: codes [from, to) that are not scored.

use crate::clips::{Clips, Use};
use crate::error::RunError;
use crate::recorded::BatchFile;
use ambitus_data::DataError;
use ambitus_models::xtts::batch::{self, Clip};
use ambitus_models::xtts::config::{BANDS, Config};
use ambitus_models::{Batch, Norms};
use std::path::Path;

/// A clip as it was given.
struct Given {
    text: Vec<u32>,
    codes: Vec<u32>,
    left_out: [usize; 2],
    mel: Vec<f32>,
}

impl Given {
    /// Nothing is drawn for it: it has no key.
    fn clip(&self) -> Clip<'_> {
        Clip { text: &self.text, codes: &self.codes, left_out: self.left_out, key: [0, 0] }
    }
}

/// The clips of a batch file.
pub(super) struct Recorded {
    config: Config,
    clips: Vec<Given>,
    rows: Vec<u32>,
}

impl Clips for Recorded {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        Ok(batch::norms(uses.iter().map(|u| self.clips[u.clip].clip())))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let clips: Vec<Clip<'_>> = uses.iter().map(|u| self.clips[u.clip].clip()).collect();
        batch::fill(&self.config, batch, &clips);
        for (i, of) in uses.iter().enumerate() {
            batch::put_mel(batch, i, &self.clips[of.clip].mel);
        }
        Ok(())
    }
}

/// Reads and checks the clips of a file.
pub(super) fn read(path: &Path, config: &Config) -> Result<Recorded, RunError> {
    let mut file = BatchFile::open(path)?;
    let mut given = Recorded { config: config.clone(), clips: Vec::new(), rows: Vec::new() };
    for i in 0..file.clips("codes")? {
        let (text, _) = file.ids(i, "text_ids", &["ids"])?;
        let (codes, _) = file.ids(i, "codes", &["codes"])?;
        let (mel, frames) = mel(&mut file, i)?;
        if frames != config.frames {
            let why = format!("has {frames} frames, training reads {}", config.frames);
            return Err(file.bad(&format!("clips.{i}.cond_mel"), why));
        }
        let mut left_out = [0, 0];
        if file.contains(&format!("clips.{i}.prompt_codes")) {
            let (range, _) = file.ids::<u32>(i, "prompt_codes", &["2"])?;
            let [from, to] = range[..] else {
                let why = format!("is [{}], not [2]", range.len());
                return Err(file.bad(&format!("clips.{i}.prompt_codes"), why));
            };
            left_out = [from as usize, to as usize];
        }
        let clip = Given { text, codes, left_out, mel };
        clip.clip().check(config).map_err(|why| file.bad(&format!("clips.{i}"), why))?;
        given.rows.push(clip.clip().rows(config) as u32);
        given.clips.push(clip);
    }
    Ok(given)
}

/// Returns a clip's conditioning mel `[F, 80]`, and F.
pub(super) fn mel(file: &mut BatchFile<'_>, i: usize) -> Result<(Vec<f32>, usize), RunError> {
    let name = format!("clips.{i}.cond_mel");
    let shape = file.shape(&name)?;
    let frames = match shape[..] {
        [frames @ 1..=MOST_FRAMES, BANDS] => frames,
        _ => return Err(file.bad(&name, format!("is {shape:?}, not [frames, {BANDS}]"))),
    };
    Ok((file.floats(&name, frames * BANDS)?, frames))
}

/// Five minutes: nobody conditions on more at once.
const MOST_FRAMES: usize = 1 << 15;
