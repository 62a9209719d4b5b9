//! One rank's run: from the newest checkpoint, or the model, to results. Only the first rank's are shown.

use super::exports::{export_from, own_dtype};
use super::{End, Exported};
use crate::data_loader::{Loader, Work};
use crate::export::{self, Form, Source};
use crate::finish;
use crate::metrics::{self, Log, Resumed, Summary};
use crate::report::{Heard, Page, REPORT_FILE, lessons, plan};
use crate::room;
use crate::run_dir::RunDir;
use crate::samples::{Speaking, Spoken};
use crate::saved::{self, Progress};
use crate::stopping;
use crate::tensorboard::Events;
use crate::trainer::{Ended, MOST_SKIPPED, Play, Trainer};
use crate::validate::Validation;
use crate::watcher::Watcher;
use crate::weights;
use crate::world::World;
use ambitus_compile::passes::precision::Precision;
use ambitus_exec::executor::Executor;
use ambitus_families::console::{Console, Silent};
use ambitus_families::error::RunError;
use ambitus_ir::plan::PlannedSession;
use ambitus_plan::budget::phase;
use ambitus_plan::memory::Meter;
use ambitus_plan::resolved::Resolved;
use ambitus_plan::session::{self, program};
use ambitus_recipe::recipe::Recipe;
use ambitus_recipe::size::ByteSize;
use ambitus_store::{Checkpoint, CheckpointDir, Manifest};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Runs one rank as planned, from the newest checkpoint on. Does not continue a checkpoint of a run that left its planned
/// precision.
pub(super) fn attempt(
    r: &Resolved,
    planned: Arc<PlannedSession>,
    run: &RunDir,
    world: &World,
    console: &mut dyn Console,
) -> Result<End, RunError> {
    let started = Instant::now();
    let checkpoints = run.checkpoints();
    let latest = newest_good(&checkpoints, world, console)?;
    if let Some(checkpoint) = &latest
        && r.plan.shape.session.precision != Precision::Fp32
        && let progress = saved::progress(checkpoint)?
        && progress.fp32_from.is_some()
    {
        return Ok((Ended::Collapsed, progress.update));
    }
    if world.is_first() {
        let _busy = world.busy();
        let progress = latest.as_ref().map(saved::progress).transpose()?;
        saved::tidy(&checkpoints, progress.as_ref(), r.recipe.keep)?;
        let said = room::check(r, &checkpoints, progress.map_or(0, |p| p.update))?;
        said.iter().for_each(|said| console.line(said));
    }
    let shape = &r.plan.shape;
    let mut meter = r.meter.clone();
    let mut opened = open(r, planned, run, world, console)?;
    let exec = &mut *opened;
    let world = &holding(r, world)?;
    let validation = validation(r, &r.data.split.validation)?;
    let (progress, spoken) = match &latest {
        Some(checkpoint) => (go_on(r, exec, checkpoint, (world, &mut meter), console)?, Spoken::default()),
        None => begin(r, run, exec, &validation, (world, &mut meter), console)?,
    };
    let mut watcher = None;
    if world.is_first() {
        watcher = Some(watch(r, run, (&progress, &spoken), exec.arena_bytes(), &mut *console)?);
        meter.ended(if latest.is_some() { phase::RESUME } else { phase::LOAD });
    }
    let loader = Loader::start(work(r, world)?, progress.update)?;
    let mut trainer = Trainer {
        exec,
        recipe: &r.recipe,
        players: Play::all(r, &r.rates),
        acts: &session::acts(&*shape.model, &shape.session),
        updates: r.updates,
        whole_updates: shape.session.whole_updates || shape.session.update_in_backward,
        validation: &validation,
        samples: Speaking::of(r.samples.as_ref(), run),
        checkpoints: Some(&checkpoints),
        progress,
        world,
        meter: &mut meter,
    };
    let ended = match &mut watcher {
        Some(watcher) => trainer.run(&loader, watcher)?,
        None => trainer.run(&loader, &mut Silent)?,
    };
    let progress = trainer.progress.clone();
    drop(loader);
    meter.ended(phase::SAVE);
    let end = (ended, progress.update);
    match ended {
        Ended::Complete => {}
        Ended::Diverged => {
            return Err(RunError::Training(format!(
                "the gradients of {MOST_SKIPPED} updates in a row were not finite (last at update {}); \
                 lower learning_rate, or start from an earlier checkpoint",
                progress.update - 1
            )));
        }
        Ended::Stopped | Ended::Collapsed => return Ok(end),
    }
    let tuned = finish::sampled(r, exec, finish::sampler(Source::better(&progress)))?;
    let on_card = r.device.held_on_card();
    let (planned_arena, arena) = (exec.planned().arena_bytes(), exec.arena_bytes());
    // What follows has its bytes: no rank keeps its arena.
    drop(opened);
    let arenas = world.exchange("the end of a run", &arena.to_le_bytes())?;
    meter.ended(phase::SAMPLE);
    let Some(watcher) = watcher else { return Ok(end) };
    let _busy = world.busy();
    let arenas =
        Arenas { planned: planned_arena, used: arena, of_ranks: arenas.iter().map(|b| number(b)).collect() };
    results(r, run, (&progress, tuned), watcher, (&mut meter, arenas, on_card), started)?;
    Ok(end)
}

