//! `ambitus tune`: short runs from one base that say which learning rate a run wants, or which values of other keys.
//!
//! Every trial begins with the model's own weights and the draws that a run begins with, so what differs between two of them is
//! what was changed. A trial is planned as the run is, and holds no more. Which trials there are is in `search.rs`; what is known is
//! in `tune.json`, written after each.

mod search;
mod trial;

use super::{absolute, check, not_stopped, on_ranks, plan_json};
use crate::metrics::duration;
use crate::run_dir::RunDir;
use crate::runs_table::{MAX_JSON, TUNE_FILE};
use crate::world::World;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::family::{Families, sections};
use ambitus_plan::budget::RunPlan;
use ambitus_plan::resolve::{Purpose, resolve};
use ambitus_plan::resolved::Resolved;
use ambitus_recipe::recipe::{Origins, Recipe};
use ambitus_recipe::size::ByteSize;
use ambitus_store::{read_file, write_atomic};
use search::{Candidate, Found, Losses, Question, Trial};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;
use trial::{How, Outcome};

/// The recipe that it writes.
const TUNED: &str = "tuned.yaml";
/// Combinations of `--grid` that are tried, at most.
const MOST_COMBINATIONS: usize = 64;

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

/// What is known, on the disk.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Known {
    grid: Vec<Axis>,
    trials: Vec<(Trial, Losses)>,
    seconds: f64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Tuned>,
}

/// What tuning found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// The rate.
    pub learning_rate: f64,
    /// The other keys that were tried, with the best of their values.
    pub settings: Vec<(String, String)>,
    /// How probable it is that it has nine tenths of the improvement of the best that was tried longest, by the draws of validation and
    /// of training.
    pub confidence: f64,
    /// Updates of all trials.
    pub updates_spent: u64,
    /// Updates of the run that was asked for.
    pub full_run_updates: u64,
    /// Validation loss of the base.
    pub base: f64,
    /// Trials, in order.
    pub table: Vec<Row>,
    /// The recipe with the best.
    pub recipe: PathBuf,
    /// What to make of it.
    pub says: Vec<String>,
    /// Wall seconds.
    pub seconds: f64,
    /// Peak of every trial as planned.
    pub peak_planned_bytes: u64,
    /// Highest peak that was measured; 0 where it cannot be.
    pub peak_rss_bytes: u64,
}

/// A trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its rate.
    pub learning_rate: f64,
    /// Its other keys.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub settings: Vec<(String, String)>,
    /// Its updates.
    pub updates: u64,
    /// The update of the run from which it had its clips and draws.
    pub from: u64,
    /// Validation loss after them; nothing if it diverged.
    pub validation: Option<f64>,
}

/// Returns whether a folder is that of a tuning.
pub fn is_one(root: &Path) -> bool {
    root.join(TUNE_FILE).is_file()
}

/// Looks for the rate of a run, or the best combination of `grid`, in the folder `root`; goes on where it was stopped, if it is of the
/// same recipe.
///
/// # Errors
/// As [`super::train`]; a recipe in stages, without held-out clips, or other than the folder's.
pub fn tune(
    families: Families,
    (recipe, origins): (Recipe, &Origins),
    grid: Vec<Axis>,
    root: PathBuf,
    console: &mut dyn Console,
) -> Result<Tuned, RunError> {
    if !recipe.stages.is_empty() {
        return Err(RunError::Usage(
            "tune: a recipe in stages has a rate for each of them: tune each stage as a recipe of its own"
                .to_owned(),
        ));
    }
    let recipe = Recipe { run_dir: None, ..absolute(families, recipe)? };
    let combinations = combinations(families, &recipe, &grid)?;
    let (run, known) = folder(families, &recipe, grid, root)?;
    let begun = !known.trials.is_empty();
    let settings = combinations;
    let mut tuning =
        Tuning { families, origins, settings, run, known, resolved: None, updates: 0, began: Instant::now() };
    let done = tuning.go(console);
    if done.is_err() && !begun && tuning.known.trials.is_empty() {
        // Nothing was trained: as if it had not been asked for.
        let _ = std::fs::remove_file(tuning.run.root.join(TUNE_FILE));
        tuning.run.discard();
    }
    done
}

