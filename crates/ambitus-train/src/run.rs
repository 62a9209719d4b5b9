//! A whole run: `train` and `resume` from recipe to results.

mod exports;
mod rank;
pub mod stages;
pub mod tune;

pub use exports::{Exported, Wanted, export_run};

use crate::finish;
use crate::run_dir::RunDir;
use crate::runs_table::flat;
use crate::saved;
use crate::trainer::Ended;
use crate::world::{self, World};
use ambitus_compile::passes::place::Cut;
use ambitus_compile::passes::shard::Strategy;
use ambitus_data::DataError;
use ambitus_families::console::{Console, Silent};
use ambitus_families::error::RunError;
use ambitus_families::family::{Families, sections};
use ambitus_families::prepare::{cache_dir, no_data};
use ambitus_families::stop;
use ambitus_ir::StateDecl;
use ambitus_ir::plan::PlannedSession;
use ambitus_plan::budget::phase;
use ambitus_plan::memory;
use ambitus_plan::refusal::require_fit;
use ambitus_plan::resolve::{Purpose, resolve, resolve_on};
use ambitus_plan::resolved::Resolved;
use ambitus_plan::session;
use ambitus_recipe::recipe::{Origins, Placement, Precision, Recipe, Samples};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What a search tried that the plan of a run keeps, the nearest first; `plan --explain` has all.
const MOST_CANDIDATES: usize = 64;

/// Starts a run. `world`: this process's place among the processes that are its ranks; a process that is alone runs the recipe's
/// ranks as threads.
///
/// # Errors
/// Everything that [`RunError`] lists. When the plan does not fit, no weight was read and no folder is left.
pub fn train(
    families: Families,
    recipe: Recipe,
    origins: &Origins,
    root: PathBuf,
    world: &World,
    console: &mut dyn Console,
) -> Result<RunDir, RunError> {
    let recipe = absolute(families, recipe)?;
    let console = if world.is_first() { console } else { &mut Silent };
    if !recipe.stages.is_empty() {
        in_one_process(world)?;
        return stages::train(families, &recipe, origins, root, console);
    }
    let mut run = RunDir::at(root);
    let made = world.first_says("the run's folder", || {
        run = RunDir::create(&recipe, run.root.clone())?;
        Ok(run.root.as_os_str().as_encoded_bytes().to_vec())
    })?;
    if !world.is_first() {
        run.root = PathBuf::from(String::from_utf8_lossy(&made).into_owned());
    }
    let result = resolve_for(families, recipe, origins, world, console).and_then(|mut r| {
        check(&mut r, true, console)?;
        not_stopped(world)?;
        Ok(r)
    });
    let mut resolved = match result {
        Ok(resolved) => resolved,
        Err(e) => {
            if world.is_first() {
                run.discard();
            }
            return Err(e);
        }
    };
    if world.is_first() {
        run.keep_model(&resolved.model)?.iter().for_each(|note| console.line(note));
        // With what the search chose: a resumed run does not search again.
        run.write_recipe(&resolved.recipe)?;
        run.write_json("plan.json", &plan_json(&resolved, origins))?;
    }
    go(&mut resolved, &run, world, console)?;
    Ok(run)
}

/// Overrides for ranks, strategy and placement when resuming.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared {
    /// Ranks.
    pub ranks: Option<u32>,
    /// How they share; then no model is placed.
    pub sharding: Option<Strategy>,
    /// Which part of the model each has; then nothing is shared.
    pub placement: Option<Placement>,
}

impl Shared {
    /// Puts them into a recipe; true when that changed it.
    fn change(&self, recipe: &mut Recipe) -> Result<bool, RunError> {
        let before = (recipe.ranks, recipe.sharding, recipe.placement);
        recipe.ranks = self.ranks.or(recipe.ranks);
        // One takes the other's place; both together are refused.
        match (self.sharding, self.placement) {
            (Some(_), None) | (_, Some(Placement::None)) => recipe.placement = None,
            (_, Some(placement)) => (recipe.placement, recipe.sharding) = (Some(placement), None),
            (None, None) => {}
        }
        if let Some(strategy) = self.sharding {
            recipe.share_by(strategy);
        }
        recipe.validate().map_err(|bad| RunError::Usage(format!("{}: {}", bad.key, bad.why)))?;
        Ok((recipe.ranks, recipe.sharding, recipe.placement) != before)
    }
}

