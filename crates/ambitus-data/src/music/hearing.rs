//! Files of any length to codes: read piece by piece, whole or as segments that are drawn.

use std::sync::{Mutex, PoisonError};

use super::prepare::{LONGEST, MusicOptions};
use super::{Codec, Sound};
use crate::audio::{AudioInput, AudioReader};
use crate::error::DataError;
use crate::measured::Measured;
use crate::prepare::{Cause, Edit, Gauge, Made, PrepareOptions, SILENT_LEVEL, Stream};
use crate::rng::SplitMix;
use crate::sources::Entry;

/// Seconds of sound after which a pass may be stopped.
const LISTENS: u64 = 10;

/// What hears files.
pub(super) struct Hearing<'a> {
    pub(super) codec: Mutex<&'a mut dyn Codec>,
    pub(super) music: &'a MusicOptions<'a>,
    /// Frames of a segment.
    pub(super) segment: usize,
    pub(super) options: &'a PrepareOptions,
    /// Says that a file of that name is being read; returns false where the pass shall end.
    pub(super) within: &'a (dyn Fn(&str) -> bool + Sync),
}

/// What was heard of a file.
pub(super) struct Heard {
    pub(super) measured: Measured,
    /// Frames of all pieces so far, of each.
    pub(super) ends: Vec<u32>,
    /// `[T, C]`.
    pub(super) codes: Vec<u32>,
}

/// Why nothing was.
pub(super) enum Unheard {
    /// What becomes of the clip.
    Clip(Made),
    /// What ends the pass.
    Pass(DataError),
}

impl Unheard {
    /// Returns what an error of reading the sound means: of being stopped, that of the pass.
    fn of_sound(error: DataError) -> Unheard {
        match error {
            DataError::Stopped => Unheard::Pass(error),
            error => Unheard::Clip(Made::Bad((Cause::Audio, error.to_string()))),
        }
    }
}

