//! From a recipe to a planned run: opens the model, prepares the data, chooses sizes, plans, and refuses what does not fit.

use crate::budget::{MicroBatch, RunPlan, Shape, clip_rows, phase, require_planning};
use crate::data::Data;
use crate::device::Device;
use crate::error::RunError;
use crate::memory::Meter;
use crate::model_dir::{ModelDir, OpenOptions};
use crate::parts::Placement;
use crate::recipe::{self, DeviceChoice, Recipe, UpdateAt};
use crate::search::{self, Candidate, Free};
use crate::session::SessionOptions;
use crate::size::ByteSize;
use crate::variants;
use ambitus_compile::passes::Numerics;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_data::updates::{UpdateSize, Updates};
use ambitus_data::{Tokenizer, TokenizerKind};
use ambitus_models::f5::config::Variant;
use ambitus_models::{Capacity, Rows};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Micro-batch of a recipe that names none, in rows: F5-TTS's default.
const DEFAULT_MICRO_ROWS: u64 = 3200;
/// The most clips of a micro-batch of a recipe that names none: the reference trainer's `max_samples`.
const DEFAULT_MICRO_CLIPS: usize = 64;
/// Micro-batches below the usual one that a search tries, each half of the one before.
const MOST_HALVES: usize = 3;

/// Threads that prepare clips. One reads audio some hundred times faster than it plays, and the bound on preparing does not
/// grow with the machine.
pub(crate) const PREPARE_THREADS: usize = 1;

/// Where messages go. The library never prints.
pub trait Console: Send {
    /// A line that stays.
    fn line(&mut self, text: &str);
    /// A line that the next one replaces, where the terminal can.
    fn progress(&mut self, text: &str);
}

/// A value of the run and where it came from.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// Key of the recipe.
    pub key: &'static str,
    /// The value.
    pub value: String,
    /// `recipe.yaml:3:1`, `default`, `data`, `machine`, ...
    pub from: String,
}

/// Everything that a run does, decided.
pub struct Resolved {
    /// The recipe with every choice filled in.
    pub recipe: Recipe,
    /// The values that the recipe did not fix, and where they came from.
    pub choices: Vec<Choice>,
    /// The model.
    pub model: ModelDir,
    /// The clips.
    pub data: Data,
    /// Size of an update.
    pub size: UpdateSize,
    /// Updates of the run.
    pub updates: u64,
    /// Threads.
    pub threads: usize,
    /// Budget in bytes.
    pub budget: u64,
    /// Budget of the host's memory in bytes; `None` where nothing is offloaded to it, or the host is not known.
    pub host_budget: Option<u64>,
    /// Longest clip, rows.
    pub longest: usize,
    /// The plan.
    pub plan: RunPlan,
    /// What the search tried.
    pub candidates: Vec<Candidate>,
    /// How long it took.
    pub search_seconds: f64,
    /// What was asked for.
    pub asked: Asked,
    /// Where it computes.
    pub device: Device,
    /// What this process held so far.
    pub meter: Meter,
}

/// Where prepared clips are kept.
pub fn cache_dir(recipe: &Recipe) -> PathBuf {
    recipe.data.cache.clone().unwrap_or_else(|| PathBuf::from("runs").join("cache"))
}

/// Prepares the data of a recipe and nothing else. Needs no weights.
///
/// # Errors
/// By file, as the modules say.
pub fn prepare(recipe: &Recipe, device: &Device, console: &mut dyn Console) -> Result<Data, RunError> {
    let (model, tokenizer) = open_model(recipe, false)?;
    Data::prepare(recipe, &model, tokenizer.as_ref(), device, console)
}

/// Opens the model and prepares the data of a recipe. Needs no weights, and drops the tokenizer with its dictionary.
///
/// # Errors
/// By file, as the modules say.
fn open_and_prepare(
    recipe: &mut Recipe,
    device: &Device,
    read_weights: bool,
    console: &mut dyn Console,
) -> Result<(ModelDir, Data), RunError> {
    let (model, tokenizer) = open_model(recipe, read_weights)?;
    recipe.settle(&model.model);
    // A plan needs lengths; token clips take a codec's weights to make.
    let data = match tokenizer.is_none() && !read_weights {
        true => Data::assume(recipe, &model),
        false => Data::prepare(recipe, &model, tokenizer.as_ref(), device, console)?,
    };
    Ok((model, data))
}

