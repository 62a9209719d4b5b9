//! What is measured of every clip, whatever it becomes.

use serde::{Deserialize, Serialize};

/// What was measured of a clip's audio.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Length, seconds.
    pub seconds: f64,
    /// Root mean square, 1 = full scale.
    pub rms: f32,
    /// Largest sample, 1 = full scale.
    pub peak: f32,
    /// Samples at full scale in a row.
    pub clipped: bool,
    /// Silence was cut off at its ends.
    pub trimmed: bool,
}
