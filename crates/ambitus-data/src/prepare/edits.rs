//! What is changed about the sound of clips where that is asked for: their loudness, and silence at their ends. Files are only read.
//!
//! A file is decoded once for what is to be done, and again while it is done, so that memory holds none of its sound. Where silence is
//! trimmed, two passes come before these: for length and peak, and to hear where somebody speaks. docs/decisions/0042-levels.md says why.

use super::MAX_CLIP_SECONDS;
use crate::audio::{AudioInput, AudioReader, Resampler};
use crate::cut::{activity, pauses};
use crate::error::DataError;
use crate::loudness::Loudness;
use crate::measured::Edited;

use super::pass::Levels;

/// Loudness that can be asked for, LUFS.
pub const LOUDNESS: (f64, f64) = (-40.0, -5.0);
/// Most silence that stays at an end, seconds.
pub const MOST_SILENCE: f64 = 1.0;
/// Largest sample, that of 16 bits: what a gain may lead to.
const PEAK: f64 = 32_767.0 / 32_768.0;
/// Changes with what is made of a sound.
const SPEC: &[u8] = b"edits-v1";
/// Bytes of finding out where somebody speaks in the longest file: scores, levels, the network.
const BYTES: u64 = 1 << 20;
/// Bytes of a second whose loudness is measured: ten numbers, in a vector that grows by doubling.
const BYTES_A_SECOND: f64 = 2.0 * 8.0 * 10.0;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Edits {
    /// Loudness to which every clip is brought by one gain, LUFS, within [`LOUDNESS`]. A gain that would lead beyond full scale is as large
    /// as the peak allows.
    pub loudness: Option<f64>,
    /// Seconds of silence that stay before and after speech, at most [`MOST_SILENCE`]; what is more is left out.
    pub trim: Option<f64>,
}

impl Edits {
    /// Returns whether anything is.
    pub(crate) fn any(&self) -> bool {
        self.loudness.is_some() || self.trim.is_some()
    }

    pub(crate) fn check(&self) -> Result<(), DataError> {
        let (least, most) = LOUDNESS;
        if let Some(x) = self.loudness.filter(|x| !(least..=most).contains(x)) {
            return Err(DataError::Invalid(format!("a loudness of {x} LUFS: {least} to {most} can be made")));
        }
        match self.trim.filter(|x| !(0.0..=MOST_SILENCE).contains(x)) {
            None => Ok(()),
            Some(x) => Err(DataError::Invalid(format!("{x} s of silence at an end: 0 to {MOST_SILENCE} s"))),
        }
    }

    /// Hashes what is asked for; nothing where nothing is.
    pub(crate) fn key(&self, hash: &mut blake3::Hasher) {
        for (name, value) in [(b'l', self.loudness), (b't', self.trim)] {
            if let Some(value) = value {
                hash.update(SPEC).update(&[name]).update(&value.to_le_bytes());
            }
        }
    }

    /// Returns the bytes that finding what to do takes for files of at most so many seconds.
    pub(crate) fn bytes(&self, seconds: f64) -> u64 {
        if self.any() { BYTES + (BYTES_A_SECOND * seconds) as u64 } else { 0 }
    }

    /// Finds what is to be done with a file; the inner error says why it is outside the limits. What is longer than `most` samples is
    /// measured that far.
    pub(crate) fn find(
        &self,
        input: &AudioInput,
        rate: u32,
        most: u64,
    ) -> Result<Result<Edit, String>, DataError> {
        let mut edit = Edit { edited: Some(Edited::default()), ..Edit::NONE };
        if let Some(kept) = self.trim {
            let heard = activity::measure(input, &|_| true)?;
            let all = heard.seconds();
            if all > MAX_CLIP_SECONDS {
                return Ok(Err(format!(
                    "{all:.0} s, longer than {MAX_CLIP_SECONDS} s: `ambitus clips` cuts it"
                )));
            }
            let frames = activity::listen(input, &heard, &|_| true)?;
            let speech = pauses::speech(&frames, f64::INFINITY);
            // Where nobody is heard, nothing is known to be silence.
            let (start, end) = match (speech.first(), speech.last()) {
                (Some(first), Some(last)) => ((first.start - kept).max(0.0), (last.end + kept).min(all)),
                _ => (0.0, all),
            };
            let at = |seconds: f64| seconds * f64::from(rate);
            edit.from = at(start) as u64;
            if end < all {
                edit.until = at(end).ceil() as u64;
            }
            edit.edited = Some(Edited { trimmed: Some([start, all - end].map(hundredth)), loudness: None });
        }
        if let Some(target) = self.loudness {
            let mut sound = Stream::new(AudioReader::read(input.clone())?, rate, &edit);
            let (mut gauge, mut samples) = (Gauge::new(rate), Vec::new());
            while sound.next(&mut samples)? && sound.total <= most {
                gauge.push(&samples);
                samples.clear();
            }
            gauge.push(&samples);
            edit.level(target, &gauge);
        }
        Ok(Ok(edit))
    }
}

