//! Writes the training loop's log, its events for TensorBoard, and console output.

use crate::metrics::{self, History, Log, OfPlayer, Real, SlowSteps, StepFacts, Update};
use crate::report::Page;
use crate::samples::{Sound, Spoken};
use crate::saved::Progress;
use crate::tensorboard::Events;
use crate::trainer::{Observer, Played, Step};
use ambitus_families::console::{Console, Silent};
use ambitus_families::error::RunError;
use ambitus_plan::resolved::Resolved;
use std::collections::BTreeMap;
use std::path::Path;

/// Validations that are remembered.
const MOST_VALIDATIONS: usize = 4096;

/// Writes log and events, explains slow steps, prints progress.
pub struct Watcher<'a> {
    r: &'a Resolved,
    log: Log,
    /// The log so far, of the whole run.
    pub history: History,
    events: Events,
    slow: SlowSteps,
    /// The page of the run.
    pub page: Page,
    saving_seconds: f64,
    /// Validation losses of this process, by update.
    pub validations: Vec<(u64, f64)>,
    arena: u64,
    /// What this process holds on its card: a constant since the executor was opened.
    on_card: Option<u64>,
    /// Where it says so.
    pub console: &'a mut dyn Console,
}

impl<'a> Watcher<'a> {
    /// Continues a run's log with its history, its events and its page. `arena`: bytes of this rank's arena.
    pub fn new(
        r: &'a Resolved,
        (log, history, events): (Log, History, Events),
        page: Page,
        arena: u64,
        console: &'a mut dyn Console,
    ) -> Watcher<'a> {
        Watcher {
            r,
            log,
            history,
            events,
            slow: SlowSteps::default(),
            page,
            saving_seconds: 0.0,
            validations: Vec::new(),
            arena,
            on_card: r.device.held_on_card(),
            console,
        }
    }

    /// Records what the base says of the held-out clips and of the samples.
    pub fn began(&mut self, progress: &Progress, spoken: &Spoken) {
        if let Some(base) = progress.validation_base {
            self.record(|events| events.validated(0, base, None));
        }
        self.spoken(0, spoken);
    }

    /// Records the end of the run, after which come its results.
    pub fn ended(&mut self, update: u64, sounds: &[Sound], mel: &Path) {
        self.record(|events| events.end(update));
        for (name, path) in sounds {
            self.record(|events| events.sound(update, &format!("audio/{name}"), path));
        }
        if mel.exists() {
            self.record(|events| events.picture(update, "mel", mel));
        }
    }

    fn record(&mut self, event: impl FnOnce(&mut Events) -> Option<String>) {
        if let Some(said) = event(&mut self.events) {
            self.console.line(&said);
        }
    }

    /// Returns the number of steps over twice the median.
    pub fn slow_steps(&self) -> u64 {
        self.slow.count()
    }
}

/// Of ranks that say nothing.
impl Observer for Silent {
    fn step(&mut self, _: &Step, _: &Progress) -> Result<(), RunError> {
        Ok(())
    }
}

/// Returns reported losses by name.
fn named(reported: &[(&str, f64)]) -> BTreeMap<String, Real> {
    reported.iter().map(|(name, value)| ((*name).to_owned(), Real(*value))).collect()
}

/// Returns a player's part of a line of the log.
fn of_player(p: &Played) -> OfPlayer {
    OfPlayer {
        loss: p.loss,
        losses: named(&p.reported),
        learning_rate: p.learning_rate,
        grad_norm: f64::from(p.grad_norm),
        applied: p.applied,
    }
}

