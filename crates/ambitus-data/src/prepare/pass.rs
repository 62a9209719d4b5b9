//! One audio file to one clip's frames, in memory bounded by the longest clip allowed. A frame is a row of a fixed width
//! for each 256 samples: of the mel, or those samples themselves.

use std::collections::VecDeque;

use super::edits::{Edit, Stream};
use super::{Policy, PrepareOptions};
use crate::audio::{AudioInput, AudioReader};
use crate::error::{AudioFault, DataError};
use crate::measured::Measured;
use crate::mel::{self, HOP, MELS, MelStream};

/// Blocks of 256 samples under this level (RMS; −50 dBFS) are silence that `cut` may remove at the ends.
const TRIM_LEVEL: f64 = 3.162e-3;
/// Silence kept before and after, of a second: a tenth, so that soft consonants stay.
const TRIM_MARGIN: u32 = 10;
/// A file whose loudest block is under this level (−60 dBFS) holds no speech.
pub(crate) const SILENT_LEVEL: f64 = 1e-3;

/// What of the audio is kept.
pub(crate) trait Framing: Default {
    /// Numbers of a frame.
    const WIDTH: usize;

    /// Returns the number of frames of `samples` samples.
    fn frames(samples: u64) -> u64;

    /// Takes samples and appends finished frames.
    fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>);

    /// Appends the rest; `Err` says how many samples there were if they are too few.
    fn finish(self, rows: &mut Vec<f32>) -> Result<(), u64>;
}

/// Log-mel frames.
#[derive(Default)]
pub(crate) struct MelFrames(MelStream);

impl Framing for MelFrames {
    const WIDTH: usize = MELS;

    fn frames(samples: u64) -> u64 {
        mel::frames(samples)
    }

    fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>) {
        self.0.push(samples, rows);
    }

    fn finish(self, rows: &mut Vec<f32>) -> Result<(), u64> {
        self.0.finish(rows).map(|_| ())
    }
}

/// The samples themselves; the last frame is filled up with zeros.
#[derive(Default)]
pub(crate) struct WaveFrames {
    samples: u64,
}

impl Framing for WaveFrames {
    const WIDTH: usize = HOP;

    fn frames(samples: u64) -> u64 {
        samples.div_ceil(HOP as u64)
    }

    fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>) {
        self.samples += samples.len() as u64;
        rows.extend_from_slice(samples);
    }

    fn finish(self, rows: &mut Vec<f32>) -> Result<(), u64> {
        if self.samples == 0 {
            return Err(0);
        }
        rows.resize(rows.len().next_multiple_of(HOP), 0.0);
        Ok(())
    }
}

/// What became of a file.
pub(super) enum Taken {
    /// Frames, each [`Framing::WIDTH`] wide.
    Clip {
        rows: Vec<f32>,
        measured: Measured,
    },
    Outside(String),
    Silent {
        peak: f32,
    },
}

pub(super) fn take<F: Framing>(input: AudioInput, options: &PrepareOptions) -> Result<Taken, DataError> {
    let name = input.name().to_owned();
    let mut reader = AudioReader::read(input.clone())?;
    let info = reader.info();
    let PrepareOptions { limits, rate, edits, .. } = options;
    let cut = options.policy == Policy::Cut;
    let too_long =
        |seconds: f64| Taken::Outside(format!("{seconds:.1} s, longer than {} s", limits.max_seconds));
    // Of what is trimmed, the file's length is not the clip's.
    if let Some(frames) = info.frames.filter(|_| !cut && edits.trim.is_none()) {
        let seconds = frames as f64 / f64::from(info.rate);
        if seconds > limits.max_seconds {
            return Ok(too_long(seconds));
        }
    }
    let max_samples = options.most_samples();
    let mut edit = Edit::NONE;
    if edits.any() {
        // One reader at a time is what memory is planned for.
        drop(reader);
        edit = match edits.find(&input, *rate, options.most_measured())? {
            Ok(edit) => edit,
            Err(reason) => return Ok(Taken::Outside(reason)),
        };
        reader = AudioReader::read(input)?;
    }
    let margin = (rate / TRIM_MARGIN).div_ceil(HOP as u32) as usize;
    let mut keeper = Keeper::new(F::WIDTH, F::frames(max_samples) as usize, cut.then_some(margin));
    let mut sound = Stream::new(reader, *rate, &edit);
    let mut stream = F::default();
    let (mut samples, mut rows) = (Vec::new(), Vec::new());
    loop {
        samples.clear();
        let more = sound.next(&mut samples)?;
        stream.push(&samples, &mut rows);
        if !more {
            break;
        }
        keeper.push(&mut rows, &mut sound.levels);
        if !cut && sound.total > max_samples {
            return Ok(Taken::Outside(format!("longer than {} s", limits.max_seconds)));
        }
    }
    let Stream { reader, mut levels, total, .. } = sound;
    levels.finish();
    let seconds = options.seconds(total);
    if seconds < limits.min_seconds {
        return Ok(Taken::Outside(format!("{seconds:.2} s, shorter than {} s", limits.min_seconds)));
    }
    stream.finish(&mut rows).map_err(|n| DataError::audio(&name, too_short(n)))?;
    keeper.push(&mut rows, &mut levels);
    let stats = reader.stats();
    if levels.loudest < SILENT_LEVEL {
        return Ok(Taken::Silent { peak: stats.peak });
    }
    let mut measured = Measured {
        seconds,
        rms: edit.gain * (levels.energy / total as f64).sqrt() as f32,
        peak: edit.gain * stats.peak,
        clipped: stats.clipped_runs > 0,
        trimmed: false,
        edited: edit.edited,
    };
    if total <= max_samples {
        return Ok(Taken::Clip { rows: keeper.whole, measured });
    }
    if !cut {
        return Ok(too_long(seconds));
    }
    match keeper.trimmed() {
        Some(rows) => {
            measured.trimmed = true;
            measured.seconds = options.seconds((rows.len() / F::WIDTH * HOP) as u64);
            if measured.seconds < limits.min_seconds {
                return Ok(Taken::Outside(format!(
                    "{seconds:.1} s, of which only {:.2} s are not silence",
                    measured.seconds
                )));
            }
            Ok(Taken::Clip { rows, measured })
        }
        None => Ok(Taken::Outside(format!(
            "{seconds:.1} s, longer than {} s even without the silence at its ends; its transcript cannot be cut with \
             it, so split the file and its text",
            limits.max_seconds
        ))),
    }
}

