//! The shape of a DAC codec, from the shapes of its tensors: not every `config.json` has it.

use super::weights::{codebook, decoder_first, down, encoder_first, in_proj, up};
use crate::common::codec::rows::{self, Table};
use crate::common::codec::stride_pad;
pub use crate::error::ConfigError;
use crate::error::err;
use serde::Deserialize;

/// Taps of the encoder's last convolution.
pub const LAST_TAPS: usize = 3;
/// Blocks of an encoder or decoder, at most.
const MOST_BLOCKS: usize = 8;
/// Codebooks, at most.
const MOST_CODEBOOKS: usize = 64;

/// What a `config.json` may say of a codec, under the keys of transformers' `DacConfig` and of Parler-TTS's. Other keys say nothing of
/// its shape.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct File {
    pub model_type: Option<String>,
    pub sampling_rate: Option<u32>,
    pub encoder_hidden_size: Option<usize>,
    pub downsampling_ratios: Option<Vec<usize>>,
    pub hidden_size: Option<usize>,
    pub latent_dim: Option<usize>,
    pub decoder_hidden_size: Option<usize>,
    pub upsampling_ratios: Option<Vec<usize>>,
    pub hop_length: Option<usize>,
    pub n_codebooks: Option<usize>,
    pub num_codebooks: Option<usize>,
    pub codebook_size: Option<usize>,
    pub codebook_dim: Option<usize>,
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
    /// Latent rows that share a code, for each codebook: always one.
    pub vq_strides: Vec<usize>,
}

impl Config {
    /// Returns the shape of the released codec at 44.1 kHz with 8 kbps.
    pub fn dac_44khz() -> Config {
        Config {
            encoder_dim: 64,
            encoder_rates: vec![2, 4, 8, 8],
            latent_dim: 1024,
            decoder_dim: 1536,
            decoder_rates: vec![8, 8, 4, 2],
            codebook_size: 1024,
            codebook_dim: 8,
            vq_strides: vec![1; 9],
        }
    }

    /// Reads the shape off the tensors. `axes`: those of a state in the checkpoint, if the checkpoint has it.
    ///
    /// # Errors
    /// Names a tensor that no such codec has.
    pub fn of_tensors(axes: impl Fn(&str) -> Option<Vec<usize>>) -> Result<Config, String> {
        let conv = |name: String| -> Result<[usize; 3], String> {
            match axes(&name).as_deref() {
                Some(&[a, b, taps]) => Ok([a, b, taps]),
                Some(other) => Err(format!("{name} is {other:?}, a convolution's has three axes")),
                None => Err(format!("{name} is missing")),
            }
        };
        let rates = |side: &str, name: &dyn Fn(usize) -> String| -> Result<Vec<usize>, String> {
            let mut rates = Vec::new();
            while axes(&name(rates.len())).is_some() {
                let (name, at) = (name(rates.len()), rates.len());
                let [.., taps] = conv(name.clone())?;
                if at == MOST_BLOCKS {
                    return Err(format!("{name}: the {side} has more than {MOST_BLOCKS} blocks"));
                }
                if !taps.is_multiple_of(2) || !(4..=128).contains(&taps) {
                    let why =
                        format!("{name} has {taps} taps; blocks have twice their stride, which is 2..=64");
                    return Err(why);
                }
                rates.push(taps / 2);
            }
            match rates.is_empty() {
                true => Err(format!("{} is missing: the {side} has no block", name(0))),
                false => Ok(rates),
            }
        };
        let [encoder_dim, ..] = conv(encoder_first())?;
        let [decoder_dim, latent_dim, _] = conv(decoder_first())?;
        let encoder_rates = rates("encoder", &down)?;
        let decoder_rates = rates("decoder", &up)?;
        let codebooks = (0..=MOST_CODEBOOKS).take_while(|i| axes(&codebook(*i)).is_some()).count();
        if !(1..=MOST_CODEBOOKS).contains(&codebooks) {
            return Err(format!("{} codebooks ({} ...), not 1..={MOST_CODEBOOKS}", codebooks, codebook(0)));
        }
        let codebook_size = axes(&codebook(0)).and_then(|axes| axes.first().copied()).unwrap_or(0);
        let [codebook_dim, ..] = conv(in_proj(0))?;
        let cfg = Config {
            encoder_dim,
            encoder_rates,
            latent_dim,
            decoder_dim,
            decoder_rates,
            codebook_size,
            codebook_dim,
            vq_strides: vec![1; codebooks],
        };
        cfg.check()?;
        Ok(cfg)
    }

