//! Clips that are there twice: by their samples, by what is heard, and by their texts.

use std::collections::{BTreeMap, HashMap};

use super::{Clip, Issue, Kind};
use crate::audio::Resampler;
use crate::mel::{Front, Log, MelStream, Scale, Window};

/// Bands and stretches between whose neighbours a print compares.
const BANDS: usize = 9;
/// Rate at which is listened, Hz.
const RATE: u32 = 16_000;
/// Bits of two prints that may differ.
const FAR: u32 = 6;
/// Share by which lengths of the same sound may differ, as codecs pad.
const LONGER: f64 = 0.02;
/// Bands are about those of speech, whatever rate a copy was brought to. A row for every 1024 samples is enough of stretches that have
/// several.
const FRONT: Front = Front {
    rate: RATE,
    n_fft: 2560,
    window: Window::Hann(2560),
    hop: 1024,
    bands: BANDS,
    range: [200.0, 3400.0],
    scale: Scale::Slaney,
    slaney: true,
    power: true,
    log: Log::Base10(1e-8),
};

/// 64 bits of what is heard: for nine stretches of a clip and nine bands, whether the step from a band to the next grew or fell since the
/// stretch before (the differences of Haitsma and Kalker, "A Highly Robust Audio Fingerprinting System", 2002, over the whole clip).
/// Neither loudness, rate nor coding moves many of them.
pub(super) struct Print {
    resampler: Resampler,
    mel: MelStream,
    samples: Vec<f32>,
    rows: Vec<f32>,
}

impl Print {
    pub(super) fn new(rate: u32) -> Self {
        let (resampler, mel) = (Resampler::new(rate, RATE), MelStream::of(&FRONT));
        Self { resampler, mel, samples: Vec::new(), rows: Vec::new() }
    }

    pub(super) fn push(&mut self, chunk: &[f32]) {
        self.resampler.push(chunk, &mut self.samples);
        self.mel.push(&self.samples, &mut self.rows);
        self.samples.clear();
    }

    pub(super) fn finish(mut self) -> u64 {
        self.resampler.finish(&mut self.samples);
        // Too short for a transform there are no rows, and the print is 0.
        self.samples.resize(self.samples.len() + FRONT.n_fft, 0.0);
        self.mel.push(&self.samples, &mut self.rows);
        let rows: Vec<&[f32]> = self.rows.chunks_exact(BANDS).collect();
        if rows.is_empty() {
            return 0;
        }
        let stretch = |i: usize| {
            let from = (i * rows.len() / BANDS).min(rows.len() - 1);
            let to = ((i + 1) * rows.len() / BANDS).max(from + 1);
            let mean =
                |band: usize| rows[from..to].iter().map(|row| row[band]).sum::<f32>() / (to - from) as f32;
            std::array::from_fn::<f32, BANDS, _>(mean)
        };
        let stretches: [[f32; BANDS]; BANDS] = std::array::from_fn(stretch);
        let mut print = 0;
        for pair in stretches.windows(2) {
            for band in 1..BANDS {
                let step = |of: &[f32; BANDS]| of[band] - of[band - 1];
                print = print << 1 | u64::from(step(&pair[1]) > step(&pair[0]));
            }
        }
        print
    }
}

/// What two clips are compared by.
pub(super) struct Key {
    /// Of the clip among all.
    pub(super) clip: usize,
    /// Of the sound's samples, what is heard of it and its seconds, where it could be read.
    pub(super) sound: Option<([u8; 32], Option<u64>, f64)>,
    /// Of the text without case, spaces and punctuation; none of an empty one.
    pub(super) text: Option<[u8; 32]>,
}

/// Names clips that are there twice. Keys are in the order of clips.
pub(super) fn find(keys: &[Key], clips: &mut [Clip]) {
    let (mut sounds, mut texts) = (HashMap::<_, usize>::new(), HashMap::<_, usize>::new());
    // Of each clip the first that sounds like it.
    let mut alike = BTreeMap::<usize, (usize, &str)>::new();
    let mut heard: Vec<(f64, u64, usize)> = Vec::new();
    for (i, key) in keys.iter().enumerate() {
        if let Some((hash, print, seconds)) = key.sound {
            match sounds.get(&hash) {
                Some(first) => {
                    alike.insert(i, (*first, "the same sound as"));
                }
                None => {
                    sounds.insert(hash, i);
                    heard.extend(print.map(|print| (seconds, print, i)));
                }
            }
        }
        let Some(text) = key.text else { continue };
        match texts.get(&text) {
            Some(first) => {
                let says = format!("the same text as {}", named(&clips[keys[*first].clip]));
                clips[key.clip].issues.push(Issue::new(Kind::DoubledText, says));
            }
            None => {
                texts.insert(text, i);
            }
        }
    }
    heard.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
    for (at, (seconds, print, i)) in heard.iter().enumerate() {
        let near = heard[at + 1..].iter().take_while(|other| other.0 <= seconds * (1.0 + LONGER));
        for other in near.filter(|other| (other.1 ^ print).count_ones() <= FAR) {
            let (first, second) = (*i.min(&other.2), *i.max(&other.2));
            let of = alike.entry(second).or_insert((first, "nearly the same sound as"));
            of.0 = of.0.min(first);
        }
    }
    // Of each clip those after it with another text: which of the texts is wrong is not known.
    let mut back = BTreeMap::<usize, (usize, &str, usize)>::new();
    for (second, (first, how)) in alike {
        let (a, b) = (&keys[first], &keys[second]);
        let both = a.text != b.text;
        let but = if both { ", with another text" } else { "" };
        let says = format!("{how} {}{but}", named(&clips[a.clip]));
        clips[b.clip].issues.push(Issue::new(Kind::DoubledSound, says));
        if both {
            back.entry(first).or_insert((second, how, 0)).2 += 1;
        }
    }
    for (first, (second, how, n)) in back {
        let more = if n > 1 { format!(" and {} more", n - 1) } else { String::new() };
        let says = format!("{how} {}{more}, with another text", named(&clips[keys[second].clip]));
        clips[keys[first].clip].issues.push(Issue::new(Kind::DoubledSound, says));
    }
}

/// Returns a clip's name and place.
fn named(clip: &Clip) -> String {
    match clip.line {
        Some(line) => format!("{} ({}:{line})", clip.name, clip.file),
        None => clip.name.clone(),
    }
}
