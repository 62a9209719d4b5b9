//! Recordings cut to clips that suit a model.

use crate::console::Console;
use crate::error::RunError;
use crate::family::{Families, ModelDir, OpenOptions};
use crate::stop;
use ambitus_data::DataError;
use ambitus_data::cut::{self, Options};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub use ambitus_data::cut::{Clips, Cut, Left, Limits, Note};

/// Shortest and longest clips that may be asked for, seconds.
const ASKED: std::ops::RangeInclusive<f64> = 0.1..=600.0;

/// What is cut, and how.
pub struct Asked<'a> {
    /// Files, and folders of files.
    pub given: &'a [PathBuf],
    /// Transcript of the one recording that is given; else those beside recordings.
    pub transcript: Option<&'a Path>,
    /// Folder that the clips go to.
    pub out: &'a Path,
    /// Folder of the model that will be trained.
    pub model: Option<&'a Path>,
    /// Shortest clip, seconds.
    pub least: Option<f64>,
    /// Longest clip, seconds.
    pub most: Option<f64>,
    /// Recordings at a time.
    pub threads: usize,
}

impl Asked<'_> {
    /// Returns how long clips may be: as asked, else as usual, and no longer than the model takes them.
    ///
    /// # Errors
    /// [`RunError::Usage`] with the option.
    pub fn limits(&self, families: Families) -> Result<Limits, RunError> {
        let options = OpenOptions { from_scratch: true, ..OpenOptions::default() };
        let model = self.model.map(|dir| ModelDir::open(families, dir, options)).transpose()?;
        let longest = model.and_then(|model| model.opened.longest_cut()).unwrap_or(f64::INFINITY);
        let (least, most) = (self.least, self.most);
        for (option, value) in [("min", least), ("max", most)] {
            if let Some(value) = value.filter(|value| !ASKED.contains(value)) {
                let why =
                    format!("--{option}-seconds: {value} is not from {} to {}", ASKED.start(), ASKED.end());
                return Err(RunError::Usage(why));
            }
        }
        if let Some(most) = most.filter(|most| *most > longest) {
            let why = format!("--max-seconds: {most} is more than the {longest:.2} s that the model takes");
            return Err(RunError::Usage(why));
        }
        let most = most.unwrap_or(Limits::USUAL.most).min(longest);
        let least = least.unwrap_or(Limits::USUAL.least.min(most / 2.0));
        if least > most / 2.0 {
            let why = format!(
                "--min-seconds: {least} is more than half of the longest, {most:.2}; two short ones could not be joined"
            );
            return Err(RunError::Usage(why));
        }
        Ok(Limits { least, most })
    }
}

/// Cuts recordings to clips. See [`ambitus_data::cut`].
///
/// # Errors
/// Limits, recordings, transcripts or a folder that cannot be used; then nothing was written.
pub fn cut(
    families: Families,
    asked: &Asked,
    console: &mut dyn Console,
) -> Result<(Clips, Limits), RunError> {
    let limits = asked.limits(families)?;
    let recordings = cut::recordings(asked.given, asked.transcript)?;
    let console = Mutex::new(console);
    let progress = |path: &Path, doing: &str, share: f64| {
        if let Ok(mut console) = console.lock() {
            let share =
                if share.is_finite() { format!(" {:.0} %", 100.0 * share.min(1.0)) } else { String::new() };
            console.progress(&format!("{doing} {}{share}", path.display()));
        }
        !stop::requested()
    };
    let options = Options { limits, threads: asked.threads, progress: &progress };
    match cut::cut(&recordings, asked.out, &options) {
        Ok(clips) => Ok((clips, limits)),
        Err(DataError::Stopped) => {
            let why = "whole clips stay; the same command goes on".to_owned();
            Err(RunError::Interrupted(why))
        }
        Err(e @ DataError::File { .. }) if matches!(&e, DataError::File { path, .. } if path == asked.out) => {
            Err(RunError::Usage(e.to_string()))
        }
        Err(e) => Err(e.into()),
    }
}
