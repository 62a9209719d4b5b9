//! All runs of a folder in one table: what differs between their recipes, and their results.

use ambitus_families::family::{Families, sections};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use ambitus_store::{open_file, read_file};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::metrics::{SUMMARY_FILE, Summary};
use crate::run_dir::TUNE_FILE;
use ambitus_families::error::RunError;
use ambitus_recipe::recipe::Recipe;
use ambitus_recipe::size::ByteSize;

/// Name of the resolved recipe in a run folder.
pub const RECIPE_FILE: &str = "recipe.yaml";
/// Name of the plan in a run folder.
pub const PLAN_FILE: &str = "plan.json";

/// How deep below the folder runs are looked for.
const MAX_DEPTH: usize = 4;
/// Folders that are looked into; a folder with more is not a folder of runs.
const MAX_FOLDERS: usize = 100_000;
/// Largest `summary.json` and `plan.json`: of 100 stages on 1,000 ranks they have a tenth of it.
pub(crate) const MAX_JSON: u64 = 4 << 20;
/// Longest value of a recipe in the table, in characters.
const MAX_CELL: usize = 32;
/// Widest table, in characters: where more keys differ than have room, they stand below it.
const MAX_WIDTH: usize = 120;

/// One run folder.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// Its path below the folder that was asked for; `.` is that folder.
    pub name: String,
    /// Values of the recipe's keys, by path, where runs differ; absent keys are absent.
    pub differs: BTreeMap<String, String>,
    /// Updates done.
    pub updates: Option<u64>,
    /// Planned peak in bytes.
    pub planned_peak_bytes: Option<u64>,
    /// Measured high-water mark in bytes.
    pub measured_peak_bytes: Option<u64>,
    /// Mel frames per second.
    pub tokens_per_second: Option<f64>,
    /// Validation loss of the base.
    pub validation_base: Option<f64>,
    /// Validation loss of the result.
    pub validation_last: Option<f64>,
    /// Word error rate of the base's samples, where a model heard them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_wer_base: Option<f64>,
    /// The same of the last samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_wer: Option<f64>,
    /// How it ended: the summary's word, or `not ended` without a summary.
    pub state: String,
    /// Files that are missing or damaged, each with the reason.
    pub problems: Vec<String>,
}

/// The runs under a folder, by name.
#[derive(Clone, Debug, Serialize)]
pub struct Runs {
    /// Keys of the recipe in which they differ.
    pub keys: Vec<String>,
    /// The runs.
    pub runs: Vec<Run>,
}

/// The one thing that is wanted of a plan; other keys are passed over.
#[derive(Deserialize)]
struct PlanFigures {
    peak_bytes: u64,
}

/// Reads all runs under `folder`. Only a folder that cannot be listed is an error; a damaged run is a row.
pub fn runs(families: Families, folder: &Path) -> std::io::Result<Runs> {
    let found = folders(folder)?;
    let mut read: Vec<(Run, Option<BTreeMap<String, String>>)> =
        found.iter().map(|run| read_run(families, folder, run)).collect();
    // A key differs if two recipes that could be read disagree on it; absent is a value too.
    let recipes: Vec<_> = read.iter().filter_map(|(_, recipe)| recipe.clone()).collect();
    let all: BTreeSet<&String> = recipes.iter().flat_map(BTreeMap::keys).collect();
    let differs = |key: &&String| recipes.windows(2).any(|pair| pair[0].get(*key) != pair[1].get(*key));
    let keys: Vec<String> = all.into_iter().filter(differs).cloned().collect();
    for (run, recipe) in &mut read {
        let values = recipe.take().unwrap_or_default();
        run.differs = values.into_iter().filter(|(k, _)| keys.contains(k)).collect();
    }
    Ok(Runs { keys, runs: read.into_iter().map(|r| r.0).collect() })
}

/// Returns the folders of all runs under `folder`, by name.
///
/// # Errors
/// A folder that cannot be listed.
pub fn folders(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    std::fs::read_dir(folder)?;
    let mut found = Vec::new();
    find(folder, 0, &mut 0, &mut found);
    found.sort();
    Ok(found)
}

/// Returns the text of a run's `summary.json`.
///
/// # Errors
/// A file that cannot be read, or is none.
pub fn summary_text(run: &Path) -> Result<String, RunError> {
    let path = run.join(SUMMARY_FILE);
    String::from_utf8(read_file(&path, MAX_JSON)?)
        .map_err(|_| RunError::Io(format!("{}: is not UTF-8 text", path.display())))
}

