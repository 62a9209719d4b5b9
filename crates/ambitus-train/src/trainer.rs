//! The loop: micro-batches, update, average, validation, checkpoints.

use crate::average::ema_decay;
use crate::gradients::{run_micro, run_several, write_one_of};
use crate::loader::Loader;
use crate::pieces::Piece;
use crate::saved::{self, Progress};
use crate::validate::Validation;
use crate::world::{World, interleaved};
use ambitus_compile::optimizer::{FIRST_MOMENT, FIRST_SCALES, SEED};
use ambitus_compile::passes::accumulate::GRAD;
use ambitus_compile::passes::precision::LOSS_SCALE;
use ambitus_exec::executor::Executor;
use ambitus_families::batches::{has_input, write_f32};
use ambitus_families::error::RunError;
use ambitus_families::stop;
use ambitus_ir::{StateId, StateKind};
use ambitus_plan::budget::phase;
use ambitus_plan::memory::{self, Meter};
use ambitus_plan::parts;
use ambitus_plan::session::program;
use ambitus_recipe::rates::LearningRate;
use ambitus_recipe::recipe::{Recipe, UpdateAt};
use ambitus_store::CheckpointDir;
use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;

/// Updates after which a tensor whose gradient was always exactly zero is reported.
const WATCHED_UPDATES: u64 = 20;
/// Updates in a row whose gradients were not finite, after which the run ends.
const MOST_SKIPPED: u64 = 20;

/// The loss scale at which an overflow is no longer a matter of the scale: gradients overflow fp16 as they are, or the
/// forward pass does. A fresh run is there after 17 updates skipped in a row.
const LEAST_SCALE: f32 = 1.0;

/// What one update did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Number of the update, from 0.
    pub update: u64,
    /// Passes over the data before its first clip.
    pub epoch: u32,
    /// Loss of the update's clips.
    pub loss: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Global norm of the gradients before clipping.
    pub grad_norm: f32,
    /// All gradients were finite and the update was applied. (Clipped per tensor, it was applied to those that were.)
    pub applied: bool,
    /// The next update's loss scale, where there is one.
    pub loss_scale: Option<f32>,
    /// Rows trained on, of all ranks.
    pub rows: usize,
    /// Micro-batches, of all ranks, with those that were empty.
    pub micro_batches: usize,
    /// Wall seconds, with waiting.
    pub seconds: f64,
    /// Of these, seconds that the first rank spent waiting for its loader.
    pub loader_wait: f64,
    /// Counters of the process before.
    pub before: memory::Process,
    /// Counters of the process after.
    pub after: memory::Process,
    /// Some rank was asked to stop.
    pub stop: bool,
}

/// How the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All updates were done.
    Complete,
    /// A stop was asked for.
    Stopped,
    /// Gradients overflow fp16 at any useful loss scale: the run goes on in another precision, or not at all.
    Collapsed,
}

/// What the loop tells its caller.
pub trait Observer {
    /// After every update.
    fn step(&mut self, step: &Step, progress: &Progress) -> Result<(), RunError>;
    /// After every validation: losses of the weights and of the average.
    fn validated(&mut self, update: u64, raw: f64, ema: Option<f64>);
    /// Before every checkpoint: what it counts on must be on the disk.
    fn before_save(&mut self) -> Result<(), RunError>;
    /// After every checkpoint: seconds it took.
    fn saved(&mut self, update: u64, seconds: f64);
    /// Something a person should know.
    fn note(&mut self, text: &str);
}

