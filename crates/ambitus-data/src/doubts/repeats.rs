//! Loops: a pattern that is repeated, of a sound or of the tokens that it is made of.

use super::Doubt;

/// Centres of the bands whose levels describe a frame, Hz: so wide (an octave) that no vibrato moves a harmonic out of one.
const CENTRES: [f32; BANDS] = [150.0, 300.0, 500.0, 800.0, 1300.0, 2100.0, 3400.0, 5500.0];
const BANDS: usize = 8;
/// Centre of a band over its width.
const SHARPNESS: f32 = 1.4;
/// Levels end here, dB of full scale.
const FLOOR: f32 = -70.0;
/// Frames with no band above this level say nothing: pauses are all alike.
const QUIET: f32 = -60.0;
/// Differences of bands end here, dB: a copy that lies between frames differs by more than any sounds do where it begins after silence.
const MOST: f32 = 15.0;

/// The patterns that are looked for, in frames of 10 ms: shorter ones are a tone, which is no loop.
const SHORTEST: usize = 8;
const LONGEST: usize = 500;
/// A run of frames that are like those one pattern before ends when they differ by more, dB, over some 100 ms. Copies differ by 0.1 to
/// 1, with noise of -30 dB or copies that lie between frames by up to 3; other speech by 8 and more.
const LIKE: f32 = 5.0;
/// Weight of the last frame in what they differ by.
const SMOOTH: f32 = 0.1;
/// Frames of a loop vary at least so much, dB from one to those within a pattern before it; else it is one sound, held. Pieces of speech
/// from 0.3 s on vary by 2 to 11, a vowel without vibrato by under 1.
const VARIES: f32 = 2.0;
/// And those of patterns so short, in frames, that a vibrato or tremolo (4 to 8 a second) may be one: a sung vowel varies by 3 with half
/// a tone of the one and much of the other. Of pieces of speech of 0.1 s, a quarter are within a vowel and do not vary enough either.
const TREMBLES: usize = 30;
const VARIES_SHORT: f32 = 4.0;
/// Of which what copies differ by is at most this part: 0.01 to 0.2 in loops.
const PART: f32 = 0.35;
/// Frames of a run that is a loop, at least, and as patterns: 4 copies make some 2.9, 3 phrases 1.9. "No, no, no!" makes 2.0,
/// and up to 2.6 with pauses before and after it.
const LEAST: u64 = 120;
const PATTERNS: f32 = 2.7;
const LONG_PATTERNS: f32 = 1.8;
/// A pattern that is a phrase, and not a word, in frames.
const PHRASE: usize = 150;

/// A band-pass filter, and the energy of what it let through. From the Audio EQ Cookbook.
#[derive(Clone, Copy, Default)]
struct Band {
    b: f32,
    a: [f32; 2],
    x: [f32; 2],
    y: [f32; 2],
    energy: f32,
    /// Mean of the frame before.
    before: f32,
}

impl Band {
    fn new(centre: f32, rate: f32) -> Band {
        let (sin, cos) = (std::f32::consts::TAU * centre / rate).sin_cos();
        let alpha = sin / (2.0 * SHARPNESS);
        let a = [-2.0 * cos / (1.0 + alpha), (1.0 - alpha) / (1.0 + alpha)];
        Band { b: alpha / (1.0 + alpha), a, ..Band::default() }
    }

    fn push(&mut self, x: f32) {
        let y = self.b * (x - self.x[1]) - self.a[0] * self.y[0] - self.a[1] * self.y[1];
        self.x = [x, self.x[0]];
        self.y = [y, self.y[0]];
        self.energy += y * y;
    }

    /// Returns the level of this frame and the one before, dB of full scale.
    fn end_frame(&mut self, samples: usize) -> f32 {
        let mean = std::mem::take(&mut self.energy) / samples.max(1) as f32;
        let both = (mean + std::mem::replace(&mut self.before, mean)) / 2.0;
        (10.0 * both.max(1e-12).log10()).max(FLOOR)
    }
}

/// Levels of the bands of a frame, dB of full scale.
type Levels = [f32; BANDS];

/// Frames that are like those one pattern before.
#[derive(Clone, Copy, Default)]
struct Run {
    frames: u64,
    /// Of them, those that are not quiet, and sums over these.
    sounding: u64,
    differ: f32,
    vary: f32,
}

impl Run {
    fn is_loop(&self, pattern: usize) -> bool {
        let patterns = if pattern < PHRASE { PATTERNS } else { LONG_PATTERNS };
        self.frames >= LEAST
            && self.frames as f32 >= patterns * pattern as f32
            && self.sounding * 5 >= self.frames
            && self.vary >= VARIES * self.sounding as f32
            && self.differ <= PART * self.vary
    }
}

/// What is known of a pattern of some length.
#[derive(Clone, Copy, Default)]
struct Pattern {
    /// What frames differ by from those one pattern before, dB.
    differ: f32,
    run: Run,
    /// Frames of the longest run that is a loop, and its end.
    longest: u64,
    end: u64,
    /// What it varies by, dB.
    varies: f32,
}

/// Finds loops of a sound, in pieces.
pub(super) struct Repeats {
    bands: Vec<Band>,
    samples: usize,
    frames: u64,
    /// The last [`LONGEST`] frames and this one.
    last: Vec<Levels>,
    /// By their frames.
    patterns: Vec<Pattern>,
}

