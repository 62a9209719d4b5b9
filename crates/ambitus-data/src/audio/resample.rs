//! Streaming resampler with torchaudio's default kernel.
//!
//! The references resample with `torchaudio.transforms.Resample(orig, new)`: `sinc_interp_hann`, `lowpass_filter_width` 6,
//! `rolloff` 0.99. With orig and new divided by their greatest common divisor, base = 0.99·min(orig, new), output
//! j = b·new + p is Σ x[i] · (base/orig) · sinc(t) · cos²(π·t/12), t = base·((i − b·orig)/orig − p/new), over |t| < 6,
//! and there are ⌈L·new/orig⌉ outputs. The half-width in input samples (11.1 from 44.1 kHz) is no whole number, and
//! the transition band is wide, so a general resampler with its own filter (`rubato`) differs by far more than the
//! tolerance; this polyphase form is the same sum without torchaudio's zero weights.

const WIDTH: f64 = 6.0;
const ROLLOFF: f64 = 0.99;
/// Phases are tabulated up to this many weights (1 MiB); rarer ratios compute them per sample.
const TABLE_WEIGHTS: usize = 1 << 18;

/// Resamples mono audio from any rate to any other, chunk by chunk.
pub struct Resampler {
    orig: u64,
    new: u64,
    kernel: Kernel,
    /// First weights' offset and the weights of each phase; empty if they would not fit [`TABLE_WEIGHTS`].
    table: Vec<(i64, Vec<f32>)>,
    /// Input samples from index `start` on.
    held: Vec<f32>,
    start: u64,
    taken: u64,
    given: u64,
}

#[derive(Clone, Copy)]
struct Kernel {
    orig: f64,
    new: f64,
    base: f64,
}

impl Kernel {
    /// Computes the weights of phase `p` and the input offset (relative to b·orig) of the first.
    fn phase(self, p: u64, weights: &mut Vec<f32>) -> i64 {
        // torchaudio divides the phase in f32 and continues in f64.
        let centre = f64::from(p as f32 / self.new as f32);
        let reach = WIDTH / self.base * self.orig;
        let first = (centre * self.orig - reach).floor() as i64;
        let last = (centre * self.orig + reach).ceil() as i64;
        weights.clear();
        weights.extend((first..=last).map(|i| {
            let t = ((i as f64 / self.orig - centre) * self.base).clamp(-WIDTH, WIDTH);
            let window = (t * std::f64::consts::PI / WIDTH / 2.0).cos().powi(2);
            let x = t * std::f64::consts::PI;
            let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
            (sinc * window * (self.base / self.orig)) as f32
        }));
        first
    }
}

impl Resampler {
    /// Returns a resampler from one rate to another, in Hz (not 0).
    pub fn new(from: u32, to: u32) -> Self {
        let (from, to) = (from.max(1), to.max(1));
        let divisor = gcd(from, to);
        let (orig, new) = (from / divisor, to / divisor);
        let kernel =
            Kernel { orig: f64::from(orig), new: f64::from(new), base: f64::from(orig.min(new)) * ROLLOFF };
        let taps = (2.0 * WIDTH / kernel.base * kernel.orig) as usize + 3;
        let table = if orig != new && new as usize * taps <= TABLE_WEIGHTS {
            (0..u64::from(new))
                .map(|p| {
                    let mut weights = Vec::new();
                    let first = kernel.phase(p, &mut weights);
                    (first, weights)
                })
                .collect()
        } else {
            Vec::new()
        };
        Self {
            orig: u64::from(orig),
            new: u64::from(new),
            kernel,
            table,
            held: Vec::new(),
            start: 0,
            taken: 0,
            given: 0,
        }
    }

