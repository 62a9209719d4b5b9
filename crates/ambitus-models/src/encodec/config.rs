//! The shape of an EnCodec codec, from transformers' `config.json` or audiocraft's YAML.

pub use crate::error::ConfigError;
use crate::error::err;
use serde::Deserialize;

/// Strides, at most.
const MOST_BLOCKS: usize = 8;

/// What convolutions read before the first row of a sound and behind its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// The rows at the end in reverse, the outermost not repeated.
    Reflect,
    /// Zeros.
    Zeros,
}

/// The keys of transformers' `EncodecConfig`, with its defaults. Other keys say nothing of the codec.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct File {
    pub target_bandwidths: Vec<f64>,
    pub sampling_rate: u32,
    pub audio_channels: usize,
    pub normalize: bool,
    pub chunk_length_s: Option<f64>,
    pub hidden_size: usize,
    pub num_filters: usize,
    pub num_residual_layers: usize,
    pub upsampling_ratios: Vec<usize>,
    pub norm_type: String,
    pub kernel_size: usize,
    pub last_kernel_size: usize,
    pub residual_kernel_size: usize,
    pub dilation_growth_rate: usize,
    pub use_causal_conv: bool,
    pub pad_mode: String,
    pub compress: usize,
    pub num_lstm_layers: usize,
    pub trim_right_ratio: f64,
    pub codebook_size: usize,
    pub codebook_dim: Option<usize>,
    pub use_conv_shortcut: bool,
    /// K, of a project that says it; else it follows from the bandwidths.
    #[serde(skip)]
    pub codebooks: Option<usize>,
}

impl Default for File {
    fn default() -> File {
        File {
            target_bandwidths: vec![1.5, 3.0, 6.0, 12.0, 24.0],
            sampling_rate: 24_000,
            audio_channels: 1,
            normalize: false,
            chunk_length_s: None,
            hidden_size: 128,
            num_filters: 32,
            num_residual_layers: 1,
            upsampling_ratios: vec![8, 5, 4, 2],
            norm_type: "weight_norm".to_owned(),
            kernel_size: 7,
            last_kernel_size: 7,
            residual_kernel_size: 3,
            dilation_growth_rate: 2,
            use_causal_conv: true,
            pad_mode: "reflect".to_owned(),
            compress: 2,
            num_lstm_layers: 2,
            trim_right_ratio: 1.0,
            codebook_size: 1024,
            codebook_dim: None,
            use_conv_shortcut: true,
            codebooks: None,
        }
    }
}

/// A checked codec shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Of the sound, Hz.
    pub rate: u32,
    /// Channels after the encoder's first convolution; each block doubles them.
    pub filters: usize,
    /// Strides of the decoder's blocks; the encoder has them in reverse.
    pub ratios: Vec<usize>,
    /// D: channels of what the encoder gives, and of codebooks' entries.
    pub latent_dim: usize,
    /// Taps of the first convolution.
    pub kernel: usize,
    /// Taps of the last convolution.
    pub last_kernel: usize,
    /// Taps of the first convolution of a residual unit.
    pub residual_kernel: usize,
    /// Residual units of a block.
    pub residual_layers: usize,
    /// From a block's residual unit to the next, by how much rows are further apart.
    pub dilation_growth: usize,
    /// By how much a residual unit is narrower inside.
    pub compress: usize,
    /// Layers of the memory; 0: none.
    pub lstm_layers: usize,
    /// Convolutions see earlier rows alone.
    pub causal: bool,
    /// Of causal codecs, the part of a transposed convolution's rows too many that is left out at the end, not at the start.
    pub trim_right: f64,
    /// Residual units have a convolution where others keep what they got.
    pub shortcut: bool,
    /// Beyond a sound's ends.
    pub padding: Padding,
    /// V: entries of each codebook.
    pub codebook_size: usize,
    /// K: codebooks that make the codes.
    pub codebooks: usize,
    /// Codebooks that checkpoints hold: those beyond K are for larger bandwidths.
    pub stored_codebooks: usize,
}

