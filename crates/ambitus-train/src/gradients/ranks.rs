//! Gradients on several ranks in this process: virtual devices that share the model, each with an arena of its own.

use super::{GradientOptions, run_micro, uses, write};
use crate::budget::RunPlan;
use crate::clips::Clips;
use crate::device::Device;
use crate::error::RunError;
use crate::load::{self, LOAD_BYTES};
use crate::model_dir::ModelDir;
use crate::session::{self, program};
use crate::size::ByteSize;
use ambitus_comm::Communicator;
use ambitus_comm::local::{self, Failed, LocalRank};
use ambitus_compile::passes::precision::INITIAL_SCALE;
use ambitus_compile::passes::shard::Sharding;
use ambitus_exec::cpu::{CpuExecutor, CpuOptions};
use ambitus_exec::executor::Executor;
use ambitus_models::Capacity;
use std::path::Path;
use std::sync::Arc;

/// What is to be computed.
pub struct Work<'a> {
    /// The model.
    pub dir: &'a ModelDir,
    /// The update's clips.
    pub clips: &'a dyn Clips,
    /// Which of them each micro-batch has.
    pub micro_batches: &'a [Vec<usize>],
    /// The update's normaliser.
    pub norm: f32,
    /// Sizes of a micro-batch.
    pub capacity: Capacity,
}

impl Work<'_> {
    /// Computes and writes the gradients; gives the loss.
    ///
    /// # Errors
    /// More memory than the budget for all ranks, a device that has no collectives, and what each rank may meet.
    pub fn gradients(
        &self,
        plan: RunPlan,
        sharding: Sharding,
        device: &Device,
        options: &GradientOptions,
        out: &Path,
    ) -> Result<f32, RunError> {
        let mesh = sharding.mesh;
        if device.is_card() {
            return Err(RunError::Usage(
                "--ranks: cards have no collectives yet; use --device cpu".to_owned(),
            ));
        }
        let others = (mesh.ranks - 1) as u64 * (plan.planned.arena_bytes() + LOAD_BYTES);
        let needed = plan.peak_bytes + others + local::world_bytes(mesh.ranks);
        if let Some(budget) = options.memory.filter(|budget| needed > *budget) {
            return Err(RunError::DoesNotFit(format!(
                "does not fit: {} ranks in this process need {} together, --memory is {}; take fewer, or a smaller \
                 --micro-batch",
                mesh.ranks,
                ByteSize(needed),
                ByteSize(budget)
            )));
        }
        let layout = session::layout(&plan.shape.model, &plan.shape.session)?;
        let layout = layout.ok_or_else(|| RunError::Usage("--ranks: nothing is shared".to_owned()))?;
        let planned = Arc::new(plan.planned);
        self.dir.check(&layout.tensors(&planned.session.states), false)?;
        let one = |end: Arc<LocalRank>| -> Result<(f64, CpuExecutor), RunError> {
            let rank = end.rank();
            let threads = CpuOptions { threads: device.threads(), ..CpuOptions::default() };
            let mut exec = CpuExecutor::open_rank(planned.clone(), threads, None, end)?;
            load::fill(&mut exec, self.dir, 0, Some((&layout, rank)))?;
            Ok((self.run(&mut exec, &plan.shape.model, rank, mesh.ranks)?, exec))
        };
        let ranks = local::run(mesh.ranks, one).map_err(|Failed { rank, why }| match why {
            Ok(error) => error,
            Err(words) => RunError::Training(format!("rank {rank} panicked: {words}")),
        })?;
        let loss = ranks.iter().map(|(loss, _)| loss).sum::<f64>() as f32;
        let holders: Vec<&dyn Executor> =
            ranks[..mesh.shard].iter().map(|(_, exec)| exec as &dyn Executor).collect();
        let scale = if options.precision.scales_loss() { INITIAL_SCALE } else { 1.0 };
        write(&holders, Some(&layout), loss, scale, out)?;
        Ok(loss)
    }

    /// The micro-batches of a rank: every so manieth, and empty ones until all ranks have as many.
    fn run(
        &self,
        exec: &mut dyn Executor,
        model: &ambitus_models::Model,
        rank: usize,
        ranks: usize,
    ) -> Result<f64, RunError> {
        let mut host = model.batch(self.capacity);
        let mut loss = 0.0;
        for k in 0..self.micro_batches.len().div_ceil(ranks) {
            let members = self.micro_batches.get(k * ranks + rank).map_or(&[][..], Vec::as_slice);
            self.clips.fill(&uses(members), &mut host)?;
            loss += f64::from(run_micro(exec, program::MICRO, &host, self.norm, k > 0)?);
        }
        Ok(loss)
    }
}
