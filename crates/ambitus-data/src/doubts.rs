//! Simple rules that doubt a generated sound: what anyone would say who hears a few seconds of it. That none of them does says nothing
//! of how well it is spoken.
//!
//! A [`Listener`] hears a sound in pieces; it keeps some 70 kB, however long that is. Thresholds stand between what healthy sounds
//! give and what planted faults do. Healthy: espeak-ng's speech, 20 sentences by 5 voices (a whisper and a creaky one among them) at 120, 175
//! and 230 words a minute and 4 sentences in other languages, 304 in all, and sung vowels. Planted: pieces of it, 0.09 to 4 s, repeated 3 to 30 times, with and without
//! noise and other loudness. Each constant says how far both are from it.

mod repeats;
#[cfg(test)]
mod tests;

pub use repeats::{Loop, loops};

use repeats::Repeats;
use std::fmt;

/// Silence from this many seconds is doubted. Pauses between sentences are under one, in speech and in what models make of it.
const SILENCE_SECONDS: f64 = 1.5;
/// How far below the loud frames (a fiftieth is louder) silence is, dB. Pauses of a recording lie 35 to 60 below them, unvoiced
/// consonants at most 30.
const SILENCE_BELOW: f64 = 35.0;
/// Below this level everything is silent, dB of full scale; the noise of 16-bit dither lies at -93.
const SILENT: i32 = -65;
/// Above this level nothing is silent: the noise of a poor recording.
const NOT_SILENT: i32 = -40;
/// A sample of this size is at full scale: 16-bit files end at 0.99997, `tanh` of codecs rarely passes it.
const FULL_SCALE: f32 = 0.999;
/// Neighbouring samples at full scale that are clipping; a sound scaled to its largest sample has one or two.
const CLIPPED_RUN: u32 = 3;
/// The share of clipped samples that is doubted. Speech that is made 6 dB too loud has 20 times as many; healthy speech has none.
const CLIPPED_SHARE: f64 = 0.000_5;
/// Up to this share of its expected length a sound is half as long: half of one that is spoken a fifth slower. By another
/// sentence of the same voice, healthy ones have 0.69 and more; by characters alone those that are spoken in haste (230 words
/// a minute, 27 characters a second) come to 0.6.
const SHORT_SHARE: f64 = 0.6;
/// From this many other sounds of a voice on, they say how fast it speaks.
const OTHERS: usize = 3;
/// Sounds of the next shorter and of the next longer texts that are asked.
const NEAREST: usize = 16;
/// From this many times its expected length on a sound is too long. By another sentence, healthy ones have 1.7 at most.
const LONG_TIMES: f64 = 2.0;
/// Seconds by which a sound must miss its expected length, beside these: a single word has pauses around it, and is stretched.
const SHORT_SECONDS: f64 = 0.4;
const LONG_SECONDS: f64 = 0.6;
/// Silence at each end that is part of a sentence's length, seconds.
const END_SECONDS: f64 = 0.25;
/// Speech, characters a second: most languages have 10 to 20. At 16 both 8 and 26 pass.
const CHARACTERS_PER_SECOND: f64 = 16.0;
/// Letters that a character of Chinese, Japanese or Korean counts as: it is a syllable.
const LETTERS_PER_CJK: f64 = 3.0;

/// Why a sound cannot be right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doubt {
    /// The model never ended it.
    Limit {
        /// Its seconds.
        seconds: f64,
    },
    /// It is about half as long as its text needs, or less.
    Short {
        /// Its seconds without silence at its ends.
        seconds: f64,
        /// What its text needs.
        expected: f64,
    },
    /// It is at least twice as long as its text needs.
    Long {
        /// Its seconds without silence at its ends.
        seconds: f64,
        /// What its text needs.
        expected: f64,
    },
    /// There is nothing in it.
    Silent {
        /// Its seconds.
        seconds: f64,
    },
    /// It is silent for long.
    Silence {
        /// Where its longest silence begins, in seconds.
        at: f64,
        /// How long that is.
        seconds: f64,
    },
    /// It is too loud, and cut off at full scale.
    Clipped {
        /// The share of its samples.
        share: f64,
    },
    /// It repeats one pattern.
    Loop {
        /// Where that begins, in seconds.
        at: f64,
        /// The pattern's seconds.
        period: f64,
        /// For how long.
        seconds: f64,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Doubt::Limit { seconds } => write!(f, "ran to its limit of {seconds:.1} s without ending"),
            Doubt::Short { seconds, expected } => {
                write!(f, "{seconds:.1} s of sound, its text needs about {expected:.1} s")
            }
            Doubt::Long { seconds, expected } => {
                let times = seconds / expected;
                write!(f, "{seconds:.1} s of sound, {times:.1} times the {expected:.1} s that its text needs")
            }
            Doubt::Silent { seconds } => write!(f, "nothing but silence ({seconds:.1} s)"),
            Doubt::Silence { at, seconds } => write!(f, "{seconds:.1} s of silence from {at:.1} s on"),
            Doubt::Clipped { share } => write!(f, "clipped: {:.1} % of it is at full scale", share * 100.0),
            Doubt::Loop { at, period, seconds } => {
                write!(f, "repeats {period:.2} s of sound for {seconds:.1} s, from {at:.1} s on")
            }
        }
    }
}