    /// Bounds what the tensors say, before anything is multiplied.
    fn check(&self) -> Result<(), String> {
        let sizes = [
            (encoder_first(), self.encoder_dim, 1 << 12),
            (decoder_first(), self.decoder_dim, 1 << 16),
            (decoder_first(), self.latent_dim, 1 << 16),
            (codebook(0), self.codebook_size, 1 << 20),
            (in_proj(0), self.codebook_dim, 1 << 12),
        ];
        if let Some((name, n, most)) = sizes.into_iter().find(|(_, n, most)| !(1..=*most).contains(n)) {
            return Err(format!("{name} has an axis of {n}, not of 1..={most}"));
        }
        let [down, up] = [&self.encoder_rates, &self.decoder_rates].map(|r| r.iter().product::<usize>());
        if down != up || down > 1 << 16 {
            return Err(format!(
                "the encoder's strides {:?} make a frame of {down} samples, the decoder's {:?} of {up}; they must be equal, and at \
                 most 65536",
                self.encoder_rates, self.decoder_rates
            ));
        }
        if self.decoder_dim >> self.decoder_rates.len() == 0 {
            return Err(format!(
                "{} has {} channels, of which none are left after the last block",
                decoder_first(),
                self.decoder_dim
            ));
        }
        Ok(())
    }

    /// Compares the keys that a `config.json` has with the shape.
    ///
    /// # Errors
    /// Names the first key that says otherwise.
    pub fn agrees(&self, file: &File) -> Result<(), ConfigError> {
        let numbers = [
            ("encoder_hidden_size", file.encoder_hidden_size, self.encoder_dim),
            ("hidden_size", file.hidden_size, self.latent_dim),
            ("latent_dim", file.latent_dim, self.latent_dim),
            ("decoder_hidden_size", file.decoder_hidden_size, self.decoder_dim),
            ("hop_length", file.hop_length, self.hop()),
            ("n_codebooks", file.n_codebooks, self.vq_strides.len()),
            ("num_codebooks", file.num_codebooks, self.vq_strides.len()),
            ("codebook_size", file.codebook_size, self.codebook_size),
            ("codebook_dim", file.codebook_dim, self.codebook_dim),
        ];
        for (key, said, is) in numbers {
            if let Some(said) = said.filter(|said| *said != is) {
                return err(key, format!("is {said}, the tensors have {is}; use the file of these weights"));
            }
        }
        let rates = [
            ("downsampling_ratios", &file.downsampling_ratios, &self.encoder_rates),
            ("upsampling_ratios", &file.upsampling_ratios, &self.decoder_rates),
        ];
        for (key, said, is) in rates {
            if let Some(said) = said.as_ref().filter(|said| *said != is) {
                let why = format!("is {said:?}, the tensors have {is:?}; use the file of these weights");
                return err(key, why);
            }
        }
        Ok(())
    }

    /// Returns the number of samples per frame.
    pub fn hop(&self) -> usize {
        self.encoder_rates.iter().product()
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
        rows::encoder_reach(&self.encoder_rates, LAST_TAPS, self.hop())
    }

    /// Returns the number of frames before or after a frame on which its samples depend: the larger of the two.
    pub fn decoder_reach(&self) -> usize {
        rows::decoder_reach(&self.decoder_rates, self.hop())
    }

