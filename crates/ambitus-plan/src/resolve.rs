//! From a recipe to a planned run: opens the model, prepares the data, plans, and refuses what does not fit.

use crate::asked::Asked;
use crate::budget::phase;
use crate::data::{Assume, Data};
use crate::device::Device;
use crate::heard;
use crate::memory::{self, Meter};
use crate::resolved::{Choice, Resolved};
use crate::samples::{self, Decided};
use crate::search::Search;
use crate::sizes::Sizes;
use ambitus_families::Families;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_models::Capacity;
use ambitus_recipe::rates::LearningRate;
use ambitus_recipe::recipe::{DeviceChoice, OptimizerChoice, Origins, Recipe, Settled};
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
    recipe: Recipe,
    device: &Device,
    (purpose, origins): (Purpose<'_>, &Origins),
    console: &mut dyn Console,
) -> Result<(Settled, ModelDir, Data), RunError> {
    let mut model = open_model(families, &recipe, matches!(purpose, Purpose::Run))?;
    let recipe = recipe.settled(&model.defaults());
    // The code of the command line, of recipes and of models' files: 8 MiB of pages.
    memory::return_freed();
    let players: Vec<&str> = model.model.players().iter().map(|p| p.name).collect();
    let valid = recipe.validate_players(&players).and_then(|()| recipe.validate());
    valid.map_err(|bad| RunError::Usage(format!("{}: {}", bad.key, bad.why)))?;
    let data = match purpose {
        Purpose::Run | Purpose::Later => Data::prepare(&recipe, &model, device, console),
        Purpose::Plan(assume) => {
            let how = (assume, origins.is_option("data.dir"));
            Data::plan(&recipe, &model, device, how, console)
        }
    };
    let data = data.map_err(|e| beside(recipe.data.dirs().find(|dir| !dir.exists()), e))?;
    if let Some(fitted) = data.context().and_then(|rows| model.model.with_context(rows as usize)) {
        model.model = fitted;
    }
    Ok((recipe, model, data))
}

/// Adds the working directory to an error that may be about a missing relative path.
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

/// Returns the number of compute threads of a recipe.
pub fn threads(recipe: &Recipe) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    recipe.threads.map_or_else(all, |n| n.max(1) as usize)
}

/// Returns the number of compute threads of each of a recipe's ranks, if all of them are in one process.
pub fn threads_of_rank(recipe: &Recipe) -> usize {
    (threads(recipe) / recipe.ranks() as usize).max(1)
}

/// Resolves a recipe, for ranks in this process where it has several. `origins`: who said its values.
///
/// # Errors
/// By file and key. Does not check the budget: see [`require_fit`](crate::refusal::require_fit).
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

