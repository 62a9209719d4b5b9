//! What a plan says of ranks that share a run.

use crate::budget::RunPlan;
use crate::error::RunError;
use crate::resolve::Resolved;
use crate::session::{self, program};
use crate::size::ByteSize;
use ambitus_compile::passes::shard::Layout;
use ambitus_compile::plan::report;
use ambitus_ir::StateKind;
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
}

/// Units that are named.
const NAMED: usize = 2;

impl RunPlan {
    /// The figures of a rank, where there are several.
    pub fn ranks(&self) -> Option<Ranks> {
        let sharding = self.shape.session.sharding?;
        let layout = session::layout(&self.shape.model, &self.shape.session).ok().flatten()?;
        let kinds = [StateKind::Parameter, StateKind::Gradient, StateKind::Optimizer, StateKind::Ema];
        let micro = self.planned.program(program::MICRO);
        let (gathered, gradients) = micro.map_or((0, 0), report::unsharded);
        let mut units: Vec<(String, u64)> =
            layout.units().into_iter().map(|(name, n)| (name.to_owned(), 4 * n as u64)).collect();
        units.sort_by_key(|u| std::cmp::Reverse(u.1));
        units.truncate(NAMED);
        Some(Ranks {
            ranks: sharding.mesh.ranks,
            shard: sharding.mesh.shard,
            regather: sharding.regather,
            state_bytes: kinds.map(|k| report::state_bytes(&self.planned, k)).iter().sum(),
            padding_bytes: self.padding(&layout),
            gathered_bytes: gathered,
            unsharded_gradient_bytes: gradients,
            largest_units: units,
            exchanged_bytes: self.exchange.bytes,
            exchange_seconds: self.exchange.seconds,
            exposed_seconds: self.exchange.exposed,
        })
    }

    /// Bytes of a rank's states that are no tensor's: of each flat, the share in each state that holds something for its
    /// elements (8-bit moments have scales beside them, which are not counted).
    fn padding(&self, layout: &Layout) -> u64 {
        let of = |s: &ambitus_ir::StateDecl| {
            let flat = layout.flats.iter().find(|f| s.name.ends_with(&f.name))?;
            let share = flat.padding() as f64 / flat.elements as f64;
            Some((share * s.ty.bytes() as f64) as u64)
        };
        self.planned.session.states.iter().filter_map(of).sum()
    }
}

impl Resolved {
    /// [`RunPlan::ranks`] as people read it.
    ///
    /// # Errors
    /// None today; from planning, as the other lines.
    pub(crate) fn describe_ranks(&self) -> Result<Vec<String>, RunError> {
        let Some(r) = self.plan.ranks() else { return Ok(Vec::new()) };
        let units: Vec<String> =
            r.largest_units.iter().map(|(name, bytes)| format!("{name} {}", ByteSize(*bytes))).collect();
        let mut out = vec![
            format!(
                "  {} ranks, each with 1/{} of parameters, gradients and moments: {} (padding {})",
                r.ranks,
                r.shard,
                ByteSize(r.state_bytes),
                ByteSize(r.padding_bytes)
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
        if r.shard == 1 {
            let each = ByteSize(self.budget);
            out.push(format!(
                "  data parallel: every rank has a copy of everything, so each has {each} for it, not {} times {each}",
                r.ranks
            ));
        }
        Ok(out)
    }
}