/// Resumes a run from its newest good checkpoint, or from its start if it has none yet. `shared`: other ranks than before, which
/// the run remembers. `world`: as in [`train`].
///
/// # Errors
/// As [`train`]; also when recipe or data changed since.
pub fn resume(
    families: Families,
    root: &Path,
    shared: Shared,
    world: &World,
    console: &mut dyn Console,
) -> Result<RunDir, RunError> {
    go_on(families, root, shared, world, true, console)
}

/// Resumes a run (see [`resume`]). `say_data`: the data has not been described yet.
pub(crate) fn go_on(
    families: Families,
    root: &Path,
    shared: Shared,
    world: &World,
    say_data: bool,
    console: &mut dyn Console,
) -> Result<RunDir, RunError> {
    let console = if world.is_first() { console } else { &mut Silent };
    let (mut run, mut recipe) = RunDir::open(families, root)?;
    if world.is_first() {
        run.lock()?;
    }
    let ranks_from_outside = world.ranks() > 1 && shared.ranks.is_none();
    let asked = if ranks_from_outside { Some(world.ranks() as u32) } else { shared.ranks };
    let changed = Shared { ranks: asked, ..shared }.change(&mut recipe)?;
    if !recipe.stages.is_empty() {
        in_one_process(world)?;
        if changed {
            run.write_recipe(&recipe)?;
        }
        return stages::resume(families, run, &recipe, shared, console);
    }
    if run.root.join("plan.json").exists() {
        // A run keeps what it was planned with. Where it does not say it, it is of a time when that was fp32, and every parameter
        // decayed.
        recipe.precision.get_or_insert(Precision::Fp32);
        recipe.no_decay.get_or_insert_default();
    }
    let mut resolved = resolve_for(families, recipe, &Origins::new(), world, console)?;
    resolved.resumed = true;
    check(&mut resolved, say_data, console)?;
    not_stopped(world)?;
    if world.is_first() {
        run.keep_model(&resolved.model)?.iter().for_each(|note| console.line(note));
        if changed {
            run.write_recipe(&resolved.recipe)?;
        }
        if changed || !run.root.join("plan.json").exists() {
            run.write_json("plan.json", &plan_json(&resolved, &Origins::new()))?;
        }
    }
    go(&mut resolved, &run, world, console)?;
    Ok(run)
}

/// Ends a run that was asked to stop before it began. Several processes may not all have heard the request: they all begin, and
/// stop after an update.
fn not_stopped(world: &World) -> Result<(), RunError> {
    if world.ranks() == 1 && stop::requested() { Err(DataError::Stopped.into()) } else { Ok(()) }
}

fn in_one_process(world: &World) -> Result<(), RunError> {
    if world.ranks() == 1 {
        return Ok(());
    }
    Err(RunError::Usage(
        "stages: a run in stages has its ranks in one process so far (ranks: N, without a launcher); or run the stages one \
         by one, each from the export of the one before"
            .to_owned(),
    ))
}

/// Resolves a recipe for the ranks that there are. If there are several processes, the first searches and prepares; the others take
/// its choices and its clips, because free memory differs between them.
fn resolve_for(
    families: Families,
    mut recipe: Recipe,
    origins: &Origins,
    world: &World,
    console: &mut dyn Console,
) -> Result<Resolved, RunError> {
    if world.ranks() == 1 {
        return resolve(families, recipe, origins, Purpose::Run, console);
    }
    let ranks = world.ranks() as u32;
    if recipe.ranks.is_some_and(|n| n != ranks) {
        return Err(RunError::Usage(format!(
            "ranks: the recipe has {}, {ranks} processes were started: start as many, or leave ranks out",
            recipe.ranks()
        )));
    }
    recipe.ranks = Some(ranks);
    let mut first = None;
    let chosen = world.first_says("the plan", || {
        let resolved =
            resolve_on(families, recipe.clone(), origins, world.device(&recipe)?, Purpose::Run, console)?;
        let text = resolved.recipe.to_yaml().map_err(RunError::Usage)?;
        // Hosts may differ in what a cut goes by.
        let how = resolved.plan.parts.as_ref().map(|parts| &parts.how);
        let cut = how.map(|how| (how.cut.starts.clone(), how.in_flight));
        first = Some(resolved);
        saved::to_json(&(text, cut))
    })?;
    if let Some(resolved) = first {
        return Ok(resolved);
    }
    let _busy = world.busy();
    let (text, cut): (String, Option<(Vec<usize>, usize)>) = saved::from_json(&chosen)?;
    let (recipe, _) = Recipe::parse_with(&text, "recipe.yaml", &sections(families))
        .map_err(|e| RunError::Usage(e.to_string()))?;
    let device = world.device(&recipe)?;
    let mut resolved = resolve_on(families, recipe, origins, device, Purpose::Run, console)?;
    if let Some((starts, in_flight)) = cut {
        resolved.cut_at(Cut { starts }, in_flight)?;
    }
    Ok(resolved)
}

