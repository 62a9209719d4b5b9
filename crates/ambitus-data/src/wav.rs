//! Whole sounds as 16-bit WAV files.

use std::path::Path;

use crate::error::DataError;
use crate::sound::SoundWriter;

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
    let mut sound = SoundWriter::create(path, rate, 1)?;
    while let Some(piece) = next()? {
        sound.push(piece.as_ref())?;
    }
    sound.finish()?;
    Ok(())
}
