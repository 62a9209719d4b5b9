//! Log-mel spectrograms: of any [`Front`], and as the vocos vocoder wants it, which is what clips are made of.
//!
//! The latter is of 24 kHz mono; STFT with `n_fft` = window = 1024, hop 256, periodic Hann, centred with reflection padding; magnitude
//! (power 1); 100 triangular HTK filters from 0 to 12 kHz without area normalisation; `ln(max(mel, 1e-5))`. This is
//! `get_vocos_mel_spectrogram` of the package that is recorded in `parity/`, i.e. `torchaudio.transforms.MelSpectrogram(norm=None, power=1,
//! center=True)`. The filter bank is computed in f32 with torchaudio's order of operations, because narrow triangles
//! amplify rounding; the FFT runs in f64, so that what differs from the package is the package's own rounding.

mod front;
mod linear;

pub(crate) use front::{Filter, filter_bank};
pub use front::{Front, Log, Scale, Window, hann_window};
pub use linear::Linear;

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

/// Sample rate of the model's audio, Hz.
pub const SAMPLE_RATE: u32 = 24_000;
/// FFT and window length, samples.
pub const N_FFT: usize = 1024;
/// Samples from one frame to the next.
pub const HOP: usize = 256;
/// Mel channels of a frame.
pub const MELS: usize = 100;
/// Spectrum bins.
pub const BINS: usize = N_FFT / 2 + 1;
/// Smallest linear mel value before the logarithm.
pub const FLOOR: f32 = 1e-5;
/// Reflection padding needs more samples than it pads.
pub const MIN_SAMPLES: usize = N_FFT / 2 + 1;
/// Version of the numbers this module produces; part of every cache key.
pub const MEL_SPEC: &str = "vocos-24k-1024-256-100-htk-v1";

/// Returns the number N of frames of a waveform of L = `samples` samples: ⌊L/256⌋ + 1.
pub fn frames(samples: u64) -> u64 {
    samples / HOP as u64 + 1
}

/// Returns the seconds that `frames` frames stand for.
pub fn seconds(frames: u64) -> f64 {
    frames as f64 * HOP as f64 / f64::from(SAMPLE_RATE)
}

/// Streaming log-mel: samples in, rows of as many values as there are bands out. Holds less than three windows of samples
/// whatever the length.
pub struct MelStream {
    front: Front,
    fft: Arc<dyn RealToComplex<f64>>,
    window: Vec<f32>,
    filters: Vec<Filter>,
    /// What each band is divided by, if anything.
    scale: Option<Vec<f32>>,
    /// Samples from the start of the next frame on, reflection included.
    pending: Vec<f32>,
    started: bool,
    samples: u64,
    windowed: Vec<f64>,
    spectrum: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
    magnitude: Vec<f64>,
}

impl Default for MelStream {
    fn default() -> Self {
        Self::new()
    }
}

impl MelStream {
    /// Returns a stream of what clips are made of, at its start.
    pub fn new() -> Self {
        Self::of(&Front::CLIPS)
    }

    /// Returns a stream at its start.
    ///
    /// # Panics
    /// If the front's sizes do not [go together](Front::check): fronts are written in code.
    pub fn of(front: &Front) -> Self {
        assert!(front.check(), "{front:?}");
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(front.n_fft);
        Self {
            window: front.window(),
            filters: front.filter_bank(),
            scale: None,
            pending: Vec::with_capacity(3 * front.n_fft),
            started: false,
            samples: 0,
            windowed: fft.make_input_vec(),
            spectrum: fft.make_output_vec(),
            scratch: fft.make_scratch_vec(),
            magnitude: vec![0.0; front.bins()],
            fft,
            front: front.clone(),
        }
    }

    /// Divides each band of every row, after the logarithm, by its own number.
    ///
    /// # Panics
    /// Without one number for each band.
    pub fn divided_by(mut self, scale: &[f32]) -> Self {
        assert_eq!(scale.len(), self.front.bands);
        self.scale = Some(scale.to_vec());
        self
    }

