//! Writing WAV files.

use std::path::Path;

use crate::atomic;
use crate::error::DataError;

/// The most samples that the format's 32-bit sizes hold.
const MOST_SAMPLES: u64 = (u32::MAX as u64 - 64) / 2;

/// Writes mono samples (1 = full scale, clamped) as 16-bit PCM. The file appears whole or not at all.
pub fn write_wav(path: &Path, samples: &[f32], rate: u32) -> Result<(), DataError> {
    let mut piece = Some(samples);
    write_wav_pieces(path, rate, || Ok::<_, DataError>(piece.take()))
}

/// Writes samples that come in pieces, `None` at their end: sound of any length in the memory of a piece. See [`write_wav`].
///
/// # Errors
/// When a piece cannot be had, is not finite, or the file cannot be written or would be too long for the format.
pub fn write_wav_pieces<P: AsRef<[f32]>, E: From<DataError>>(
    path: &Path,
    rate: u32,
    mut next: impl FnMut() -> Result<Option<P>, E>,
) -> Result<(), E> {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: rate,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut failed = None;
    let written = atomic::write(path, |file| {
        let mut all = || -> Result<(), E> {
            let hound = |e: hound::Error| DataError::file(path, format!("not written: {e}"));
            let mut writer = hound::WavWriter::new(&mut *file, spec).map_err(hound)?;
            let mut done = 0u64;
            while let Some(piece) = next()? {
                let samples = piece.as_ref();
                if let Some(i) = samples.iter().position(|x| !x.is_finite()) {
                    let why = format!("not written: sample {} is {}", done + i as u64, samples[i]);
                    return Err(DataError::file(path, why).into());
                }
                done += samples.len() as u64;
                if done > MOST_SAMPLES {
                    let why = format!(
                        "not written: a wav file holds at most {MOST_SAMPLES} samples; cut the audio"
                    );
                    return Err(DataError::file(path, why).into());
                }
                for &x in samples {
                    let x = (x.clamp(-1.0, 1.0) * f32::from(i16::MAX)).round() as i16;
                    writer.write_sample(x).map_err(hound)?;
                }
            }
            Ok(writer.finalize().map_err(hound)?)
        };
        all().map_err(|e| {
            failed = Some(e);
            std::io::Error::other("not written")
        })
    });
    match failed {
        Some(e) => Err(e),
        None => Ok(written?),
    }
}