fn open_model(recipe: &Recipe, read_weights: bool) -> Result<(ModelDir, Option<Tokenizer>), RunError> {
    let options = OpenOptions {
        variant: recipe.model.variant.map(|v| match v {
            recipe::Variant::V0 => Variant::V0,
            recipe::Variant::V1 => Variant::V1,
        }),
        from_scratch: recipe.model.from_scratch || !read_weights,
        extend_vocab: recipe.model.extend_vocab,
        dropout: recipe.dropout.map(|p| p as f32),
        tokenizer: recipe.data.tokenizer.map(|t| match t {
            recipe::Tokenizer::Pinyin => TokenizerKind::Pinyin,
            recipe::Tokenizer::Char => TokenizerKind::Char,
            recipe::Tokenizer::Byte => TokenizerKind::Byte,
            recipe::Tokenizer::Custom => TokenizerKind::Custom,
        }),
    };
    ModelDir::open(&recipe.model.dir, options)
}

/// The budget and where it comes from.
pub(crate) fn budget(recipe: &Recipe, device: &Device) -> Result<(u64, String), RunError> {
    match recipe.memory {
        Some(ByteSize(n)) => Ok((n, "recipe".to_owned())),
        None => device.default_budget(),
    }
}

/// Compute threads of a recipe, and where the number comes from.
pub fn threads(recipe: &Recipe) -> (usize, &'static str) {
    match recipe.threads {
        Some(n) => (n.max(1) as usize, "recipe"),
        None => (std::thread::available_parallelism().map_or(1, usize::from), "all cores"),
    }
}

/// Compute threads of each of a recipe's ranks, where all of them are in one process.
pub fn threads_of_rank(recipe: &Recipe) -> usize {
    (threads(recipe).0 / recipe.ranks() as usize).max(1)
}

/// Resolves a recipe, for ranks in this process where it has several. With `read_weights` false the weights are not even indexed: planning works without them.
///
/// # Errors
/// By file and key. Does not check the budget: see [`Resolved::require_fit`].
pub fn resolve(recipe: Recipe, read_weights: bool, console: &mut dyn Console) -> Result<Resolved, RunError> {
    let device = Device::find(recipe.device, threads_of_rank(&recipe))?.with_ranks(recipe.ranks() as usize);
    resolve_on(recipe, device, read_weights, console)
}