/// Returns what a rank's loader works on.
pub(super) fn work(r: &Resolved, world: &World) -> Result<Work, RunError> {
    let (shape, seed) = (&r.plan.shape, r.recipe.seed);
    Ok(Work {
        clips: r.data.clips(&r.model, &r.data.split.train, seed)?,
        sets: r.data.trained().sets,
        model: shape.model.clone(),
        size: r.size,
        capacity: shape.session.capacity,
        seed,
        rank: world.turn(),
        pipeline: r.plan.parts.as_ref().map(|parts| (parts.how.in_flight, world.ranks())),
    })
}

/// Returns a rank's world for the session that it holds.
pub(super) fn holding(r: &Resolved, world: &World) -> Result<World, RunError> {
    let shape = &r.plan.shape;
    let world = world.holding(session::layout(&*shape.model, &shape.session)?);
    Ok(if r.plan.parts.is_some() { world.of_parts() } else { world })
}

/// Returns clips as a rank validates on them.
pub(super) fn validation(r: &Resolved, held_out: &[usize]) -> Result<Validation, RunError> {
    let shape = &r.plan.shape;
    let clips = r.data.clips(&r.model, held_out, r.recipe.seed)?;
    let sets = r.data.of_sets(held_out);
    Validation::new(clips, shape.model.clone(), shape.session.capacity, sets)
}

/// Continues what a run's loop is recorded in; of a run that begins with what the base has `spoken`.
fn watch<'a>(
    r: &'a Resolved,
    run: &RunDir,
    (progress, spoken): (&Progress, &Spoken),
    arena: u64,
    console: &'a mut dyn Console,
) -> Result<Watcher<'a>, RunError> {
    let Resumed { log, history, note } = Log::resume(&run.metrics(), progress.update, r.updates)?;
    let (events, odd) = Events::resume(r, run, progress.update);
    note.iter().chain(&odd).for_each(|note| console.line(note));
    let base = progress.validation_base;
    let mut page = Page::resume(&run.root, r.device.is_card(), progress.update, base, console);
    page.write(&history, progress.update, console);
    let mut watcher = Watcher::new(r, (log, history, events), page, arena, console);
    if progress.update == 0 {
        watcher.began(progress, spoken);
    }
    Ok(watcher)
}

/// Bytes of the arenas of a run that ended.
struct Arenas {
    planned: u64,
    used: u64,
    of_ranks: Vec<u64>,
}

/// Writes a run's results after its arena is freed: the export, pictures and sounds, the summary.
fn results(
    r: &Resolved,
    run: &RunDir,
    (progress, tuned): (&Progress, Option<Vec<f32>>),
    mut watcher: Watcher<'_>,
    (meter, arenas, on_card): (&mut Meter, Arenas, Option<u64>),
    started: Instant,
) -> Result<(), RunError> {
    let slow_steps = watcher.slow_steps();
    // What the run has just written is not read again.
    let best = if r.recipe.stop.is_some() { saved::best(&run.checkpoints(), watcher.console)? } else { None };
    let result = best.map_or_else(|| newest(&run.checkpoints()), Ok)?;
    let of_result = saved::progress(&result)?;
    let source = Source::better(&of_result);
    let out = run.folder("export")?;
    let own = own_dtype(run, &r.recipe, r.model.family)?;
    let of_run = export::Run { dir: run, family: r.model.family, lora: r.recipe.lora.as_ref(), layout: None };
    let dtype = export_from(&of_run, &result, (source, Form::Model), (None, own), &out, watcher.console)?;
    meter.ended(phase::EXPORT);
    let (base, losses) = (progress.validation_base, &*watcher.validations);
    let (sounds, said) = finish::pictures(r, run, tuned, &watcher.history, losses, base)?;
    said.iter().for_each(|said| watcher.console.line(said));
    watcher.ended(progress.update, &sounds, &run.root.join("pictures/mel.png"));
    meter.ended(phase::RESULTS);
    let Watcher { history, mut page, console, .. } = watcher;
    let parts = r.plan.parts.iter().flat_map(|p| &p.ranks);
    let ranks = arenas.of_ranks.len();
    let mut summary = Summary {
        // Also where lines of the log are lost.
        updates: progress.update,
        validation_base: progress.validation_base,
        validation_last: progress.last_loss(),
        validation_sets: progress.last_sets.iter().cloned().collect(),
        validation_best: progress.best.map(|(_, loss)| loss),
        best_update: progress.best.map(|(update, _)| update),
        best_weights: Some(source.name().to_owned()),
        ranks: Some(ranks as u32),
        arena_bytes_planned: arenas.planned,
        arena_bytes_planned_of_ranks: parts.map(|p| p.arena_bytes()).collect(),
        arena_bytes_used: arenas.used,
        arena_bytes_of_ranks: if ranks > 1 { arenas.of_ranks } else { Vec::new() },
        peak_rss_bytes: if r.device.is_card() { on_card } else { meter.most() },
        phases: r.phases(meter),
        host_arena_bytes: r.plan.host_bytes(),
        peak_planned_bytes: r.measurable_peak(),
        budget_bytes: Some(r.budget),
        threads: Some(r.threads as u32),
        clips: r.data.split.train.len() as u64,
        validation_clips: r.data.split.validation.len() as u64,
        slow_steps,
        saving_seconds: page.notes().lost.saving,
        wall_seconds: started.elapsed().as_secs_f64(),
        ended: "complete".to_owned(),
        stopped: stopping::why(&r.recipe, progress, r.updates, &result.path),
        overfitting: stopping::overfitting(progress, &history.losses),
        samples_wer_base: page.notes().heard.first().filter(|heard| heard.update == 0).map(Heard::rate),
        samples_wer: page.notes().heard.last().map(Heard::rate),
        ..history.summary()
    };
    // By what the page goes by, now and when it is written again.
    summary.lessons = lessons(&summary, page.notes(), &plan(&run.root).unwrap_or_default());
    summary.write(&run.root)?;
    let of_result = (&*result.path, of_result.last_loss());
    page.write(&history, progress.update, console);
    report(r, run, of_result, Exported { source, dtype }, &summary, console);
    Ok(())
}

