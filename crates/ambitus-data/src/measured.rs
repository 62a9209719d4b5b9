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
    /// Silence was cut off at its ends, since it was too long.
    pub trimmed: bool,
    /// What was changed about it, where that was asked for. Clip files do not have it: it is beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<Edited>,
}

/// What was changed about a clip's sound.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Edited {
    /// Integrated loudness before and after, LUFS. None where it was not asked for, and of what has none: less than 0.4 s, and silence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loudness: Option<[f64; 2]>,
    /// Seconds that were left out at its beginning and its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trimmed: Option<[f64; 2]>,
}
