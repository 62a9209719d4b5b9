//! `report.html`: a run on one page, which needs nothing but itself.
//!
//! It follows from what lies in the run's folder and from the log's curves ([`History`]), so it can be written while a run
//! trains, when it ends, and again when it was killed. Writing takes bounded memory: curves have at most
//! [`COLUMNS`](crate::metrics::COLUMNS) columns, and sounds are read as they are written.
//! `docs/decisions/0034-pages.md` says why it is made like this.

mod chart;
mod charts;
pub(crate) mod facts;
mod lessons;
pub(crate) mod notes;
mod others;
mod page;
mod runs;
pub(crate) mod sounds;
mod words;

use crate::metrics::{History, Lesson, Log, Summary, duration};
use ambitus_families::error::RunError;
use ambitus_recipe::size::ByteSize;
use ambitus_store::write_atomic_with;
use askama::Template;
use charts::{Charts, charts};
pub(crate) use facts::plan;
use facts::{Candidate, Choice, Plan};
pub(crate) use lessons::lessons;
pub(crate) use notes::{Heard, NOTES_FILE, Notes, Validation};
use others::{Other, others};
pub use page::Page;
pub use runs::{RUNS_FILE, write_runs};
use sounds::{HeldOut, Line, sounds};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use words::Words;

/// Name of the page in a run folder.
pub const REPORT_FILE: &str = "report.html";
/// Bytes of sounds that are in the page; others are links.
const MOST_SOUND_BYTES: u64 = 8 << 20;
/// Candidates of the search that are shown of those that fit, and of those that do not.
const SHOWN_CANDIDATES: usize = 8;

/// The page.
#[derive(Template)]
#[template(path = "report.html")]
struct Report<'a> {
    /// Name of the run's folder.
    name: String,
    state: Words,
    updates: u64,
    /// Updates of the whole run.
    of: u64,
    /// When it was written, in milliseconds since 1970.
    written: u128,
    version: &'static str,
    facts: Vec<Fact>,
    charts: Charts,
    lines: Vec<Line>,
    held_out: Vec<HeldOut>,
    phases: Vec<Phase>,
    categories: Vec<Part>,
    notes: &'a Notes,
    skipped: u64,
    /// Why it ended early, and whether it overfitted.
    verdicts: Vec<&'a str>,
    lessons: Vec<Lesson>,
    plan: &'a Plan,
    candidates: Vec<&'a Candidate>,
    recipe: &'a [Choice],
    others: Vec<Other>,
}

/// A figure of the head.
struct Fact {
    name: Words,
    value: String,
    more: String,
}

/// A phase's bytes.
struct Phase {
    name: Words,
    planned: String,
    measured: String,
    /// Percent of what the widest bar is.
    planned_share: f64,
    measured_share: f64,
}

/// A category's bytes at the peak.
struct Part {
    name: Words,
    class: &'static str,
    bytes: String,
    share: f64,
}

/// Writes the page of a run; it appears whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub fn write(run: &Path, history: &History, notes: &Notes) -> Result<(), RunError> {
    let plan = facts::plan(run).unwrap_or_default();
    let ended = facts::summary(run);
    let summary = ended.clone().unwrap_or_else(|| history.summary());
    let (lines, held_out) = sounds(run, &texts(&plan));
    let path = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let report = Report {
        name: path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        state: words::state(ended.as_ref().map_or("", |s| &s.ended)),
        updates: summary.updates,
        of: plan.run.updates.max(summary.updates),
        written: now.as_millis(),
        version: env!("CARGO_PKG_VERSION"),
        facts: figures(&summary, notes, &plan),
        charts: charts(&history.curves, notes, &plan),
        lines,
        held_out,
        phases: phases(&plan, &summary),
        categories: categories(&plan),
        notes,
        skipped: summary.skipped_updates,
        verdicts: [&summary.stopped, &summary.overfitting]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect(),
        lessons: ended.as_ref().map_or_else(Vec::new, |summary| lessons(summary, notes, &plan)),
        candidates: candidates(&plan.candidates),
        recipe: &plan.recipe,
        others: others(run, ended.as_ref()),
        plan: &plan,
    };
    write_page(&run.join(REPORT_FILE), &report)
}

/// Writes a page as it is made.
pub(crate) fn write_page(path: &Path, page: &impl Template) -> Result<(), RunError> {
    write_atomic_with(path, |out| {
        Template::write_into(page, out).map_err(|e| RunError::io(path, "cannot write", e))
    })
}

/// Writes the page of a run anew from its folder alone.
///
/// # Errors
/// A log that cannot be read; a page that cannot be written.
pub fn rebuild(run: &Path) -> Result<(), RunError> {
    let updates = facts::plan(run).map_or(0, |plan| plan.run.updates);
    let history = Log::read(&run.join(crate::metrics::LOG_FILE), updates)?;
    write(run, &history, &Notes::read(run))
}

