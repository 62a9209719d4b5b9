//! A whole run: `train` and `resume` from recipe to results.

use crate::data::no_data;
use crate::error::RunError;
use crate::export::{self, Layout, Source};
use crate::finish;
use crate::load;
use crate::loader::{Loader, Work};
use crate::metrics::{self, Log, SlowSteps, StepFacts, Summary, Update};
use crate::recipe::{Origins, Recipe};
use crate::resolve::{Console, Resolved, resolve};
use crate::run_dir::RunDir;
use crate::saved::{self, Progress};
use crate::session::program;
use crate::size::ByteSize;
use crate::stages;
use crate::trainer::{Ended, Observer, Step, Trainer};
use crate::validate::Validation;
use ambitus_compile::passes::precision::Precision;
use ambitus_store::CheckpointDir;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Starts a run.
///
/// # Errors
/// Everything that [`RunError`] lists. When the plan does not fit, no weight was read and no folder is left.
pub fn train(
    recipe: Recipe,
    origins: &Origins,
    root: PathBuf,
    console: &mut dyn Console,
) -> Result<RunDir, RunError> {
    let recipe = absolute(recipe)?;
    if !recipe.stages.is_empty() {
        return stages::train(&recipe, origins, root, console);
    }
    let run = RunDir::create(&recipe, root)?;
    let result = resolve(recipe, true, console).and_then(|r| {
        check(&r, console)?;
        Ok(r)
    });
    let mut resolved = match result {
        Ok(resolved) => resolved,
        Err(e) => {
            run.discard();
            return Err(e);
        }
    };
    run.keep_model(&resolved.model)?;
    // With what the search chose: a resumed run does not search again.
    run.write_recipe(&resolved.recipe)?;
    run.write_json("plan.json", &plan_json(&resolved, origins))?;
    go(&mut resolved, &run, console)?;
    Ok(run)
}

/// Goes on with a run from its newest good checkpoint, or from its start when it has none yet.
///
/// # Errors
/// As [`train`]; also when recipe or data changed since.
pub fn resume(root: &Path, console: &mut dyn Console) -> Result<RunDir, RunError> {
    let (run, recipe) = RunDir::open(root)?;
    if !recipe.stages.is_empty() {
        return stages::resume(run, &recipe, console);
    }
    let mut resolved = resolve(recipe, true, console)?;
    check(&resolved, console)?;
    run.keep_model(&resolved.model)?;
    if !run.root.join("plan.json").exists() {
        run.write_json("plan.json", &plan_json(&resolved, &Origins::new()))?;
    }
    go(&mut resolved, &run, console)?;
    Ok(run)
}

/// Paths that mean the same from any folder: a run may be resumed from elsewhere.
fn absolute(mut recipe: Recipe) -> Result<Recipe, RunError> {
    let data = recipe.data.dir.as_mut().ok_or_else(no_data)?;
    for path in [&mut recipe.model.dir, data].into_iter().chain(&mut recipe.data.codec) {
        *path = std::path::absolute(&*path).map_err(|e| RunError::io(path, "cannot resolve", e))?;
    }
    if let Some(disk) = recipe.offload.as_mut().and_then(|o| o.disk.as_mut()) {
        *disk = std::path::absolute(&*disk).map_err(|e| RunError::io(disk, "cannot resolve", e))?;
    }
    let cache = std::path::absolute(crate::resolve::cache_dir(&recipe));
    recipe.data.cache = Some(cache.map_err(|e| RunError::io(Path::new("runs/cache"), "cannot resolve", e))?);
    Ok(recipe)
}

/// What is checked and said before anything is loaded.
fn check(r: &Resolved, console: &mut dyn Console) -> Result<(), RunError> {
    for line in r.data.describe() {
        console.line(&line);
    }
    r.require_fit()?;
    for line in r.describe()? {
        console.line(&line);
    }
    if r.model.wants_checkpointing
        && r.plan.shape.session.checkpoint == ambitus_compile::passes::policy::Blocks::None
    {
        console.line("config.yaml asks for checkpoint_activations; this recipe does not need it (use --checkpoint all to have it)");
    }
    r.model.check(&r.plan.planned.session.states, r.recipe.model.extend_vocab)
}

