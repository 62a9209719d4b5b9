//! `stages`: runs one after another, each on the result of the previous one.
//!
//! ```yaml
//! learning_rate: 1e-5                  # what a stage does not say is the recipe's own
//! stages:
//!   - {name: head, freeze: ['*.transformer_blocks'], updates: 200, learning_rate: 1e-4}
//!   - {name: all, updates: 800}
//! ```

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::validate::{Invalid, refuse};
use super::{Batch, Checkpoint, Lora, OptimizerChoice, Player, Precision, Recipe, Schedule};

/// Stages of a run, at most: each is planned, trained and exported.
const MOST_STAGES: usize = 64;
/// Longest name of a stage, which is part of a folder's name.
const MAX_NAME: usize = 40;

/// What of a recipe is different in one stage. An absent key is the recipe's own; `freeze` and `lora` only a stage says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stage {
    /// For messages and the stage's folder: letters, digits, `-` and `_`. Absent: `stage-N`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What is not trained, as [`Recipe::freeze`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Additions that are trained and, at the stage's end, merged into the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// Its length, in updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates: Option<u64>,
    /// Its length, in passes over the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Rate at the end of its warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Updates of its warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u64>,
    /// Its rate after the warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Settings of single losses of a model with several, instead of the recipe's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub players: BTreeMap<String, Player>,
    /// Audio of an update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// What backward recomputes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// What the model computes in.
    #[serde(skip_serializing_if = "Option::is_none", with = "super::forms::word")]
    pub precision: Option<Precision>,
    /// What applies gradients, and how it keeps its moments. They are not handed over: a stage begins with none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerChoice>,
}

impl Recipe {
    /// Returns the name of a stage, from 0.
    ///
    /// # Panics
    /// Without such a stage.
    pub fn stage_name(&self, index: usize) -> String {
        self.stages[index].name.clone().unwrap_or_else(|| format!("stage-{}", index + 1))
    }

    /// Returns a stage, from 0, as a recipe without stages. Its model is still the whole recipe's.
    ///
    /// # Panics
    /// Without such a stage.
    pub fn stage(&self, index: usize) -> Recipe {
        let mut whole = self.clone();
        let s = whole.stages.swap_remove(index);
        let mut r = Recipe { stages: Vec::new(), freeze: s.freeze, lora: s.lora, ..whole };
        if s.updates.is_some() || s.epochs.is_some() {
            (r.updates, r.epochs) = (s.updates, s.epochs);
        }
        r.learning_rate = s.learning_rate.or(r.learning_rate);
        r.warmup = s.warmup.or(r.warmup);
        r.schedule = s.schedule.or(r.schedule);
        if !s.players.is_empty() {
            r.players = s.players;
        }
        r.batch = s.batch.or(r.batch);
        r.checkpoint = s.checkpoint.or(r.checkpoint);
        r.precision = s.precision.or(r.precision);
        r.optimizer = s.optimizer.or(r.optimizer);
        r
    }

    /// Returns a stage that says one of these keys itself.
    pub fn stage_that_says(&self, keys: &[&str]) -> Option<String> {
        let says = |s: &Stage| {
            let said = serde_json::to_value(s).unwrap_or_default();
            keys.iter().any(|key| said.get(key).is_some())
        };
        self.stages.iter().position(says).map(|i| self.stage_name(i))
    }

    /// Checks the key `stages`: each stage must be a valid recipe.
    pub(super) fn validate_stages(&self) -> Result<(), Invalid> {
        if self.stages.is_empty() {
            return Ok(());
        }
        if self.stages.len() > MOST_STAGES {
            refuse("stages", format!("{} are more than the {MOST_STAGES} of a run", self.stages.len()))?;
        }
        for (key, given) in [("freeze", !self.freeze.is_empty()), ("lora", self.lora.is_some())] {
            if given {
                refuse(
                    key,
                    format!(
                        "cannot be combined with `stages`, as each stage says what it trains: write `{key}` there"
                    ),
                )?;
            }
        }
        let mut names = Vec::new();
        for i in 0..self.stages.len() {
            let of_stage = |key: &str, why: String| Err(Invalid { key: format!("stages.{i}.{key}"), why });
            let name = self.stage_name(i);
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(fits) {
                return of_stage(
                    "name",
                    format!("{name:?} is not 1 to {MAX_NAME} letters, digits, - and _: it names a folder"),
                );
            }
            if names.contains(&name) {
                return of_stage(
                    "name",
                    format!("two stages are called `{name}`: give each a name of its own"),
                );
            }
            names.push(name);
            if let Err(bad) = self.stage(i).validate() {
                return of_stage(&bad.key, bad.why);
            }
        }
        Ok(())
    }
}
