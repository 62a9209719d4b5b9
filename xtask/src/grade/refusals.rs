//! Are refusals true? Draws runs with less than their smallest budget. Each change that a refusal names is appended to the command word
//! for word, and must fit. Where none is named, descents over the space of options must find neither one that fits, nor one that
//! needs two percent less than the least that is stated.

use super::cases::Case;
use super::folders::{Folders, Random};
use super::measure;
use serde_json::Value;
use std::path::Path;

/// What is appended to a command: of each row one at most.
const SPACE: [&[&str]; 8] = [
    &["--precision bf16-pure", "--precision fp32", "--precision bf16-mixed", "--precision fp16-mixed"],
    &["--optimizer adamw-8bit", "--optimizer adamw-bf16"],
    &["--checkpoint all", "--checkpoint values:3", "--checkpoint none"],
    &["--no-ema"],
    &["--clip-per-tensor --update-in-backward"],
    &["--lora 8 --learning-rate 1e-4", "--lora 16 --learning-rate 1e-4"],
    &["--max-seconds 1"],
    &[
        "--offload all",
        "--offload optimizer,parameters,activations",
        "--offload optimizer,gradients,activations",
        "--offload optimizer,gradients,parameters,activations",
        "--offload optimizer",
        "--offload gradients",
        "--offload parameters",
        "--offload activations",
    ],
];
/// Which of each row a descent begins with, counted from 1; 0 is none of it.
const BEGIN: [[usize; SPACE.len()]; 3] =
    [[1, 1, 1, 1, 0, 1, 1, 1], [2, 1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0, 1, 2]];

/// What was found.
#[derive(Default)]
struct Found {
    /// Refusals that name changes, and how many changes.
    with_changes: usize,
    changes: usize,
    /// Refusals that state a least alone, and the plans that it was held against.
    leasts: usize,
    plans: usize,
    broken: Vec<String>,
}

/// A command that is planned with other options.
struct Command<'a> {
    binary: &'a Path,
    root: &'a Path,
    words: Vec<String>,
}

impl Command<'_> {
    /// Returns what the command says with these options, as its exit code and its JSON.
    fn plan(&self, budget: &str, options: &str) -> Result<(Option<i32>, Value), String> {
        let last = ["--json", "--memory", budget];
        let words = self.words.iter().map(String::as_str).chain(last).chain(options.split_whitespace());
        let ran = measure::run(self.binary, self.root, &words.collect::<Vec<_>>())?;
        Ok((ran.code, ran.json().unwrap_or_default()))
    }

    /// Returns the smallest budget with these options, where they go together.
    fn least(&self, options: &str) -> Result<Option<u64>, String> {
        Ok(self.plan("1TiB", options)?.1["minimum_budget_bytes"].as_u64())
    }

    /// Returns the options that need least, found one by one from where a descent begins, and how many plans that took.
    fn descend(&self, begin: [usize; SPACE.len()]) -> Result<(u64, String, usize), String> {
        let typed = |at: &[usize]| -> String {
            let words = SPACE.iter().zip(at).filter_map(|(row, i)| Some(row[i.checked_sub(1)?]));
            words.collect::<Vec<_>>().join(" ")
        };
        let (mut at, mut plans) = (begin, 1);
        let mut least = self.least(&typed(&at))?.unwrap_or(u64::MAX);
        loop {
            let before = least;
            for (row, levels) in SPACE.iter().enumerate() {
                for level in 0..=levels.len() {
                    let mut other = at;
                    other[row] = level;
                    if other != at {
                        plans += 1;
                        if let Some(bytes) = self.least(&typed(&other))?.filter(|bytes| *bytes < least) {
                            (at, least) = (other, bytes);
                        }
                    }
                }
            }
            // A round that found less than a tenth of two percent is the last.
            if least >= before - before / 500 {
                return Ok((least, typed(&at), plans));
            }
        }
    }
}

/// Draws `count` refusals and prints what was found of them.
///
/// # Errors
/// What stopped it; and each refusal that is not true.
pub(super) fn grade(binary: &Path, folders: &Folders, count: u64, seed: u64) -> Result<(), String> {
    let root = tempfile::tempdir().map_err(|e| format!("a folder for refusals: {e}"))?;
    let mut found = Found::default();
    for i in 0..count {
        let before = found.broken.len();
        let case = Case::draw_alone(seed, i);
        let root = root.path().join(i.to_string());
        let words = case.planned(folders, &root)?;
        let command = Command { binary, root: &root, words };
        let what = one(&command, &mut Random(seed ^ (i << 20)), &mut found)?;
        let state = if found.broken.len() == before { "true" } else { "FALSE" };
        eprintln!("{}/{count} {state}: {what}: {}", i + 1, case.name());
        found.broken[before..].iter().for_each(|why| eprintln!("    {why}"));
        found.broken[before..].iter_mut().for_each(|why| *why = format!("{}: {why}", case.name()));
    }
    let Found { with_changes, changes, leasts, plans, broken } = found;
    println!(
        "refusals: {with_changes} named {changes} changes; {leasts} stated a least alone, held against {plans} plans; {} were false",
        broken.len()
    );
    match broken.is_empty() {
        true => Ok(()),
        false => Err(format!("refusals were false:\n  {}", broken.join("\n  "))),
    }
}

/// Refuses one command, and returns what it was told in words.
fn one(command: &Command<'_>, random: &mut Random, found: &mut Found) -> Result<String, String> {
    let (code, whole) = command.plan("1TiB", "")?;
    let Some(smallest) = whole["minimum_budget_bytes"].as_u64() else {
        // With the code for options that cannot be meant.
        if code != Some(2) {
            found.broken.push(format!("a plan ended with exit code {code:?}"));
        }
        return Ok("no refusal, as its options do not go together".to_owned());
    };
    // From less than anything needs to nearly enough.
    let budget = smallest * random.within(10, 99) as u64 / 100;
    let (code, told) = command.plan(&format!("{budget}B"), "")?;
    if code != Some(3) {
        found.broken.push(format!("{budget} of {smallest} bytes: exit code {code:?}"));
    }
    let changes = told["changes"].as_array().cloned().unwrap_or_default();
    for change in &changes {
        let options = change["options"].as_str().unwrap_or("--absent");
        let (code, with) = command.plan(&format!("{budget}B"), options)?;
        let peak = with["peak_bytes"].as_u64().unwrap_or(u64::MAX);
        if code != Some(0) || peak > budget {
            found.broken.push(format!("{budget} bytes: {options}: exit code {code:?}, peak {peak}"));
        }
    }
    if !changes.is_empty() {
        found.with_changes += 1;
        found.changes += changes.len();
        return Ok(format!("{budget} of {smallest} bytes, {} changes", changes.len()));
    }
    found.leasts += 1;
    let stated = told["least"]["peak_bytes"].as_u64().unwrap_or(0);
    for begin in BEGIN {
        let (least, options, plans) = command.descend(begin)?;
        found.plans += plans;
        if least <= budget {
            found.broken.push(format!("{budget} bytes: {options} fits and was not named"));
        }
        if stated as f64 > 1.02 * least as f64 {
            found.broken.push(format!("{budget} bytes: the least is {stated}, but {options} needs {least}"));
        }
    }
    Ok(format!("{budget} of {smallest} bytes, a least of {stated}"))
}
