//! A run's numbers: `metrics.jsonl` (a line per update), `summary.json`, the progress line and the
//! one-line explanation of a slow step.

mod curves;
mod history;
mod lesson;
mod log;
mod pace;
mod progress;
mod slow;

use std::collections::BTreeMap;
use std::path::Path;

use ambitus_store::write_atomic;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use ambitus_data::text::Errors;
use ambitus_families::error::RunError;
use ambitus_plan::memory::PhaseBytes;
pub use curves::{COLUMNS, Curves, Series, Span};
pub use history::History;
pub use lesson::{Lesson, Limit};
pub use log::{Log, LogError, Resumed, each_after};
pub use pace::Pace;
pub use progress::{Progress, duration};
pub use slow::{Lost, SlowSteps, StepFacts, short};

/// Name of the log in a run folder.
pub const LOG_FILE: &str = "metrics.jsonl";
/// Name of the summary in a run folder.
pub const SUMMARY_FILE: &str = "summary.json";

/// One update, one line of the log. Of several players, `loss`, `losses`, `learning_rate` and `grad_norm` are those of the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Updates done, this one included: 1, 2, 3, …
    pub update: u64,
    /// Passes over the data done, as a fraction.
    pub epoch: f64,
    /// Clips of each data set, by name; only where there are several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub clips: BTreeMap<String, u32>,
    /// Loss of the update's clips. `null` in the file when not finite.
    #[serde(with = "finite")]
    pub loss: f64,
    /// Parts of it that the model reports, by name; only where there are any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub losses: BTreeMap<String, Real>,
    /// The rate of this update.
    pub learning_rate: f64,
    /// Global L2 norm of the gradients before clipping. `null` in the file when not finite.
    #[serde(with = "finite")]
    pub grad_norm: f64,
    /// The loss scale of the next update; only where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Whether the weights moved; `false` if a gradient was not finite.
    pub applied: bool,
    /// Each player's part, by name; only where there are several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub players: BTreeMap<String, OfPlayer>,
    /// Wall time of the update.
    pub step_seconds: f64,
    /// Of it, waiting for data.
    pub loader_wait_seconds: f64,
    /// Page faults that waited for a disk.
    pub page_faults_major: u64,
    /// Page faults served from memory.
    pub page_faults_minor: u64,
    /// Resident bytes of the process at the end of the update.
    pub rss_bytes: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Rows of the model that were computed on (frames, tokens).
    pub frames: u64,
    /// Rows per second of the step.
    pub frames_per_second: f64,
    /// Rows over the capacity of the micro-batches that were run.
    pub fill: f64,
}

/// One player's part of an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfPlayer {
    /// Its loss. `null` in the file when not finite.
    #[serde(with = "finite")]
    pub loss: f64,
    /// Parts of it that the model reports, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub losses: BTreeMap<String, Real>,
    /// Its rate.
    pub learning_rate: f64,
    /// L2 norm of its gradients before clipping. `null` in the file when not finite.
    #[serde(with = "finite")]
    pub grad_norm: f64,
    /// Whether its weights moved.
    pub applied: bool,
}

/// A number that is `null` in the file when not finite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Real(#[serde(with = "finite")] pub f64);

/// A float that JSON may not be able to write: not finite is `null`, and `null` is NaN.
mod finite {
    use super::*;

    pub fn serialize<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
        x.is_finite().then_some(x).serialize(s)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(d)?.unwrap_or(f64::NAN))
    }
}

