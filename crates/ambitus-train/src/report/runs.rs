//! `runs.html`: all runs of a folder on one page, with what differs between them and what came of it.

use super::chart::scale;
use super::{REPORT_FILE, facts, in_link, notes::Notes, rebuild, words, write_page};
use crate::metrics::{Curves, History, LOG_FILE, Log, Series, Summary};
use crate::run_dir::Lock;
use crate::runs_table::{self, Run};
use ambitus_families::error::RunError;
use ambitus_families::family::Families;
use ambitus_recipe::size::ByteSize;
use askama::Template;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use words::Words;

/// Name of the page in a folder of runs.
pub const RUNS_FILE: &str = "runs.html";

/// The page.
#[derive(Template)]
#[template(path = "runs.html")]
struct Page<'a> {
    name: String,
    written: u128,
    version: &'static str,
    rows: Vec<Row<'a>>,
}

/// A run.
struct Row<'a> {
    run: &'a Run,
    state: Words,
    /// Its pages: what they are called, and where they are.
    pages: Vec<(String, String)>,
    /// The loss, as points.
    spark: String,
    best: Option<f64>,
    base: Option<f64>,
    updates: u64,
    change: Option<f64>,
    seconds: Option<f64>,
    peak: String,
}

/// Writes the page of all runs under a folder, and the report of each whose log is newer. Returns the page, and what went wrong with
/// single runs.
///
/// # Errors
/// A folder that cannot be listed, a page that cannot be written.
pub fn write_runs(families: Families, folder: &Path) -> Result<(PathBuf, Vec<String>), RunError> {
    let table = runs_table::runs(families, folder).map_err(|e| RunError::io(folder, "cannot list", e))?;
    let mut wrong = Vec::new();
    let mut rows: Vec<Row<'_>> = table.runs.iter().map(|run| row(folder, run, &mut wrong)).collect();
    let loss = |row: &Row<'_>| row.best.unwrap_or(f64::INFINITY);
    rows.sort_by(|a, b| loss(a).total_cmp(&loss(b)).then(a.run.name.cmp(&b.run.name)));
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let page = Page {
        name: path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        written: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(),
        version: env!("CARGO_PKG_VERSION"),
        rows,
    };
    let path = folder.join(RUNS_FILE);
    write_page(&path, &page)?;
    Ok((path, wrong))
}

fn row<'a>(folder: &Path, run: &'a Run, wrong: &mut Vec<String>) -> Row<'a> {
    let path = folder.join(&run.name);
    wrong.extend(run.problems.iter().map(|problem| format!("{}: {problem}", run.name)));
    let pages = pages(&path, &run.name, wrong);
    let summary = facts::summary(&path);
    let history = Log::read(&path.join(LOG_FILE), 0).unwrap_or_else(|_| History::new(0));
    let notes = Notes::read(&path);
    let best = summary.as_ref().and_then(|s| s.validation_best).or(notes.best());
    let base = run.validation_base.or(notes.base()).filter(|base| *base > 0.0);
    let so_far = history.summary();
    Row {
        state: words::state(summary.as_ref().map_or("", |s: &Summary| &s.ended)),
        pages,
        spark: spark(&history.curves),
        best,
        base,
        updates: run.updates.unwrap_or(so_far.updates),
        change: best.zip(base).map(|(best, base)| 100.0 * (best / base - 1.0)),
        seconds: summary.as_ref().and_then(|s| s.step_seconds_median).or(so_far.step_seconds_median),
        peak: match (run.measured_peak_bytes, run.planned_peak_bytes) {
            (Some(peak), _) => ByteSize(peak).to_string(),
            (None, Some(planned)) => format!("≤ {}", ByteSize(planned)),
            (None, None) => "–".to_owned(),
        },
        run,
    }
}

/// Returns the reports of a run, or of its stages, written anew where the log is newer.
fn pages(path: &Path, name: &str, wrong: &mut Vec<String>) -> Vec<(String, String)> {
    let mut all = vec![(name.to_owned(), path.to_owned())];
    let stages = std::fs::read_dir(path.join("stages")).into_iter().flatten().flatten();
    all.extend(stages.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())));
    all[1..].sort();
    let mut out = Vec::new();
    for (label, path) in all {
        if !path.join(LOG_FILE).is_file() {
            continue;
        }
        if is_old(&path) {
            // A run that is held writes its page itself.
            match Lock::take(&path).and_then(|_held| rebuild(&path)) {
                Ok(()) | Err(RunError::Usage(_)) => {}
                Err(e) => wrong.push(e.to_string()),
            }
        }
        if path.join(REPORT_FILE).is_file() {
            let below = if label == name { String::new() } else { format!("/stages/{label}") };
            out.push((label, in_link(&format!("./{name}{below}/{REPORT_FILE}"))));
        }
    }
    out
}

/// Returns whether a run went on after its report was written.
fn is_old(run: &Path) -> bool {
    let changed = |name: &str| run.join(name).metadata().and_then(|m| m.modified()).ok();
    changed(REPORT_FILE).is_none_or(|report| changed(LOG_FILE).is_some_and(|log| log > report))
}

/// Returns the loss in a plane of 100 x 20.
fn spark(curves: &Curves) -> String {
    let points = || curves.of(Series::Loss).filter_map(|(at, span)| Some((at, span.mean()?)));
    let [low, high] = scale(points().map(|(_, y)| (y, y)), std::iter::empty());
    let mut text = String::new();
    for (x, y) in points() {
        let y = (1.0 - (y - low) / (high - low)).clamp(0.0, 1.0);
        // Writing to a string does not fail.
        let _ = write!(text, "{:.1},{:.1} ", 100.0 * x / curves.last().max(1) as f64, 20.0 * y);
    }
    text
}
