//! Log-mel spectrogram as the vocos vocoder wants it.
//!
//! 24 kHz mono; STFT with `n_fft` = window = 1024, hop 256, periodic Hann, centred with reflection padding; magnitude
//! (power 1); 100 triangular HTK filters from 0 to 12 kHz without area normalisation; `ln(max(mel, 1e-5))`. This is
//! `get_vocos_mel_spectrogram` of the package that is recorded in `parity/`, i.e. `torchaudio.transforms.MelSpectrogram(norm=None, power=1,
//! center=True)`. The filter bank is computed in f32 with torchaudio's order of operations, because narrow triangles
//! amplify rounding; the FFT runs in f64, so that what differs from the package is the package's own rounding.

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

const PAD: usize = N_FFT / 2;

/// Returns the number N of frames of a waveform of L = `samples` samples: ⌊L/256⌋ + 1.
pub fn frames(samples: u64) -> u64 {
    samples / HOP as u64 + 1
}

/// Returns the seconds that `frames` frames stand for.
pub fn seconds(frames: u64) -> f64 {
    frames as f64 * HOP as f64 / f64::from(SAMPLE_RATE)
}

/// Returns the periodic Hann window `[n]` with torch's rounding: its argument is an f32, and the error that this makes is
/// far above that of the FFT.
pub fn hann_window(n: usize) -> Vec<f32> {
    let step = (2.0 * std::f64::consts::PI / n as f64) as f32;
    (0..n).map(|i| 0.5 - 0.5 * (f64::from(i as f32 * step).cos() as f32)).collect()
}

/// One triangular filter: weights of the bins from `start`.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    pub(crate) start: usize,
    pub(crate) weights: Vec<f32>,
}

/// Returns the HTK filter bank without normalisation (torchaudio `melscale_fbanks`, norm=None, mel_scale="htk").
pub(crate) fn filter_bank() -> Vec<Filter> {
    let top = f64::from(SAMPLE_RATE / 2);
    let bin_hz = linspace(0.0, top as f32, BINS);
    let mel_top = 2595.0 * (1.0 + top / 700.0).log10();
    let edges: Vec<f32> = linspace(0.0, mel_top as f32, MELS + 2)
        .into_iter()
        .map(|m| 700.0 * (10f32.powf(m / 2595.0) - 1.0))
        .collect();
    (0..MELS)
        .map(|m| {
            let rise = edges[m + 1] - edges[m];
            let fall = edges[m + 2] - edges[m + 1];
            let weights: Vec<f32> = bin_hz
                .iter()
                .map(|&hz| {
                    let up = (hz - edges[m]) / rise;
                    let down = (edges[m + 2] - hz) / fall;
                    up.min(down).max(0.0)
                })
                .collect();
            let start = weights.iter().position(|&w| w > 0.0).unwrap_or(0);
            let end = weights.iter().rposition(|&w| w > 0.0).map_or(0, |e| e + 1);
            Filter { start, weights: weights[start..end.max(start)].to_vec() }
        })
        .collect()
}

/// Computes `torch.linspace` in f32: counted from the nearer end.
fn linspace(from: f32, to: f32, n: usize) -> Vec<f32> {
    let step = (to - from) / (n - 1) as f32;
    (0..n).map(|i| if i < n / 2 { from + step * i as f32 } else { to - step * (n - 1 - i) as f32 }).collect()
}

/// Streaming log-mel: samples in, rows of [`MELS`] out. Holds less than three windows of samples whatever the length.
pub struct MelStream {
    fft: Arc<dyn RealToComplex<f64>>,
    window: Vec<f32>,
    filters: Vec<Filter>,
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
    /// Returns a stream at its start.
    pub fn new() -> Self {
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(N_FFT);
        Self {
            window: hann_window(N_FFT),
            filters: filter_bank(),
            pending: Vec::with_capacity(3 * N_FFT),
            started: false,
            samples: 0,
            windowed: fft.make_input_vec(),
            spectrum: fft.make_output_vec(),
            scratch: fft.make_scratch_vec(),
            magnitude: vec![0.0; BINS],
            fft,
        }
    }

    /// Returns the number of samples taken so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Takes samples (24 kHz mono) and appends every frame that is complete to `rows` `[n, 100]`.
    pub fn push(&mut self, mut samples: &[f32], rows: &mut Vec<f32>) {
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(N_FFT));
            self.pending.extend_from_slice(now);
            self.samples += now.len() as u64;
            samples = later;
            if !self.started && self.pending.len() > PAD {
                let reflected: Vec<f32> = (1..=PAD).rev().map(|i| self.pending[i]).collect();
                self.pending.splice(0..0, reflected);
                self.started = true;
            }
            if self.started {
                self.emit(rows);
            }
        }
    }

    /// Ends the stream and appends the last frames. Fails with the number of samples if that is below
    /// [`MIN_SAMPLES`]: reflection has nothing to reflect.
    pub fn finish(mut self, rows: &mut Vec<f32>) -> Result<u64, u64> {
        if !self.started {
            return Err(self.samples);
        }
        // A frame is emitted as soon as its window is full, so at least 768 samples of the end are still here.
        let last = self.pending.len() - 1;
        for i in 1..=PAD {
            self.pending.push(self.pending[last - i]);
        }
        self.emit(rows);
        Ok(self.samples)
    }

    fn emit(&mut self, rows: &mut Vec<f32>) {
        let mut at = 0;
        while at + N_FFT <= self.pending.len() {
            for ((to, &x), &w) in self.windowed.iter_mut().zip(&self.pending[at..]).zip(&self.window) {
                *to = f64::from(x * w);
            }
            self.fft
                .process_with_scratch(&mut self.windowed, &mut self.spectrum, &mut self.scratch)
                .expect("buffers come from the plan");
            for (to, c) in self.magnitude.iter_mut().zip(&self.spectrum) {
                *to = c.norm();
            }
            rows.extend(self.filters.iter().map(|filter| {
                let sum: f64 = filter
                    .weights
                    .iter()
                    .zip(&self.magnitude[filter.start..])
                    .map(|(&w, &x)| f64::from(w) * x)
                    .sum();
                (sum as f32).max(FLOOR).ln()
            }));
            at += HOP;
        }
        self.pending.drain(..at);
    }
}

/// Computes the log-mel `[N, 100]`, row-major, of a whole waveform (24 kHz mono). `None` below [`MIN_SAMPLES`] samples.
pub fn log_mel(samples: &[f32]) -> Option<Vec<f32>> {
    let mut stream = MelStream::new();
    let mut rows = Vec::with_capacity(frames(samples.len() as u64) as usize * MELS);
    stream.push(samples, &mut rows);
    stream.finish(&mut rows).ok().map(|_| rows)
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