/// Resolves a recipe on a device that was chosen outside it. See [`resolve`].
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
    let given = recipe;
    if matches!(purpose, Purpose::Run) && given.ranks() > 1 {
        device.require_engine()?;
    }
    let mut choices = Choices { origins, all: Vec::new() };
    let threads = threads(&given);
    choices.of_machine(&given, &device, threads);
    // Before any file is opened.
    let device = device.computing_in(given.precision.unwrap_or_default())?;
    heard::require(given.samples.as_ref())?;
    let mut meter = Meter::start();
    let (mut settled, model, data) =
        open_and_prepare(families, given.clone(), &device, (purpose, origins), console)?;
    let mut sizes = Sizes::of(&settled, &*model.model, &data)?;
    let updates = sizes.updates;
    let by_length = settled.warmup.is_none();
    let warmup = settled.settle_warmup(updates);
    let per_update = data.split.train.len() as f64 / sizes.per_epoch();
    let batches = (per_update, model.defaults().clips as f64);
    choices.of_length(&given, (&settled, warmup), &data, (updates, batches), by_length);
    let (budget, made) = device.budget(&settled)?;
    choices.add("memory", ByteSize(budget).to_string(), settled.memory.is_some(), &made);
    let spoken =
        samples::Run { recipe: &settled, model: &model, data: &data, device: &device, updates, budget };
    let ready = spoken.read()?;
    if let Ok(ready) = &ready {
        sizes.spoken = ready.bytes();
    }
    // Planning begins without what reading has left with the allocator, and without its code.
    memory::return_freed();
    meter.ended(phase::PREPARE);
    let mut asked = Asked::new(&settled, &model, &sizes, &device, budget)?;
    let began = Instant::now();
    let mut found = asked.search(&device, budget)?;
    let search_seconds = began.elapsed().as_secs_f64();
    let decided = ready.map_or_else(Ok, |ready| spoken.decide(ready, &mut asked, &mut found))?;
    let Decided { samples, settled: of_samples, said: [said, why] } = decided;
    let mut recipe = asked.settled(&found);
    choices.of_search(&asked.recipe, &recipe, &found);
    choices.add("samples", said, why.is_empty(), &why);
    recipe.samples = of_samples.or(recipe.samples);
    let host_budget = host_budget(&recipe, &device, found.plan.peak_bytes, origins)?;
    if let Some((bytes, from)) = &host_budget {
        choices.add("host_memory", ByteSize(*bytes).to_string(), false, from);
    }
    let (players, per_epoch) = (model.model.players().iter(), sizes.per_epoch());
    let rate = |name| LearningRate::of(&settled, name, (warmup, updates), per_epoch);
    Ok(Resolved {
        rates: players.map(|p| rate(p.name)).collect(),
        recipe,
        origins: origins.clone(),
        choices: choices.all,
        model,
        data,
        size: sizes.size,
        updates,
        threads,
        budget,
        host_budget: host_budget.map(|(bytes, _)| bytes),
        longest: sizes.longest,
        plan: found.plan,
        candidates: found.candidates,
        search_seconds,
        asked,
        samples,
        device,
        resumed: false,
        meter,
    })
}

/// Returns the budget of the host's memory, and who says it; `None` if nothing is offloaded to memory.
fn host_budget(
    recipe: &Recipe,
    device: &Device,
    peak_bytes: u64,
    origins: &Origins,
) -> Result<Option<(u64, String)>, RunError> {
    let offload = recipe.offloaded();
    match recipe.host_memory {
        _ if offload.pass().is_none() || offload.disk.is_some() => Ok(None),
        Some(ByteSize(n)) => Ok(Some((n, origins.of("host_memory")))),
        None => device.default_host_budget(peak_bytes),
    }
}

/// Returns what a family's usual rate would be for an update that has clips of another number than its usual one, where they are far
/// apart: with Adam, and with Lion, by the square root (Malladi et al. 2022). In how many micro-batches an update is computed changes
/// nothing.
fn for_batch(rate: f64, (clips, usual): (f64, f64)) -> String {
    let times = clips / usual;
    if !times.is_finite() || (0.25..=4.0).contains(&times) {
        return String::new();
    }
    format!(
        ", for updates of {usual} clips; those of {clips:.0} may want {:.0e}: `ambitus tune` tries it",
        rate * times.sqrt()
    )
}

/// Values that decide the plan, as they become known.
struct Choices<'a> {
    origins: &'a Origins,
    all: Vec<Choice>,
}

