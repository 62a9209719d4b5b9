//! What makes sound of a speech model's last states: a generator in the voice of a reference clip, and the encoder of that voice
//! (`HifiDecoder` of coqui-tts 0.28).

use crate::codec::Decoding;
use crate::error::RunError;
use crate::hifigan::Generator;
use crate::speaker;
use crate::weights::Weights;
use ambitus_data::audio::resample;
use ambitus_models::hifigan::config::{Block, Config, Unit, Up};
use ambitus_store::TensorFile;
use std::path::Path;

/// The steps of the package's generator: strides are in no file.
const UPS: [Up; 4] =
    [Up { rate: 8, taps: 16 }, Up { rate: 8, taps: 16 }, Up { rate: 2, taps: 4 }, Up { rate: 2, taps: 4 }];
/// Its residual blocks, as well.
const TAPS: [usize; 3] = [3, 7, 11];
const DILATIONS: [usize; 3] = [1, 3, 5];

/// What a model's configuration says of its sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Of the sound that codes are of, Hz.
    pub input: u32,
    /// Of the sound that is made, Hz.
    pub output: u32,
    /// Samples of a code, `gpt_code_stride_len`.
    pub code: usize,
    /// Samples of a frame, `output_hop_length`.
    pub hop: usize,
}

impl Rates {
    /// Those of the published model.
    pub const PUBLISHED: Rates = Rates { input: 22_050, output: 24_000, code: 1024, hop: 256 };
}

/// A vocoder: the generator's weights and work lie in one planned arena.
pub struct Vocoder {
    generator: Generator,
    speaker: speaker::Encoder,
    rates: Rates,
}

impl Vocoder {
    /// Opens the vocoder in a model's file, whose tensors are `hifigan_decoder.*` behind the prefix. No weight is read before the first use.
    ///
    /// # Errors
    /// Names every tensor that does not fit.
    pub fn open(path: &Path, prefix: &str, rates: Rates, threads: usize) -> Result<Vocoder, RunError> {
        Vocoder::open_with(path, prefix, rates, threads, None)
    }

    fn open_with(
        path: &Path,
        prefix: &str,
        rates: Rates,
        threads: usize,
        window: Option<usize>,
    ) -> Result<Vocoder, RunError> {
        let part = |part: &str| -> Result<Weights, RunError> {
            let files = vec![TensorFile::open(path)?];
            let prefix = format!("{prefix}hifigan_decoder.{part}.");
            Ok(Weights { files, prefix, path: path.to_owned() })
        };
        let bad = |why: String| RunError::Model(format!("{}: hifigan_decoder: {why}", path.display()));
        let weights = part("waveform_decoder")?;
        let cfg = config(&weights).map_err(bad)?;
        if rates.hop == 0 || rates.code == 0 || rates.input == 0 || rates.output == 0 {
            return Err(bad(format!("{rates:?}: config.json says 0 of a rate or a length")));
        }
        let voice = cfg.voice;
        let generator = match window {
            None => Generator::open(cfg, weights, str::to_owned, |_| false, threads),
            Some(n) => Generator::open_with(cfg, weights, str::to_owned, |_| false, threads, n),
        }?;
        let speaker = speaker::Encoder::open(part("speaker_encoder")?, threads)?;
        if voice != Some(speaker.width()) {
            let why = format!(
                "the generator takes a voice of {voice:?} numbers, the encoder gives {}",
                speaker.width()
            );
            return Err(bad(why));
        }
        Ok(Vocoder { generator, speaker, rates })
    }

    /// Returns the rate of its sound, Hz.
    pub fn rate(&self) -> u32 {
        self.rates.output
    }

    /// Returns the channels of a latent row.
    pub fn latent_width(&self) -> usize {
        self.generator.config().input
    }

    /// Returns the numbers of a voice.
    pub fn voice_width(&self) -> usize {
        self.speaker.width()
    }

    /// Returns the bytes that sound of any length takes, besides its latent rows.
    pub fn bytes(&self) -> u64 {
        self.generator.bytes()
    }

    /// Returns the bytes that [`voice`](Vocoder::voice) takes of clips of so many samples at most.
    pub fn voice_bytes(&self, samples: usize) -> u64 {
        let there = samples as u64 * u64::from(speaker::FRONT.rate) / u64::from(self.rates.input) + 1;
        self.speaker.bytes(there as usize) + 4 * there
    }

