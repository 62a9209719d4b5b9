//! The clips that a run trains on: prepared, or, for a plan, measured or assumed. All that families share of them is their
//! lengths.

mod assumed;

pub use assumed::Assume;

use crate::budget::{START_BYTES, THREAD_BYTES};
use crate::device::Device;
use ambitus_data::prepare::Lengths;
use ambitus_data::sources::{DataSet, Sets, split_described};
use ambitus_data::updates::{Drawn, Set, Updates};
use ambitus_data::{ClipIndex, DataError, INDEX_FILE, Prepared, Split, pack};
use ambitus_families::clips::{Clips, Use, VALIDATION_SEED};
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_families::prepare::{Job, Limit, Made, Preparer, What, cache_dir, no_data, sets};
use ambitus_models::Model;
use ambitus_recipe::recipe::{self, Recipe};
use assumed::Assumed;
use std::ops::Range;
use std::path::Path;

/// Clips that any update may have beyond what is usual.
const OF_ANY_UPDATE: u64 = 64;

/// The clips of a run.
pub struct Data {
    /// Rows of each clip.
    pub rows: Vec<u32>,
    /// Which are trained on.
    pub split: Split,
    /// The data sets that are mixed, in the order of their clips; none where there is one.
    pub sets: Vec<Mixed>,
    /// Most bytes of the process while they are prepared.
    pub prepare_bytes: u64,
    /// Other longest clips that could be allowed (`--max-seconds`), the longest first.
    pub limits: Vec<Limit>,
    digest: String,
    stays: Stays,
    kind: Kind,
}

/// One of several data sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// What it is called.
    pub name: String,
    /// Its clips among all.
    pub clips: Range<usize>,
    /// Its weight beside the others'.
    weight: f64,
}

/// The clips to train on, as updates are formed of them.
#[derive(Clone, Debug, Default)]
pub struct Trained {
    /// Rows of each.
    pub rows: Vec<u32>,
    weights: Vec<f32>,
    /// The data sets; none where there is one.
    pub sets: Vec<Set>,
}

impl Trained {
    /// Returns these clips.
    pub fn drawn(&self) -> Drawn<'_> {
        Drawn { frames: &self.rows, weights: &self.weights, sets: &self.sets }
    }
}

/// What a family's data takes besides the clips.
#[derive(Clone, Copy)]
struct Stays {
    /// Bytes that stay of what prepared it.
    preparer_bytes: u64,
    /// Times that a validation uses each clip.
    rounds: u32,
}

enum Kind {
    Prepared(Box<Prepared>),
    /// Those of prepared clips that a limit of length leaves.
    Shorter(Box<ClipIndex>),
    /// Nothing was prepared, and why: preparing would exceed the budget, or something that it needs is missing.
    Measured(Box<Lengths>, String),
    Assumed(Assumed),
}

/// Returns the preparing of a recipe's data on a device. `run`: for a run.
fn job<'a>(recipe: &'a Recipe, device: &Device, run: bool) -> Result<Job<'a>, RunError> {
    Ok(Job {
        recipe,
        run,
        threads: device.threads(),
        budget: device.prepare_budget(device.budget(recipe)?.0)?,
        on_card: device.is_card(),
        process_bytes: [START_BYTES, THREAD_BYTES],
    })
}

impl Data {
    /// Prepares the data of a recipe; measures it only where preparing does not fit the budget, as the plan then says.
    ///
    /// # Errors
    /// By file, as `ambitus-data` says, and a family for which nothing is prepared.
    pub fn prepare(
        recipe: &Recipe,
        model: &ModelDir,
        device: &Device,
        console: &mut dyn Console,
    ) -> Result<Data, RunError> {
        Self::read(recipe, model, (device, true), console)
    }

