//! Follows a run that trains elsewhere, from its folder alone, in which it writes nothing.
//!
//! Each look reads what was added to the log and the notes since the last one, so a run of any length takes the same memory. Whether
//! a process still holds the run is read from its lock file, and the lock is left alone ([`Lock::holder`]).

mod news;
mod tail;

use crate::metrics::{self, LOG_FILE, Lesson, Pace, Progress, Summary, Update, duration};
use crate::report::notes::{NOTES_FILE, Note};
use crate::report::{REPORT_FILE, facts, sounds};
use crate::run_dir::{Holder, Lock, RunDir};
use crate::runs_table::{PLAN_FILE, RECIPE_FILE};
use ambitus_families::error::RunError;
use news::News;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tail::Tail;

/// A run that writes nothing for that long is said to: it may validate, or have been stopped by a debugger or a full machine.
const QUIET: Duration = Duration::from_secs(60);
/// The same, in updates.
const QUIET_UPDATES: f64 = 20.0;
/// A process that cannot be looked at is given up after that long without a line.
const SILENT: Duration = Duration::from_secs(3600);

/// A run that is followed.
#[derive(Debug)]
pub struct Followed {
    root: PathBuf,
    /// The folder that has the log: the run's, or that of the stage that trains.
    at: PathBuf,
    log: Tail,
    notes: Tail,
    plan: Option<Plan>,
    seen: Seen,
    news: News,
    state: State,
}

/// What is wanted of a plan.
#[derive(Debug)]
struct Plan {
    updates: u64,
    unit: String,
    budget_bytes: u64,
    on_card: bool,
    clip_per_tensor: bool,
}

/// What log and notes say.
#[derive(Debug, Default)]
struct Seen {
    update: u64,
    epoch: f64,
    rss_bytes: u64,
    pace: Pace,
    /// The lowest validation loss after the base's.
    best: Option<f64>,
    /// The newest update with samples.
    sampled: Option<u64>,
}

/// Where a run is.
#[derive(Debug)]
enum State {
    /// It trains, begins or ends. The process, where that is not one of this machine; how long nothing was written.
    Runs { by: Option<String>, quiet: Duration },
    /// It came to its end.
    Complete(Box<Summary>),
    /// It was stopped after it saved its last update.
    Stopped,
    /// It ended without a word. Why that is assumed, and the update of its newest checkpoint.
    Lost { why: String, saved: Option<u64> },
    /// There is no folder any more.
    Gone,
}

impl Followed {
    /// Returns a run at which nobody has looked yet.
    pub fn new(root: &Path) -> Followed {
        let at = current(root);
        Followed {
            root: root.to_owned(),
            log: Tail::new(at.join(LOG_FILE)),
            notes: Tail::new(at.join(NOTES_FILE)),
            at,
            plan: None,
            seen: Seen::default(),
            news: News::default(),
            state: State::Runs { by: None, quiet: Duration::ZERO },
        }
    }

    /// Reads what is new. Returns the newest lines about it, `most` of them, and how many came before.
    ///
    /// # Errors
    /// A log or notes that are there and cannot be read.
    pub fn look(&mut self, most: usize) -> Result<(usize, Vec<String>), RunError> {
        // First: a process that is gone by now has written all that it will.
        let holder = Lock::holder(&self.root);
        loop {
            if self.plan.is_none() {
                self.plan = plan(&self.at);
            }
            let n = self.news.len();
            self.read_log()?;
            self.read_notes()?;
            self.read_samples();
            self.news.sort_from(n);
            let now = current(&self.root);
            if now == self.at {
                break;
            }
            *self = Followed { news: std::mem::take(&mut self.news), ..Followed::new(&self.root) };
            self.news.add(0, format!("stage {}:", name(&self.at)));
        }
        self.state = self.judge(holder);
        Ok(self.news.take(most))
    }

    fn read_log(&mut self) -> Result<(), RunError> {
        let Followed { log, seen, news, plan, .. } = self;
        let per_tensor = plan.as_ref().is_some_and(|plan| plan.clip_per_tensor);
        let read = log.read(&mut |line| {
            let Some(line) = line else {
                // As a resumed run cuts it. What was validated and spoken stays.
                *seen = Seen { best: seen.best, sampled: seen.sampled, ..Seen::default() };
                return;
            };
            // Damaged lines are passed over, and those that do not go on from the ones before.
            if let Ok(u) = serde_json::from_slice::<Update>(line)
                && u.update > seen.update
            {
                (seen.update, seen.epoch, seen.rss_bytes) = (u.update, u.epoch, u.rss_bytes);
                seen.pace.add(&u);
                if !u.applied {
                    news.add(u.update, metrics::skipped(u.update, per_tensor, u.loss_scale));
                }
            }
        });
        read.map_err(|e| RunError::io(self.log.path(), "cannot read", e))
    }

