//! A frozen speaker encoder: sound at 16 kHz to a direction of a few hundred numbers, on the CPU.
//!
//! Its squeezes and its attention are over the whole sound, so there are no windows: a program has the sound's length, and what the
//! longest takes ([`Encoder::bytes`]) bounds them all. It has no folder of its own: a speech model's files hold it.

#[cfg(test)]
mod tests;

use crate::codec::alone;
use crate::error::RunError;
use crate::weights::{Differences, Weights, load_frozen, say};
use ambitus_data::DataError;
use ambitus_data::mel::{self, Front, Log, Scale, Window};
use ambitus_exec::cpu::CpuExecutor;
use ambitus_exec::executor::Executor;
use ambitus_ir::Session;
use ambitus_ir::plan::PlannedSession;
use ambitus_models::speaker::config::Config;
use ambitus_models::speaker::model::{self, EMBED, planes};
use std::sync::Arc;

/// The rows that it reads, of sound whose high frequencies were raised. Every encoder has its own number of bands.
pub const FRONT: Front = Front {
    rate: 16_000,
    n_fft: 512,
    window: Window::Hamming(400),
    hop: 160,
    bands: 64,
    range: [0.0, 8000.0],
    scale: Scale::Htk,
    slaney: false,
    power: true,
    log: Log::Added(1e-6),
};
/// Of a sample, how much of the one before is taken off.
const EMPHASIS: f32 = 0.97;
/// In the root of a band's variance over time.
const EPS: f64 = 1e-5;
/// Seconds of sound at most.
pub const MOST_SECONDS: usize = 120;

/// An encoder. Only while it runs it holds an arena.
pub struct Encoder {
    config: Config,
    front: Front,
    weights: Weights,
    threads: usize,
}

impl Encoder {
    /// Finds an encoder's weights under the prefix. No weight is read.
    ///
    /// # Errors
    /// Every tensor that is missing, misshapen or too much.
    pub fn open(weights: Weights, threads: usize) -> Result<Encoder, RunError> {
        let bad = |why: String| {
            let (path, part) = (weights.path.display(), &weights.prefix);
            RunError::Model(format!("{path}: {part}: is no speaker encoder that is known here: {why}"))
        };
        let config = Config::of_tensors(|name| weights.shape_of(name)).map_err(bad)?;
        let mut session = Session::default();
        model::embed(&mut session, &config, 1);
        let unused = |name: &str| name.starts_with("torch_spec.") || name.ends_with(".num_batches_tracked");
        let all = Differences::new(&weights, &session.states, |_| false, unused);
        let misshapen = all.misshapen.into_iter();
        let misshapen =
            misshapen.map(|(name, have, want)| format!("{name} is {have:?}, the architecture says {want:?}"));
        let mut problems = Vec::new();
        say(&mut problems, "tensors missing", all.missing.into_iter().map(str::to_owned).collect());
        say(&mut problems, "tensors that the architecture does not have", all.extra);
        say(&mut problems, "tensors of another shape", misshapen.collect());
        if !problems.is_empty() {
            return Err(bad(format!("\n  {}\nfetch the model's files again", problems.join("\n  "))));
        }
        let front = Front { bands: config.bands, ..FRONT };
        Ok(Encoder { config, front, weights, threads: threads.max(1) })
    }

    /// Returns the numbers of a voice.
    pub fn width(&self) -> usize {
        self.config.width
    }

    /// Returns the bytes that sound of so many samples takes: arena, rows and their mel stream.
    pub fn bytes(&self, samples: usize) -> u64 {
        let times = self.front.frames(samples as u64) as usize;
        let rows = 8 * times * self.front.bands + 4 * samples + 64 * self.front.n_fft;
        self.planned(times).arena_bytes() + rows as u64
    }

    /// Returns the direction of a voice, of sound at 16 kHz of at most [`MOST_SECONDS`]: D numbers, of length 1.
    ///
    /// # Errors
    /// Sound that is too short or too long; weights that cannot be read or do not give numbers; the executor.
    pub fn voice(&self, sound: &[f32]) -> Result<Vec<f32>, RunError> {
        let (rate, least) = (self.front.rate as usize, self.front.min_samples());
        if !(least..=MOST_SECONDS * rate).contains(&sound.len()) {
            return Err(RunError::Data(DataError::Invalid(format!(
                "a voice's sound has {} samples at {rate} Hz; give {least} samples to {MOST_SECONDS} seconds",
                sound.len()
            ))));
        }
        let mel = rows(&self.front, sound);
        let times = mel.len() / self.front.bands;
        let mut exec = CpuExecutor::open(self.planned(times), self.threads)?;
        load_frozen(&self.weights, &mut exec)?;
        exec.write_f32(EMBED, "mel", 0, &mel)?;
        for (i, [bands, times]) in planes(&self.config, times).into_iter().enumerate() {
            let ends: Vec<i32> = (0..=bands).map(|band| (band * times) as i32).collect();
            exec.write_i32(EMBED, &format!("bands.{i}"), 0, &ends)?;
        }
        exec.run(EMBED, 0)?;
        let mut voice = vec![0.0; self.config.width];
        exec.read_f32(EMBED, "voice", 0, &mut voice)?;
        if voice.iter().any(|x| !x.is_finite()) {
            let why =
                "the speaker encoder gives numbers that are not finite; check the sound and its weights";
            return Err(RunError::Model(why.to_owned()));
        }
        Ok(voice)
    }

    fn planned(&self, times: usize) -> Arc<PlannedSession> {
        alone::planned(self.threads, |s| model::embed(s, &self.config, times))
    }
}

/// Returns the rows of a sound, each band of mean 0 and variance 1 over time, `[bands, N]`. The first sample is preceded by the second.
fn rows(front: &Front, sound: &[f32]) -> Vec<f32> {
    let before = |i: usize| sound[if i == 0 { 1 } else { i - 1 }];
    let raised: Vec<f32> = sound.iter().enumerate().map(|(i, x)| x - EMPHASIS * before(i)).collect();
    let rows = mel::rows(front, None, &raised).unwrap_or_default();
    let (bands, times) = (front.bands, rows.len() / front.bands);
    let mut out = Vec::with_capacity(rows.len());
    for band in 0..bands {
        let all = || rows[band..].iter().step_by(bands).map(|x| f64::from(*x));
        let mean = all().sum::<f64>() / times as f64;
        let variance = all().map(|x| (x - mean).powi(2)).sum::<f64>() / times as f64;
        out.extend(all().map(|x| ((x - mean) / (variance + EPS).sqrt()) as f32));
    }
    out
}