/// As [`resolve`], on a device that was chosen beside the recipe.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_on(
    recipe: Recipe,
    device: Device,
    read_weights: bool,
    console: &mut dyn Console,
) -> Result<Resolved, RunError> {
    let mut recipe = recipe;
    if read_weights && recipe.ranks() > 1 {
        device.require_engine()?;
    }
    let sharding = recipe.shared().map_err(RunError::Usage)?;
    // Ranks that take turns at the micro-batches.
    let ranks = if recipe.is_placed() { 1 } else { recipe.ranks() as usize };
    let mut choices = Vec::new();
    let mut choose = |key, value: String, from: &str| {
        choices.push(Choice { key, value, from: from.to_owned() });
    };
    let (threads, from) = threads(&recipe);
    choose("threads", threads.to_string(), from);
    let from = match recipe.device {
        _ if device.is_listed() => "cards.toml",
        choice if choice == DeviceChoice::default() => "default",
        _ => "recipe",
    };
    choose("device", device.name(), from);
    device.require(precision(recipe.precision.unwrap_or_default()))?;
    let mut meter = Meter::start();
    let (model, data) = open_and_prepare(&mut recipe, &device, read_weights, console)?;
    meter.ended(phase::PREPARE);
    let Rows { unit, per_second, most } = model.model.rows();
    if let Some(assumed) = data.assumed(unit) {
        choose("data", assumed, "assumed: the plan has no prepared data");
    }
    let all = &data.rows;
    let longest = all.iter().copied().max().unwrap_or(1) as usize;
    if let Some(most) = most.filter(|most| longest > *most) {
        return Err(RunError::Usage(format!(
            "a clip has {longest} {unit}; the model's text positions end at {most} ({:.0} s): lower data.max_seconds",
            most as f64 / per_second
        )));
    }
    let rows: Vec<u32> = data.split.train.iter().map(|&i| all[i]).collect();
    let size = match recipe.batch.unwrap_or(recipe::Batch::Clips(1)) {
        recipe::Batch::Clips(n) => UpdateSize::Clips(n as usize),
        recipe::Batch::Frames(n) => UpdateSize::Frames(n),
        recipe::Batch::Seconds(s) => UpdateSize::Frames((s * per_second).round().max(1.0) as u64),
    };
    let schedule = Updates::new(&rows, size, recipe.seed)?;
    let target_rows = schedule.target_frames().max(longest as u64);

    let updates = match recipe.length() {
        recipe::Length::Updates(n) => n,
        recipe::Length::Epochs(e) => schedule.per_epochs(e),
    };
    let in_backward = recipe.update == UpdateAt::Backward;
    let largest = if in_backward { Some(schedule.largest(updates)?) } else { None };
    // The largest micro-batch asked for, cut down to what its share of the update needs.
    let asked = match recipe.micro_batch.frames {
        Some(n) => n,
        None => match largest {
            Some((rows, _)) => rows.max(longest as u64),
            None => DEFAULT_MICRO_ROWS.max(longest as u64),
        },
    };
    if (longest as u64) > asked {
        return Err(RunError::Usage(format!(
            "the longest clip has {longest} {unit} ({:.1} s), more than the micro-batch of {asked}: raise micro_batch, or lower data.max_seconds",
            longest as f64 / per_second
        )));
    }
    let shortest = rows.iter().copied().min().unwrap_or(1).max(1) as usize;
    let capacity_of = |asked: u64| -> Result<MicroBatch, RunError> {
        let clips = match recipe.micro_batch.clips {
            Some(n) => n as usize,
            None => (asked as usize).div_ceil(shortest).clamp(2, DEFAULT_MICRO_CLIPS),
        };
        // At least the longest clip: validation clips go through the same capacity.
        let rows = schedule.micro_batch(asked as u32, clips)?.max(longest as u32) as usize;
        let capacity = Capacity { rows, clips };
        let count = schedule.micro_batches(ambitus_data::pack::Capacity { frames: rows as u32, clips })?;
        Ok(MicroBatch { asked, capacity, count: (count.round() as usize).max(1) })
    };
    let mut micro_batches = match largest {
        Some(largest) => {
            let capacity = whole_update(&recipe, unit, asked, largest, longest)?;
            vec![MicroBatch { asked, capacity, count: 1 }]
        }
        None => vec![capacity_of(asked)?],
    };
    let capacity = micro_batches[0].capacity;
    if largest.is_none() {
        // Others that the search may take or name: the whole update, and halves down to the longest clip.
        let whole =
            Some(target_rows.div_ceil(ranks as u64)).filter(|n| *n > asked && *n <= u64::from(u32::MAX));
        let half = |n: &u64| Some(n / 2).filter(|n| *n > longest as u64);
        let halves = std::iter::successors(half(&(capacity.rows as u64)), half).take(MOST_HALVES);
        let least = Some(longest as u64).filter(|n| *n < capacity.rows as u64);
        let others: Vec<u64> = whole.into_iter().chain(halves).chain(least).collect();
        micro_batches.extend(search::side_by_side(&others, |rows| capacity_of(*rows))?);
    }
    choose("updates", updates.to_string(), if recipe.updates.is_some() { "recipe" } else { "data" });
    if recipe.warmup.is_none() {
        recipe.warmup = Some(crate::schedule::default_warmup(updates));
        choose("warmup", recipe.warmup.unwrap_or(0).to_string(), "min(100, 5 % of the updates)");
    }
    let (budget, from) = budget(&recipe, &device)?;
    choose("memory", ByteSize(budget).to_string(), &from);
    let longest_sampled = data.split.validation.first().map_or(0, |&i| all[i] as usize);
    let sample_rows = recipe.sample.is_some().then_some(longest_sampled).filter(|n| *n > 0);
    let shape = Shape {
        model: model.model.clone(),
        session: SessionOptions {
            capacity,
            checkpoint: recipe.checkpoint.as_ref().map_or(Blocks::None, |c| c.0.clone()),
            precision: precision(recipe.precision.unwrap_or_default()),
            trained: recipe.trained(),
            optimizer: Some(recipe.adamw()),
            clip_per_tensor: recipe.clip_per_tensor,
            update_in_backward: in_backward,
            offload: recipe.offloaded().pass(),
            sharding,
            placement: Placement::of(&recipe, device.beside(), budget),
            ema: recipe.ema(),
            evaluate: !data.split.validation.is_empty(),
            sample: sample_rows.map(|n| Capacity { rows: 2 * n, clips: 2 }),
        },
        beside: device.beside(),
        update_rows: target_rows as usize,
        clip_rows: clip_rows(rows.iter().map(|n| f64::from(*n))),
        micro_batches: micro_batches[0].count,
        prepare_bytes: data.prepare_bytes,
        planned_at_once: search::PLANNED_AT_ONCE[0],
        data_bytes: data.run_bytes(target_rows, device.beside().ranks),
    };
    if device.is_card() && recipe.offloaded().disk.is_some() {
        return Err(RunError::Usage(
            "offload.disk: a card copies from and to page-locked memory, never a file: leave it out, or use --device cpu"
                .to_owned(),
        ));
    }
    require_planning(&shape, budget)?;
    let mut shape = shape;
    if recipe.micro_batch.max && largest.is_none() {
        let least = Capacity { rows: longest, ..capacity };
        // Where nothing fits, the longest clip alone is refused with what would.
        let most = search::most_rows(&shape.with_capacity(least), usize::MAX, budget, device.target())?;
        micro_batches = vec![capacity_of(most.unwrap_or(longest) as u64)?];
        shape = shape.with_capacity(micro_batches[0].capacity);
    }
    recipe.micro_batch.max = false;
    let mut asked = Asked { recipe: recipe.clone(), shape, micro_batches };
    let open = asked.open(&device);
    asked.shape.planned_at_once = open.planned_at_once();
    let began = Instant::now();
    let found = search::search(&asked.shape, &open, budget, device.target())?;
    let search_seconds = began.elapsed().as_secs_f64();
    let taken = found.variant.clone().unwrap_or_default();
    taken.to_recipe(&mut recipe);
    let given = &asked.recipe;
    let from = |given: bool, searched: bool| match (given, searched) {
        (true, _) => "recipe",
        (_, true) => "the search",
        _ => "default",
    };
    let Capacity { rows, clips } = found.plan.shape.session.capacity;
    let checkpoint = found.plan.shape.session.checkpoint.clone();
    let (precise, offload) = (recipe.precision.unwrap_or_default(), recipe.offloaded());
    let optimizer = recipe.optimizer.unwrap_or_default();
    for (key, value, from) in [
        (
            "micro_batch",
            format!("{rows} {unit}, {clips} clips"),
            from(given.micro_batch.frames.is_some(), true),
        ),
        ("checkpoint", checkpoint.to_string(), from(given.checkpoint.is_some(), true)),
        ("precision", precise.to_string(), from(given.precision.is_some(), taken.precision.is_some())),
        ("optimizer", optimizer.to_string(), from(given.optimizer.is_some(), taken.optimizer.is_some())),
        ("offload", offload.to_string(), from(given.offload.is_some(), taken.offload.is_some())),
    ] {
        choose(key, value, from);
    }
    recipe.micro_batch.frames = Some(found.asked);
    recipe.checkpoint = Some(recipe::Checkpoint(checkpoint));
    recipe.precision = Some(precise);
    recipe.optimizer = Some(optimizer);
    recipe.offload = Some(offload.clone());
    if offload.is_empty() {
        // It bounds nothing; a recipe that is read again must not name it.
        recipe.host_memory = None;
    }
    let host_budget = match recipe.host_memory {
        _ if offload.pass().is_none() || offload.disk.is_some() => None,
        Some(ByteSize(n)) => Some((n, "recipe".to_owned())),
        None => device.default_host_budget(found.plan.peak_bytes)?,
    };
    if let Some((bytes, from)) = &host_budget {
        choose("host_memory", ByteSize(*bytes).to_string(), from);
    }
    let host_budget = host_budget.map(|(bytes, _)| bytes);
    Ok(Resolved {
        recipe,
        choices,
        model,
        data,
        size,
        updates,
        threads,
        budget,
        host_budget,
        longest,
        plan: found.plan,
        candidates: found.candidates,
        search_seconds,
        asked,
        device,
        meter,
    })
}

