//! Compiled runs whose values have no offsets yet.

use super::phases::{self, Around};
use super::{Categories, ProgramBytes, RunPlan, Shape, here, highest};
use crate::parts::{self, Parts, PlannedParts};
use crate::session::{self, Stem, program};
use ambitus_compile::passes::place::{Bound, Cut, Piece, pieces};
use ambitus_compile::pipeline::Pipeline;
use ambitus_compile::plan::report::{self, Exchange};
use ambitus_compile::plan::timelines::Timeline;
use ambitus_compile::plan::{Heights, Needs, Solutions};
use ambitus_families::error::RunError;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::{Packed, Target};
use ambitus_ir::{Program, Session, StateKind};
use std::sync::Arc;

/// Cuts that are tried for each number of micro-batches in flight.
const MOST_CUTS: usize = 4;

/// A compiled run without offsets. Much cheaper than a plan, and enough to say what no plan can do.
pub struct Draft {
    /// What was compiled.
    pub shape: Shape,
    /// Needs of each rank; one entry if all have the same session.
    needs: Vec<Needs>,
    /// The session that was cut, and how.
    placed: Option<(Session, parts::How)>,
    /// The peak if no byte of the arena were lost between values: no plan of these programs is lower.
    pub least_bytes: u64,
}

impl Draft {
    /// Compiles. Reads no file.
    ///
    /// # Errors
    /// A model that cannot be trained.
    pub fn new(shape: Shape, target: &dyn Target) -> Result<Draft, RunError> {
        let packed = &Packed { target, rows: shape.clip_rows };
        let session = session::build(&*shape.model, &shape.session, packed)?;
        Self::of(shape, session, target)
    }

    /// Compiles from what the run shares with other plans: [`Stem::new`] of this shape and target. See [`Draft::new`].
    ///
    /// # Errors
    /// As [`Draft::new`].
    pub fn from_stem(shape: Shape, stem: Stem, target: &dyn Target) -> Result<Draft, RunError> {
        let packed = &Packed { target, rows: shape.clip_rows };
        let session = stem.finish(&shape.session, packed)?;
        Self::of(shape, session, target)
    }

    /// Drafts a session that was compiled from this shape.
    fn of(shape: Shape, session: Session, target: &dyn Target) -> Result<Draft, RunError> {
        let gradients = shape.session.gradients();
        let Some(placement) = &shape.session.placement else {
            return Ok(Self::of_needs(shape, vec![Needs::of(session, target, 1, gradients)], None));
        };
        if let Some(cut) = placement.cut.clone() {
            let in_flight = placement.in_flight(shape.micro_batches);
            return Self::of_cut(&shape, &session, cut, in_flight, target);
        }
        let pieces = pieces(&session, &Packed { target, rows: shape.clip_rows });
        let unbound = Bound { waiting: 1, room: u64::MAX };
        let fastest = placement.cut_within(&pieces, &vec![unbound; placement.ranks])?;
        let budget = placement.room.saturating_add(shape.beside.fixed_bytes);
        let heights = Heights::default();
        let mut least: Option<(u64, Draft)> = None;
        for in_flight in placement.in_flights(shape.micro_batches) {
            let (mut next, mut tried) = (fastest.clone(), Vec::new());
            while tried.len() < MOST_CUTS && !tried.contains(&next) {
                let draft = Self::of_cut(&shape, &session, next.clone(), in_flight, target)?;
                let bytes = draft.bytes_of_ranks(budget, &heights);
                let most = bytes.iter().copied().max().unwrap_or(0);
                if most <= budget {
                    return Ok(draft);
                }
                // What blocks take is not all that a rank holds: the rest was found with this cut, and is much the same with
                // its neighbours.
                let bounds = draft.bounds(&pieces, &bytes, budget);
                tried.push(std::mem::replace(&mut next, placement.cut_within(&pieces, &bounds)?));
                if least.as_ref().is_none_or(|(before, _)| most < *before) {
                    least = Some((most, draft));
                }
            }
        }
        least.map(|(_, draft)| draft).ok_or_else(|| RunError::Usage("placement: no cut".to_owned()))
    }

