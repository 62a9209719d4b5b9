//! A clip's sound: loudness, clipping, offset, noise, and what is at its ends.

use super::pitch::{Pitch, Pitches};
use super::robust::quantile;
use super::{Issue, Kind, doubles};
use crate::audio::{AudioInput, AudioReader, AudioStats};
use crate::cut::Heard;
use crate::cut::activity::{self, Frame, SECONDS};
use crate::error::DataError;
use crate::loudness::Loudness;

/// Share of samples in runs at the peak that is clipping, and a run that is alone.
const CLIPPED: (f64, u32) = (1e-4, 8);
/// Samples at this share of the largest are at the peak.
const AT_PEAK: f32 = 0.999;
/// Below this peak, samples of 16 bits are coarse enough to be equal at the top of a vowel.
const COARSE: f32 = 0.1;
/// Largest mean of the samples.
const OFFSET: f64 = 0.01;
/// Speech over noise, dB.
const NOISY: f64 = 20.0;
/// Score from which somebody speaks, and below which nobody does.
const SCORES: (f32, f32) = (0.5, 0.3);
/// Frames without speech that are enough to know the noise.
const QUIET_FRAMES: usize = 5;
/// Longest silence at an end, seconds.
const SILENCE: f64 = 0.6;
/// What is at an end and this close to the middle level of the speech is speech, dB.
const CUT: f64 = 15.0;
/// It is as much over the noise, dB.
const OVER_NOISE: f64 = 10.0;
/// Level of digital silence, dB.
const FLOOR: f64 = -120.0;
/// Most columns of an outline.
const COLUMNS: usize = 160;

/// What was measured of a clip.
#[derive(Clone, Debug)]
pub(super) struct Sound {
    pub(super) seconds: f64,
    /// LUFS; below 400 ms the level of all samples, dB.
    pub(super) loudness: f64,
    /// Seconds in which somebody speaks.
    pub(super) speech: f64,
    /// Of the levels of speech, from the 10th to the 95th percentile, dB.
    pub(super) energy: Option<f64>,
    /// dB.
    pub(super) noise: Option<f64>,
    /// Of speech, where enough of it has one.
    pub(super) pitch: Option<Pitch>,
    /// Of all samples.
    pub(super) hash: [u8; 32],
    /// Of what is heard; none where nobody speaks.
    pub(super) print: Option<u64>,
    /// See [`Clip::outline`](super::Clip::outline).
    pub(super) outline: Vec<u8>,
}

