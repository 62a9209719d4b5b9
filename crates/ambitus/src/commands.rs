//! What each command does, with the library doing the work.

use crate::args::{
    DoctorArgs, ExportArgs, GenerateArgs, GradientsArgs, ResumeArgs, RunArgs, RunsArgs, TrainArgs, TuneArgs,
    WeightsArg, WorldArgs, threads,
};
use crate::terminal::{self, Terminal, json};
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::family::{ModelDir, OpenOptions, sections};
use ambitus_families::generate::Settings;
use ambitus_families::hearing;
use ambitus_families::{ALL, EARS};
use ambitus_plan::device::Device;
use ambitus_plan::memory;
use ambitus_plan::placement::Placement;
use ambitus_plan::resolve;
use ambitus_recipe::recipe::{self, DeviceChoice, Origins, Recipe};
use ambitus_recipe::size::ByteSize;
use ambitus_train::export::{Form, Source};
use ambitus_train::generate::{self, Taken};
use ambitus_train::gradients::{self, GradientOptions};
use ambitus_train::inference;
use ambitus_train::launch::{self, Processes, WorldOptions};
use ambitus_train::run::tune;
use ambitus_train::run_dir::RunDir;
use ambitus_train::world::World;
use ambitus_train::{Sharding, Strategy, doctor, report, run, runs_table};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub type Result<T> = std::result::Result<T, RunError>;

/// Returns the processes that were started together as one run, if any.
fn processes(ranks: Option<usize>, device: DeviceChoice, a: &WorldArgs) -> Result<Option<Processes>> {
    let watchdog = a.watchdog.map_or(launch::WATCHDOG, Duration::from_secs);
    launch::world(ranks, WorldOptions { watchdog, device, notice: terminal::message })
}

/// Returns this process's place among those of a run.
fn world(ranks: Option<u32>, device: DeviceChoice, a: &WorldArgs) -> Result<World> {
    let processes = processes(ranks.map(|n| n as usize), device, a)?;
    Ok(processes.map_or_else(World::alone, World::of_processes))
}

/// Returns the recipe file, or one made of --model and --data, with the other options on top. Some models can be `planned` for
/// without data.
pub fn recipe(a: &TrainArgs, planned: bool) -> Result<(Recipe, Origins)> {
    let (mut r, mut origins) = without_options(a, planned)?;
    let given = options(a, &mut r);
    for key in &given {
        origins.option(key);
    }
    r.validate().map_err(|bad| RunError::Usage(format!("{}: {}", bad.key, bad.why)))?;
    for key in given {
        // Either length of a stage goes before either of the recipe.
        let keys = if key == "updates" { vec![&*key, "epochs"] } else { vec![&*key] };
        if let Some(stage) = r.stage_that_says(&keys) {
            return Err(RunError::Usage(format!(
                "--{}: stage `{stage}` of the recipe sets its own {}, which this option would not change: change it there",
                key.replace('_', "-"),
                keys.join(" or ")
            )));
        }
    }
    Ok((r, origins))
}

/// Returns the recipe file, or one made of --model and --data.
pub fn without_options(a: &TrainArgs, planned: bool) -> Result<(Recipe, Origins)> {
    match (&a.recipe, &a.model, &a.data) {
        (Some(path), ..) => {
            let read = Recipe::read(path, &sections(ALL)).map_err(|e| RunError::Usage(e.to_string()))?;
            read.1
                .notes()
                .iter()
                .for_each(|note| terminal::message(&format!("note: {}: {note}", path.display())));
            Ok(read)
        }
        (None, Some(model), Some(data)) => Ok((Recipe::new(model, data), named(&["model.dir", "data.dir"]))),
        (None, Some(model), None) if planned => Ok((Recipe::without_data(model), named(&["model.dir"]))),
        _ => Err(RunError::Usage(
            "give a recipe (ambitus train recipes/quickstart.yaml), or --model DIR and --data DIR".to_owned(),
        )),
    }
}

fn named(keys: &[&str]) -> Origins {
    let mut origins = Origins::new();
    keys.iter().for_each(|key| origins.option(key));
    origins
}

/// Keys that options say, as they are laid over a recipe.
#[derive(Default)]
struct Given(Vec<String>);

impl Given {
    /// Lays an option over a key that may be absent from the recipe.
    fn open<T: Clone>(&mut self, key: &'static str, option: &Option<T>, value: &mut Option<T>) {
        self.set(key, option, |given| *value = Some(given));
    }

