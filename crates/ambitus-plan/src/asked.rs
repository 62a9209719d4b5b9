//! A recipe before the search: the shape of its run, and what it leaves open.

use crate::budget::{
    MicroBatch, PLANNED_AT_ONCE, REFUSAL_BYTES, SEARCH_BYTES, Shape, is_long, is_long_within,
    require_planning,
};
use crate::change::Change;
use crate::device::Device;
use crate::placement::Placement;
use crate::precision;
use crate::search::{self, Candidate, Choice, Chosen, Free, HostRoom, Known, Search, Stems};
use crate::sizes::Sizes;
use crate::variants;
use ambitus_compile::passes::Numerics;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_models::{Capacity, Model};
use ambitus_recipe::recipe::{self, Defaults, Offload, OptimizerChoice, Recipe, Settled, UpdateAt};
use std::sync::Arc;

/// Budgets above the least peak that are tried for one with which a plan is found, a thousandth apart.
const MORE: usize = 100;

/// A recipe before the search.
#[derive(Clone)]
pub struct Asked {
    /// The recipe as given.
    pub recipe: Settled,
    /// What keys mean that the recipe leaves out.
    pub defaults: Defaults,
    /// The run's shape: the recipe's options, and the usual ones for what it leaves open.
    pub shape: Shape,
    /// Micro-batches that may be taken, the usual one first.
    pub micro_batches: Vec<MicroBatch>,
    /// Little is tried: the model is long, or looking further would take more memory than the budget (see [`is_long_within`]).
    pub is_long: bool,
    sizes: Sizes,
}

impl Asked {
    /// Returns what a settled recipe asks of a device with a budget for its memory.
    ///
    /// # Errors
    /// What a device or a model cannot do, by key.
    pub fn of(
        recipe: &Settled,
        (model, defaults): (&Arc<dyn Model>, &Defaults),
        sizes: &Sizes,
        device: &Device,
    ) -> Result<Asked, RunError> {
        let offloaded = recipe.offloaded();
        if device.is_card() && offloaded.disk.is_some() {
            return Err(RunError::Usage(
                "offload.disk: a GPU copies from and to page-locked memory, never a file: leave it out, or use --device cpu"
                    .to_owned(),
            ));
        }
        let compute = precision::of(recipe, &**model, device);
        device.require(compute)?;
        let usual = sizes.micro_batches[0];
        let shape = Shape {
            model: model.clone(),
            session: crate::session::SessionOptions {
                capacity: usual.capacity,
                checkpoint: recipe.checkpoint.as_ref().map_or(Blocks::None, |c| c.0.clone()),
                precision: compute,
                trained: recipe.trained(),
                optimizer: Some(recipe.optimizer(model.players().iter().map(|p| (p.name, p.trains)))),
                clip_per_tensor: recipe.clip_per_tensor,
                update_in_backward: recipe.update == UpdateAt::Backward,
                // Set with the micro-batch, below.
                whole_updates: false,
                offload: offloaded.pass(),
                sharding: recipe.shared().map_err(RunError::Usage)?,
                placement: None,
                ema: recipe.ema.is_kept(),
                evaluate: sizes.evaluate,
                sample: sizes.sampled.map(|n| Capacity { rows: 2 * n, clips: 2 }),
                speech: None,
            },
            beside: device.beside(),
            update_rows: sizes.update_rows,
            clip_rows: sizes.clip_rows,
            micro_batches: usual.count,
            prepare_bytes: sizes.prepare_bytes,
            spoken: sizes.spoken,
            planned_at_once: PLANNED_AT_ONCE[0],
            looked_at_bytes: 0,
            data_bytes: sizes.data_bytes(device.beside().ranks),
        };
        let shape = shape.with(&usual);
        let micro_batches = sizes.micro_batches.clone();
        let is_long = is_long(&shape);
        let (recipe, defaults) = (recipe.clone(), defaults.clone());
        let mut asked = Asked { recipe, defaults, shape, micro_batches, is_long, sizes: sizes.clone() };
        asked.shape.planned_at_once = asked.open(device).planned_at_once();
        Ok(asked)
    }

    /// Returns what another recipe asks for of the same model, with what speaks here. See [`Asked::of`].
    ///
    /// # Errors
    /// As [`Asked::of`].
    pub fn with_recipe(&self, recipe: &Settled, sizes: &Sizes, device: &Device) -> Result<Asked, RunError> {
        let mut asked = Asked::of(recipe, (&self.shape.model, &self.defaults), sizes, device)?;
        asked.shape.session.speech = self.shape.session.speech.clone();
        asked.shape.spoken = self.shape.spoken;
        Ok(asked)
    }