    /// Takes input samples and appends every output that no later input can change.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        if self.orig == self.new {
            out.extend_from_slice(samples);
            return;
        }
        self.held.extend_from_slice(samples);
        self.taken += samples.len() as u64;
        self.run(u64::MAX, out);
    }

    /// Ends the input and appends the remaining outputs, ⌈L·new/orig⌉ in all.
    pub fn finish(mut self, out: &mut Vec<f32>) {
        if self.orig != self.new {
            let total = (self.taken * self.new).div_ceil(self.orig);
            self.run(total, out);
        }
    }

    /// Computes outputs up to `total`; `u64::MAX` means as far as the input reaches.
    fn run(&mut self, total: u64, out: &mut Vec<f32>) {
        let flushing = total != u64::MAX;
        let mut scratch = Vec::new();
        while self.given < total {
            let (block, phase) = (self.given / self.new, self.given % self.new);
            let (offset, weights) = match self.table.get(phase as usize) {
                Some((offset, weights)) => (*offset, weights.as_slice()),
                None => {
                    let offset = self.kernel.phase(phase, &mut scratch);
                    (offset, scratch.as_slice())
                }
            };
            let first = (block * self.orig) as i64 + offset;
            if !flushing && first + weights.len() as i64 > self.taken as i64 {
                break;
            }
            // Before the start and after the end the input counts as zero.
            let from = first.max(self.start as i64);
            let to = (first + weights.len() as i64).min(self.taken as i64);
            let mut sum = 0.0f64;
            if from < to {
                let weights = &weights[(from - first) as usize..(to - first) as usize];
                let held = &self.held[(from - self.start as i64) as usize..];
                for (&w, &x) in weights.iter().zip(held) {
                    sum += f64::from(w) * f64::from(x);
                }
            }
            out.push(sum as f32);
            self.given += 1;
        }
        // Later outputs reach back no further than one kernel before their block.
        let reach = (WIDTH / self.kernel.base * self.kernel.orig) as u64 + 2;
        let needed = ((self.given / self.new) * self.orig).saturating_sub(reach).min(self.taken);
        if needed > self.start {
            self.held.drain(..(needed - self.start) as usize);
            self.start = needed;
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Resamples a whole waveform from one rate to another, in Hz.
pub fn resample(samples: &[f32], from: u32, to: u32) -> Vec<f32> {
    let mut resampler = Resampler::new(from, to);
    let mut out = Vec::new();
    resampler.push(samples, &mut out);
    resampler.finish(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_give_the_same_samples_as_the_whole() {
        let wave: Vec<f32> = (0..3000).map(|i| (i as f32 * 0.11).sin()).collect();
        for rate in [8000, 16000, 22050, 24000, 44100, 47999, 48000, 192_000] {
            let whole = resample(&wave, rate, 24_000);
            let expected = (wave.len() as u64 * 24000).div_ceil(u64::from(rate));
            assert_eq!(whole.len() as u64, expected, "{rate}");
            for piece in [1, 13, 1152] {
                let mut out = Vec::new();
                let mut resampler = Resampler::new(rate, 24_000);
                for chunk in wave.chunks(piece) {
                    resampler.push(chunk, &mut out);
                }
                resampler.finish(&mut out);
                assert_eq!(out, whole, "{rate} Hz, pieces of {piece}");
            }
        }
        assert!(resample(&[], 44100, 24_000).is_empty());
    }

    #[test]
    fn a_tone_keeps_its_pitch_and_level() {
        for rate in [16000u32, 22050, 44100, 48000] {
            let tone = |rate: u32, n: usize| -> Vec<f32> {
                (0..n)
                    .map(|i| (2.0 * std::f64::consts::PI * 440.0 * i as f64 / f64::from(rate)).sin() as f32)
                    .collect()
            };
            let out = resample(&tone(rate, rate as usize), rate, 24_000);
            let expected = tone(24000, 24000);
            // A tone far below the cut-off passes unchanged to the kernel's ripple.
            const RIPPLE: f32 = 5e-3;
            for (a, b) in out[200..23800].iter().zip(&expected[200..23800]) {
                assert!((a - b).abs() < RIPPLE, "{rate}: {a} {b}");
            }
        }
    }
}
