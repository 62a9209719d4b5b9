//! `tensorboard/` in a run's folder: one event file with the log's numbers, validation losses, sounds, pictures, texts and settings.
//!
//! It repeats what is in other files, so a run needs none of it: where it cannot be written, that is said, and the run continues. A
//! run that resumes after an update cuts it back to there, and adds from the log and from `notes.jsonl` what it lacks, so that every
//! curve is one.

mod message;
mod records;

use crate::metrics::{LOG_FILE, Update, each_after};
use crate::pictures;
use crate::report::{NOTES_FILE, Notes, Validation};
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
/// The tag of a validation's loss; that of the average stands behind it.
const RAW: &str = "validation/raw";
/// The tag of the word error rate of samples.
const HEARD: &str = "samples/wer";
/// Bytes of the header that our WAV files have.
const WAV_HEADER: usize = 44;

/// A run's event file.
#[derive(Debug)]
pub struct Events {
    folder: PathBuf,
    /// The run's folder, with its log and its notes.
    run: PathBuf,
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
        let mut events = Events {
            folder: run.root.join(FOLDER),
            run: run.root.clone(),
            first: first(r),
            update,
            open: None,
        };
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
        let kept = |event: &[u8]| {
            let (step, tag) = message::step_and_tag(event)?;
            (step <= update && tag != SESSION_END.as_bytes()).then_some((step, tag == RAW.as_bytes()))
        };
        let (mut last, mut validated) = (0, None);
        let mut whole = |(step, is_validation): (u64, bool)| {
            last = step;
            if is_validation {
                validated = Some(step);
            }
        };
        let mut records = Records::resume(open_own_file(&path)?, &kept, &mut whole).map_err(failed)?;
        if last == 0 {
            records.clear().map_err(failed)?;
            validated = None;
            let mut first = self.first.iter();
            first.try_for_each(|m| records.append(m, &mut io::empty())).map_err(failed)?;
        }
        let notes = Notes::read(&self.run);
        // The base's is said by a run that begins.
        let lacking = |v: &&Validation| update > 0 && validated.is_none_or(|at| at < v.update);
        let lost = notes.validations.iter().filter(|v| v.update <= update).filter(lacking);
        let mut lost =
            lost.map(|v| (v.update, of_validation(v.update, v.loss.0, v.average.map(|x| x.0)))).peekable();
        each_after(&self.run.join(LOG_FILE), last, &mut |line| {
            while let Some((_, validation)) = lost.next_if(|(at, _)| *at < line.update) {
                records.append(&validation, &mut io::empty())?;
            }
            records.append(&of_line(line), &mut io::empty())
        })?;
        lost.try_for_each(|(_, message)| records.append(&message, &mut io::empty())).map_err(failed)?;
        self.open = Some(records);
        Ok((last < update).then(|| {
            format!(
                "{}: the numbers of updates {} to {update} are taken from the log, validation losses from {NOTES_FILE}; samples are \
                 left out",
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
        self.append(&of_validation(update, raw, ema))
    }

    /// Adds a validation's losses of several data sets.
    pub fn validated_sets(&mut self, update: u64, losses: &[(String, f64)]) -> Option<String> {
        let each = losses.iter().map(|(name, loss)| (format!("validation/set/{name}"), *loss as f32));
        self.append(&message::scalars(now(), update, each))
    }

    /// Adds the word error rate of samples.
    pub fn heard(&mut self, update: u64, rate: f64) -> Option<String> {
        self.append(&message::scalars(now(), update, [(HEARD.to_owned(), rate as f32)].into_iter()))
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

/// Returns a validation's losses, of the weights and of the average.
fn of_validation(update: u64, raw: f64, ema: Option<f64>) -> Message {
    let ema = ema.map(|loss| ("validation/ema".to_owned(), loss as f32));
    message::scalars(now(), update, [(RAW.to_owned(), raw as f32)].into_iter().chain(ema))
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
        message::experiment(now, &settings, &["train/loss", RAW, "validation/ema"]),
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