impl File {
    /// Checks every key.
    ///
    /// # Errors
    /// Names the key: what is not computed here, or sizes that do not go together.
    pub fn config(&self) -> Result<Config, ConfigError> {
        if self.norm_type != "weight_norm" {
            let why = format!("`{}` is not supported; only weight_norm is", self.norm_type);
            return err("norm_type", why);
        }
        if self.normalize || self.chunk_length_s.is_some() {
            let key = if self.normalize { "normalize" } else { "chunk_length_s" };
            let why =
                "sound in chunks that are scaled one by one, as the 48 kHz codec has it, is not computed";
            return err(key, format!("{why}; use the 24 or 32 kHz codec"));
        }
        if self.audio_channels != 1 {
            let why = "channels in one codec are not supported; stereo goes through a codec of one, channel by channel";
            return err("audio_channels", format!("{} {why}", self.audio_channels));
        }
        if self.sampling_rate == 0 {
            return err("sampling_rate", "must be above 0".to_owned());
        }
        if self.codebook_dim.is_some_and(|dim| dim != self.hidden_size) {
            return err("codebook_dim", format!("must be hidden_size, {}", self.hidden_size));
        }
        let config = Config {
            rate: self.sampling_rate,
            filters: self.num_filters,
            ratios: self.upsampling_ratios.clone(),
            latent_dim: self.hidden_size,
            kernel: self.kernel_size,
            last_kernel: self.last_kernel_size,
            residual_kernel: self.residual_kernel_size,
            residual_layers: self.num_residual_layers,
            dilation_growth: self.dilation_growth_rate,
            compress: self.compress,
            lstm_layers: self.num_lstm_layers,
            causal: self.use_causal_conv,
            trim_right: self.trim_right_ratio,
            shortcut: self.use_conv_shortcut,
            padding: padding(&self.pad_mode)?,
            codebook_size: self.codebook_size,
            codebooks: self.codebooks.unwrap_or(1),
            stored_codebooks: self.codebooks.unwrap_or(1),
        };
        config.check()?;
        if self.codebooks.is_some() {
            return Ok(config);
        }
        let (size, hop) = (self.codebook_size, config.hop());
        if !size.is_power_of_two() || size < 2 {
            return err("codebook_size", format!("{size} is not a power of two from 2 on"));
        }
        let stored = self.stored_codebooks(hop)?;
        // Those of the first bandwidth, with which transformers encodes.
        let bits = f64::from(size.ilog2()) * frame_rate(self.sampling_rate, hop);
        let used = (1000.0 * self.target_bandwidths[0] / bits).floor().max(1.0) as usize;
        Ok(Config { codebooks: used.min(stored), stored_codebooks: stored, ..config })
    }

    /// Returns Python's `1000 * bandwidth // (frame rate * bits)` of the last bandwidth.
    fn stored_codebooks(&self, hop: usize) -> Result<usize, ConfigError> {
        let key = "target_bandwidths";
        let sound = |x: &f64| x.is_finite() && *x > 0.0;
        let Some(last) = self.target_bandwidths.last().filter(|_| self.target_bandwidths.iter().all(sound))
        else {
            return err(key, format!("{:?} are not one or more numbers above 0", self.target_bandwidths));
        };
        let bits = f64::from(self.codebook_size.ilog2()) * frame_rate(self.sampling_rate, hop);
        let all = 1000.0 * last;
        match ((all - all % bits) / bits).round() {
            n if (1.0..=64.0).contains(&n) => Ok(n as usize),
            n => err(key, format!("{last} makes {n} codebooks of {bits} bits a second each, not 1..=64")),
        }
    }
}

/// Frames of a second, rounded up as transformers does.
fn frame_rate(rate: u32, hop: usize) -> f64 {
    (rate as usize).div_ceil(hop) as f64
}