    /// Drafts a session that is cut at `cut`.
    fn of_cut(
        shape: &Shape,
        session: &Session,
        cut: Cut,
        in_flight: usize,
        target: &dyn Target,
    ) -> Result<Draft, RunError> {
        let passes = shape.session.passes(&*shape.model);
        let parts = Parts::of(session, cut, in_flight, &Pipeline::new(&passes, target))?;
        let needs =
            parts.sessions.into_iter().map(|part| Needs::of(part, target, 1, shape.session.gradients()));
        let needs = needs.collect();
        let mut shape = shape.clone();
        if let Some(placement) = &mut shape.session.placement {
            placement.cut = Some(parts.how.cut.clone());
            placement.in_flight = Some(in_flight);
        }
        Ok(Self::of_needs(shape, needs, Some((session.clone(), parts.how))))
    }

    /// Returns what each rank takes of a memory of its own, when it only matters whether `budget` is enough.
    fn bytes_of_ranks(&self, budget: u64, heights: &Heights) -> Vec<u64> {
        let around = self.around();
        let bytes = |n: &Needs| match around.peak(n.arena_bytes()) {
            least if least > budget || budget == u64::MAX => least,
            _ => around.peak(n.arena_within(around.room(budget), heights)),
        };
        self.needs.iter().map(bytes).collect()
    }

    /// Returns what is left of `budget` for blocks on each rank, which takes `bytes` with the blocks that it has.
    fn bounds(&self, pieces: &[Piece], bytes: &[u64], budget: u64) -> Vec<Bound> {
        let Some((_, how)) = &self.placed else { return Vec::new() };
        let of_rank = |(rank, (first, n)): (usize, (usize, usize))| {
            let waiting = how.waiting(rank);
            let blocks = Piece::bytes(&pieces[first..first + n], waiting);
            Bound { waiting, room: budget.saturating_add(blocks).saturating_sub(bytes[rank]) }
        };
        how.blocks_of_ranks().into_iter().enumerate().map(of_rank).collect()
    }

    /// Returns [`Draft::least_bytes`] of the phases that have an arena.
    pub fn running_bytes(&self) -> u64 {
        self.around().running(self.together(self.needs.iter().map(Needs::arena_bytes)))
    }

    /// Returns the peak while the run is planned.
    pub fn planning_bytes(&self) -> u64 {
        self.around().plan
    }

    fn of_needs(shape: Shape, needs: Vec<Needs>, placed: Option<(Session, parts::How)>) -> Draft {
        let mut draft = Draft { shape, needs, placed, least_bytes: 0 };
        draft.least_bytes = draft.around().peak(draft.together(draft.needs.iter().map(Needs::arena_bytes)));
        draft
    }

    /// Returns the session of all ranks, or of one like all.
    fn session(&self) -> &Session {
        self.placed.as_ref().map_or(self.needs[0].session(), |(whole, _)| whole)
    }

    fn around(&self) -> Around {
        Around::of(&self.shape, &self.session().states, self.programs())
    }

    /// Returns the bytes of the process that the programs of the ranks in it take, planned and bound.
    pub fn programs_bytes(&self) -> u64 {
        self.programs().running()
    }

    /// Returns the bytes of those that are planned, before executors bind them.
    pub fn planned_programs_bytes(&self) -> u64 {
        self.programs().planned
    }

    /// Returns the bytes of the process that the programs of the ranks in it take.
    fn programs(&self) -> ProgramBytes {
        if self.placed.is_none() {
            return ProgramBytes::of(self.needs[0].session(), self.shape.beside.ranks);
        }
        let all: Vec<_> = self.needs.iter().map(|n| ProgramBytes::of(n.session(), 1)).collect();
        ProgramBytes {
            planned: self.together(all.iter().map(|p| p.planned)),
            bound: self.together(all.iter().map(|p| p.bound)),
        }
    }

