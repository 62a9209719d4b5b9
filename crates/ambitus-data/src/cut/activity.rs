//! Where somebody speaks: a score and a level for every 16 ms of a recording.
//!
//! The score is that of the crate `earshot`, a small network over mel frames. Measured on recordings whose pauses are known
//! (docs/decisions/0038-cutting.md), it finds them in noise and under music, but says that speech ends some 100 ms late, and early
//! where a sound fades. So the level goes with it, by which edges are found more exactly where noise allows.

use earshot::Detector;

use super::Heard;
use crate::audio::{AudioInput, AudioReader, Resampler};
use crate::error::DataError;

/// Rate at which the network listens, Hz.
const RATE: u32 = 16_000;
/// Samples of a frame at that rate.
const FRAME: usize = 256;
/// Seconds of a frame.
pub(crate) const SECONDS: f64 = FRAME as f64 / RATE as f64;
/// Frames by which scores come late: the network sees the frame and the two windows before it.
const LATE: usize = 3;
/// Peak to which a recording is brought before it is listened to: the network knows speech of usual loudness. Measured: the same
/// scores from a tenth of this to twice as much, worse ones outside.
const PEAK: f32 = 0.5;
/// Below this peak there is nothing to hear but hiss: what is said so softly has 5 of its 16 bits.
const SILENT: f32 = 1e-3;
/// Levels of a recording that differ by less are those of noise alone, dB: the 5th percentile and the 95th. With speech at 10 dB over
/// white noise they differ by 8, of noise by 1.5. Brought up to the loudness of speech, noise alone scores as such.
const STEADY: f32 = 3.0;
/// Level of digital silence, dB.
const FLOOR: f32 = -110.0;

/// Two bytes for each frame: 450 kB for an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// 255 times the score.
    score: u8,
    /// Level above [`FLOOR`] in half decibels, of the differences of samples: as loud for a hiss as for a vowel.
    level: u8,
}

impl Frame {
    pub(super) fn new(score: f32, power: f32) -> Self {
        let level = 10.0 * (power + 1e-12).log10();
        Self { score: (255.0 * score) as u8, level: (2.0 * (level - FLOOR)) as u8 }
    }

    pub(crate) fn score(self) -> f32 {
        f32::from(self.score) / 255.0
    }

    /// dB.
    pub(super) fn level(self) -> f32 {
        FLOOR + f32::from(self.level) / 2.0
    }
}

/// Decodes a whole recording, which finds whatever is wrong with it, for its length and its peak.
pub(crate) fn measure(input: &AudioInput, go_on: &dyn Fn(f64) -> bool) -> Result<Heard, DataError> {
    let mut reader = AudioReader::read(input.clone())?;
    let rate = reader.info().rate;
    while reader.next_chunk()?.is_some() {
        if !go_on(reader.stats().frames as f64 / f64::from(rate)) {
            return Err(DataError::Stopped);
        }
    }
    let stats = reader.stats();
    Ok(Heard { rate, samples: stats.frames, peak: stats.peak })
}

/// Listens to a recording, from its beginning to its end. Empty where there is nothing but silence.
pub(crate) fn listen(
    input: &AudioInput,
    heard: &Heard,
    go_on: &dyn Fn(f64) -> bool,
) -> Result<Vec<Frame>, DataError> {
    if heard.peak < SILENT {
        return Ok(Vec::new());
    }
    let mut reader = AudioReader::read(input.clone())?;
    let mut resampler = Resampler::new(heard.rate, RATE);
    let mut scores = Scores::new(PEAK / heard.peak, heard.seconds());
    let mut samples = Vec::new();
    while let Some(chunk) = reader.next_chunk()? {
        resampler.push(chunk, &mut samples);
        scores.take(&mut samples);
        if !go_on(scores.frames.len() as f64 * SECONDS) {
            return Err(DataError::Stopped);
        }
    }
    resampler.finish(&mut samples);
    // What is missing of the last frame, and silence until its score has come.
    let rest = samples.len().next_multiple_of(FRAME) + LATE * FRAME;
    samples.resize(rest, 0.0);
    scores.take(&mut samples);
    let frames = scores.finish();
    let spread = percentile(&frames, 0.95) - percentile(&frames, 0.05);
    Ok(if spread < STEADY { Vec::new() } else { frames })
}

/// Returns the level that this share of frames does not exceed, dB. Not of none.
pub(super) fn percentile(frames: &[Frame], share: f64) -> f32 {
    let mut levels: Vec<f32> = frames.iter().map(|f| f.level()).collect();
    let at = ((levels.len() - 1) as f64 * share) as usize;
    *levels.select_nth_unstable_by(at, f32::total_cmp).1
}

struct Scores {
    detector: Box<Detector>,
    gain: f32,
    /// The last sample of the frame before.
    last: f32,
    frames: Vec<Frame>,
}

impl Scores {
    fn new(gain: f32, seconds: f64) -> Self {
        let frames = Vec::with_capacity((seconds / SECONDS) as usize + LATE + 2);
        Self { detector: Box::new(Detector::default()), gain, last: 0.0, frames }
    }

    /// Takes whole frames.
    fn take(&mut self, samples: &mut Vec<f32>) {
        let whole = samples.len() / FRAME * FRAME;
        for frame in samples[..whole].chunks_exact_mut(FRAME) {
            let mut power = 0.0;
            for x in &mut *frame {
                *x = (*x * self.gain).clamp(-1.0, 1.0);
                power += (*x - self.last).powi(2);
                self.last = *x;
            }
            self.frames.push(Frame::new(self.detector.predict_f32(frame), power / FRAME as f32));
        }
        samples.drain(..whole);
    }

    /// Returns frames with their own scores.
    fn finish(mut self) -> Vec<Frame> {
        let whole = self.frames.len() - LATE;
        for i in 0..whole {
            self.frames[i].score = self.frames[i + LATE].score;
        }
        self.frames.truncate(whole);
        self.frames
    }
}