/// Returns the seconds of speech that a text needs: by `reference`, a text of the same voice and its seconds, bytes for bytes; else
/// by its characters.
pub fn expected_seconds(text: &str, reference: Option<(&str, f64)>) -> f64 {
    match reference {
        Some((said, seconds)) if !said.is_empty() && seconds > 0.0 => {
            text.len() as f64 * seconds / said.len() as f64
        }
        _ => text.chars().map(letters).sum::<f64>() / CHARACTERS_PER_SECOND,
    }
}

/// Returns which of some sounds of one voice are about half as long as the others say, or less, and not by their texts alone: of each its
/// [`sounding`](Heard::sounding) seconds and what its text needs, 0 where that is not known.
///
/// So half of a sentence is named that was spoken slowly. A sound is compared with those of texts about as long: pauses are most of a
/// word that stands alone.
pub fn beside_others(sounds: &[(f64, f64)]) -> Vec<Option<Doubt>> {
    let mut order: Vec<usize> =
        (0..sounds.len()).filter(|&i| sounds[i].0 > 0.0 && sounds[i].1 > 0.0).collect();
    order.sort_by(|&a, &b| sounds[a].1.total_cmp(&sounds[b].1));
    let mut doubts = vec![None; sounds.len()];
    for (at, &i) in order.iter().enumerate() {
        let (seconds, expected) = sounds[i];
        let near = &order[at.saturating_sub(NEAREST)..order.len().min(at + NEAREST + 1)];
        let alike = |j: usize| {
            let others = sounds[j].1;
            j != i && others <= 2.0 * expected && expected <= 2.0 * others
        };
        let mut paces: Vec<f64> =
            near.iter().filter(|&&j| alike(j)).map(|&j| sounds[j].0 / sounds[j].1).collect();
        if paces.len() < OTHERS {
            continue;
        }
        paces.sort_by(f64::total_cmp);
        let by_others = expected * (paces[(paces.len() - 1) / 2] + paces[paces.len() / 2]) / 2.0;
        if is_short(seconds, by_others) && !is_short(seconds, expected) {
            doubts[i] = Some(Doubt::Short { seconds, expected: by_others });
        }
    }
    doubts
}

fn is_short(seconds: f64, expected: f64) -> bool {
    seconds <= SHORT_SHARE * expected && seconds + SHORT_SECONDS <= expected
}

/// Returns how many letters of an alphabet a character counts as.
fn letters(c: char) -> f64 {
    match c {
        // Ideographs, kana, hangul.
        '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}'
        | '\u{20000}'..='\u{3ffff}' => LETTERS_PER_CJK,
        _ => 1.0,
    }
}

/// Levels of frames that are told apart, dB of full scale: 0 down to this.
const LOWEST: i32 = -100;

/// What was heard.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// What is wrong with it.
    pub doubts: Vec<Doubt>,
    /// Its seconds without silence at its ends.
    pub sounding: f64,
}

/// Hears a sound in pieces.
pub struct Listener {
    rate: u32,
    /// Samples of a frame: 10 ms.
    frame: usize,
    /// Of the frame that is being heard.
    heard: usize,
    energy: f64,
    /// Takes away what does not move.
    offset: Offset,
    /// How many frames have each level; first: 0 dB.
    levels: Vec<u64>,
    /// The quiet at and below each level.
    quiet: Vec<Quiet>,
    frames: u64,
    samples: u64,
    clipped: u64,
    at_full_scale: u32,
    repeats: Repeats,
}

/// Where frames are quiet, in frames.
#[derive(Clone, Copy, Default)]
struct Quiet {
    /// The present stretch.
    now: u64,
    /// The longest one, and its end.
    longest: u64,
    end: u64,
    /// The one that the sound begins with.
    first: u64,
}

/// A high-pass filter at 20 Hz.
struct Offset {
    keep: f64,
    /// The last sample, and what was let through.
    last: Option<(f64, f64)>,
}

impl Offset {
    fn next(&mut self, x: f64) -> f64 {
        let y = self.last.map_or(0.0, |(before, y)| x - before + self.keep * y);
        self.last = Some((x, y));
        y
    }
}