/// Continues a tuning.
///
/// # Errors
/// As [`tune`].
pub fn resume(families: Families, root: &Path, console: &mut dyn Console) -> Result<Tuned, RunError> {
    let (_, recipe) = RunDir::open(families, root)?;
    let grid = read(root)?.grid;
    tune(families, (recipe, &Origins::new()), grid, root.to_owned(), console)
}

/// Returns the folder, this process's alone, with what is known there.
fn folder(
    families: Families,
    recipe: &Recipe,
    grid: Vec<Axis>,
    root: PathBuf,
) -> Result<(RunDir, Known), RunError> {
    if !is_one(&root) {
        let run = RunDir::create(recipe, root)?;
        let known = Known { grid, ..Known::default() };
        write(&run, &known)?;
        return Ok((run, known));
    }
    let (mut run, before) = RunDir::open(families, &root)?;
    run.lock()?;
    let known = read(&root)?;
    if (&before, &known.grid) != (recipe, &grid) {
        return Err(RunError::Usage(format!(
            "{0}: holds the tuning of another recipe or grid; continue it with `ambitus resume {0}`, or set another run_dir",
            root.display()
        )));
    }
    Ok((run, known))
}

fn read(root: &Path) -> Result<Known, RunError> {
    let path = root.join(TUNE_FILE);
    let damaged = |e| RunError::Io(format!("{}: {e}; remove the folder, and tune again", path.display()));
    serde_json::from_slice(&read_file(&path, MAX_JSON)?).map_err(damaged)
}

fn write(run: &RunDir, known: &Known) -> Result<(), RunError> {
    run.write_json(TUNE_FILE, &serde_json::json!(known))
}

/// A recipe with values of the grid.
struct Settings {
    recipe: Recipe,
    values: Vec<(String, String)>,
}

/// Returns the recipe with every combination of the grid's values, the last key's values the nearest.
fn combinations(families: Families, recipe: &Recipe, grid: &[Axis]) -> Result<Vec<Settings>, RunError> {
    let n = grid.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.values.len()));
    if n.is_none_or(|n| n > MOST_COMBINATIONS) {
        return Err(RunError::Usage(format!(
            "--grid: more than {MOST_COMBINATIONS} combinations; give fewer values"
        )));
    }
    let mut all = vec![Settings { recipe: recipe.clone(), values: Vec::new() }];
    for axis in grid {
        let mut next = Vec::new();
        for settings in &all {
            for value in &axis.values {
                let recipe = settings.recipe.with(&axis.key, value, &sections(families));
                let recipe = recipe.map_err(|e| RunError::Usage(e.to_string()))?;
                let mut values = settings.values.clone();
                values.push((axis.key.clone(), value.clone()));
                next.push(Settings { recipe, values });
            }
        }
        all = next;
    }
    Ok(all)
}

/// A tuning in motion.
struct Tuning<'a> {
    families: Families,
    origins: &'a Origins,
    settings: Vec<Settings>,
    run: RunDir,
    known: Known,
    /// Of which settings, and whether its plan has its programs still.
    resolved: Option<(usize, Resolved, bool)>,
    updates: u64,
    began: Instant,
}

