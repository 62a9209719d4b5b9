//! Back from a log-mel to a waveform one can listen to, without a vocoder.
//!
//! The magnitude spectrum is the non-negative least-squares solution of `filters · s = mel`, by multiplicative updates
//! (Lee and Seung, 2001), which keep s >= 0; the phase is found by the fast Griffin-Lim iteration (Perraudin, Balazs
//! and Søndergaard, 2013). It sounds rough, but the same roughness for every clip, which is what a comparison needs.

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;

use crate::istft::Istft;
use crate::mel::{BINS, Filter, HOP, MELS, N_FFT, filter_bank, hann_window};
use crate::rng::SplitMix;

/// Iterations that are enough for listening.
pub const ITERATIONS: usize = 32;

const INVERSION_STEPS: usize = 60;
const MOMENTUM: f32 = 0.99;
const TINY: f32 = 1e-12;

/// Returns the linear magnitudes `[N, 513]` whose mel is closest to exp of the log-mel `[N, 100]`.
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

/// Computes `to += filtersᵀ · values`.
fn scatter(filters: &[Filter], values: &[f32], to: &mut [f32]) {
    for (f, &v) in filters.iter().zip(values) {
        for (t, &w) in to[f.start..].iter_mut().zip(&f.weights) {
            *t += w * v;
        }
    }
}

/// Frames that are solved together.
const BLOCK: usize = 256;
/// Frames at the start of a block whose phases the block before has found. They join the two: both have the same samples there.
const KNOWN: usize = 16;
/// Frames at the end of a block that are found again by the next, which sees what follows them.
const AHEAD: usize = 16;

/// The waveform of a log-mel `[N, 100]`: (N − 1)·256 samples at 24 kHz, none for N < 2; the same for the same seed. It comes
/// block by block, so that sound of any length takes [`GriffinLim::BYTES`].
pub struct GriffinLim<'m> {
    log_mel: &'m [f32],
    iterations: usize,
    rng: SplitMix,
    stft: Stft,
    /// `[BLOCK, 513]`, as the next four.
    magnitude: Vec<f32>,
    phase: Vec<Complex<f32>>,
    rebuilt: Vec<Complex<f32>>,
    previous: Vec<Complex<f32>>,
    /// First frame of the next block.
    first: usize,
    /// Frames of it whose phases are known, and those that have a first guess.
    known: usize,
    guessed: usize,
    /// Samples given, counted from the start of the first frame's window.
    given: usize,
}

impl<'m> GriffinLim<'m> {
    /// Bytes that a waveform of any length takes besides its log-mel: four spectra and the wave of a block, filters and tables.
    pub const BYTES: u64 = (BLOCK * BINS * 28 + (448 << 10)) as u64 + Istft::bytes(N_FFT, HOP, BLOCK);

    /// Prepares a waveform with `iterations` of each block.
    pub fn new(log_mel: &'m [f32], iterations: usize, seed: u64) -> Self {
        let frames = (log_mel.len() / MELS).min(BLOCK);
        Self {
            log_mel,
            iterations,
            rng: SplitMix(seed),
            stft: Stft::new(frames),
            magnitude: Vec::new(),
            phase: vec![Complex::default(); frames * BINS],
            rebuilt: vec![Complex::default(); frames * BINS],
            previous: vec![Complex::default(); frames * BINS],
            first: 0,
            known: 0,
            guessed: 0,
            given: N_FFT / 2,
        }
    }

    /// Returns the next samples.
    pub fn next_piece(&mut self) -> Option<&[f32]> {
        let frames = self.log_mel.len() / MELS;
        let end = N_FFT / 2 + frames.saturating_sub(1) * HOP;
        if self.given >= end {
            return None;
        }
        let first = self.first;
        let n = (frames - first).min(BLOCK);
        self.solve(&self.log_mel[first * MELS..(first + n) * MELS]);
        let mut until = end;
        if first + n < frames {
            // The next block begins with the last of these that are kept, and continues in the middle of what both know.
            self.first = first + n - AHEAD - KNOWN;
            (self.known, self.guessed) = (KNOWN, KNOWN + AHEAD);
            self.phase.copy_within((n - self.guessed) * BINS.., 0);
            until = (self.first + KNOWN / 2) * HOP;
        }
        let given = std::mem::replace(&mut self.given, until);
        Some(&self.stft.istft.wave()[given - first * HOP..until - first * HOP])
    }

    /// Finds the phases and the wave of a block: those of its first frames stay as they are.
    fn solve(&mut self, log_mel: &[f32]) {
        let n = log_mel.len() / MELS;
        self.stft.istft.resize(n);
        self.magnitude = mel_to_magnitude(log_mel);
        let (phase, rebuilt) = (&mut self.phase[..n * BINS], &mut self.rebuilt[..n * BINS]);
        for p in &mut phase[self.guessed * BINS..] {
            let turn = (self.rng.next() >> 40) as f32 / (1u64 << 24) as f32;
            *p = Complex::from_polar(1.0, std::f32::consts::TAU * turn);
        }
        self.previous.fill(Complex::default());
        for _ in 0..self.iterations {
            self.stft.inverse(&self.magnitude, phase);
            self.stft.forward(rebuilt);
            let new = self.known * BINS..;
            let found = phase[new.clone()].iter_mut().zip(&rebuilt[new.clone()]);
            for ((p, &now), before) in found.zip(&mut self.previous[new]) {
                let accelerated = now - *before * (MOMENTUM / (1.0 + MOMENTUM));
                *p = accelerated / accelerated.norm().max(TINY);
                *before = now;
            }
        }
        self.stft.inverse(&self.magnitude, phase);
    }
}

