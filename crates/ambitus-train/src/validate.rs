//! The validation loss: held-out clips, the same draws every time.

use crate::gradients::run_micro;
use crate::world::World;
use ambitus_data::pack::{Capacity, pack};
use ambitus_exec::executor::Executor;
use ambitus_families::clips::{Clips, Use, When};
use ambitus_families::error::RunError;
use ambitus_models::{Batch, Model, Norms};
use std::ops::Range;
use std::sync::Arc;

/// The clips and their fixed uses.
pub struct Validation {
    clips: Box<dyn Clips>,
    model: Arc<dyn Model>,
    capacity: ambitus_models::Capacity,
    whole: Packed,
    sets: Vec<(String, Packed)>,
}

/// Uses that are validated on together.
struct Packed {
    groups: Vec<Vec<Use>>,
    norms: Norms,
}

impl Packed {
    /// Packs all rounds of some clips.
    fn new(
        clips: &dyn Clips,
        of: Range<usize>,
        capacity: ambitus_models::Capacity,
    ) -> Result<Packed, RunError> {
        let rounds = clips.rounds();
        let of_clip = |clip| (0..rounds).map(move |round| Use { clip, when: When::Round(round) });
        let uses: Vec<Use> = of.flat_map(of_clip).collect();
        let lengths: Vec<u32> = uses.iter().map(|u| clips.rows()[u.clip]).collect();
        let packed = pack(&lengths, Capacity { frames: capacity.rows as u32, clips: capacity.clips })?;
        let groups = packed.iter().map(|group| group.iter().map(|&i| uses[i]).collect()).collect();
        Ok(Packed { groups, norms: clips.norms(&uses)? })
    }
}

impl Validation {
    /// Packs all rounds of all clips, and once more of each data set's where there are several, by name.
    ///
    /// # Errors
    /// A clip longer than the capacity.
    pub fn new(
        clips: Box<dyn Clips>,
        model: Arc<dyn Model>,
        capacity: ambitus_models::Capacity,
        sets: Vec<(String, Range<usize>)>,
    ) -> Result<Validation, RunError> {
        let whole = Packed::new(&*clips, 0..clips.rows().len(), capacity)?;
        let each = sets.into_iter().map(|(name, of)| Ok((name, Packed::new(&*clips, of, capacity)?)));
        let sets = each.collect::<Result<_, RunError>>()?;
        Ok(Validation { clips, model, capacity, whole, sets })
    }

    /// Returns true when no clip was held out.
    pub fn is_empty(&self) -> bool {
        self.clips.rows().is_empty()
    }

    /// Returns the loss of `program` (an evaluation program) over all rounds: the sum of [`Validation::losses`].
    ///
    /// # Errors
    /// As [`Validation::losses`].
    pub fn loss(&self, exec: &mut dyn Executor, program: &str, world: &World) -> Result<f64, RunError> {
        Ok(self.losses(exec, program, world)?.iter().sum())
    }

    /// Returns the loss of `program` on each data set, by its name; none where there is one set.
    ///
    /// # Errors
    /// As [`Validation::losses`].
    pub fn of_sets(
        &self,
        exec: &mut dyn Executor,
        program: &str,
        world: &World,
    ) -> Result<Vec<(String, f64)>, RunError> {
        let each = self.sets.iter();
        each.map(|(name, set)| Ok((name.clone(), self.run(set, exec, program, world)?.iter().sum())))
            .collect()
    }

    /// Returns what each batch adds to the loss of `program` over all rounds. Ranks take the batches in turn, or each its part of
    /// every one; they are in the order of the batches, so of the same weights the sum has the same bits at any number of ranks.
    ///
    /// # Errors
    /// Damaged clip files, and ranks that are gone.
    pub fn losses(
        &self,
        exec: &mut dyn Executor,
        program: &str,
        world: &World,
    ) -> Result<Vec<f64>, RunError> {
        self.run(&self.whole, exec, program, world)
    }

    fn run(
        &self,
        packed: &Packed,
        exec: &mut dyn Executor,
        program: &str,
        world: &World,
    ) -> Result<Vec<f64>, RunError> {
        let mut host: Batch = self.model.batch(self.capacity);
        host.set_norms(&packed.norms);
        let (rank, ranks) = world.turn();
        let mut losses = Vec::new();
        for k in 0..packed.groups.len().div_ceil(ranks) {
            // The others' last batch may have no fellow: all ranks run a program together.
            let group = packed.groups.get(k * ranks + rank).map_or(&[][..], Vec::as_slice);
            self.clips.fill(group, &mut host)?;
            losses.push(f64::from(run_micro(exec, program, &host, false)?));
        }
        world.in_order("a validation", &losses)
    }
}