impl Listener {
    /// Returns a listener for mono samples at `rate` a second.
    pub fn new(rate: u32) -> Listener {
        let levels = usize::try_from(1 - LOWEST).unwrap_or_default();
        Listener {
            rate,
            frame: (rate as usize / 100).max(1),
            heard: 0,
            energy: 0.0,
            offset: Offset { keep: 1.0 - 40.0 * std::f64::consts::PI / f64::from(rate.max(400)), last: None },
            levels: vec![0; levels],
            quiet: vec![Quiet::default(); levels],
            frames: 0,
            samples: 0,
            clipped: 0,
            at_full_scale: 0,
            repeats: Repeats::new(rate),
        }
    }

    /// Hears the next samples, where 1 is full scale. What is no number counts as full scale.
    pub fn push(&mut self, samples: &[f32]) {
        for &x in samples {
            if x.abs() < FULL_SCALE {
                self.at_full_scale = 0;
            } else {
                self.at_full_scale += 1;
                self.clipped += match self.at_full_scale.cmp(&CLIPPED_RUN) {
                    std::cmp::Ordering::Less => 0,
                    std::cmp::Ordering::Equal => u64::from(CLIPPED_RUN),
                    std::cmp::Ordering::Greater => 1,
                };
            }
            let x = if x.is_finite() { f64::from(x.clamp(-1.0, 1.0)) } else { 0.0 };
            let x = self.offset.next(x);
            self.repeats.push(x as f32);
            self.energy += x * x;
            self.heard += 1;
            if self.heard == self.frame {
                self.end_frame();
            }
        }
        self.samples += samples.len() as u64;
    }

    fn end_frame(&mut self) {
        let level = 10.0 * (self.energy / self.heard as f64).max(1e-12).log10();
        let level = (-level).clamp(0.0, f64::from(-LOWEST)) as usize;
        (self.energy, self.heard) = (0.0, 0);
        self.repeats.end_frame();
        self.levels[level] += 1;
        self.frames += 1;
        for (i, quiet) in self.quiet.iter_mut().enumerate() {
            quiet.now = if level >= i { quiet.now + 1 } else { 0 };
            if quiet.now > quiet.longest {
                (quiet.longest, quiet.end) = (quiet.now, self.frames);
            }
            if quiet.now == self.frames {
                quiet.first = quiet.now;
            }
        }
    }

    /// Returns what was heard. `expected_seconds`: what its text needs; `reached_limit`: its model was stopped before it
    /// ended by itself.
    pub fn finish(mut self, expected_seconds: Option<f64>, reached_limit: bool) -> Heard {
        if self.heard > 0 {
            self.end_frame();
        }
        let seconds = self.samples as f64 / f64::from(self.rate.max(1));
        let mut doubts = Vec::new();
        if reached_limit {
            doubts.push(Doubt::Limit { seconds });
        }
        let loud = self.loud();
        if loud <= SILENT {
            doubts.push(Doubt::Silent { seconds });
            return Heard { doubts, sounding: 0.0 };
        }
        let below = (f64::from(loud) - SILENCE_BELOW).clamp(f64::from(SILENT), f64::from(NOT_SILENT));
        let quiet = self.quiet[(-below) as usize];
        let of = |frames: u64| frames as f64 * self.frame as f64 / f64::from(self.rate.max(1));
        let end = |frames: u64| (of(frames) - END_SECONDS).max(0.0);
        let sounding = seconds - end(quiet.first) - end(quiet.now);
        if let Some(expected) = expected_seconds.filter(|e| e.is_finite()) {
            if is_short(sounding, expected) {
                doubts.push(Doubt::Short { seconds: sounding, expected });
            }
            if sounding >= LONG_TIMES * expected && sounding >= expected + LONG_SECONDS {
                doubts.push(Doubt::Long { seconds: sounding, expected });
            }
        }
        if of(quiet.longest) >= SILENCE_SECONDS {
            doubts.push(Doubt::Silence { at: of(quiet.end - quiet.longest), seconds: of(quiet.longest) });
        }
        let share = self.clipped as f64 / self.samples as f64;
        if share >= CLIPPED_SHARE {
            doubts.push(Doubt::Clipped { share });
        }
        doubts.extend(self.repeats.longest());
        Heard { doubts, sounding }
    }

    /// Returns the level that a fiftieth of the frames is louder than, dB of full scale.
    fn loud(&self) -> i32 {
        let mut louder = 0;
        let level = self.levels.iter().position(|n| {
            louder += n;
            louder * 50 > self.frames
        });
        level.map_or(LOWEST, |i| -(i as i32))
    }
}
