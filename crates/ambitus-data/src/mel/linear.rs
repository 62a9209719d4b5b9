//! Spectrograms without a mel scale, as VITS has them (`spectrogram_torch`): frames that do not reach beyond the sound but for what is
//! reflected at its ends, so that there is one for each hop.

use super::hann_window;
use realfft::RealFftPlanner;

/// Added to the power before its root.
const LEAST: f64 = 1e-6;

/// A short-time Fourier transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Samples of a transform, even.
    pub n_fft: usize,
    /// Samples from one frame to the next; `n_fft` - `hop` is even.
    pub hop: usize,
    /// Samples of the window, in the transform's middle.
    pub window: usize,
}

impl Linear {
    /// Returns the magnitudes `[T, n_fft / 2 + 1]` of a sound's T = samples / hop frames, computed in f64: the root of power and 1e-6.
    /// `None` where the sound is no longer than what is reflected.
    pub fn rows(&self, samples: &[f32]) -> Option<Vec<f32>> {
        let side = (self.n_fft - self.hop) / 2;
        let frames = samples.len() / self.hop;
        if samples.len() <= side || frames == 0 {
            return None;
        }
        let last = samples.len() - 1;
        let at = |i: usize| match i.checked_sub(side) {
            None => samples[side - i],
            Some(i) if i <= last => samples[i],
            Some(i) => samples[2 * last - i],
        };
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(self.n_fft);
        let (mut windowed, mut spectrum) = (fft.make_input_vec(), fft.make_output_vec());
        let mut scratch = fft.make_scratch_vec();
        let (window, before) = (hann_window(self.window), (self.n_fft - self.window) / 2);
        let mut rows = Vec::with_capacity(frames * (self.n_fft / 2 + 1));
        for t in 0..frames {
            windowed.fill(0.0);
            for (i, w) in window.iter().enumerate() {
                windowed[before + i] = f64::from(at(t * self.hop + before + i) * w);
            }
            fft.process_with_scratch(&mut windowed, &mut spectrum, &mut scratch)
                .expect("buffers come from the plan");
            rows.extend(spectrum.iter().map(|c| (c.norm_sqr() + LEAST).sqrt() as f32));
        }
        Some(rows)
    }
}
