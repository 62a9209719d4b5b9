//! The training loop: updates, validation, checkpoints. `update.rs` defines one update.

mod update;

use crate::data_loader::Loader;
use crate::export::Source;
use crate::samples::{Speaking, Spoken};
use crate::saved::{self, Progress};
use crate::stopping;
use crate::tensor_ranges::Piece;
use crate::validate::Validation;
use crate::world::World;
use ambitus_compile::optimizer::{FIRST_MOMENT, FIRST_SCALES};
use ambitus_exec::executor::Executor;
use ambitus_families::error::RunError;
use ambitus_ir::{StateId, StateKind};
use ambitus_plan::budget::phase;
use ambitus_plan::memory::Meter;
use ambitus_plan::session::{Act, program};
use ambitus_recipe::recipe::Recipe;
use ambitus_store::CheckpointDir;
use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;
pub use update::{Play, Played, Step};

/// Updates after which a tensor whose gradient was always exactly zero is reported.
const WATCHED_UPDATES: u64 = 20;
/// Updates in a row whose gradients were not finite, after which the run ends.
pub const MOST_SKIPPED: u64 = 20;

/// The loss scale at which an overflow is no longer a matter of the scale: gradients overflow fp16 as they are, or the
/// forward pass does. A fresh run is there after 17 updates skipped in a row.
const LEAST_SCALE: f32 = 1.0;

/// How the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All updates were done, or validations say that no more are worth it.
    Complete,
    /// A stop was asked for.
    Stopped,
    /// Gradients overflow fp16 at any useful loss scale: the run continues in another precision, or not at all.
    Collapsed,
    /// The gradients of [`MOST_SKIPPED`] updates in a row were not finite. Nothing was saved.
    Diverged,
}

/// What the loop tells its caller, who may ignore all but updates.
pub trait Observer {
    /// Called after every update.
    fn step(&mut self, step: &Step, progress: &Progress) -> Result<(), RunError>;
    /// Called after every validation with the losses of the weights and of the average.
    fn validated(&mut self, _update: u64, _raw: f64, _ema: Option<f64>) {}
    /// Called after every validation of several data sets with the loss of each, of the better weights.
    fn validated_sets(&mut self, _update: u64, _losses: &[(String, f64)]) {}
    /// Called after all samples of an update.
    fn spoken(&mut self, _update: u64, _spoken: &Spoken) {}
    /// Called before every checkpoint: what it relies on must be on the disk.
    fn before_save(&mut self) -> Result<(), RunError> {
        Ok(())
    }
    /// Called after every checkpoint with the seconds it took.
    fn saved(&mut self, _update: u64, _seconds: f64) {}
    /// Called after a validation, its samples and its checkpoint: a good time to look at the run.
    fn settled(&mut self, _update: u64) {}
    /// Notes something that a person should know.
    fn note(&mut self, _text: &str) {}
}

/// A run in motion.
pub struct Trainer<'a> {
    /// The executor with the run's states.
    pub exec: &'a mut dyn Executor,
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Who is trained.
    pub players: Vec<Play<'a>>,
    /// What an update does.
    pub acts: &'a [Act],
    /// Updates of the whole run.
    pub updates: u64,
    /// It is planned for updates of one micro-batch.
    pub whole_updates: bool,
    /// Held-out clips.
    pub validation: &'a Validation,
    /// What is spoken.
    pub samples: Option<Speaking<'a>>,
    /// Where checkpoints go; nowhere, if nobody will resume it.
    pub checkpoints: Option<&'a CheckpointDir>,
    /// Where the run is.
    pub progress: Progress,
    /// This rank among others.
    pub world: &'a World,
    /// What each phase held.
    pub meter: &'a mut Meter,
}