    fn read_notes(&mut self) -> Result<(), RunError> {
        let Followed { notes, seen, news, .. } = self;
        let read = notes.read(&mut |line| match line.map(serde_json::from_slice::<Note>) {
            None => seen.best = None,
            Some(Ok(Note::Validation(v))) => {
                let average = v.average.map(|average| average.0);
                let loss = average.map_or(v.loss.0, |average| average.min(v.loss.0));
                if v.update > 0 && loss.is_finite() {
                    seen.best = Some(seen.best.map_or(loss, |best| best.min(loss)));
                }
                news.add(v.update, metrics::validated(v.update, v.loss.0, average));
            }
            Some(Ok(Note::Heard(heard))) => {
                news.add(heard.update, metrics::heard_with(heard.update, &heard.errors()));
            }
            Some(Ok(Note::Slow(slow))) => news.add(slow.update, slow.why),
            Some(Ok(Note::Others(_) | Note::Lost(_)) | Err(_)) => {}
        });
        read.map_err(|e| RunError::io(self.notes.path(), "cannot read", e))
    }

    fn read_samples(&mut self) {
        let after = self.seen.sampled;
        for update in sounds::sampled(&self.at).into_iter().filter(|update| after.is_none_or(|n| n < *update))
        {
            let folder = self.at.join("samples").join(update.to_string());
            // It is written when all of them are there.
            let Some(facts) = sounds::facts(&folder) else { continue };
            self.seen.sampled = Some(update);
            let seconds: f64 = facts.lines.iter().map(|line| line.seconds).sum();
            let weights = &facts.weights;
            let said = format!(
                "update {update}: {seconds:.1} s of sound in {}, of the {weights} weights",
                folder.display()
            );
            self.news.add(update, said);
            for line in &facts.lines {
                let odd = |odd| format!("  listen to {}: {odd}", folder.join(name(&line.file)).display());
                line.oddities.iter().for_each(|o| self.news.add(update, odd(o)));
            }
        }
    }

    /// Returns where the run is, of which a process is the holder.
    fn judge(&self, holder: Holder) -> State {
        if !self.root.exists() {
            return State::Gone;
        }
        let files = [LOG_FILE, NOTES_FILE, PLAN_FILE, RECIPE_FILE].iter();
        let changed = files.filter_map(|file| self.at.join(file).metadata().and_then(|m| m.modified()).ok());
        let quiet =
            changed.max().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
        let summary = || facts::summary(&self.root).filter(|s| ["complete", "finished"].contains(&&*s.ended));
        let why = match holder {
            Holder::Here => return State::Runs { by: None, quiet },
            Holder::Nobody => "no process holds it".to_owned(),
            Holder::Unknown(by) if quiet < SILENT && summary().is_none() => {
                return State::Runs { by: Some(by), quiet };
            }
            Holder::Unknown(by) => format!(
                "nothing was written for {}, and {by} cannot be looked at from here",
                duration(quiet.as_secs_f64())
            ),
        };
        if let Some(summary) = summary() {
            return State::Complete(Box::new(summary));
        }
        let checkpoints = RunDir::at(self.at.clone()).checkpoints().list().unwrap_or_default();
        let saved = checkpoints.iter().map(|c| c.step).max();
        // A stop that was asked for saves the update that it comes after.
        if self.seen.update > 0 && saved == Some(self.seen.update) {
            return State::Stopped;
        }
        State::Lost { why, saved }
    }

    /// Returns whether nothing more will come.
    pub fn has_ended(&self) -> bool {
        !matches!(self.state, State::Runs { .. })
    }

