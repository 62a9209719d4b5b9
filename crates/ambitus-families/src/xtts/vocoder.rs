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

    /// Begins to make sound of latent rows `[n, D]` in a voice, in pieces. `speed`: 1 is as it was written.
    ///
    /// # Errors
    /// A voice of another length; the executor; weights that cannot be read.
    pub fn sound<'v>(
        &'v mut self,
        latents: &'v [f32],
        voice: &[f32],
        speed: f64,
    ) -> Result<Box<dyn Decoding + 'v>, RunError> {
        let width = self.latent_width();
        let frames = Frames::new(latents, width, self.rates, speed);
        let total = frames.count;
        let fill = move |first: usize, to: &mut [f32]| {
            for (i, row) in to.chunks_exact_mut(width).enumerate() {
                row.iter_mut()
                    .enumerate()
                    .for_each(|(c, x)| *x = frames.at(frames.steps.len(), first + i, c));
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

/// Latent rows at the rate of the generator's frames: interpolated as torch's `interpolate` does of a given scale.
struct Frames<'l> {
    /// `[n, D]`.
    latents: &'l [f32],
    width: usize,
    /// Scale of each interpolation, and the rows before it.
    steps: Vec<(f64, usize)>,
    /// Rows after all.
    count: usize,
}

impl Frames<'_> {
    /// First by the speed (`length_scale` of `Xtts.inference`), then to the frames of a code, then to the rate of the sound.
    fn new(latents: &[f32], width: usize, rates: Rates, speed: f64) -> Frames<'_> {
        let Rates { input, output, code, hop } = rates;
        let scales = [1.0 / speed, code as f64 / hop as f64, f64::from(output) / f64::from(input)];
        let (mut steps, mut count) = (Vec::new(), latents.len() / width);
        for scale in scales {
            let scaled = (count as f64 * scale).floor() as usize;
            // As many rows are the same rows, whatever the scale: so has torch it.
            if scaled != count {
                steps.push((scale, count));
            }
            count = scaled;
        }
        Frames { latents, width, steps, count }
    }

    /// Returns channel `c` of a row after the first `done` interpolations.
    fn at(&self, done: usize, row: usize, c: usize) -> f32 {
        let Some((scale, rows)) = done.checked_sub(1).map(|last| self.steps[last]) else {
            return self.latents[row * self.width + c];
        };
        let (low, high, part) = between(row, scale, rows);
        mixed(self.at(done - 1, low, c), self.at(done - 1, high, c), part)
    }
}

fn mixed(a: f32, b: f32, part: f32) -> f32 {
    (1.0 - part) * a + part * b
}

/// Returns the two of `rows` rows that a row of the result lies between, and how much of the second there is: at max((i + 0.5) / scale - 0.5, 0), in f32 as torch computes it.
fn between(row: usize, scale: f64, rows: usize) -> (usize, usize, f32) {
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

    fn sound(vocoder: &mut Vocoder, latents: &[f32], voice: &[f32], speed: f64) -> Vec<f32> {
        let (mut sound, mut all) = (vocoder.sound(latents, voice, speed).unwrap(), Vec::new());
        while let Some(piece) = sound.next_piece().unwrap() {
            all.extend_from_slice(piece);
        }
        all
    }

    /// At every speed that was recorded, of which every eleventh sample is.
    #[test]
    fn sound_is_the_packages() {
        let (latents, voice, mut vocoder) = (floats("latents"), floats("voice"), open(None));
        for (speed, samples) in
            [("1.0", 9984usize), ("1.25", 7680), ("0.8", 12_032), ("0.93", 9984), ("4.0", 2048)]
        {
            let want = floats(&format!("audio.{speed}"));
            let got = sound(&mut vocoder, &latents, &voice, speed.parse().unwrap());
            assert_eq!((got.len(), want.len()), (samples, samples.div_ceil(11)), "{speed}");
            let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let off = got.iter().step_by(11).zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off <= VOCODER_AUDIO * largest, "{speed}: {off:e} of {largest:e}");
        }
        // The package's lengths.
        for (rows, frames) in [(0, 0), (1, 4), (5, 21), (50, 217), (51, 222), (100, 435)] {
            assert_eq!(Frames::new(&vec![0.0; 2 * rows], 2, Rates::PUBLISHED, 1.0).count, frames);
        }
    }

    #[test]
    fn windows_give_what_the_whole_gives() {
        let (mut whole, mut windows) = (open(None), open(Some(1)));
        assert!(windows.bytes() < whole.bytes());
        let latents: Vec<f32> =
            (0..12 * 50).map(|i| ((i * 7919 + i / 97) % 601) as f32 / 200.0 - 1.5).collect();
        let voice = floats("voice");
        for speed in [1.0, 0.7] {
            let want = sound(&mut whole, &latents, &voice, speed);
            assert_eq!(sound(&mut windows, &latents, &voice, speed), want);
        }
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
        assert_eq!(both.len(), vocoder.speaker.width());
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