/// Makes paths absolute: a run may be resumed from another folder.
fn absolute(families: Families, mut recipe: Recipe) -> Result<Recipe, RunError> {
    if !recipe.data.is_given() {
        return Err(no_data());
    }
    for path in recipe.data.dirs_mut().chain([&mut recipe.model.dir]) {
        *path = std::path::absolute(&*path).map_err(|e| RunError::io(path, "cannot resolve", e))?;
    }
    if let Some(disk) = recipe.offload.as_mut().and_then(|o| o.disk.as_mut()) {
        *disk = std::path::absolute(&*disk).map_err(|e| RunError::io(disk, "cannot resolve", e))?;
    }
    if let Some(Samples::Of(sentences)) = &mut recipe.samples
        && let Some(dir) = &mut sentences.heard_by
    {
        *dir = std::path::absolute(&*dir).map_err(|e| RunError::io(dir, "cannot resolve", e))?;
    }
    for section in sections(families) {
        for key in section.keys.iter().filter(|key| key.option.is_some_and(|o| o.is_path)) {
            let Some(path) = recipe.own(section.name, key.name).and_then(|v| v.as_str()).map(PathBuf::from)
            else {
                continue;
            };
            let whole = std::path::absolute(&path).map_err(|e| RunError::io(&path, "cannot resolve", e))?;
            recipe.set_own(section.name, key.name, whole.to_string_lossy());
        }
    }
    let cache = std::path::absolute(cache_dir(&recipe));
    recipe.data.cache = Some(cache.map_err(|e| RunError::io(Path::new("runs/cache"), "cannot resolve", e))?);
    Ok(recipe)
}

/// Checks and reports the plan before anything is loaded.
fn check(r: &mut Resolved, say_data: bool, console: &mut dyn Console) -> Result<(), RunError> {
    if say_data {
        r.data.describe().iter().for_each(|line| console.line(line));
    }
    if r.recipe.stop.is_some() && r.data.split.validation.is_empty() {
        return Err(RunError::Usage(
            "stop: goes by validations, and no clip is held out: name some with data.validation, or leave stop out".to_owned(),
        ));
    }
    require_fit(r)?;
    require_room(r)?;
    for line in r.describe()? {
        console.line(&line);
    }
    if r.model.wants_checkpointing
        && r.plan.shape.session.checkpoint == ambitus_compile::passes::policy::Blocks::None
    {
        console.line("config.yaml asks for checkpoint_activations; this recipe does not need it (use --checkpoint all to have it)");
    }
    check_weights(r)?;
    if let Some(samples) = &r.samples {
        let speech = samples.speech.lock().unwrap_or_else(PoisonError::into_inner);
        speech.notes().iter().for_each(|note| console.line(&format!("samples: {note}")));
    }
    // What planning has left with the allocator is not the run's.
    memory::return_freed();
    r.meter.ended(phase::PLAN);
    Ok(())
}

/// Refuses a plan that the process's own limits have no room for.
///
/// # Errors
/// As [`memory::require`].
pub(crate) fn require_room(r: &Resolved) -> Result<(), RunError> {
    // On a card the addresses that the driver maps are no measure.
    if r.device.is_card() {
        return Ok(());
    }
    memory::require(r.measurable_peak(), r.threads * r.plan.shape.beside.ranks)
}

/// Compares the model's files with what the run trains.
///
/// # Errors
/// As [`ModelDir::check`](ambitus_families::family::ModelDir::check).
pub(crate) fn check_weights(r: &Resolved) -> Result<(), RunError> {
    let shape = &r.plan.shape;
    let states: Vec<StateDecl> = r.plan.whole().iter().flat_map(|p| p.session.states.clone()).collect();
    match session::layout(&*shape.model, &shape.session)? {
        Some(layout) => r.model.check(&layout.tensors(&states)),
        None => r.model.check(&states),
    }
}