/// Measures a clip, and says what is wrong with it alone. `go_on` is asked now and then.
pub(super) fn measure(
    input: &AudioInput,
    go_on: &dyn Fn() -> bool,
) -> Result<(Sound, Vec<Issue>), DataError> {
    let Read { heard, levels, loudness, hash, print, pitches, mut issues } = read(input, go_on)?;
    let frames = activity::listen(input, &heard, &|_| go_on())?;
    let outline = outline(&levels);
    let levels = &levels[..levels.len().min(frames.len())];
    let speaks: Vec<bool> = frames.iter().map(|frame| frame.score() >= SCORES.0).collect();
    let of = |speech: bool| levels.iter().zip(&speaks).filter(move |(_, s)| **s == speech).map(|(l, _)| *l);
    let spoken: Vec<f64> = of(true).map(decibels).collect();
    let seconds = heard.seconds();
    let mut sound = Sound {
        seconds,
        loudness,
        speech: spoken.len() as f64 * SECONDS,
        energy: None,
        noise: None,
        pitch: None,
        hash,
        print: (!spoken.is_empty()).then_some(print),
        outline,
    };
    let (Some(middle), Some(first)) = (quantile(&spoken, 0.5), speaks.iter().position(|s| *s)) else {
        issues.push(Issue::new(Kind::Silence, "nobody is heard to speak in it"));
        return Ok((sound, issues));
    };
    let after = speaks.iter().rev().position(|s| *s).unwrap_or_default();
    sound.energy = quantile(&spoken, 0.95).zip(quantile(&spoken, 0.1)).map(|(high, low)| high - low);
    let voiced = pitches.iter().zip(&speaks).filter(|(hertz, speaks)| **speaks && **hertz > 0.0);
    sound.pitch = Pitch::of(&voiced.map(|(hertz, _)| f64::from(*hertz)).collect::<Vec<_>>());
    let floor = noise(levels, &frames);
    let speech = of(true).sum::<f64>() / spoken.len() as f64;
    let over = |noise: f64| 10.0 * ((speech - noise).max(1e-12) / noise.max(1e-12)).log10();
    let (over, how) = match floor {
        Some(noise) => (over(noise), "speech over what is heard in its pauses"),
        None => {
            let all: Vec<f64> = levels.iter().copied().map(decibels).collect();
            let range = quantile(&all, 0.95).zip(quantile(&all, 0.05)).map_or(f64::INFINITY, |(a, b)| a - b);
            (range, "from its softest to its loudest moments; it has no pause")
        }
    };
    sound.noise = Some(over);
    if over < NOISY {
        issues.push(Issue::new(Kind::Noisy, format!("{over:.0} dB {how}")));
    }
    // Without a pause, the softest moments are as loud as the noise at most.
    let noise = floor.or_else(|| quantile(levels, 0.05)).map_or(FLOOR, decibels);
    for (kind, end, at, frame) in [
        (Kind::CutStart, "begins", first as f64 * SECONDS, levels.first()),
        (Kind::CutEnd, "ends", after as f64 * SECONDS, levels.last()),
    ] {
        let level = frame.copied().map_or(FLOOR, decibels);
        if level > middle - CUT && level > noise + OVER_NOISE {
            let says =
                format!("{end} within speech: its last 16 ms are {:.0} dB below its speech", middle - level);
            issues
                .push(Issue::new(kind, says.replace("last", if end == "begins" { "first" } else { "last" })));
        } else if at > SILENCE {
            issues.push(Issue::new(Kind::Silence, format!("{end} with {at:.1} s of silence")));
        }
    }
    Ok((sound, issues))
}

/// What the first look at a clip found.
struct Read {
    heard: Heard,
    /// Mean squares of 16 ms each.
    levels: Vec<f64>,
    loudness: f64,
    hash: [u8; 32],
    print: u64,
    pitches: Vec<f32>,
    issues: Vec<Issue>,
}

fn read(input: &AudioInput, go_on: &dyn Fn() -> bool) -> Result<Read, DataError> {
    let mut reader = AudioReader::read(input.clone())?;
    let rate = reader.info().rate;
    let mut loudness = Loudness::new(rate);
    let (mut hash, mut print) = (blake3::Hasher::new(), doubles::Print::new(rate));
    let mut pitches = Pitches::new(rate);
    let (mut levels, mut runs) = (Levels::new(rate), Runs::default());
    let (mut sum, mut squares) = (0.0, 0.0);
    hash.update(&rate.to_le_bytes());
    while let Some(chunk) = reader.next_chunk()? {
        print.push(chunk);
        pitches.push(chunk);
        for &x in chunk {
            hash.update(&x.to_le_bytes());
            let wide = f64::from(x);
            sum += wide;
            squares += wide * wide;
            loudness.push(wide);
            levels.push(wide);
            runs.push(x);
        }
        if !go_on() {
            return Err(DataError::Stopped);
        }
    }
    let stats = reader.stats();
    let n = stats.frames.max(1) as f64;
    let mut issues = clipping(&runs, &stats, f64::from(rate)).into_iter().collect::<Vec<_>>();
    let offset = sum / n;
    if offset.abs() > OFFSET {
        issues.push(Issue::new(
            Kind::Dc,
            format!("its samples are around {offset:.3} of full scale, not zero"),
        ));
    }
    // Shorter than one block of the standard it has no loudness.
    let gated = loudness.integrated();
    Ok(Read {
        heard: Heard { rate, samples: stats.frames, peak: stats.peak },
        levels: levels.done,
        loudness: gated.unwrap_or_else(|| decibels(squares / n)),
        hash: *hash.finalize().as_bytes(),
        print: print.finish(),
        pitches: pitches.finish(),
        issues,
    })
}

