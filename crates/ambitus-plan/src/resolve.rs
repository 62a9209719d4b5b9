//! From a recipe to a planned run: opens the model, prepares the data, plans, and refuses what does not fit.

use crate::asked::Asked;
use crate::budget::phase;
use crate::data::{Assume, Data};
use crate::device::Device;
use crate::memory::Meter;
use crate::resolved::{Choice, Resolved};
use crate::sizes::Sizes;
use ambitus_families::Families;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_models::{Capacity, Rows};
use ambitus_recipe::rates::LearningRate;
use ambitus_recipe::recipe::{DeviceChoice, Origins, Recipe};
use ambitus_recipe::size::ByteSize;
use std::path::Path;
use std::time::Instant;

/// What a recipe is resolved for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// To be run: weights are indexed, clips prepared.
    Run,
    /// To be run when there is the model that it begins from: clips are prepared.
    Later,
    /// To be planned: needs no weights, and assumes clips where these are given, or where the family can do without data.
    Plan(Option<&'a Assume>),
}

/// Prepares the data of a recipe and nothing else. Needs no weights.
///
/// # Errors
/// By file, as the modules say.
pub fn prepare(
    families: Families,
    recipe: &Recipe,
    device: &Device,
    console: &mut dyn Console,
) -> Result<Data, RunError> {
    let model = open_model(families, recipe, false)?;
    let data = Data::prepare(recipe, &model, device, console)?;
    match data.assumed() {
        None => Ok(data),
        Some((_, why)) => {
            let budget = device.budget(recipe)?.0;
            let fits = data.limits.iter().find(|limit| limit.prepare_bytes <= budget);
            let lower =
                fits.map_or("lower data.max_seconds".to_owned(), |l| format!("--max-seconds {}", l.seconds));
            let needed = fits.map_or(data.prepare_bytes, |l| l.prepare_bytes);
            Err(RunError::does_not_fit(needed, format!("does not fit: {why}\n  {lower}, or raise --memory")))
        }
    }
}

/// Opens the model and prepares the data of a recipe.
///
/// # Errors
/// By file, as the modules say; keys that the model's family does not let stand together.
fn open_and_prepare(
    families: Families,
    recipe: &mut Recipe,
    device: &Device,
    (purpose, origins): (Purpose<'_>, &Origins),
    console: &mut dyn Console,
) -> Result<(ModelDir, Data), RunError> {
    let model = open_model(families, recipe, matches!(purpose, Purpose::Run))?;
    recipe.settle(&model.defaults());
    recipe.validate().map_err(|bad| RunError::Usage(format!("{}: {}", bad.key, bad.why)))?;
    let data = match purpose {
        Purpose::Run | Purpose::Later => Data::prepare(recipe, &model, device, console),
        Purpose::Plan(assume) => {
            let how = (assume, origins.is_option("data.dir"));
            Data::plan(recipe, &model, device, how, console)
        }
    };
    Ok((model, data.map_err(|e| beside(recipe.data.dir.as_deref(), e))?))
}

/// An error that may be of a relative path that is not there: relative to what, is said.
fn beside(path: Option<&Path>, e: RunError) -> RunError {
    let Some(path) = path.filter(|p| p.is_relative() && !p.exists()) else { return e };
    let Ok(here) = std::env::current_dir() else { return e };
    let told = |text: String| {
        format!("{text} ({} is relative to the working directory, {})", path.display(), here.display())
    };
    match e {
        RunError::Usage(text) => RunError::Usage(told(text)),
        RunError::Model(text) => RunError::Model(told(text)),
        RunError::Data(e) => RunError::Data(ambitus_data::DataError::Invalid(told(e.to_string()))),
        other => other,
    }
}

fn open_model(families: Families, recipe: &Recipe, weights: bool) -> Result<ModelDir, RunError> {
    let options = OpenOptions {
        from_scratch: recipe.model.from_scratch || !weights,
        dropout: recipe.dropout.map(|p| p as f32),
        own: recipe.own.clone(),
    };
    let dir = &recipe.model.dir;
    ModelDir::open(families, dir, options).map_err(|e| beside(Some(dir), e))
}

/// Compute threads of a recipe.
pub fn threads(recipe: &Recipe) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    recipe.threads.map_or_else(all, |n| n.max(1) as usize)
}

/// Compute threads of each of a recipe's ranks, where all of them are in one process.
pub fn threads_of_rank(recipe: &Recipe) -> usize {
    (threads(recipe) / recipe.ranks() as usize).max(1)
}

/// Resolves a recipe, for ranks in this process where it has several. `origins`: who said its values.
///
/// # Errors
/// By file and key. Does not check the budget: see [`Resolved::require_fit`].
pub fn resolve(
    families: Families,
    recipe: Recipe,
    origins: &Origins,
    purpose: Purpose<'_>,
    console: &mut dyn Console,
) -> Result<Resolved, RunError> {
    let device = Device::find(recipe.device, threads_of_rank(&recipe))?.with_ranks(recipe.ranks() as usize);
    resolve_on(families, recipe, origins, device, purpose, console)
}

