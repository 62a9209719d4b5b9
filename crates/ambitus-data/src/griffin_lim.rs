//! Back from a log-mel to a waveform one can listen to, without a vocoder.
//!
//! The magnitude spectrum is the non-negative least-squares solution of `filters · s = mel`, by multiplicative updates
//! (Lee and Seung, 2001), which keep s >= 0; the phase is found by the fast Griffin-Lim iteration (Perraudin, Balazs
//! and Søndergaard, 2013). It sounds rough, but the same roughness for every clip, which is what a comparison needs.

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;

use crate::mel::{BINS, Filter, HOP, MELS, N_FFT, filter_bank, hann};
use crate::rng::SplitMix;

/// Iterations that are enough for listening.
pub const ITERATIONS: usize = 32;

const INVERSION_STEPS: usize = 60;
const MOMENTUM: f32 = 0.99;
const TINY: f32 = 1e-12;

/// Linear magnitudes `[N, 513]` whose mel is closest to exp of the log-mel `[N, 100]`.
pub fn mel_to_magnitude(log_mel: &[f32]) -> Vec<f32> {
    let filters = filter_bank();
    let mut out = Vec::with_capacity(log_mel.len() / MELS * BINS);
    let mut column_sum = vec![0.0f32; BINS];
    scatter(&filters, &[1.0; MELS], &mut column_sum);
    for row in log_mel.chunks_exact(MELS) {
        let target: Vec<f32> = row.iter().map(|v| v.clamp(-30.0, 30.0).exp()).collect();
        let mut numerator = vec![0.0f32; BINS];
        scatter(&filters, &target, &mut numerator);
        let mut s: Vec<f32> =
            numerator.iter().zip(&column_sum).map(|(&n, &c)| if c > 0.0 { n / c } else { 0.0 }).collect();
        let mut denominator = vec![0.0f32; BINS];
        let mut projected = [0.0f32; MELS];
        for _ in 0..INVERSION_STEPS {
            for (p, f) in projected.iter_mut().zip(&filters) {
                *p = f.weights.iter().zip(&s[f.start..]).map(|(w, x)| w * x).sum();
            }
            denominator.fill(0.0);
            scatter(&filters, &projected, &mut denominator);
            for ((x, &n), &d) in s.iter_mut().zip(&numerator).zip(&denominator) {
                *x *= n / d.max(TINY);
            }
        }
        out.extend_from_slice(&s);
    }
    out
}

/// `to += filtersᵀ · values`.
fn scatter(filters: &[Filter], values: &[f32], to: &mut [f32]) {
    for (f, &v) in filters.iter().zip(values) {
        for (t, &w) in to[f.start..].iter_mut().zip(&f.weights) {
            *t += w * v;
        }
    }
}

/// Waveform of (N − 1)·256 samples at 24 kHz for a log-mel `[N, 100]`; the same for the same `seed`. Empty for N < 2.
pub fn griffin_lim(log_mel: &[f32], iterations: usize, seed: u64) -> Vec<f32> {
    let frames = log_mel.len() / MELS;
    if frames < 2 {
        return Vec::new();
    }
    let magnitude = mel_to_magnitude(log_mel);
    let mut stft = Stft::new(frames);
    let mut rng = SplitMix(seed);
    let mut phase: Vec<Complex<f32>> = (0..frames * BINS)
        .map(|_| {
            let turn = (rng.next() >> 40) as f32 / (1u64 << 24) as f32;
            Complex::from_polar(1.0, std::f32::consts::TAU * turn)
        })
        .collect();
    let mut previous = vec![Complex::default(); frames * BINS];
    let mut rebuilt = previous.clone();
    for _ in 0..iterations {
        stft.inverse(&magnitude, &phase);
        stft.forward(&mut rebuilt);
        for ((p, &now), before) in phase.iter_mut().zip(&rebuilt).zip(&mut previous) {
            let accelerated = now - *before * (MOMENTUM / (1.0 + MOMENTUM));
            *p = accelerated / accelerated.norm().max(TINY);
            *before = now;
        }
    }
    stft.inverse(&magnitude, &phase);
    stft.wave[N_FFT / 2..][..(frames - 1) * HOP].to_vec()
}

