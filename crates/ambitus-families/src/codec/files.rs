//! From audio files to files of codes and back, in bounded memory.

use super::{Codec, Codes, Spec};
use crate::error::RunError;
use ambitus_data::DataError;
use ambitus_data::audio::{AudioReader, Resampler};
use ambitus_data::wav::write_wav_pieces;
use ambitus_recipe::recipe::short;
use ambitus_store::{open_file, write_atomic};
use serde::{Deserialize, Serialize};
use std::io::{BufReader, Read};
use std::path::Path;

/// The most bytes of a file of codes: a day and a half of sound.
const MAX_CODES_BYTES: u64 = 64 << 20;

/// A file of codes (JSON).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodesFile {
    /// Of the audio, Hz.
    pub sample_rate: u32,
    /// Samples of the audio before it was padded to whole frames; absent: all that the codes say.
    #[serde(default)]
    pub samples: Option<u64>,
    /// The codes of each codebook, the slowest first.
    pub layers: Vec<Vec<u32>>,
}

fn of_file(path: &Path, reason: String) -> RunError {
    RunError::Data(DataError::File { path: path.to_owned(), reason })
}

impl CodesFile {
    /// Reads a file and checks it against a codec.
    ///
    /// # Errors
    /// Names the place in the file, or the codebook and the code that do not suit the codec.
    pub fn read(path: &Path, codec: &Spec) -> Result<(CodesFile, Codes), RunError> {
        let (file, len) = open_file(path).map_err(|e| match e.is_io() {
            true => RunError::from(e),
            false => of_file(path, e.what),
        })?;
        if len > MAX_CODES_BYTES {
            return Err(of_file(
                path,
                format!("has {len} bytes, more than the {MAX_CODES_BYTES} that are read"),
            ));
        }
        // From the file, not from its text: codes alone are kept in memory.
        let mut file: CodesFile = serde_json::from_reader(BufReader::new(file.take(MAX_CODES_BYTES)))
            .map_err(|e| match e.io_error_kind() {
                Some(_) => RunError::io(path, "cannot read", e.into()),
                None => of_file(
                    path,
                    format!("{}; give a file that `ambitus codec encode` wrote", short(&e.to_string())),
                ),
            })?;
        if file.sample_rate != codec.rate {
            let why = format!("sample_rate: {} Hz, this codec's is {} Hz", file.sample_rate, codec.rate);
            return Err(of_file(path, why));
        }
        let codes = Codes { layers: std::mem::take(&mut file.layers) };
        let frames = codec.frames(&codes).map_err(|why| of_file(path, why))?;
        let most = (frames * codec.frame) as u64;
        if let Some(samples) = file.samples.filter(|n| *n > most) {
            return Err(of_file(path, format!("samples: {samples} are more than the {most} of the codes")));
        }
        Ok((file, codes))
    }

    /// Writes it whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        let text =
            serde_json::to_string(self).map_err(|e| RunError::Io(format!("{}: {e}", path.display())))?;
        Ok(write_atomic(path, (text + "\n").as_bytes())?)
    }
}

/// Encodes an audio file of any length, rate and number of channels.
///
/// # Errors
/// Audio that cannot be used; the executor.
pub fn encode_file(codec: &mut dyn Codec, audio: &Path) -> Result<CodesFile, RunError> {
    let mut reader = AudioReader::open(audio)?;
    let rate = codec.spec().rate;
    let mut resampler = Resampler::new(reader.info().rate, rate);
    let (mut samples, mut piece, mut encoding) = (0u64, Vec::new(), codec.encoding()?);
    while let Some(chunk) = reader.next_chunk()? {
        piece.clear();
        resampler.push(chunk, &mut piece);
        samples += piece.len() as u64;
        encoding.push(&piece)?;
    }
    piece.clear();
    resampler.finish(&mut piece);
    samples += piece.len() as u64;
    encoding.push(&piece)?;
    if samples == 0 {
        let (path, reason) = (audio.to_owned(), ambitus_data::AudioFault::Empty);
        return Err(DataError::Audio { path, reason }.into());
    }
    let layers = encoding.finish()?.layers;
    Ok(CodesFile { sample_rate: rate, samples: Some(samples), layers })
}

/// Decodes a file of codes to a 16-bit wav file and returns its samples; with a seed, the noise blocks add noise.
///
/// # Errors
/// As [`CodesFile::read`]; the executor; when the file cannot be written.
pub fn decode_file(
    codec: &mut dyn Codec,
    codes: &Path,
    out: &Path,
    noise: Option<u64>,
) -> Result<u64, RunError> {
    let rate = codec.spec().rate;
    let (file, codes) = CodesFile::read(codes, codec.spec())?;
    let mut left = file.samples.unwrap_or(u64::MAX);
    let mut samples = 0;
    let mut decoding = codec.decoding(&codes, noise)?;
    write_wav_pieces(out, rate, || -> Result<Option<Vec<f32>>, RunError> {
        let Some(piece) = decoding.next_piece()? else { return Ok(None) };
        let n = left.min(piece.len() as u64);
        left -= n;
        samples += n;
        Ok(Some(piece[..n as usize].to_vec()))
    })?;
    Ok(samples)
}