impl Tuning<'_> {
    fn go(&mut self, console: &mut dyn Console) -> Result<Tuned, RunError> {
        let before = self.known.seconds;
        // All are planned before any begins; of one the plan is kept.
        let mut rates = Vec::new();
        for i in (0..self.settings.len()).rev() {
            let r = self.plan(i, i == 0, console)?;
            rates.push(r.asked.recipe.learning_rate);
            self.updates = r.updates;
            self.resolved = Some((i, r, true));
        }
        rates.reverse();
        if let Some((_, r, _)) = &self.resolved {
            self.run.keep_model(&r.model)?.iter().for_each(|note| console.line(note));
            self.run.write_json("plan.json", &plan_json(r, self.origins))?;
        }
        let looks_for_rate = self.known.grid.is_empty();
        let question = Question { rates, looks_for_rate, updates: self.updates };
        console.line(&format!(
            "tuning: at most {} updates in all, a full run has {}",
            question.spend(),
            self.updates
        ));
        let mut next = 0;
        let found = question.answer(&mut |trial| {
            if let Some((_, losses)) = self.known.trials.iter().find(|(done, _)| *done == trial) {
                return Ok(losses.clone());
            }
            next += 1;
            let losses = self.try_out(trial, &question, console)?;
            self.known.trials.push((trial, losses.clone()));
            self.known.seconds = before + self.began.elapsed().as_secs_f64();
            write(&self.run, &self.known)?;
            Ok(losses)
        })?;
        let tuned = self.tuned(&question, found)?;
        self.known.result = Some(tuned.clone());
        write(&self.run, &self.known)?;
        tuned.says.iter().for_each(|said| console.line(said));
        Ok(tuned)
    }

    /// Plans a combination, and refuses what does not fit or holds nothing out. `says`: with all that a run says of its plan.
    fn plan(&self, i: usize, says: bool, console: &mut dyn Console) -> Result<Resolved, RunError> {
        let recipe = self.settings[i].recipe.clone();
        let mut r = resolve(self.families, recipe, self.origins, Purpose::Run, console)
            .and_then(|mut r| match says {
                true => check(&mut r, true, console).map(|()| r),
                false => check(&mut r, false, &mut ambitus_families::console::Silent).map(|()| r),
            })
            .map_err(|e| self.of_settings(i, e))?;
        if r.data.split.validation.is_empty() {
            return Err(RunError::Usage(
                "tune: goes by validations, and no clip is held out: name some with data.validation"
                    .to_owned(),
            ));
        }
        not_stopped(&World::alone())?;
        // Nothing is spoken.
        r.samples = None;
        Ok(r)
    }

    /// Names the settings that an error is of, where there are several.
    fn of_settings(&self, i: usize, e: RunError) -> RunError {
        match (&*self.settings[i].values, e) {
            ([], e) => e,
            (values, RunError::Usage(why)) => RunError::Usage(format!("with {}: {why}", shown(values))),
            (values, RunError::Refused { why, json }) => {
                RunError::Refused { why: format!("with {}: {why}", shown(values)), json }
            }
            (_, e) => e,
        }
    }

    fn try_out(
        &mut self,
        trial: Trial,
        question: &Question,
        console: &mut dyn Console,
    ) -> Result<Losses, RunError> {
        let i = trial.candidate.settings;
        match &mut self.resolved {
            Some((of, _, true)) if *of == i => {}
            // The programs went to the executor of the trial before.
            Some((of, r, has_programs)) if *of == i => {
                r.plan = RunPlan::new(r.plan.shape.clone(), r.device.target())?;
                *has_programs = true;
            }
            _ => {
                self.resolved = None;
                self.resolved = Some((i, self.plan(i, false, console)?, true));
            }
        }
        let Some((_, r, has_programs)) = &mut self.resolved else { return Ok(None) };
        *has_programs = false;
        let rate = question.rate(trial.candidate);
        let label = format!("{}{rate:e}", prefix(&self.settings[i].values));
        let how = How { rate, updates: trial.updates, from: trial.from, label };
        let (outcome, meter) = {
            let run = &self.run;
            on_ranks(r, &World::alone(), console, &|r, planned, world, console| {
                trial::run((r, planned), &how, run, world, console)
            })?
        };
        self.known.peak_bytes = self.known.peak_bytes.max(meter.most().unwrap_or(0));
        let Outcome::Measured(losses) = outcome else {
            let spent = self.known.trials.iter().map(|(trial, _)| trial.updates).sum();
            return Err(RunError::Stopped { update: spent, run: self.run.root.display().to_string() });
        };
        console.line(&line(&how, trial, losses.as_deref()));
        Ok(losses)
    }

    /// Writes the recipe with the best, and returns what there is to say.
    fn tuned(&self, question: &Question, found: Found) -> Result<Tuned, RunError> {
        let Found { best, confidence, .. } = found;
        let settings = &self.settings[best.settings];
        let learning_rate = question.rate(best);
        let path = self.run.root.join(TUNED);
        let recipe = Recipe { learning_rate: Some(learning_rate), ..settings.recipe.clone() };
        write_atomic(&path, recipe.to_yaml().map_err(RunError::Usage)?.as_bytes())?;
        let trials = self.known.trials.iter();
        let row = |(trial, losses): &(Trial, Losses)| Row {
            learning_rate: question.rate(trial.candidate),
            settings: self.settings[trial.candidate.settings].values.clone(),
            updates: trial.updates,
            from: trial.from,
            validation: losses.as_ref().map(|losses| losses.iter().sum()),
        };
        let rows: Vec<Row> = trials.map(row).collect();
        let (base, table): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.updates == 0);
        let mut tuned = Tuned {
            learning_rate,
            settings: settings.values.clone(),
            confidence,
            updates_spent: table.iter().map(|row| row.updates).sum(),
            full_run_updates: question.updates,
            base: base.first().and_then(|row| row.validation).unwrap_or(f64::NAN),
            table,
            recipe: path,
            says: Vec::new(),
            seconds: self.known.seconds,
            peak_planned_bytes: self.resolved.as_ref().map_or(0, |(_, r, _)| r.measurable_peak()),
            peak_rss_bytes: self.known.peak_bytes,
        };
        tuned.says = says(&tuned, question, &found, best);
        Ok(tuned)
    }
}