    /// Gives the arena back; the next use opens it again.
    pub fn close(&mut self) {
        self.generator.close();
    }

    /// Returns the voice of reference clips at the input's rate: the mean of their directions, whose length is not made 1 again.
    ///
    /// # Errors
    /// No clip; as [`speaker::Encoder::voice`].
    pub fn voice(&self, clips: &[Vec<f32>]) -> Result<Vec<f32>, RunError> {
        let mut mean = vec![0.0f32; self.speaker.width()];
        for clip in clips {
            let sound = resample(clip, self.rates.input, speaker::FRONT.rate);
            let voice = self.speaker.voice(&sound)?;
            mean.iter_mut().zip(voice).for_each(|(to, x)| *to += x / clips.len() as f32);
        }
        match clips.is_empty() {
            true => Err(RunError::Usage("a voice needs a reference clip".to_owned())),
            false => Ok(mean),
        }
    }

    /// Returns the number of samples of `rows` latent rows.
    pub fn samples(&self, rows: usize) -> usize {
        Frames { latents: &[], rows, rates: self.rates }.count() * self.generator.config().hop()
    }

    /// Begins to make sound of latent rows `[n, D]` in a voice, in pieces.
    ///
    /// # Errors
    /// A voice of another length; the executor; weights that cannot be read.
    pub fn sound<'v>(
        &'v mut self,
        latents: &'v [f32],
        voice: &[f32],
    ) -> Result<Box<dyn Decoding + 'v>, RunError> {
        let width = self.latent_width();
        let frames = Frames { latents, rows: latents.len() / width, rates: self.rates };
        let total = frames.count();
        let fill = move |first: usize, to: &mut [f32]| {
            for (i, row) in to.chunks_exact_mut(width).enumerate() {
                frames.fill(first + i, row);
            }
        };
        Ok(Box::new(self.generator.sound(Box::new(fill), total, voice)?))
    }
}

/// Reads the shape of the generator off its tensors.
fn config(weights: &Weights) -> Result<Config, String> {
    let three = |name: &str| match weights.shape_of(name).as_deref() {
        Some(&[a, b, c]) => Ok([a, b, c]),
        Some(other) => Err(format!("tensor {} is {other:?}", weights.name_of(name))),
        None => Err(format!("tensor {} is missing; this file has no vocoder", weights.name_of(name))),
    };
    let [width, input, _] = three("conv_pre.weight")?;
    let [_, voice, _] = three("cond_layer.weight")?;
    Ok(Config {
        input,
        width,
        ups: UPS.to_vec(),
        blocks: TAPS.map(|taps| Block { taps, dilations: DILATIONS.to_vec() }).to_vec(),
        unit: Unit::Double,
        voice: Some(voice),
        voice_each: weights.shape_of("conds.0.weight").is_some(),
        last_slope: 0.01,
        last_bias: false,
    })
}

/// Latent rows at the rate of the generator's frames: interpolated twice, as torch's `interpolate` does of a given scale.
struct Frames<'l> {
    /// `[rows, D]`.
    latents: &'l [f32],
    rows: usize,
    rates: Rates,
}

/// The two rows that a row lies between, and how much of the second there is.
type Between = (usize, usize, f32);

impl Frames<'_> {
    fn scales(&self) -> [f64; 2] {
        let Rates { input, output, code, hop } = self.rates;
        [code as f64 / hop as f64, f64::from(output) / f64::from(input)]
    }

    /// Returns the rows after each interpolation.
    fn counts(&self) -> [usize; 2] {
        let [first, second] = self.scales();
        let rows = (self.rows as f64 * first).floor();
        [
            rows as usize,
            if self.rates.input == self.rates.output { rows } else { (rows * second).floor() } as usize,
        ]
    }

    fn count(&self) -> usize {
        self.counts()[1]
    }

    /// Writes a frame.
    fn fill(&self, frame: usize, to: &mut [f32]) {
        let ([first, second], [rows, _]) = (self.scales(), self.counts());
        let (a, b, part) = match self.rates.input == self.rates.output {
            true => (frame, frame, 0.0),
            false => between(frame, second, rows),
        };
        let [a, b] = [a, b].map(|row| between(row, first, self.rows));
        let width = to.len();
        let at = |(low, high, part): Between, c: usize| {
            mixed(self.latents[low * width + c], self.latents[high * width + c], part)
        };
        for (c, to) in to.iter_mut().enumerate() {
            *to = mixed(at(a, c), at(b, c), part);
        }
    }
}