/// A recipe before the search.
#[derive(Clone, Debug)]
pub struct Asked {
    /// As it is given.
    pub recipe: Recipe,
    /// Its options, and the usual ones for what it leaves open.
    pub shape: Shape,
    /// Micro-batches that may be taken, the usual one first.
    micro_batches: Vec<MicroBatch>,
}

impl Asked {
    /// What the recipe leaves open on a device.
    pub fn open(&self, device: &Device) -> Free {
        let level = Numerics::from(self.recipe.numerics);
        let mut free = Free { checkpoint: self.recipe.checkpoint.is_none(), ..self.every(device) };
        let given = self.recipe.micro_batch.frames.is_some() || self.micro_batches.len() == 1;
        if given || level < Numerics::Reordered {
            free.micro_batches.truncate(1);
        }
        free.variants.retain(|v| v.numerics <= level && v.is_open());
        free
    }

    /// What could be changed on a device, whatever the recipe says.
    pub fn every(&self, device: &Device) -> Free {
        let variants = variants::every(&self.recipe, device);
        let on_disk = self.recipe.offload.as_ref().is_some_and(|o| o.disk.is_some());
        let host_room =
            if on_disk { u64::MAX } else { device.host_room(self.recipe.host_memory, &self.shape) };
        Free { checkpoint: true, micro_batches: self.micro_batches.clone(), variants, host_room }
    }
}

