//! What a mel spectrogram is of: transform, window, filters and logarithm as settings, with the arithmetic of
//! `torchaudio.transforms.MelSpectrogram` (centred, reflection at the ends), on the HTK scale or, as librosa has it, on Slaney's.

use super::{FLOOR, HOP, MELS, N_FFT, SAMPLE_RATE};

/// A window's shape and length, samples; periodic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// 0.5 - 0.5 cos
    Hann(usize),
    /// 0.54 - 0.46 cos
    Hamming(usize),
}

/// The logarithm of a band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Log {
    /// ln(max(x, floor))
    Clamped(f32),
    /// ln(x + more)
    Added(f32),
    /// log10(max(x, floor))
    Base10(f32),
}

/// Where bands lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// 2595 log10(1 + f / 700), computed in f32 as torchaudio does.
    Htk,
    /// Slaney's (Auditory Toolbox, 1998), linear up to 1 kHz and logarithmic from there; computed in f64 as librosa does.
    Slaney,
}

impl Log {
    pub(super) fn of(self, x: f32) -> f32 {
        match self {
            Log::Clamped(floor) => x.max(floor).ln(),
            Log::Added(more) => (x + more).ln(),
            Log::Base10(floor) => x.max(floor).log10(),
        }
    }
}

/// The settings of a mel spectrogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Front {
    /// Of the audio, Hz.
    pub rate: u32,
    /// Samples of a transform, even.
    pub n_fft: usize,
    /// The window: at most a transform, in whose middle it lies.
    pub window: Window,
    /// Samples from one frame to the next: less than half a transform.
    pub hop: usize,
    /// Bands of a row.
    pub bands: usize,
    /// Lowest and highest frequency of the bands, Hz.
    pub range: [f64; 2],
    /// On which they are evenly spaced.
    pub scale: Scale,
    /// Each filter has area 1 (Slaney's), not height 1.
    pub slaney: bool,
    /// Filters are over |x|^2, not |x|.
    pub power: bool,
    /// Of a band.
    pub log: Log,
}

impl Front {
    /// What clips are made of.
    pub const CLIPS: Front = Front {
        rate: SAMPLE_RATE,
        n_fft: N_FFT,
        window: Window::Hann(N_FFT),
        hop: HOP,
        bands: MELS,
        range: [0.0, 12_000.0],
        scale: Scale::Htk,
        slaney: false,
        power: false,
        log: Log::Clamped(FLOOR),
    };

    /// Returns the number N of frames of a waveform of L = `samples` samples: ⌊L / hop⌋ + 1.
    pub fn frames(&self, samples: u64) -> u64 {
        samples / self.hop as u64 + 1
    }

