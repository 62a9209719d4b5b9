//! `ambitus tune`: short runs from one base that say which learning rate a run wants, or which values of other keys.
//!
//! Every trial begins with the model's own weights and the draws that a run begins with, so what differs between two of them is
//! what was changed. A trial is planned as the run is, and holds no more. Which trials there are is in `search.rs`; what is known is
//! in `tune.json`, written after each.

mod grid;
mod search;
mod trial;

use super::{absolute, check, not_stopped, on_ranks, plan_json};
use crate::metrics::duration;
use crate::run_dir::{RunDir, TUNE_FILE};
use crate::runs_table::{MAX_JSON, PLAN_FILE, RECIPE_FILE};
use crate::world::World;
use ambitus_families::console::{Console, Silent};
use ambitus_families::error::RunError;
use ambitus_families::family::{Families, sections};
use ambitus_plan::budget::RunPlan;
use ambitus_plan::resolve::{Purpose, resolve};
use ambitus_plan::resolved::Resolved;
use ambitus_recipe::recipe::{Origins, Recipe};
use ambitus_recipe::size::ByteSize;
use ambitus_store::{read_file, write_atomic};
pub use grid::Axis;
use grid::{Settings, combinations, shown};
use search::{Candidate, Found, Losses, Question, Trial};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Instant;
use trial::{How, Outcome};

/// The recipe that it writes.
const TUNED: &str = "tuned.yaml";
/// What is known, on the disk.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Known {
    /// As it was asked for.
    recipe: String,
    grid: Vec<Axis>,
    /// Of every combination the recipe as it was planned, and the digest of its clips.
    planned: Vec<(String, String)>,
    trials: Vec<(Trial, Losses)>,
    seconds: f64,
    /// Highest peak of all trials, as planned and as measured.
    peak_bytes: [u64; 2],
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
    /// How probable it is that it gains nine tenths of what every other of the last trials gains; of n draws at most 1 - 2^-n.
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
    /// Highest peak of all trials, as planned.
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
/// same recipe and clips. `world`: this process alone, whose recipe may have several ranks.
///
/// # Errors
/// As [`super::train`]; a recipe in stages, without held-out clips, or other than the folder's.
pub fn tune(
    families: Families,
    (recipe, origins): (Recipe, &Origins),
    grid: Vec<Axis>,
    root: PathBuf,
    world: &World,
    console: &mut dyn Console,
) -> Result<Tuned, RunError> {
    if world.ranks() > 1 {
        return Err(RunError::Usage(
            "tune: has its ranks in one process so far (ranks: N, without a launcher)".to_owned(),
        ));
    }
    if !recipe.stages.is_empty() {
        return Err(RunError::Usage(
            "tune: a recipe in stages has a rate for each of them: tune each stage as a recipe of its own"
                .to_owned(),
        ));
    }
    let recipe = Recipe { run_dir: None, ..absolute(families, recipe)? };
    let settings = combinations(families, &recipe, &grid)?;
    let (run, known) = folder(&recipe, grid, root, settings.len())?;
    let begun = !known.planned.is_empty();
    let mut tuning =
        Tuning { families, origins, settings, run, known, resolved: None, begun, began: Instant::now() };
    let done = tuning.go(console);
    if done.is_err() && tuning.known.planned.is_empty() {
        tuning.run.discard();
    }
    done
}

/// Continues a tuning.
///
/// # Errors
/// As [`tune`].
pub fn resume(
    families: Families,
    root: &Path,
    world: &World,
    console: &mut dyn Console,
) -> Result<Tuned, RunError> {
    let Known { recipe, grid, .. } = read(root)?;
    let recipe = parse(families, root, &recipe)?;
    tune(families, (recipe, &Origins::new()), grid, root.to_owned(), world, console)
}

/// Returns the folder, this process's alone, with what is known there. `combinations`: how many there are.
fn folder(
    recipe: &Recipe,
    grid: Vec<Axis>,
    root: PathBuf,
    combinations: usize,
) -> Result<(RunDir, Known), RunError> {
    let mut run = RunDir::at(root);
    run.lock()?;
    let asked = recipe.to_yaml().map_err(RunError::Usage)?;
    if !is_one(&run.root) {
        if run.is_used() || run.root.join(RECIPE_FILE).exists() {
            return Err(RunError::Usage(format!("{}: holds a run; set another run_dir", run.root.display())));
        }
        let known = Known { recipe: asked, grid, ..Known::default() };
        write(&run, &known)?;
        return Ok((run, known));
    }
    let known = read(&run.root)?;
    if (&known.recipe, &known.grid) != (&asked, &grid) {
        return Err(RunError::Usage(format!(
            "{0}: holds the tuning of another recipe or grid; continue it with `ambitus resume {0}`, or set another run_dir",
            run.root.display()
        )));
    }
    let planned = known.planned.len();
    if (planned > 0 && planned != combinations)
        || known.trials.iter().any(|(trial, _)| trial.candidate.settings >= planned)
    {
        return Err(damaged(&run.root, "trials of combinations that are not there"));
    }
    Ok((run, known))
}

fn damaged(root: &Path, why: &str) -> RunError {
    RunError::Io(format!("{}: {why}; remove the folder, and tune again", root.join(TUNE_FILE).display()))
}

fn parse(families: Families, root: &Path, recipe: &str) -> Result<Recipe, RunError> {
    let read = Recipe::parse_with(recipe, TUNE_FILE, &sections(families));
    read.map(|(recipe, _)| recipe).map_err(|e| damaged(root, &e.to_string()))
}

