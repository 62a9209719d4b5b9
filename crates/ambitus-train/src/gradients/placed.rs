//! Gradients of a model that is placed on several ranks, threads of this process or processes of a launcher: every rank
//! computes its part of every micro-batch.

use super::gathered::{Gathered, write};
use super::{GradientOptions, Losses, Work, add_reported, run_several, uses, write_one_of};
use crate::launch::Processes;
use crate::weights;
use crate::world::{self, World};
use ambitus_comm::Communicator;
use ambitus_compile::passes::precision::INITIAL_SCALE;
use ambitus_compile::passes::unroll::of;
use ambitus_exec::executor::Executor;
use ambitus_families::error::RunError;
use ambitus_models::Model;
use ambitus_plan::budget::RunPlan;
use ambitus_plan::device::Device;
use ambitus_plan::parts::PlannedParts;
use ambitus_plan::session::program;
use ambitus_recipe::size::ByteSize;
use std::path::Path;
use std::sync::Arc;

impl Work<'_> {
    /// Computes the gradients, which rank 0 writes; gives the loss. Without a world the ranks are threads of this process.
    ///
    /// # Errors
    /// More memory than the budget, a card without NCCL, and what each rank may meet.
    pub(super) fn placed(
        &self,
        plan: &RunPlan,
        parts: &PlannedParts,
        device: &Device,
        options: &GradientOptions,
        world: Option<&Processes>,
        out: &Path,
    ) -> Result<f32, RunError> {
        device.require_engine()?;
        let needed = plan.peak_bytes;
        if let Some(budget) = options.memory.filter(|budget| needed > *budget) {
            return Err(RunError::does_not_fit(
                needed,
                format!(
                    "does not fit: the ranks in this process need {}, --memory is {}; take a smaller --micro-batch, or other ranks",
                    ByteSize(needed),
                    ByteSize(budget)
                ),
            ));
        }
        let states: Vec<_> = parts.ranks.iter().flat_map(|p| p.session.states.clone()).collect();
        self.dir.check(&states)?;
        let one = |comm: &Arc<dyn Communicator>| -> Result<f32, RunError> {
            let mut exec = device.open_rank(
                parts.ranks[comm.rank()].clone(),
                None,
                (comm.clone(), crate::launch::watchdog()),
                "",
            )?;
            weights::fill(&mut *exec, self.dir, 0, None)?;
            let mut losses = self.run_all(&mut *exec, &*plan.shape.model, parts.how.in_flight)?;
            for (_, loss) in &mut losses[1..] {
                *loss = first_known(&**comm, *loss)?;
            }
            let scale = if options.precision.scales_loss() { INITIAL_SCALE } else { 1.0 };
            write(&*exec, &Gathered::Placed(&parts.ranks, &**comm), &losses, &[], scale, out)?;
            Ok(losses[0].1 as f32)
        };
        let alone = || RunError::Usage("placement: there is one rank".to_owned());
        match world {
            Some(world) => one(&world.comm),
            None => {
                let of_world = |world: &World| one(world.comm().ok_or_else(alone)?);
                let losses = world::in_process(parts.ranks.len(), of_world)?;
                losses.first().copied().ok_or_else(alone)
            }
        }
    }

    /// Runs all micro-batches, as many as go through the ranks at a time together; what is left one by one.
    fn run_all(
        &self,
        exec: &mut dyn Executor,
        model: &dyn Model,
        in_flight: usize,
    ) -> Result<Losses, RunError> {
        let mut host = model.batch(self.capacity);
        host.set_norms(&self.norms);
        let (mut losses, mut done) = (self.none(), 0);
        let several = self.micro_batches.chunks_exact(in_flight).filter(|_| in_flight > 1);
        for group in several {
            for (k, members) in group.iter().enumerate() {
                self.clips.fill(&uses(members), &mut host)?;
                write_one_of(exec, k, &host)?;
            }
            let of_group = run_several(exec, in_flight, done > 0)?;
            losses[0].1 += of_group.into_iter().map(f64::from).sum::<f64>();
            for k in 0..in_flight {
                add_reported(exec, program::PIPELINE, &|name| of(name, k), &mut losses[1..])?;
            }
            done += in_flight;
        }
        for members in &self.micro_batches[done..] {
            self.clips.fill(&uses(members), &mut host)?;
            self.run(exec, (0, program::MICRO), &host, done > 0, &mut losses)?;
            done += 1;
        }
        Ok(losses)
    }
}

/// Returns what the first rank has that has the number.
fn first_known(comm: &dyn Communicator, mine: f64) -> Result<f64, RunError> {
    let members: Vec<usize> = (0..comm.ranks()).collect();
    let mut all = vec![0; 8 * members.len()];
    comm.all_gather("a reported loss", &members, &mine.to_le_bytes(), &mut all)?;
    let mut all = all.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
    Ok(all.find(|x| !x.is_nan()).unwrap_or(f64::NAN))
}