    /// Asks for a settled recipe on its device (see [`Asked::of`]), if the model can be planned within the budget.
    ///
    /// # Errors
    /// As [`Asked::of`]; [`RunError::DoesNotFit`]; from planning.
    pub fn new(
        recipe: &Settled,
        model: &ModelDir,
        sizes: &Sizes,
        device: &Device,
        budget: u64,
    ) -> Result<Asked, RunError> {
        let mut asked = Asked::of(recipe, (&model.model, &model.defaults()), sizes, device)?;
        asked.search_within(device, budget);
        require_planning(&asked.shape, asked.is_long, budget, device.target())?;
        asked.on(device, budget)
    }

    /// Returns what is asked for on another device, with another budget.
    ///
    /// # Errors
    /// From planning.
    pub fn on(&self, device: &Device, budget: u64) -> Result<Asked, RunError> {
        let mut asked = self.clone();
        asked.shape.beside = device.beside();
        asked.shape.session.precision = self.precision_on(device);
        asked.shape.data_bytes = self.sizes.data_bytes(device.beside().ranks);
        asked.shape.session.placement = Placement::of(&self.recipe, device.beside().room_of_rank(budget));
        if self.recipe.micro_batch.max && !self.sizes.are_whole_updates() {
            let least = self.sizes.micro_batch(self.sizes.longest as u64)?;
            let shape = asked.with(&least);
            // Where nothing fits, the longest clip alone is refused with what would.
            let most = search::most_rows(&shape, self.sizes.most_rows(), budget, device.target())?;
            let taken = most.map_or(Ok(least), |most| self.sizes.micro_batch(most as u64))?;
            asked.shape = asked.with(&taken);
            asked.micro_batches = vec![taken];
        }
        asked.search_within(device, budget);
        Ok(asked)
    }

    /// Leaves open what can be searched within a budget. A run's search is over when it is decided what speaks; so that its smallest
    /// budget is looked for with the same choices, that does not count.
    fn search_within(&mut self, device: &Device, budget: u64) {
        self.is_long = is_long_within(&self.silent(), budget.max(SEARCH_BYTES));
        self.shape.planned_at_once = self.open(device).planned_at_once();
    }

    /// Returns whether a refusal tries little, too. A run plans beside its data and goes on; a refusal ends.
    pub fn is_long_to_refuse(&self, budget: u64) -> bool {
        is_long_within(&self.silent(), budget.max(REFUSAL_BYTES))
    }

    /// Returns the shape without what speaks.
    fn silent(&self) -> Shape {
        let mut silent = self.shape.clone();
        silent.session.speech = None;
        silent
    }

    /// Returns what is computed in on a device.
    pub fn precision_on(&self, device: &Device) -> Precision {
        precision::of(&self.recipe, &*self.shape.model, device)
    }

    /// Returns its shape with another micro-batch.
    pub fn with(&self, micro_batch: &MicroBatch) -> Shape {
        self.shape.with(micro_batch)
    }

    /// Returns the fastest plan within a budget, of those that the recipe leaves open.
    ///
    /// # Errors
    /// From planning. It is not an error if nothing fits.
    pub fn search(&self, device: &Device, budget: u64) -> Result<Search, RunError> {
        search::search(&self.shape, &self.open(device), budget, device.target())
    }

    /// Searches on one of several cards, which share what is known. See [`Asked::search`].
    ///
    /// # Errors
    /// As [`Asked::search`].
    pub fn search_sharing(
        &self,
        device: &Device,
        budget: u64,
        known: &Arc<Known>,
    ) -> Result<Search, RunError> {
        let stems = Stems::sharing(device.target(), known.clone());
        search::choose(&self.shape, &self.open(device), budget, stems)?.plan()
    }