    /// Returns where the run is in one line, of which a narrow terminal leaves out what comes last.
    pub fn line(&self) -> String {
        let mut parts = Vec::new();
        let state = match &self.state {
            State::Runs { .. } if self.seen.update == 0 => Some("starting"),
            State::Runs { .. } if self.seen.update >= self.updates() => Some("writing results"),
            State::Runs { .. } => None,
            State::Complete(_) => Some("complete"),
            State::Stopped => Some("stopped"),
            State::Lost { .. } if self.seen.update == 0 => Some("not begun"),
            State::Lost { .. } => Some("ended early"),
            State::Gone => Some("gone"),
        };
        if self.at != self.root {
            parts.push(format!("stage {}", name(&self.at)));
        }
        parts.extend(state.map(str::to_owned));
        if let State::Runs { quiet, .. } = &self.state
            && state.is_none()
            && quiet.as_secs_f64() > (QUIET_UPDATES * self.seen.pace.step_seconds()).max(QUIET.as_secs_f64())
        {
            parts.push(format!("no update for {}", duration(quiet.as_secs_f64())));
        }
        if self.seen.update > 0 {
            parts.push(self.progress());
        }
        if let State::Runs { by, .. } = &self.state {
            parts.extend(state.is_none().then(|| "training".to_owned()));
            parts.extend(by.clone());
        }
        parts.join(" · ")
    }

    /// Returns the updates of the whole run.
    fn updates(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.updates).max(self.seen.update)
    }

    fn progress(&self) -> String {
        let (seen, plan) = (&self.seen, self.plan.as_ref());
        let progress = Progress {
            update: seen.update,
            updates: self.updates(),
            epoch: seen.epoch,
            pace: seen.pace,
            best: seen.best,
            unit: plan.map_or("rows", |plan| &plan.unit),
            goes_on: !self.has_ended(),
            // The log has the process's; of a card the budget bounds another memory.
            rss_bytes: plan.filter(|plan| !plan.on_card).map(|_| seen.rss_bytes),
            budget_bytes: plan.map_or(0, |plan| plan.budget_bytes),
        };
        progress.to_string()
    }

    /// Returns how the run ended and what can be done now; nothing while it runs.
    pub fn how_it_ended(&self) -> Vec<String> {
        let (root, update) = (self.root.display(), self.seen.update);
        let go_on = format!("go on with: ambitus resume {root}");
        let done = format!("after update {update} of {}", self.updates());
        match &self.state {
            State::Runs { .. } => Vec::new(),
            State::Gone => vec![format!(
                "{root}: the folder is gone: the run was refused before its first update, or somebody removed it"
            )],
            State::Complete(s) => {
                let mut said = format!("complete after {} updates", s.updates);
                if let (Some(base), Some(best)) = (s.validation_base, s.validation_best) {
                    said += &format!(", validation loss: base {base:.4}, best {best:.4}");
                }
                let page = self.at.join(REPORT_FILE);
                let page = page.is_file().then(|| format!("all of it: {}", page.display()));
                let verdicts = [&s.stopped, &s.overfitting].into_iter().flatten().cloned();
                let lessons = s.lessons.iter().map(Lesson::english);
                [said].into_iter().chain(verdicts).chain(lessons).chain(page).collect()
            }
            State::Stopped => vec![format!("interrupted {done}, which is saved; {go_on}")],
            State::Lost { why, .. } if update == 0 => {
                vec![format!("{why}, and it has no update yet; {go_on}")]
            }
            State::Lost { why, saved } => {
                let from = saved.map_or("its start".to_owned(), |saved| format!("update {saved}"));
                vec![format!("{why}: it was killed or failed {done}; {go_on} (from {from})")]
            }
        }
    }
}

/// Returns the folder of the stage that trains: the first one that is not complete, or the last. Of a run without stages, its own.
fn current(root: &Path) -> PathBuf {
    let stages = std::fs::read_dir(RunDir::at(root.to_owned()).stages()).into_iter().flatten().flatten();
    let number = |path: &Path| name(path).split_once('-')?.0.parse::<u64>().ok();
    let mut stages: Vec<(u64, PathBuf)> =
        stages.filter_map(|stage| Some((number(&stage.path())?, stage.path()))).collect();
    stages.sort();
    let complete = |path: &Path| facts::summary(path).is_some_and(|s| s.ended == "complete");
    let last = stages.last().map(|(_, path)| path.clone());
    let trains = stages.into_iter().map(|(_, path)| path).find(|path| !complete(path));
    trains.or(last).unwrap_or_else(|| root.to_owned())
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn plan(run: &Path) -> Option<Plan> {
    let plan = facts::plan(run)?;
    let here = if plan.run.on_card || plan.host_on_disk.is_some() { 0 } else { plan.host_bytes };
    let clip = plan.recipe.iter().find(|choice| choice.key == "clip_per_tensor");
    Some(Plan {
        updates: plan.run.updates,
        unit: plan.run.unit,
        budget_bytes: plan.budget_bytes + here,
        on_card: plan.run.on_card,
        clip_per_tensor: clip.is_some_and(|choice| choice.value == "true"),
    })
}

#[cfg(test)]
mod tests;
