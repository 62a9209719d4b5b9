//! The shape of a Vocos vocoder, from the package's `config.yaml`.

pub use crate::error::ConfigError;
use crate::error::{err, sensible};
use serde::Deserialize;

/// The classes of the file, whatever their arguments: enough to know whose file it is.
#[derive(Clone, Debug, Deserialize)]
pub struct Classes {
    /// What turns audio into frames.
    pub feature_extractor: Class,
    /// What turns frames into the head's input.
    pub backbone: Class,
    /// What makes sound.
    pub head: Class,
}

/// A class of the package.
#[derive(Clone, Debug, Deserialize)]
pub struct Class {
    /// Its path: `vocos.heads.ISTFTHead`.
    pub class_path: String,
}

impl Classes {
    /// Returns whether the package made this file, be it of a vocoder that is supported or not.
    pub fn are_the_packages(&self) -> bool {
        self.backbone.class_path.starts_with("vocos.")
    }

    /// Checks that these are the classes of a vocoder of mel frames with a spectral head.
    ///
    /// # Errors
    /// Names the class.
    pub fn check(&self) -> Result<(), ConfigError> {
        let known = [
            (
                "feature_extractor.class_path",
                &self.feature_extractor,
                "feature_extractors.MelSpectrogramFeatures",
            ),
            ("backbone.class_path", &self.backbone, "models.VocosBackbone"),
            ("head.class_path", &self.head, "heads.ISTFTHead"),
        ];
        for (key, class, known) in known {
            if class.class_path.strip_prefix("vocos.") != Some(known) {
                let why =
                    format!("`{}` is not supported, vocos.{known} is; use vocos-mel-24khz", class.class_path);
                return err(key, why);
            }
        }
        Ok(())
    }
}

/// The file as the package reads it: the arguments of its classes, with their defaults. Other keys are errors there and here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct File {
    pub feature_extractor: Arguments<Features>,
    pub backbone: Arguments<Backbone>,
    pub head: Arguments<Head>,
}

/// A class and its arguments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Arguments<A> {
    pub class_path: String,
    pub init_args: A,
}

/// Arguments of `MelSpectrogramFeatures`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct Features {
    pub sample_rate: u32,
    pub n_fft: usize,
    pub hop_length: usize,
    pub n_mels: usize,
    pub padding: Padding,
}

impl Default for Features {
    fn default() -> Features {
        Features { sample_rate: 24_000, n_fft: 1024, hop_length: 256, n_mels: 100, padding: Padding::Center }
    }
}

/// Arguments of `VocosBackbone`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Backbone {
    pub input_channels: usize,
    pub dim: usize,
    pub intermediate_dim: usize,
    pub num_layers: usize,
    #[serde(default)]
    pub layer_scale_init_value: Option<f32>,
    #[serde(default)]
    pub adanorm_num_embeddings: Option<usize>,
}

/// Arguments of `ISTFTHead`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Head {
    pub dim: usize,
    pub n_fft: usize,
    pub hop_length: usize,
    #[serde(default = "same")]
    pub padding: Padding,
}

fn same() -> Padding {
    Padding::Same
}

/// Which samples of the inverse transform are the sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Padding {
    /// All but half a window at either end: T frames give T - 1 hops.
    Center,
    /// All but half of a window less a hop at either end: T frames give T hops.
    Same,
}

/// A checked vocoder shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Of the sound, Hz.
    pub rate: u32,
    /// M: channels of a mel frame.
    pub mels: usize,
    /// Window of the mel frames, samples: it only says how long two buffers in the file of weights are.
    pub mel_window: usize,
    /// D: channels of the backbone.
    pub dim: usize,
    /// Channels within a block.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// N: window of the inverse transform, samples; even, at least two hops.
    pub n_fft: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Which samples are the sound.
    pub padding: Padding,
}

impl Config {
    /// Returns the shape of `charactr/vocos-mel-24khz`.
    pub fn vocos_mel_24khz() -> Config {
        Config {
            rate: 24_000,
            mels: 100,
            mel_window: 1024,
            dim: 512,
            inner: 1536,
            layers: 8,
            n_fft: 1024,
            hop: 256,
            padding: Padding::Center,
        }
    }

    /// Returns the number of frequencies of a spectrum.
    pub fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// Returns the samples that are left out at either end of the inverse transform.
    pub fn trim(&self) -> usize {
        match self.padding {
            Padding::Center => self.n_fft / 2,
            Padding::Same => (self.n_fft - self.hop) / 2,
        }
    }

    /// Returns the samples of `frames` frames.
    pub fn samples(&self, frames: usize) -> usize {
        match frames {
            0 => 0,
            n => (n - 1) * self.hop + self.n_fft - 2 * self.trim(),
        }
    }
}

