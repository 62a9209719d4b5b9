//! A file as windows of log-mel frames, read as a stream: two passes, the first of which finds how loud it is.

use super::mel::{HOP, RATE, front, scaled};
use crate::error::RunError;
use ambitus_data::audio::{AudioReader, Resampler};
use ambitus_data::mel::MelStream;
use ambitus_data::{AudioFault, DataError};
use ambitus_models::whisper::config::Config;
use std::path::Path;

/// Zeros after the sound: as many as the last frames' transforms reach.
const AFTER: [f32; 400] = [0.0; 400];

/// A file's frames in order.
struct Frames {
    reader: AudioReader,
    /// `None` when the file has ended.
    ends: Option<(Resampler, MelStream)>,
    samples: u64,
    piece: Vec<f32>,
}

impl Frames {
    fn open(path: &Path, bands: usize) -> Result<Frames, RunError> {
        let reader = AudioReader::open(path)?;
        let resampler = Resampler::new(reader.info().rate, RATE);
        let ends = Some((resampler, MelStream::of(&front(bands))));
        Ok(Frames { reader, ends, samples: 0, piece: Vec::new() })
    }

    /// Appends the next frames to `rows`; says whether there may be more.
    fn next(&mut self, rows: &mut Vec<f32>) -> Result<bool, RunError> {
        let Some((mut resampler, mut mel)) = self.ends.take() else { return Ok(false) };
        self.piece.clear();
        let goes_on = match self.reader.next_chunk()? {
            Some(chunk) => {
                resampler.push(chunk, &mut self.piece);
                true
            }
            None => false,
        };
        if goes_on {
            self.samples += self.piece.len() as u64;
            mel.push(&self.piece, rows);
            self.ends = Some((resampler, mel));
        } else {
            resampler.finish(&mut self.piece);
            self.samples += self.piece.len() as u64;
            mel.push(&self.piece, rows);
            mel.push(&AFTER, rows);
        }
        Ok(goes_on)
    }
}

/// A file that is heard window by window, from its beginning on.
pub(super) struct Sound<'c> {
    cfg: &'c Config,
    frames: Frames,
    /// The loudest band of all frames.
    loudest: f32,
    /// Frames of the sound.
    pub content: usize,
    /// Frames from `first` on, before they are scaled.
    rows: Vec<f32>,
    first: usize,
}

impl<'c> Sound<'c> {
    /// Bytes beside the reader: frames of more than a window, and pieces.
    pub fn bytes(cfg: &Config) -> u64 {
        let reader = 2 * ambitus_data::audio::READER_BYTES;
        (8 * cfg.frames() * cfg.mels + reader) as u64
    }

    /// Reads the file once, and opens it again at its beginning.
    ///
    /// # Errors
    /// Audio that cannot be used, by file.
    pub fn open(cfg: &'c Config, path: &Path) -> Result<Sound<'c>, RunError> {
        let mut frames = Frames::open(path, cfg.mels)?;
        let (mut loudest, mut rows) = (f32::NEG_INFINITY, Vec::new());
        loop {
            rows.clear();
            let goes_on = frames.next(&mut rows)?;
            loudest = rows.iter().copied().fold(loudest, f32::max);
            if !goes_on {
                break;
            }
        }
        if frames.samples == 0 {
            let (path, reason) = (path.to_owned(), AudioFault::Empty);
            return Err(DataError::Audio { path, reason }.into());
        }
        let content = (frames.samples / HOP as u64) as usize;
        let frames = Frames::open(path, cfg.mels)?;
        rows.clear();
        Ok(Sound { cfg, frames, loudest, content, rows, first: 0 })
    }

    /// Returns the seconds of the sound.
    pub fn seconds(&self) -> f64 {
        self.content as f64 * HOP as f64 / f64::from(RATE)
    }

    /// Returns the window `[2 N, M]` from frame `from` on, which is none before the last window's. After the sound's end the package has
    /// zeros where it writes, and silence where it hears which language is spoken.
    ///
    /// # Errors
    /// Audio that cannot be read.
    pub fn window(&mut self, from: usize, silence: bool) -> Result<Vec<f32>, RunError> {
        let Config { mels, .. } = *self.cfg;
        let wanted = self.cfg.frames();
        let gone = from.saturating_sub(self.first);
        let known = self.rows.len() / mels;
        self.rows.drain(..mels * gone.min(known));
        self.first += gone.min(known);
        let mut fresh = Vec::new();
        while self.rows.len() < wanted * mels || self.first < from {
            fresh.clear();
            let goes_on = self.frames.next(&mut fresh)?;
            self.rows.extend_from_slice(&fresh);
            let skip = (from - self.first).min(self.rows.len() / mels);
            self.rows.drain(..skip * mels);
            self.first += skip;
            if !goes_on {
                break;
            }
        }
        let loudest = self.loudest;
        let sound = if silence { usize::MAX } else { self.content.saturating_sub(from) };
        let rows = self.rows.chunks(mels).take(wanted.min(sound)).flatten();
        let mut window: Vec<f32> = rows.map(|x| scaled(*x, loudest)).collect();
        let after = if silence { scaled(-10.0, loudest) } else { 0.0 };
        window.resize(wanted * mels, after);
        Ok(window)
    }
}