fn hundredth(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// What is done with a sound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Edit {
    /// The samples that stay, at the rate of what is made of them.
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) gain: f32,
    /// What is said of it.
    pub(crate) edited: Option<Edited>,
}

impl Edit {
    /// Nothing.
    pub(crate) const NONE: Edit = Edit { from: 0, until: u64::MAX, gain: 1.0, edited: None };

    /// Brings what was measured to a loudness, as far as its peak allows; what has none stays as it is.
    pub(crate) fn level(&mut self, target: f64, gauge: &Gauge) {
        let edited = self.edited.get_or_insert_default();
        let Some(before) = gauge.loudness.integrated() else { return };
        let gain = 10f64.powf((target - before) / 20.0).min(PEAK / f64::from(gauge.peak));
        self.gain = gain as f32;
        edited.loudness = Some([before, before + 20.0 * gain.log10()].map(hundredth));
    }
}

/// Loudness and peak of a sound, of all its channels.
pub(crate) struct Gauge {
    loudness: Loudness,
    peak: f32,
}

impl Gauge {
    pub(crate) fn new(rate: u32) -> Self {
        Self { loudness: Loudness::new(rate), peak: 0.0 }
    }

    pub(crate) fn push(&mut self, samples: &[f32]) {
        for x in samples {
            self.loudness.push(f64::from(*x));
            self.peak = self.peak.max(x.abs());
        }
    }

    /// Adds another channel.
    pub(crate) fn add(&mut self, channel: &Gauge) {
        self.loudness.add(&channel.loudness);
        self.peak = self.peak.max(channel.peak);
    }
}

/// A channel of a file as clips are made of it: at their rate, and edited.
pub(crate) struct Stream {
    pub(crate) reader: AudioReader,
    /// Until the end.
    resampler: Option<Resampler>,
    edit: Edit,
    /// Samples that the resampler gave.
    given: u64,
    /// Samples that stayed.
    pub(crate) total: u64,
    /// Of these, before the gain.
    pub(crate) levels: Levels,
}

impl Stream {
    pub(crate) fn new(reader: AudioReader, rate: u32, edit: &Edit) -> Self {
        let resampler = Some(Resampler::new(reader.info().rate, rate));
        Self { reader, resampler, edit: *edit, given: 0, total: 0, levels: Levels::default() }
    }

    /// Appends the next samples. Returns false with the last ones, and after them.
    pub(crate) fn next(&mut self, out: &mut Vec<f32>) -> Result<bool, DataError> {
        let Some(resampler) = &mut self.resampler else { return Ok(false) };
        let before = out.len();
        let more = match self.reader.next_chunk()? {
            Some(chunk) => {
                resampler.push(chunk, out);
                true
            }
            None => {
                if let Some(resampler) = self.resampler.take() {
                    resampler.finish(out);
                }
                false
            }
        };
        let new = (out.len() - before) as u64;
        let [from, until] =
            [self.edit.from, self.edit.until].map(|at| at.clamp(self.given, self.given + new));
        let place = |at: u64| before + (at - self.given) as usize;
        out.truncate(place(until));
        out.drain(before..place(from).min(out.len()));
        self.given += new;
        let kept = &mut out[before..];
        self.total += kept.len() as u64;
        self.levels.push(kept);
        if self.edit.gain != 1.0 {
            kept.iter_mut().for_each(|x| *x *= self.edit.gain);
        }
        Ok(more)
    }
}