    /// Returns the rows of an encoder's table that are sound when it ends after `samples` samples.
    pub fn encoder_rows(&self, table: Table, samples: usize) -> usize {
        let (mut stride, mut rows) = (1, samples);
        for &rate in &self.encoder_rates {
            if stride == table.stride {
                break;
            }
            stride *= rate;
            rows = match table.begun && stride == table.stride {
                true => rows.div_ceil(rate),
                false => strided_rows(rows, rate),
            };
        }
        rows
    }

    /// Returns the frames of a sound of `samples` samples.
    pub fn frames(&self, samples: usize) -> usize {
        self.encoder_rates.iter().fold(samples, |rows, rate| strided_rows(rows, *rate))
    }

    /// Returns the rows of `stride` samples that the decoder makes of `frames` frames; the last row of odd strides is none where the
    /// sound `ends`.
    pub fn decoder_rows(&self, stride: usize, frames: usize, ends: bool) -> usize {
        let (mut at, mut rows) = (self.hop(), frames);
        for &rate in &self.decoder_rates {
            if at == stride {
                break;
            }
            at /= rate;
            // (rows - 1) rate - 2 pad + 2 rate of PyTorch's `ConvTranspose1d`.
            let short = if ends { 2 * stride_pad(rate) - rate } else { 0 };
            rows = (rows * rate).saturating_sub(short);
        }
        rows
    }

    /// Returns the samples that the sound of codes is shorter than its frames.
    pub fn tail(&self) -> usize {
        self.hop() - self.decoder_rows(1, 1, true)
    }
}

/// Returns the rows that a strided convolution gives, as PyTorch's `Conv1d`: (rows + 2 pad - 2 rate) / rate + 1, or none.
fn strided_rows(rows: usize, rate: usize) -> usize {
    (rows + 2 * stride_pad(rate) - rate) / rate
}

#[cfg(test)]
mod tests {
    use super::super::weights::tensors;
    use super::*;
    use std::collections::BTreeMap;

    /// Rates of the released codecs at 16 and 24 kHz, in which a stride is odd.
    fn odd() -> Config {
        Config {
            encoder_rates: vec![2, 4, 5, 8],
            decoder_rates: vec![8, 5, 4, 2],
            vq_strides: vec![1; 12],
            ..Config::dac_44khz()
        }
    }

    fn shapes(cfg: &Config) -> BTreeMap<String, Vec<usize>> {
        tensors(cfg).into_iter().map(|t| (t.name, t.dims)).collect()
    }

    #[test]
    fn the_published_codec() {
        let cfg = Config::dac_44khz();
        let all = tensors(&cfg);
        let folded: usize = all.iter().map(|t| t.dims.iter().product::<usize>()).sum();
        let norms: usize = all.iter().filter(|t| t.normed).map(|t| t.dims[0]).sum();
        // Tensors and parameters of transformers' class, and with (g, v) counted both of the package's.
        assert_eq!((all.len(), folded), (223, 76_620_777));
        assert_eq!((all.len() + all.iter().filter(|t| t.normed).count(), folded + norms), (301, 76_651_890));
        assert_eq!((cfg.hop(), cfg.tail()), (512, 0));
        // 3733 samples before a frame's first: 3 + 39 * (1 + 2 + 8 + 64) + 1 + 4 + 32 + 256 + 512.
        assert_eq!((cfg.encoder_reach(), cfg.decoder_reach()), (8, 10));
    }

    #[test]
    fn shapes_are_those_of_the_tensors() {
        for cfg in [Config::dac_44khz(), odd()] {
            let shapes = shapes(&cfg);
            assert_eq!(Config::of_tensors(|name| shapes.get(name).cloned()).unwrap(), cfg);
        }
    }