/// The micro-batch of an update in backward: it holds the largest update (`most`: its rows, its clips).
fn whole_update(
    recipe: &Recipe,
    unit: &str,
    asked: u64,
    most: (u64, usize),
    longest: usize,
) -> Result<Capacity, RunError> {
    let (rows, clips) = (most.0.max(longest as u64), most.1);
    let given = recipe.micro_batch.clips.map_or(clips, |n| n as usize);
    if asked < most.0 || given < clips {
        return Err(RunError::Usage(format!(
            "update: backward (--update-in-backward) applies gradients as they are made, so an update must be one \
             micro-batch; the largest update of this run has {rows} {unit} in {clips} clips, the micro-batch holds \
             {asked} {unit} and {given} clips: set micro_batch: {{{unit}: {rows}, clips: {clips}}} (--micro-batch \
             {rows}) or leave it out, or make the update smaller (batch: {{{unit}: {asked}}}), or set update: end"
        )));
    }
    Ok(Capacity { rows: rows as usize, clips: given })
}

/// What `--precision` means to the compiler.
pub fn precision(precision: recipe::Precision) -> Precision {
    match precision {
        recipe::Precision::Fp32 => Precision::Fp32,
        recipe::Precision::Bf16Mixed => Precision::Bf16Mixed,
        recipe::Precision::Fp16Mixed => Precision::Fp16Mixed,
        recipe::Precision::Bf16Pure => Precision::Bf16Pure,
    }
}

impl Resolved {
    /// Refuses when the plan exceeds the budget. Call before any weight is read.
    ///
    /// # Errors
    /// [`RunError::DoesNotFit`] with the cheapest changes that fit.
    pub fn require_fit(&self) -> Result<(), RunError> {
        let every = self.asked.every(&self.device);
        search::require(&self.plan, &self.asked.shape, &every, self.budget, self.device.target())?;
        self.require_host()?;
        self.device.require_free(self.plan.peak_bytes)
    }

    /// Plans the same run in fp32, for when fp16 cannot go on, and says so.
    ///
    /// # Errors
    /// [`RunError::Training`] where that does not fit.
    pub fn in_fp32(&mut self) -> Result<String, RunError> {
        let mut shape = self.plan.shape.clone();
        shape.session.precision = Precision::Fp32;
        let plan = RunPlan::new(shape, self.device.target())?;
        let why = "the loss scale fell below 1: numbers of this run overflow fp16 at any scale";
        if plan.peak_bytes > self.budget {
            return Err(RunError::Training(format!(
                "{why}; in fp32 it would need {} of {}, so it ends here, saved. Set precision: bf16-mixed \
                 (--precision bf16-mixed) where the device has it, or precision: fp32 with a smaller micro_batch, \
                 checkpoint: all or more memory, in a new run",
                ByteSize(plan.peak_bytes),
                ByteSize(self.budget)
            )));
        }
        self.plan = plan;
        let peak = ByteSize(self.plan.peak_bytes);
        Ok(format!("{why}; it goes on in fp32 (peak {peak} of {})", ByteSize(self.budget)))
    }
}
