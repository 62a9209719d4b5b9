//! A run in stages. Every stage is its own run in `RUN/stages/1-NAME`, whose model is the previous stage's export. The hand-over
//! is that export, in fp32, and the next load, phases that every plan has. All stages are planned before the first begins.

use super::{self as run, Shared, Wanted};
use crate::export::Form;
use crate::metrics::{SUMMARY_FILE, Summary};
use crate::run_dir::RunDir;
use crate::runs_table::{MAX_JSON, PLAN_FILE, RECIPE_FILE};
use crate::world::World;
use ambitus_families::Families;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_plan::memory;
use ambitus_plan::refusal::require_fit;
use ambitus_plan::resolve::{Purpose, resolve};
use ambitus_plan::resolved::Resolved;
use ambitus_recipe::recipe::{Origins, Recipe};
use ambitus_recipe::size::ByteSize;
use ambitus_store::read_file;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The word with which a run's summary says that it came to its end.
const COMPLETE: &str = "complete";

/// Returns a label such as `stage 1 of 2, head`.
pub fn label(whole: &Recipe, index: usize) -> String {
    format!("stage {} of {}, {}", index + 1, whole.stages.len(), whole.stage_name(index))
}

/// Returns an error with the stage that it is of.
pub fn in_stage(whole: &Recipe, index: usize, e: RunError) -> RunError {
    use RunError as E;
    let of: fn(String) -> RunError = match e {
        E::Usage(_) => E::Usage,
        E::DoesNotFit { why, needed } => {
            return E::does_not_fit(needed, format!("{}: {why}", label(whole, index)));
        }
        E::Refused { why, json } => {
            return E::Refused { why: format!("{}: {why}", label(whole, index)), json };
        }
        E::Model(_) => E::Model,
        E::Io(_) => E::Io,
        E::Full(_) => E::Full,
        E::Device(_) => E::Device,
        E::Training(_) => E::Training,
        E::Rank { rank, error } => return E::of_rank(rank, in_stage(whole, index, *error)),
        E::Ranks(_) => E::Ranks,
        E::Data(_) | E::Interrupted(_) | E::Stopped { .. } => return e,
    };
    of(format!("{}: {e}", label(whole, index)))
}

/// Returns the plans of all stages as one: it fits if each does, and its peak is the largest.
pub fn whole_plan(whole: &Recipe, plans: Vec<Value>) -> Value {
    let peak = |key: &str| plans.iter().filter_map(|p| p[key].as_u64()).max();
    let named = plans.iter().enumerate().map(|(i, plan)| {
        let mut plan = plan.clone();
        plan["name"] = whole.stage_name(i).into();
        plan
    });
    json!({
        "fits": plans.iter().all(|p| p["fits"] == true),
        "peak_bytes": peak("peak_bytes"),
        "minimum_budget_bytes": peak("minimum_budget_bytes"),
        "stages": named.collect::<Vec<_>>(),
    })
}

/// Starts a run in stages.
///
/// # Errors
/// As [`run::train`]; when a stage's plan does not fit, no weight was read, nothing was trained and no folder is left.
pub(crate) fn train(
    families: Families,
    recipe: &Recipe,
    origins: &Origins,
    root: PathBuf,
    console: &mut dyn Console,
) -> Result<RunDir, RunError> {
    let run = RunDir::create(recipe, root)?;
    if let Err(e) = plan_missing(families, &run, recipe, origins, console) {
        run.discard();
        return Err(e);
    }
    go(families, &run, recipe, Shared::default(), console)?;
    Ok(run)
}

/// Resumes in the first stage that is not complete.
///
/// # Errors
/// As [`run::resume`].
pub(crate) fn resume(
    families: Families,
    run: RunDir,
    recipe: &Recipe,
    shared: Shared,
    console: &mut dyn Console,
) -> Result<RunDir, RunError> {
    plan_missing(families, &run, recipe, &Origins::new(), console)?;
    go(families, &run, recipe, shared, console)?;
    Ok(run)
}

/// Returns the folder of a stage.
fn folder(run: &RunDir, recipe: &Recipe, index: usize) -> RunDir {
    RunDir::at(run.stages().join(format!("{}-{}", index + 1, recipe.stage_name(index))))
}

/// Plans the stages that have no folder yet and then, when all fit, makes their folders.
fn plan_missing(
    families: Families,
    run: &RunDir,
    recipe: &Recipe,
    origins: &Origins,
    console: &mut dyn Console,
) -> Result<(), RunError> {
    // Stages begin from each other's exports wherever the command is typed.
    let root = std::path::absolute(&run.root).map_err(|e| RunError::io(&run.root, "cannot resolve", e))?;
    let run = &RunDir::at(root);
    let mut planned = Vec::new();
    for i in 0..recipe.stages.len() {
        let stage = folder(run, recipe, i);
        if stage.root.join(RECIPE_FILE).is_file() {
            continue;
        }
        let purpose = if i == 0 { Purpose::Run } else { Purpose::Later };
        let r = resolve(families, recipe.stage(i), &origins.stage(i), purpose, console).and_then(fitting);
        let r = r.map_err(|e| in_stage(recipe, i, e))?;
        console.line(&format!(
            "{}: peak {} of {} (in {}); {} updates of about {:.2} s",
            label(recipe, i),
            ByteSize(r.plan.peak_bytes),
            ByteSize(r.budget),
            r.plan.peak_place(),
            r.updates,
            r.plan.step_seconds
        ));
        let plan = run::plan_json(&r, origins);
        let mut own = r.recipe;
        if i > 0 {
            own.model.dir = folder(run, recipe, i - 1).root.join("export");
            own.model.from_scratch = false;
            families.iter().for_each(|family| family.go_on(&mut own.own));
        }
        own.run_dir = Some(stage.root.clone());
        planned.push((stage, own, plan));
    }
    for (stage, own, plan) in planned {
        std::fs::create_dir_all(&stage.root).map_err(|e| RunError::io(&stage.root, "cannot create", e))?;
        stage.write_json(PLAN_FILE, &plan)?;
        // Last: with it the folder is a run that can be resumed.
        stage.write_recipe(&own)?;
    }
    let plans = (0..recipe.stages.len()).map(|i| read(&folder(run, recipe, i).root.join(PLAN_FILE)));
    // A plan file that was removed is written again by its stage.
    match plans.collect::<Result<_, _>>() {
        Ok(plans) => run.write_json(PLAN_FILE, &whole_plan(recipe, plans)),
        Err(_) => Ok(()),
    }
}

