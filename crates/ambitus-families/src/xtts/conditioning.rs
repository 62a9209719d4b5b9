//! Reference clips: how they are read, and the mel rows that the conditioning encoder makes a prompt of (`get_conditioning_latents` of
//! coqui-tts 0.28).

use crate::dvae;
use crate::error::RunError;
use ambitus_data::audio::{AudioReader, Resampler};
use ambitus_data::mel::{self, Front};
use ambitus_data::{AudioFault, DataError};
use std::path::Path;

/// The conditioning encoder's rows: those of codes with a longer transform.
pub const FRONT: Front = Front { n_fft: 2048, ..dvae::FRONT };
/// Of the largest sample, where references are made equally loud.
const LOUD: f32 = 0.75;

/// How references are used; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Read of each file, `max_ref_len`.
    pub file: u32,
    /// Used of all files together, `gpt_cond_len`; 0: everything.
    pub all: u32,
    /// Of a piece that has a prompt of its own, `gpt_cond_chunk_len`, at least 1.
    pub chunk: u32,
    /// Each file's largest sample becomes 0.75, `sound_norm_refs`.
    pub loud: bool,
}

impl Settings {
    /// What the published `config.json` says.
    pub const PUBLISHED: Settings = Settings { file: 30, all: 30, chunk: 4, loud: false };
}

/// Reads the beginning of a reference clip: mono, 22,050 Hz, within full scale.
///
/// # Errors
/// Audio that cannot be used.
pub fn reference(path: &Path, settings: &Settings) -> Result<Vec<f32>, RunError> {
    let most = (settings.file * FRONT.rate) as usize;
    let mut reader = AudioReader::open(path)?;
    let mut resampler = Resampler::new(reader.info().rate, FRONT.rate);
    let mut sound = Vec::new();
    let ended = loop {
        let Some(chunk) = reader.next_chunk()? else { break true };
        resampler.push(chunk, &mut sound);
        if sound.len() >= most {
            break false;
        }
    };
    if ended {
        resampler.finish(&mut sound);
    }
    if sound.is_empty() {
        return Err(DataError::Audio { path: path.to_owned(), reason: AudioFault::Empty }.into());
    }
    sound.truncate(most);
    sound.iter_mut().for_each(|x| *x = x.clamp(-1.0, 1.0));
    let largest = sound.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    if settings.loud && largest > 0.0 {
        sound.iter_mut().for_each(|x| *x = *x / largest * LOUD);
    }
    Ok(sound)
}

/// Returns the mel rows `[frames, bands]` of every piece of the clips, one after another: logarithms divided by the statistics. A last
/// piece of less than a third of a second is left out. The prompt is the mean of what the encoder makes of each.
///
/// # Errors
/// When nothing is left.
///
/// # Panics
/// Without a number for each band.
pub fn rows(clips: &[Vec<f32>], scale: &[f32], settings: &Settings) -> Result<Vec<Vec<f32>>, RunError> {
    let front = Front { bands: scale.len(), ..FRONT };
    let mut sound = clips.concat();
    if settings.all > 0 {
        sound.truncate((settings.all * front.rate) as usize);
    }
    let least = (f64::from(front.rate) * 0.33).ceil() as usize;
    let pieces = sound.chunks((settings.chunk.max(1) * front.rate) as usize);
    let all: Vec<_> = pieces
        .filter(|piece| piece.len() >= least)
        .filter_map(|piece| mel::rows(&front, Some(scale), piece))
        .collect();
    if all.is_empty() {
        let why = format!(
            "the reference has {} samples at {} Hz; give a clip of at least {least}, better six seconds",
            sound.len(),
            front.rate
        );
        return Err(RunError::Data(DataError::Invalid(why)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_store::TensorFile;
    use ambitus_testkit::tolerances::MEL_BAND;

    fn floats(name: &str) -> Vec<f32> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parity/dvae/fixtures/mels.safetensors");
        let file = TensorFile::open(path).unwrap();
        let mut out = vec![0.0; file.get(name).unwrap().elements()];
        file.read_into(name, &mut out, &mut vec![0; 1 << 16]).unwrap();
        out
    }

    #[test]
    fn a_clip_is_cut_into_pieces() {
        let (scale, settings) = (vec![-2.0; 80], Settings { all: 5, chunk: 2, ..Settings::PUBLISHED });
        let second = |n: usize| vec![0.1; n * 22_050];
        let frames = |clips: &[Vec<f32>], settings: &Settings| -> Vec<usize> {
            rows(clips, &scale, settings).unwrap().iter().map(|rows| rows.len() / 80).collect()
        };
        // Two, two and one second of three and four.
        assert_eq!(frames(&[second(3), second(4)], &settings), [173, 173, 87]);
        assert_eq!(frames(&[second(3)], &Settings { all: 0, chunk: 4, ..settings }), [259]);
        // 7,276 samples are too few behind another piece, 7,277 are not.
        let whole = Settings { all: 0, chunk: 1, ..settings };
        assert_eq!(frames(&[second(1), vec![0.1; 7_276]], &whole), [87]);
        assert_eq!(frames(&[second(1), vec![0.1; 7_277]], &whole), [87, 29]);
        let none = rows(&[vec![0.1; 7_276]], &scale, &settings).unwrap_err();
        assert!(none.to_string().contains("7276 samples"), "{none}");
    }

    /// The package's rows of a sound, divided.
    #[test]
    fn rows_are_the_packages() {
        let wave = floats("wave");
        let clip = [wave.clone(), vec![0.0; 8000]].concat();
        let got = rows(&[clip], &vec![2.0; 80], &Settings::PUBLISHED).unwrap();
        let want = floats("conditioning");
        let frames = want.len() / 80;
        // The last rows see what follows.
        for (i, x) in got[0][..(frames - 5) * 80].iter().enumerate() {
            let y = want[i % 80 * frames + i / 80] / 2.0;
            assert!((x - y).abs() <= MEL_BAND, "{i}: {x} {y}");
        }
    }
}