    /// Returns the bytes of ranks in the memory that the budget bounds, of what each has, or one for all: there are all of
    /// them, or one, of which the largest counts.
    fn together(&self, of_ranks: impl Iterator<Item = u64>) -> u64 {
        match (&self.placed, self.shape.beside.ranks) {
            (None, n) => n as u64 * of_ranks.max().unwrap_or(0),
            (Some(_), 1) => of_ranks.max().unwrap_or(0),
            (Some(_), _) => of_ranks.sum(),
        }
    }

    /// Returns how often what forward keeps of a micro-batch is in the memory that the budget bounds: each rank has all of it,
    /// or, of a placed model, a part, of as many micro-batches as wait there.
    pub fn copies(&self) -> f64 {
        let Some((_, how)) = &self.placed else { return self.shape.beside.ranks as f64 };
        let all = (0..self.needs.len()).map(|rank| how.waiting(rank) as f64);
        match self.shape.beside.ranks {
            // The one that has most decides.
            1 => all.fold(0.0, f64::max) / self.needs.len() as f64,
            _ => all.sum::<f64>() / self.needs.len() as f64,
        }
    }

    /// Returns the program of a micro-batch, of all ranks and of the first player.
    pub fn micro(&self) -> Option<&Program> {
        self.of_players(program::MICRO).first().copied()
    }

    fn of_players(&self, kind: &str) -> Vec<&Program> {
        session::of_players(self.session(), &*self.shape.model, kind)
    }

    /// Returns when ranks that have parts of the model are done with an update.
    fn timelines(&self, target: &dyn Target) -> Option<Vec<Timeline>> {
        let packed = &Packed { target, rows: self.shape.clip_rows };
        let (_, how) = self.placed.as_ref()?;
        let parts: Vec<&Session> = self.needs.iter().map(Needs::session).collect();
        Some(parts::timelines(&parts, how.in_flight, self.shape.micro_batches, packed))
    }

    /// Returns the predicted seconds of one update.
    pub fn step_seconds(&self, target: &dyn Target) -> f64 {
        let packed = &Packed { target, rows: self.shape.clip_rows };
        match self.timelines(target) {
            Some(ranks) => last(&ranks, |t| t.now),
            None => self.of_update(|p| report::seconds(p, packed)),
        }
    }

    /// Predicts what ranks exchange in one update.
    fn exchange(&self, target: &dyn Target) -> Exchange {
        let packed = &Packed { target, rows: self.shape.clip_rows };
        if let Some(ranks) = self.timelines(target) {
            let busy = ranks.iter().map(|t| t.busy).sum::<f64>() / ranks.len() as f64;
            let waiting = last(&ranks, |t| t.now) - busy;
            return Exchange { seconds: waiting, exposed: waiting, bytes: last(&ranks, |t| t.moved) };
        }
        // Several players are trained by one rank.
        let of = |kind: &str| {
            let program = self.of_players(kind).first().copied();
            program.map_or(Exchange::default(), |p| report::exchange(p, packed))
        };
        let n = self.shape.micro_batches_of_rank() as f64;
        let (micro, update) = (of(program::MICRO), of(program::UPDATE));
        Exchange {
            seconds: n * micro.seconds + update.seconds,
            exposed: n * micro.exposed + update.exposed,
            bytes: n * micro.bytes + update.bytes,
        }
    }

    /// Returns the bytes of the host's memory that what waits there takes, or a little more.
    pub fn host_bytes(&self) -> u64 {
        self.together(self.needs.iter().map(Needs::host_bytes))
    }

