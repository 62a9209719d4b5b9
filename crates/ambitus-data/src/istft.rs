//! The inverse short-time Fourier transform: spectra of overlapping frames to samples.
//!
//! y = sum over frames of w · irfft(S), at distances of one hop, over the sum of w² at the same places: what `torch.istft`
//! computes (Griffin and Lim, 1984, equation 6). Which samples of its ends are given is the caller's: `torch.istft` with
//! `center` leaves out half a window on both sides.

use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner};
use std::sync::Arc;

/// Least sum of squared windows that is divided by.
const LEAST: f32 = 1e-8;

/// An inverse transform of frames of one length, and the wave that it made last.
pub struct Istft {
    window: Vec<f32>,
    hop: usize,
    inverse: Arc<dyn ComplexToReal<f32>>,
    spectrum: Vec<Complex<f32>>,
    time: Vec<f32>,
    scratch: Vec<Complex<f32>>,
    wave: Vec<f32>,
    norm: Vec<f32>,
}

impl Istft {
    /// Plans transforms of at most `frames` frames with this window `[n]`, n even and at least 2, and `hop` samples from one
    /// frame to the next.
    pub fn new(window: Vec<f32>, hop: usize, frames: usize) -> Istft {
        let inverse = RealFftPlanner::<f32>::new().plan_fft_inverse(window.len());
        let samples = frames * hop + window.len();
        Istft {
            hop,
            spectrum: inverse.make_input_vec(),
            time: inverse.make_output_vec(),
            scratch: inverse.make_scratch_vec(),
            wave: Vec::with_capacity(samples),
            norm: Vec::with_capacity(samples),
            window,
            inverse,
        }
    }

    /// Returns the bytes that transforms of at most `frames` frames of `n` samples take: wave, sum of squares, and at most
    /// eight frames of tables and work.
    pub const fn bytes(n: usize, hop: usize, frames: usize) -> u64 {
        ((frames * hop + n) * 8 + 64 * n) as u64
    }

    /// Resizes the wave to that of `frames` frames, of which there is at least one: (frames - 1) · hop + n samples.
    pub fn resize(&mut self, frames: usize) {
        let samples = (frames - 1) * self.hop + self.window.len();
        self.wave.resize(samples, 0.0);
        self.norm.clear();
        self.norm.resize(samples, 0.0);
        for f in 0..frames {
            for (n, w) in self.norm[f * self.hop..].iter_mut().zip(&self.window) {
                *n += w * w;
            }
        }
    }

    /// Computes the wave of as many frames as it was resized to; `fill(f, to)` writes the spectrum of frame f, `[n / 2 + 1]`.
    /// The imaginary parts of its ends do not matter: a real signal's are zero.
    pub fn run(&mut self, mut fill: impl FnMut(usize, &mut [Complex<f32>])) {
        let (n, last) = (self.window.len(), self.spectrum.len() - 1);
        self.wave.fill(0.0);
        for f in 0..=(self.wave.len() - n) / self.hop {
            fill(f, &mut self.spectrum);
            self.spectrum[0].im = 0.0;
            self.spectrum[last].im = 0.0;
            let done =
                self.inverse.process_with_scratch(&mut self.spectrum, &mut self.time, &mut self.scratch);
            done.expect("buffers come from the plan");
            for ((to, &x), &w) in self.wave[f * self.hop..].iter_mut().zip(&self.time).zip(&self.window) {
                *to += x * w / n as f32;
            }
        }
        for (x, &n) in self.wave.iter_mut().zip(&self.norm) {
            *x /= n.max(LEAST);
        }
    }

    /// Returns the wave of the last [`Istft::run`], from the first frame's first sample on.
    pub fn wave(&self) -> &[f32] {
        &self.wave
    }

    /// Returns the window.
    pub fn window(&self) -> &[f32] {
        &self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mel::hann_window;

    /// The transform of every frame of a wave gives the wave, for windows and hops of all kinds.
    #[test]
    fn a_transform_is_undone() {
        for (n, hop) in [(16, 4), (30, 7), (12, 6), (1024, 256)] {
            let frames = 9;
            let wave: Vec<f32> =
                (0..(frames - 1) * hop + n).map(|i| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0).collect();
            let mut istft = Istft::new(hann_window(n), hop, frames);
            let window = istft.window().to_vec();
            istft.resize(frames);
            istft.run(|f, to| {
                for (k, to) in to.iter_mut().enumerate() {
                    *to = (0..n)
                        .map(|i| {
                            let turn = std::f64::consts::TAU * ((k * i) % n) as f64 / n as f64;
                            let x = f64::from(wave[f * hop + i] * window[i]);
                            Complex::new((x * turn.cos()) as f32, (-x * turn.sin()) as f32)
                        })
                        .sum();
                }
            });
            assert_eq!(istft.wave().len(), wave.len());
            // The first window begins with a zero: half of it is left out, as everywhere.
            let inner = n / 2..wave.len() - n / 2;
            let off = inner.map(|i| (istft.wave()[i] - wave[i]).abs()).fold(0.0, f32::max);
            assert!(off < 1e-4, "{n}, {hop}: {off:e}");
            let [mut room, held] = [frames * hop + n, istft.wave.capacity()];
            room = room.max(held);
            assert!((room * 8) as u64 <= Istft::bytes(n, hop, frames));
        }
    }
}