    /// Returns the number of samples taken so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Takes mono samples at the front's rate and appends every frame that is complete to `rows` `[n, bands]`.
    pub fn push(&mut self, mut samples: &[f32], rows: &mut Vec<f32>) {
        let pad = self.front.n_fft / 2;
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(self.front.n_fft));
            self.pending.extend_from_slice(now);
            self.samples += now.len() as u64;
            samples = later;
            if !self.started && self.pending.len() > pad {
                let reflected: Vec<f32> = (1..=pad).rev().map(|i| self.pending[i]).collect();
                self.pending.splice(0..0, reflected);
                self.started = true;
            }
            if self.started {
                self.emit(rows);
            }
        }
    }

    /// Ends the stream and appends the last frames. Fails with the number of samples if that is below
    /// [`Front::min_samples`]: reflection has nothing to reflect.
    pub fn finish(mut self, rows: &mut Vec<f32>) -> Result<u64, u64> {
        if !self.started {
            return Err(self.samples);
        }
        // A frame is emitted as soon as its window is full, so at least a window less a hop of the end is still here.
        let last = self.pending.len() - 1;
        for i in 1..=self.front.n_fft / 2 {
            self.pending.push(self.pending[last - i]);
        }
        self.emit(rows);
        Ok(self.samples)
    }

    fn emit(&mut self, rows: &mut Vec<f32>) {
        let Front { n_fft, hop, power, log, .. } = self.front;
        // A window that is shorter than the transform lies in its middle.
        let before = (n_fft - self.window.len()) / 2;
        let mut at = 0;
        while at + n_fft <= self.pending.len() {
            self.windowed.fill(0.0);
            let windowed = self.windowed[before..].iter_mut().zip(&self.pending[at + before..]);
            for ((to, &x), &w) in windowed.zip(&self.window) {
                *to = f64::from(x * w);
            }
            self.fft
                .process_with_scratch(&mut self.windowed, &mut self.spectrum, &mut self.scratch)
                .expect("buffers come from the plan");
            for (to, c) in self.magnitude.iter_mut().zip(&self.spectrum) {
                *to = if power { c.norm_sqr() } else { c.norm() };
            }
            let first = rows.len();
            rows.extend(self.filters.iter().map(|filter| {
                let sum: f64 = filter
                    .weights
                    .iter()
                    .zip(&self.magnitude[filter.start..])
                    .map(|(&w, &x)| f64::from(w) * x)
                    .sum();
                log.of(sum as f32)
            }));
            for (value, scale) in rows[first..].iter_mut().zip(self.scale.iter().flatten()) {
                *value /= scale;
            }
            at += hop;
        }
        self.pending.drain(..at);
    }
}

/// Computes the rows `[N, bands]` of a whole waveform, each band divided by its own number where these are given. `None` below
/// [`Front::min_samples`] samples.
pub fn rows(front: &Front, scale: Option<&[f32]>, samples: &[f32]) -> Option<Vec<f32>> {
    let mut stream = MelStream::of(front);
    if let Some(scale) = scale {
        stream = stream.divided_by(scale);
    }
    let mut rows = Vec::with_capacity(front.frames(samples.len() as u64) as usize * front.bands);
    stream.push(samples, &mut rows);
    stream.finish(&mut rows).ok().map(|_| rows)
}

/// Computes the log-mel `[N, 100]`, row-major, of a whole waveform (24 kHz mono). `None` below [`MIN_SAMPLES`] samples.
pub fn log_mel(samples: &[f32]) -> Option<Vec<f32>> {
    rows(&Front::CLIPS, None, samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_give_the_same_rows_as_the_whole() {
        let wave: Vec<f32> =
            (0..5000).map(|i| (i as f32 * 0.05).sin() * 0.3 + (i as f32 * 0.71).cos() * 0.1).collect();
        for length in [513, 514, 767, 768, 1024, 1279, 1280, 5000] {
            let whole = log_mel(&wave[..length]).expect("long enough");
            assert_eq!(whole.len(), frames(length as u64) as usize * MELS);
            for piece in [1, 7, 255, 512, 513, 4096] {
                let mut rows = Vec::new();
                let mut stream = MelStream::new();
                for chunk in wave[..length].chunks(piece) {
                    stream.push(chunk, &mut rows);
                }
                assert_eq!(stream.finish(&mut rows), Ok(length as u64));
                assert_eq!(rows, whole, "length {length}, pieces of {piece}");
            }
        }
        assert!(log_mel(&wave[..512]).is_none());
        assert!(log_mel(&[]).is_none());
    }

    #[test]
    fn silence_is_the_floor() {
        let rows = log_mel(&[0.0; 2400]).expect("long enough");
        assert!(rows.iter().all(|&v| v == FLOOR.ln()));
    }
}