    /// Lays an option over any other key, by `lay`.
    fn set<T: Clone>(&mut self, key: &'static str, option: &Option<T>, lay: impl FnOnce(T)) {
        if let Some(given) = option {
            lay(given.clone());
            self.0.push(key.to_owned());
        }
    }
}

/// Lays the options over a recipe: the keys that they say.
pub fn options(a: &TrainArgs, r: &mut Recipe) -> Vec<String> {
    let mut keys = Given::default();
    let flag = |is: bool| is.then_some(());
    if a.recipe.is_some() {
        keys.set("model.dir", &a.model, |dir| r.model.dir = dir);
        keys.set("data.dir", &a.data, |dir| r.data.take(dir));
    }
    keys.set("device", &a.device, |device| r.device = device);
    keys.open("memory", &a.memory, &mut r.memory);
    keys.open("precision", &a.precision, &mut r.precision);
    keys.open("ranks", &a.ranks, &mut r.ranks);
    keys.set("sharding.strategy", &a.sharding, |strategy| r.share_by(strategy));
    keys.open("placement", &a.placement, &mut r.placement);
    keys.open("offload", &a.offload, &mut r.offload);
    keys.set("offload", &flag(a.low_vram), |()| r.offload = Some(recipe::Offload::all()));
    keys.open("host_memory", &a.host_memory, &mut r.host_memory);
    keys.open("checkpoint", &a.checkpoint, &mut r.checkpoint);
    keys.set("numerics", &a.numerics, |level| r.numerics = level);
    keys.set("update", &flag(a.update_in_backward), |()| r.update = recipe::UpdateAt::Backward);
    keys.set("clip_per_tensor", &flag(a.clip_per_tensor), |()| r.clip_per_tensor = true);
    keys.open("optimizer", &a.optimizer, &mut r.optimizer);
    keys.set("micro_batch.frames", &a.micro_batch, |size| {
        r.micro_batch = recipe::MicroBatch { clips: r.micro_batch.clips, ..size };
    });
    keys.open("threads", &a.threads, &mut r.threads);
    keys.set("updates", &a.updates, |n| (r.updates, r.epochs) = (Some(n), None));
    keys.open("batch", &a.batch, &mut r.batch);
    keys.open("warmup", &a.warmup, &mut r.warmup);
    keys.open("schedule", &a.schedule, &mut r.schedule);
    keys.set("save_every", &a.save_every, |updates| r.save_every = updates);
    keys.set("ema", &flag(a.ema || a.no_ema), |()| r.ema = Some(a.ema.into()));
    keys.set("samples", &flag(a.no_samples), |()| r.samples = Some(recipe::Samples::Off));
    keys.set("data.max_seconds", &a.max_seconds, |seconds| r.data.max_seconds = seconds);
    keys.open("data.loudness", &a.loudness, &mut r.data.loudness);
    keys.set("data.trim", &a.trim, |kept| r.data.trim = Some(kept.unwrap_or(recipe::TRIM)));
    keys.open("learning_rate", &a.learning_rate, &mut r.learning_rate);
    keys.set("seed", &a.seed, |seed| r.seed = seed);
    keys.set("freeze", &flag(!a.freeze.is_empty()), |()| r.freeze.clone_from(&a.freeze));
    keys.set("lora.rank", &a.lora, |rank| r.lora.get_or_insert_default().rank = rank);
    keys.open("run_dir", &a.run_dir, &mut r.run_dir);
    keys.0.extend(a.own.lay(r));
    keys.0
}

pub fn prepare(a: &TrainArgs) -> Result<()> {
    let mut console = Terminal::new();
    // Only --data is a usual thing to ask here; the tokenizer needs the model's vocabulary.
    let (r, _) = recipe(a, false)?;
    // Preparing uses no device.
    let device = Device::find(recipe::DeviceChoice::Cpu, resolve::threads(&r))?;
    let data = resolve::prepare(ALL, &r, &device, &mut console).inspect_err(|e| refused(e, a.json))?;
    let Some(prepared) = data.prepared() else { return Ok(()) };
    data.describe().iter().for_each(|line| console.line(line));
    if a.json {
        let summary = serde_json::to_string_pretty(&prepared.summary);
        let summary =
            summary.map_err(|e| RunError::Io(format!("the summary cannot be written as JSON: {e}")))?;
        terminal::result(&format!("{{\n\"summary\": {summary},\n\"outcomes\": ["));
        // One at a time: there may be millions.
        let last = prepared.outcomes.len();
        for (i, outcome) in (1..).zip(prepared.outcomes.lines()) {
            terminal::result(&format!("{}{}", outcome?, if i < last { "," } else { "" }));
        }
        terminal::result("]\n}");
    }
    Ok(())
}