/// `summary.json`: a run in one object. Times in seconds, sizes in bytes. What was not measured is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Updates done.
    pub updates: u64,
    /// Mel frames of all updates over their time, checkpoints and validation not counted.
    pub tokens_per_second: Option<f64>,
    /// Median time of an update.
    pub step_seconds_median: Option<f64>,
    /// Mean loss of the first tenth of the updates.
    pub loss_first: Option<f64>,
    /// Mean loss of the last tenth.
    pub loss_last: Option<f64>,
    /// Validation loss before the first update.
    pub validation_base: Option<f64>,
    /// Validation loss after the last.
    pub validation_last: Option<f64>,
    /// And on each of several data sets, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub validation_sets: BTreeMap<String, f64>,
    /// Ranks that shared the run.
    #[serde(default)]
    pub ranks: Option<u32>,
    /// Phase by phase, in legal order, those that took place.
    #[serde(default)]
    pub phases: Vec<PhaseBytes>,
    /// The arena, as planned; of several ranks, each one's.
    pub arena_bytes_planned: u64,
    /// The arena, as the executor used it.
    pub arena_bytes_used: u64,
    /// Of several ranks, each one's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arena_bytes_of_ranks: Vec<u64>,
    /// Of ranks with a part of the model each, as planned for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arena_bytes_planned_of_ranks: Vec<u64>,
    /// The host arena, in memory or on disk.
    #[serde(default)]
    pub host_arena_bytes: u64,
    /// High-water mark of the process's resident bytes; on a card, of what it holds there.
    pub peak_rss_bytes: Option<u64>,
    /// The highest phase's peak, as planned; without a card with the host arena, where that is in memory.
    pub peak_planned_bytes: u64,
    /// Frames over capacity, all updates.
    pub packing_fill: Option<f64>,

    /// Lowest validation loss.
    #[serde(default)]
    pub validation_best: Option<f64>,
    /// The update it was measured after.
    #[serde(default)]
    pub best_update: Option<u64>,
    /// `ema` or `raw`, whichever validates better.
    #[serde(default)]
    pub best_weights: Option<String>,
    /// Word error rate of the samples of the base, by the model that hears them; only where one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_wer_base: Option<f64>,
    /// The same of the last samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_wer: Option<f64>,
    /// Why the run ended: `finished`, `interrupted`.
    #[serde(default)]
    pub ended: String,
    /// Why it ended before its last update, and where the best of it is; only where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// How validation rose while training fell; only where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overfitting: Option<String>,
    /// What limited the run, and what to change: at most one about its time and one about what it learned.
    #[serde(default)]
    pub lessons: Vec<Lesson>,
    /// Passes over the data.
    #[serde(default)]
    pub epochs: f64,
    /// Clips trained on.
    #[serde(default)]
    pub clips: u64,
    /// Clips validated on.
    #[serde(default)]
    pub validation_clips: u64,
    /// Mel frames of all updates.
    #[serde(default)]
    pub frames: u64,
    /// Updates that were not applied because a gradient was not finite.
    #[serde(default)]
    pub skipped_updates: u64,
    /// Wall time of the process that ended the run, from its start.
    #[serde(default)]
    pub wall_seconds: f64,
    /// Wall time of all updates, with waiting for data; checkpoints and validation not counted.
    #[serde(default)]
    pub update_seconds: f64,
    /// Waiting for data, all updates.
    #[serde(default)]
    pub loader_wait_seconds: f64,
    /// Writing checkpoints.
    #[serde(default)]
    pub saving_seconds: f64,
    /// Page faults that waited for a disk, all updates.
    #[serde(default)]
    pub page_faults_major: u64,
    /// Steps over twice the median.
    #[serde(default)]
    pub slow_steps: u64,
    /// The budget.
    #[serde(default)]
    pub budget_bytes: Option<u64>,
    /// Compute threads.
    #[serde(default)]
    pub threads: Option<u32>,
    /// The program's version.
    #[serde(default)]
    pub version: String,
}

impl Summary {
    /// Writes `summary.json` into the run folder; it appears whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, run: &Path) -> Result<(), RunError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| RunError::Io(e.to_string()))?;
        Ok(write_atomic(run.join(SUMMARY_FILE), (text + "\n").as_bytes())?)
    }
}

/// Says that an update was not applied. `per_tensor`: gradients are clipped tensor by tensor. `scale`: the loss scale of the next
/// update, where there is one.
pub fn skipped(update: u64, per_tensor: bool, scale: Option<f64>) -> String {
    let skipped = match (per_tensor, scale) {
        (false, None) => "the update was skipped".to_owned(),
        (false, Some(scale)) => format!("the update was skipped, the loss scale is {scale} now"),
        (true, _) => "that tensor was not updated, the others were".to_owned(),
    };
    format!("update {update}: a gradient was not finite; {skipped}")
}

/// Says what a validation after an update found, of the weights and of their average.
pub fn validated(update: u64, loss: f64, average: Option<f64>) -> String {
    let averaged = average.map_or(String::new(), |e| format!(", of the average {e:.4}"));
    format!("update {update}: validation loss {loss:.4}{averaged}")
}

/// Says the losses of several data sets; nothing where there is one.
pub fn of_sets(losses: &[(String, f64)]) -> Option<String> {
    let each: Vec<String> = losses.iter().map(|(name, loss)| format!("{name} {loss:.4}")).collect();
    (!each.is_empty()).then(|| format!("  by data set: {}", each.join(" · ")))
}

/// Says how much of the samples after an update another model did not hear.
pub fn heard_with(update: u64, errors: &Errors) -> String {
    let Errors { errors: n, words, by_characters } = *errors;
    let (of, what) = if by_characters { ("character", "characters") } else { ("word", "words") };
    let rate = 100.0 * errors.rate();
    format!(
        "update {update}: {of} error rate of the samples, as they are heard: {rate:.1} % ({n} errors, {words} {what})"
    )
}

/// Returns the middle of sorted numbers, or the mean of two middles.
fn median(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    (n > 0).then(|| (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0)
}

#[cfg(test)]
pub(crate) fn sample_update(update: u64) -> Update {
    Update {
        update,
        epoch: update as f64 / 4.0,
        clips: BTreeMap::new(),
        loss: 1.0 / update as f64,
        losses: BTreeMap::new(),
        learning_rate: 1e-5,
        grad_norm: 0.5,
        loss_scale: None,
        applied: true,
        players: BTreeMap::new(),
        step_seconds: 0.5,
        loader_wait_seconds: 0.01,
        page_faults_major: 0,
        page_faults_minor: 3,
        rss_bytes: 1 << 30,
        arena_bytes: 1 << 29,
        frames: 900,
        frames_per_second: 1800.0,
        fill: 0.9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::new(3);
        (1..=3).map(sample_update).for_each(|u| history.add(&u));
        let summary = Summary { validation_base: Some(0.7), ..history.summary() };
        summary.write(folder.path()).unwrap();
        let text = std::fs::read_to_string(folder.path().join(SUMMARY_FILE)).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), summary);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for key in [
            "updates",
            "tokens_per_second",
            "step_seconds_median",
            "loss_first",
            "loss_last",
            "validation_base",
            "validation_last",
            "arena_bytes_planned",
            "arena_bytes_used",
            "peak_rss_bytes",
            "peak_planned_bytes",
            "packing_fill",
        ] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