impl Observer for Watcher<'_> {
    fn step(&mut self, step: &Step, progress: &Progress) -> Result<(), RunError> {
        let first = &step.players[0];
        if progress.update == 1
            && let Some(said) = self.r.plan.shape.model.first_loss(first.loss)
        {
            self.console.line(&said);
        }
        let capacity = self.r.plan.shape.session.capacity.rows * step.micro_batches;
        let line = Update {
            update: progress.update,
            epoch: f64::from(step.epoch),
            clips: self
                .r
                .data
                .sets
                .iter()
                .map(|set| set.name.clone())
                .zip(step.of_sets.iter().copied())
                .collect(),
            loss: first.loss,
            losses: named(&first.reported),
            learning_rate: first.learning_rate,
            grad_norm: f64::from(first.grad_norm),
            loss_scale: first.loss_scale.map(f64::from),
            applied: step.applied(),
            players: match &*step.players {
                [_] => BTreeMap::new(),
                several => several.iter().map(|p| (p.name.to_owned(), of_player(p))).collect(),
            },
            step_seconds: step.seconds,
            loader_wait_seconds: step.loader_wait,
            page_faults_major: step.after.major_faults - step.before.major_faults,
            page_faults_minor: step.after.minor_faults - step.before.minor_faults,
            rss_bytes: step.after.rss_bytes,
            arena_bytes: self.arena,
            frames: step.rows as u64,
            frames_per_second: step.rows as f64 / step.seconds,
            fill: step.rows as f64 / capacity.max(1) as f64,
        };
        self.log.append(&line)?;
        self.record(|events| events.update(&line));
        if !step.applied() {
            let scale = step.loss_scale().map(f64::from);
            self.console.line(&metrics::skipped(progress.update, self.r.recipe.clip_per_tensor, scale));
        }
        let facts = StepFacts {
            update: progress.update,
            seconds: step.seconds,
            loader_wait_seconds: step.loader_wait,
            saving_seconds: self.saving_seconds,
            cpu_seconds: (step.after.cpu_micros - step.before.cpu_micros) as f64 / 1e6,
            major_faults: step.after.major_faults - step.before.major_faults,
            involuntary_switches: step.after.involuntary_switches - step.before.involuntary_switches,
            micro_batches: step.micro_batches as u64,
        };
        self.saving_seconds = 0.0;
        if let Some(why) = self.slow.observe(&facts) {
            self.console.line(&why);
            self.page.slow(progress.update, step.seconds, why);
        }
        self.history.add(&line);
        let show = metrics::Progress {
            update: progress.update,
            updates: self.r.updates,
            epoch: f64::from(step.epoch),
            pace: self.history.pace,
            best: progress.best.map(|(_, loss)| loss),
            unit: self.r.plan.shape.model.rows().unit,
            goes_on: true,
            rss_bytes: self.on_card.or(Some(step.after.rss_bytes)),
            budget_bytes: self.r.budget + self.r.host_beside(),
        };
        self.console.progress(&show.to_string());
        Ok(())
    }

    fn validated(&mut self, update: u64, raw: f64, ema: Option<f64>) {
        self.console.line(&metrics::validated(update, raw, ema));
        self.record(|events| events.validated(update, raw, ema));
        if self.validations.len() == MOST_VALIDATIONS {
            // For a picture every second is as good.
            let mut at = 0;
            self.validations.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
        self.page.validated(update, raw, ema);
        self.validations.push((update, ema.map_or(raw, |e| e.min(raw))));
    }

    fn validated_sets(&mut self, update: u64, losses: &[(String, f64)]) {
        if let Some(said) = metrics::of_sets(losses) {
            self.console.line(&said);
        }
        self.record(|events| events.validated_sets(update, losses));
    }

    fn spoken(&mut self, update: u64, spoken: &Spoken) {
        for (name, path) in &spoken.sounds {
            self.record(|events| events.sound(update, &format!("samples/{name}"), path));
        }
        if let Some(errors) = &spoken.errors {
            self.record(|events| events.heard(update, errors.rate()));
            self.page.heard(update, errors);
        }
    }

    fn before_save(&mut self) -> Result<(), RunError> {
        self.log.sync()?;
        // It repeats what is elsewhere: no reason to be without a checkpoint.
        self.record(Events::sync);
        Ok(())
    }

    fn saved(&mut self, update: u64, seconds: f64) {
        self.saving_seconds = seconds;
        self.slow.saved(seconds);
        self.page.lost(update, self.slow.lost());
    }

    fn settled(&mut self, update: u64) {
        self.page.write(&self.history, update, self.console);
    }

    fn note(&mut self, text: &str) {
        self.console.line(text);
    }
}
