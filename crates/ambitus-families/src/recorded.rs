//! Tensors of ids in a batch file, by clip: `clips.0.input_ids`, `clips.1.input_ids`, …

use crate::error::RunError;
use crate::weights::STAGING_BYTES;
use ambitus_store::TensorFile;
use std::path::Path;

/// What may be used before anything is planned.
#[derive(Clone, Copy, Debug)]
pub struct Spare {
    /// Threads.
    pub threads: usize,
    /// Bytes of the host's memory.
    pub bytes: u64,
}

/// A batch file.
pub struct BatchFile<'p> {
    path: &'p Path,
    /// Its tensors.
    pub file: TensorFile,
    scratch: Vec<u8>,
}

impl<'p> BatchFile<'p> {
    /// Opens a file.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open(path: &'p Path) -> Result<BatchFile<'p>, RunError> {
        Ok(BatchFile { path, file: TensorFile::open(path)?, scratch: vec![0u8; STAGING_BYTES] })
    }

    /// Returns what is wrong with a tensor or clip.
    pub fn bad(&self, name: &str, why: impl std::fmt::Display) -> RunError {
        RunError::Usage(format!("{}: {name}: {why}", self.path.display()))
    }

    /// Returns the number of clips: of those that have this tensor, from the first on.
    ///
    /// # Errors
    /// There is none.
    pub fn clips(&self, leaf: &str) -> Result<usize, RunError> {
        let n = (0..).take_while(|i| self.file.contains(&format!("clips.{i}.{leaf}"))).count();
        if n > 0 {
            Ok(n)
        } else {
            Err(self.bad(&format!("clips.0.{leaf}"), "is missing; the batch has no clip"))
        }
    }

    /// Returns a clip's integers and their shape, which has as many axes as are named.
    ///
    /// # Errors
    /// A tensor that is missing, has another number of axes, or no integers.
    pub fn integers(
        &mut self,
        i: usize,
        leaf: &str,
        axes: &[&str],
    ) -> Result<(Vec<i64>, Vec<usize>), RunError> {
        let name = format!("clips.{i}.{leaf}");
        let tensor = self.file.get(&name)?;
        let (shape, n) = (tensor.shape().to_vec(), tensor.elements());
        if shape.len() != axes.len() || n > u32::MAX as usize {
            return Err(self.bad(&name, format!("is {shape:?}, not [{}]", axes.join(", "))));
        }
        let mut out = vec![0i64; n];
        self.file.read_i64(&name, &mut out, &mut self.scratch)?;
        Ok((out, shape))
    }

    /// Returns a clip's ids and their shape. What does not fit is in no vocabulary: it becomes the largest id.
    ///
    /// # Errors
    /// As [`BatchFile::integers`].
    pub fn ids(&mut self, i: usize, leaf: &str, axes: &[&str]) -> Result<(Vec<u32>, Vec<usize>), RunError> {
        let (ids, shape) = self.integers(i, leaf, axes)?;
        Ok((ids.into_iter().map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect(), shape))
    }

    /// Returns the n numbers of a tensor.
    ///
    /// # Errors
    /// Numbers that cannot be read.
    pub fn floats(&mut self, name: &str, n: usize) -> Result<Vec<f32>, RunError> {
        let mut out = vec![0.0; n];
        self.file.read_into(name, &mut out, &mut self.scratch)?;
        Ok(out)
    }
}