pub fn train(a: &RunArgs) -> Result<()> {
    let RunArgs { run: a, world: asked } = a;
    // What is wrong with the recipe the first rank says for all.
    let made = recipe(a, false);
    let device = made.as_ref().map_or_else(|_| DeviceChoice::default(), |(r, _)| r.device);
    let world = world(a.ranks, device, asked)?;
    let mut console = Terminal::new();
    let (r, origins) = made?;
    let root = match &r.run_dir {
        Some(dir) => dir.clone(),
        None => new_run_dir(a),
    };
    let run = run::train(ALL, r, &origins, root, &world, &mut console);
    let run = run.inspect_err(|e| refused(e, a.json && world.is_first()))?;
    finished(&run, a.json && world.is_first())
}

pub fn tune(a: &TuneArgs) -> Result<()> {
    let TuneArgs { run: a, grid } = a;
    let (r, origins) = recipe(a, false)?;
    let world = world(a.ranks, r.device, &WorldArgs::default())?;
    // The recipe's own is for its run.
    let root = a.run_dir.clone().unwrap_or_else(|| new_run_dir(a));
    let tuned = tune::tune(ALL, (r, &origins), grid.clone(), root, &world, &mut Terminal::new());
    told(&tuned.inspect_err(|e| refused(e, a.json))?, a.json)
}

fn told(tuned: &tune::Tuned, as_json: bool) -> Result<()> {
    if as_json {
        json(tuned);
    }
    Ok(())
}

/// Returns `runs/<seconds since 1970>-<recipe or data name>`, which sorts by time.
fn new_run_dir(a: &TrainArgs) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let named = a.recipe.as_deref().or(a.data.as_deref()).and_then(Path::file_stem);
    let name = named.map_or("run".to_owned(), |n| n.to_string_lossy().into_owned());
    PathBuf::from("runs").join(format!("{seconds}-{name}"))
}

pub fn resume(a: &ResumeArgs) -> Result<()> {
    if tune::is_one(&a.run) {
        if a.ranks.is_some() || a.sharding.is_some() || a.placement.is_some() {
            let why = "--ranks, --sharding, --placement: a tuning goes on as it was planned";
            return Err(RunError::Usage(why.to_owned()));
        }
        let world = world(None, DeviceChoice::default(), &a.world)?;
        let tuned = tune::resume(ALL, &a.run, &world, &mut Terminal::new());
        return told(&tuned.inspect_err(|e| refused(e, a.json))?, a.json);
    }
    let shared = run::Shared { ranks: a.ranks, sharding: a.sharding, placement: a.placement };
    let device = RunDir::open(ALL, &a.run).map_or_else(|_| DeviceChoice::default(), |(_, r)| r.device);
    let world = world(a.ranks, device, &a.world)?;
    let run = run::resume(ALL, &a.run, shared, &world, &mut Terminal::new());
    let run = run.inspect_err(|e| refused(e, a.json && world.is_first()))?;
    finished(&run, a.json && world.is_first())
}

/// Prints a run that does not fit, for programs: its plan, and what could be changed.
pub fn refused(e: &RunError, as_json: bool) {
    if let (Some(refusal), true) = (e.refusal(), as_json) {
        json(&refusal);
    }
}

fn finished(run: &RunDir, as_json: bool) -> Result<()> {
    if as_json {
        terminal::result(runs_table::summary_text(&run.root)?.trim_end());
    }
    Ok(())
}