    /// Chooses the fastest plan within a budget, without planning it in full as [`Asked::search`] does.
    ///
    /// # Errors
    /// As [`Asked::search`].
    pub fn choose<'d>(&self, device: &'d Device, budget: u64) -> Result<Chosen<'d>, RunError> {
        search::choose(&self.shape, &self.open(device), budget, Stems::of(device.target()))
    }

    /// Returns the combinations of what is left open on a device, recomputing whole values or blocks, with all of their options as they
    /// are typed: the fastest that fits a budget first.
    ///
    /// # Errors
    /// From planning.
    pub fn lattice(&self, device: &Device, budget: u64) -> Result<Vec<Candidate>, RunError> {
        let recipe = self.recipe.recipe();
        let typed = |choice: &Choice<'_>, blocks: &Blocks| {
            let taken = choice.taken();
            let change = Change {
                precision: taken.precision.or(Some(self.shape.session.precision)),
                optimizer: taken.optimizer.or(recipe.optimizer).or(Some(OptimizerChoice::default())),
                offload: taken.offload.or(recipe.offload.clone()).or(Some(Offload::default())),
                checkpoint: Some(blocks.clone()),
                micro_batch: Some(choice.micro_batch.capacity.rows),
                ..taken
            };
            change.options(recipe)
        };
        let stems = Stems::of(device.target());
        search::lattice(&self.shape, &self.open(device), budget, &stems, &typed)
    }

    /// Returns the recipe with every choice of a search filled in. Planned again, it gives the same plan.
    pub fn settled(&self, found: &Search) -> Recipe {
        let mut recipe = self.recipe.recipe().clone();
        found.taken.to_recipe(&mut recipe);
        let session = &found.plan.shape.session;
        (recipe.micro_batch.frames, recipe.micro_batch.max) = (Some(session.capacity.rows as u64), false);
        recipe.checkpoint = Some(recipe::Checkpoint(session.checkpoint.clone()));
        recipe.precision = Some(session.precision);
        recipe.optimizer.get_or_insert_default();
        if recipe.offload.get_or_insert_default().is_empty() {
            // It bounds nothing here, so the settled recipe must not name it.
            recipe.host_memory = None;
        }
        recipe
    }

    /// Returns the smallest budget with which a search finds a plan, to within a hundredth: with it a plan is found, with a
    /// hundredth less none. For a long model, returns what the least combination needs when nothing fits: each step down would take
    /// seconds.
    ///
    /// # Errors
    /// From planning.
    pub fn least_budget(&self, device: &Device) -> Result<u64, RunError> {
        let within = |budget: u64| {
            let found = self.on(device, budget)?.search(device, budget)?;
            // By the plan in full, as a run is accepted.
            let (peak, host) = (found.plan.peak_bytes, found.plan.host_bytes());
            Ok::<_, RunError>((peak, peak <= budget && self.host_room(device).holds(host, peak)))
        };
        // Of what fits nowhere, what needs least.
        let mut least = within(0)?.0;
        if self.is_long {
            return Ok(least);
        }
        let mut known = None;
        loop {
            let less = least - least / 100 - 1;
            match within(less)? {
                (peak, true) => (least, known) = (peak, Some(less)),
                (_, false) => break,
            }
        }
        // What was found with another budget may not be found with exactly that.
        let mut budget = least;
        for _ in 0..MORE {
            if let Some(known) = known.filter(|known| budget >= *known) {
                return Ok(known);
            }
            if within(budget)?.1 {
                return Ok(budget);
            }
            budget += least / 1000 + 1;
        }
        // Nor with one near to that, where a search has too little room.
        let mut enough = known.unwrap_or(budget);
        while enough - budget > enough / 100 {
            let between = budget.midpoint(enough);
            match within(between)?.1 {
                true => enough = between,
                false => budget = between,
            }
        }
        Ok(enough)
    }

    /// Returns what the recipe leaves open on a device; of a long model what is recomputed alone.
    pub fn open(&self, device: &Device) -> Free {
        let level = Numerics::from(self.recipe.numerics);
        let mut micro_batches = self.micro_batches.clone();
        if self.is_long || self.recipe.micro_batch.frames.is_some() || level < Numerics::Reordered {
            micro_batches.truncate(1);
        }
        let Asked { recipe, defaults, shape, sizes, .. } = self;
        let variants = match level == Numerics::Changed && !self.is_long {
            true => variants::open(recipe, defaults, &*shape.model, sizes, device),
            false => Vec::new(),
        };
        // In this process's own memory it frees nothing, unless there is a budget of its own for it.
        let elsewhere = (device.is_card() || recipe.host_memory.is_some()) && recipe.offload.is_none();
        let offloads = match elsewhere && !self.is_long {
            true => variants::offloads(recipe.ema.is_kept()),
            false => Vec::new(),
        };
        let checkpoint = recipe.checkpoint.is_none();
        Free { checkpoint, micro_batches, variants, offloads, host_room: self.host_room(device) }
    }

    /// Returns what may wait in the host's memory. Without a card the plan's memory is the host's too, unless both have their
    /// budgets.
    pub fn host_room(&self, device: &Device) -> HostRoom {
        let given = self.recipe.host_memory;
        match self.recipe.offload.as_ref().is_some_and(|o| o.disk.is_some()) {
            true => HostRoom::ALL,
            false => HostRoom {
                bytes: device.host_room(given, &self.shape),
                with_peak: !device.is_card() && given.is_none(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
