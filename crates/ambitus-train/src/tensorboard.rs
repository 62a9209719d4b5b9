//! `tensorboard/` in a run's folder: one event file with the log's numbers, validation losses, sounds, pictures, texts and settings.
//!
//! It repeats what is in other files, so a run needs none of it: where it cannot be written, that is said, and the run continues. A
//! run that resumes after an update cuts it back to there, and adds from the log what it lacks, so that every curve is one.

mod message;
mod records;

use crate::metrics::{Update, each_after};
use crate::pictures;
use crate::run_dir::RunDir;
use crate::runs_table::leaves;
use ambitus_families::error::RunError;
use ambitus_plan::resolved::Resolved;
use ambitus_recipe::size::ByteSize;
use ambitus_store::{open_file, open_own_file};
use message::{Message, SESSION_END, Wav};
use records::Records;
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The name of the folder.
pub const FOLDER: &str = "tensorboard";
/// How the names of event files begin; readers look for `tfevents`.
const NAMED: &str = "events.out.tfevents.";
/// Bytes of the header that our WAV files have.
const WAV_HEADER: usize = 44;

/// A run's event file.
#[derive(Debug)]
pub struct Events {
    folder: PathBuf,
    /// The run's log.
    log: PathBuf,
    /// What a file begins with.
    first: Vec<Message>,
    /// The last update.
    update: u64,
    /// Absent after a failure, until [`Events::sync`].
    open: Option<Records>,
}

impl Events {
    /// Returns the events of a run after `update`, 0 for one that begins, and what is wrong with them, for people. The log is
    /// resumed already.
    pub fn resume(r: &Resolved, run: &RunDir, update: u64) -> (Events, Option<String>) {
        let mut events =
            Events { folder: run.root.join(FOLDER), log: run.metrics(), first: first(r), update, open: None };
        let said = events.reopen();
        (events, said)
    }

    /// Opens the file, cut back to the last update, and completes it.
    fn reopen(&mut self) -> Option<String> {
        let resumed = self.complete();
        resumed.unwrap_or_else(|e| Some(self.failed(&e)))
    }

    fn complete(&mut self) -> Result<Option<String>, RunError> {
        let (folder, update) = (&self.folder, self.update);
        let failed = |e| RunError::io(folder, "cannot write", e);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let path = folder.join(file_name(folder).map_err(failed)?);
        // What comes after the end of a session are results, which are written again.
        let step = |event: &[u8]| {
            let (step, tag) = message::step_and_tag(event)?;
            (step <= update && tag != SESSION_END.as_bytes()).then_some(step)
        };
        let (mut records, last) = Records::resume(open_own_file(&path)?, &step).map_err(failed)?;
        let last = last.unwrap_or(0);
        if last == 0 {
            records.clear().map_err(failed)?;
            let mut first = self.first.iter();
            first.try_for_each(|m| records.append(m, &mut io::empty())).map_err(failed)?;
        }
        each_after(&self.log, last, &mut |line| records.append(&of_line(line), &mut io::empty()))?;
        self.open = Some(records);
        Ok((last < update).then(|| {
            format!(
                "{}: the numbers of updates {} to {update} are taken from the log, without validation losses and samples",
                path.display(),
                last + 1
            )
        }))
    }

    /// Adds an update.
    pub fn update(&mut self, line: &Update) -> Option<String> {
        self.update = line.update;
        self.append(&of_line(line))
    }

    /// Adds a validation's losses, of the weights and of the average.
    pub fn validated(&mut self, update: u64, raw: f64, ema: Option<f64>) -> Option<String> {
        let ema = ema.map(|loss| ("validation/ema".to_owned(), loss as f32));
        let numbers = [("validation/raw".to_owned(), raw as f32)].into_iter().chain(ema);
        self.append(&message::scalars(now(), update, numbers))
    }

    /// Adds a WAV file, as [`SoundWriter`](ambitus_data::SoundWriter) writes it.
    pub fn sound(&mut self, update: u64, tag: &str, path: &Path) -> Option<String> {
        self.file(path, &mut |file, bytes| Ok(message::sound(now(), update, tag, wav(file, bytes)?)))
    }

    /// Adds a picture, as [`Picture`](pictures::Picture) writes it.
    pub fn picture(&mut self, update: u64, tag: &str, path: &Path) -> Option<String> {
        let size = [pictures::WIDTH, pictures::HEIGHT];
        self.file(path, &mut |_, bytes| Ok(message::picture(now(), update, tag, size, bytes)))
    }

    /// Ends the session. Results come after it.
    pub fn end(&mut self, update: u64) -> Option<String> {
        self.append(&message::session_end(now(), update))
    }