impl Hearing<'_> {
    fn sound<'s>(
        &'s self,
        audio: &AudioInput,
        entry: &'s Entry,
        (channel, edit): (usize, &Edit),
    ) -> Result<Sounding<'s>, Unheard> {
        let mut reader = AudioReader::read(audio.clone()).map_err(Unheard::of_sound)?;
        if self.music.channels > 1 {
            reader = reader.of_channel(channel);
        }
        let rate = self.options.rate;
        Ok(Sounding {
            stream: Stream::new(reader, rate, edit),
            ended: false,
            rate,
            longest: self.music.longest,
            told: 0,
            within: self.within,
            name: &entry.name,
        })
    }

    /// Returns what is done with a file: one gain for all of its channels.
    fn edit(&self, audio: &AudioInput, entry: &Entry) -> Result<Edit, Unheard> {
        let mut edit = Edit::NONE;
        let Some(target) = self.options.edits.loudness else { return Ok(edit) };
        let mut all: Option<Gauge> = None;
        for channel in 0..self.music.channels {
            let mut sound = self.sound(audio, entry, (channel, &Edit::NONE))?;
            let mut gauge = Gauge::new(self.options.rate);
            while let Some(samples) = sound.next().map_err(Unheard::of_sound)? {
                gauge.push(&samples);
            }
            match &mut all {
                Some(all) => all.add(&gauge),
                None => all = Some(gauge),
            }
        }
        all.iter().for_each(|gauge| edit.level(target, gauge));
        Ok(edit)
    }

    /// Encodes one channel of a sound.
    fn encode(&self, entry: &Entry, sound: &mut Sound<'_>) -> Result<Vec<Vec<u32>>, Unheard> {
        let result = self.codec.lock().unwrap_or_else(PoisonError::into_inner).encode(sound);
        result.map_err(Unheard::of_sound)?.map_err(|reason| self.failed(entry, reason))
    }

    fn failed(&self, entry: &Entry, reason: String) -> Unheard {
        Unheard::Pass(DataError::Codec { clip: entry.name.clone(), reason })
    }

    /// Returns the frames of so many samples.
    fn frames(&self, samples: usize) -> usize {
        samples.div_ceil(self.music.frames.samples)
    }

    /// Appends the codes of all channels of a sound of `samples` samples, frame by frame.
    fn join(
        &self,
        entry: &Entry,
        channels: &[Vec<Vec<u32>>],
        samples: usize,
        codes: &mut Vec<u32>,
    ) -> Result<(), Unheard> {
        let frames = self.frames(samples);
        let books = self.music.frames.codebooks / self.music.channels;
        let sound =
            |layers: &Vec<Vec<u32>>| layers.len() == books && layers.iter().all(|l| l.len() == frames);
        if !channels.iter().all(sound) {
            let lengths: Vec<usize> = channels.iter().flatten().map(Vec::len).collect();
            let reason = format!(
                "codes of {lengths:?} frames, where {books} codebooks of {frames} are expected of each channel"
            );
            return Err(self.failed(entry, reason));
        }
        for t in 0..frames {
            codes.extend((0..books).flat_map(|k| channels.iter().map(move |layers| layers[k][t])));
        }
        Ok(())
    }

    /// Returns the seconds of so many samples, where a clip may have them.
    fn seconds(&self, samples: u64) -> Result<f64, Unheard> {
        let (seconds, least) = (self.options.seconds(samples), self.options.limits.min_seconds);
        if seconds < least {
            return Err(Unheard::Clip(Made::Outside(format!("{seconds:.2} s, shorter than {least} s"))));
        }
        Ok(seconds)
    }

    /// Returns what was measured of a file of so many samples, from all of its channels: it is silent where all are.
    fn measured(&self, samples: u64, channels: Vec<Sounding<'_>>, edit: &Edit) -> Result<Measured, Unheard> {
        let seconds = self.seconds(samples)?;
        let (mut energy, mut loudest, mut peak, mut clipped) = (0.0, 0.0_f64, 0.0_f32, false);
        let count = channels.len();
        for Sounding { stream: mut channel, .. } in channels {
            channel.levels.finish();
            energy += channel.levels.energy / count as f64;
            loudest = loudest.max(channel.levels.loudest);
            let stats = channel.reader.stats();
            peak = peak.max(stats.peak);
            clipped |= stats.clipped_runs > 0;
        }
        if loudest < SILENT_LEVEL {
            return Err(Unheard::Clip(Made::silent(peak)));
        }
        let rms = edit.gain * (energy / samples as f64).sqrt() as f32;
        Ok(Measured { seconds, rms, peak: edit.gain * peak, clipped, trimmed: false, edited: edit.edited })
    }

    /// Encodes all of a file.
    pub(super) fn whole(&self, audio: &AudioInput, entry: &Entry) -> Result<Heard, Unheard> {
        let (mut layers, mut sounds, mut samples) = (Vec::new(), Vec::new(), 0);
        let edit = self.edit(audio, entry)?;
        for channel in 0..self.music.channels {
            let mut sound = self.sound(audio, entry, (channel, &edit))?;
            layers.push(self.encode(entry, &mut || sound.next())?);
            samples = sound.stream.total;
            sounds.push(sound);
        }
        let measured = self.measured(samples, sounds, &edit)?;
        let mut codes = Vec::new();
        self.join(entry, &layers, samples as usize, &mut codes)?;
        Ok(Heard { measured, ends: vec![self.frames(samples as usize) as u32], codes })
    }

    /// Encodes segments of a file, each by itself. It is read once to know its length, and once for each channel.
    pub(super) fn drawn(
        &self,
        audio: &AudioInput,
        entry: &Entry,
        (count, seed): (usize, u64),
        key: &[u8; 32],
    ) -> Result<Heard, Unheard> {
        let mut sound = self.sound(audio, entry, (0, &Edit::NONE))?;
        while sound.next().map_err(Unheard::of_sound)?.is_some() {}
        self.seconds(sound.stream.total)?;
        let samples = sound.stream.total as usize;
        drop(sound);
        let edit = self.edit(audio, entry)?;
        let (frames, frame) = (self.frames(samples), self.music.frames.samples);
        let room = frames.saturating_sub(self.segment);
        let content = u64::from_le_bytes(std::array::from_fn(|i| key[i]));
        let mut rng = SplitMix::keyed("pieces", seed, content);
        let count = if room == 0 { 1 } else { count.max(1) };
        let starts = (0..count).map(|_| rng.below(room + 1) * frame);
        let ranges: Vec<_> = starts.map(|at| at..samples.min(at + self.segment * frame)).collect();
        let mut channels: Vec<Vec<Vec<Vec<u32>>>> = vec![Vec::new(); count];
        let mut sounds = Vec::new();
        for channel in 0..self.music.channels {
            let mut sound = self.sound(audio, entry, (channel, &edit))?;
            let mut pieces: Vec<_> = ranges.iter().map(|range| Vec::with_capacity(range.len())).collect();
            let mut at = 0;
            while let Some(samples) = sound.next().map_err(Unheard::of_sound)? {
                for (range, piece) in ranges.iter().zip(&mut pieces) {
                    let (from, until) = (range.start.max(at), range.end.min(at + samples.len()));
                    piece.extend_from_slice(
                        samples.get(from.saturating_sub(at)..until.saturating_sub(at)).unwrap_or(&[]),
                    );
                }
                at += samples.len();
            }
            sounds.push(sound);
            for (piece, channels) in pieces.into_iter().zip(&mut channels) {
                let mut piece = Some(piece);
                channels.push(self.encode(entry, &mut || Ok(piece.take()))?);
            }
        }
        let measured = self.measured(samples as u64, sounds, &edit)?;
        let (mut codes, mut ends) = (Vec::new(), Vec::new());
        for (range, channels) in ranges.iter().zip(&channels) {
            self.join(entry, channels, range.len(), &mut codes)?;
            ends.push((codes.len() / self.music.frames.codebooks) as u32);
        }
        Ok(Heard { measured, ends, codes })
    }
}

/// A channel of a file that is being read.
struct Sounding<'a> {
    stream: Stream,
    ended: bool,
    rate: u32,
    /// Seconds that a file may have.
    longest: f64,
    /// When it was last said how far it is, in samples.
    told: u64,
    within: &'a (dyn Fn(&str) -> bool + Sync),
    name: &'a str,
}

impl Sounding<'_> {
    /// Returns the next samples at the pass' rate.
    fn next(&mut self) -> Result<Option<Vec<f32>>, DataError> {
        if self.ended {
            return Ok(None);
        }
        let mut samples = Vec::new();
        self.ended = !self.stream.next(&mut samples)?;
        self.stream.levels.loud.clear();
        let (rate, total) = (u64::from(self.rate), self.stream.total);
        if total as f64 > self.longest * f64::from(self.rate) {
            return Err(DataError::Invalid(match self.longest < LONGEST {
                true => "longer than its header says; write it anew (sox FILE NEW.wav)".to_owned(),
                false => format!("longer than {} hours; split the file", LONGEST / 3600.0),
            }));
        }
        if total - self.told >= LISTENS * rate {
            self.told = total;
            if !(self.within)(self.name) {
                return Err(DataError::Stopped);
            }
        }
        Ok(Some(samples))
    }
}
