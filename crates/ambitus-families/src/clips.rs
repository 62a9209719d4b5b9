//! The clips of a run as its loop sees them: lengths, and how a batch is filled from some of them. A family's own way to draw
//! and lay out its clips is behind [`Clips`].

use ambitus_data::DataError;
use ambitus_models::{Batch, Norms};

/// Seed of all that validation draws: which clips are held out, and what is drawn for them. The run's own seed has no part in it,
/// so that runs with different seeds compare.
pub const VALIDATION_SEED: u64 = 0;

/// What a clip is used for. With the clip it identifies everything that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Training, the time round from 0.
    Epoch(u32),
    /// Validation, the round of [`Clips::rounds`].
    Round(u32),
}

/// One use of a clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Index of the clip in [`Clips::rows`].
    pub clip: usize,
    /// What for.
    pub when: When,
}

/// Returns the identity of a clip in random draws: independent of its place in the data.
pub fn sample_id(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
}

/// A set of clips. What it fills is a pure function of the uses.
pub trait Clips: Send + Sync {
    /// Returns the rows of each clip.
    fn rows(&self) -> &[u32];

    /// Returns how often each clip is trained on, in relation to the others; nothing where all are alike.
    fn weights(&self) -> &[f32] {
        &[]
    }

    /// Returns the most rows of context of a clip, which it attends to besides its own; 0 for families without.
    fn context(&self) -> u32 {
        0
    }

    /// Returns how often a validation uses each clip: more than once where draws are random and one says little.
    fn rounds(&self) -> u32 {
        1
    }

    /// Returns the normalisers of an update, or of a validation, of these.
    ///
    /// # Errors
    /// Clips that cannot be read.
    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError>;

    /// Lays these end to end in a batch of the family's layout, which they fit.
    ///
    /// # Errors
    /// Clips that cannot be read.
    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError>;
}