/// Finds run folders: those with one of the three files, but for tunings. Links are not followed; a run's own folders are not looked
/// into.
fn find(folder: &Path, depth: usize, looked: &mut usize, found: &mut Vec<PathBuf>) {
    *looked += 1;
    if folder.join(TUNE_FILE).exists() {
        return;
    }
    if [RECIPE_FILE, SUMMARY_FILE, PLAN_FILE].iter().any(|f| folder.join(f).exists()) {
        found.push(folder.to_path_buf());
        // The folder that was asked for may have a stray file next to its runs.
        if depth > 0 {
            return;
        }
    }
    if depth == MAX_DEPTH || *looked > MAX_FOLDERS {
        return;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            find(&entry.path(), depth + 1, looked, found);
        }
    }
}

fn read_run(families: Families, root: &Path, folder: &Path) -> (Run, Option<BTreeMap<String, String>>) {
    let name = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
    let mut run = Run { name: if name.is_empty() { ".".to_owned() } else { name }, ..Run::default() };
    run.state = "not ended".to_owned();
    match json::<Summary>(&folder.join(SUMMARY_FILE)) {
        Ok(Some(s)) => {
            run.updates = Some(s.updates);
            run.measured_peak_bytes = s.peak_rss_bytes;
            run.planned_peak_bytes = Some(s.peak_planned_bytes);
            run.tokens_per_second = s.tokens_per_second;
            run.validation_base = s.validation_base;
            run.validation_last = s.validation_last;
            (run.samples_wer_base, run.samples_wer) = (s.samples_wer_base, s.samples_wer);
            run.state = if s.ended.is_empty() { "finished".to_owned() } else { s.ended };
        }
        Ok(None) => {}
        Err(why) => {
            run.state = "damaged".to_owned();
            run.problems.push(why);
        }
    }
    match json::<PlanFigures>(&folder.join(PLAN_FILE)) {
        Ok(Some(plan)) => run.planned_peak_bytes = Some(plan.peak_bytes),
        Ok(None) => run.problems.push(format!("{PLAN_FILE} is missing")),
        Err(why) => run.problems.push(why),
    }
    let recipe = match Recipe::read(&folder.join(RECIPE_FILE), &sections(families)) {
        Ok((recipe, _)) => Some(flat(&recipe)),
        Err(e) => {
            // The row names the folder already.
            let file =
                Path::new(&e.file).file_name().map_or(e.file.clone(), |f| f.to_string_lossy().into_owned());
            run.problems.push(ambitus_recipe::recipe::RecipeError { file, ..e }.to_string());
            None
        }
    };
    (run, recipe)
}

/// Returns a JSON file; `None` if there is none.
fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = match open_file(path) {
        Ok((file, _)) => file,
        Err(e) => match e.source {
            Some(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Some(e) => return Err(format!("{name}: {e}")),
            None => return Err(format!("{name}: {}", e.what)),
        },
    };
    let reader = BufReader::new(file.take(MAX_JSON));
    serde_json::from_reader(reader).map(Some).map_err(|e| format!("{name}: {e}"))
}

/// Returns the recipe's values by path, as text. Where the results lie does not count as a difference.
pub(crate) fn flat(recipe: &Recipe) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    leaves(&mut String::new(), '.', &recipe.to_value(), &mut |key, value| {
        out.insert(key.to_owned(), shown(value));
    });
    out.remove("run_dir");
    out
}

/// Hands every value of an object that is none itself to `take`, by its path: `path`, and the keys with a separator between them.
pub(crate) fn leaves(path: &mut String, separator: char, value: &Value, take: &mut dyn FnMut(&str, &Value)) {
    let Value::Object(map) = value else { return take(path, value) };
    let start = path.len();
    for (key, value) in map {
        if start > 0 {
            path.push(separator);
        }
        path.push_str(key);
        leaves(path, separator, value, take);
        path.truncate(start);
    }
}

/// Returns a value of a recipe as text.
fn shown(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Number(n) => {
            n.as_f64().filter(|x| *x != 0.0 && x.abs() < 1e-3).map_or(n.to_string(), |x| format!("{x:e}"))
        }
        other => other.to_string(),
    }
}