pub(crate) fn plan_json(r: &Resolved, origins: &Origins) -> serde_json::Value {
    let mut json = r.json();
    json["choices"] = serde_json::json!(r.choices);
    json["run"] = serde_json::json!({
        "updates": r.updates,
        "unit": r.plan.shape.model.rows().unit,
        "device": r.device.name(),
        "on_card": r.device.is_card(),
        "clip_rows": clip_rows(r),
    });
    json["data"] = serde_json::json!(r.data.describe());
    json["candidates"] = serde_json::json!(r.candidates.iter().take(MOST_CANDIDATES).collect::<Vec<_>>());
    json["over_micro_batch"] = finish::over_micro_batch(r);
    json["recipe"] = recipe_json(r, origins);
    json["recipe_places"] = origins
        .places()
        .map(|(key, place)| (key.to_owned(), serde_json::json!(format!("{}:{}", place.line, place.column))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    json
}

/// Returns what the lengths of a run's clips are, in rows, and how many rows a second has. `most`: 19 of 20 are no longer.
fn clip_rows(r: &Resolved) -> serde_json::Value {
    let mut rows: Vec<u32> = r.data.split.train.iter().filter_map(|&i| r.data.rows.get(i).copied()).collect();
    rows.sort_unstable();
    let mean = rows.iter().map(|n| f64::from(*n)).sum::<f64>() / rows.len().max(1) as f64;
    let most = rows.get((19 * rows.len()).div_ceil(20).saturating_sub(1)).copied().unwrap_or(0);
    let per_second = r.plan.shape.model.rows().per_second;
    serde_json::json!({ "mean": mean, "most": most, "longest": r.longest, "per_second": per_second })
}

/// Returns all values of the recipe, and where each came from.
fn recipe_json(r: &Resolved, origins: &Origins) -> serde_json::Value {
    let from = |key: &str| match r.choices.iter().find(|c| c.key == key) {
        Some(choice) => choice.from.clone(),
        // Of a recipe that is resumed nobody knows any more.
        None if !origins.says(key) && !r.resumed => "default".to_owned(),
        None => origins.of(key),
    };
    let values = flat(&r.recipe).into_iter();
    values.map(|(key, value)| serde_json::json!({ "from": from(&key), "key": key, "value": value })).collect()
}

/// How a run ended, and after which update.
type End = (Ended, u64);

/// Runs to the end; from where fp16 fails, in fp32.
fn go(r: &mut Resolved, run: &RunDir, world: &World, console: &mut dyn Console) -> Result<(), RunError> {
    let attempt: Body<'_, End> = &|r, planned, world, console| rank::attempt(r, planned, run, world, console);
    if world.is_first() {
        finish::memory_picture(r, run)?;
    }
    let mut end = on_ranks(r, world, console, attempt)?;
    if end.0 == Ended::Collapsed {
        console.line(&r.in_fp32()?);
        if world.is_first() {
            finish::memory_picture(r, run)?;
        }
        end = on_ranks(r, world, console, attempt)?;
    }
    match end {
        (Ended::Stopped, update) => Err(RunError::Stopped { update, run: run.root.display().to_string() }),
        _ => Ok(()),
    }
}

/// What a rank does with its session.
type Body<'a, T> =
    &'a (dyn Fn(&Resolved, Arc<PlannedSession>, &World, &mut dyn Console) -> Result<T, RunError> + Sync);

/// Does as planned: this rank, or all of them. Returns what the first of them says.
fn on_ranks<T: Send>(
    r: &mut Resolved,
    world: &World,
    console: &mut dyn Console,
    body: Body<'_, T>,
) -> Result<T, RunError> {
    let ranks = r.recipe.ranks() as usize;
    // Each executor ends the session that it opens: thousands of instructions take megabytes.
    let mut planned = r.plan.take_sessions(ranks);
    // What planning took, before arenas are.
    memory::return_freed();
    if ranks == 1 || world.ranks() > 1 {
        let own = planned.swap_remove(world.rank());
        drop(planned);
        return body(r, own, world, console);
    }
    let (r, console) = (&*r, Mutex::new(Some(console)));
    let planned = Mutex::new(planned.into_iter().map(Some).collect::<Vec<_>>());
    let mut said = world::in_process(ranks, |world| {
        let console = world.is_first().then(|| console.lock().ok()?.take()).flatten();
        let own = planned.lock().ok().and_then(|mut all| all[world.rank()].take());
        let own = own.ok_or_else(|| RunError::Training("a rank began twice".to_owned()))?;
        match console {
            Some(console) => body(r, own, world, console),
            None => body(r, own, world, &mut Silent),
        }
    })?;
    Ok(said.swap_remove(0))
}