fn clipping(runs: &Runs, stats: &AudioStats, rate: f64) -> Option<Issue> {
    let n = stats.frames.max(1) as f64;
    // Of channels that are not alike, only those are seen in the mean that clip alike.
    let full = stats.clipped_runs * u64::from(AudioStats::CLIP_RUN);
    let share = runs.samples.max(full) as f64 / n;
    let own = runs.peak >= COARSE && (runs.samples as f64 / n > CLIPPED.0 || runs.longest >= CLIPPED.1);
    (own || full as f64 / n > CLIPPED.0).then(|| {
        let longest = 1000.0 * f64::from(runs.longest) / rate;
        let says = format!(
            "{:.2} % of its samples are cut off at {:.2} of full scale, for up to {longest:.1} ms",
            100.0 * share,
            stats.peak
        );
        Issue::new(Kind::Clipped, says)
    })
}

/// Returns the mean square of what is heard where nobody speaks.
fn noise(levels: &[f64], frames: &[Frame]) -> Option<f64> {
    let quiet = levels.iter().zip(frames).filter(|(_, frame)| frame.score() < SCORES.1);
    let quiet: Vec<f64> = quiet.map(|(level, _)| *level).collect();
    if quiet.len() < QUIET_FRAMES { None } else { quantile(&quiet, 0.5) }
}

/// Returns the loudest of each of at most [`COLUMNS`] stretches, of the loudest of all.
fn outline(levels: &[f64]) -> Vec<u8> {
    let most = levels.iter().copied().fold(0.0, f64::max);
    let columns = levels.len().min(COLUMNS);
    let stretch = |i: usize| &levels[i * levels.len() / columns..(i + 1) * levels.len() / columns];
    let loudest = |i| stretch(i).iter().copied().fold(0.0, f64::max);
    (0..columns).map(|i| (255.0 * (loudest(i) / most.max(1e-12)).sqrt()).round() as u8).collect()
}

fn decibels(square: f64) -> f64 {
    10.0 * (square + 1e-12).log10()
}

/// Mean squares around the mean of stretches as long as the frames of [`activity`], at any rate.
struct Levels {
    rate: f64,
    done: Vec<f64>,
    sum: f64,
    squares: f64,
    samples: u64,
    begun: u64,
}

impl Levels {
    fn new(rate: u32) -> Self {
        Self { rate: f64::from(rate), done: Vec::new(), sum: 0.0, squares: 0.0, samples: 0, begun: 0 }
    }

    fn push(&mut self, x: f64) {
        self.sum += x;
        self.squares += x * x;
        self.samples += 1;
        if self.samples as f64 >= (self.done.len() + 1) as f64 * SECONDS * self.rate {
            let n = (self.samples - self.begun) as f64;
            self.done.push((self.squares / n - (self.sum / n).powi(2)).max(0.0));
            (self.sum, self.squares, self.begun) = (0.0, 0.0, self.samples);
        }
    }
}

/// Runs of at least [`AudioStats::CLIP_RUN`] equal samples at the peak, which is not known before the end: a larger one begins anew.
#[derive(Default)]
struct Runs {
    peak: f32,
    samples: u64,
    longest: u32,
    last: f32,
    run: u32,
}

impl Runs {
    fn push(&mut self, x: f32) {
        let size = x.abs();
        if size * AT_PEAK > self.peak {
            *self = Self { peak: size, ..Self::default() };
        }
        self.peak = self.peak.max(size);
        if size > 0.0 && size >= AT_PEAK * self.peak {
            self.run = if x.to_bits() == self.last.to_bits() { self.run + 1 } else { 1 };
            match self.run {
                run if run < AudioStats::CLIP_RUN => {}
                AudioStats::CLIP_RUN => self.samples += u64::from(AudioStats::CLIP_RUN),
                _ => self.samples += 1,
            }
            if self.run >= AudioStats::CLIP_RUN {
                self.longest = self.longest.max(self.run);
            }
        } else {
            self.run = 0;
        }
        self.last = x;
    }
}
