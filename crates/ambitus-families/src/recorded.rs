//! Tensors of a batch file, by clip: `clips.0.input_ids`, `clips.1.input_ids`, …

use crate::error::RunError;
use crate::weights::STAGING_BYTES;
use ambitus_store::{StoreError, TensorFile};
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
    file: TensorFile,
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

    /// Returns the error of a tensor that was not read.
    fn unread(&self, name: &str, e: StoreError) -> RunError {
        if e.is_io() { e.into() } else { self.bad(name, e.what) }
    }

    /// Returns the number of clips, each of which has this tensor.
    ///
    /// # Errors
    /// There is none; one without it.
    pub fn clips(&self, leaf: &str) -> Result<usize, RunError> {
        let number = |name: &str| name.strip_prefix("clips.")?.split('.').next()?.parse::<usize>().ok();
        let last = self.file.tensors().iter().filter_map(|t| number(t.name())).max();
        let n = last.map_or(0, |last| last.saturating_add(1));
        match (0..n.max(1)).find(|i| !self.contains(&format!("clips.{i}.{leaf}"))) {
            None => Ok(n),
            Some(i) if n > 0 => {
                Err(self.bad(&format!("clips.{i}.{leaf}"), format!("is missing; the batch has {n} clips")))
            }
            Some(_) => Err(self.bad(&format!("clips.0.{leaf}"), "is missing; the batch has no clip")),
        }
    }

    /// Returns whether it has a tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.file.contains(name)
    }

    /// Returns the shape of a tensor.
    ///
    /// # Errors
    /// It is missing.
    pub fn shape(&self, name: &str) -> Result<Vec<usize>, RunError> {
        match self.file.get(name) {
            Ok(tensor) => Ok(tensor.shape().to_vec()),
            Err(e) => Err(self.unread(name, e)),
        }
    }

    /// Returns a clip's ids and their shape, which has as many axes as are named.
    ///
    /// # Errors
    /// A tensor that is missing, has another number of axes, no integers, or numbers that are no ids.
    pub fn ids<T: TryFrom<i64>>(
        &mut self,
        i: usize,
        leaf: &str,
        axes: &[&str],
    ) -> Result<(Vec<T>, Vec<usize>), RunError> {
        let name = format!("clips.{i}.{leaf}");
        let shape = self.shape(&name)?;
        let n = shape.iter().product::<usize>();
        if shape.len() != axes.len() || n > u32::MAX as usize {
            return Err(self.bad(&name, format!("is {shape:?}, not [{}]", axes.join(", "))));
        }
        let mut all = vec![0i64; n];
        self.file.read_i64(&name, &mut all, &mut self.scratch).map_err(|e| self.unread(&name, e))?;
        let id = |(at, id): (usize, &i64)| {
            T::try_from(*id).map_err(|_| self.bad(&name, format!("element {at} is {id}, which is no id")))
        };
        Ok((all.iter().enumerate().map(id).collect::<Result<_, RunError>>()?, shape))
    }

    /// Returns the n numbers of a tensor, which are finite.
    ///
    /// # Errors
    /// A tensor that is missing or has others.
    pub fn floats(&mut self, name: &str, n: usize) -> Result<Vec<f32>, RunError> {
        let has = self.shape(name)?.iter().product::<usize>();
        if has != n {
            return Err(self.bad(name, format!("has {has} elements, {n} are expected")));
        }
        let mut out = vec![0.0; n];
        self.file.read_into(name, &mut out, &mut self.scratch).map_err(|e| self.unread(name, e))?;
        match out.iter().position(|x| !x.is_finite()) {
            Some(at) => Err(self.bad(name, format!("element {at} is {}", out[at]))),
            None => Ok(out),
        }
    }
}
