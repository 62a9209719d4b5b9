//! Several data sets in one run: mixed as their weights say whatever happens to the run, and validated each.

use crate::common;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Two folders of clips whose names are the same.
fn voices(dir: &Path) {
    common::voice(dir, 9);
    fs::rename(dir.join("voice"), dir.join("anna")).expect("moved");
    common::voice(dir, 4);
    fs::rename(dir.join("voice"), dir.join("old")).expect("moved");
}

fn recipe(dir: &Path, name: &str, data: &str, lines: &str) -> PathBuf {
    let path = dir.join(format!("{name}.yaml"));
    let text = format!(
        "model: {{dir: {}}}\n{data}\nf5: {{tokenizer: char}}\nrun_dir: {}\nlearning_rate: 1e-3\nsample: {{steps: 2}}\nthreads: 1\n\
         micro_batch: 300\nupdates: 44\nvalidate_every: 22\n{lines}\n",
        common::fixture("v1").display(),
        dir.join(name).display(),
    );
    fs::write(&path, text).expect("a file");
    path
}

fn sets(dir: &Path) -> String {
    let [anna, old, cache] = ["anna", "old", "cache"].map(|name| dir.join(name).display().to_string());
    format!(
        "data:\n  sets:\n    - {{dir: {anna}, weight: 3}}\n    - {{dir: {old}}}\n  validation: [anna/clip01.wav, old/clip02.wav]\n  cache: {cache}"
    )
}

/// Clips of each set in each update, by the log.
fn log(run: &Path) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    let clips = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a line");
        let of = |name: &str| line["clips"][name].as_u64().unwrap_or(0);
        (of("anna"), of("old"))
    };
    text.lines().map(clips).collect()
}

fn mixed(log: &[(u64, u64)]) {
    for start in 0..log.len() {
        let (mut anna, mut all) = (0.0, 0.0);
        for (a, old) in &log[start..] {
            anna += *a as f64;
            all += (a + old) as f64;
            assert!((anna - 0.75 * all).abs() <= 1.0, "from {start}: {anna} of {all}: {log:?}");
        }
    }
}

#[test]
fn sets_are_mixed_by_their_weights_and_validated_each() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    voices(dir);
    let whole = recipe(dir, "whole", &sets(dir), "batch: {clips: 3}\nsave_every: 0");
    let summary = common::json(dir, &["train", &whole.display().to_string(), "--memory", "1GiB", "--json"]);
    let seen = log(&dir.join("whole"));
    assert_eq!(seen.len(), 44);
    assert!(seen.iter().all(|(anna, old)| anna + old == 3), "{seen:?}");
    mixed(&seen);
    // One clip of each is held out, so the whole is between the two.
    let of = |name: &str| summary["validation_sets"][name].as_f64().unwrap_or(f64::NAN);
    let last = summary["validation_last"].as_f64().expect("a loss");
    let [low, high] = [of("anna").min(of("old")), of("anna").max(of("old"))];
    assert!(low < high && low <= last && last <= high, "{low} {last} {high}: {summary:#}");

    // The mixture does not depend on who computes, nor on what was interrupted.
    let ranks = recipe(dir, "ranks", &sets(dir), "batch: {clips: 3}\nsave_every: 0");
    common::ok(dir, &["train", &ranks.display().to_string(), "--memory", "1GiB", "--ranks", "2"]);
    assert_eq!(log(&dir.join("ranks")), seen);
    let killed = dir.join("killed");
    let text = recipe(dir, "killed", &sets(dir), "batch: {clips: 3}\nsave_every: 1");
    common::kill_and_resume(dir, &text, "1GiB", &killed);
    assert_eq!(log(&killed), seen);
    let export = |run: &str| fs::read(dir.join(run).join("export/model.safetensors")).expect("an export");
    assert!(export("killed") == export("whole"));
}

#[test]
fn updates_by_frames_are_mixed_as_well() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    voices(dir);
    let path = recipe(dir, "run", &sets(dir), "batch: {seconds: 2.5}\nsave_every: 0");
    common::ok(dir, &["train", &path.display().to_string(), "--memory", "1GiB"]);
    let seen = log(&dir.join("run"));
    mixed(&seen);
    assert!(seen.iter().any(|(anna, old)| anna + old != seen[0].0 + seen[0].1), "{seen:?}");
    let said = common::ok(dir, &["runs", "run"]);
    assert!(said.contains("run"), "{said}");
}

#[test]
fn sets_that_cannot_be_mixed_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    voices(dir);
    let anna = dir.join("anna").display().to_string();
    let refused = |name: &str, data: &str, words: &str| {
        let path = recipe(dir, name, data, "batch: {clips: 3}");
        let (code, said) = common::said(dir, &["train", &path.display().to_string(), "--memory", "1GiB"]);
        assert!([2, 5].contains(&code) && said.contains(words), "{code}: {said}");
        assert!(!dir.join(name).exists());
    };
    refused(
        "twice",
        &format!("data: [{{dir: {anna}}}, {{dir: {anna}, name: b}}]"),
        "data set `b`: none of its clips is left",
    );
    refused("none", &format!("data: [{{dir: {anna}}}, {{dir: {anna}-none}}]"), "anna-none");
    refused(
        "weights",
        &format!("data: [{{dir: {anna}, weight: -1}}]"),
        "data.sets.0.weight: -1 is not a weight above 0",
    );
    let held = format!(
        "data: {{sets: [{{dir: {anna}}}, {{dir: {}}}], validation: [old/clip00.wav, old/clip01.wav, old/clip02.wav, old/clip03.wav]}}",
        dir.join("old").display()
    );
    refused("held", &held, "data set `old`: none of its clips is left");
}
