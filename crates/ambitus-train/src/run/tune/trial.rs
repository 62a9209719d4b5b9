//! A trial: a few updates from the base at one rate, with the draws that a run begins with, and a validation.

use super::super::rank;
use super::search::Losses;
use crate::data_loader::Loader;
use crate::metrics::duration;
use crate::run_dir::RunDir;
use crate::saved::Progress;
use crate::trainer::{Ended, Observer, Play, Step, Trainer};
use crate::weights;
use crate::world::World;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_ir::plan::PlannedSession;
use ambitus_plan::budget::phase;
use ambitus_plan::memory::Meter;
use ambitus_plan::resolved::Resolved;
use ambitus_plan::session::{self, program};
use ambitus_recipe::rates::LearningRate;
use ambitus_recipe::recipe::Recipe;
use std::sync::Arc;
use std::time::Instant;

/// What a trial does otherwise than the run.
#[derive(Clone, Debug)]
pub struct How {
    /// Its learning rate.
    pub rate: f64,
    /// Its updates.
    pub updates: u64,
    /// The update of the run from which it has its clips and draws.
    pub from: u64,
    /// What its progress line begins with.
    pub label: String,
}

/// How a trial ended.
pub enum Outcome {
    /// With these losses.
    Measured(Losses),
    /// It was asked to stop.
    Stopped,
}

/// Runs one rank of a trial. Returns the most bytes that were held, too, where they can be measured.
pub fn run(
    (r, planned): (&Resolved, Arc<PlannedSession>),
    how: &How,
    run: &RunDir,
    world: &World,
    console: &mut dyn Console,
) -> Result<(Outcome, Option<u64>), RunError> {
    let mut meter = r.meter.clone();
    let held = |meter: &Meter| if r.device.is_card() { r.device.held_on_card() } else { meter.most() };
    let mut opened = rank::open(r, planned, run, world, console)?;
    let exec = &mut *opened;
    let world = &rank::holding(r, world)?;
    let busy = world.busy();
    weights::fill(exec, &r.model, r.recipe.seed, world.held())?;
    drop(busy);
    let validation = rank::validation(r, &r.data.split.validation)?;
    if how.updates > 0 {
        let shape = &r.plan.shape;
        let recipe = Recipe { validate_every: 0, save_every: 0, stop: None, ..r.recipe.clone() };
        let rates = rates(r, how);
        let loader = Loader::start(rank::work(r, world)?, how.from)?;
        let mut trainer = Trainer {
            exec,
            recipe: &recipe,
            players: Play::all(r, &rates),
            acts: &session::acts(&*shape.model, &shape.session),
            updates: how.from + how.updates,
            whole_updates: shape.session.whole_updates || shape.session.update_in_backward,
            // After its last update, below.
            validation: &rank::validation(r, &[])?,
            samples: None,
            checkpoints: None,
            progress: Progress { update: how.from, applied: vec![0; rates.len()], ..Progress::default() },
            world,
            meter: &mut meter,
        };
        let mut shown = Shown { how, began: Instant::now(), console };
        match trainer.run(&loader, &mut shown)? {
            Ended::Complete => {}
            Ended::Stopped => return Ok((Outcome::Stopped, held(&meter))),
            Ended::Collapsed | Ended::Diverged => return Ok((Outcome::Measured(None), held(&meter))),
        }
    }
    let losses = validation.losses(exec, program::EVALUATE, world)?;
    let finite = losses.iter().all(|loss| loss.is_finite());
    meter.ended(phase::EVALUATE);
    Ok((Outcome::Measured(finite.then_some(losses)), held(&meter)))
}

/// Returns the rates of a trial's updates, by player: the run's whole schedule in fewer updates. A player with a rate of its own keeps
/// it.
fn rates(r: &Resolved, how: &How) -> Vec<LearningRate> {
    let own = |name: &str| r.recipe.players.get(name).is_some_and(|p| p.learning_rate.is_some());
    let names = r.plan.shape.model.players().iter().map(|p| own(p.name));
    let of = |(own, rate): (bool, &LearningRate)| LearningRate {
        base: if own { rate.base } else { how.rate },
        warmup: (rate.warmup as f64 * how.updates as f64 / r.updates.max(1) as f64).round() as u64,
        total: how.updates,
        ..rate.clone()
    };
    names.zip(&r.rates).map(of).collect()
}

/// Shows a trial's progress.
struct Shown<'a> {
    how: &'a How,
    began: Instant,
    console: &'a mut dyn Console,
}

impl Observer for Shown<'_> {
    fn step(&mut self, step: &Step, progress: &Progress) -> Result<(), RunError> {
        let (done, updates) = (progress.update - self.how.from, self.how.updates);
        let left =
            self.began.elapsed().as_secs_f64() / done.max(1) as f64 * updates.saturating_sub(done) as f64;
        self.console.progress(&format!(
            "{} · update {done}/{updates} · loss {:.4} · {} left",
            self.how.label,
            step.players[0].loss,
            duration(left)
        ));
        Ok(())
    }
}
