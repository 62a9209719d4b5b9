//! One update, act by act: micro-batches of all players, the programs that apply their gradients, the average.

use super::Trainer;
use crate::data_loader::Loader;
use crate::gradients::{run_micro, run_several, write_one_of};
use crate::world::interleaved;
use ambitus_compile::optimizer::SEED;
use ambitus_compile::passes::precision::LOSS_SCALE;
use ambitus_families::batches::{has_input, write_f32};
use ambitus_families::error::RunError;
use ambitus_families::stop;
use ambitus_plan::budget::phase;
use ambitus_plan::memory;
use ambitus_plan::parts;
use ambitus_plan::resolved::Resolved;
use ambitus_plan::session::{Act, players, program};
use ambitus_recipe::rates::LearningRate;
use ambitus_recipe::recipe::UpdateAt;
use std::time::Instant;

/// A player in a run.
pub struct Play<'a> {
    /// Its name; empty for the only one.
    name: &'static str,
    /// Its program of a micro-batch.
    micro: String,
    /// Its program that applies gradients; the same, where the update is in backward.
    applies: String,
    /// The rate of every update.
    rate: &'a LearningRate,
    /// Largest norm of its gradients.
    clip: f64,
    /// Outputs of its micro-batch program that are reported besides the loss.
    reported: Vec<&'static str>,
}

impl<'a> Play<'a> {
    /// Returns the players of a resolved run at these rates, by player.
    pub fn all(r: &'a Resolved, rates: &'a [LearningRate]) -> Vec<Play<'a>> {
        let model = &*r.plan.shape.model;
        let applies = match r.recipe.update {
            UpdateAt::End => program::UPDATE,
            UpdateAt::Backward => program::MICRO,
        };
        let all = model.players().iter().zip(players(model)).zip(rates);
        all.map(|((of_model, player), rate)| {
            let (name, micro) = (of_model.name, player.program(program::MICRO));
            let planned = r.plan.planned.program(&micro);
            // Of a placed model each rank has some of the outputs.
            let here = |name: &str| planned.is_some_and(|p| p.program.output(name).is_some());
            let made = |name: &&&str| r.plan.parts.is_none() && here(name);
            let reported = model.reported().iter().filter(made).copied().collect();
            let clip = r.asked.recipe.clip(name);
            Play { name, micro, applies: player.program(applies), rate, clip, reported }
        })
        .collect()
    }
}

/// What one update did with one player.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Played {
    /// Its name; empty for the only one.
    pub name: &'static str,
    /// Loss of the update's clips.
    pub loss: f64,
    /// What is reported besides the loss, by name.
    pub reported: Vec<(&'static str, f64)>,
    /// Learning rate.
    pub learning_rate: f64,
    /// Norm of its gradients before clipping.
    pub grad_norm: f32,
    /// All its gradients were finite and the update was applied. (Clipped per tensor, it was applied to those that were.)
    pub applied: bool,
    /// The next update's loss scale, where there is one.
    pub loss_scale: Option<f32>,
}

/// What one update did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Number of the update, from 0.
    pub update: u64,
    /// Passes over the data before its first clip.
    pub epoch: u32,
    /// Clips of each of several data sets.
    pub of_sets: Vec<u32>,
    /// With each player, one at least.
    pub players: Vec<Played>,
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

impl Step {
    /// Returns whether the update of every player was applied.
    pub fn applied(&self) -> bool {
        self.players.iter().all(|p| p.applied)
    }

    /// Returns the next update's loss scale, where there is one.
    pub fn loss_scale(&self) -> Option<f32> {
        self.players.iter().find_map(|p| p.loss_scale)
    }
}

/// What this rank computed of an update: for every micro-batch, the loss and the reported numbers of every player; and the rows of
/// all micro-batches.
#[derive(Default)]
struct Share {
    numbers: Vec<f64>,
    rows: usize,
}

