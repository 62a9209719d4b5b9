//! Gradients on several ranks that share the model: virtual devices in this process, each with an arena of its own, or the
//! processes of a launcher.

use super::gathered::{Gathered, Holders, write};
use super::{GradientOptions, Losses, Work, uses};
use crate::launch::Processes;
use crate::weights;
use ambitus_comm::Communicator;
use ambitus_comm::local::{self, Failed};
use ambitus_compile::passes::precision::INITIAL_SCALE;
use ambitus_compile::passes::shard::Sharding;
use ambitus_exec::executor::Executor;
use ambitus_families::error::RunError;
use ambitus_models::Model;
use ambitus_plan::budget::LOAD_BYTES;
use ambitus_plan::budget::RunPlan;
use ambitus_plan::device::Device;
use ambitus_plan::session::{self, program};
use ambitus_recipe::size::ByteSize;
use std::path::Path;
use std::sync::Arc;

impl Work<'_> {
    /// Computes the gradients, which rank 0 writes; gives the loss. Without a world the ranks are threads of this process.
    ///
    /// # Errors
    /// More memory than the budget of this process, a card without NCCL, and what each rank may meet.
    pub(super) fn sharded(
        &self,
        plan: RunPlan,
        sharding: Sharding,
        device: &Device,
        options: &GradientOptions,
        world: Option<&Processes>,
        out: &Path,
    ) -> Result<f32, RunError> {
        let mesh = sharding.mesh;
        device.require_engine()?;
        // A card has one rank, and what connects it in its reserve.
        let (here, beside) = match world {
            _ if device.is_card() => (1, 0),
            Some(world) => (1, world.bytes),
            None => (mesh.ranks, local::world_bytes(mesh.ranks)),
        };
        let others = (here - 1) as u64 * (plan.planned.arena_bytes() + LOAD_BYTES);
        let needed = plan.peak_bytes + others + beside;
        if let Some(budget) = options.memory.filter(|budget| needed > *budget) {
            return Err(RunError::does_not_fit(
                needed,
                format!(
                    "does not fit: {here} rank{} in this process need{} {}, --memory is {}; take a smaller --micro-batch, or \
                 other ranks",
                    if here == 1 { "" } else { "s" },
                    if here == 1 { "s" } else { "" },
                    ByteSize(needed),
                    ByteSize(budget)
                ),
            ));
        }
        let layout = session::layout(&*plan.shape.model, &plan.shape.session)?;
        let layout = layout.ok_or_else(|| RunError::Usage("--ranks: nothing is shared".to_owned()))?;
        let planned = plan.planned;
        self.dir.check(&layout.tensors(&planned.session.states))?;
        let one = |comm: Arc<dyn Communicator>| -> Result<f32, RunError> {
            let rank = comm.rank();
            let mut exec =
                device.open_rank(planned.clone(), None, (comm.clone(), crate::launch::watchdog()), "")?;
            weights::fill(&mut *exec, self.dir, 0, Some((&layout, rank)))?;
            let mut losses = self.run_share(&mut *exec, &*plan.shape.model, rank, mesh.ranks)?;
            for (_, loss) in &mut losses {
                *loss = sum(&*comm, *loss)?;
            }
            let scale = if options.precision.scales_loss() { INITIAL_SCALE } else { 1.0 };
            let holders = Holders { layout: &layout, ranks: mesh.shard, comm: &*comm };
            write(&*exec, &Gathered::Shared(holders), &losses, &[], scale, out)?;
            Ok(losses[0].1 as f32)
        };
        match world {
            Some(world) => one(world.comm.clone()),
            None => {
                let ranks =
                    local::run(mesh.ranks, |end| one(end)).map_err(|Failed { rank, why }| match why {
                        Ok(error) => error,
                        Err(words) => RunError::Training(format!("rank {rank} panicked: {words}")),
                    })?;
                Ok(ranks.first().copied().unwrap_or_default())
            }
        }
    }

    /// Runs this rank's micro-batches: every `ranks`-th of the update, padded with empty ones until all ranks have as many.
    fn run_share(
        &self,
        exec: &mut dyn Executor,
        model: &dyn Model,
        rank: usize,
        ranks: usize,
    ) -> Result<Losses, RunError> {
        let mut host = model.batch(self.capacity);
        host.set_norms(&self.norms);
        let mut losses = self.none();
        for k in 0..self.micro_batches.len().div_ceil(ranks) {
            let members = self.micro_batches.get(k * ranks + rank).map_or(&[][..], Vec::as_slice);
            self.clips.fill(&uses(members), &mut host)?;
            self.run(exec, (0, program::MICRO), &host, k > 0, &mut losses)?;
        }
        Ok(losses)
    }
}

/// Returns the sum over all ranks, in their order.
fn sum(comm: &dyn Communicator, mine: f64) -> Result<f64, RunError> {
    let members: Vec<usize> = (0..comm.ranks()).collect();
    let mut all = vec![0; 8 * members.len()];
    comm.all_gather("the sum of the loss", &members, &mine.to_le_bytes(), &mut all)?;
    Ok(all.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).sum())
}
