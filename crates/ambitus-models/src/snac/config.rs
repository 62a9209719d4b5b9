//! The shape of a SNAC codec, from the package's `config.json`.

use crate::common::codec::{TAPS, rows};
pub use crate::error::ConfigError;
use crate::error::err;
use serde::Deserialize;

/// The only sample rate that audio is read at.
pub const SAMPLE_RATE: u32 = 24_000;

/// The file as the package writes it: keyword arguments of its `SNAC`, with its defaults. Other keys are errors there and here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct File {
    pub sampling_rate: u32,
    pub encoder_dim: usize,
    pub encoder_rates: Vec<usize>,
    pub latent_dim: Option<usize>,
    pub decoder_dim: usize,
    pub decoder_rates: Vec<usize>,
    pub attn_window_size: Option<usize>,
    pub codebook_size: usize,
    pub codebook_dim: usize,
    pub vq_strides: Vec<usize>,
    pub noise: bool,
    pub depthwise: bool,
}

impl Default for File {
    fn default() -> File {
        File {
            sampling_rate: 44_100,
            encoder_dim: 64,
            encoder_rates: vec![3, 3, 7, 7],
            latent_dim: None,
            decoder_dim: 1536,
            decoder_rates: vec![7, 7, 3, 3],
            attn_window_size: Some(32),
            codebook_size: 4096,
            codebook_dim: 8,
            vq_strides: vec![8, 4, 2, 1],
            noise: true,
            depthwise: true,
        }
    }
}

/// A checked codec shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Channels after the encoder's first convolution; each block doubles them.
    pub encoder_dim: usize,
    /// Stride of each encoder block.
    pub encoder_rates: Vec<usize>,
    /// L: channels between encoder, codebooks and decoder.
    pub latent_dim: usize,
    /// Channels before the decoder's first block; each block halves them.
    pub decoder_dim: usize,
    /// Stride of each decoder block.
    pub decoder_rates: Vec<usize>,
    /// V: entries of each codebook.
    pub codebook_size: usize,
    /// Channels of an entry.
    pub codebook_dim: usize,
    /// Latent rows that share a code, for each codebook; the first is the largest.
    pub vq_strides: Vec<usize>,
    /// The decoder has noise blocks.
    pub noise: bool,
    /// Convolutions of residual units have one channel per group.
    pub depthwise: bool,
}

impl Config {
    /// Returns the shape of `hubertsiuzdak/snac_24khz`.
    pub fn snac_24khz() -> Config {
        Config {
            encoder_dim: 48,
            encoder_rates: vec![2, 4, 8, 8],
            latent_dim: 768,
            decoder_dim: 1024,
            decoder_rates: vec![8, 8, 4, 2],
            codebook_size: 4096,
            codebook_dim: 8,
            vq_strides: vec![4, 2, 1],
            noise: true,
            depthwise: true,
        }
    }

    /// Returns the number of samples per latent row.
    pub fn hop(&self) -> usize {
        self.encoder_rates.iter().product()
    }

    /// Returns the number of samples per frame: one code of the slowest codebook.
    pub fn frame(&self) -> usize {
        self.hop() * self.vq_strides[0]
    }

    /// Returns the number of codes of a codebook in a frame.
    pub fn codes_per_frame(&self, codebook: usize) -> usize {
        self.vq_strides[0] / self.vq_strides[codebook]
    }

    /// Returns the channels of the encoder before block `i`, and after the last.
    pub fn encoder_width(&self, i: usize) -> usize {
        self.encoder_dim << i
    }

    /// Returns the channels of the decoder before block `i`, and after the last.
    pub fn decoder_width(&self, i: usize) -> usize {
        self.decoder_dim >> i
    }

    /// Returns the number of frames before or after a frame on which its codes depend: the larger of the two.
    pub fn encoder_reach(&self) -> usize {
        rows::encoder_reach(&self.encoder_rates, TAPS, self.frame())
    }

    /// Returns the number of frames before or after a frame on which its samples depend: the larger of the two.
    pub fn decoder_reach(&self) -> usize {
        rows::decoder_reach(&self.decoder_rates, self.frame())
    }

    /// Returns the channel groups of a residual unit's convolution of `width` channels.
    pub fn groups(&self, width: usize) -> usize {
        if self.depthwise { width } else { 1 }
    }
}

