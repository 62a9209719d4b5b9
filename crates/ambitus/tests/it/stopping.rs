//! `stop:`: a run ends by its validations, at the same update however often it was killed, and its best is what it leaves.

use crate::common;
use std::fs;
use std::path::{Path, PathBuf};

/// A rate that ruins the weights at once. The average, which takes over weights every 10 updates, validates the same from the first
/// validation to the fifth: that one is the best, and none is a gain.
fn recipe(dir: &Path, name: &str, lines: &str) -> PathBuf {
    let path = common::recipe(
        dir,
        name,
        &format!(
            "updates: 40\nbatch: {{clips: 3}}\nmicro_batch: 200\nvalidate_every: 2\nthreads: 2\nwarmup: 0\n{lines}"
        ),
    );
    let text =
        fs::read_to_string(&path).expect("a recipe").replace("learning_rate: 1e-3", "learning_rate: 0.3");
    fs::write(&path, text).expect("a recipe");
    path
}

fn export(run: &Path) -> Vec<u8> {
    fs::read(run.join("export/model.safetensors")).expect("an export")
}

#[test]
fn a_run_ends_after_validations_without_gain() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let path = recipe(dir, "run", "save_every: 0\nstop: {after: 2}");
    let path = path.display().to_string();
    let summary = common::json(dir, &["train", &path, "--memory", "1GiB", "--json"]);
    let run = dir.join("run");
    assert_eq!((&summary["updates"], &summary["ended"]), (&6.into(), &"complete".into()), "{summary:#}");
    assert_eq!(summary["best_update"], 2);
    let why = summary["stopped"].as_str().expect("a reason");
    let best = run.join("checkpoints/step-2");
    assert!(why.contains("stopped after update 6 of 40: 2 validations in a row without gain"), "{why}");
    assert!(why.ends_with(&best.display().to_string()), "{why}");
    // No checkpoint was asked for in between, but of the best.
    assert!(best.is_dir() && run.join("checkpoints/step-6").is_dir());
    // Of what was validated best, not of the last.
    let exported = common::named(&run.join("export/model.safetensors"));
    let averages = common::named(&best.join("ema.safetensors"));
    for (name, values) in &exported {
        let end = averages.iter().find(|(n, _)| n.ends_with(name.as_str()) || name.ends_with(n.as_str()));
        assert!(end.is_none_or(|(_, of_best)| of_best == values), "{name}");
    }
    let again = ["export", "run", "--out", "again"];
    common::ok(dir, &again);
    assert!(fs::read(dir.join("again/model.safetensors")).expect("an export") == export(&run));
    // A run that has ended stays so.
    common::ok(dir, &["resume", "run"]);
    assert!(!run.join("checkpoints/step-7").exists() && !run.join("checkpoints/step-40").exists());

    let killed = dir.join("killed");
    common::kill_and_resume(dir, &recipe(dir, "killed", "save_every: 1\nstop: {after: 2}"), "1GiB", &killed);
    assert!(export(&killed) == export(&run), "another update's weights");
    let log = fs::read_to_string(killed.join("metrics.jsonl")).expect("a log");
    assert_eq!(log.lines().count(), 6);
}

#[test]
fn a_stop_without_validation_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let path = recipe(dir, "run", "stop: {after: 2}");
    let text = fs::read_to_string(&path)
        .expect("a recipe")
        .replace("tokenizer: char", "tokenizer: char, validation: {share: 0}");
    fs::write(&path, text).expect("a recipe");
    let (code, said) = common::said(dir, &["train", &path.display().to_string(), "--memory", "1GiB"]);
    assert!(code == 2 && said.contains("no clip is held out"), "{code}: {said}");
    assert!(!dir.join("run").exists());
}