/// Refuses what does not fit, or does not go with the weights where these were opened.
fn fitting(r: Resolved) -> Result<Resolved, RunError> {
    require_fit(&r)?;
    run::require_room(&r)?;
    run::check_weights(&r)?;
    Ok(r)
}

fn go(
    families: Families,
    run: &RunDir,
    recipe: &Recipe,
    shared: Shared,
    console: &mut dyn Console,
) -> Result<(), RunError> {
    let mut summaries = Vec::new();
    // All stages have the same data.
    let mut say_data = true;
    for i in 0..recipe.stages.len() {
        let stage = folder(run, recipe, i);
        console.line("");
        match complete(&stage) {
            Some(summary) => {
                console.line(&format!("{}: complete", label(recipe, i)));
                summaries.push(summary);
                continue;
            }
            None => console.line(&format!("{}:", label(recipe, i))),
        }
        // A stage does not pay for what the one before has left with the allocator.
        memory::return_freed();
        let gone_on = run::go_on(families, &stage.root, shared, &World::alone(), say_data, console);
        say_data = false;
        gone_on.map_err(|e| match e {
            RunError::Stopped { update, .. } => {
                RunError::Stopped { update, run: run.root.display().to_string() }
            }
            e => in_stage(recipe, i, e),
        })?;
        summaries.extend(complete(&stage));
    }
    let out = run.root.join("export");
    let wanted = Wanted { source: None, form: Form::Model, layout: None, dtype: None };
    run::export_run(families, &run.root, wanted, &out, console)?;
    write_summary(run, recipe, &summaries)?;
    console.line(&format!(
        "{} stages: the last one's result is in {}, all figures in {}",
        recipe.stages.len(),
        out.display(),
        run.root.join(SUMMARY_FILE).display()
    ));
    Ok(())
}

/// Writes the last stage's summary with figures of all stages: the first one's base, updates and time together, the largest peak.
/// `stages` holds each stage's own summary.
fn write_summary(run: &RunDir, recipe: &Recipe, stages: &[Summary]) -> Result<(), RunError> {
    let (Some(first), Some(last)) = (stages.first(), stages.last()) else { return Ok(()) };
    let whole = Summary {
        validation_base: first.validation_base,
        updates: stages.iter().map(|s| s.updates).sum(),
        wall_seconds: stages.iter().map(|s| s.wall_seconds).sum(),
        peak_rss_bytes: stages.iter().filter_map(|s| s.peak_rss_bytes).max(),
        peak_planned_bytes: stages.iter().map(|s| s.peak_planned_bytes).max().unwrap_or(0),
        ..last.clone()
    };
    let mut summary = json!(whole);
    let each = stages.iter().enumerate().map(|(i, s)| {
        let mut s = json!(s);
        s["name"] = recipe.stage_name(i).into();
        s
    });
    summary["stages"] = each.collect::<Vec<_>>().into();
    run.write_json(SUMMARY_FILE, &summary)
}

/// Returns the summary of a stage that came to its end; it is written last.
fn complete(stage: &RunDir) -> Option<Summary> {
    let summary: Summary = serde_json::from_value(read(&stage.root.join(SUMMARY_FILE)).ok()?).ok()?;
    (summary.ended == COMPLETE && stage.root.join("export").is_dir()).then_some(summary)
}

fn read(path: &Path) -> Result<Value, RunError> {
    let text = read_file(path, MAX_JSON)?;
    serde_json::from_slice(&text).map_err(|e| RunError::Io(format!("{}: {e}", path.display())))
}

/// Returns the run that begins with the weights that a run begins with: itself, or its first stage.
pub(crate) fn first(run: &RunDir, recipe: &Recipe) -> RunDir {
    if recipe.stages.is_empty() { run.clone() } else { folder(run, recipe, 0) }
}

/// Returns the run whose result is a run's: itself, or its last complete stage.
///
/// # Errors
/// No stage is complete yet.
pub(crate) fn latest(families: Families, run: RunDir, recipe: Recipe) -> Result<(RunDir, Recipe), RunError> {
    if recipe.stages.is_empty() {
        return Ok((run, recipe));
    }
    let stages = (0..recipe.stages.len()).map(|i| folder(&run, &recipe, i));
    match stages.take_while(|s| complete(s).is_some()).last() {
        Some(stage) => RunDir::open(families, &stage.root),
        None => Err(RunError::Usage(format!(
            "{0}: none of its stages is complete yet; continue with: ambitus resume {0}",
            run.root.display()
        ))),
    }
}
