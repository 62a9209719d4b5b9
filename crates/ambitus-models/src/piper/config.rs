//! The shape of a Piper voice: what its checkpoint's `hyper_parameters` say, and what shapes of tensors say.
//!
//! Absent keys are piper1-gpl's defaults (`VitsModel`), a voice of medium quality.

use crate::error::{ConfigError, err, sensible};
use crate::hifigan;
use crate::hifigan::config::{Block, Unit, Up};
use crate::model::Rows;
use serde::{Deserialize, Serialize};

/// Slope of the rectifiers of generator and discriminators; the generator's last has [`LAST_SLOPE`].
pub const SLOPE: f32 = 0.1;
/// Of the generator's last rectifier.
pub const LAST_SLOPE: f32 = 0.01;
/// Bins of the duration predictor's splines.
pub const BINS: usize = 10;
/// Beyond which they are the identity.
pub const BOUND: f32 = 5.0;
/// Splines of each of the duration predictor's two flows.
pub const SPLINES: usize = 4;
/// Layers of the convolutions that give a spline.
pub const SPLINE_LAYERS: usize = 3;
/// Couplings of the flow from frames to the text's prior.
pub const COUPLINGS: usize = 4;
/// Taps of the generator's first and last convolution.
pub const TAPS: usize = 7;
/// Periods of the discriminators behind the first, which sees the samples as they are.
pub const PERIODS: [usize; 5] = [2, 3, 5, 7, 11];
/// Strides of the first discriminator's convolutions.
pub const STRIDES: [usize; 6] = [1, 4, 4, 4, 4, 1];
/// Strides of the others'.
pub const PERIOD_STRIDES: [usize; 5] = [3, 3, 3, 3, 1];

/// Gated convolutions with skips (WaveNet, arXiv 1609.03499).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gated {
    /// Layers.
    pub layers: usize,
    /// Taps of each, odd.
    pub taps: usize,
}

/// What says how many frames a phoneme has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durations {
    /// A flow of splines over noise (`use_sdp`).
    Stochastic {
        /// Taps of its depthwise convolutions, odd.
        taps: usize,
    },
    /// Two convolutions.
    Plain {
        /// Their channels.
        width: usize,
        /// Their taps.
        taps: usize,
    },
}

/// A convolution of a discriminator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judging {
    /// Channels that it gives.
    pub out: usize,
    /// Taps, odd.
    pub taps: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Rows for one.
    pub stride: usize,
}

/// Settings of spectrograms and of the mel loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spectra {
    /// Of audio, Hz.
    pub rate: u32,
    /// `filter_length`.
    pub n_fft: usize,
    /// `hop_length`: samples of a frame.
    pub hop: usize,
    /// `win_length`.
    pub window: usize,
    /// Bands.
    pub bands: usize,
    /// Lowest frequency, Hz.
    pub low: f64,
    /// Highest frequency, Hz: half the rate where the project has none.
    pub high: f64,
}

impl Spectra {
    /// Returns the numbers of a frame of a spectrogram.
    pub fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }
}

/// A checked model shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Phoneme ids.
    pub symbols: usize,
    /// H: channels of the text encoder and of gated convolutions.
    pub hidden: usize,
    /// Channels of a frame's latent.
    pub inter: usize,
    /// Inner channels of the text encoder's feed-forward layers.
    pub filter: usize,
    /// Heads of the text encoder; divides H.
    pub heads: usize,
    /// Layers of the text encoder.
    pub layers: usize,
    /// Taps of its feed-forward layers.
    pub kernel: usize,
    /// Rows to either side that have keys and values of their own in its attention.
    pub near: usize,
    /// Speakers; a model of one has no table of them.
    pub speakers: usize,
    /// Numbers of a speaker, where there are several.
    pub speaker: usize,
    /// The encoder of spectrograms.
    pub posterior: Gated,
    /// Each coupling of the flow.
    pub coupling: Gated,
    /// The duration predictor.
    pub durations: Durations,
    /// Channels behind the generator's first convolution; each step halves them.
    pub width: usize,
    /// Its steps.
    pub ups: Vec<Up>,
    /// The residual blocks of each step.
    pub blocks: Vec<Block>,
    /// What they are made of.
    pub unit: Unit,
    /// Convolutions of each discriminator, the last of them its verdict: the first sees samples, the others [`PERIODS`].
    pub judges: Vec<Vec<Judging>>,
    /// Frames of the slice that the generator makes of a clip.
    pub segment: usize,
    /// Spectrograms.
    pub spectra: Spectra,
    /// What the mel loss counts.
    pub mel_weight: f32,
    /// What the divergence of the two distributions of frames counts.
    pub kl_weight: f32,
    /// Of the text encoder, in training. That of the duration predictor is [`DURATION_DROPOUT`].
    pub dropout: f32,
    /// Phonemes of a text at most: a micro-batch of S clips has S times as many.
    pub context: usize,
}