impl fmt::Display for Runs {
    /// Writes the table for a terminal, problems below it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            return writeln!(f, "no runs here");
        }
        let narrow = self.table(&[]);
        let wide = self.table(&self.keys);
        let fits = wide.iter().all(|line| line.chars().count() <= MAX_WIDTH);
        for line in if fits { &wide } else { &narrow } {
            writeln!(f, "{line}")?;
        }
        for run in self.runs.iter().filter(|run| !fits && !run.differs.is_empty()) {
            let mut line = format!("{}:", run.name);
            for (key, value) in &run.differs {
                let part = format!(" {key} {}", cell(value));
                if line.chars().count() + part.chars().count() > MAX_WIDTH {
                    writeln!(f, "{line}")?;
                    line = "   ".to_owned();
                }
                line += &part;
                line.push(',');
            }
            writeln!(f, "{}", line.trim_end_matches(','))?;
        }
        for run in &self.runs {
            for problem in &run.problems {
                writeln!(f, "{}: {problem}", run.name)?;
            }
        }
        Ok(())
    }
}

impl Runs {
    /// Returns the lines of a table with these keys.
    fn table(&self, keys: &[String]) -> Vec<String> {
        let figures = ["updates", "planned", "measured", "frames/s", "base", "tuned", "change"];
        // Only where samples were heard.
        let heard = self.runs.iter().any(|run| run.samples_wer.is_some());
        let head = ["run"].into_iter().chain(keys.iter().map(String::as_str)).chain(figures);
        let head = head.chain(heard.then_some("wer")).chain(["state"]);
        let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
        rows.extend(self.runs.iter().map(|run| row(run, keys, heard)));
        let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        // Names and words to the left, numbers to the right.
        let left = |c: usize| c == 0 || c + 1 == widths.len();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells
                .map(|(c, (cell, &w))| if left(c) { format!("{cell:<w$}") } else { format!("{cell:>w$}") });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        rows.iter().map(line).collect()
    }
}

fn row(run: &Run, keys: &[String], heard: bool) -> Vec<String> {
    let none = || "-".to_owned();
    let bytes = |b: Option<u64>| b.map_or_else(none, |b| ByteSize(b).to_string());
    let number = |x: Option<f64>, digits: usize| x.map_or_else(none, |x| format!("{x:.digits$}"));
    let change = match (run.validation_base, run.validation_last) {
        (Some(base), Some(last)) if base > 0.0 => format!("{:+.1} %", (last / base - 1.0) * 100.0),
        _ => none(),
    };
    let mut row = vec![run.name.clone()];
    row.extend(keys.iter().map(|k| run.differs.get(k).map_or_else(none, |v| cell(v))));
    row.extend([
        run.updates.map_or_else(none, |n| n.to_string()),
        bytes(run.planned_peak_bytes),
        bytes(run.measured_peak_bytes),
        number(run.tokens_per_second, 0),
        number(run.validation_base, 4),
        number(run.validation_last, 4),
        change,
    ]);
    row.extend(heard.then(|| run.samples_wer.map_or_else(none, |rate| format!("{:.1} %", 100.0 * rate))));
    row.push(cell(&run.state));
    row
}