/// Both directions of the STFT of a padded waveform.
struct Stft {
    istft: Istft,
    forward: std::sync::Arc<dyn realfft::RealToComplex<f32>>,
    time: Vec<f32>,
    scratch: Vec<Complex<f32>>,
}

impl Stft {
    /// Plans transforms of at most `frames` frames.
    fn new(frames: usize) -> Self {
        let forward = RealFftPlanner::<f32>::new().plan_fft_forward(N_FFT);
        Self {
            istft: Istft::new(hann_window(N_FFT), HOP, frames),
            time: forward.make_input_vec(),
            scratch: forward.make_scratch_vec(),
            forward,
        }
    }

    /// Computes the wave from magnitude and phase `[N, 513]`.
    fn inverse(&mut self, magnitude: &[f32], phase: &[Complex<f32>]) {
        self.istft.run(|f, to| {
            let of = f * BINS..(f + 1) * BINS;
            for ((to, &m), &p) in to.iter_mut().zip(&magnitude[of.clone()]).zip(&phase[of]) {
                *to = p * m;
            }
        });
    }

    /// Computes the spectrum `[N, 513]` of the wave.
    fn forward(&mut self, out: &mut [Complex<f32>]) {
        let (wave, window) = (self.istft.wave(), self.istft.window());
        for (f, to) in out.chunks_exact_mut(BINS).enumerate() {
            for ((t, &x), &w) in self.time.iter_mut().zip(&wave[f * HOP..]).zip(window) {
                *t = x * w;
            }
            let done = self.forward.process_with_scratch(&mut self.time, to, &mut self.scratch);
            done.expect("buffers come from the plan");
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
        let back = sound(&mel, ITERATIONS, 7);
        assert_eq!(back.len(), (mel.len() / MELS - 1) * HOP);
        assert_eq!(back, sound(&mel, ITERATIONS, 7));
        let again = log_mel(&back).expect("long enough");
        let n = again.len().min(mel.len());
        let loud: Vec<usize> = (0..n).filter(|&i| mel[i] > -3.0).collect();
        let error: f32 = loud.iter().map(|&i| (again[i] - mel[i]).abs()).sum::<f32>() / loud.len() as f32;
        assert!(error < CLOSE, "{error}");
        for few in [0, 1] {
            assert!(sound(&mel[..few * MELS], 3, 1).is_empty());
        }
        assert_eq!(sound(&mel[..2 * MELS], 3, 1).len(), HOP);
    }

    /// Blocks that meet in the same samples make no step, and a sound of many is as near its mel as one of a single block.
    #[test]
    fn long_sound_is_one_sound() {
        for frames in [BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + KNOWN + AHEAD, 5 * BLOCK / 2, 4 * BLOCK] {
            let wave: Vec<f32> = (0..frames * HOP)
                .map(|i| (i as f32 * 0.05).sin() * 0.3 + (i as f32 * 0.171).sin() * 0.1)
                .collect();
            let mel = log_mel(&wave).expect("long enough");
            let mut solver = GriffinLim::new(&mel, ITERATIONS, 3);
            let (mut back, mut joints) = (Vec::new(), Vec::new());
            while let Some(piece) = solver.next_piece() {
                back.extend_from_slice(piece);
                joints.push(back.len());
            }
            assert_eq!(back.len(), (mel.len() / MELS - 1) * HOP);
            let step = |i: usize| (back[i] - 2.0 * back[i - 1] + back[i - 2]).abs();
            let largest = (2..back.len()).map(step).fold(0.0, f32::max);
            joints.pop();
            let blocks = (mel.len() / MELS).saturating_sub(BLOCK).div_ceil(BLOCK - KNOWN - AHEAD);
            assert_eq!(joints.len(), blocks, "{frames} frames");
            for at in joints {
                let here = (at..at + 2).map(step).fold(0.0, f32::max);
                assert!(here <= 0.5 * largest.max(0.02), "{frames} frames, sample {at}: {here} of {largest}");
            }
            let again = log_mel(&back).expect("long enough");
            let near = |i: &usize| mel[*i] > -3.0;
            let loud: Vec<usize> = (0..again.len().min(mel.len())).filter(near).collect();
            let error: f32 = loud.iter().map(|&i| (again[i] - mel[i]).abs()).sum::<f32>() / loud.len() as f32;
            assert!(error < CLOSE, "{frames}: {error}");
        }
    }

    fn sound(log_mel: &[f32], iterations: usize, seed: u64) -> Vec<f32> {
        let (mut solver, mut wave) = (GriffinLim::new(log_mel, iterations, seed), Vec::new());
        while let Some(piece) = solver.next_piece() {
            wave.extend_from_slice(piece);
        }
        wave
    }
}
