//! Clips of a batch file: `clips.i.phoneme_ids` i64 `[P]`, `clips.i.spec` f32 `[T, bins]`, `clips.i.wave` f32 `[hop T]`, `clips.i.noise_q` f32
//! `[T, inter]`, `clips.i.noise_dp` f32 `[P, 2]` where durations are a flow, `clips.i.slice` i64 `[1]`, and perhaps `clips.i.speaker` i64 `[1]`.

use crate::clips::{Clips, Use};
use crate::error::RunError;
use crate::recorded::BatchFile;
use ambitus_data::DataError;
use ambitus_models::piper::batch::{self, Clip, Sound};
use ambitus_models::piper::config::{Config, Durations};
use ambitus_models::{Batch, Norms};
use std::path::Path;

/// A clip as it was given.
struct Given {
    phonemes: Vec<u32>,
    slice: usize,
    speaker: u32,
    spec: Vec<f32>,
    /// Of the slice.
    real: Vec<f32>,
    noise: Vec<f32>,
    duration_noise: Vec<f32>,
    frames: usize,
}

impl Given {
    /// Nothing more is drawn for it: it has no key.
    fn clip(&self) -> Clip<'_> {
        Clip {
            phonemes: &self.phonemes,
            frames: self.frames,
            slice: self.slice,
            speaker: self.speaker,
            key: [0, 0],
        }
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

    fn context(&self) -> u32 {
        self.clips.iter().map(|clip| clip.phonemes.len() as u32).max().unwrap_or(0)
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        Ok(batch::norms(uses.iter().map(|u| self.clips[u.clip].clip())))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let clips: Vec<Clip<'_>> = uses.iter().map(|u| self.clips[u.clip].clip()).collect();
        batch::fill(&self.config, batch, &clips);
        for (s, of) in uses.iter().enumerate() {
            let Given { spec, real, noise, duration_noise, .. } = &self.clips[of.clip];
            batch::put(&self.config, batch, s, &Sound { spec, real, noise, duration_noise });
        }
        Ok(())
    }
}

/// Reads and checks the clips of a file.
pub(super) fn read(path: &Path, config: &Config) -> Result<Recorded, RunError> {
    let mut file = BatchFile::open(path)?;
    let mut given = Recorded { config: config.clone(), clips: Vec::new(), rows: Vec::new() };
    for i in 0..file.clips("phoneme_ids")? {
        let clip = clip(&mut file, i, config)?;
        given.rows.push(clip.frames as u32);
        given.clips.push(clip);
    }
    Ok(given)
}

fn clip(file: &mut BatchFile<'_>, i: usize, config: &Config) -> Result<Given, RunError> {
    let name = |leaf: &str| format!("clips.{i}.{leaf}");
    let (phonemes, _) = file.ids::<u32>(i, "phoneme_ids", &["ids"])?;
    let (bins, hop) = (config.spectra.bins(), config.spectra.hop);
    let frames = match file.shape(&name("spec"))?[..] {
        [frames, b] if b == bins && frames <= u32::MAX as usize => frames,
        ref shape => return Err(file.bad(&name("spec"), format!("is {shape:?}, not [frames, {bins}]"))),
    };
    let slice = one(file, i, "slice")? as usize;
    let speaker = if file.contains(&name("speaker")) { one(file, i, "speaker")? } else { 0 };
    let mut given = Given {
        phonemes,
        slice,
        speaker,
        spec: Vec::new(),
        real: Vec::new(),
        noise: Vec::new(),
        duration_noise: Vec::new(),
        frames,
    };
    given.clip().check(config).map_err(|why| file.bad(&format!("clips.{i}"), why))?;
    given.spec = file.floats(&name("spec"), frames * bins)?;
    let wave = file.floats(&name("wave"), frames * hop)?;
    given.real = wave[slice * hop..][..config.slice()].to_vec();
    given.noise = file.floats(&name("noise_q"), frames * config.inter)?;
    if matches!(config.durations, Durations::Stochastic { .. }) {
        given.duration_noise = file.floats(&name("noise_dp"), 2 * given.phonemes.len())?;
    }
    Ok(given)
}

/// Returns the number of a tensor that has one.
fn one(file: &mut BatchFile<'_>, i: usize, leaf: &str) -> Result<u32, RunError> {
    let (all, _) = file.ids::<u32>(i, leaf, &["1"])?;
    match all[..] {
        [one] => Ok(one),
        _ => Err(file.bad(&format!("clips.{i}.{leaf}"), format!("is [{}], not [1]", all.len()))),
    }
}