pub(crate) fn plan_json(r: &Resolved, origins: &Origins) -> serde_json::Value {
    let mut json = r.json();
    json["choices"] = serde_json::json!(r.choices);
    json["recipe_places"] = origins
        .iter()
        .map(|(key, place)| (key.clone(), serde_json::json!(format!("{}:{}", place.line, place.column))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    json
}

/// What a checkpoint must share with the run that resumes it.
fn digest(r: &Resolved) -> Result<String, RunError> {
    let recipe = r.recipe.to_yaml().map_err(RunError::Usage)?;
    let mut hash = blake3::Hasher::new();
    hash.update(recipe.as_bytes());
    hash.update(r.data.digest().as_bytes());
    Ok(hash.finalize().to_hex().to_string())
}

/// Runs to the end; from where fp16 cannot go on, in fp32.
fn go(r: &mut Resolved, run: &RunDir, console: &mut dyn Console) -> Result<(), RunError> {
    if attempt(r, run, console)? == Ended::Collapsed {
        console.line(&r.in_fp32()?);
        attempt(r, run, console)?;
    }
    Ok(())
}

/// Runs as planned, from the newest checkpoint on. A checkpoint of a run that left its planned precision is not run on.
fn attempt(r: &Resolved, run: &RunDir, console: &mut dyn Console) -> Result<Ended, RunError> {
    let started = Instant::now();
    let checkpoints = run.checkpoints();
    let latest = checkpoints.latest_good()?;
    for skipped in &latest.skipped {
        console.line(&format!("damaged checkpoint passed over: {skipped}"));
    }
    if let Some(checkpoint) = &latest.checkpoint
        && r.plan.shape.session.precision != Precision::Fp32
        && saved::progress(checkpoint)?.fp32_from.is_some()
    {
        return Ok(Ended::Collapsed);
    }
    let mut exec = r.device.open(r.plan.planned.clone(), r.disk())?;
    let exec = &mut *exec;
    let digest = digest(r)?;
    let (model, capacity) = (&r.plan.shape.model, r.plan.shape.session.capacity);
    let held_out = r.data.clips(&r.data.split.validation, r.recipe.seed)?;
    let validation = Validation::new(held_out, model.clone(), capacity)?;
    let (progress, log) = match &latest.checkpoint {
        Some(checkpoint) => {
            let progress = saved::restore(exec, checkpoint)?;
            if progress.run != digest {
                return Err(RunError::Usage(format!(
                    "{}: recipe or data changed since this checkpoint was written; put them back, or start a new run",
                    checkpoint.path.display()
                )));
            }
            console.line(&format!("resuming after update {} of {}", progress.update, r.updates));
            (progress, Log::resume(&run.metrics(), checkpoint.step)?)
        }
        None => {
            for doubt in load::load(exec, &r.model, r.recipe.seed)? {
                console.line(&doubt);
            }
            let mut progress = Progress { run: digest, ..Progress::default() };
            if !validation.is_empty() {
                let base = validation.loss(exec, program::EVALUATE)?;
                console.line(&format!("validation loss of the base: {base:.4}"));
                progress.validation_base = Some(base);
            }
            finish::sample_base(r, run, exec)?;
            (progress, (Log::create(&run.metrics())?, Vec::new()))
        }
    };
    let (log, lines) = log;
    let work = Work {
        clips: r.data.clips(&r.data.split.train, r.recipe.seed)?,
        model: model.clone(),
        size: r.size,
        capacity,
        seed: r.recipe.seed,
    };
    let loader = Loader::start(work, progress.update)?;
    let mut watcher = Watcher {
        r,
        log,
        lines,
        slow: SlowSteps::default(),
        saving_seconds: 0.0,
        validations: Vec::new(),
        arena: exec.arena_bytes(),
        on_card: r.device.is_card().then(|| r.device.measured_peak()).flatten(),
        console,
    };
    let mut trainer = Trainer {
        exec,
        recipe: &r.recipe,
        updates: r.updates,
        validation: &validation,
        checkpoints: &checkpoints,
        progress,
    };
    let ended = trainer.run(&loader, &mut watcher)?;
    let progress = trainer.progress.clone();
    drop(loader);
    let slow_steps = watcher.slow.count();
    let (lines, validations) = (watcher.lines, watcher.validations);
    if ended == Ended::Collapsed {
        return Ok(ended);
    }
    if ended == Ended::Stopped {
        return Err(RunError::Stopped { update: progress.update, run: run.root.display().to_string() });
    }
    let source = better(&progress);
    let newest = newest(&checkpoints)?;
    let out = run.folder("export")?;
    export_from(run, &r.recipe, &newest, (source, Layout::Model), &out)?;
    finish::pictures(r, run, exec, source, &lines, &validations, progress.validation_base)?;
    let last = progress.last.map(|(raw, ema)| match source {
        Source::Ema => ema.unwrap_or(raw),
        Source::Raw => raw,
    });
    let summary = Summary {
        validation_base: progress.validation_base,
        validation_last: last,
        validation_best: progress.best.map(|(_, loss)| loss),
        best_update: progress.best.map(|(update, _)| update),
        best_weights: Some(source.name().to_owned()),
        arena_bytes_planned: r.plan.planned.arena_bytes(),
        arena_bytes_used: exec.arena_bytes(),
        peak_rss_bytes: r.device.measured_peak(),
        host_arena_bytes: r.plan.planned.host_bytes,
        peak_planned_bytes: r.measurable_peak(),
        budget_bytes: Some(r.budget),
        threads: Some(r.threads as u32),
        clips: r.data.split.train.len() as u64,
        validation_clips: r.data.split.validation.len() as u64,
        slow_steps,
        wall_seconds: started.elapsed().as_secs_f64(),
        ended: "complete".to_owned(),
        ..Summary::from_log(&lines)
    };
    summary.write(&run.root).map_err(|e| RunError::io(&run.root, "cannot write summary.json", e))?;
    report(r, run, &newest, source, &summary, console);
    Ok(ended)
}

/// The better weights by the last validation; without validation the average, unless the run kept none.
fn better(progress: &Progress) -> Source {
    match progress.last {
        Some((raw, Some(ema))) if ema <= raw => Source::Ema,
        _ => Source::Raw,
    }
}

fn newest(checkpoints: &CheckpointDir) -> Result<PathBuf, RunError> {
    let all = checkpoints.list()?;
    let newest = all.iter().max_by_key(|c| c.step).map(|c| c.path.clone());
    newest.ok_or_else(|| RunError::Io("the run has no complete checkpoint".to_owned()))
}

/// Exports a run's newest checkpoint: `ambitus export`. Of a run in stages, the last complete one's. Without `source`, the better weights by validation.
///
/// # Errors
/// No checkpoint yet, no adapters where they are asked for, or files that cannot be written.
pub fn export_run(
    root: &Path,
    source: Option<Source>,
    layout: Layout,
    out: &Path,
) -> Result<Source, RunError> {
    let (run, recipe) = RunDir::open(root).and_then(|(run, recipe)| stages::latest(run, recipe))?;
    let latest = run.checkpoints().latest_good()?;
    let checkpoint = latest
        .checkpoint
        .ok_or_else(|| RunError::Usage(format!("{}: has no complete checkpoint yet", root.display())))?;
    let progress: Progress = serde_json::from_value(checkpoint.manifest.meta.clone())
        .map_err(|e| RunError::Model(format!("{}: manifest.json: {e}", checkpoint.path.display())))?;
    let source = source.unwrap_or_else(|| better(&progress));
    export_from(&run, &recipe, &checkpoint.path, (source, layout), out)?;
    Ok(source)
}

fn export_from(
    run: &RunDir,
    recipe: &Recipe,
    checkpoint: &Path,
    (source, layout): (Source, Layout),
    out: &Path,
) -> Result<(), RunError> {
    let run = export::Run { model: &run.model(), lora: recipe.lora.as_ref() };
    match layout {
        Layout::Model => export::export(checkpoint, source, &run, out),
        Layout::Adapter => export::adapter::export(checkpoint, source, &run, out),
    }
}

fn report(
    r: &Resolved,
    run: &RunDir,
    checkpoint: &Path,
    source: Source,
    s: &Summary,
    console: &mut dyn Console,
) {
    let root = run.root.display();
    if let (Some(base), Some(last)) = (s.validation_base, s.validation_last) {
        console.line(&format!(
            "validation loss: base {base:.4}, result {last:.4} ({:+.1} %), same clips and draws, {} weights",
            100.0 * (last / base - 1.0),
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
    let project = r.plan.shape.model.project();
    for (what, place) in [
        ("checkpoint", checkpoint.display().to_string()),
        ("export", format!("{root}/export ({} weights; loads in {project})", source.name())),
        ("metrics", format!("{root}/metrics.jsonl, {root}/summary.json")),
        ("pictures", format!("{root}/pictures")),
    ] {
        console.line(&format!("{what:<11}{place}"));
    }
    if r.recipe.sample.is_some() {
        console.line(&format!("audio      {root}/audio"));
    }
    console.line("next, with your own folder of clips:");
    console.line(&format!(
        "  ambitus train --model {root}/export --data YOUR_FOLDER --device {} --memory {}",
        r.recipe.device,
        ByteSize(s.budget_bytes.unwrap_or(0)).exact()
    ));
}

/// Writes the log, explains slow steps, prints progress.
struct Watcher<'a> {
    r: &'a Resolved,
    log: Log,
    lines: Vec<Update>,
    slow: SlowSteps,
    saving_seconds: f64,
    validations: Vec<(u64, f64)>,
    arena: u64,
    /// What this process holds on its card: a constant since the executor was opened.
    on_card: Option<u64>,
    console: &'a mut dyn Console,
}

impl Observer for Watcher<'_> {
    fn step(&mut self, step: &Step, progress: &Progress) -> Result<(), RunError> {
        if progress.update == 1
            && let Some(said) = self.r.plan.shape.model.first_loss(step.loss)
        {
            self.console.line(&said);
        }
        let capacity = self.r.plan.shape.session.capacity.rows * step.micro_batches;
        let line = Update {
            update: progress.update,
            epoch: f64::from(step.epoch),
            loss: step.loss,
            learning_rate: step.learning_rate,
            grad_norm: f64::from(step.grad_norm),
            loss_scale: step.loss_scale.map(f64::from),
            applied: step.applied,
            step_seconds: step.seconds,
            loader_wait_seconds: step.loader_wait,
            page_faults_major: step.after.major_faults - step.before.major_faults,
            page_faults_minor: step.after.minor_faults - step.before.minor_faults,
            rss_bytes: step.after.rss_bytes,
            arena_bytes: self.arena,
            frames: step.rows as u64,
            frames_per_second: step.rows as f64 / step.seconds,
            fill: step.rows as f64 / capacity.max(1) as f64,
        };
        self.log.append(&line)?;
        if !step.applied {
            let skipped = match (self.r.recipe.clip_per_tensor, step.loss_scale) {
                (false, None) => "the update was skipped".to_owned(),
                (false, Some(scale)) => format!("the update was skipped, the loss scale is {scale} now"),
                (true, _) => "that tensor was not updated, the others were".to_owned(),
            };
            self.console.line(&format!("update {}: a gradient was not finite; {skipped}", progress.update));
        }
        let facts = StepFacts {
            update: progress.update,
            seconds: step.seconds,
            loader_wait_seconds: step.loader_wait,
            saving_seconds: self.saving_seconds,
            cpu_seconds: (step.after.cpu_micros - step.before.cpu_micros) as f64 / 1e6,
            major_faults: step.after.major_faults - step.before.major_faults,
            involuntary_switches: step.after.involuntary_switches - step.before.involuntary_switches,
            micro_batches: step.micro_batches as u64,
        };
        self.saving_seconds = 0.0;
        if let Some(why) = self.slow.observe(&facts) {
            self.console.line(&why);
        }
        let show = metrics::Progress {
            update: progress.update,
            updates: self.r.updates,
            epoch: f64::from(step.epoch),
            loss: step.loss,
            frames_per_second: line.frames_per_second,
            rss_bytes: self.on_card.or(Some(step.after.rss_bytes)),
            budget_bytes: self.r.budget + self.r.measurable_peak() - self.r.plan.peak_bytes,
            step_seconds: step.seconds,
        };
        self.console.progress(&show.to_string());
        self.lines.push(line);
        Ok(())
    }

    fn validated(&mut self, update: u64, raw: f64, ema: Option<f64>) {
        let averaged = ema.map_or(String::new(), |e| format!(", of the average {e:.4}"));
        self.console.line(&format!("update {update}: validation loss {raw:.4}{averaged}"));
        self.validations.push((update, ema.map_or(raw, |e| e.min(raw))));
    }

    fn before_save(&mut self) -> Result<(), RunError> {
        Ok(self.log.sync()?)
    }

    fn saved(&mut self, _: u64, seconds: f64) {
        self.saving_seconds = seconds;
    }

    fn note(&mut self, text: &str) {
        self.console.line(text);
    }
}
