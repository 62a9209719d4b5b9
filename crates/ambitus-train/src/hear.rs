//! `ambitus transcribe`: what is said in files, or how well given texts fit them.

use crate::inference::{self, InferenceOptions, Open, Source};
use ambitus_exec::executor::Executor;
use ambitus_families::error::{RunError, replaces_a_file};
use ambitus_families::hearing::{Asked, Ear, Hearing, Judged, Scored, Transcript};
use ambitus_families::weights::read_text;
use ambitus_plan::inference::Held;
use ambitus_store::write_atomic;
use std::fmt::Write;
use std::fs::create_dir_all;
use std::path::{Path, PathBuf};

/// The most bytes of texts.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// A model that is ready to hear.
pub struct Listening<'h> {
    ear: Box<dyn Ear + 'h>,
    exec: Box<dyn Executor>,
    /// Planned bytes of the process, or of the card.
    pub planned_bytes: u64,
}

impl<'h> Listening<'h> {
    /// Plans and loads a model.
    ///
    /// # Errors
    /// What is asked that the model does not know, weights that do not fit it, a plan above the budget.
    #[allow(clippy::borrowed_box, reason = "where weights come from is asked of the box")]
    pub fn open(
        hearing: &'h Box<dyn Hearing>,
        asked: &Asked<'h>,
        options: &InferenceOptions,
    ) -> Result<Listening<'h>, RunError> {
        let ear = hearing.ear(asked)?;
        let held = Held { before: ear.bytes(), then: ear.bytes() };
        let less = "--precision bf16-pure, or a smaller model, takes less";
        let programs = |session: &mut _, cache| ear.programs(session, cache);
        let Open { mut exec, planned_bytes, .. } = inference::open(hearing, programs, held, options, less)?;
        hearing.load(&mut *exec)?;
        Ok(Listening { ear, exec, planned_bytes })
    }

    /// Writes what is said in a file. See [`Ear::transcribe`].
    ///
    /// # Errors
    /// As there.
    pub fn transcribe(
        &mut self,
        path: &Path,
        heard: &mut dyn FnMut(f64, f64),
    ) -> Result<Transcript, RunError> {
        self.ear.transcribe(&mut *self.exec, path, heard)
    }

    /// Says how well a text fits a file. See [`Ear::score`].
    ///
    /// # Errors
    /// As there.
    pub fn score(&mut self, path: &Path, text: &str) -> Result<Scored, RunError> {
        self.ear.score(&mut *self.exec, path, text)
    }

    /// Says the same of the text that the model finds likeliest as well. See [`Ear::judge`].
    ///
    /// # Errors
    /// As there.
    pub fn judge(&mut self, path: &Path, text: &str) -> Result<Judged, RunError> {
        self.ear.judge(&mut *self.exec, path, text)
    }
}

/// Reads the texts of `files` files: of one all of it, of several a line each in their order.
///
/// # Errors
/// A file that cannot be read, or has another number of lines.
pub fn texts(path: &Path, files: usize) -> Result<Vec<String>, RunError> {
    let text = read_text(path, MAX_TEXT_BYTES, "name a file of text").map_err(|e| match e {
        RunError::Model(why) => RunError::Usage(why),
        e => e,
    })?;
    let texts: Vec<String> = match files {
        1 => vec![text.split_whitespace().collect::<Vec<_>>().join(" ")],
        _ => text.lines().map(|line| line.trim().to_owned()).collect(),
    };
    if texts.len() != files {
        return Err(RunError::Usage(format!(
            "{}: has {} lines for {files} files; give a line for each, in their order",
            path.display(),
            texts.len()
        )));
    }
    match texts.iter().position(String::is_empty) {
        None => Ok(texts),
        Some(i) => Err(RunError::Usage(format!("{}: line {}: has no text", path.display(), i + 1))),
    }
}

/// Returns a transcript as `SubRip` subtitles.
pub fn subtitles(transcript: &Transcript) -> String {
    let mut text = String::new();
    for (i, segment) in transcript.segments.iter().enumerate() {
        let [start, end] = [segment.start, segment.end].map(clock);
        // What separates times is no text.
        let said = segment.text.trim().replace("-->", "->");
        let _ = write!(text, "{}\n{start} --> {end}\n{said}\n\n", i + 1);
    }
    text
}

fn clock(seconds: f64) -> String {
    let ms = (seconds * 1000.0).round_ties_even() as u64;
    format!("{:02}:{:02}:{:02},{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
}

/// Returns a line of a data set's `metadata.csv`, which lies in `folder`: the file, by its path from there where it is below, and its text.
///
/// # Errors
/// A file that is not there; one whose name the form cannot say.
pub fn metadata_line(folder: &Path, file: &Path, text: &str) -> Result<String, RunError> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // It may be made later.
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let file = file.canonicalize().map_err(|e| RunError::io(file, "cannot find", e))?;
    let name = file.strip_prefix(&folder).unwrap_or(&file).display().to_string();
    if name.contains(['|', '\n']) {
        return Err(RunError::Usage(format!("{name}: rename it: metadata.csv cannot have | in a name")));
    }
    Ok(format!("{name}|{}\n", text.replace('|', " ").split_whitespace().collect::<Vec<_>>().join(" ")))
}

/// Refuses to write over a file that is heard, or something else than a file.
///
/// # Errors
/// [`RunError::Usage`] with the path.
pub fn apart(out: &Path, heard: &[PathBuf]) -> Result<(), RunError> {
    let there = out.canonicalize().ok();
    if there.is_some() && heard.iter().any(|file| file.canonicalize().ok() == there) {
        let why = "is one of the files that are heard; name another";
        return Err(RunError::Usage(format!("{}: {why}", out.display())));
    }
    replaces_a_file(out)
}

/// Writes a text to a file, whole or not at all; its folder is made where it is missing.
///
/// # Errors
/// A file that cannot be written.
pub fn write_file(path: &Path, text: &str) -> Result<(), RunError> {
    if let Some(folder) = path.parent() {
        create_dir_all(folder).map_err(|e| RunError::io(folder, "cannot make the folder", e))?;
    }
    Ok(write_atomic(path, text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_subtitles() {
        assert_eq!([0.0, 61.5, 3723.0045].map(clock), ["00:00:00,000", "00:01:01,500", "01:02:03,004"]);
    }

    #[test]
    fn a_line_of_a_data_set() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.wav");
        std::fs::write(&file, "").unwrap();
        assert_eq!(metadata_line(dir.path(), &file, " a | b\nc ").unwrap(), "a.wav|a b c\n");
    }
}