impl Trainer<'_> {
    pub(super) fn update(&mut self, loader: &Loader) -> Result<Step, RunError> {
        let start = Instant::now();
        let mut step = Step {
            update: self.progress.update,
            before: memory::process().unwrap_or_default(),
            players: self.players.iter().zip(&self.progress.applied).map(|(p, n)| p.begins(*n)).collect(),
            ..Step::default()
        };
        let acts = self.acts;
        let share = self.micro_batches(loader, &mut step)?;
        self.meter.ended(phase::MICRO);
        for act in acts {
            match *act {
                // On each of them above.
                Act::Micro(_) => {}
                Act::Update(player) => {
                    self.give_rate(player, &step)?;
                    self.exec.run(&self.players[player].applies, 0)?;
                    self.take_outcome(player, &mut step)?;
                }
                Act::Ema => self.average(&step)?,
            }
        }
        for (applied, played) in self.progress.applied.iter_mut().zip(&step.players) {
            *applied += u64::from(played.applied);
        }
        self.share(&mut step, &share)?;
        self.meter.ended(phase::UPDATE);
        self.progress.update += 1;
        step.seconds = start.elapsed().as_secs_f64();
        step.after = memory::process().unwrap_or_default();
        Ok(step)
    }

    /// Runs this rank's micro-batches of an update, each for all players.
    fn micro_batches(&mut self, loader: &Loader, step: &mut Step) -> Result<Share, RunError> {
        let mut share = Share::default();
        let several = parts::in_flight(self.exec.planned());
        // Micro-batches of a pipeline's program that wait for the others of it.
        let mut written = 0;
        loop {
            let wait = Instant::now();
            let item = loader.next()?;
            step.loader_wait += wait.elapsed().as_secs_f64();
            debug_assert_eq!(item.update, self.progress.update);
            if self.whole_updates && !(item.first && item.last) {
                return Err(RunError::Training(format!(
                    "update {} has several micro-batches, and is planned for one: this is a bug, please report it; a larger \
                     --micro-batch goes around it",
                    item.update
                )));
            }
            let further = !share.numbers.is_empty();
            if several > 1 && written + item.left >= several {
                write_one_of(self.exec, written, &item.batch)?;
                written += 1;
                if written == several {
                    let of_several = run_several(self.exec, several, further)?;
                    share.numbers.extend(of_several.into_iter().map(f64::from));
                    written = 0;
                }
            } else {
                for player in self.acts.iter().filter_map(Act::micro) {
                    let applies = self.recipe.update == UpdateAt::Backward;
                    if applies {
                        self.give_rate(player, step)?;
                    }
                    let Play { micro, reported, .. } = &self.players[player];
                    share.numbers.push(f64::from(run_micro(self.exec, micro, &item.batch, further)?));
                    for output in reported {
                        let mut value = [0.0];
                        self.exec.read_f32(micro, output, 0, &mut value)?;
                        share.numbers.push(f64::from(value[0]));
                    }
                    if applies {
                        self.take_outcome(player, step)?;
                    }
                }
            }
            share.rows += item.rows;
            (step.epoch, step.of_sets) = (item.epoch, item.of_sets);
            let last = item.last;
            loader.recycle(item.batch);
            if last {
                return Ok(share);
            }
        }
    }

    /// Writes what the program that applies a player's gradients takes besides them.
    fn give_rate(&mut self, player: usize, step: &Step) -> Result<(), RunError> {
        let Play { applies: name, clip, .. } = &self.players[player];
        write_f32(self.exec, name, "lr", step.players[player].learning_rate as f32)?;
        write_f32(self.exec, name, "clip", *clip as f32)?;
        if has_input(self.exec.planned(), name, SEED) {
            let [seed, update] = rounding_key(self.recipe.seed, self.progress.update);
            let key = [seed, update, self.world.shard().0 as i32];
            let words = if self.world.held().is_some() { 3 } else { 2 };
            self.exec.write_i32(name, SEED, 0, &key[..words])?;
        }
        Ok(())
    }

    /// Reads what that program says.
    fn take_outcome(&self, player: usize, step: &mut Step) -> Result<(), RunError> {
        let (name, played) = (&self.players[player].applies, &mut step.players[player]);
        let mut out = [0.0];
        self.exec.read_f32(name, "grad_norm", 0, &mut out)?;
        played.grad_norm = out[0];
        self.exec.read_f32(name, "apply", 0, &mut out)?;
        played.applied = out[0] != 0.0;
        let program = self.exec.planned().program(name);
        if program.is_some_and(|p| p.program.output(LOSS_SCALE).is_some()) {
            self.exec.read_f32(name, LOSS_SCALE, 0, &mut out)?;
            played.loss_scale = Some(out[0]);
        }
        Ok(())
    }

    /// Moves the average after what was applied, in the rhythm of the first player.
    fn average(&mut self, step: &Step) -> Result<(), RunError> {
        if step.players[0].applied
            && let Some(decay) =
                self.recipe.ema.and_then(|average| average.decay_after(self.progress.applied[0]))
        {
            write_f32(self.exec, program::EMA, "decay", decay)?;
            self.exec.run(program::EMA, 0)?;
        }
        Ok(())
    }

    /// Exchanges what all ranks must know of an update: whether one was asked to stop, rows, losses.
    fn share(&self, step: &mut Step, share: &Share) -> Result<(), RunError> {
        const HEAD: usize = 9;
        // Read once: what is asked for from here on is for the next step.
        let nothing = Share::default();
        let share = if self.world.says() { share } else { &nothing };
        let mut mine = vec![u8::from(stop::requested())];
        mine.extend((share.rows as u64).to_le_bytes());
        mine.extend(share.numbers.iter().flat_map(|x| x.to_le_bytes()));
        let mut all = self.world.exchange("the end of an update", &mine)?;
        for said in &mut all {
            let rest = said.split_off(HEAD.min(said.len()));
            let head = std::mem::replace(said, rest);
            let Some((stop, rows)) = head.split_first() else { continue };
            step.stop |= *stop != 0;
            step.rows += rows.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
        }
        let each = self.players.iter().map(|p| 1 + p.reported.len()).sum::<usize>();
        let numbers = interleaved(&all, each);
        step.micro_batches = numbers.len() / each;
        let mut column = 0;
        let mut next = || {
            column += 1;
            numbers.iter().skip(column - 1).step_by(each).sum::<f64>()
        };
        for (played, player) in step.players.iter_mut().zip(&self.players) {
            played.loss = next();
            played.reported = player.reported.iter().map(|name| (*name, next())).collect();
        }
        Ok(())
    }
}

impl Play<'_> {
    /// Returns what is recorded of the player in the update that follows `applied` updates.
    fn begins(&self, applied: u64) -> Played {
        Played { name: self.name, learning_rate: self.rate.at(applied), ..Played::default() }
    }
}

/// Returns what an update rounds stochastically by: the run's seed and the update's number.
fn rounding_key(seed: u64, update: u64) -> [i32; 2] {
    [(seed ^ (seed >> 32)) as i32, update as i32]
}