    /// Gets the data of a plan. It is prepared if everything that preparing needs is there, else measured; without data it is
    /// `assume`d. `named`: the command line names the data.
    ///
    /// # Errors
    /// As [`Data::prepare`], and what cannot be assumed.
    pub fn plan(
        recipe: &Recipe,
        model: &ModelDir,
        device: &Device,
        (assume, named): (Option<&Assume>, bool),
        console: &mut dyn Console,
    ) -> Result<Data, RunError> {
        let assumes = model.opened.assumes_clips();
        // The first that is not there, or any.
        let mut dirs = recipe.data.dirs();
        let first = recipe.data.dirs().find(|dir| !dir.exists()).or_else(|| dirs.next());
        let assumed = match (assume, first) {
            (Some(assume), _) => Assumed::named(assume, recipe, model)?,
            (None, None) if assumes => Assumed::as_allowed(recipe, &*model.model, None),
            (None, None) => return Err(no_data()),
            // A recipe is planned where its data is not.
            (None, Some(dir)) if assumes && !named && !dir.exists() => {
                Assumed::as_allowed(recipe, &*model.model, Some(dir))
            }
            (None, Some(_)) => return Self::read(recipe, model, (device, false), console),
        };
        let preparer = model.opened.preparer()?;
        let bytes = preparer.bound(&job(recipe, device, false)?, assumed.held_bytes())?;
        Ok(assumed.data(recipe, Stays::of(model, &*preparer), &*bytes))
    }

    /// Reads the clips of a recipe. `run`: a run needs them prepared.
    fn read(
        recipe: &Recipe,
        model: &ModelDir,
        (device, run): (&Device, bool),
        console: &mut dyn Console,
    ) -> Result<Data, RunError> {
        let preparer = model.opened.preparer()?;
        let Made { what, prepare_bytes, limits } = preparer.read(&job(recipe, device, run)?, console)?;
        let kind = match what {
            What::Clips(prepared) => Kind::Prepared(prepared),
            What::Lengths(lengths, why) => Kind::Measured(lengths, why),
        };
        let Some(index) = kind.index() else { return Err(no_data()) };
        let (rows, split) = (index.frames().to_vec(), split(index, recipe)?);
        let sets = mixed(index, &split, recipe)?;
        let mut digest = index.digest();
        if let recipe::Validation::File(_) = &recipe.data.validation {
            // The file may change, and which clips are trained on with it.
            digest += &format!(" without {}", split.digest());
        }
        if recipe.seed != VALIDATION_SEED {
            // Part of what a checkpoint must share with the run that resumes it, where the run's seed does not say it.
            digest += &format!(" validated with seed {VALIDATION_SEED}");
        }
        Ok(Data {
            rows,
            split,
            sets,
            prepare_bytes,
            limits,
            digest,
            stays: Stays::of(model, &*preparer),
            kind,
        })
    }

    /// Returns this data under another limit of length, to plan for.
    ///
    /// # Errors
    /// Too few clips are left, or one that is named is not; the index of what was prepared cannot be read again.
    pub fn up_to(&self, limit: &Limit, recipe: &Recipe, model: &dyn Model) -> Result<Data, RunError> {
        let up_to = |lengths: &Lengths| Box::new(lengths.up_to(limit.seconds));
        let kind = match &self.kind {
            Kind::Assumed(assumed) => return assumed.limited(limit, recipe, model, self.stays),
            Kind::Measured(lengths, why) => {
                Kind::Measured(Box::new(Lengths { index: *up_to(lengths), seconds: Vec::new() }), why.clone())
            }
            Kind::Prepared(_) | Kind::Shorter(_) => {
                Kind::Shorter(up_to(&Lengths::read(&cache_dir(recipe).join(INDEX_FILE))?))
            }
        };
        let index = kind.index().ok_or_else(no_data)?;
        let (rows, split) = (index.frames().to_vec(), split(index, recipe)?);
        let sets = mixed(index, &split, recipe)?;
        let (prepare_bytes, limits, digest) = (limit.prepare_bytes, Vec::new(), String::new());
        Ok(Data { rows, split, sets, prepare_bytes, limits, digest, stays: self.stays, kind })
    }

