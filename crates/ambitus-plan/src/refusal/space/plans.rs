//! A set of changes as a recipe, its sizes, and drafts of its plan; what was made before is remembered.

use super::*;

impl<'r> Space<'r> {
    /// Compiles a set with its helpers; `None` if the options cannot stand together.
    pub(super) fn draft(&self, at: &At<'_>, helpers: Helpers) -> Option<Draft> {
        let change = self.explicit(at, helpers)?;
        let mut shape = at.asked.with(&at.micro_batch(helpers)?);
        shape.session.checkpoint = change.checkpoint.unwrap_or(Blocks::None);
        // All of this is said, so nothing is left to choose.
        shape.planned_at_once = PLANNED_AT_ONCE[0];
        if let Some(offload) = &change.offload {
            shape.session.offload = offload.pass();
        }
        at.stems.draft(shape).ok()
    }

    /// Returns a set with its helpers as options.
    pub(super) fn explicit(&self, at: &At<'_>, helpers: Helpers) -> Option<Change> {
        let micro_batch = at.micro_batch(helpers)?;
        let checkpoint = match helpers.again {
            Again::Nothing => Blocks::None,
            Again::Blocks => Blocks::All,
            Again::Values => {
                let mut shape = at.asked.with(&micro_batch);
                shape.session.checkpoint = Blocks::None;
                let draft = at.stems.draft(shape).ok()?;
                let target = Packed { target: self.device.target(), rows: draft.shape.clip_rows };
                Blocks::Cheapest { values: cheapest(draft.micro()?, &target).len(), blocks: 0 }
            }
        };
        let disk = self.asked.recipe.offloaded().disk;
        let parts = helpers.offload.map(|bits| match bits {
            0 => Offload::default(),
            bits if at.asked.recipe.ema.is_kept() => Offload { disk, ..offload(bits) },
            bits => Offload { disk, ..offload(bits) }.without_average(),
        });
        let parts = parts.or_else(|| at.change.offload.clone());
        let (checkpoint, micro_batch) = (Some(checkpoint), Some(micro_batch.capacity.rows));
        let change = Change { checkpoint, micro_batch, offload: parts, ..at.change.clone() };
        let mut recipe = self.asked.recipe.recipe().clone();
        change.to_recipe(&mut recipe);
        recipe.validate().is_ok().then_some(change)
    }

    /// Returns a set as it is asked for; `None` if it cannot be.
    pub(super) fn at(&self, set: &Set) -> Option<Arc<At<'r>>> {
        if let Some(known) = self.found().recent.iter().find(|at| at.set == *set) {
            return Some(known.clone());
        }
        let levels = self.dims.iter().zip(set).filter(|(_, level)| **level > 0);
        let change =
            levels.fold(self.always.clone(), |all, (dim, level)| all.with(&dim.levels[level - 1].change));
        let mut recipe = self.asked.recipe.recipe().clone();
        change.to_recipe(&mut recipe);
        // What is asked for of a micro-batch may be changed with it.
        recipe.micro_batch = Size { clips: recipe.micro_batch.clips, ..Size::default() };
        let recipe = recipe.settled(&self.asked.defaults);
        recipe.validate().ok()?;
        let sizes = self.sizes(&recipe, change.limit)?;
        let asked = self.asked_for(&recipe, &sizes, change.limit)?;
        let least = *sizes.micro_batches.iter().min_by_key(|m| m.capacity.rows)?;
        let larger = sizes.micro_batches.iter().filter(|m| m.capacity.rows > least.capacity.rows);
        let whole = larger.filter(|m| m.whole_updates && !least.whole_updates);
        let whole = whole.min_by_key(|m| m.capacity.rows).copied();
        let stems = Stems::of(self.device.target());
        let at = Arc::new(At { set: set.clone(), change, asked, least, whole, stems });
        let recent = &mut self.found().recent;
        recent.truncate(KEPT - 1);
        recent.insert(0, at.clone());
        Some(at)
    }

    pub(super) fn sizes(&self, recipe: &Settled, limit: Option<Limit>) -> Option<Sizes> {
        let at = limit.and_then(|limit| self.data.limits.iter().position(|l| *l == limit));
        let key = (at.map_or(0, |i| i + 1), recipe.update == UpdateAt::Backward);
        if let Some(sizes) = self.found().sizes.get(&key) {
            return sizes.clone();
        }
        let sizes = self.measured(recipe, limit).ok();
        self.found().sizes.insert(key, sizes.clone());
        sizes
    }

    /// Returns what a recipe of these sizes asks for; under another limit of length with what speaks there.
    pub(super) fn asked_for(&self, recipe: &Settled, sizes: &Sizes, limit: Option<Limit>) -> Option<Asked> {
        let mut asked = self.asked.with_recipe(recipe, sizes, self.device).ok()?;
        let wanted = matches!(recipe.samples, Some(Samples::Of(_)));
        if let Some(limit) = limit.filter(|_| wanted) {
            (asked.shape.session.speech, asked.shape.spoken) = self.spoken(recipe, sizes, limit)?;
        }
        asked.on(self.device, self.budget).ok()
    }

    /// Returns what speaks where clips end at a limit: another voice may be held out then. `None` if what is asked for cannot.
    fn spoken(&self, recipe: &Settled, sizes: &Sizes, limit: Limit) -> Option<Speaks> {
        if let Some((_, known)) = self.found().spoken.iter().find(|s| s.0 == limit) {
            return known.clone();
        }
        let &Space { model, device, budget, .. } = self;
        let data = self.data.up_to(&limit, recipe, &*self.asked.shape.model);
        let ready = data.and_then(|data| {
            samples::Run { recipe, model, data: &data, device, updates: sizes.updates, budget }.read()
        });
        let of = |ready: samples::Ready| (Some(Spoken::of(&*ready.speech)), ready.bytes());
        let speaks = ready.ok().map(|ready| ready.map_or_else(|_| Speaks::default(), of));
        self.found().spoken.push((limit, speaks.clone()));
        speaks
    }

    /// Returns the sizes under another limit of length.
    pub(super) fn measured(&self, recipe: &Settled, limit: Option<Limit>) -> Result<Sizes, RunError> {
        let model = &self.asked.shape.model;
        match limit {
            Some(limit) => Sizes::of(recipe, &**model, &self.data.up_to(&limit, recipe, &**model)?),
            None => Sizes::of(recipe, &**model, self.data),
        }
    }
}
