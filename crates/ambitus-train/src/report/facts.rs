//! What a report reads of a run's folder. Any file may be missing, damaged or of an earlier version: then its part is missing.

use crate::metrics::{SUMMARY_FILE, Summary};
use crate::runs_table::{MAX_JSON, PLAN_FILE};
use ambitus_store::read_file;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// `plan.json`, as far as people look at it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// The highest peak.
    pub peak_bytes: u64,
    /// The budget.
    pub budget_bytes: u64,
    /// The arena.
    pub arena_bytes: u64,
    /// The host arena.
    pub host_bytes: u64,
    /// The folder of its file, if it is one.
    pub host_on_disk: Option<PathBuf>,
    /// Where the peak is.
    pub peak_in: String,
    /// What the original project's training would take.
    pub as_original_bytes: u64,
    /// Parameters of the model.
    pub parameters: u64,
    /// Of these, those that are trained.
    pub trained_parameters: u64,
    /// Micro-batches of an update.
    pub micro_batches: u64,
    /// What a micro-batch holds: rows, by what they are called, and `clips`.
    pub micro_batch: BTreeMap<String, f64>,
    /// Predicted seconds of an update.
    pub step_seconds: f64,
    /// Peaks of the phases, in legal order.
    pub phases: Vec<Phase>,
    /// At the highest peak.
    pub categories: BTreeMap<String, u64>,
    /// Values that decide the plan, and where they came from.
    pub choices: Vec<Choice>,
    /// What the search tried.
    pub candidates: Vec<Candidate>,
    /// All values of the recipe, and where they came from.
    pub recipe: Vec<Choice>,
    /// What was said of the data.
    pub data: Vec<String>,
    /// Memory over a micro-batch.
    pub over_micro_batch: OverMicroBatch,
    /// What the run is.
    pub run: Run,
}

impl Plan {
    /// Returns a value of the recipe.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.recipe.iter().find(|c| c.key == key).map(|c| &*c.value).filter(|value| *value != "null")
    }

    /// Returns a value that decides the plan.
    pub fn choice(&self, key: &str) -> Option<&str> {
        self.choices.iter().find(|c| c.key == key).map(|c| &*c.value)
    }
}

/// What a run is, beside its plan.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Updates of the whole run.
    pub updates: u64,
    /// What a row of the model is: frames, tokens.
    pub unit: String,
    /// Where it computes.
    pub device: String,
    /// That is a GPU, whose memory the budget bounds.
    pub on_card: bool,
    /// Lengths of its clips.
    pub clip_rows: ClipRows,
}

/// Lengths of clips, in rows.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClipRows {
    /// On average.
    pub mean: f64,
    /// 19 of 20 are no longer.
    pub most: f64,
    /// The longest.
    pub longest: f64,
    /// Rows of a second.
    pub per_second: f64,
}

/// A phase's peak.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Most bytes.
    pub peak_bytes: u64,
}

/// A value and where it came from.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Choice {
    /// Key of the recipe.
    pub key: String,
    /// The value.
    pub value: String,
    /// Where it came from.
    pub from: String,
}

/// A combination of options that the search tried.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Candidate {
    /// What differs from what was given.
    pub options: String,
    /// What that does to numbers.
    pub numerics: String,
    /// Its peak.
    pub peak_bytes: u64,
    /// Predicted seconds of an update.
    pub seconds: f64,
    /// What became of it.
    pub verdict: String,
}

/// Memory over the instructions of a micro-batch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct OverMicroBatch {
    /// Instructions.
    pub instructions: u64,
    /// Where something starts: instruction and name.
    pub marks: Vec<(u64, String)>,
    /// Categories from the bottom up: bytes in columns of as many instructions each.
    pub categories: Vec<(String, Vec<u64>)>,
}

/// Returns a JSON file; `None` where it is missing, or is none.
fn json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&read_file(path, MAX_JSON).ok()?).ok()
}

/// Returns the plan of a run.
pub fn plan(run: &Path) -> Option<Plan> {
    json(&run.join(PLAN_FILE))
}

/// Returns the summary of a run that ended.
pub fn summary(run: &Path) -> Option<Summary> {
    json(&run.join(SUMMARY_FILE))
}

/// Returns the values of a run's recipe by key.
pub fn recipe(run: &Path) -> Option<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct OfRecipe {
        recipe: Vec<Choice>,
    }
    let plan: OfRecipe = json(&run.join(PLAN_FILE))?;
    Some(plan.recipe.into_iter().map(|c| (c.key, c.value)).collect())
}