impl Repeats {
    pub fn new(rate: u32) -> Repeats {
        let rate = rate as f32;
        let bands = CENTRES.iter().filter(|centre| **centre < 0.45 * rate);
        Repeats {
            bands: bands.map(|centre| Band::new(*centre, rate)).collect(),
            samples: 0,
            frames: 0,
            last: vec![[FLOOR; BANDS]; LONGEST + 1],
            patterns: vec![Pattern::default(); LONGEST + 1],
        }
    }

    pub fn push(&mut self, x: f32) {
        self.bands.iter_mut().for_each(|band| band.push(x));
        self.samples += 1;
    }

    pub fn end_frame(&mut self) {
        let mut levels = [FLOOR; BANDS];
        for (level, band) in levels.iter_mut().zip(&mut self.bands) {
            *level = band.end_frame(self.samples);
        }
        self.samples = 0;
        let (ring, now) = (self.last.len(), self.frames as usize % self.last.len());
        self.last[now] = levels;
        self.frames += 1;
        let quiet = |levels: &Levels| levels.iter().all(|level| *level < QUIET);
        let quiet_now = quiet(&levels);
        let mut sum = 0.0;
        let known = (self.frames - 1).min(LONGEST as u64) as usize;
        for (pattern, known) in self.patterns.iter_mut().enumerate().take(known + 1).skip(1) {
            let before = &self.last[(now + ring - pattern) % ring];
            let all: f32 = levels.iter().zip(before).map(|(a, b)| (a - b).abs().min(MOST)).sum();
            let differ = all / self.bands.len().max(1) as f32;
            sum += differ;
            if pattern < SHORTEST {
                continue;
            }
            if quiet_now && quiet(before) {
                known.run.frames += u64::from(known.run.frames > 0);
                continue;
            }
            known.differ += SMOOTH * (differ - known.differ);
            if known.differ > LIKE {
                known.run = Run::default();
                continue;
            }
            known.run.frames += 1;
            known.run.sounding += 1;
            known.run.differ += differ;
            known.run.vary += sum / pattern as f32;
            if known.run.frames > known.longest && known.run.is_loop(pattern) {
                (known.longest, known.end) = (known.run.frames, self.frames);
                known.varies = known.run.vary / known.run.sounding as f32;
            }
        }
    }

    /// Returns the longest loop; of patterns that explain it, the shortest.
    pub fn longest(&self) -> Option<Doubt> {
        let longest = self.patterns.iter().map(|p| p.longest).max().filter(|frames| *frames > 0)?;
        let shortest = |(_, p): &(usize, &Pattern)| p.longest > 0 && p.longest * 5 >= longest * 4;
        let (pattern, found) = self.patterns.iter().enumerate().find(shortest)?;
        if pattern < TREMBLES && found.varies < VARIES_SHORT {
            return None;
        }
        let frames = found.longest + pattern as u64;
        let seconds = |frames: u64| frames as f64 / 100.0;
        let at = seconds(found.end.saturating_sub(frames));
        Some(Doubt::Loop { at, period: seconds(pattern as u64), seconds: seconds(frames) })
    }
}

/// The longest pattern of tokens that is looked for, in frames: 5 s at 12 frames a second.
const LONGEST_CODES: usize = 64;
/// Frames that equal those one pattern before, at least, and as patterns. A pause is one frame again and again: one second of it has 11
/// that do at 12 frames a second, and in speech hardly two do.
const LEAST_CODES: usize = 16;
const CODE_PATTERNS: usize = 2;

/// A pattern of frames of tokens that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The frame that it begins with.
    pub first: usize,
    /// Frames of the pattern.
    pub period: usize,
    /// Frames of all that repeats it, the first time included.
    pub frames: usize,
}

impl Loop {
    /// Returns it as a doubt about a sound with so many frames a second.
    pub fn doubt(&self, frames_per_second: f64) -> Doubt {
        let seconds = |frames: usize| frames as f64 / frames_per_second;
        Doubt::Loop { at: seconds(self.first), period: seconds(self.period), seconds: seconds(self.frames) }
    }
}

/// Finds the longest stretch of frames of `slots` tokens each that repeats a pattern of 1 to 64 frames at least 3 times and for at least 17 frames
/// (1.4 s at 12 frames a second); of patterns that explain it, the shortest. Frames are equal when more than half of their tokens are: the
/// finest codebooks of a loop may differ.
pub fn loops(codes: &[u32], slots: usize) -> Option<Loop> {
    let frames: Vec<&[u32]> = codes.chunks_exact(slots.max(1)).collect();
    let found: Vec<Loop> = (1..=LONGEST_CODES).filter_map(|period| longest(&frames, period)).collect();
    let most = found.iter().map(|l| l.frames).max()?;
    found.into_iter().find(|l| l.frames * 5 >= most * 4)
}

/// Finds the longest loop of a pattern of `period` frames.
fn longest(frames: &[&[u32]], period: usize) -> Option<Loop> {
    let (mut run, mut found) = (0, None);
    for i in period..frames.len() {
        let equal = frames[i].iter().zip(frames[i - period]).filter(|(a, b)| a == b).count();
        run = if equal * 2 > frames[i].len() { run + 1 } else { 0 };
        let all = run + period;
        if run >= LEAST_CODES.max(CODE_PATTERNS * period) && found.is_none_or(|l: Loop| all > l.frames) {
            found = Some(Loop { first: i + 1 - all, period, frames: all });
        }
    }
    found
}