pub fn gradients(a: &GradientsArgs) -> Result<()> {
    let world = processes(a.ranks, a.device, &a.world)?;
    let mut laid = Recipe::without_data(&a.model);
    a.own.lay(&mut laid);
    let options = OpenOptions { own: laid.own, ..OpenOptions::default() };
    let model = ModelDir::open(ALL, &a.model, options)?;
    let ranks = world.as_ref().map(|w| w.comm.ranks()).or(a.ranks);
    let placement = a.placement.filter(|p| *p != recipe::Placement::None);
    if ranks.is_none() && (a.sharding.is_some() || a.units.is_some() || placement.is_some()) {
        return Err(RunError::Usage(
            "--sharding, --units, --placement: one rank shares nothing; give --ranks N, or start several processes (mpirun)"
                .to_owned(),
        ));
    }
    let (strategy, units) = (a.sharding.unwrap_or(Strategy::Full), a.units.unwrap_or_default());
    let shared = |ranks| Sharding::new(strategy, ranks).map(|s| Sharding { units, ..s });
    let sharding = ranks.filter(|_| placement.is_none()).map(shared).transpose();
    let sharding = sharding.map_err(|why| RunError::Usage(format!("--sharding {strategy}: {why}")))?;
    let options = GradientOptions {
        checkpoint: a.checkpoint.0.clone(),
        precision: a.precision,
        micro_batch: a.micro_batch,
        sharding,
        placement: placement
            .zip(ranks)
            .map(|(how, n)| Placement::new(n, how == recipe::Placement::Pipeline, u64::MAX)),
        device: a.device,
        threads: threads(a.threads),
        memory: a.memory.map(|m| m.0),
    };
    let gradients::Computed { loss, doubts } =
        gradients::gradients(&model, &a.batch, &a.out, options, world.as_ref())?;
    if world.is_some_and(|w| w.comm.rank() > 0) {
        return Ok(());
    }
    doubts.iter().for_each(|doubt| terminal::message(doubt));
    if a.json {
        json(&serde_json::json!({ "loss": loss }));
    } else {
        terminal::message(&format!("loss {loss}; gradients in {}", a.out.display()));
    }
    Ok(())
}

pub fn export(a: &ExportArgs) -> Result<()> {
    let (form, name) = if a.adapter { (Form::Adapter, "adapter") } else { (Form::Model, "export") };
    let out = a.out.clone().unwrap_or_else(|| a.run.join(name));
    let source = a.weights.map(|w| match w {
        WeightsArg::Ema => Source::Ema,
        WeightsArg::Raw => Source::Raw,
    });
    let wanted = run::Wanted { source, form, layout: a.layout.as_deref(), dtype: a.dtype };
    let run::Exported { source, dtype } = run::export_run(ALL, &a.run, wanted, &out, &mut Terminal::new())?;
    if a.json {
        json(&serde_json::json!({ "export": out, "weights": source.name(), "dtype": dtype.name() }));
    } else {
        terminal::message(&format!("{}: {} weights in {dtype}", out.display(), source.name()));
        let path = out.display().to_string();
        if let (false, Ok(model)) = (a.adapter, ModelDir::open(ALL, &out, OpenOptions::default())) {
            model.how_to_listen(&path, &path).iter().for_each(|how| terminal::message(how));
        }
    }
    Ok(())
}

pub fn runs(a: &RunsArgs) -> Result<()> {
    if a.page {
        let (page, wrong) = report::write_runs(ALL, &a.dir)?;
        wrong.iter().for_each(|why| terminal::message(why));
        terminal::result(&page.display().to_string());
        return Ok(());
    }
    let table = runs_table::runs(ALL, &a.dir).map_err(|e| RunError::io(&a.dir, "cannot list", e))?;
    if a.json {
        json(&table);
    } else {
        terminal::result(table.to_string().trim_end());
    }
    Ok(())
}

pub fn doctor(a: &DoctorArgs) -> Result<()> {
    let report = doctor::doctor();
    if a.json {
        json(&report);
    } else {
        terminal::result(report.to_string().trim_end());
    }
    Ok(())
}

pub fn generate(a: &GenerateArgs) -> Result<()> {
    let settings = a.how.settings(Settings { logits: a.logits, states: a.states, ..Settings::PLAIN })?;
    let options = a.how.on.options();
    let (model, unit): (Box<dyn inference::Source>, _) = match hearing::of(EARS, &a.model) {
        Some(kind) => (Box::new(kind.open(&a.model)?), "tokens"),
        None => {
            let model = ModelDir::open(ALL, &a.model, OpenOptions::default())?;
            let unit = model.model.rows().unit;
            (Box::new(model), unit)
        }
    };
    let taken = generate::generate(&*model, &a.batch, &a.out, &settings, options)?;
    let Taken { planned_bytes, cache_bytes, seconds, rows } = taken;
    if a.json {
        json(&serde_json::json!({
            "planned_bytes": planned_bytes, "cache_bytes": cache_bytes, "seconds": seconds, "rows": rows,
            "measured_bytes": memory::process().ok().map(|p| p.peak_rss_bytes),
        }));
    } else {
        terminal::message(&format!(
            "{rows} {unit} in {}, {:.1} a second; planned {}",
            a.out.display(),
            rows as f64 / seconds,
            ByteSize(planned_bytes)
        ));
    }
    Ok(())
}