    /// Returns whether a limit of length leaves the clips that the recipe cannot do without: those that validation names, and the voice
    /// of samples that are asked for.
    pub fn leaves_named(&self, limit: &Limit, recipe: &Recipe, model: &dyn Model) -> bool {
        let Ok(left) = self.up_to(limit, recipe, model) else { return false };
        let (Some(recipe::Samples::Of(wanted)), Some(index)) = (&recipe.samples, left.kind.index()) else {
            return true;
        };
        let mut held_out = left.split.validation.iter().map(|&i| index.name(i));
        match &wanted.clip {
            Some(voice) => Path::new(voice).is_file() || held_out.any(|name| name.contains(&**voice)),
            None => self.split.validation.is_empty() || held_out.next().is_some(),
        }
    }

    /// Returns what stands in for clips, or for their lengths, and why; nothing if they are prepared.
    pub fn assumed(&self) -> Option<(String, String)> {
        match &self.kind {
            Kind::Assumed(assumed) => Some((assumed.said.clone(), assumed.why.clone())),
            Kind::Measured(lengths, why) => {
                Some((format!("{} clips by the length of their audio", lengths.index.len()), why.clone()))
            }
            Kind::Prepared(_) | Kind::Shorter(_) => None,
        }
    }

    /// Returns the clips to train on.
    pub fn trained(&self) -> Trained {
        let weights = self.kind.index().map_or(&[][..], ClipIndex::weights);
        let chosen = &self.split.train;
        Trained {
            rows: chosen.iter().map(|&i| self.rows[i]).collect(),
            weights: chosen.iter().filter_map(|&i| weights.get(i).copied()).collect(),
            sets: self
                .sets
                .iter()
                .map(|set| Set { clips: within(chosen, set).len(), weight: set.weight })
                .collect(),
        }
    }

    /// Returns the names of the data sets that have some of these clips, which ascend, and which of them.
    pub fn of_sets(&self, chosen: &[usize]) -> Vec<(String, Range<usize>)> {
        let of = |set: &Mixed| (set.name.clone(), within(chosen, set));
        self.sets.iter().map(of).filter(|(_, clips)| !clips.is_empty()).collect()
    }

    /// Returns the most rows of context of a clip; `None` where clips are assumed.
    pub fn context(&self) -> Option<u32> {
        self.kind.index().map(ClipIndex::context)
    }

    /// Returns the prepared clips, where they are not assumed.
    pub fn prepared(&self) -> Option<&Prepared> {
        match &self.kind {
            Kind::Prepared(prepared) => Some(prepared),
            Kind::Shorter(_) | Kind::Measured(..) | Kind::Assumed(_) => None,
        }
    }

    /// Returns the clips, prepared or measured; `None` if they are assumed.
    pub fn index(&self) -> Option<&ClipIndex> {
        self.kind.index()
    }

    /// Returns what was prepared, for people: the summary, and the first clips that are not used.
    pub fn describe(&self) -> Vec<String> {
        let Some(prepared) = self.prepared() else { return Vec::new() };
        let summary = prepared.summary.to_string();
        summary.lines().map(str::to_owned).chain(prepared.outcomes.describe()).collect()
    }

    /// Returns the bytes of data that a run holds while it trains, with updates of `update_rows` on `ranks` ranks of this process.
    /// Counted are what stays of the tokenizer, the index, lengths and split, and for each rank the sequence of updates, an update
    /// while it is packed, and the packed validation.
    pub fn run_bytes(&self, update_rows: u64, ranks: usize) -> u64 {
        let (n, train, held_out) = (self.rows.len(), self.split.train.len(), self.split.validation.len());
        let index = match &self.kind {
            Kind::Assumed(assumed) => assumed.index_bytes(),
            kind => kind.index().map_or(0, ClipIndex::bytes),
        };
        let all: u64 = self.rows.iter().map(|&rows| u64::from(rows)).sum();
        let weighted = self.kind.index().is_some_and(|index| !index.weights().is_empty());
        // Updates are nearly alike; some have more of the short clips.
        let of_update = match weighted || !self.sets.is_empty() {
            false => 2 * update_rows.saturating_mul(n as u64) / all.max(1),
            // All of them may be the shortest.
            true => update_rows / u64::from(self.rows.iter().copied().min().unwrap_or(1).max(1)),
        };
        let of_update = of_update + OF_ANY_UPDATE;
        let rounds = self.stays.rounds as usize;
        let chosen = 2 * size_of::<u32>();
        let packed = |uses: usize| pack::bytes_of(uses) + (uses * 2 * size_of::<Use>()) as u64;
        // All clips held out, and those of each set.
        let packings = if self.sets.is_empty() { 1 } else { 2 };
        let of_rank = Updates::bytes_of(train, weighted)
            + packed(of_update as usize)
            + packings * packed(rounds * held_out);
        // The split grows by doubling.
        self.stays.preparer_bytes
            + index
            + (n * (size_of::<u32>() + 2 * size_of::<usize>())) as u64
            + ranks as u64 * (of_rank + ((train + held_out) * chosen) as u64)
    }