/// As [`resolve`], on a device that was chosen beside the recipe.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_on(
    families: Families,
    recipe: Recipe,
    origins: &Origins,
    device: Device,
    purpose: Purpose<'_>,
    console: &mut dyn Console,
) -> Result<Resolved, RunError> {
    let mut recipe = recipe;
    if matches!(purpose, Purpose::Run) && recipe.ranks() > 1 {
        device.require_engine()?;
    }
    let mut choices = Vec::new();
    let mut choose = |key, value: String, from: &str| {
        choices.push(Choice { key, value, from: from.to_owned() });
    };
    // Who said a key that has a value; else what it was made from.
    let from = |key: &str, said: bool, made: &str| if said { origins.of(key) } else { made.to_owned() };
    let threads = threads(&recipe);
    choose("threads", threads.to_string(), &from("threads", recipe.threads.is_some(), "all cores"));
    let said = recipe.device != DeviceChoice::default() || origins.is_option("device");
    let on = if device.is_listed() { "cards.toml".to_owned() } else { from("device", said, "default") };
    choose("device", device.name(), &on);
    // Before any file is opened.
    device.require(recipe.precision.unwrap_or_default())?;
    let (rate_said, warmup_said) = (recipe.learning_rate.is_some(), recipe.warmup.is_some());
    let schedule_said = recipe.schedule.is_some();
    let mut meter = Meter::start();
    let (model, data) = open_and_prepare(families, &mut recipe, &device, (purpose, origins), console)?;
    meter.ended(phase::PREPARE);
    let Rows { unit, .. } = model.model.rows();
    if let Some((assumed, why)) = data.assumed() {
        choose("data", assumed, &why);
    }
    let sizes = Sizes::of(&recipe, &*model.model, &data)?;
    let updates = sizes.updates;
    let of_data = || format!("{}, and the data", origins.of("epochs"));
    let length = if recipe.epochs.is_some() {
        of_data()
    } else {
        from("updates", recipe.updates.is_some(), "default")
    };
    choose("updates", updates.to_string(), &length);
    let rate = recipe.learning_rate.unwrap_or_default();
    let usual_rate = if recipe.lora.is_some() { "default, of adapters" } else { "default" };
    choose("learning_rate", format!("{rate:e}"), &from("learning_rate", rate_said, usual_rate));
    let usual = if recipe.warmup.is_none() { "min(100, 5 % of the updates)" } else { "default" };
    let warmup = recipe.settle_warmup(updates);
    choose("warmup", warmup.to_string(), &from("warmup", warmup_said, usual));
    let schedule = recipe.schedule.as_ref().map(ToString::to_string).unwrap_or_default();
    choose("schedule", schedule, &from("schedule", schedule_said, "default"));
    let (budget, made) = device.budget(&recipe)?;
    choose("memory", ByteSize(budget).to_string(), &from("memory", recipe.memory.is_some(), &made));
    let asked = Asked::new(&recipe, &model, &sizes, &device, budget)?;
    let began = Instant::now();
    let found = asked.search(&device, budget)?;
    let search_seconds = began.elapsed().as_secs_f64();
    let taken = found.variant.clone().unwrap_or_default();
    let (given, recipe) = (&asked.recipe, asked.settled(&found));
    let from = |key: &str, said: bool, searched: bool| {
        from(key, said, if searched { "the search" } else { "default" })
    };
    let Capacity { rows, clips } = found.plan.shape.session.capacity;
    let checkpoint = found.plan.shape.session.checkpoint.clone();
    let (precise, offload) = (recipe.precision.unwrap_or_default(), recipe.offloaded());
    let optimizer = recipe.optimizer.unwrap_or_default();
    let size = given.micro_batch.frames;
    let cut = match size.filter(|n| *n > rows as u64) {
        Some(n) => format!(", {n} cut to what updates fill"),
        None => String::new(),
    };
    let sized = size.is_some() || given.micro_batch.max;
    for (key, value, from) in [
        (
            "micro_batch",
            format!("{rows} {unit}, {clips} clip{}", if clips == 1 { "" } else { "s" }),
            from("micro_batch", sized, true) + &cut,
        ),
        ("checkpoint", checkpoint.to_string(), from("checkpoint", given.checkpoint.is_some(), true)),
        (
            "precision",
            precise.to_string(),
            from("precision", given.precision.is_some(), taken.precision.is_some()),
        ),
        (
            "optimizer",
            optimizer.to_string(),
            from("optimizer", given.optimizer.is_some(), taken.optimizer.is_some()),
        ),
        ("offload", offload.to_string(), from("offload", given.offload.is_some(), taken.offload.is_some())),
    ] {
        choose(key, value, &from);
    }
    let host_budget = match recipe.host_memory {
        _ if offload.pass().is_none() || offload.disk.is_some() => None,
        Some(ByteSize(n)) => Some((n, origins.of("host_memory"))),
        None => device.default_host_budget(found.plan.peak_bytes)?,
    };
    if let Some((bytes, from)) = &host_budget {
        choose("host_memory", ByteSize(*bytes).to_string(), from);
    }
    let host_budget = host_budget.map(|(bytes, _)| bytes);
    let rate = LearningRate::of(&recipe, updates, sizes.per_epoch());
    Ok(Resolved {
        recipe,
        origins: origins.clone(),
        choices,
        model,
        data,
        size: sizes.size,
        updates,
        rate,
        threads,
        budget,
        host_budget,
        longest: sizes.longest,
        plan: found.plan,
        candidates: found.candidates,
        search_seconds,
        asked,
        device,
        resumed: false,
        meter,
    })
}