/// Opens the device, with the order of sums that the run was begun with, which it keeps.
pub(super) fn open(
    r: &Resolved,
    planned: Arc<PlannedSession>,
    run: &RunDir,
    world: &World,
    console: &mut dyn Console,
) -> Result<Box<dyn Executor>, RunError> {
    let kept = world.first_says("the run's choices", || run.choices())?;
    let kept = String::from_utf8_lossy(&kept);
    let opened = match world.comm() {
        Some(comm) => {
            let host = (comm.clone(), crate::launch::watchdog());
            r.device.open_rank(planned, r.disk(), host, &kept)?
        }
        None => r.device.open(planned, r.disk(), &kept)?,
    };
    let chosen = opened.choices();
    if let (Some(before), Some(now)) = (kept.lines().next(), chosen.lines().next())
        && before != now
    {
        console.line(&format!(
            "warning: this run's products were timed with {before}, here is {now}: they may sum in another order, so the last bits \
             of results differ from those of a run that never stopped"
        ));
    }
    if world.is_first() && chosen != kept {
        run.keep_choices(chosen)?;
    }
    Ok(opened)
}

/// Returns the newest checkpoint whose every byte verifies: the first rank looks, all go by what it says.
fn newest_good(
    dir: &CheckpointDir,
    world: &World,
    console: &mut dyn Console,
) -> Result<Option<Checkpoint>, RunError> {
    let said = world.first_says("the newest checkpoint", || {
        let newest = saved::newest_good(dir, console)?;
        let found = newest
            .map(|c| (c.step, c.path.file_name().map(|n| n.to_string_lossy().into_owned()), c.manifest));
        saved::to_json(&found)
    })?;
    let found: Option<(u64, Option<String>, Manifest)> = saved::from_json(&said)?;
    Ok(found.map(|(step, name, manifest)| Checkpoint {
        step,
        path: dir.parent().join(name.unwrap_or_default()),
        manifest,
    }))
}

/// Reads a checkpoint back into an executor.
fn go_on(
    r: &Resolved,
    exec: &mut dyn Executor,
    checkpoint: &Checkpoint,
    (world, meter): (&World, &mut Meter),
    console: &mut dyn Console,
) -> Result<Progress, RunError> {
    let progress = saved::progress(checkpoint)?;
    if progress.run != digest(r)? {
        return Err(RunError::Usage(format!(
            "{}: recipe or data changed since this checkpoint was written; put them back, or start a new run",
            checkpoint.path.display()
        )));
    }
    if progress.update > r.updates {
        return Err(RunError::Model(format!(
            "{}: is of update {}, and the run ends after {}; use another checkpoint",
            checkpoint.path.display(),
            progress.update,
            r.updates
        )));
    }
    saved::restore(exec, checkpoint, world)?;
    meter.ended(phase::RESUME);
    console.line(&format!("resuming after update {} of {}", progress.update, r.updates));
    Ok(progress)
}

