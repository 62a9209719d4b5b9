//! A held-out clip of which a model generates a part, for people to look at and listen to.

use crate::error::RunError;
use ambitus_data::DataError;
use ambitus_exec::executor::Executor;
use ambitus_models::Capacity;
use std::ops::Range;
use std::path::Path;

/// How a clip is sampled.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Steps of the solver.
    pub steps: u32,
    /// Classifier-free guidance: v = conditional + cfg * (conditional - unconditional).
    pub cfg: f32,
    /// Seed of the starting noise.
    pub seed: u64,
}

/// A clip that is sampled: values `[rows, columns]` and text ids.
pub struct Held {
    /// What is looked at and listened to.
    pub values: Vec<f32>,
    /// Its text.
    pub text: Vec<i32>,
}

/// Samples clips of a family, with its sampling program.
pub trait Sampler: Sync {
    /// Returns the columns of a row of values.
    fn columns(&self) -> usize;

    /// Returns the range of a clip's `rows` that is generated; the others are given.
    fn generated(&self, rows: usize) -> Range<usize>;

    /// Reads a prepared clip, cut to `rows`.
    ///
    /// # Errors
    /// A damaged file.
    fn load(&self, clip: &Path, rows: usize) -> Result<Held, DataError>;

    /// Generates part of a clip with `program`, of `capacity`: all values, with those that are given as they were.
    ///
    /// # Errors
    /// From the executor.
    fn sample(
        &self,
        exec: &mut dyn Executor,
        program: &str,
        capacity: Capacity,
        held: &Held,
        settings: Settings,
    ) -> Result<Vec<f32>, RunError>;

    /// Writes values as sound.
    ///
    /// # Errors
    /// From the disk.
    fn write_sound(&self, path: &Path, values: &[f32], seed: u64) -> Result<(), DataError>;
}