/// Dropout of the duration predictor, in training.
pub const DURATION_DROPOUT: f32 = 0.5;

/// The sizes that voices are published in (rhasspy/piper, `piper_train`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    /// Half as many channels, at 16 kHz.
    XLow,
    /// As medium, at 16 kHz.
    Low,
    /// At 22.05 kHz.
    Medium,
    /// A larger generator, at 22.05 kHz.
    High,
}

impl Config {
    /// Returns a voice of medium quality with one speaker.
    pub fn medium() -> Config {
        let block = |taps, dilations: [usize; 2]| Block { taps, dilations: dilations.to_vec() };
        let spectra = Spectra {
            rate: 22_050,
            n_fft: 1024,
            hop: 256,
            window: 1024,
            bands: 80,
            low: 0.0,
            high: 11_025.0,
        };
        Config {
            symbols: 256,
            hidden: 192,
            inter: 192,
            filter: 768,
            heads: 2,
            layers: 6,
            kernel: 3,
            near: 4,
            speakers: 1,
            speaker: 0,
            posterior: Gated { layers: 16, taps: 5 },
            coupling: Gated { layers: 4, taps: 5 },
            durations: Durations::Stochastic { taps: 3 },
            width: 256,
            ups: [(8, 16), (8, 16), (4, 8)].map(|(rate, taps)| Up { rate, taps }).to_vec(),
            blocks: vec![block(3, [1, 2]), block(5, [2, 6]), block(7, [3, 12])],
            unit: Unit::Single,
            judges: judges(),
            segment: 32,
            spectra,
            mel_weight: 45.0,
            kl_weight: 1.0,
            dropout: 0.1,
            context: 1,
        }
    }

    /// Returns a voice of a quality with one speaker.
    pub fn of(quality: Quality) -> Config {
        let mut config = Config::medium();
        match quality {
            Quality::Medium => {}
            Quality::XLow => (config.hidden, config.inter, config.filter) = (96, 96, 384),
            Quality::Low => {}
            Quality::High => {
                config.width = 512;
                config.ups =
                    [(8, 16), (8, 16), (2, 4), (2, 4)].map(|(rate, taps)| Up { rate, taps }).to_vec();
                config.blocks = [3, 7, 11].map(|taps| Block { taps, dilations: vec![1, 3, 5] }).to_vec();
                config.unit = Unit::Double;
            }
        }
        if matches!(quality, Quality::XLow | Quality::Low) {
            (config.spectra.rate, config.spectra.high) = (16_000, 8000.0);
        }
        config
    }

    /// Returns the samples of a clip's slice.
    pub fn slice(&self) -> usize {
        self.segment * self.spectra.hop
    }

    /// Returns the channels behind `steps` steps of the generator.
    pub fn width_of(&self, steps: usize) -> usize {
        self.width >> steps
    }

    /// Returns the shape of the generator.
    pub fn generator(&self) -> hifigan::config::Config {
        hifigan::config::Config {
            input: self.inter,
            width: self.width,
            ups: self.ups.clone(),
            blocks: self.blocks.clone(),
            unit: self.unit,
            voice: (self.speakers > 1).then_some(self.speaker),
            voice_each: false,
            last_slope: LAST_SLOPE,
            last_bias: false,
        }
    }

    /// Returns what a row is.
    pub fn rows(&self) -> Rows {
        let per_second = f64::from(self.spectra.rate) / self.spectra.hop as f64;
        Rows { unit: "frames", per_second, most: None }
    }