/// Loads the model into an executor, and looks at it before it changes. Returns what was spoken too.
fn begin(
    r: &Resolved,
    run: &RunDir,
    exec: &mut dyn Executor,
    validation: &Validation,
    (world, meter): (&World, &mut Meter),
    console: &mut dyn Console,
) -> Result<(Progress, Spoken), RunError> {
    let busy = world.busy();
    weights::fill(exec, &r.model, r.recipe.seed, world.held())?;
    drop(busy);
    meter.ended(phase::LOAD);
    if world.is_first() {
        r.model.doubts()?.iter().for_each(|doubt| console.line(doubt));
    }
    let mut progress = Progress { run: digest(r)?, applied: vec![0; r.rates.len()], ..Progress::default() };
    if !validation.is_empty() {
        let base = validation.loss(exec, program::EVALUATE, world)?;
        meter.ended(phase::EVALUATE);
        console.line(&format!("validation loss of the base: {base:.4}"));
        let of_sets = validation.of_sets(exec, program::EVALUATE, world)?;
        if let Some(said) = metrics::of_sets(&of_sets) {
            console.line(&said);
        }
        progress.validation_base = Some(base);
    }
    let base = finish::sampled(r, exec, program::SAMPLE)?;
    if world.is_first() {
        finish::keep_base(r, run, base)?;
    }
    meter.ended(phase::SAMPLE);
    let mut spoken = Spoken::default();
    if let Some(samples) = Speaking::of(r.samples.as_ref(), run) {
        spoken = samples.speak(exec, (0, Source::Raw), meter)?;
        spoken.said.lines().for_each(|line| console.line(line));
    }
    Ok((progress, spoken))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Returns what a checkpoint must share with the run that resumes it: everything but who computes, what is spoken, and when it stops.
fn digest(r: &Resolved) -> Result<String, RunError> {
    let recipe = r.recipe.clone();
    // Where every parameter decays, as before there was this key.
    let no_decay = recipe.no_decay.clone().filter(|patterns| !patterns.is_empty());
    let recipe = Recipe {
        ranks: None,
        sharding: None,
        placement: None,
        threads: None,
        samples: None,
        stop: None,
        no_decay,
        ..recipe
    };
    let recipe = recipe.to_yaml().map_err(RunError::Usage)?;
    let mut hash = blake3::Hasher::new();
    hash.update(recipe.as_bytes());
    hash.update(r.data.digest().as_bytes());
    Ok(hash.finalize().to_hex().to_string())
}

fn newest(checkpoints: &CheckpointDir) -> Result<Checkpoint, RunError> {
    let newest = checkpoints.list()?.into_iter().max_by_key(|c| c.step);
    newest.ok_or_else(|| RunError::Io("the run has no complete checkpoint".to_owned()))
}

fn report(
    r: &Resolved,
    run: &RunDir,
    (checkpoint, loss): (&Path, Option<f64>),
    Exported { source, dtype }: Exported,
    s: &Summary,
    console: &mut dyn Console,
) {
    let root = run.root.display();
    s.stopped.iter().chain(&s.overfitting).for_each(|said| console.line(said));
    if let (Some(base), Some(loss)) = (s.validation_base, loss) {
        console.line(&format!(
            "validation loss: base {base:.4}, result {loss:.4} ({:+.1} %), same clips and draws, {} weights",
            100.0 * (loss / base - 1.0),
            source.name()
        ));
    }
    console.line(&format!(
        "memory: planned {}, measured {}; arena planned {} B, used {} B",
        ByteSize(s.peak_planned_bytes),
        s.peak_rss_bytes.map_or("?".to_owned(), |b| ByteSize(b).to_string()),
        s.arena_bytes_planned,
        s.arena_bytes_used
    ));
    s.lessons.iter().for_each(|lesson| console.line(&lesson.english()));
    let project = r.plan.shape.model.project();
    for (what, place) in [
        ("checkpoint", checkpoint.display().to_string()),
        ("export", format!("{root}/export ({} weights in {dtype}; loads in {project})", source.name())),
        ("metrics", format!("{root}/metrics.jsonl, {root}/summary.json")),
        ("pictures", format!("{root}/pictures")),
        ("report", format!("{root}/{REPORT_FILE} (opens in a browser, offline)")),
    ] {
        console.line(&format!("{what:<11}{place}"));
    }
    if r.samples.is_some() {
        console.line(&format!(
            "samples    {root}/samples/0 by the base, {root}/samples/{} by the result",
            s.updates
        ));
    }
    if r.plan.shape.session.sample.is_some() {
        console.line(&format!(
            "audio      {root}/audio (a held-out clip; by Griffin-Lim, which buzzes: no vocoder)"
        ));
    }
    let heard = r.model.how_to_listen(&root.to_string(), &format!("{root}/export"));
    heard.iter().for_each(|how| console.line(how));
}
