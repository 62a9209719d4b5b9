//! What was changed about the sound of all clips together.

use std::fmt;

use serde::Serialize;

use super::edits::Edits;
use super::summary::Named;
use crate::error::many;
use crate::index::ClipMeta;

/// Loudness that is this much below what was asked for was held back by a peak, LU.
const HELD: f64 = 0.05;

/// What was changed about the sound of usable clips.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Changes {
    /// Loudness that was asked for, LUFS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loudness: Option<f64>,
    /// Clips that were brought to it, or as near as their peaks allow.
    pub levelled: usize,
    /// Softest and loudest of these before, LUFS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<[f64; 2]>,
    /// And after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<[f64; 2]>,
    /// Those whose peaks allow no more.
    pub held_by_peaks: Named,
    /// Clips that stay as they are, since they have no loudness.
    pub without_loudness: Named,
    /// Seconds of silence that stay at an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trim: Option<f64>,
    /// Clips that lost silence.
    pub trimmed: usize,
    /// Of all together, seconds.
    pub trimmed_seconds: f64,
}

impl Changes {
    /// Adds a clip.
    pub(super) fn add(&mut self, asked: &Edits, clip: &ClipMeta) {
        (self.loudness, self.trim) = (asked.loudness, asked.trim);
        let edited = clip.measured.edited.unwrap_or_default();
        if let Some(lost) = edited.trimmed.map(|ends| ends.iter().sum::<f64>()).filter(|lost| *lost > 0.0) {
            self.trimmed += 1;
            self.trimmed_seconds += lost;
        }
        match (asked.loudness, edited.loudness) {
            (Some(target), Some([before, after])) => {
                self.levelled += 1;
                for (range, x) in [(&mut self.before, before), (&mut self.after, after)] {
                    let [low, high] = range.unwrap_or([x; 2]);
                    *range = Some([low.min(x), high.max(x)]);
                }
                if after < target - HELD {
                    self.held_by_peaks.add(&clip.name);
                }
            }
            (Some(_), None) => self.without_loudness.add(&clip.name),
            _ => {}
        }
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |of: &Named| {
            let more = if of.count > 1 { ", ..." } else { "" };
            format!("({}{more})", of.first.first().map_or("", |name| name))
        };
        if self.loudness.is_some() {
            write!(f, "\nloudness: {}", many(self.levelled, "clip"))?;
            if let (Some([a, b]), Some([c, d])) = (self.before, self.after) {
                write!(f, " from {a:.1} to {b:.1} LUFS, now {c:.1} to {d:.1}")?;
            }
            let held = &self.held_by_peaks;
            if held.count > 0 {
                write!(f, "; softer than asked for, by their peaks: {} {}", held.count, names(held))?;
            }
            let without = &self.without_loudness;
            if without.count > 0 {
                write!(
                    f,
                    "; as they are, too short or too soft to have one: {} {}",
                    without.count,
                    names(without)
                )?;
            }
        }
        if self.trim.is_some() {
            let (clips, seconds) = (many(self.trimmed, "clip"), self.trimmed_seconds);
            write!(f, "\ntrimmed: {seconds:.1} s of silence at the ends of {clips}")?;
        }
        Ok(())
    }
}