impl Choices<'_> {
    /// Adds a value with its origin: what set its key if it was `said`, else what it was `made` from.
    fn add(&mut self, key: &'static str, value: String, said: bool, made: &str) {
        let from = if said { self.origins.of(key) } else { made.to_owned() };
        self.all.push(Choice { key, value, from });
    }

    /// Adds what is known before a file is opened.
    fn of_machine(&mut self, given: &Recipe, device: &Device, threads: usize) {
        self.add("threads", threads.to_string(), given.threads.is_some(), "all cores");
        let said = given.device != DeviceChoice::default() || self.origins.is_option("device");
        match device.is_listed() {
            true => self.add("device", device.name(), false, "cards.toml"),
            false => self.add("device", device.name(), said, "default"),
        }
    }

    /// Adds what follows from the data and the family. `batches`: clips of an update, and of the family's usual one. `by_length`: so
    /// does the warm-up.
    fn of_length(
        &mut self,
        given: &Recipe,
        (recipe, warmup): (&Settled, u64),
        data: &Data,
        (updates, batches): (u64, (f64, f64)),
        by_length: bool,
    ) {
        if let Some((assumed, why)) = data.assumed() {
            self.add("data", assumed, false, &why);
        }
        let of_data = format!("{}, and the data", self.origins.of("epochs"));
        match recipe.epochs {
            Some(_) => self.add("updates", updates.to_string(), false, &of_data),
            None => self.add("updates", updates.to_string(), recipe.updates.is_some(), "default"),
        }
        let rate = recipe.learning_rate;
        let lion = recipe.optimizer.is_some_and(OptimizerChoice::is_lion);
        let usual = match (recipe.lora.is_some(), lion) {
            (true, false) => "default, of adapters",
            (true, true) => "default, of adapters with Lion",
            (false, true) => "a fifth of the default, with Lion",
            (false, false) => "default",
        };
        let usual = usual.to_owned() + &for_batch(rate, batches);
        self.add("learning_rate", format!("{rate:e}"), given.learning_rate.is_some(), &usual);
        let usual = if by_length { "min(100, 5 % of the updates)" } else { "default" };
        self.add("warmup", warmup.to_string(), given.warmup.is_some(), usual);
        self.add("schedule", recipe.schedule.to_string(), given.schedule.is_some(), "default");
    }

    /// Adds what the search was asked, and what it chose. `given`: before it; `recipe`: after it.
    fn of_search(&mut self, given: &Recipe, recipe: &Recipe, found: &Search) {
        const SEARCH: &str = "the search";
        let taken = &found.taken;
        let session = &found.plan.shape.session;
        let Capacity { rows, clips } = session.capacity;
        let unit = found.plan.shape.model.rows().unit;
        let size = given.micro_batch.frames;
        let sized = size.is_some() || given.micro_batch.max;
        let clips = format!("{rows} {unit}, {clips} clip{}", if clips == 1 { "" } else { "s" });
        self.add("micro_batch", clips, sized, SEARCH);
        if let (Some(n), Some(last)) = (size.filter(|n| *n > rows as u64), self.all.last_mut()) {
            last.from += &format!(", {n} cut to what updates fill");
        }
        self.add("checkpoint", session.checkpoint.to_string(), given.checkpoint.is_some(), SEARCH);
        let by = |searched: bool| if searched { SEARCH } else { "default" };
        let precision = recipe.precision.unwrap_or_default().to_string();
        self.add("precision", precision, given.precision.is_some(), by(taken.precision.is_some()));
        let optimizer = recipe.optimizer.unwrap_or_default().to_string();
        self.add("optimizer", optimizer, given.optimizer.is_some(), by(taken.optimizer.is_some()));
        if taken.in_backward {
            self.add("update", "backward, with clip_per_tensor".to_owned(), false, SEARCH);
        }
        let offload = recipe.offloaded().to_string();
        self.add("offload", offload, given.offload.is_some(), by(taken.offload.is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::for_batch;

    #[test]
    fn another_batch_is_told_its_rate() {
        assert_eq!(for_batch(1e-5, (8.0, 8.0)) + &for_batch(1e-5, (3.0, 8.0)), "");
        assert!(for_batch(1e-5, (128.0, 8.0)).contains("those of 128 may want 4e-5"));
        assert!(
            for_batch(1e-4, (1.0, 16.0)).contains("those of 1 may want 3e-5"),
            "{}",
            for_batch(1e-4, (1.0, 16.0))
        );
        assert_eq!(for_batch(1e-5, (f64::NAN, 8.0)), "");
    }
}