impl File {
    /// Checks every key.
    ///
    /// # Errors
    /// Names the key: another sample rate, attention, or sizes that do not go together.
    pub fn config(&self) -> Result<Config, ConfigError> {
        if self.sampling_rate != SAMPLE_RATE {
            let why = format!(
                "{} Hz is not supported, audio is read at {SAMPLE_RATE} Hz; use snac_24khz",
                self.sampling_rate
            );
            return err("sampling_rate", why);
        }
        if let Some(n) = self.attn_window_size {
            let why = format!(
                "attention (windows of {n}) is not supported; snac_24khz has none and says null (absent means 32)"
            );
            return err("attn_window_size", why);
        }
        let within = |key, n: usize, most: usize| {
            if (1..=most).contains(&n) { Ok(()) } else { err(key, format!("{n} is not in 1..={most}")) }
        };
        for (key, rates) in [("encoder_rates", &self.encoder_rates), ("decoder_rates", &self.decoder_rates)] {
            if rates.is_empty() || rates.len() > 8 || rates.iter().any(|r| !(2..=64).contains(r)) {
                return err(key, format!("{rates:?} is not 1 to 8 strides of 2..=64"));
            }
        }
        let hop = |rates: &[usize]| rates.iter().product::<usize>();
        let (down, up) = (hop(&self.encoder_rates), hop(&self.decoder_rates));
        within("encoder_rates (their product)", down, 1 << 16)?;
        if down != up {
            let why = format!(
                "{:?} make {up} samples of a latent row, the encoder takes {down}",
                self.decoder_rates
            );
            return err("decoder_rates", why);
        }
        within("encoder_dim", self.encoder_dim, 1 << 12)?;
        within("decoder_dim", self.decoder_dim, 1 << 16)?;
        if self.decoder_dim >> self.decoder_rates.len() == 0 {
            return err(
                "decoder_dim",
                format!("{} has no channels left after the last block", self.decoder_dim),
            );
        }
        let latent = self.encoder_dim << self.encoder_rates.len();
        if self.latent_dim.is_some_and(|n| n != latent) {
            let why = format!("is not encoder_dim * 2^blocks = {latent}, the channels that the encoder has");
            return err("latent_dim", why);
        }
        within("codebook_size", self.codebook_size, 1 << 20)?;
        within("codebook_dim", self.codebook_dim, 1 << 12)?;
        let strides = &self.vq_strides;
        let sound = |first: usize| strides.iter().all(|s| (1..=64).contains(s) && first.is_multiple_of(*s));
        if strides.len() > 16 || !strides.first().is_some_and(|first| sound(*first)) {
            return err(
                "vq_strides",
                format!("{strides:?} is not 1 to 16 divisors of the first, which is at most 64"),
            );
        }
        Ok(Config {
            encoder_dim: self.encoder_dim,
            encoder_rates: self.encoder_rates.clone(),
            latent_dim: latent,
            decoder_dim: self.decoder_dim,
            decoder_rates: self.decoder_rates.clone(),
            codebook_size: self.codebook_size,
            codebook_dim: self.codebook_dim,
            vq_strides: strides.clone(),
            noise: self.noise,
            depthwise: self.depthwise,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published() -> File {
        File {
            sampling_rate: SAMPLE_RATE,
            encoder_dim: 48,
            encoder_rates: vec![2, 4, 8, 8],
            decoder_dim: 1024,
            decoder_rates: vec![8, 8, 4, 2],
            attn_window_size: None,
            vq_strides: vec![4, 2, 1],
            ..File::default()
        }
    }

    #[test]
    fn the_published_codec() {
        let cfg = published().config().unwrap();
        assert_eq!(cfg, Config::snac_24khz());
        assert_eq!((cfg.hop(), cfg.frame()), (512, 2048));
        let all: usize = super::super::weights::tensors(&cfg)
            .iter()
            .map(|t| (t.dims.iter().product::<usize>()) + if t.normed { t.dims[0] } else { 0 })
            .sum();
        assert_eq!(all, PUBLISHED_PARAMETERS);
    }

    #[test]
    fn reach_of_the_published_codec() {
        // 3 + 39 * (1 + 2 + 8 + 64) + 3 * 512 + 1 + 4 + 32 + 256 = 4757 samples before, under three frames of 2048.
        let cfg = Config::snac_24khz();
        assert_eq!((cfg.encoder_reach(), cfg.decoder_reach()), (3, 3));
    }

    /// Of the package's model with the published configuration, (g, v) counted both.
    const PUBLISHED_PARAMETERS: usize = 19_842_914;

    #[test]
    fn bad_configurations_name_their_key() {
        let refused = |key: &str, break_it: &dyn Fn(&mut File)| {
            let mut file = published();
            break_it(&mut file);
            assert_eq!(file.config().unwrap_err().key, key);
        };
        refused("sampling_rate", &|f| f.sampling_rate = 44_100);
        refused("attn_window_size", &|f| f.attn_window_size = Some(32));
        refused("encoder_rates", &|f| f.encoder_rates = vec![1, 512]);
        refused("decoder_rates", &|f| f.decoder_rates = vec![8, 8, 4]);
        refused("encoder_dim", &|f| f.encoder_dim = 0);
        refused("decoder_dim", &|f| f.decoder_dim = 15);
        refused("latent_dim", &|f| f.latent_dim = Some(512));
        refused("codebook_size", &|f| f.codebook_size = usize::MAX);
        refused("vq_strides", &|f| f.vq_strides = vec![4, 3]);
        refused("vq_strides", &|f| f.vq_strides = vec![]);
    }
}
