//! Runs a voice's two programs: ids to durations, and frames to samples, a window at a time. The memory that this takes does not depend
//! on how long the sound is.

use super::inference::Scales;
use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_ir::{Program, Session};
use ambitus_models::common::codec::rows;
use ambitus_models::piper::config::{Config, Durations};
use ambitus_models::piper::model::infer;
use ambitus_models::piper::speak::{Lasting, Noise, Prior, READ, SOUND, duration_noise, windows};

/// Ids of a second of speech, about: every second one is a pad.
pub(super) const IDS_A_SECOND: f64 = 32.0;
/// Speech that takes more than this many times the seconds that its ids should, and [`SPARE`] more, is cut.
const MOST_TIMES: f64 = 4.0;
const SPARE: f64 = 2.0;

/// The programs' sizes.
#[derive(Clone, Debug)]
pub(super) struct Voice {
    config: Config,
    /// Ids of the longest sentence.
    phonemes: usize,
    /// Frames of a window.
    pub window: usize,
}

/// A sentence that is spoken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said<'a> {
    /// Ids, at least one.
    pub ids: &'a [u32],
    /// Who speaks; 0 where there is one.
    pub speaker: u32,
    /// How.
    pub scales: Scales,
    /// Of frames.
    pub noise: Noise<'a>,
    /// Of durations, `[U, 2]`.
    pub duration_noise: Noise<'a>,
    /// Frames at most.
    pub most: usize,
}

/// Returns the frames that a sentence of so many ids takes, about, and those at which it is cut.
pub(super) fn frames(config: &Config, ids: usize, scales: Scales) -> [usize; 2] {
    let seconds = ids as f64 / IDS_A_SECOND;
    let per_second = config.rows().per_second * f64::from(scales.length);
    [seconds, MOST_TIMES * seconds + SPARE].map(|seconds| (seconds * per_second).ceil() as usize)
}

impl Voice {
    /// Returns a voice that speaks sentences of up to so many ids, in windows for about as long ones.
    pub fn new(config: &Config, phonemes: usize, scales: Scales) -> Voice {
        let phonemes = phonemes.max(1);
        let [longest, _] = frames(config, phonemes, scales);
        // Few sentences are slower by a quarter; those take another window.
        Voice { window: config.window(longest + longest / 4), phonemes, config: config.clone() }
    }

    /// Builds the programs.
    pub fn programs(&self, session: &mut Session) -> Vec<Program> {
        let read = infer::read(session, &self.config, self.phonemes, READ);
        vec![read, infer::sound(session, &self.config, self.window, SOUND)]
    }

    /// Returns the windows of a sound of so many frames.
    pub fn windows(&self, frames: usize) -> usize {
        windows(frames, self.window, self.config.reach()).count()
    }

    /// Returns the bytes of the host's memory beside the arena: what is known of a sentence, and a window.
    pub fn bytes(&self) -> u64 {
        let c = &self.config;
        // Ids, noise, durations and ends; means and spreads.
        let sentence = self.phonemes * (4 + 8 + 4 + 8 + 8 * c.inter);
        (sentence + 4 * self.window * (c.inter + c.spectra.hop)) as u64
    }

    /// Speaks a sentence into `to`. `name`: see [`Speech::speak`](crate::speech::Speech::speak). Returns how long its phonemes lasted.
    ///
    /// # Errors
    /// From the executor and `to`; weights that do not give numbers.
    pub fn speak(
        &self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        said: &Said<'_>,
        to: &mut dyn FnMut(&[f32]) -> Result<(), RunError>,
    ) -> Result<Lasting, RunError> {
        let (c, n, inter) = (&self.config, said.ids.len(), self.config.inter);
        let (read, sound) = (name(READ), name(SOUND));
        self.write_text(exec, &read, said)?;
        exec.run(&read, 0)?;
        let [mut mean, mut spread] = [(); 2].map(|()| vec![0.0; self.phonemes * inter]);
        let mut lasting = vec![0.0; self.phonemes];
        let outputs = [("mean", &mut mean), ("spread", &mut spread), ("lasting", &mut lasting)];
        for (output, values) in outputs {
            exec.read_f32(&read, output, 0, values)?;
            finite(&values[..n * values.len() / self.phonemes])?;
        }
        let lasting = Lasting::of(&lasting[..n], said.scales.length, said.most);
        let prior = Prior { mean: &mean, spread: &spread };
        if c.speakers > 1 {
            exec.write_i32(&sound, "speakers", 0, &[said.speaker as i32])?;
        }
        let tables = exec.planned().program(&sound).map_or(Vec::new(), |p| rows::tables(&p.program));
        let (mut rows, mut samples) =
            (vec![0.0; self.window * inter], vec![0.0; self.window * c.spectra.hop]);
        for window in windows(lasting.frames(), self.window, c.reach()) {
            let valid = window.frames.len();
            let (now, rest) = rows.split_at_mut(valid * inter);
            prior.fill(&lasting, window.frames.start, (said.noise, said.scales.noise), now, inter);
            rest.fill(0.0);
            for table in &tables {
                exec.write_i32(&sound, &table.name(), 0, &c.fill_table(*table, self.window, valid))?;
            }
            exec.write_f32(&sound, "prior", 0, &rows)?;
            exec.run(&sound, 0)?;
            exec.read_f32(&sound, "wave", 0, &mut samples)?;
            let [from, until] =
                [window.heard.start, window.heard.end].map(|t| (t - window.frames.start) * c.spectra.hop);
            let heard = &samples[from..until];
            finite(heard)?;
            to(heard)?;
        }
        Ok(lasting)
    }

    /// Writes a sentence to the inputs of `read`.
    fn write_text(&self, exec: &mut dyn Executor, read: &str, said: &Said<'_>) -> Result<(), RunError> {
        let (c, n) = (&self.config, said.ids.len());
        let mut ids: Vec<i32> = said.ids.iter().map(|id| *id as i32).collect();
        ids.resize(self.phonemes, -1);
        exec.write_i32(read, "phonemes", 0, &ids)?;
        exec.write_i32(read, "text_segments", 0, &[0, n as i32])?;
        if c.speakers > 1 {
            exec.write_i32(read, "speakers", 0, &[said.speaker as i32])?;
        }
        if matches!(c.durations, Durations::Stochastic { .. }) {
            let (mut noise, scale) = (vec![0.0; 2 * self.phonemes], said.scales.durations);
            let of_text = &mut noise[..2 * n];
            match said.duration_noise {
                Noise::Given(given) => of_text.iter_mut().zip(given).for_each(|(to, x)| *to = x * scale),
                Noise::Drawn(key) => duration_noise(key, scale, of_text),
            }
            exec.write_f32(read, "duration_noise", 0, &noise)?;
        }
        Ok(())
    }
}

/// Refuses numbers that are none.
fn finite(values: &[f32]) -> Result<(), RunError> {
    match values.iter().all(|x| x.is_finite()) {
        true => Ok(()),
        false => Err(RunError::Model(
            "the voice gives numbers that are not finite; check its weights, or fetch them again".to_owned(),
        )),
    }
}