fn mixed(a: f32, b: f32, part: f32) -> f32 {
    (1.0 - part) * a + part * b
}

/// Returns where a row of the result lies among `rows` rows: max((i + 0.5) / scale - 0.5, 0), in f32 as torch computes it.
fn between(row: usize, scale: f64, rows: usize) -> Between {
    let place = ((1.0 / scale) as f32 * (row as f32 + 0.5) - 0.5).max(0.0);
    let low = (place as usize).min(rows - 1);
    (low, (low + 1).min(rows - 1), (place - low as f32).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_testkit::tolerances::VOCODER_AUDIO;
    use std::path::PathBuf;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/hifigan/fixtures").join(name)
    }

    fn floats(name: &str) -> Vec<f32> {
        let file = TensorFile::open(fixture("decoder.safetensors")).unwrap();
        let mut out = vec![0.0; file.get(name).unwrap().elements()];
        file.read_into(name, &mut out, &mut vec![0; 1 << 16]).unwrap();
        out
    }

    fn open(window: Option<usize>) -> Vocoder {
        Vocoder::open_with(&fixture("decoder.pth"), "model.", Rates::PUBLISHED, 1, window).unwrap()
    }

    fn sound(vocoder: &mut Vocoder, latents: &[f32], voice: &[f32]) -> Vec<f32> {
        let (mut sound, mut all) = (vocoder.sound(latents, voice).unwrap(), Vec::new());
        while let Some(piece) = sound.next_piece().unwrap() {
            all.extend_from_slice(piece);
        }
        all
    }

    #[test]
    fn sound_is_the_packages() {
        let (want, mut vocoder) = (floats("audio"), open(None));
        let got = sound(&mut vocoder, &floats("latents"), &floats("voice"));
        assert_eq!((got.len(), vocoder.samples(9)), (want.len(), want.len()));
        let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= VOCODER_AUDIO * largest, "{off:e} of {largest:e}");
        // The package's lengths.
        for (rows, samples) in [(0, 0), (1, 1024), (5, 5376), (50, 55_552), (51, 56_832), (100, 111_360)] {
            assert_eq!(vocoder.samples(rows), samples);
        }
    }

    #[test]
    fn windows_give_what_the_whole_gives() {
        let (mut whole, mut windows) = (open(None), open(Some(1)));
        assert!(windows.bytes() < whole.bytes());
        let latents: Vec<f32> =
            (0..12 * 50).map(|i| ((i * 7919 + i / 97) % 601) as f32 / 200.0 - 1.5).collect();
        let voice = floats("voice");
        let want = sound(&mut whole, &latents, &voice);
        assert_eq!(sound(&mut windows, &latents, &voice), want);
    }

    #[test]
    fn a_voice_is_the_mean_of_its_clips() {
        let vocoder = open(None);
        let clip = |pitch: f32| (0..8000).map(|t| 0.3 * (t as f32 * pitch).sin()).collect::<Vec<f32>>();
        let (a, b) = (clip(0.1), clip(0.37));
        let of = |clips: &[Vec<f32>]| vocoder.voice(clips).unwrap();
        let (one, two, both) = (of(std::slice::from_ref(&a)), of(std::slice::from_ref(&b)), of(&[a, b]));
        assert!(one.iter().zip(&two).zip(&both).all(|((a, b), c)| ((a + b) / 2.0 - c).abs() < 1e-6));
        assert!(vocoder.voice(&[]).is_err());
        assert_eq!(both.len(), vocoder.voice_width());
    }

    #[test]
    fn files_without_a_vocoder_are_named() {
        let open =
            |path: &str| Vocoder::open(&fixture(path), "", Rates::PUBLISHED, 1).err().unwrap().to_string();
        assert!(
            open("single.pth").contains("waveform_decoder.conv_pre.weight is missing"),
            "{}",
            open("single.pth")
        );
    }
}
