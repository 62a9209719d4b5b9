//! Writing WAV files.

use std::io::{Cursor, Write};
use std::path::Path;

use crate::atomic;
use crate::error::DataError;

/// Writes mono samples (1 = full scale, clamped) as 16-bit PCM. The file appears whole or not at all.
pub fn write_wav(path: &Path, samples: &[f32], rate: u32) -> Result<(), DataError> {
    if let Some(i) = samples.iter().position(|x| !x.is_finite()) {
        return Err(DataError::file(path, format!("not written: sample {i} is {}", samples[i])));
    }
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: rate,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    // hound needs to seek back into the header, so the (small) file is made in memory.
    let mut bytes = Cursor::new(Vec::with_capacity(44 + 2 * samples.len()));
    let made = (|| {
        let mut writer = hound::WavWriter::new(&mut bytes, spec)?;
        for &x in samples {
            writer.write_sample((x.clamp(-1.0, 1.0) * f32::from(i16::MAX)).round() as i16)?;
        }
        writer.finalize()
    })();
    made.map_err(|e: hound::Error| DataError::file(path, format!("not written: {e}")))?;
    atomic::write(path, |file| file.write_all(bytes.get_ref()))
}
