//! What a plan says about ranks that share a run.

use crate::budget::RunPlan;
use crate::resolved::Resolved;
use crate::session::{self, program};
use ambitus_comm::local;
use ambitus_compile::passes::shard::{Flat, Layout};
use ambitus_compile::plan::report;
use ambitus_families::error::RunError;
use ambitus_ir::StateKind;
use ambitus_ir::ops::copy::Space;
use ambitus_recipe::size::ByteSize;
use serde::Serialize;

/// Figures of every rank; all have the same.
#[derive(Clone, Debug, Serialize)]
pub struct Ranks {
    /// Ranks in all.
    pub ranks: usize,
    /// Ranks that hold one copy together.
    pub shard: usize,
    /// Backward gathers again.
    pub regather: bool,
    /// Bytes of parameters, gradients, moments and averages that a rank keeps, padding included.
    pub state_bytes: u64,
    /// Of these, bytes of elements that are no tensor's.
    pub padding_bytes: u64,
    /// Bytes of parameters that every rank keeps whole: too few to share.
    pub whole_bytes: u64,
    /// Bytes of gathered tensors that live at the micro-batch's peak.
    pub gathered_bytes: u64,
    /// Bytes of gradients there that are still to be summed.
    pub unsharded_gradient_bytes: u64,
    /// The largest units and their bytes whole, as they are kept.
    pub largest_units: Vec<(String, u64)>,
    /// Bytes that one rank takes part in exchanging in an update.
    pub exchanged_bytes: f64,
    /// Predicted seconds of that.
    pub exchange_seconds: f64,
    /// Of these, what computing waits for.
    pub exposed_seconds: f64,
    /// What the peak is made of where all ranks are in one process.
    pub in_process: Option<InProcess>,
}

/// Ranks in one process, whose memory the budget bounds: the peak is that of all.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct InProcess {
    /// Ranks in it.
    pub ranks: u64,
    /// Bytes of the arena of each.
    pub arena_bytes: u64,
    /// Bytes of loader and staging of each, at the peak.
    pub beside_bytes: u64,
    /// Bytes of the process and its threads.
    pub process_bytes: u64,
    /// Bytes of what ranks exchange through.
    pub exchange_bytes: u64,
}

/// Units that are named.
const NAMED: usize = 2;

impl RunPlan {
    /// Returns the words behind figures that are those of one of several ranks.
    pub fn of_each_rank(&self) -> &'static str {
        if self.shape.beside.ranks > 1 { " of each rank" } else { "" }
    }

    /// Returns the figures of a rank, where there are several.
    pub fn ranks(&self) -> Option<Ranks> {
        let sharding = self.shape.session.sharding?;
        let layout = session::layout(&*self.shape.model, &self.shape.session).ok().flatten()?;
        let kinds = [StateKind::Parameter, StateKind::Gradient, StateKind::Optimizer, StateKind::Ema];
        let micro = self.planned.program(program::MICRO);
        let (gathered, gradients) = micro.map_or((0, 0), report::unsharded);
        let session = &self.planned.session;
        let size =
            |name: &str| session.state(name).map_or(4, |id| session.states[id.index()].ty.dtype.size());
        let bytes = |flat: &Flat| (size(&flat.name) * flat.elements) as u64;
        let mut units: Vec<(String, u64)> =
            layout.units(bytes).into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
        units.sort_by_key(|u| std::cmp::Reverse(u.1));
        units.truncate(NAMED);
        Some(Ranks {
            ranks: sharding.mesh.ranks,
            shard: sharding.mesh.shard,
            regather: sharding.regather,
            state_bytes: kinds.map(|k| report::state_bytes(&self.planned, k)).iter().sum(),
            padding_bytes: self.padding(&layout),
            whole_bytes: self.whole_bytes(&layout),
            gathered_bytes: gathered,
            unsharded_gradient_bytes: gradients,
            largest_units: units,
            exchanged_bytes: self.exchange.bytes,
            exchange_seconds: self.exchange.seconds,
            exposed_seconds: self.exchange.exposed,
            in_process: self.in_process(),
        })
    }

    fn in_process(&self) -> Option<InProcess> {
        let ranks = Some(self.shape.beside.ranks as u64).filter(|n| *n > 1)?;
        let (arena_bytes, fixed) = (self.planned.arena_bytes(), self.shape.beside.fixed_bytes);
        let exchange_bytes = local::world_bytes(ranks as usize);
        // Of the phases with arenas.
        let peak = self.phases.iter().filter(|p| p.has_arena()).map(|p| p.peak_bytes).max();
        Some(InProcess {
            ranks,
            arena_bytes,
            beside_bytes: (peak.unwrap_or(0).saturating_sub(fixed) / ranks).saturating_sub(arena_bytes),
            process_bytes: fixed - exchange_bytes,
            exchange_bytes,
        })
    }

    /// Returns the bytes of parameters on the device that are in no flat.
    fn whole_bytes(&self, layout: &Layout) -> u64 {
        let states = self.planned.session.states.iter();
        let parameters = states.filter(|s| s.kind == StateKind::Parameter && s.home == Space::Device);
        parameters.filter(|s| layout.flat(&s.name).is_none()).map(|s| s.ty.bytes()).sum()
    }

    /// Returns the bytes of a rank's states on the device that are no tensor's: of each flat, the share in each state that
    /// holds something for its elements (8-bit moments have scales next to them, which are not counted).
    fn padding(&self, layout: &Layout) -> u64 {
        let of = |s: &ambitus_ir::StateDecl| {
            let flat = layout.flats.iter().find(|f| s.name.ends_with(&f.name))?;
            let share = flat.padding() as f64 / flat.elements as f64;
            Some((share * s.ty.bytes() as f64) as u64)
        };
        let here = self.planned.session.states.iter().filter(|s| s.home == Space::Device);
        here.filter_map(of).sum()
    }
}

