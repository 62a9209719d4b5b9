//! `cargo xtask grade`: is the promise kept? Draws runs of random shapes, options, data and budgets, makes them with the real binary,
//! and measures each from outside, by the high-water mark that the system reports of a child that ended.
//!
//! A case is planned first. It is then trained within exactly the smallest budget that the plan names, resumed from an earlier
//! checkpoint and exported, and refused with one percent less. What is compared with what was measured is what each process
//! said that it would hold: the highest phase of a run, `export` of an export.

pub mod cases;
pub mod folders;
mod measure;
mod refusals;
mod table;

use ambitus_testkit::drawn;
use cases::Case;
use folders::Folders;
use measure::{Outcome, Ran};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What is graded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random cases.
    pub count: u64,
    /// How many of them are left out, from the first: to repeat one.
    pub skip: u64,
    /// Which.
    pub seed: u64,
    /// The fixed set of CI in place of random cases: one of each kind, small.
    pub fixed: bool,
    /// The cases that scale one thing by a thousand, after the others.
    pub scaled: bool,
    /// Random refusals in place of cases: how many.
    pub refusals: Option<u64>,
    /// The binary; without, `ambitus` of the release profile, built first.
    pub binary: Option<PathBuf>,
    /// Keep the folders of cases that broke a promise here.
    pub keep: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            count: 40,
            skip: 0,
            seed: 1,
            fixed: false,
            scaled: false,
            refusals: None,
            binary: None,
            keep: None,
        }
    }
}

/// One process that was measured against what it was to hold.
#[derive(Clone, Debug)]
pub struct Graded {
    /// The case and what was run of it.
    pub what: String,
    /// Ranks of the run.
    pub ranks: usize,
    /// What it was planned to hold at most.
    pub planned: u64,
    /// What the system says that it held.
    pub measured: u64,
}

impl Graded {
    /// Returns the bytes that were planned and not used; negative where the plan was exceeded.
    pub fn slack(&self) -> i64 {
        self.planned as i64 - self.measured as i64
    }
}

/// All that was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Runs, resumed runs and exports.
    pub graded: Vec<Graded>,
    /// Phases of runs, as they measured themselves.
    pub phases: Vec<Graded>,
    /// Transient bytes of programs over the most that live at once.
    pub over_bound: Vec<f64>,
    /// Promises that were broken, each in a line.
    pub broken: Vec<String>,
    /// Smallest budgets that were tried on both sides.
    pub minimums: usize,
}

/// Grades the cases and prints the table.
///
/// # Errors
/// What stopped it; and a promise that was broken.
pub fn grade(options: &Options) -> Result<(), String> {
    let binary = match &options.binary {
        Some(path) => std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?,
        None => build()?,
    };
    let dir = tempfile::tempdir().map_err(|e| format!("a folder for cases: {e}"))?;
    let folders = Folders::new(dir.path());
    if let Some(count) = options.refusals {
        return refusals::grade(&binary, &folders, count, options.seed);
    }
    let mut cases = match options.fixed {
        true => drawn(cases::fixed(), 2),
        false => (options.skip..options.count).map(|i| Case::draw(options.seed, i)).collect(),
    };
    if options.scaled {
        cases.extend(cases::scaled());
    }
    let mut report = Report::default();
    for (i, case) in cases.iter().enumerate() {
        let before = report.broken.len();
        let root = dir.path().join(format!("case-{i}"));
        one(&binary, case, &folders, &root, &mut report)?;
        let state = if report.broken.len() == before { "kept" } else { "BROKEN" };
        eprintln!("{}/{} {state}: {}", i + 1, cases.len(), case.name());
        report.broken[before..].iter().for_each(|why| eprintln!("    {why}"));
        if let (Some(keep), true) = (&options.keep, report.broken.len() > before) {
            let _ = std::fs::create_dir_all(keep);
            let _ = std::fs::rename(&root, keep.join(format!("case-{}-{i}", options.seed)));
        }
        let _ = std::fs::remove_dir_all(&root);
    }
    println!("{}", table::table(&report));
    match report.broken.len() {
        0 => Ok(()),
        n => Err(format!("{n} promises were broken:\n  {}", report.broken.join("\n  "))),
    }
}

/// Builds the command line as it is shipped.
fn build() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo)
        .current_dir(&root)
        .args(["build", "--release", "--package", "ambitus"])
        .status()
        .map_err(|e| format!("cargo build: {e}"))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    match status.success() {
        true => Ok(target.join("release/ambitus")),
        false => Err("the command line was not built".to_owned()),
    }
}