fn too_short(samples: u64) -> AudioFault {
    if samples == 0 { AudioFault::Empty } else { AudioFault::TooShort(samples) }
}

/// Loudness of blocks of one hop, in the order of the frames.
#[derive(Default)]
pub(crate) struct Levels {
    pub(crate) energy: f64,
    pub(crate) loudest: f64,
    block: f64,
    filled: usize,
    pub(crate) loud: VecDeque<bool>,
}

impl Levels {
    pub(crate) fn push(&mut self, samples: &[f32]) {
        for &x in samples {
            let square = f64::from(x) * f64::from(x);
            self.energy += square;
            self.block += square;
            self.filled += 1;
            if self.filled == HOP {
                self.end_block();
            }
        }
    }

    fn end_block(&mut self) {
        let level = (self.block / self.filled as f64).sqrt();
        self.loudest = self.loudest.max(level);
        self.loud.push_back(level >= TRIM_LEVEL);
        self.block = 0.0;
        self.filled = 0;
    }

    pub(crate) fn finish(&mut self) {
        if self.filled > 0 {
            self.end_block();
        }
    }
}

/// Keeps frames up to the limit: all of them, and with `cut` also those between the silences at both ends.
struct Keeper {
    width: usize,
    max: usize,
    /// With `cut`: frames of silence that are kept before and after.
    margin: Option<usize>,
    whole: Vec<f32>,
    lead: VecDeque<Vec<f32>>,
    inner: Vec<f32>,
    /// Frames of `inner` up to the last loud one; 0 before the first.
    loud_end: usize,
    overflow: bool,
}

impl Keeper {
    fn new(width: usize, max: usize, margin: Option<usize>) -> Self {
        Self {
            width,
            max,
            margin,
            whole: Vec::new(),
            lead: VecDeque::new(),
            inner: Vec::new(),
            loud_end: 0,
            overflow: false,
        }
    }

    /// Takes whole rows; a frame is finished only after the block of the same number, so its level is there, except
    /// for the one mel frame past the end of a file of whole blocks.
    fn push(&mut self, rows: &mut Vec<f32>, levels: &mut Levels) {
        let whole = rows.len() / self.width * self.width;
        for row in rows[..whole].chunks_exact(self.width) {
            let loud = levels.loud.pop_front().unwrap_or(false);
            if self.whole.len() < self.max * self.width {
                self.whole.extend_from_slice(row);
            }
            if let Some(margin) = self.margin {
                self.push_inner(row, loud, margin);
            }
        }
        rows.drain(..whole);
    }

    fn push_inner(&mut self, row: &[f32], loud: bool, margin: usize) {
        if self.loud_end == 0 && !loud {
            self.lead.push_back(row.to_vec());
            if self.lead.len() > margin {
                self.lead.pop_front();
            }
            return;
        }
        self.inner.extend(self.lead.drain(..).flatten());
        if self.inner.len() >= self.max * self.width {
            // Silence past the limit may be dropped; speech past it means that the clip is too long.
            self.overflow |= loud;
            return;
        }
        self.inner.extend_from_slice(row);
        if loud {
            self.loud_end = self.inner.len() / self.width;
        }
    }

    fn trimmed(mut self) -> Option<Vec<f32>> {
        if self.overflow || self.loud_end == 0 {
            return None;
        }
        self.inner.truncate((self.loud_end + self.margin.unwrap_or(0)) * self.width);
        Some(self.inner)
    }
}