/// Returns what tuning found, in words.
fn says(t: &Tuned, question: &Question, found: &Found, best: Candidate) -> Vec<String> {
    let given = question.rates[best.settings];
    let picked = format!("{}{:e}", prefix(&t.settings), t.learning_rate);
    let mut out = vec![match found.improves {
        false => format!(
            "nothing is to be gained: no trial lowered the validation loss of the base, {:.4}; {picked} raised it least",
            t.base
        ),
        true if question.looks_for_rate && best.step == 0 => {
            format!(
                "learning rate {picked}: the recipe's own is the best that was tried, nothing is to be gained"
            )
        }
        true if question.looks_for_rate => format!("learning rate {picked}, where the recipe has {given:e}"),
        true => format!("the best is {picked}"),
    }];
    out.push(format!(
        "  sure to {:.0} %: that it lowers the loss by nine tenths of what the best of the last trials does",
        100.0 * t.confidence
    ));
    out.push(format!(
        "  cost: {} updates of trials in {}; a full run has {}",
        t.updates_spent,
        duration(t.seconds),
        t.full_run_updates
    ));
    out.push(
        "  it is the rate of this batch, however many micro-batches it is cut into; Adam wants about 1.4 x for twice the batch"
            .to_owned(),
    );
    out.push(format!(
        "  memory: planned {}, measured {}",
        ByteSize(t.peak_planned_bytes),
        ByteSize(t.peak_rss_bytes)
    ));
    out.push(format!("  train with it: ambitus train {}", t.recipe.display()));
    out
}

/// Returns what a trial measured.
fn line(how: &How, trial: Trial, losses: Option<&[f64]>) -> String {
    let after = match trial.updates {
        0 => "the base".to_owned(),
        n => format!("{} after {n} updates", how.label),
    };
    let other = if trial.from > 0 { ", other draws" } else { "" };
    match losses {
        Some(losses) => format!("{after}{other}: validation loss {:.4}", losses.iter().sum::<f64>()),
        None => format!("{after}{other}: diverged"),
    }
}

fn shown(values: &[(String, String)]) -> String {
    values.iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join(", ")
}

/// Returns what stands before a rate.
fn prefix(values: &[(String, String)]) -> String {
    if values.is_empty() { String::new() } else { format!("{}, rate ", shown(values)) }
}
