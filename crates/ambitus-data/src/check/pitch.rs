//! How high a voice is, by YIN (de Cheveigné and Kawahara, "YIN, a fundamental frequency estimator for speech and music", 2002): the lag at
//! which a stretch differs least from itself.

use serde::Serialize;

use super::robust::quantile;
use crate::audio::Resampler;

/// Rate at which is measured, Hz: voices have their pitch far below, and between samples is interpolated.
const RATE: u32 = 8_000;
/// Samples from a stretch to the next: those of the frames in which somebody is heard to speak.
const HOP: usize = 128;
/// Samples that are compared, 25 ms as in the paper: more than a period of the lowest voice, short enough for one that glides.
const WINDOW: usize = 200;
/// Lags of 500 to 60 Hz, samples.
const LAGS: (usize, usize) = (16, 133);
/// Samples of a stretch: what is compared, what it is compared with, and one more lag for the interpolation.
const STRETCH: usize = WINDOW + LAGS.1 + 1;
/// Of these, before the middle of a frame.
const BEFORE: usize = STRETCH / 2 - HOP / 2;
/// Normalised difference up to which a stretch repeats itself. At the paper's 0.1 half of the voiced stretches have no pitch, those that
/// glide first, so that a lively voice seems flat.
const PERIODIC: f32 = 0.2;
/// Stretches with a pitch that are enough to speak of a clip's: a third of a second.
const FEWEST: usize = 20;
/// Clips that are enough to part a voice's in two, and of a part.
const CLIPS: (usize, usize) = (8, 3);
/// Two people's pitches are as far apart, semitones, and by so many deviations (Ashman, Bird and Zepf 1994; parting one bell curve in its
/// middle gives 2.7, an even spread 3.5).
const APART: (f64, f64) = (6.0, 4.0);

/// How high somebody speaks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pitch {
    /// Median, Hz.
    pub hertz: f64,
    /// How much it varies within clips, semitones: half of what lies between the 16th and 84th percentiles, a deviation where it is normal.
    pub semitones: f64,
}

impl Pitch {
    /// Returns that of a clip, from all its pitches in Hz, where these are enough.
    pub(super) fn of(hertz: &[f64]) -> Option<Pitch> {
        if hertz.len() < FEWEST {
            return None;
        }
        let high: Vec<f64> = hertz.iter().copied().map(semitones).collect();
        let [low, high] = [0.16, 0.84].map(|share| quantile(&high, share));
        Some(Pitch { hertz: quantile(hertz, 0.5)?, semitones: (high? - low?) / 2.0 })
    }

    /// Returns that of a voice, from its clips'.
    pub(super) fn of_clips(clips: &[Pitch]) -> Option<Pitch> {
        let [hertz, spread] = [|p: &Pitch| p.hertz, |p: &Pitch| p.semitones]
            .map(|of| quantile(&clips.iter().map(of).collect::<Vec<_>>(), 0.5));
        Some(Pitch { hertz: hertz?, semitones: spread? })
    }
}

fn semitones(hertz: f64) -> f64 {
    12.0 * hertz.log2()
}

/// Two groups that a voice's clips fall into.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Groups {
    /// Clips of the lower and the higher.
    pub clips: [usize; 2],
    /// Their mean pitches, Hz.
    pub hertz: [f64; 2],
}

impl Groups {
    /// Parts clips by pitch where that makes both parts most alike, and returns the parts if they are as far apart as two people.
    pub(super) fn of(clips: &[Pitch]) -> Option<Groups> {
        if clips.len() < CLIPS.0 {
            return None;
        }
        let mut all: Vec<f64> = clips.iter().map(|clip| semitones(clip.hertz)).collect();
        all.sort_by(f64::total_cmp);
        let part = |of: &[f64]| {
            let n = of.len() as f64;
            let mean = of.iter().sum::<f64>() / n;
            (mean, of.iter().map(|x| (x - mean).powi(2)).sum::<f64>())
        };
        let within = |at: usize| part(&all[..at]).1 + part(&all[at..]).1;
        let at = (CLIPS.1..=all.len() - CLIPS.1).min_by(|a, b| within(*a).total_cmp(&within(*b)))?;
        let [(low, a), (high, b)] = [part(&all[..at]), part(&all[at..])];
        let sizes = [at, all.len() - at];
        let deviation = ((a / sizes[0] as f64 + b / sizes[1] as f64) / 2.0).sqrt();
        let apart = high - low > APART.0 && high - low > APART.1 * deviation;
        apart.then(|| Groups { clips: sizes, hertz: [low, high].map(|x| 2f64.powf(x / 12.0)) })
    }
}

/// Measures the pitch of every 16 ms as samples come. Memory: 4 bytes for each.
pub(super) struct Pitches {
    resampler: Resampler,
    /// From the beginning of the next stretch on.
    held: Vec<f32>,
    hertz: Vec<f32>,
}

impl Pitches {
    pub(super) fn new(rate: u32) -> Self {
        Self { resampler: Resampler::new(rate, RATE), held: vec![0.0; BEFORE], hertz: Vec::new() }
    }

    pub(super) fn push(&mut self, chunk: &[f32]) {
        self.resampler.push(chunk, &mut self.held);
        measure(&mut self.held, &mut self.hertz);
    }

    /// Returns the pitch of every frame, Hz; 0 where nothing repeats.
    pub(super) fn finish(self) -> Vec<f32> {
        let Self { resampler, mut held, mut hertz } = self;
        resampler.finish(&mut held);
        held.resize(held.len() + STRETCH - BEFORE - HOP, 0.0);
        measure(&mut held, &mut hertz);
        hertz
    }
}

