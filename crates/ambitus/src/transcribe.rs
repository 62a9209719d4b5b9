//! `ambitus transcribe`.

use crate::args::TranscribeArgs;
use crate::terminal::{self, Terminal};
use ambitus_families::EARS;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::hearing::{self, Asked};
use ambitus_plan::memory;
use ambitus_recipe::size::ByteSize;
use ambitus_train::hear::{self, Listening};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A line of JSON: a file, and what was heard in it or how well its text fits.
#[derive(Serialize)]
struct Line<'a, T> {
    file: &'a Path,
    #[serde(flatten)]
    heard: &'a T,
    planned_bytes: u64,
    measured_bytes: Option<u64>,
}

pub fn run(a: &TranscribeArgs) -> Result<(), RunError> {
    let subtitles = subtitle_files(a)?;
    subtitles.iter().chain(&a.metadata).try_for_each(|out| hear::apart(out, &a.files))?;
    let texts = a.text.as_deref().map(|path| hear::texts(path, a.files.len())).transpose()?;
    let model = hearing::open(EARS, &a.model, "")?;
    let asked = Asked {
        language: a.language.as_deref(),
        translate: a.translate,
        fallback: !a.no_fallback,
        context: !a.no_context,
        seed: a.seed,
        texts: texts.as_deref(),
    };
    let mut listening = Listening::open(&model, &asked, &a.on.options())?;
    let mut metadata = String::new();
    for (i, file) in a.files.iter().enumerate() {
        if let Some(texts) = &texts {
            let scored = listening.score(file, &texts[i])?;
            let words: Vec<String> =
                scored.words.iter().map(|w| format!("{:8.3} {}", w.logprob, w.word.trim())).collect();
            said(a, file, &scored, &listening, &words.join("\n"))?;
            continue;
        }
        let mut terminal = Terminal::new();
        let heard = listening.transcribe(file, &mut |done, of| {
            terminal.progress(&format!("{}: {done:.0} of {of:.0} s", file.display()));
        })?;
        drop(terminal);
        if let Some(path) = subtitles.get(i) {
            hear::write_file(path, &hear::subtitles(&heard))?;
        }
        if let Some(path) = a.metadata.as_deref().filter(|_| !heard.text.is_empty()) {
            metadata += &hear::metadata_line(path.parent().unwrap_or(path), file, &heard.text)?;
        }
        said(a, file, &heard, &listening, &heard.text)?;
    }
    if let Some(path) = &a.metadata {
        hear::write_file(path, &metadata)?;
    }
    if !a.json {
        let measured = memory::process().ok().map(|p| ByteSize(p.peak_rss_bytes).to_string());
        let measured = measured.unwrap_or_else(|| "?".to_owned());
        terminal::message(&format!("planned {}, measured {measured}", ByteSize(listening.planned_bytes)));
    }
    Ok(())
}

/// Returns the files of subtitles, in the order of the sounds.
fn subtitle_files(a: &TranscribeArgs) -> Result<Vec<PathBuf>, RunError> {
    let Some(folder) = &a.srt else { return Ok(Vec::new()) };
    let mut known = BTreeMap::new();
    let mut all = Vec::new();
    for file in &a.files {
        let name = file.file_stem().unwrap_or_default();
        if let Some(other) = known.insert(name, file) {
            let [other, file] = [other, file].map(|path| path.display());
            return Err(RunError::Usage(format!("--srt: {other} and {file} would have the same subtitles")));
        }
        all.push(folder.join(name).with_added_extension("srt"));
    }
    Ok(all)
}

fn said<T: Serialize>(
    a: &TranscribeArgs,
    file: &Path,
    heard: &T,
    listening: &Listening<'_>,
    text: &str,
) -> Result<(), RunError> {
    if !a.json {
        let of = if a.files.len() > 1 { format!("{}: ", file.display()) } else { String::new() };
        terminal::result(&format!("{of}{text}"));
        return Ok(());
    }
    let measured_bytes = memory::process().ok().map(|p| p.peak_rss_bytes);
    let line = Line { file, heard, planned_bytes: listening.planned_bytes, measured_bytes };
    let line = serde_json::to_string(&line).map_err(|e| RunError::Io(format!("{}: {e}", file.display())))?;
    terminal::result(&line);
    Ok(())
}