impl Resolved {
    /// Describes [`RunPlan::ranks`] for people.
    ///
    /// # Errors
    /// None today; from planning, as the other lines.
    pub fn describe_ranks(&self) -> Result<Vec<String>, RunError> {
        let Some(r) = self.plan.ranks() else { return Ok(Vec::new()) };
        let micro_batches = self.plan.shape.micro_batches;
        let units: Vec<String> =
            r.largest_units.iter().map(|(name, bytes)| format!("{name} {}", ByteSize(*bytes))).collect();
        let mut out = vec![
            format!(
                "  {} ranks, each with 1/{} of parameters, gradients and moments: {} (padding {}, kept whole {})",
                r.ranks,
                r.shard,
                ByteSize(r.state_bytes),
                ByteSize(r.padding_bytes),
                ByteSize(r.whole_bytes)
            ),
            format!(
                "  at the micro-batch's peak: gathered tensors {}, gradients to be summed {}; the largest units: {}",
                ByteSize(r.gathered_bytes),
                ByteSize(r.unsharded_gradient_bytes),
                units.join(", ")
            ),
            format!(
                "  exchanged in an update: {:.2} GB a rank, {:.3} s, of which computing waits for {:.3} s",
                r.exchanged_bytes / 1e9,
                r.exchange_seconds,
                r.exposed_seconds
            ),
        ];
        if micro_batches < r.ranks {
            out.push(format!(
                "  an update has {micro_batches} micro-batch{}: {} of {} ranks have nothing to compute in it; a larger `batch` \
                 costs no more time",
                if micro_batches == 1 { "" } else { "es" },
                r.ranks - micro_batches,
                r.ranks
            ));
        }
        if let Some(p) = r.in_process {
            out.push(format!(
                "  in this process: {} x (arena {} + loader and staging {}) + process {} + exchange {}",
                p.ranks,
                ByteSize(p.arena_bytes),
                ByteSize(p.beside_bytes),
                ByteSize(p.process_bytes),
                ByteSize(p.exchange_bytes)
            ));
        }
        if r.shard == 1 && r.in_process.is_none() {
            let each = ByteSize(self.budget);
            out.push(format!(
                "  data parallel: every rank has a copy of everything, so each has {each} for it, not {} times {each}",
                r.ranks
            ));
        }
        Ok(out)
    }
}