/// Padded waveform and both directions of its STFT.
struct Stft {
    wave: Vec<f32>,
    norm: Vec<f32>,
    window: Vec<f32>,
    forward: std::sync::Arc<dyn realfft::RealToComplex<f32>>,
    inverse: std::sync::Arc<dyn realfft::ComplexToReal<f32>>,
    time: Vec<f32>,
    spectrum: Vec<Complex<f32>>,
}

impl Stft {
    fn new(frames: usize) -> Self {
        let mut planner = RealFftPlanner::<f32>::new();
        let (forward, inverse) = (planner.plan_fft_forward(N_FFT), planner.plan_fft_inverse(N_FFT));
        let window = hann();
        let mut norm = vec![0.0f32; (frames - 1) * HOP + N_FFT];
        for f in 0..frames {
            for (n, w) in norm[f * HOP..].iter_mut().zip(&window) {
                *n += w * w;
            }
        }
        Self {
            wave: vec![0.0; norm.len()],
            norm,
            window,
            time: forward.make_input_vec(),
            spectrum: forward.make_output_vec(),
            forward,
            inverse,
        }
    }

    /// `wave` from magnitude and phase `[N, 513]` by windowed overlap-add.
    fn inverse(&mut self, magnitude: &[f32], phase: &[Complex<f32>]) {
        self.wave.fill(0.0);
        for (f, (m, p)) in magnitude.chunks_exact(BINS).zip(phase.chunks_exact(BINS)).enumerate() {
            for ((to, &m), &p) in self.spectrum.iter_mut().zip(m).zip(p) {
                *to = p * m;
            }
            // A real signal has real ends.
            self.spectrum[0].im = 0.0;
            self.spectrum[BINS - 1].im = 0.0;
            self.inverse.process(&mut self.spectrum, &mut self.time).expect("buffers come from the plan");
            for ((to, &x), &w) in self.wave[f * HOP..].iter_mut().zip(&self.time).zip(&self.window) {
                *to += x * w / N_FFT as f32;
            }
        }
        for (x, &n) in self.wave.iter_mut().zip(&self.norm) {
            *x /= n.max(1e-8);
        }
    }

    /// Spectrum `[N, 513]` of `wave`.
    fn forward(&mut self, out: &mut [Complex<f32>]) {
        for (f, to) in out.chunks_exact_mut(BINS).enumerate() {
            for ((t, &x), &w) in self.time.iter_mut().zip(&self.wave[f * HOP..]).zip(&self.window) {
                *t = x * w;
            }
            self.forward.process(&mut self.time, to).expect("buffers come from the plan");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mel::log_mel;

    /// Mean absolute difference of log-mels, nepers: what Griffin-Lim reaches on a harmonic sound.
    const CLOSE: f32 = 0.5;

    #[test]
    fn the_mel_of_the_result_is_near_the_mel_it_came_from() {
        let wave: Vec<f32> = (0..24_000)
            .map(|i| {
                let t = i as f32 / 24_000.0;
                (1..20).map(|h| (std::f32::consts::TAU * 150.0 * h as f32 * t).sin() / h as f32).sum::<f32>()
                    * 0.2
                    * (1.0 + (t * 20.0).sin())
            })
            .collect();
        let mel = log_mel(&wave).expect("long enough");
        let back = griffin_lim(&mel, ITERATIONS, 7);
        assert_eq!(back.len(), (mel.len() / MELS - 1) * HOP);
        assert_eq!(back, griffin_lim(&mel, ITERATIONS, 7));
        let again = log_mel(&back).expect("long enough");
        let n = again.len().min(mel.len());
        let loud: Vec<usize> = (0..n).filter(|&i| mel[i] > -3.0).collect();
        let error: f32 = loud.iter().map(|&i| (again[i] - mel[i]).abs()).sum::<f32>() / loud.len() as f32;
        assert!(error < CLOSE, "{error}");
        assert!(griffin_lim(&mel[..MELS], 3, 1).is_empty());
    }
}