/// Shortens a long value to its end, which says more than its start: paths differ there.
fn cell(value: &str) -> String {
    let clean: Vec<char> = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.len() {
        n if n > MAX_CELL => "…".chars().chain(clean[n - MAX_CELL + 1..].iter().copied()).collect(),
        _ => clean.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn run(root: &Path, name: &str, change: impl FnOnce(&mut Recipe), last: f64) -> PathBuf {
        let folder = root.join(name);
        fs::create_dir_all(folder.join("checkpoints")).unwrap();
        let mut recipe = Recipe::new("models/base", "voice");
        recipe.run_dir = Some(name.into());
        change(&mut recipe);
        fs::write(folder.join(RECIPE_FILE), recipe.to_yaml().unwrap()).unwrap();
        fs::write(folder.join(PLAN_FILE), r#"{"fits":true,"peak_bytes":1610612736,"phases":[]}"#).unwrap();
        let summary = Summary {
            updates: 20,
            tokens_per_second: Some(1840.4),
            validation_base: Some(0.8),
            validation_last: Some(last),
            peak_rss_bytes: Some(1 << 30),
            ended: "finished".to_owned(),
            ..Summary::default()
        };
        summary.write(&folder).unwrap();
        folder
    }

    #[test]
    fn only_differences_are_columns() {
        let root = tempfile::tempdir().unwrap();
        let a = |r: &mut Recipe| (r.learning_rate, r.checkpoint) = (Some(1e-4), "none".parse().ok());
        let b = |r: &mut Recipe| (r.learning_rate, r.checkpoint) = (Some(1e-5), "all".parse().ok());
        run(root.path(), "a", a, 0.6);
        run(root.path(), "deep/er/b", b, 0.7);
        let found = runs(ambitus_families::ALL, root.path()).unwrap();
        assert_eq!(found.keys, ["checkpoint", "learning_rate"]);
        let names: Vec<&str> = found.runs.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["a", "deep/er/b"]);
        let table = found.to_string();
        let expected = "\
run        checkpoint  learning_rate  updates   planned  measured  frames/s    base   tuned   change  state
a                none           1e-4       20  1.50 GiB  1.00 GiB      1840  0.8000  0.6000  -25.0 %  finished
deep/er/b         all           1e-5       20  1.50 GiB  1.00 GiB      1840  0.8000  0.7000  -12.5 %  finished
";
        assert_eq!(table, expected);
        let json: Value = serde_json::to_value(&found).unwrap();
        assert_eq!(json["runs"][1]["differs"]["checkpoint"], "all");
        assert_eq!(json["runs"][0]["planned_peak_bytes"], 1_610_612_736_u64);
    }

    #[test]
    fn a_table_that_would_be_wide_has_its_keys_below() {
        let root = tempfile::tempdir().unwrap();
        run(root.path(), "a", |_| {}, 0.6);
        let b = |r: &mut Recipe| {
            (r.learning_rate, r.checkpoint, r.seed, r.keep) = (Some(1e-4), "none".parse().ok(), 7, 9);
            (r.updates, r.threads, r.save_every) = (Some(123_456), Some(3), 77);
            r.data.cache = Some("x".repeat(100).into());
        };
        run(root.path(), "b", b, 0.7);
        let text = runs(ambitus_families::ALL, root.path()).unwrap().to_string();
        assert!(text.lines().all(|line| line.chars().count() <= MAX_WIDTH), "{text}");
        assert!(text.starts_with("run  updates   planned"), "{text}");
        assert!(text.contains("b: checkpoint none,") && text.contains("threads 3"), "{text}");
    }

    #[test]
    fn damaged_runs_are_rows_with_reasons() {
        let root = tempfile::tempdir().unwrap();
        let a = run(root.path(), "a", |_| {}, 0.6);
        let b = run(root.path(), "b", |_| {}, 0.6);
        let c = run(root.path(), "c", |_| {}, 0.6);
        fs::write(a.join(SUMMARY_FILE), "{\"updates\": 3").unwrap();
        fs::write(a.join(PLAN_FILE), [0xff, 0x00]).unwrap();
        fs::write(b.join(RECIPE_FILE), "model: {dir: a, dirr: b}\n").unwrap();
        fs::remove_file(c.join(SUMMARY_FILE)).unwrap();
        fs::remove_file(c.join(PLAN_FILE)).unwrap();
        let table = runs(ambitus_families::ALL, root.path()).unwrap().to_string();
        for words in [
            "damaged",
            "a: summary.json: EOF",
            "a: plan.json: ",
            "b: recipe.yaml:1:17: model.dirr: unknown key",
            "not ended",
            "c: plan.json is missing",
        ] {
            assert!(table.contains(words), "{words}\n{table}");
        }
    }

    #[test]
    fn no_runs_is_said_and_no_folder_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(runs(ambitus_families::ALL, root.path()).unwrap().to_string(), "no runs here\n");
        assert!(runs(ambitus_families::ALL, &root.path().join("none")).is_err());
        run(root.path(), ".", |_| {}, 0.5);
        assert_eq!(runs(ambitus_families::ALL, root.path()).unwrap().runs[0].name, ".");
    }

    #[test]
    fn small_numbers_and_long_values_stay_short() {
        assert_eq!(cell(&"x".repeat(100)).chars().count(), MAX_CELL);
        assert_eq!(cell("a\nb"), "a b");
        let mut recipe = Recipe::new("m", "d");
        (recipe.learning_rate, recipe.weight_decay) = (Some(1e-5), Some(0.01));
        let values = flat(&recipe);
        assert_eq!((values["learning_rate"].as_str(), values["weight_decay"].as_str()), ("1e-5", "0.01"));
    }
}