/// Returns the figures of the head.
fn figures(s: &Summary, notes: &Notes, plan: &Plan) -> Vec<Fact> {
    let mut out = Vec::new();
    let mut add = |name, value, more| out.push(Fact { name, value, more });
    let best = s.validation_best.or_else(|| notes.best());
    let base = s.validation_base.or_else(|| notes.base());
    if let Some(best) = best {
        let change = base.filter(|base| *base > 0.0).map(|base| 100.0 * (best / base - 1.0));
        let more = change.zip(base).map(|(change, base)| format!("{base:.4} → {best:.4} ({change:+.1} %)"));
        add(Words("best validation loss", "最佳验证损失"), format!("{best:.4}"), more.unwrap_or_default());
    }
    if let (Some(base), Some(last)) = (notes.heard.first(), notes.heard.last()) {
        let [base, last] = [base, last].map(|heard| 100.0 * heard.rate());
        add(words::errors(notes), format!("{last:.1} %"), format!("{base:.1} % → {last:.1} %"));
    }
    if let Some(peak) = s.peak_rss_bytes {
        let [peak, budget] = ByteSize(peak).apart(ByteSize(plan.budget_bytes));
        let planned = ByteSize(s.peak_planned_bytes);
        add(
            Words("peak memory, of the budget", "内存峰值 / 预算"),
            format!("{peak} / {budget}"),
            format!("≤ {planned}"),
        );
    } else if plan.peak_bytes > 0 {
        let [peak, budget] = ByteSize(plan.peak_bytes).apart(ByteSize(plan.budget_bytes));
        add(
            Words("planned peak, of the budget", "规划峰值 / 预算"),
            format!("{peak} / {budget}"),
            String::new(),
        );
    }
    if let Some(speed) = s.tokens_per_second {
        let more = s.step_seconds_median.map(|s| format!("{s:.3} s"));
        let name = Words("speed; median time of an update", "速度；每次更新用时的中位数");
        add(name, format!("{speed:.0} {}/s", plan.run.unit), more.unwrap_or_default());
    }
    if s.wall_seconds > 0.0 {
        let more = if s.clips > 0 { format!("{} + {}", s.clips, s.validation_clips) } else { String::new() };
        add(
            Words("time; clips trained on + held out", "用时；训练 + 验证片段数"),
            duration(s.wall_seconds),
            more,
        );
    } else if let Some(median) = s.step_seconds_median {
        let left = plan.run.updates.saturating_sub(s.updates) as f64 * median;
        add(Words("time left, about", "预计剩余时间"), duration(left), String::new());
    }
    out
}

/// Returns the sentences that the run speaks.
fn texts(plan: &Plan) -> Vec<String> {
    serde_json::from_str(plan.value("samples.texts").unwrap_or_default()).unwrap_or_default()
}

fn phases(plan: &Plan, summary: &Summary) -> Vec<Phase> {
    let highest = plan.phases.iter().map(|p| p.peak_bytes).chain([plan.budget_bytes]).max().unwrap_or(0);
    let share = |bytes: u64| 100.0 * bytes as f64 / highest.max(1) as f64;
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "–".to_owned(), |b| ByteSize(b).to_string());
    let row = |p: &facts::Phase| {
        let took_place = summary.phases.iter().find(|s| s.name == p.name);
        let measured = took_place.and_then(|s| s.measured_bytes);
        Phase {
            name: words::phase(&p.name),
            planned: size(Some(p.peak_bytes)),
            measured: size(measured),
            planned_share: share(p.peak_bytes),
            measured_share: measured.map_or(0.0, share),
        }
    };
    plan.phases.iter().map(row).collect()
}

fn categories(plan: &Plan) -> Vec<Part> {
    // In the colours of the chart over a micro-batch.
    let order = ["process", "io", "parameters", "gradients", "optimizer", "ema", "activations", "workspace"];
    let all: u64 = plan.categories.values().sum();
    let part = |(i, name): (usize, &&str)| {
        let bytes = plan.categories.get(*name).copied().filter(|b| *b > 0)?;
        let share = 100.0 * bytes as f64 / all.max(1) as f64;
        let class = charts::COLORS[i % charts::COLORS.len()];
        Some(Part { name: words::category(name), class, bytes: ByteSize(bytes).to_string(), share })
    };
    order.iter().enumerate().filter_map(part).collect()
}

/// Returns the plan and its nearest alternatives, which the plan has in this order.
fn candidates(all: &[Candidate]) -> Vec<&Candidate> {
    let fits = |c: &&Candidate| ["chosen", "slower"].contains(&c.verdict.as_str());
    let fitting = all.iter().filter(fits).take(SHOWN_CANDIDATES);
    fitting.chain(all.iter().filter(|c| !fits(c)).take(SHOWN_CANDIDATES)).collect()
}

/// Returns a path as it stands in a link.
pub(crate) fn in_link(path: &str) -> String {
    let kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    path.bytes().map(|b| if kept(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Returns bytes for people.
fn size(bytes: &u64) -> String {
    ByteSize(*bytes).to_string()
}

#[cfg(test)]
mod tests;