/// Measures all whole stretches, and keeps what the next one begins with.
fn measure(held: &mut Vec<f32>, hertz: &mut Vec<f32>) {
    let mut at = 0;
    while let Some(stretch) = held.get(at..at + STRETCH) {
        hertz.push(pitch(stretch).unwrap_or(0.0));
        at += HOP;
    }
    held.drain(..at);
}

/// Returns the pitch of a stretch, Hz, if it repeats itself.
fn pitch(stretch: &[f32]) -> Option<f32> {
    let (least, most) = LAGS;
    // The difference at each lag, by its mean over all lags up to there.
    let mut normal = [1.0f32; LAGS.1 + 2];
    let mut sum = 0.0;
    for (lag, normal) in normal.iter_mut().enumerate().skip(1) {
        let pairs = stretch[..WINDOW].iter().zip(&stretch[lag..]);
        let difference: f32 = pairs.map(|(a, b)| (a - b) * (a - b)).sum();
        sum += difference;
        if sum > 0.0 {
            *normal = difference * lag as f32 / sum;
        }
    }
    let mut lag = (least..=most).find(|lag| normal[*lag] < PERIODIC)?;
    while lag < most && normal[lag + 1] < normal[lag] {
        lag += 1;
    }
    // The lowest point of the parabola through three.
    let [before, here, after] = [lag - 1, lag, lag + 1].map(|lag| normal[lag]);
    let bend = before - 2.0 * here + after;
    let off = if bend > 0.0 { ((before - after) / (2.0 * bend)).clamp(-0.5, 0.5) } else { 0.0 };
    Some(RATE as f32 / (lag as f32 + off))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    /// Three harmonics of a pitch that changes from one to the other, with noise.
    fn sound(rate: u32, from: f64, to: f64, noise: f64) -> Vec<f32> {
        let n = rate as usize;
        let (mut phase, mut state) = (0.0, 1u64);
        (0..n)
            .map(|i| {
                phase += TAU * from * (to / from).powf(i as f64 / n as f64) / f64::from(rate);
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = (state >> 40) as f64 / f64::from(1u32 << 23) - 1.0;
                let voice = phase.sin() + 0.7 * (2.0 * phase).sin() + 0.4 * (3.0 * phase).sin();
                (0.2 * voice + noise * random) as f32
            })
            .collect()
    }

    fn measured(rate: u32, samples: &[f32]) -> Vec<f64> {
        let mut pitches = Pitches::new(rate);
        samples.chunks(777).for_each(|chunk| pitches.push(chunk));
        let all = pitches.finish();
        assert!((60..=65).contains(&all.len()), "{}", all.len());
        all[4..all.len() - 4].iter().map(|x| f64::from(*x)).filter(|x| *x > 0.0).collect()
    }

    #[test]
    fn tones_and_glides_have_their_pitch_and_noise_has_none() {
        for rate in [16_000, 22_050, 44_100] {
            for hertz in [65.0, 90.0, 120.5, 181.0, 233.0, 312.0, 480.0] {
                for noise in [0.0, 0.03] {
                    let all = measured(rate, &sound(rate, hertz, hertz, noise));
                    let pitch = Pitch::of(&all).expect("enough");
                    let off = semitones(pitch.hertz) - semitones(hertz);
                    assert!(all.len() > 50 && off.abs() < 0.1, "{rate}: {hertz} with {noise}: {pitch:?}");
                    assert!(pitch.semitones < 0.2, "{rate}: {hertz}: {pitch:?}");
                }
            }
            // Through an octave at an even pace: 68 % of it lie within the percentiles.
            let pitch = Pitch::of(&measured(rate, &sound(rate, 110.0, 220.0, 0.0))).expect("enough");
            assert!(
                (pitch.hertz - 155.6).abs() < 2.0 && (pitch.semitones - 4.08 * 0.9).abs() < 0.4,
                "{pitch:?}"
            );
            // The steps of noise from sample to sample, without the slow wave beside it.
            let noise = sound(rate, 1.0, 1.0, 1.0);
            let noise: Vec<f32> = noise.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(Pitch::of(&measured(rate, &noise)).is_none());
            assert!(measured(rate, &vec![0.0; rate as usize]).is_empty());
        }
        assert!(Pitches::new(44_100).finish().len() <= 1);
    }

    #[test]
    fn two_people_are_two_groups_and_one_is_not() {
        let clips = |all: &mut dyn Iterator<Item = f64>| -> Vec<Pitch> {
            all.map(|hertz| Pitch { hertz, semitones: 2.5 }).collect()
        };
        let around = |hertz: f64, n: usize| (0..n).map(move |i| hertz * (1.0 + 0.01 * (i % 7) as f64));
        let two = Groups::of(&clips(&mut around(110.0, 30).chain(around(200.0, 6)))).expect("two");
        assert_eq!(two.clips, [30, 6]);
        assert!((two.hertz[0] - 113.0).abs() < 2.0 && (two.hertz[1] - 205.0).abs() < 4.0, "{two:?}");
        for mut one in [
            Box::new(around(110.0, 40)) as Box<dyn Iterator<Item = f64>>,
            // One who speaks high and low alike, and a few odd clips.
            Box::new((0..40).map(|i| 100.0 * 2f64.powf(f64::from(i) / 40.0))),
            Box::new(around(110.0, 38).chain(around(220.0, 2))),
            Box::new(around(110.0, 3).chain(around(220.0, 3))),
        ] {
            assert_eq!(Groups::of(&clips(&mut *one)), None);
        }
    }
}
