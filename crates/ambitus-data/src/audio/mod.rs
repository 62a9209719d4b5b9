//! Audio files of any rate and channel count as a stream of mono samples.

mod boxes;
mod decode;
mod input;
mod resample;
mod sniff;

pub use decode::{AudioInfo, AudioReader, AudioStats};
pub use input::AudioInput;
pub use resample::{Resampler, resample};
pub use sniff::Container;

use std::path::Path;

use crate::error::{AudioFault, DataError};

/// Lowest sample rate that is read, Hz.
pub const MIN_RATE: u32 = 4_000;
/// Highest sample rate that is read, Hz.
pub const MAX_RATE: u32 = 384_000;
/// Most channels that are read.
pub const MAX_CHANNELS: usize = 32;
/// Largest magnitude of a sample: 24 dB over full scale. Beyond it, the file holds unscaled integers or noise.
pub const MAX_SAMPLE: f32 = 16.0;

/// Bound on what one open [`AudioReader`] allocates at any time, whatever the length of the file: symphonia's ring
/// buffer, the largest packet (a FLAC block of 65,535 frames x 8 channels) with its decoded and interleaved copies, or
/// Vorbis tables up to [`MAX_VORBIS_TABLES`]. Most files take under 1 MiB. Only where a FLAC file is damaged does
/// symphonia read on, for at most 16 MiB that the file really has, in search of the next frame.
pub const READER_BYTES: usize = 8 << 20;

/// Largest vector tables a Vorbis header may ask for, bytes. Encoders in use need under 1 MiB; a crafted header of a
/// few hundred bytes could otherwise ask for gigabytes.
pub const MAX_VORBIS_TABLES: u64 = 4 << 20;

/// Reads a file as mono samples of `rate` Hz, up to `max_seconds` of them; longer is an error, so that memory stays bounded.
pub fn load(path: &Path, rate: u32, max_seconds: f64) -> Result<Vec<f32>, DataError> {
    let mut reader = AudioReader::open(path)?;
    let mut resampler = Resampler::new(reader.info().rate, rate);
    let mut out = Vec::new();
    while let Some(chunk) = reader.next_chunk()? {
        resampler.push(chunk, &mut out);
        if out.len() as f64 > max_seconds * f64::from(rate) {
            return Err(DataError::file(path, format!("longer than {max_seconds} s")));
        }
    }
    resampler.finish(&mut out);
    if out.is_empty() {
        return Err(DataError::audio(path, AudioFault::Empty));
    }
    Ok(out)
}