fn read(root: &Path) -> Result<Known, RunError> {
    let text = read_file(root.join(TUNE_FILE), MAX_JSON)?;
    serde_json::from_slice(&text).map_err(|e| damaged(root, &e.to_string()))
}

fn write(run: &RunDir, known: &Known) -> Result<(), RunError> {
    run.write_json(TUNE_FILE, &serde_json::json!(known))
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
    /// It goes on with a tuning.
    begun: bool,
    began: Instant,
}

impl Tuning<'_> {
    fn go(&mut self, console: &mut dyn Console) -> Result<Tuned, RunError> {
        let before = self.known.seconds;
        // All are planned before any begins; of one the plan is kept.
        let (mut rates, mut planned, mut updates) = (Vec::new(), Vec::new(), u64::MAX);
        for i in (0..self.settings.len()).rev() {
            // Two plans at a time are more than a run has.
            self.resolved = None;
            let r = self.plan(i, i == 0, console)?;
            rates.push(r.asked.recipe.learning_rate);
            planned.push((r.recipe.to_yaml().map_err(RunError::Usage)?, r.data.digest().to_owned()));
            updates = updates.min(r.updates);
            self.resolved = Some((i, r, true));
        }
        rates.reverse();
        planned.reverse();
        let digests =
            |of: &[(String, String)]| of.iter().map(|(_, digest)| digest.clone()).collect::<Vec<_>>();
        if self.begun && digests(&self.known.planned) != digests(&planned) {
            return Err(RunError::Usage(format!(
                "{}: clips changed since this tuning began; put them back, or set another run_dir",
                self.run.root.display()
            )));
        }
        if !self.begun
            && let Some((_, r, _)) = &self.resolved
        {
            self.run.keep_model(&r.model)?.iter().for_each(|note| console.line(note));
            self.run.write_json(PLAN_FILE, &plan_json(r, self.origins))?;
            // Planned as now, also where there is less memory when it goes on.
            self.known.planned = planned;
            write(&self.run, &self.known)?;
        }
        let looks_for_rate = self.known.grid.is_empty();
        let question = Question { rates, looks_for_rate, updates };
        console.line(&format!(
            "tuning: at most {} updates in all, a full run has {}",
            question.spend(),
            updates
        ));
        let found = question.answer(&mut |trial| {
            if let Some((_, losses)) = self.known.trials.iter().find(|(done, _)| *done == trial) {
                return Ok(losses.clone());
            }
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
        let recipe = match self.known.planned.get(i) {
            Some((planned, _)) => parse(self.families, &self.run.root, planned)?,
            None => self.settings[i].recipe.clone(),
        };
        let mut r = resolve(self.families, recipe, self.origins, Purpose::Run, console)
            .and_then(|mut r| {
                r.resumed = self.begun;
                let console = if says { &mut *console } else { &mut Silent };
                check(&mut r, says, console).map(|()| r)
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
        let label = match &*self.settings[i].values {
            [] => format!("{rate:e}"),
            values => shown(values),
        };
        let how = How { rate, updates: trial.updates, from: trial.from, label };
        let run = &self.run;
        let (outcome, held) = on_ranks(r, &World::alone(), console, &|r, planned, world, console| {
            trial::run((r, planned), &how, run, world, console)
        })?;
        let [planned, measured] = self.known.peak_bytes;
        self.known.peak_bytes = [planned.max(r.measurable_peak()), measured.max(held.unwrap_or(0))];
        let Outcome::Measured(losses) = outcome else {
            // Of this trial nothing is kept.
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
            peak_planned_bytes: self.known.peak_bytes[0],
            peak_rss_bytes: self.known.peak_bytes[1],
        };
        tuned.says = says(&tuned, question, &found, best);
        Ok(tuned)
    }
}

/// Returns what tuning found, in words.
fn says(t: &Tuned, question: &Question, found: &Found, best: Candidate) -> Vec<String> {
    let given = question.rates[best.settings];
    let (settings, rate) = (shown(&t.settings), t.learning_rate);
    let mut out = vec![match (found.improves, question.looks_for_rate) {
        (false, _) => {
            format!("nothing is to be gained: no trial lowered the base's validation loss, {:.4}", t.base)
        }
        (true, true) if best.step == 0 => {
            format!("learning rate {rate:e}: the recipe's own rate is the best of those tried, keep it")
        }
        (true, true) => format!("learning rate {rate:e}, where the recipe has {given:e}"),
        (true, false) => format!("the best is {settings}"),
    }];
    if found.improves {
        out.push(format!(
            "  confidence {:.0} %: it gains at least nine tenths of what any other of the final trials gains",
            100.0 * t.confidence
        ));
    }
    out.push(format!(
        "  cost: {} updates of trials in {}; a full run has {}",
        t.updates_spent,
        duration(t.seconds),
        t.full_run_updates
    ));
    if question.looks_for_rate {
        out.push(
            "  it is the rate for this batch, however many micro-batches it takes; for twice the batch Adam wants about 1.4 x"
                .to_owned(),
        );
    }
    let [planned, measured] = [t.peak_planned_bytes, t.peak_rss_bytes].map(ByteSize);
    out.push(format!("  memory: planned {planned}, measured {measured}"));
    if found.improves {
        out.push(format!("  train with it: ambitus train {}", t.recipe.display()));
    }
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