/// Returns the padding of a `pad_mode`.
fn padding(mode: &str) -> Result<Padding, ConfigError> {
    match mode {
        "reflect" => Ok(Padding::Reflect),
        "constant" => Ok(Padding::Zeros),
        other => err("pad_mode", format!("`{other}` is not computed; reflect and constant are")),
    }
}

impl Config {
    /// Returns the shape of `facebook/encodec_32khz`.
    pub fn encodec_32khz() -> Config {
        Config {
            rate: 32_000,
            filters: 64,
            ratios: vec![8, 5, 4, 4],
            latent_dim: 128,
            kernel: 7,
            last_kernel: 7,
            residual_kernel: 3,
            residual_layers: 1,
            dilation_growth: 2,
            compress: 2,
            lstm_layers: 2,
            causal: false,
            trim_right: 1.0,
            shortcut: false,
            padding: Padding::Reflect,
            codebook_size: 2048,
            codebooks: 4,
            stored_codebooks: 4,
        }
    }

    /// Bounds every size, before anything is multiplied.
    fn check(&self) -> Result<(), ConfigError> {
        let strides = |r: &usize| (2..=64).contains(r);
        if !(1..=MOST_BLOCKS).contains(&self.ratios.len()) || !self.ratios.iter().all(strides) {
            return err(
                "upsampling_ratios",
                format!("{:?} are not 1 to {MOST_BLOCKS} strides of 2..=64", self.ratios),
            );
        }
        let hop = self.ratios.iter().product::<usize>();
        let sizes = [
            ("upsampling_ratios", hop, 2, 1 << 16),
            ("num_filters", self.filters, 1, 1 << 12),
            ("hidden_size", self.latent_dim, 1, 1 << 16),
            ("kernel_size", self.kernel, 1, 64),
            ("last_kernel_size", self.last_kernel, 1, 64),
            ("residual_kernel_size", self.residual_kernel, 1, 64),
            ("num_residual_layers", self.residual_layers, 0, 8),
            ("dilation_growth_rate", self.dilation_growth, 1, 16),
            ("compress", self.compress, 1, self.filters),
            ("num_lstm_layers", self.lstm_layers, 0, 16),
            ("codebook_size", self.codebook_size, 1, 1 << 20),
            ("target_bandwidths", self.codebooks, 1, 64),
        ];
        if let Some((key, n, least, most)) = sizes.into_iter().find(|(_, n, a, b)| !(*a..=*b).contains(n)) {
            return err(key, format!("makes {n}, which is not in {least}..={most}"));
        }
        if self.memory() > 1 << 14 {
            let why = format!("makes {} channels behind the last block, more than 16384", self.memory());
            return err("num_filters", why);
        }
        let reach =
            self.dilation(self.residual_layers.saturating_sub(1)).saturating_mul(self.residual_kernel);
        if reach > 1 << 12 {
            let why = format!(
                "rows up to {reach} apart in one convolution are more than the 4096 that are computed"
            );
            return err("dilation_growth_rate", why);
        }
        let trim = (0.0..=1.0).contains(&self.trim_right) && (self.causal || self.trim_right == 1.0);
        if !trim {
            return err(
                "trim_right_ratio",
                format!("{} is not in 0..=1, or not 1 and the codec is not causal", self.trim_right),
            );
        }
        Ok(())
    }

    /// Returns the number of samples per frame.
    pub fn hop(&self) -> usize {
        self.ratios.iter().product()
    }

    /// Returns the channels of the encoder before block `i`, and after the last; of the decoder, before its block `blocks - i`.
    pub fn width(&self, i: usize) -> usize {
        self.filters << i
    }

    /// H: returns the channels of the memory.
    pub fn memory(&self) -> usize {
        self.width(self.ratios.len())
    }

    /// Returns how far apart a block's residual unit `i` reads rows.
    pub fn dilation(&self, i: usize) -> usize {
        self.dilation_growth.saturating_pow(i as u32)
    }