    #[test]
    fn tensors_of_no_codec_are_named() {
        let refused = |name: &str, shape: Option<&[usize]>, said: &str| {
            let mut all = shapes(&Config::dac_44khz());
            match shape {
                Some(shape) => all.insert(name.to_owned(), shape.to_vec()),
                None => all.remove(name),
            };
            let why = Config::of_tensors(|name| all.get(name).cloned()).unwrap_err();
            assert!(why.contains(name) && why.contains(said), "{said}: {why}");
        };
        refused("decoder.model.0.weight", None, "is missing");
        refused("decoder.model.0.weight", Some(&[1536, 1024]), "has three axes");
        refused("decoder.model.0.weight", Some(&[15, 1024, 7]), "none are left");
        refused("encoder.block.0.weight", Some(&[usize::MAX, 1, 7]), "not of 1..=4096");
        refused("encoder.block.1.block.4.weight", None, "the encoder has no block");
        refused("decoder.model.4.block.1.weight", Some(&[192, 96, 5]), "has 5 taps");
        refused("decoder.model.4.block.1.weight", Some(&[192, 96, 1 << 40]), "taps");
        refused("quantizer.quantizers.0.codebook.weight", None, "0 codebooks");
        let mut uneven = shapes(&Config::dac_44khz());
        uneven.remove("decoder.model.4.block.1.weight");
        let why = Config::of_tensors(|name| uneven.get(name).cloned()).unwrap_err();
        assert!(why.contains("a frame of 512 samples, the decoder's [8, 8, 4] of 256"), "{why}");
    }

    #[test]
    fn keys_that_say_otherwise_are_named() {
        let cfg = Config::dac_44khz();
        let read = |text: &str| serde_json::from_str::<File>(text).unwrap();
        let parler = r#"{"model_type":"dac_on_the_hub","model_bitrate":8,"codebook_size":1024,"latent_dim":1024,
            "frame_rate":86,"sampling_rate":44100,"num_codebooks":9}"#;
        assert_eq!(cfg.agrees(&read(parler)), Ok(()));
        assert_eq!(cfg.agrees(&File::default()), Ok(()));
        for (key, text) in [
            ("encoder_hidden_size", "32"),
            ("hop_length", "320"),
            ("downsampling_ratios", "[2, 4, 5, 8]"),
            ("upsampling_ratios", "[8, 8, 2, 4]"),
            ("num_codebooks", "12"),
            ("codebook_size", "2048"),
        ] {
            let file = read(&format!("{{\"{key}\": {text}}}"));
            assert_eq!(cfg.agrees(&file).unwrap_err().key, key);
        }
    }

    /// Lengths of PyTorch's `Conv1d` and `ConvTranspose1d`, layer by layer.
    #[test]
    fn lengths_are_those_of_the_layers() {
        let even = Config::dac_44khz();
        assert_eq!([0, 511, 512, 5000, 10_240, 10_241].map(|n| even.frames(n)), [0, 0, 1, 9, 20, 20]);
        let odd = odd();
        // What the decoder gives of a frame, 312 samples, is one again.
        assert_eq!([311, 312, 320, 631, 632].map(|n| odd.frames(n)), [0, 1, 1, 1, 2]);
        assert_eq!((odd.tail(), 30 * odd.hop() - odd.tail()), (8, 9592));
        assert_eq!(odd.decoder_rows(1, 30, true), 9592);
        assert_eq!([40, 8, 2, 1].map(|s| odd.decoder_rows(s, 1, true)), [8, 39, 156, 312]);
        assert_eq!([40, 8, 2, 1].map(|s| odd.decoder_rows(s, 1, false)), [8, 40, 160, 320]);
        let rows = |begun, stride| odd.encoder_rows(Table { begun, ..Table::rows(stride) }, 75);
        // 75 samples are 37 rows of 2, 9 of 8, and 2 of 40, since the padding of the odd stride is wider.
        assert_eq!([1, 2, 8, 40, 320].map(|stride| rows(false, stride)), [75, 37, 9, 2, 0]);
        assert_eq!([2, 8, 40, 320].map(|stride| rows(true, stride)), [38, 10, 2, 1]);
    }
}