    /// Checks that sizes go together.
    ///
    /// # Errors
    /// Names the one that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let size = |key, n: usize, most: usize| match (1..=most).contains(&n) {
            true => Ok(()),
            false => err(key, format!("{n} is not in 1..={most}")),
        };
        let odd = |key, n: usize| match n % 2 {
            1 if n < 1 << 10 => Ok(()),
            _ => err(key, format!("{n} taps are no odd number below 1024")),
        };
        for (key, n) in [
            ("num_symbols", self.symbols),
            ("hidden_channels", self.hidden),
            ("inter_channels", self.inter),
            ("filter_channels", self.filter),
            ("n_heads", self.heads),
            ("n_layers", self.layers),
            ("kernel_size", self.kernel),
            ("num_speakers", self.speakers),
            ("upsample_initial_channel", self.width),
            ("hop_length", self.spectra.hop),
            ("win_length", self.spectra.window),
            ("mel_channels", self.spectra.bands),
        ] {
            size(key, n, 1 << 16)?;
        }
        if !self.hidden.is_multiple_of(self.heads) {
            return err("n_heads", format!("{} heads do not divide {} channels", self.heads, self.hidden));
        }
        if self.inter % 2 == 1 {
            return err("inter_channels", format!("{} channels have no halves", self.inter));
        }
        if self.speakers > 1 {
            size("gin_channels", self.speaker, 1 << 14)?;
        }
        for gated in [self.posterior, self.coupling] {
            size("enc_q.enc.in_layers", gated.layers, 256)?;
            odd("enc_q.enc.in_layers", gated.taps)?;
        }
        match self.durations {
            Durations::Stochastic { taps } => odd("dp.convs", taps)?,
            Durations::Plain { width, taps } => {
                size("dp.conv_1", width, 1 << 14)?;
                odd("dp.conv_1", taps)?;
            }
        }
        self.check_sound()?;
        let inner = self.posterior.layers + COUPLINGS * self.coupling.layers;
        let gated = self.hidden * self.hidden * 2 * (self.posterior.taps + 1) * inner;
        let text = self.layers * self.hidden * (4 * self.hidden + 2 * self.kernel * self.filter);
        sensible("hidden_channels", (gated + text + self.symbols * self.hidden) as u64)
    }

    /// Checks generator, discriminators and spectrograms.
    fn check_sound(&self) -> Result<(), ConfigError> {
        let Spectra { rate, n_fft, hop, window, low, high, .. } = self.spectra;
        if self.ups.is_empty() || self.width >> self.ups.len() == 0 {
            let why = format!("{} channels cannot be halved {} times", self.width, self.ups.len());
            return err("upsample_initial_channel", why);
        }
        for up in &self.ups {
            if up.rate == 0 || up.taps < up.rate || (up.taps - up.rate) % 2 == 1 || up.taps > 1 << 12 {
                let why = format!("{} taps do not make {} rows of one", up.taps, up.rate);
                return err("upsample_kernel_sizes", why);
            }
        }
        if self.ups.iter().try_fold(1_usize, |hop, up| hop.checked_mul(up.rate)) != Some(hop) {
            return err("upsample_rates", format!("do not make the {hop} samples of a frame"));
        }
        for block in &self.blocks {
            if block.taps.is_multiple_of(2) || block.taps > 1 << 10 || block.dilations.is_empty() {
                return err("resblock_kernel_sizes", format!("{} taps are no odd number", block.taps));
            }
            if block.dilations.iter().any(|d| *d == 0 || *d > 1 << 10) {
                return err("resblock_dilation_sizes", "are not all in 1..=1024".to_owned());
            }
        }
        if self.blocks.is_empty() {
            return err("resblock_kernel_sizes", "names none".to_owned());
        }
        if self.segment == 0 || self.slice() > 1 << 20 {
            return err("segment_size", format!("{} frames are no slice", self.segment));
        }
        let side = n_fft.saturating_sub(hop) / 2;
        if n_fft % 2 == 1 || n_fft < window || n_fft < hop || (n_fft - hop) % 2 == 1 || side >= self.slice() {
            let why = format!(
                "{n_fft} does not go with a window of {window}, a hop of {hop} and slices of {}",
                self.slice()
            );
            return err("filter_length", why);
        }
        if rate == 0 || low < 0.0 || high <= low || high > f64::from(rate) {
            return err("mel_fmax", format!("bands from {low} to {high} Hz are none of audio of {rate} Hz"));
        }
        let strides = |i: usize| if i == 0 { &STRIDES[..] } else { &PERIOD_STRIDES[..] };
        if self.judges.len() != PERIODS.len() + 1 {
            return err(
                "model_d",
                format!("has {} discriminators, not {}", self.judges.len(), PERIODS.len() + 1),
            );
        }
        for (i, judge) in self.judges.iter().enumerate() {
            if judge.len() != strides(i).len() + 1 {
                return err("model_d", format!("discriminator {i} has {} convolutions", judge.len()));
            }
            if judge
                .iter()
                .any(|c| c.taps.is_multiple_of(2) || c.taps > 1 << 10 || c.out == 0 || c.groups == 0)
            {
                return err(
                    "model_d",
                    format!("discriminator {i} has a convolution of no odd number of taps"),
                );
            }
        }
        Ok(())
    }
}

/// Returns the published discriminators.
fn judges() -> Vec<Vec<Judging>> {
    let samples =
        [(16, 15, 1), (64, 41, 4), (256, 41, 16), (1024, 41, 64), (1024, 41, 256), (1024, 5, 1), (1, 3, 1)];
    let period = [(32, 5, 1), (128, 5, 1), (512, 5, 1), (1024, 5, 1), (1024, 5, 1), (1, 3, 1)];
    let with = |convs: &[(usize, usize, usize)], strides: &[usize]| {
        let strides = strides.iter().copied().chain([1]);
        convs
            .iter()
            .zip(strides)
            .map(|(&(out, taps, groups), stride)| Judging { out, taps, groups, stride })
            .collect()
    };
    let mut all = vec![with(&samples, &STRIDES)];
    all.extend(PERIODS.map(|_| with(&period, &PERIOD_STRIDES)));
    all
}