    /// Returns once every event is on the disk: to be called before a checkpoint becomes valid. Tries again what failed.
    pub fn sync(&mut self) -> Option<String> {
        if self.open.is_none() {
            return self.reopen();
        }
        let synced = self.open.as_ref().map_or(Ok(()), Records::sync);
        self.kept(synced)
    }

    /// Adds a file, through the message that it is the tail of.
    fn file(
        &mut self,
        path: &Path,
        message: &mut dyn FnMut(&File, u64) -> io::Result<Message>,
    ) -> Option<String> {
        let records = self.open.as_mut()?;
        let added = open_file(path).map_err(RunError::from).and_then(|(mut file, bytes)| {
            let failed = |e| RunError::io(path, "cannot be an event", e);
            let message = message(&file, bytes).map_err(failed)?;
            records.append(&message, &mut file).map_err(failed)
        });
        added.err().map(|e| self.failed(&e))
    }

    fn append(&mut self, message: &Message) -> Option<String> {
        let appended = self.open.as_mut()?.append(message, &mut io::empty());
        self.kept(appended)
    }

    fn kept(&mut self, done: io::Result<()>) -> Option<String> {
        let e = done.err()?;
        Some(self.failed(&RunError::io(&self.folder, "cannot write", e)))
    }

    fn failed(&mut self, why: &RunError) -> String {
        self.open = None;
        format!("{why}; the run continues, and its events with the next checkpoint")
    }
}

/// Returns the name of the event file in a folder, of a new one where there is none.
fn file_name(folder: &Path) -> io::Result<String> {
    let names = std::fs::read_dir(folder)?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<io::Result<Vec<String>>>()?;
    let first = names.into_iter().filter(|name| name.starts_with(NAMED)).min();
    // Time, host, process and number, as readers split it; the host is nobody's business.
    Ok(first.unwrap_or_else(|| format!("{NAMED}{:.0}.ambitus.{}.0", now().floor(), std::process::id())))
}

/// Returns the time in Unix seconds.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// Returns a line of the log as scalars `train/KEY`; what is `null` there is NaN.
fn of_line(line: &Update) -> Message {
    let mut numbers = Vec::new();
    leaves(&mut "train".to_owned(), '/', &json!(line), &mut |tag, value| {
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
            Value::Null => Some(f64::NAN),
            _ => None,
        };
        numbers.extend(number.filter(|_| tag != "train/update").map(|x| (tag.to_owned(), x as f32)));
    });
    message::scalars(now(), line.update, numbers.into_iter())
}

/// Returns what the event file of a run begins with: recipe and plan as text, and the recipe's values as settings to compare runs by.
fn first(r: &Resolved) -> Vec<Message> {
    let now = now();
    let mut settings = Vec::new();
    leaves(&mut String::new(), '.', &r.recipe.to_value(), &mut |key, value| {
        settings.push((key.to_owned(), value.clone()));
    });
    let recipe = r.recipe.to_yaml().unwrap_or_default();
    vec![
        message::version(now),
        message::text(now, 0, "recipe", &format!("```yaml\n{recipe}```\n")),
        message::text(now, 0, "plan", &plan(r)),
        message::experiment(now, &settings, &["train/loss", "validation/raw", "validation/ema"]),
        message::session_start(now, &settings),
    ]
}

/// Returns the plan as a table in Markdown.
fn plan(r: &Resolved) -> String {
    let (peak, place) = (ByteSize(r.plan.peak_bytes), r.plan.peak_place());
    let mut out =
        format!("peak {peak} of {}, in {place}: {}\n\n", ByteSize(r.budget), r.plan.categories.line());
    out.push_str("| phase | planned | in use |\n|---|---|---|\n");
    for phase in &r.plan.phases {
        let [planned, used] = [phase.peak_bytes, phase.in_use_bytes].map(ByteSize);
        let _ = writeln!(out, "| {} | {planned} | {used} |", phase.name);
    }
    out
}

/// Reads the header of a WAV file of `bytes` bytes.
fn wav(file: &File, bytes: u64) -> io::Result<Wav> {
    let mut header = [0; WAV_HEADER];
    file.read_exact_at(&mut header, 0)?;
    let two = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let rate = u32::from(two(24)) | u32::from(two(26)) << 16;
    let (channels, each) = (two(22), u64::from(two(32)));
    match header.starts_with(b"RIFF") && &header[8..16] == b"WAVEfmt " && each > 0 {
        true => Ok(Wav { rate, channels, frames: (bytes - WAV_HEADER as u64) / each, bytes }),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "is no WAV file")),
    }
}

#[cfg(test)]
mod tests;