/// Plans, trains, resumes, exports and refuses one case.
fn one(
    binary: &Path,
    case: &Case,
    folders: &Folders,
    root: &Path,
    report: &mut Report,
) -> Result<(), String> {
    let recipe = case.write(folders, root)?;
    let run = root.join("run");
    let name = case.name();
    let ambitus = |args: &[&str]| measure::run(binary, root, args);
    let (recipe, run_dir) = (recipe.display().to_string(), run.display().to_string());
    let with = |head: &[&str], tail: &[&str]| -> Vec<String> {
        let all = head.iter().copied().chain(case.options.iter().map(String::as_str));
        all.chain(tail.iter().copied()).map(str::to_owned).collect()
    };
    let call = |args: Vec<String>| ambitus(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut broken = |why: String| report.broken.push(format!("{name}: {why}"));

    // Codes and mels are cached by the first of these, and made anew by the run that is measured.
    let planned = call(with(&["plan", &recipe], &["--memory", "64GiB", "--json"]))?;
    if planned.outcome == Outcome::Refused {
        // Options that do not go together are refused by name; there is nothing to grade.
        if case.goes_together {
            broken(format!("refused: {}", planned.said()));
        }
        return Ok(());
    }
    let Some(plan) = planned.json() else {
        broken(format!("plan ended with {}", planned.said()));
        return Ok(());
    };
    let minimum = plan["minimum_budget_bytes"].as_u64().unwrap_or(0);
    Case::forget(root);
    for p in plan["programs"].as_array().into_iter().flatten() {
        let bytes = |key: &str| p[key].as_f64().unwrap_or(0.0);
        if bytes("live_bound_bytes") > 0.0 {
            report.over_bound.push(bytes("transient_bytes") / bytes("live_bound_bytes"));
        }
    }

    let less = format!("{}B", minimum - minimum / 100 - 1);
    let refused = call(with(&["train", &recipe], &["--memory", &less, "--run-dir", &run_dir]))?;
    if refused.code != Some(3) {
        broken(format!("one percent under the smallest budget of {minimum}: {}", refused.said()));
    }
    if run.exists() {
        broken("a refused run left a folder".to_owned());
        let _ = std::fs::remove_dir_all(&run);
    }
    Case::forget(root);
    let budget = format!("{}B", (minimum as f64 * case.budget) as u64);
    let trained = call(with(&["train", &recipe], &["--memory", &budget, "--run-dir", &run_dir, "--json"]))?;
    report.minimums += 1;
    let Some(summary) = trained.json().filter(|_| trained.outcome == Outcome::Done) else {
        broken(format!("trained within {budget} (smallest {minimum}): {}", trained.said()));
        return Ok(());
    };
    compare(case, "train", &trained, &summary, report);

    // The run is resumed from an earlier checkpoint.
    let checkpoints = run.join("checkpoints");
    if std::fs::remove_dir_all(checkpoints.join(format!("step-{}", cases::UPDATES))).is_ok() {
        let _ = std::fs::remove_file(run.join("summary.json"));
        let resumed = ambitus(&["resume", &run_dir, "--json"])?;
        match resumed.json().filter(|_| resumed.outcome == Outcome::Done) {
            Some(summary) => compare(case, "resume", &resumed, &summary, report),
            None => report.broken.push(format!("{name}: resumed: {}", resumed.said())),
        }
    }
    let out = root.join("exported").display().to_string();
    let exported = ambitus(&["export", &run_dir, "--out", &out])?;
    if exported.outcome != Outcome::Done {
        report.broken.push(format!("{name}: exported: {}", exported.said()));
    }
    let of_export = |p: &&Value| p["name"] == "export";
    let plan: Value = std::fs::read(run.join("plan.json"))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    let planned = plan["phases"].as_array().and_then(|all| all.iter().find(of_export));
    if let Some(planned) = planned.and_then(|p| p["peak_bytes"].as_u64()) {
        add(case, "export", planned, exported.peak, report);
    }
    Ok(())
}

/// Compares a run that ended with its own summary.
fn compare(case: &Case, what: &str, ran: &Ran, summary: &Value, report: &mut Report) {
    let number = |key: &str| summary[key].as_u64().unwrap_or(0);
    add(case, what, number("peak_planned_bytes"), ran.peak, report);
    if number("arena_bytes_used") != number("arena_bytes_planned") {
        report.broken.push(format!("{}: {what}: the arena is not as planned", case.name()));
    }
    for phase in summary["phases"].as_array().into_iter().flatten() {
        let (name, planned) = (&phase["name"], phase["planned_bytes"].as_u64().unwrap_or(0));
        let Some(measured) = phase["measured_bytes"].as_u64() else { continue };
        let what = format!("{what}, {}", name.as_str().unwrap_or("?"));
        if measured > planned {
            let over = (measured - planned) as f64 / f64::from(1 << 20);
            report.broken.push(format!("{}: {what}: {over:.2} MiB above the plan", case.name()));
        }
        report.phases.push(Graded { what, ranks: case.ranks, planned, measured });
    }
}

fn add(case: &Case, what: &str, planned: u64, measured: u64, report: &mut Report) {
    let graded = Graded { what: format!("{}: {what}", case.name()), ranks: case.ranks, planned, measured };
    if graded.slack() < 0 {
        let over = -graded.slack() as f64 / f64::from(1 << 20);
        report.broken.push(format!("{}: {over:.2} MiB above the plan of {planned}", graded.what));
    }
    report.graded.push(graded);
}
