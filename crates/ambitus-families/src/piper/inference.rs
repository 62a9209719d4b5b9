//! What `config.json` says of speaking.

use super::folder::Folder;
use crate::error::RunError;
use crate::hugging_face::CONFIG;
use crate::weights::{MAX_CONFIG_BYTES, read_text};
use ambitus_recipe::recipe::short;
use serde::Deserialize;

/// How a voice speaks (`inference`); absent keys are the project's.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Scales {
    /// Of the noise of frames.
    #[serde(rename = "noise_scale")]
    pub noise: f32,
    /// Of durations.
    #[serde(rename = "length_scale")]
    pub length: f32,
    /// Of the noise of durations.
    #[serde(rename = "noise_w")]
    pub durations: f32,
}

impl Default for Scales {
    fn default() -> Scales {
        Scales { noise: 0.667, length: 1.0, durations: 0.8 }
    }
}

impl Scales {
    /// Checks the numbers.
    ///
    /// # Errors
    /// The key and what it may be.
    pub fn check(&self) -> Result<(), String> {
        for (key, x) in [("noise_scale", self.noise), ("noise_w", self.durations)] {
            if !(0.0..=100.0).contains(&x) {
                return Err(format!("{key}: {x} is not from 0 to 100"));
            }
        }
        match (0.01..=100.0).contains(&self.length) {
            true => Ok(()),
            false => Err(format!("length_scale: {} is not from 0.01 to 100", self.length)),
        }
    }

    /// Returns them with noise times a factor, and sound that is `speed` times as fast.
    pub fn with(self, noise: f32, speed: f64) -> Scales {
        Scales {
            noise: self.noise * noise,
            length: (f64::from(self.length) / speed) as f32,
            durations: self.durations * noise,
        }
    }
}

impl Folder {
    /// Reads how the voice speaks.
    ///
    /// # Errors
    /// By file and key.
    pub fn scales(&self) -> Result<Scales, RunError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct File {
            inference: Scales,
        }
        let path = self.dir.join(CONFIG);
        let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the voice's own folder: NAME.onnx.json")?;
        let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
        let File { inference: scales } =
            serde_json::from_str(&text).map_err(|e| bad(short(&e.to_string()).to_string()))?;
        scales.check().map_err(|why| bad(format!("inference.{why}")))?;
        Ok(scales)
    }
}