    /// Changes with any clip's content or name, and with what is validated on them.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns those clips, as the loop reads them.
    ///
    /// # Errors
    /// Assumed clips cannot be read.
    pub fn clips(&self, model: &ModelDir, chosen: &[usize], seed: u64) -> Result<Box<dyn Clips>, RunError> {
        let prepared = self.prepared().ok_or_else(no_data)?;
        Ok(model.opened.clips(prepared.index.clone(), chosen, seed))
    }
}

impl Kind {
    fn index(&self) -> Option<&ClipIndex> {
        match self {
            Kind::Prepared(prepared) => Some(&prepared.index),
            Kind::Shorter(index) => Some(index),
            Kind::Measured(lengths, _) => Some(&lengths.index),
            Kind::Assumed(_) => None,
        }
    }
}

impl Stays {
    fn of(model: &ModelDir, preparer: &dyn Preparer) -> Stays {
        Stays { preparer_bytes: preparer.stays(), rounds: model.opened.rounds() }
    }
}

/// Returns which clips of a recipe are held out.
fn split(index: &ClipIndex, recipe: &Recipe) -> Result<Split, DataError> {
    match &recipe.data.validation {
        recipe::Validation::Names(names) => index.split(names),
        recipe::Validation::Share(share) => index.split_share(*share, VALIDATION_SEED),
        recipe::Validation::File(file) => {
            let sets = sets(recipe).map_err(|e| DataError::Invalid(e.to_string()))?;
            let beside = |set: &DataSet| {
                let data = &*set.path;
                let folder = if data.is_dir() { Some(data) } else { data.parent() };
                DataSet { path: folder.unwrap_or(data).join(file), ..set.clone() }
            };
            // Some of several may have none.
            let is_there = |set: &DataSet| sets.single().is_some() || set.path.exists();
            let files = sets.iter().map(beside).filter(is_there).collect();
            split_described(index, &Sets::new(files), &cache_dir(recipe))
        }
    }
}

/// Returns the data sets of a recipe that names several, in the order of their clips.
///
/// # Errors
/// One that nothing is trained of.
fn mixed(index: &ClipIndex, split: &Split, recipe: &Recipe) -> Result<Vec<Mixed>, DataError> {
    let of = |set: &recipe::DataSet| {
        let name = set.name();
        Mixed { clips: index.of_set(&name), name, weight: set.weight }
    };
    let mut sets: Vec<Mixed> = recipe.data.sets.iter().map(of).collect();
    sets.sort_by_key(|set| set.clips.start);
    match sets.iter().find(|set| within(&split.train, set).is_empty()) {
        Some(set) => Err(DataError::Packing(format!(
            "data set `{}`: none of its clips is left to train on: all are unusable, too long or held out; leave it out of data.sets, or \
             change data.max_seconds or data.validation",
            set.name
        ))),
        None => Ok(sets),
    }
}

/// Returns the places of a set's clips among ascending chosen ones.
fn within(chosen: &[usize], set: &Mixed) -> Range<usize> {
    let first = |clip: usize| chosen.partition_point(|i| *i < clip);
    first(set.clips.start)..first(set.clips.end)
}