/// A run in motion.
pub struct Trainer<'a> {
    /// The executor with the run's states.
    pub exec: &'a mut dyn Executor,
    /// The recipe.
    pub recipe: &'a Recipe,
    /// The rate of every update of the whole run.
    pub rate: &'a LearningRate,
    /// Held-out clips.
    pub validation: &'a Validation,
    /// Where checkpoints go.
    pub checkpoints: &'a CheckpointDir,
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
    /// Unreadable clips, a full disk, gradients that stay infinite, ranks that are gone.
    pub fn run(&mut self, loader: &Loader, observer: &mut dyn Observer) -> Result<Ended, RunError> {
        let mut silent = SilentTensors::watch(self.exec, self.progress.applied, self.world);
        let mut skipped = 0;
        while self.progress.update < self.rate.total {
            let step = self.update(loader)?;
            observer.step(&step, &self.progress)?;
            if !step.applied && step.loss_scale.is_some_and(|s| s < LEAST_SCALE) {
                self.progress.fp32_from = Some(self.progress.update);
                self.save(observer, true)?;
                return Ok(Ended::Collapsed);
            }
            skipped = if step.applied || step.loss_scale.is_some() { 0 } else { skipped + 1 };
            if skipped == MOST_SKIPPED {
                return Err(RunError::Training(format!(
                    "the gradients of {MOST_SKIPPED} updates in a row were not finite (last at update {}); \
                     lower learning_rate, or start from an earlier checkpoint",
                    step.update
                )));
            }
            if step.applied
                && let Some(names) = silent.look(self.exec, self.progress.applied, self.world)?
            {
                observer.note(&format!(
                    "the gradient of {} was exactly zero in each of the first {WATCHED_UPDATES} updates: nothing trains there",
                    names.join(", ")
                ));
            }
            let done = self.progress.update;
            let due = |every: u64| every > 0 && done.is_multiple_of(every);
            let stopping = step.stop;
            let last = done == self.rate.total || stopping;
            if due(self.recipe.validate_every) || last {
                self.validate(observer)?;
            }
            if due(self.recipe.save_every) || last {
                self.save(observer, last)?;
            }
            if stopping && done < self.rate.total {
                return Ok(Ended::Stopped);
            }
        }
        Ok(Ended::Complete)
    }

    fn update(&mut self, loader: &Loader) -> Result<Step, RunError> {
        let start = Instant::now();
        let mut step = Step {
            update: self.progress.update,
            learning_rate: self.rate.at(self.progress.applied),
            before: memory::process().unwrap_or_default(),
            ..Step::default()
        };
        // The program that applies gradients.
        let applies = match self.recipe.update {
            UpdateAt::End => program::UPDATE,
            UpdateAt::Backward => program::MICRO,
        };
        write_f32(self.exec, applies, "lr", step.learning_rate as f32)?;
        write_f32(self.exec, applies, "clip", self.recipe.clip as f32)?;
        if has_input(self.exec.planned(), applies, SEED) {
            let [seed, update] = rounding_key(self.recipe.seed, self.progress.update);
            let key = [seed, update, self.world.shard().0 as i32];
            let words = if self.world.held().is_some() { 3 } else { 2 };
            self.exec.write_i32(applies, SEED, 0, &key[..words])?;
        }
        let (losses, rows) = self.micro_batches(loader, applies, &mut step)?;
        self.meter.ended(phase::MICRO);
        let exec = &mut *self.exec;
        if applies == program::UPDATE {
            exec.run(program::UPDATE, 0)?;
        }
        let mut out = [0.0];
        exec.read_f32(applies, "grad_norm", 0, &mut out)?;
        step.grad_norm = out[0];
        exec.read_f32(applies, "apply", 0, &mut out)?;
        step.applied = out[0] != 0.0;
        let scaled = exec.planned().program(applies).is_some_and(|p| p.program.output(LOSS_SCALE).is_some());
        if scaled {
            exec.read_f32(applies, LOSS_SCALE, 0, &mut out)?;
            step.loss_scale = Some(out[0]);
        }
        if step.applied {
            if self.recipe.ema()
                && let Some(decay) = ema_decay(self.progress.applied)
            {
                write_f32(exec, program::EMA, "decay", decay)?;
                exec.run(program::EMA, 0)?;
            }
            self.progress.applied += 1;
        }
        self.share(&mut step, rows, &losses)?;
        self.meter.ended(phase::UPDATE);
        self.progress.update += 1;
        step.seconds = start.elapsed().as_secs_f64();
        step.after = memory::process().unwrap_or_default();
        Ok(step)
    }

    /// Runs this rank's micro-batches of an update: their losses, and rows in all.
    fn micro_batches(
        &mut self,
        loader: &Loader,
        applies: &str,
        step: &mut Step,
    ) -> Result<(Vec<f64>, usize), RunError> {
        let (mut losses, mut rows) = (Vec::new(), 0);
        let several = parts::in_flight(self.exec.planned());
        // Micro-batches of a pipeline's program that wait for the others of it.
        let mut written = 0;
        loop {
            let wait = Instant::now();
            let item = loader.next()?;
            step.loader_wait += wait.elapsed().as_secs_f64();
            debug_assert_eq!(item.update, self.progress.update);
            if applies == program::MICRO && !(item.first && item.last) {
                return Err(RunError::Training(format!(
                    "update {} has several micro-batches, which an update in backward cannot take: this is a bug, please \
                     report it; a larger --micro-batch goes around it",
                    item.update
                )));
            }
            let further = !losses.is_empty();
            if several > 1 && written + item.left >= several {
                write_one_of(self.exec, written, &item.batch)?;
                written += 1;
                if written == several {
                    let of_several = run_several(self.exec, several, further)?;
                    losses.extend(of_several.into_iter().map(f64::from));
                    written = 0;
                }
            } else {
                let loss = run_micro(self.exec, program::MICRO, &item.batch, further)?;
                losses.push(f64::from(loss));
            }
            rows += item.rows;
            step.epoch = item.epoch;
            let last = item.last;
            loader.recycle(item.batch);
            if last {
                return Ok((losses, rows));
            }
        }
    }

    /// What all ranks must know of an update, in one exchange: whether one was asked to stop, rows, losses.
    fn share(&self, step: &mut Step, rows: usize, losses: &[f64]) -> Result<(), RunError> {
        const HEAD: usize = 9;
        // Read once: what is asked for from here on is for the next step.
        let (losses, rows) = if self.world.says() { (losses, rows) } else { (&[][..], 0) };
        let mut mine = vec![u8::from(stop::requested())];
        mine.extend((rows as u64).to_le_bytes());
        mine.extend(losses.iter().flat_map(|x| x.to_le_bytes()));
        let mut all = self.world.exchange("the end of an update", &mine)?;
        for said in &mut all {
            let rest = said.split_off(HEAD.min(said.len()));
            let head = std::mem::replace(said, rest);
            let Some((stop, rows)) = head.split_first() else { continue };
            step.stop |= *stop != 0;
            step.rows += rows.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
        }
        let losses = interleaved(&all);
        step.micro_batches = losses.len();
        step.loss = losses.iter().sum();
        Ok(())
    }

    /// Losses of the weights and of the average on the fixed draws; remembers the best.
    ///
    /// # Errors
    /// Unreadable clips.
    pub fn validate(&mut self, observer: &mut dyn Observer) -> Result<(), RunError> {
        if self.validation.is_empty() {
            return Ok(());
        }
        let raw = self.validation.loss(self.exec, program::EVALUATE, self.world)?;
        let ema = if self.recipe.ema() {
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
        Ok(())
    }

    /// Saves and prunes. For want of room on the disk a run goes on with the checkpoints that it has, but for the `last`.
    pub(crate) fn save(&mut self, observer: &mut dyn Observer, last: bool) -> Result<(), RunError> {
        let start = Instant::now();
        let ready = observer.before_save();
        match saved::save(self.exec, self.checkpoints, &self.progress, self.world, ready) {
            Err(RunError::Full(why)) if !last => {
                observer.note(&format!(
                    "update {}: no checkpoint was saved: {why}; the earlier ones stay, and the run goes on",
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
        saved::prune(self.checkpoints, &self.progress, self.recipe.keep, u64::MAX)?;
        observer.saved(self.progress.update, start.elapsed().as_secs_f64());
        Ok(())
    }
}

/// What an update rounds stochastically by: the run's seed and the update's number.
fn rounding_key(seed: u64, update: u64) -> [i32; 2] {
    [(seed ^ (seed >> 32)) as i32, update as i32]
}

/// Trainable tensors whose gradient has been exactly zero so far. Zero at first is normal (a fresh model passes gradient to
/// its last layer only); zero for long means that the tensor is cut off. Where no gradient is kept, the first moment tells:
/// it is zero until a gradient was not; in 8 bits, its scales are.
///
/// Of several ranks each has parts of tensors; what is zero on all is told at the end of the watch.
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
            let tells = [GRAD, FIRST_SCALES, FIRST_MOMENT].into_iter().find_map(state)?;
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