    /// Returns the samples without which there is no frame: reflection needs more than it pads.
    pub fn min_samples(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// Returns whether its sizes go together.
    pub fn check(&self) -> bool {
        let (Window::Hann(window) | Window::Hamming(window)) = self.window;
        self.n_fft.is_multiple_of(2)
            && (1..=self.n_fft).contains(&window)
            && (1..self.n_fft / 2).contains(&self.hop)
            && self.bands > 0
            && self.range[0] < self.range[1]
    }

    /// Returns the number of frequencies of a transform.
    pub(super) fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    pub(super) fn window(&self) -> Vec<f32> {
        match self.window {
            Window::Hann(n) => hann_window(n),
            Window::Hamming(n) => cosine_window(n, 0.54, 0.46),
        }
    }

    /// Returns the filter bank of its scale.
    pub(super) fn filter_bank(&self) -> Vec<Filter> {
        match self.scale {
            Scale::Htk => self.htk_filters(),
            Scale::Slaney => self.slaney_filters(),
        }
    }

    /// Returns the HTK filter bank (torchaudio `melscale_fbanks`, mel_scale="htk").
    fn htk_filters(&self) -> Vec<Filter> {
        let bin_hz = linspace(0.0, (self.rate / 2) as f32, self.bins());
        let mel = |hz: f64| (2595.0 * (1.0 + hz / 700.0).log10()) as f32;
        let edges: Vec<f32> = linspace(mel(self.range[0]), mel(self.range[1]), self.bands + 2)
            .into_iter()
            .map(|m| 700.0 * (10f32.powf(m / 2595.0) - 1.0))
            .collect();
        let filter = |m: usize| {
            let rise = edges[m + 1] - edges[m];
            let fall = edges[m + 2] - edges[m + 1];
            let height = if self.slaney { 2.0 / (edges[m + 2] - edges[m]) } else { 1.0 };
            let weight = |hz: &f32| {
                let up = (hz - edges[m]) / rise;
                let down = (edges[m + 2] - hz) / fall;
                up.min(down).max(0.0) * height
            };
            Filter::of(bin_hz.iter().map(weight).collect())
        };
        (0..self.bands).map(filter).collect()
    }

    /// Returns the filter bank on Slaney's scale (librosa 0.11 `filters.mel`, htk=False).
    fn slaney_filters(&self) -> Vec<Filter> {
        // 15 mels to 1 kHz, 27 mels from there to 6.4 times that.
        let (linear, above) = (200.0 / 3.0, 6.4f64.ln() / 27.0);
        let mel = |hz: f64| if hz < 1000.0 { hz / linear } else { 15.0 + (hz / 1000.0).ln() / above };
        let hz = |mel: f64| if mel < 15.0 { mel * linear } else { 1000.0 * ((mel - 15.0) * above).exp() };
        let [low, high] = self.range.map(mel);
        let step = (high - low) / (self.bands + 1) as f64;
        let edges: Vec<f64> = (0..self.bands + 2).map(|m| hz(low + step * m as f64)).collect();
        let bin = f64::from(self.rate) / self.n_fft as f64;
        let filter = |m: usize| {
            let height = if self.slaney { 2.0 / (edges[m + 2] - edges[m]) } else { 1.0 };
            let weight = |k: usize| {
                let hz = k as f64 * bin;
                let up = (hz - edges[m]) / (edges[m + 1] - edges[m]);
                let down = (edges[m + 2] - hz) / (edges[m + 2] - edges[m + 1]);
                (up.min(down).max(0.0) * height) as f32
            };
            Filter::of((0..self.bins()).map(weight).collect())
        };
        (0..self.bands).map(filter).collect()
    }
}

/// One triangular filter: weights of the bins from `start`.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    pub(crate) start: usize,
    pub(crate) weights: Vec<f32>,
}

impl Filter {
    /// Returns the filter of a weight for each bin.
    fn of(weights: Vec<f32>) -> Filter {
        let start = weights.iter().position(|&w| w > 0.0).unwrap_or(0);
        let end = weights.iter().rposition(|&w| w > 0.0).map_or(0, |e| e + 1);
        Filter { start, weights: weights[start..end.max(start)].to_vec() }
    }
}

/// Returns the filters of what clips are made of.
pub(crate) fn filter_bank() -> Vec<Filter> {
    Front::CLIPS.filter_bank()
}

/// Returns the periodic Hann window `[n]` with torch's rounding: its argument is an f32, and the error that this makes is
/// far above that of the FFT.
pub fn hann_window(n: usize) -> Vec<f32> {
    cosine_window(n, 0.5, 0.5)
}

fn cosine_window(n: usize, base: f32, depth: f32) -> Vec<f32> {
    let step = (2.0 * std::f64::consts::PI / n as f64) as f32;
    (0..n).map(|i| base - depth * (f64::from(i as f32 * step).cos() as f32)).collect()
}

/// Computes `torch.linspace` in f32: counted from the nearer end.
fn linspace(from: f32, to: f32, n: usize) -> Vec<f32> {
    let step = (to - from) / (n - 1) as f32;
    (0..n).map(|i| if i < n / 2 { from + step * i as f32 } else { to - step * (n - 1 - i) as f32 }).collect()
}