    /// Returns the rows that a convolution of `reach` rows with a stride of `step` wants before the first, and behind the last of
    /// whole steps.
    pub fn pads(&self, reach: usize, step: usize) -> [usize; 2] {
        let all = reach.saturating_sub(step);
        let right = if self.causal { 0 } else { all / 2 };
        [all - right, right]
    }

    /// Returns the rows that a transposed convolution with a stride of `step` gives too many at the start.
    pub fn trimmed(&self, step: usize) -> usize {
        let right = if self.causal { (step as f64 * self.trim_right).ceil() as usize } else { step / 2 };
        step - right.min(step)
    }

    /// Returns the frames of a sound of `samples` samples: those that have begun.
    pub fn frames(&self, samples: usize) -> usize {
        samples.div_ceil(self.hop())
    }

    /// Returns the frames of sound on either side that the encoder's convolutions need to give a frame to the memory, the last of a
    /// sound too, whose rows are reflected.
    pub fn encoder_context(&self) -> usize {
        let mut walk = Walk { hop: self.hop(), stride: 1, left: 0, right: 0, most: 0 };
        self.walk_conv(&mut walk, self.kernel, 1);
        for &rate in self.ratios.iter().rev() {
            self.walk_units(&mut walk);
            self.walk_conv(&mut walk, 2 * rate, rate);
        }
        walk.frames()
    }

    /// Returns the frames on either side that the decoder's convolutions behind the memory need to give a frame's samples.
    pub fn decoder_context(&self) -> usize {
        let mut walk = Walk { hop: self.hop(), stride: self.hop(), left: 0, right: 0, most: 0 };
        for &rate in &self.ratios {
            // Row o of the result is of the rows floor((o + trimmed) / rate) and the one before it.
            let trimmed = self.trimmed(rate);
            walk.left = (walk.left + 1) * rate - trimmed;
            walk.right = walk.right * rate + trimmed;
            walk.stride /= rate;
            walk.meet(0);
            self.walk_units(&mut walk);
        }
        self.walk_conv(&mut walk, self.last_kernel, 1);
        walk.frames()
    }

    fn walk_units(&self, walk: &mut Walk) {
        for i in 0..self.residual_layers {
            self.walk_conv(walk, (self.residual_kernel - 1) * self.dilation(i) + 1, 1);
        }
    }

    fn walk_conv(&self, walk: &mut Walk, reach: usize, step: usize) {
        let [left, _] = self.pads(reach, step);
        let right = reach.saturating_sub(1 + left);
        // What is reflected behind the last row lies before it, and must be sound.
        walk.meet(right);
        walk.left = (walk.left + left).div_ceil(step);
        walk.right = (walk.right + right) / step;
        walk.stride *= step;
        walk.meet(0);
    }
}

/// How many rows at either end of a window are not those of the whole sound, layer by layer.
struct Walk {
    hop: usize,
    /// Samples of a row.
    stride: usize,
    left: usize,
    right: usize,
    /// Samples, at most so far.
    most: usize,
}

impl Walk {
    /// Counts the rows of a layer, and `more` of those at the start.
    fn meet(&mut self, more: usize) {
        self.most = self.most.max((self.left + more).max(self.right) * self.stride);
    }

