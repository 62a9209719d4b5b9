//! Where an audio file lies: on disk, or in memory as a column of a table holds it.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::DataError;

/// An audio file.
#[derive(Debug, Clone)]
pub enum AudioInput {
    /// A regular file.
    File(PathBuf),
    /// A whole file in memory.
    Memory {
        /// What to call it in messages.
        name: PathBuf,
        /// Its bytes.
        bytes: Arc<[u8]>,
    },
}

/// What decoders read from.
pub(crate) trait Medium: Read + Seek + Send + Sync {}

impl Medium for File {}

impl Medium for Cursor<Arc<[u8]>> {}

impl AudioInput {
    /// Returns the path of the file, or the name of what is in memory.
    pub fn name(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Memory { name, .. } => name,
        }
    }

    /// Returns the opened file and its length, bytes.
    pub(crate) fn open(&self) -> Result<(Box<dyn Medium>, u64), DataError> {
        match self {
            Self::File(path) => {
                // Opening a pipe would wait for a writer, so the kind is looked at first.
                let meta = std::fs::metadata(path).map_err(|e| DataError::io(path, e))?;
                if !meta.is_file() {
                    return Err(DataError::file(path, "not a regular file"));
                }
                let file = File::open(path).map_err(|e| DataError::io(path, e))?;
                Ok((Box::new(file), meta.len()))
            }
            Self::Memory { bytes, .. } => {
                let length = bytes.len() as u64;
                Ok((Box::new(Cursor::new(bytes.clone())), length))
            }
        }
    }

    /// Hashes all bytes, in pieces.
    pub(crate) fn hash(&self) -> Result<blake3::Hash, DataError> {
        let failed = |e: io::Error| DataError::io(self.name(), e);
        let (mut file, _) = self.open()?;
        let mut hash = blake3::Hasher::new();
        let mut buffer = vec![0u8; 1 << 16];
        loop {
            match file.read(&mut buffer).map_err(failed)? {
                0 => break,
                n => hash.update(&buffer[..n]),
            };
        }
        Ok(hash.finalize())
    }

    /// Returns the samples of one channel as a file in memory: a WAV header before 32-bit floats.
    #[cfg(feature = "parquet")]
    pub(crate) fn of_samples(name: PathBuf, samples: &[f32], rate: u32) -> Result<Self, String> {
        let bytes = u32::try_from(4 * samples.len() as u64)
            .ok()
            .filter(|n| *n < u32::MAX - 64)
            .ok_or_else(|| format!("{} samples in one clip", samples.len()))?;
        let mut file = Vec::with_capacity(44 + bytes as usize);
        file.extend_from_slice(b"RIFF");
        file.extend_from_slice(&(36 + bytes).to_le_bytes());
        file.extend_from_slice(b"WAVEfmt ");
        file.extend_from_slice(&16u32.to_le_bytes());
        // Format 3, one channel, rate, bytes per second, bytes per frame, bits per sample.
        file.extend_from_slice(&3u16.to_le_bytes());
        file.extend_from_slice(&1u16.to_le_bytes());
        file.extend_from_slice(&rate.to_le_bytes());
        file.extend_from_slice(&rate.saturating_mul(4).to_le_bytes());
        file.extend_from_slice(&4u16.to_le_bytes());
        file.extend_from_slice(&32u16.to_le_bytes());
        file.extend_from_slice(b"data");
        file.extend_from_slice(&bytes.to_le_bytes());
        samples.iter().for_each(|x| file.extend_from_slice(&x.to_le_bytes()));
        Ok(Self::Memory { name, bytes: file.into() })
    }
}
