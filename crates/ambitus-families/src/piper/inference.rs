//! What `config.json` says of speaking: scales, and the names of speakers.

use super::folder::Folder;
use crate::error::RunError;
use crate::hugging_face::CONFIG;
use crate::weights::{MAX_CONFIG_BYTES, read_text};
use ambitus_recipe::recipe::short;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Names that a message has at most.
const MOST_NAMED: usize = 12;

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

/// `config.json`: what is read of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Inference {
    #[serde(rename = "inference")]
    pub scales: Scales,
    speaker_id_map: BTreeMap<String, u32>,
}

impl Folder {
    /// Reads how the voice speaks.
    ///
    /// # Errors
    /// By file and key.
    pub fn inference(&self) -> Result<Inference, RunError> {
        let path = self.dir.join(CONFIG);
        let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the voice's own folder: NAME.onnx.json")?;
        let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
        let read: Inference = serde_json::from_str(&text).map_err(|e| bad(short(&e.to_string())))?;
        read.scales.check().map_err(|why| bad(format!("inference.{why}")))?;
        let speakers = self.config.speakers;
        let none = read.speaker_id_map.iter().find(|(_, id)| **id as usize >= speakers);
        match none.filter(|_| speakers > 1) {
            Some((name, id)) => {
                Err(bad(format!("speaker_id_map: {name} is {id}, and the model has {speakers} speakers")))
            }
            None => Ok(read),
        }
    }

    /// Returns the speaker of a name, or of a number.
    ///
    /// # Errors
    /// [`RunError::Usage`]: nobody is called so; a voice of one speaker.
    pub fn speaker(&self, named: &str, of: &Inference) -> Result<u32, RunError> {
        let speakers = self.config.speakers;
        if speakers == 1 {
            let why = "--voice: this voice has one speaker; leave it out";
            return Err(RunError::Usage(why.to_owned()));
        }
        let number = || named.parse::<u32>().ok().filter(|id| (*id as usize) < speakers);
        of.speaker_id_map.get(named).copied().or_else(number).ok_or_else(|| {
            let names: Vec<&str> = of.speaker_id_map.keys().take(MOST_NAMED).map(String::as_str).collect();
            let more = if of.speaker_id_map.len() > MOST_NAMED { ", …" } else { "" };
            let names = match &*names {
                [] => String::new(),
                names => format!("{}{more}, or ", names.join(", ")),
            };
            let numbers = format!("a number from 0 to {}", speakers - 1);
            RunError::Usage(format!("--voice {named}: is no speaker of this voice: give {names}{numbers}"))
        })
    }
}