impl Trainer<'_> {
    /// Runs to the end, or to the end of the update in which a stop was asked for or the loss scale collapsed; the last state
    /// is saved in any case. Every rank calls it, and all end alike: what decides is the same on all, or was exchanged.
    ///
    /// # Errors
    /// Unreadable clips, a full disk, ranks that are gone.
    pub fn run(&mut self, loader: &Loader, observer: &mut dyn Observer) -> Result<Ended, RunError> {
        let mut silent = SilentTensors::watch(self.exec, self.progress.applied[0], self.world);
        let mut skipped = 0;
        while self.progress.update < self.updates && !stopping::is_over(self.recipe, &self.progress) {
            let step = self.update(loader)?;
            observer.step(&step, &self.progress)?;
            if !step.applied() && step.loss_scale().is_some_and(|s| s < LEAST_SCALE) {
                self.progress.fp32_from = Some(self.progress.update);
                self.save(observer, true)?;
                return Ok(Ended::Collapsed);
            }
            skipped = if step.applied() || step.loss_scale().is_some() { 0 } else { skipped + 1 };
            if skipped == MOST_SKIPPED {
                return Ok(Ended::Diverged);
            }
            if step.applied()
                && let Some(names) = silent.look(self.exec, self.progress.applied[0], self.world)?
            {
                observer.note(&format!(
                    "the gradient of {} was exactly zero in each of the first {WATCHED_UPDATES} updates: nothing trains there",
                    names.join(", ")
                ));
            }
            let done = self.progress.update;
            let due = |every: u64| every > 0 && done.is_multiple_of(every);
            let stopping = step.stop;
            let asked = due(self.recipe.validate_every);
            let validates = asked || done == self.updates || stopping;
            if validates
                && let Some(loss) = self.validate(observer)?
                && asked
            {
                self.progress.plateau = stopping::plateau(self.progress.plateau, loss);
            }
            let complete = done == self.updates || stopping::is_over(self.recipe, &self.progress);
            let last = complete || stopping;
            let best =
                self.recipe.stop.is_some() && self.progress.best.is_some_and(|(update, _)| update == done);
            if !stopping && (self.samples.as_ref().is_some_and(|s| s.is_due(done, validates)) || last) {
                self.speak(observer)?;
            }
            if due(self.recipe.save_every) || best || last {
                self.save(observer, last)?;
            }
            if validates {
                observer.settled(done);
                // The page takes less than a checkpoint's staging, which is free again.
                self.meter.ended(phase::SAVE);
            }
            if stopping && !complete {
                return Ok(Ended::Stopped);
            }
        }
        Ok(Ended::Complete)
    }

    /// Measures the losses of the weights and of the average on the fixed draws; remembers the best. Returns the lower one, if any
    /// clip is held out.
    ///
    /// # Errors
    /// Unreadable clips.
    pub fn validate(&mut self, observer: &mut dyn Observer) -> Result<Option<f64>, RunError> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let raw = self.validation.loss(self.exec, program::EVALUATE, self.world)?;
        let ema = if self.acts.contains(&Act::Ema) {
            Some(self.validation.loss(self.exec, program::EVALUATE_EMA, self.world)?)
        } else {
            None
        };
        let better = ema.map_or(raw, |e| e.min(raw));
        // A manifest cannot hold what is not finite, which fp16 may give before it is left.
        if better.is_finite() && self.progress.best.is_none_or(|(_, best)| better < best) {
            self.progress.best = Some((self.progress.update, better));
        }
        self.progress.last = raw.is_finite().then_some((raw, ema.filter(|e| e.is_finite())));
        self.meter.ended(phase::EVALUATE);
        observer.validated(self.progress.update, raw, ema);
        let program = if ema.is_some_and(|e| e < raw) { program::EVALUATE_EMA } else { program::EVALUATE };
        let of_sets = self.validation.of_sets(self.exec, program, self.world)?;
        if !of_sets.is_empty() {
            self.meter.ended(phase::EVALUATE);
            observer.validated_sets(self.progress.update, &of_sets);
        }
        self.progress.last_sets = of_sets.into_iter().filter(|(_, loss)| loss.is_finite()).collect();
        Ok(Some(better))
    }

    /// Speaks with the better weights of the last validation.
    fn speak(&mut self, observer: &mut dyn Observer) -> Result<(), RunError> {
        let Some(samples) = &self.samples else { return Ok(()) };
        let update = self.progress.update;
        let source = Source::better(&self.progress);
        let spoken = samples.speak(self.exec, (update, source), self.meter)?;
        spoken.said.lines().for_each(|line| observer.note(line));
        observer.spoken(update, &spoken);
        Ok(())
    }

    /// Saves and prunes. If the disk is full, the run continues with the checkpoints that it has; only for the `last` save this
    /// is an error.
    pub(crate) fn save(&mut self, observer: &mut dyn Observer, last: bool) -> Result<(), RunError> {
        let Some(checkpoints) = self.checkpoints else { return Ok(()) };
        let start = Instant::now();
        let ready = observer.before_save();
        match saved::save(self.exec, checkpoints, &self.progress, self.world, ready) {
            Err(RunError::Full(why)) if !last => {
                observer.note(&format!(
                    "update {}: no checkpoint was saved: {why}; the earlier ones stay, and the run continues",
                    self.progress.update
                ));
                return Ok(());
            }
            done => done?,
        }
        self.meter.ended(phase::SAVE);
        if !self.world.is_first() {
            return Ok(());
        }
        let _busy = self.world.busy();
        // What is newer than the run was passed over as damaged.
        saved::prune(checkpoints, &self.progress, self.recipe.keep, u64::MAX)?;
        observer.saved(self.progress.update, start.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Trainable tensors whose gradient has been exactly zero so far. Zero at first is normal (a fresh model passes gradient to
/// its last layer only); zero for long means that the tensor is cut off. The first moment tells: it is zero until a gradient was
/// not; in 8 bits, its scales are.
///
/// Each of several ranks has parts of tensors; what is zero on all of them is reported at the end of the watch.
struct SilentTensors {
    gradients: Vec<(String, StateId, Range<usize>)>,
    moved: Vec<String>,
    watching: bool,
}

impl SilentTensors {
    /// Watches from the first update on; a resumed run does not start again.
    fn watch(exec: &dyn Executor, applied: u64, world: &World) -> SilentTensors {
        let session = &exec.planned().session;
        let watched = |piece: Piece| {
            let s = &session.states[piece.state.index()];
            let state = |prefix: &str| session.state(&format!("{prefix}{}", s.name));
            let tells = [FIRST_SCALES, FIRST_MOMENT].into_iter().find_map(state)?;
            let (n, all) = (s.ty.shape.elements(), session.states[tells.index()].ty.shape.elements());
            // Of scales there is one for a block of elements; flats are whole blocks.
            let per = n / all.max(1);
            let range = match piece.in_flat {
                true => piece.at / per..(piece.at + piece.range.len()).div_ceil(per),
                false => 0..all,
            };
            (s.kind == StateKind::Parameter).then_some((piece.name, tells, range))
        };
        let watching = applied == 0;
        let pieces = if watching { world.pieces(&session.states) } else { Vec::new() };
        let gradients = pieces.into_iter().filter_map(watched).collect();
        SilentTensors { gradients, moved: Vec::new(), watching }
    }

    /// Drops tensors that have moved; after the watched updates gives the names that never did, once.
    fn look(
        &mut self,
        exec: &dyn Executor,
        applied: u64,
        world: &World,
    ) -> Result<Option<Vec<String>>, RunError> {
        if !self.watching || applied > WATCHED_UPDATES {
            return Ok(None);
        }
        let (mut kept, mut staging) = (Vec::new(), Vec::new());
        for (name, id, range) in self.gradients.drain(..) {
            let mut zero = true;
            saved::read_in_chunks(exec, id, range.clone(), &mut staging, &mut |chunk| {
                zero &= chunk.iter().all(|x| *x == 0.0);
                Ok(())
            })?;
            if zero {
                kept.push((name, id, range));
            } else {
                self.moved.push(name);
            }
        }
        self.gradients = kept;
        if applied < WATCHED_UPDATES {
            return Ok(None);
        }
        self.watching = false;
        // A line for each name: silent here, or moved here.
        let silent = self.gradients.drain(..).map(|(name, ..)| format!("0{name}\n"));
        let mine: String = silent.chain(self.moved.drain(..).map(|name| format!("1{name}\n"))).collect();
        let all = world.exchange("gradients that stayed zero", mine.as_bytes())?.concat();
        let all = String::from_utf8_lossy(&all);
        let moved: HashSet<&str> = all.lines().filter_map(|l| l.strip_prefix('1')).collect();
        let mut names: Vec<String> = Vec::new();
        for name in all.lines().filter_map(|l| l.strip_prefix('0')).filter(|n| !moved.contains(n)) {
            if !names.iter().any(|n| n == name) {
                names.push(name.to_owned());
            }
        }
        Ok((!names.is_empty()).then_some(names))
    }
}
