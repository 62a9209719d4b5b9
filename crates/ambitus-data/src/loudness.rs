//! Loudness as ITU-R BS.1770-4 and EBU R128 define it: two filters for the ear, blocks of 400 ms, silence left out.

use std::f64::consts::PI;

/// Blocks that are softer are silence, LUFS; then those that are softer than the rest by so much, LU.
const GATES: (f64, f64) = (-70.0, 10.0);
/// Loudness of a mean square of 1 after the filters, LUFS.
const OFFSET: f64 = -0.691;
/// A block is four tenths of a second; the next one begins after one.
const TENTHS: usize = 4;

/// A filter of the second order, in the transposed second direct form; its a0 is 1.
struct Filter {
    b: [f64; 3],
    a: [f64; 2],
    kept: [f64; 2],
}

impl Filter {
    /// The standard's two filters, which it gives at 48 kHz, at any rate: the analogue ones that lead to its coefficients, by the bilinear
    /// transform.
    fn of_the_ear(rate: f64) -> [Filter; 2] {
        let warped = |hz: f64, q: f64| {
            let k = (PI * hz / rate).tan();
            (k, k / q, 1.0 + k / q + k * k)
        };
        let feedback = |k: f64, kq: f64, a0: f64| [2.0 * (k * k - 1.0) / a0, (1.0 - kq + k * k) / a0];
        let (k, kq, a0) = warped(1681.974450955533, 0.7071752369554196);
        let high = 10f64.powf(3.999843853973347 / 20.0);
        let band = high.powf(0.4996667741545416);
        let b = [high + band * kq + k * k, 2.0 * (k * k - high), high - band * kq + k * k];
        let shelf = Filter { b: b.map(|b| b / a0), a: feedback(k, kq, a0), kept: [0.0; 2] };
        let (k, kq, a0) = warped(38.13547087602444, 0.5003270373238773);
        [shelf, Filter { b: [1.0, -2.0, 1.0], a: feedback(k, kq, a0), kept: [0.0; 2] }]
    }

    fn next(&mut self, x: f64) -> f64 {
        let y = self.b[0] * x + self.kept[0];
        self.kept = [self.b[1] * x - self.a[0] * y + self.kept[1], self.b[2] * x - self.a[1] * y];
        y
    }
}

/// Measures the samples of a channel as they come. Memory: 8 bytes for a tenth of a second.
pub(crate) struct Loudness {
    filters: [Filter; 2],
    rate: f64,
    /// Mean squares of tenths of a second.
    tenths: Vec<f64>,
    sum: f64,
    samples: u64,
    begun: u64,
}

impl Loudness {
    /// `rate`: Hz.
    pub(crate) fn new(rate: u32) -> Self {
        let rate = f64::from(rate);
        Self { filters: Filter::of_the_ear(rate), rate, tenths: Vec::new(), sum: 0.0, samples: 0, begun: 0 }
    }

    pub(crate) fn push(&mut self, x: f64) {
        self.sum += self.filters.iter_mut().fold(x, |x, filter| filter.next(x)).powi(2);
        self.samples += 1;
        if self.samples as f64 >= (self.tenths.len() + 1) as f64 * 0.1 * self.rate {
            self.tenths.push(self.sum / (self.samples - self.begun) as f64);
            (self.sum, self.begun) = (0.0, self.samples);
        }
    }

    /// Adds another channel of the same sound: loudness is that of all together.
    pub(crate) fn add(&mut self, channel: &Loudness) {
        self.tenths.iter_mut().zip(&channel.tenths).for_each(|(all, one)| *all += one);
    }

    /// Returns the integrated loudness, LUFS; none of less than a block, and of silence.
    pub(crate) fn integrated(&self) -> Option<f64> {
        let blocks = self.tenths.windows(TENTHS).map(|of| of.iter().sum::<f64>() / TENTHS as f64);
        let above = |gate: f64| {
            let (n, sum) =
                blocks.clone().filter(|z| lufs(*z) > gate).fold((0u64, 0.0), |(n, sum), z| (n + 1, sum + z));
            (n > 0).then(|| lufs(sum / n as f64))
        };
        above(GATES.0).and_then(|all| above(GATES.0.max(all - GATES.1)))
    }
}

fn lufs(square: f64) -> f64 {
    OFFSET + 10.0 * square.log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, parts: &[(f64, f64)]) -> Option<f64> {
        let mut loudness = Loudness::new(rate);
        let mut t = 0u64;
        for (seconds, decibels) in parts {
            for _ in 0..(seconds * f64::from(rate)) as u64 {
                let x = (2.0 * PI * 997.0 * t as f64 / f64::from(rate)).sin();
                loudness.push(10f64.powf(decibels / 20.0) * x);
                t += 1;
            }
        }
        loudness.integrated()
    }

    /// EBU Tech 3341's cases 1 to 3, in one channel: 3 LU below their two. The standard gives 997 Hz at full scale -3.01 LUFS.
    #[test]
    fn tones_are_as_loud_as_the_standard_says() {
        for rate in [16_000, 22_050, 24_000, 48_000] {
            let near = |parts: &[(f64, f64)], want: f64| {
                let got = tone(rate, parts).expect("a loudness");
                assert!((got - want).abs() < 0.1, "{rate}: {got} is not {want}");
            };
            near(&[(20.0, -20.0)], -23.01);
            near(&[(10.0, -33.0)], -36.01);
            near(&[(10.0, -36.0), (60.0, -23.0), (10.0, -36.0)], -26.01);
            assert_eq!(tone(rate, &[(0.3, -20.0)]), None);
            assert_eq!(tone(rate, &[(2.0, -90.0)]), None);
        }
    }
}
