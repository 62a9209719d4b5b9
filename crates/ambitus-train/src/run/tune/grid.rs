//! The combinations of values that are tried.

use super::super::absolute;
use ambitus_families::error::RunError;
use ambitus_families::family::{Families, sections};
use ambitus_recipe::recipe::Recipe;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Combinations of `--grid` that are tried, at most.
const MOST_COMBINATIONS: usize = 64;
/// Keys of which no two values can be compared by a trial, or which are not of one run: other lengths, clips, weights and draws.
const NOT_TRIED: [&str; 7] = ["stages", "updates", "epochs", "data", "model", "run_dir", "seed"];

/// A key of a recipe and the values that it is tried with, as they are typed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Its path, as `lora.rank`.
    pub key: String,
    /// YAML.
    pub values: Vec<String>,
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Axis, String> {
        let (key, values) = text.split_once('=').ok_or("is not KEY=A,B,C")?;
        let mut depth = 0;
        let values = values.split(|c| {
            match c {
                '[' | '{' => depth += 1,
                ']' | '}' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        });
        let values: Vec<String> = values.map(|v| v.trim().to_owned()).collect();
        let key = key.trim().to_owned();
        if key.is_empty() || values.iter().any(String::is_empty) {
            return Err("is not KEY=A,B,C".to_owned());
        }
        Ok(Axis { key, values })
    }
}

/// A recipe with values of the grid.
pub struct Settings {
    pub recipe: Recipe,
    pub values: Vec<(String, String)>,
}

/// Returns the recipe with every combination of the grid's values, the last key's values the nearest.
pub fn combinations(families: Families, recipe: &Recipe, grid: &[Axis]) -> Result<Vec<Settings>, RunError> {
    let n = grid.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.values.len()));
    if n.is_none_or(|n| n > MOST_COMBINATIONS) {
        return Err(RunError::Usage(format!(
            "--grid: more than {MOST_COMBINATIONS} combinations; give fewer values"
        )));
    }
    let is_not = |axis: &&Axis| axis.key.split('.').next().is_some_and(|head| NOT_TRIED.contains(&head));
    if let Some(Axis { key, .. }) = grid.iter().find(is_not) {
        return Err(RunError::Usage(format!(
            "--grid: {key} cannot be tried: its values are runs of other lengths, clips, weights or draws, whose losses do not compare"
        )));
    }
    let mut all = vec![Settings { recipe: recipe.clone(), values: Vec::new() }];
    for axis in grid {
        let mut next = Vec::new();
        for settings in &all {
            for value in &axis.values {
                let recipe = settings.recipe.with(&axis.key, value, &sections(families));
                let recipe = absolute(families, recipe.map_err(|e| RunError::Usage(e.to_string()))?)?;
                let mut values = settings.values.clone();
                values.push((axis.key.clone(), value.clone()));
                next.push(Settings { recipe, values });
            }
        }
        all = next;
    }
    Ok(all)
}

/// Returns values as a recipe has them.
pub fn shown(values: &[(String, String)]) -> String {
    values.iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join(", ")
}
