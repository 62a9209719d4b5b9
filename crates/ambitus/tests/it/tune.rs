//! `ambitus tune`: finds a rate from a bad one, in its plan; the same after a kill; and tries values of other keys.

use crate::common;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn recipe(dir: &Path, name: &str, lines: &str) -> String {
    let lines =
        format!("updates: 60\nbatch: {{clips: 3}}\nmicro_batch: 200\nthreads: 1\nmemory: 1GiB\n{lines}");
    let path = common::recipe(dir, name, &lines);
    // A hundredth of what this model wants.
    let text =
        fs::read_to_string(&path).expect("a recipe").replace("learning_rate: 1e-3", "learning_rate: 1e-5");
    fs::write(&path, text).expect("a recipe");
    path.display().to_string()
}

fn rates(tuned: &Value) -> Vec<f64> {
    let rows = tuned["table"].as_array().expect("a table");
    rows.iter().map(|row| row["learning_rate"].as_f64().expect("a rate")).collect()
}

#[test]
fn a_rate_is_found_and_a_kill_changes_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let path = recipe(dir, "run", "");
    let tuned = common::json(dir, &["tune", &path, "--run-dir", "tuned", "--json"]);
    let rate = tuned["learning_rate"].as_f64().expect("a rate");
    assert!(rate > 1e-4, "{tuned:#}");
    let number = |key: &str| tuned[key].as_u64().unwrap_or_else(|| panic!("{key}: {tuned:#}"));
    assert!(number("updates_spent") <= 150 && number("full_run_updates") == 60, "{tuned:#}");
    assert!(number("peak_rss_bytes") <= number("peak_planned_bytes"), "{tuned:#}");
    assert!((0.0..=1.0).contains(&tuned["confidence"].as_f64().expect("a share")));
    // The run that it recommends reaches what the given one does not.
    let run = |recipe: &str, to: &str| {
        common::json(dir, &["train", recipe, "--run-dir", to, "--no-samples", "--json"])
    };
    let (best, given) = (run(tuned["recipe"].as_str().expect("a recipe"), "best"), run(&path, "given"));
    assert_eq!(best["validation_base"], tuned["base"]);
    let last = |summary: &Value| summary["validation_last"].as_f64().expect("a loss");
    assert!(last(&best) < last(&given), "{best:#} {given:#}");

    // Killed after a few trials.
    let killed = dir.join("killed");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambitus"));
    command.current_dir(dir).args(["tune", &path, "--run-dir", "killed"]).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary runs");
    let trials = || -> usize {
        let text = fs::read(killed.join("tune.json")).unwrap_or_default();
        let known: Value = serde_json::from_slice(&text).unwrap_or_default();
        known["trials"].as_array().map_or(0, Vec::len)
    };
    while trials() < 4 && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("a child");
    child.wait().expect("a child");
    let known = || -> Value {
        serde_json::from_slice(&fs::read(killed.join("tune.json")).expect("what is known")).expect("JSON")
    };
    assert!(known()["result"].is_null(), "it was done before it was killed");
    // Another clip, and a damaged file, are refused; what was there is not touched.
    let clip = dir.join("voice/clip00.wav");
    let (kept, trials) =
        (fs::read(&clip).expect("a clip"), fs::read(killed.join("tune.json")).expect("trials"));
    fs::write(&clip, fs::read(dir.join("voice/clip04.wav")).expect("a clip")).expect("a clip");
    let (code, said) = common::said(dir, &["resume", "killed"]);
    assert!(code == 2 && said.contains("clips changed"), "{code}: {said}");
    fs::write(&clip, kept).expect("a clip");
    let text = String::from_utf8(trials.clone()).expect("JSON");
    for broken in [text.replacen("\"settings\": 0", "\"settings\": 99", 1), text[..text.len() / 2].to_owned()]
    {
        fs::write(killed.join("tune.json"), broken).expect("a file");
        let (code, said) = common::said(dir, &["resume", "killed"]);
        assert!(code == 6 && said.contains("tune.json"), "{code}: {said}");
    }
    fs::write(killed.join("tune.json"), trials).expect("a file");
    for (words, command) in [
        ("holds a run already", &["train", &path, "--run-dir", "killed"][..]),
        ("goes on as it was planned", &["resume", "killed", "--ranks", "2"]),
        ("is a tuning", &["watch", "killed", "--once"]),
    ] {
        let (code, said) = common::said(dir, command);
        assert!(code == 2 && said.contains(words), "{command:?}: {code}: {said}");
    }
    let again = common::json(dir, &["resume", "killed", "--json"]);
    for key in ["learning_rate", "confidence", "table", "base", "updates_spent"] {
        assert_eq!(again[key], tuned[key], "{key}");
    }
    let (yaml, whole) = (fs::read(killed.join("tuned.yaml")), fs::read(dir.join("tuned/tuned.yaml")));
    assert_eq!(yaml.expect("a recipe"), whole.expect("a recipe"));
    // One that is done says what it found, and trains nothing; one of another recipe is not taken for it.
    let before = fs::read(killed.join("tuned.yaml")).expect("a recipe");
    assert_eq!(common::json(dir, &["resume", "killed", "--json"])["table"], tuned["table"]);
    assert_eq!(fs::read(killed.join("tuned.yaml")).expect("a recipe"), before);
    let (code, said) = common::said(dir, &["tune", &path, "--run-dir", "killed", "--batch", "2"]);
    assert!(code == 2 && said.contains("another recipe"), "{code}: {said}");
    let runs = common::ok(dir, &["runs", "."]);
    assert!(!runs.contains("killed"), "{runs}");
}

#[test]
fn a_grid_is_tried_and_what_it_cannot_try_is_refused_before_training() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let path = recipe(dir, "run", "");
    let grid =
        ["tune", &path, "--run-dir", "grid", "--grid", "learning_rate=1e-6,1e-3", "--grid", "warmup=0,2"];
    let tuned = common::json(dir, &[&grid[..], &["--json"]].concat());
    assert_eq!(tuned["learning_rate"], 1e-3, "{tuned:#}");
    assert_eq!(tuned["settings"][0], serde_json::json!(["learning_rate", "1e-3"]), "{tuned:#}");
    // Four, and two of them with two draws each.
    assert_eq!(rates(&tuned).len(), 8, "{tuned:#}");
    let yaml = fs::read_to_string(dir.join("grid/tuned.yaml")).expect("a recipe");
    assert!(yaml.contains("warmup: "), "{yaml}");
    let again = common::json(dir, &["resume", "grid", "--json"]);
    assert_eq!(
        (&again["table"], &again["peak_planned_bytes"]),
        (&tuned["table"], &tuned["peak_planned_bytes"])
    );
    // Ranks share each trial.
    let ranks =
        ["tune", &path, "--run-dir", "ranks", "--ranks", "2", "--grid", "learning_rate=1e-6,1e-3", "--json"];
    assert_eq!(common::json(dir, &ranks)["learning_rate"], 1e-3);
    for (words, options) in [
        ("rang", vec!["--grid", "lora.rang=8"]),
        ("KEY=A,B,C", vec!["--grid", "warmup"]),
        ("cannot be tried", vec!["--grid", "data.max_seconds=1,2"]),
        ("with checkpoint: all: does not fit", vec!["--memory", "20MB", "--grid", "checkpoint=none,all"]),
    ] {
        let (code, said) =
            common::said(dir, &[&["tune", &path, "--run-dir", "wrong"], &options[..]].concat());
        assert!((code == 2 || code == 3) && said.contains(words), "{options:?}: {code}: {said}");
        assert!(!dir.join("wrong").exists(), "{options:?}");
    }
}