    /// Returns the bytes of a kind of states in the memory that the budget bounds, or more: what all ranks in it have.
    pub fn state_bytes(&self, kind: StateKind) -> u64 {
        let copies = if self.placed.is_none() { self.shape.beside.ranks as u64 } else { 1 };
        let states = self.session().states.iter().filter(|s| s.kind == kind && s.home == Space::Device);
        copies * states.map(|s| s.ty.bytes()).sum::<u64>()
    }

    /// Returns the instructions of the longest program.
    pub fn instructions(&self) -> usize {
        let programs = self.needs.iter().flat_map(|n| &n.session().programs);
        programs.map(|p| p.instrs.len()).max().unwrap_or(0)
    }

    /// Returns the sum over one update, of all ranks or of one like all.
    fn of_update(&self, each: impl Fn(&Program) -> f64) -> f64 {
        let of = |kind: &str| self.of_players(kind).into_iter().map(&each).sum::<f64>();
        self.shape.micro_batches_of_rank() as f64 * of(program::MICRO) + of(program::UPDATE)
    }

    /// Returns the peak, when it only matters whether `budget` is enough: one that is within it, or that no work could bring
    /// within it, is not made lower.
    pub fn peak_within(&self, budget: u64, heights: &Heights) -> u64 {
        if self.least_bytes > budget {
            return self.least_bytes;
        }
        let around = self.around();
        let of_arenas = around.room(budget);
        let least: Vec<u64> = self.needs.iter().map(Needs::arena_bytes).collect();
        let all: u64 = least.iter().sum();
        let room = |least: u64| match (&self.placed, self.shape.beside.ranks) {
            (None, n) => of_arenas / n as u64,
            (Some(_), 1) => of_arenas,
            // Each by its share.
            (Some(_), _) => {
                least
                    + (u128::from(of_arenas.saturating_sub(all)) * u128::from(least) / u128::from(all.max(1)))
                        as u64
            }
        };
        let arenas = self.needs.iter().zip(&least).map(|(n, least)| n.arena_within(room(*least), heights));
        around.peak(self.together(arenas))
    }

    /// Plans.
    pub fn plan(&self, target: &dyn Target) -> RunPlan {
        self.plan_sharing(target, &Solutions::default())
    }

    /// Plans, with arenas that are solved already.
    pub fn plan_sharing(&self, target: &dyn Target, solutions: &Solutions) -> RunPlan {
        let step_flops = self.of_update(|p| report::cost(p, self.shape.clip_rows).flops);
        let step_seconds = self.step_seconds(target);
        let exchange = self.exchange(target);
        let shape = self.shape.clone();
        let planned = |n: &Needs| Arc::new(n.plan_sharing(solutions));
        let all: Vec<Arc<PlannedSession>> = self.needs.iter().map(planned).collect();
        let mut planned = &all[0];
        all.iter().filter(|p| p.arena_bytes() > planned.arena_bytes()).for_each(|p| planned = p);
        let here = here(&shape, planned, self.placed.as_ref().map(|_| &*all));
        let around = self.around();
        let phases = phases::phases(&around, &here, &session::players(&*shape.model));
        let top = highest(&phases);
        let peak_bytes = top.map_or(0, |p| p.peak_bytes);
        let categories = top.map_or_else(Categories::default, |top| phases::categories(&around, &here, top));
        let planned = planned.clone();
        let parts = self.placed.as_ref().map(|(_, how)| PlannedParts {
            ranks: all.clone(),
            how: how.clone(),
            waiting_seconds: exchange.exposed,
            exchanged_bytes: exchange.bytes,
        });
        RunPlan {
            shape,
            planned,
            parts,
            phases,
            categories,
            peak_bytes,
            step_flops,
            step_seconds,
            exchange,
            around,
            programs: self.programs(),
        }
    }
}

/// Returns the latest of ranks, or the most.
fn last(ranks: &[Timeline], of: impl Fn(&Timeline) -> f64) -> f64 {
    ranks.iter().map(of).fold(0.0, f64::max)
}