    fn frames(&self) -> usize {
        self.most.div_ceil(self.hop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::weights::tensors;
    use super::*;

    /// The configuration of `facebook/encodec_32khz`, as transformers' converter writes it.
    fn published() -> File {
        File {
            target_bandwidths: vec![2.2],
            sampling_rate: 32_000,
            num_filters: 64,
            upsampling_ratios: vec![8, 5, 4, 4],
            codebook_size: 2048,
            use_causal_conv: false,
            use_conv_shortcut: false,
            ..File::default()
        }
    }

    #[test]
    fn the_published_codec() {
        let cfg = published().config().unwrap();
        assert_eq!(cfg, Config::encodec_32khz());
        assert_eq!((cfg.hop(), cfg.memory(), cfg.frames(5000), cfg.frames(640)), (640, 1024, 8, 1));
        let all = tensors(&cfg);
        let books = |name: &str| name.starts_with("quantizer");
        let folded: usize =
            all.iter().filter(|t| !books(&t.name)).map(|t| t.dims.iter().product::<usize>()).sum();
        let norms: usize = all.iter().filter(|t| t.normed).map(|t| t.dims[0]).sum();
        // Parameters of transformers' class, without and with weight norm; codebooks are buffers there.
        assert_eq!((folded, folded + norms), (56_876_737, 56_884_674));
        // Within a sound one frame is enough; at its end the last convolution before the memory reflects 11 of its rows, 8 a frame.
        assert_eq!((cfg.encoder_context(), cfg.decoder_context()), (2, 1));
    }

    /// The 24 kHz codec: causal, with convolutions in the shortcuts, and 32 codebooks, of which the first bandwidth takes two.
    #[test]
    fn defaults_are_those_of_transformers() {
        let cfg = serde_json::from_str::<File>(r#"{"model_type": "encodec"}"#).unwrap().config().unwrap();
        assert_eq!((cfg.codebooks, cfg.stored_codebooks, cfg.hop()), (2, 32, 320));
        assert!(cfg.causal && cfg.shortcut && cfg.padding == Padding::Reflect);
        assert_eq!((cfg.pads(7, 1), cfg.pads(16, 8), cfg.trimmed(8)), ([6, 0], [8, 0], 0));
        let cfg = Config::encodec_32khz();
        assert_eq!((cfg.pads(7, 1), cfg.pads(10, 5), cfg.trimmed(5)), ([3, 3], [3, 2], 3));
    }

    #[test]
    fn bad_configurations_name_their_key() {
        let refused = |key: &str, break_it: &dyn Fn(&mut File)| {
            let mut file = published();
            break_it(&mut file);
            let e = file.config().unwrap_err();
            assert_eq!(e.key, key, "{e}");
        };
        refused("norm_type", &|f| f.norm_type = "time_group_norm".into());
        refused("normalize", &|f| f.normalize = true);
        refused("chunk_length_s", &|f| f.chunk_length_s = Some(1.0));
        refused("audio_channels", &|f| f.audio_channels = 2);
        refused("pad_mode", &|f| f.pad_mode = "replicate".into());
        refused("codebook_dim", &|f| f.codebook_dim = Some(64));
        refused("codebook_size", &|f| f.codebook_size = 1000);
        refused("codebook_size", &|f| f.codebook_size = usize::MAX);
        refused("target_bandwidths", &|f| f.target_bandwidths = vec![]);
        refused("target_bandwidths", &|f| f.target_bandwidths = vec![f64::NAN]);
        refused("target_bandwidths", &|f| f.target_bandwidths = vec![0.3]);
        refused("target_bandwidths", &|f| f.target_bandwidths = vec![1e300]);
        refused("upsampling_ratios", &|f| f.upsampling_ratios = vec![]);
        refused("upsampling_ratios", &|f| f.upsampling_ratios = vec![8, 1]);
        refused("upsampling_ratios", &|f| f.upsampling_ratios = vec![64; 4]);
        refused("num_filters", &|f| f.num_filters = 0);
        refused("num_filters", &|f| f.num_filters = 4096);
        refused("hidden_size", &|f| f.hidden_size = 0);
        refused("kernel_size", &|f| f.kernel_size = 0);
        refused("compress", &|f| f.compress = 65);
        refused("num_lstm_layers", &|f| f.num_lstm_layers = 17);
        refused("dilation_growth_rate", &|f| (f.num_residual_layers, f.dilation_growth_rate) = (8, 16));
        refused("trim_right_ratio", &|f| f.trim_right_ratio = 0.5);
        refused("trim_right_ratio", &|f| (f.use_causal_conv, f.trim_right_ratio) = (true, 1.5));
    }
}
