//! What limited a run and what to try next, by the real binary: of runs whose losses are so, or whose log and notes say so.

use crate::common;
use serde_json::Value;
use std::fs;
use std::path::Path;

const LINES: &str =
    "batch: {clips: 3}\nmicro_batch: 200\nvalidate_every: 2\nsave_every: 2\nthreads: 2\nsamples: false";

/// Trains, then changes the log's numbers and adds a note, as if the run had been killed after update 4, and goes on to its end.
/// Returns what the summary says, and what was said.
fn resumed(
    dir: &Path,
    name: &str,
    lines: &str,
    change: &dyn Fn(&mut Value),
    note: &str,
) -> (Vec<Value>, String) {
    let recipe = common::recipe(dir, name, &format!("{lines}\nupdates: 6")).display().to_string();
    let own = lines.contains("memory: ");
    common::ok(dir, &[&["train", &*recipe][..], if own { &[] } else { &["--memory", "1GiB"] }].concat());
    let run = dir.join(name);
    fs::remove_file(run.join("summary.json")).expect("a summary");
    fs::remove_dir_all(run.join("checkpoints/step-6")).expect("a checkpoint");
    let log = fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    let changed = |line: &str| {
        let mut line: Value = serde_json::from_str(line).expect("JSON");
        change(&mut line);
        format!("{line}\n")
    };
    fs::write(run.join("metrics.jsonl"), log.lines().map(changed).collect::<String>()).expect("a log");
    let notes = fs::read_to_string(run.join("notes.jsonl")).expect("notes");
    fs::write(run.join("notes.jsonl"), notes + note).expect("notes");
    let (code, said) = common::said(dir, &["resume", name]);
    assert_eq!(code, 0, "{said}");
    (lessons(&run), said)
}

fn lessons(run: &Path) -> Vec<Value> {
    let summary = fs::read_to_string(run.join("summary.json")).expect("a summary");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    summary["lessons"].as_array().expect("lessons").clone()
}

/// The lesson of a limit; it was said, and is on the page.
#[track_caller]
fn found<'a>(run: &Path, (all, said): &'a (Vec<Value>, String), limit: &str) -> &'a str {
    let lesson = all.iter().find(|l| l["limit"] == limit).unwrap_or_else(|| panic!("{all:?}: {said}"));
    let text = |key: &str| lesson[key].as_str().expect("a text");
    let line = format!("{}; try next: {}", text("evidence"), text("change"));
    let page = fs::read_to_string(run.join("report.html")).expect("a page").replace("&#39;", "'");
    assert!(said.contains(&line) && page.contains(&line), "{line}: {said}");
    text("change")
}

#[test]
fn what_the_log_and_the_notes_say_counts_after_a_resume() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let waits = |line: &mut Value| {
        line["step_seconds"] = 100.0.into();
        line["loader_wait_seconds"] = 90.0.into();
    };
    let of_loader = resumed(dir, "loader", LINES, &waits, "");
    assert_eq!(
        found(&dir.join("loader"), &of_loader, "loader"),
        "a faster disk for data.cache, or one in memory"
    );
    let saves = "{\"kind\":\"lost\",\"update\":4,\"saving\":5000.0}\n";
    let of_saving = resumed(dir, "saving", LINES, &|_| {}, saves);
    assert_eq!(found(&dir.join("saving"), &of_saving, "saving"), "save_every: 6");
    let others = "{\"kind\":\"lost\",\"update\":4,\"cores\":5000.0}\n";
    let long = |line: &mut Value| line["step_seconds"] = 100.0.into();
    let of_others = resumed(dir, "others", LINES, &long, others);
    assert!(found(&dir.join("others"), &of_others, "other_programs").ends_with("threads: 1"));
    // What is of a later update than the checkpoint is not the run's.
    let (all, said) = resumed(dir, "later", LINES, &long, &others.replace("\"update\":4", "\"update\":5"));
    assert!(all.iter().all(|l| l["limit"] != "other_programs"), "{said}");
}

/// Repeats a sound.
fn lengthen(path: &Path, times: usize) {
    let mut sound = fs::read(path).expect("a sound");
    let samples = sound.split_off(44).repeat(times);
    sound[4..8].copy_from_slice(&(36 + samples.len() as u32).to_le_bytes());
    sound[40..44].copy_from_slice(&(samples.len() as u32).to_le_bytes());
    fs::write(path, [sound, samples].concat()).expect("a sound");
}

/// A clip that is much longer than the others is what micro-batches are made for.
#[test]
fn one_long_clip_is_padding() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let voice = common::voice(dir, 40);
    lengthen(&voice.join("clip00.wav"), 12);
    let long = |line: &mut Value| line["step_seconds"] = 100.0.into();
    let lines = LINES.replace("micro_batch: 200\n", "");
    let of_padding = resumed(dir, "run", &lines, &long, "");
    assert_eq!(found(&dir.join("run"), &of_padding, "padding"), "data.max_seconds: 0.8");
}

/// Where only small micro-batches fit, a larger one would be faster: with the memory that is named, the plan is faster by as much.
#[test]
fn memory_that_a_faster_plan_needs_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let voice = common::voice(dir, 9);
    (0..9).for_each(|i| lengthen(&voice.join(format!("clip{i:02}.wav")), 6));
    let lines = LINES.replace("batch: {clips: 3}\nmicro_batch: 200\n", "batch: {clips: 8}\nema: false\n");
    let recipe = common::recipe(dir, "plan", &format!("{lines}\nupdates: 6")).display().to_string();
    let plan = |more: &[&str]| common::json(dir, &[&["plan", &recipe, "--json"], more].concat());
    let small = plan(&["--micro-batch", "440", "--memory", "1GiB"]);
    let budget = small["minimum_budget_bytes"].as_u64().expect("bytes") + (512 << 10);
    let long = |line: &mut Value| line["step_seconds"] = 100.0.into();
    let budget = format!("{:.6}MiB", budget as f64 / f64::from(1 << 20));
    let of_memory = resumed(dir, "run", &format!("{lines}\nmemory: {budget}"), &long, "");
    let run = dir.join("run");
    let more = found(&run, &of_memory, "memory").strip_prefix("memory: ").expect("a size");
    let [then, would] =
        [&budget, more].map(|memory| plan(&["--memory", memory])["step_seconds"].as_f64().expect("seconds"));
    let share = of_memory.0[0]["share"].as_f64().expect("a share");
    assert!(share >= 0.1 && 1.0 - would / then > share - 0.02, "{share}: {then} s and {would} s");
}

#[test]
fn what_was_learned_is_said() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let trained = |name: &str, lines: &str, rate: &str| {
        let path = common::recipe(dir, name, &format!("{LINES}\nupdates: 6\nwarmup: 0\n{lines}"));
        let text = fs::read_to_string(&path).expect("a recipe");
        fs::write(&path, text.replace("learning_rate: 1e-3", &format!("learning_rate: {rate}")))
            .expect("a recipe");
        let (code, said) = common::said(dir, &["train", &path.display().to_string(), "--memory", "1GiB"]);
        assert_eq!(code, 0, "{said}");
        (lessons(&dir.join(name)), said)
    };
    let falls = trained("falls", "ema: false\nschedule: constant", "1e-3");
    assert_eq!(found(&dir.join("falls"), &falls, "still_falling"), "updates: 9");
    let rises = trained("rises", "ema: false\nschedule: constant", "0.3");
    assert_eq!(found(&dir.join("rises"), &rises, "no_gain"), "learning_rate: 1.0e-1");
    // In seconds, nothing took long enough to be said.
    assert_eq!((falls.0.len(), rises.0.len()), (1, 1));
}