impl File {
    /// Checks every key; the classes are those that [`Classes::check`] takes.
    ///
    /// # Errors
    /// Names the key: an argument that is not supported, or sizes that do not go together.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let (features, backbone, head) =
            (&self.feature_extractor.init_args, &self.backbone.init_args, &self.head.init_args);
        let within = |key, n: usize, most: usize| {
            if (1..=most).contains(&n) { Ok(()) } else { err(key, format!("{n} is not in 1..={most}")) }
        };
        within("feature_extractor.init_args.sample_rate", features.sample_rate as usize, 768_000)?;
        within("feature_extractor.init_args.n_fft", features.n_fft, 1 << 16)?;
        within("backbone.init_args.input_channels", backbone.input_channels, 1 << 12)?;
        within("backbone.init_args.dim", backbone.dim, 1 << 14)?;
        within("backbone.init_args.intermediate_dim", backbone.intermediate_dim, 1 << 16)?;
        within("backbone.init_args.num_layers", backbone.num_layers, 1 << 8)?;
        within("head.init_args.n_fft", head.n_fft, 1 << 16)?;
        within("head.init_args.hop_length", head.hop_length, 1 << 15)?;
        if backbone.adanorm_num_embeddings.is_some() {
            let why =
                "norms that depend on a bandwidth are not supported; use vocos-mel-24khz, which has none";
            return err("backbone.init_args.adanorm_num_embeddings", why);
        }
        if backbone.layer_scale_init_value.is_some_and(|x| x < 0.0) {
            let why = "is negative: blocks without a layer scale are not supported";
            return err("backbone.init_args.layer_scale_init_value", why);
        }
        let same = |key, have: usize, of: &str, want: usize| match have == want {
            true => Ok(()),
            false => err(key, format!("{have} is not {of}, {want}")),
        };
        let mels = backbone.input_channels;
        same("feature_extractor.init_args.n_mels", features.n_mels, "the backbone's input_channels", mels)?;
        same("feature_extractor.init_args.hop_length", features.hop_length, "the head's", head.hop_length)?;
        same("head.init_args.dim", head.dim, "the backbone's", backbone.dim)?;
        // With longer hops some samples lie in no window but at its end, which is zero.
        if head.n_fft % 2 == 1 || head.n_fft < 2 * head.hop_length {
            let why =
                format!("{} is not an even number of at least two hops of {}", head.n_fft, head.hop_length);
            return err("head.init_args.n_fft", why);
        }
        let (dim, inner, layers) = (backbone.dim, backbone.intermediate_dim, backbone.num_layers);
        let parameters = layers * (2 * dim * inner + 12 * dim + inner) + dim * (7 * mels + head.n_fft + 7);
        sensible("backbone.init_args.dim", parameters as u64)?;
        Ok(Config {
            rate: features.sample_rate,
            mels,
            mel_window: features.n_fft,
            dim,
            inner,
            layers,
            n_fft: head.n_fft,
            hop: head.hop_length,
            padding: head.padding,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published() -> File {
        let class_path = String::new();
        let backbone = Backbone {
            input_channels: 100,
            dim: 512,
            intermediate_dim: 1536,
            num_layers: 8,
            layer_scale_init_value: None,
            adanorm_num_embeddings: None,
        };
        let head = Head { dim: 512, n_fft: 1024, hop_length: 256, padding: Padding::Center };
        File {
            feature_extractor: Arguments { class_path: class_path.clone(), init_args: Features::default() },
            backbone: Arguments { class_path: class_path.clone(), init_args: backbone },
            head: Arguments { class_path, init_args: head },
        }
    }

    #[test]
    fn the_published_vocoder() {
        let cfg = published().config().unwrap();
        assert_eq!(cfg, Config::vocos_mel_24khz());
        assert_eq!([0, 1, 2, 16].map(|frames| cfg.samples(frames)), [0, 0, 256, 15 * 256]);
        let same = Config { padding: Padding::Same, ..cfg };
        assert_eq!([0, 1, 16].map(|frames| same.samples(frames)), [0, 256, 16 * 256]);
    }

    #[test]
    fn bad_configurations_name_their_key() {
        let refused = |key: &str, break_it: &dyn Fn(&mut File)| {
            let mut file = published();
            break_it(&mut file);
            assert_eq!(file.config().unwrap_err().key, key);
        };
        refused("feature_extractor.init_args.sample_rate", &|f| {
            f.feature_extractor.init_args.sample_rate = 0
        });
        refused("feature_extractor.init_args.n_mels", &|f| f.feature_extractor.init_args.n_mels = 80);
        refused("feature_extractor.init_args.hop_length", &|f| {
            f.feature_extractor.init_args.hop_length = 300
        });
        refused("backbone.init_args.input_channels", &|f| f.backbone.init_args.input_channels = usize::MAX);
        refused("backbone.init_args.num_layers", &|f| f.backbone.init_args.num_layers = 0);
        refused("backbone.init_args.adanorm_num_embeddings", &|f| {
            f.backbone.init_args.adanorm_num_embeddings = Some(4);
        });
        refused("backbone.init_args.layer_scale_init_value", &|f| {
            f.backbone.init_args.layer_scale_init_value = Some(-1.0);
        });
        refused("head.init_args.dim", &|f| f.head.init_args.dim = 256);
        refused("head.init_args.n_fft", &|f| f.head.init_args.n_fft = 510);
    }

    #[test]
    fn other_classes_are_named() {
        let class = |path: &str| Class { class_path: path.to_owned() };
        let classes = |features: &str| Classes {
            feature_extractor: class(features),
            backbone: class("vocos.models.VocosBackbone"),
            head: class("vocos.heads.ISTFTHead"),
        };
        classes("vocos.feature_extractors.MelSpectrogramFeatures").check().unwrap();
        let codes = classes("vocos.feature_extractors.EncodecFeatures");
        assert!(codes.are_the_packages());
        assert_eq!(codes.check().unwrap_err().key, "feature_extractor.class_path");
    }
}
