//! Whole runs of the real binary: budget, kill and resume, export, the run folder.

use crate::common;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const SHORT: &str =
    "updates: 6\nbatch: {clips: 3}\nmicro_batch: 200\nsave_every: 2\nvalidate_every: 3\nthreads: 2";

fn number(v: &serde_json::Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or_else(|| panic!("{key} in {v:#}"))
}

#[test]
fn a_run_keeps_its_promises() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = common::recipe(dir, "run", SHORT);
    let recipe = recipe.display().to_string();
    let plan = common::json(dir, &["plan", &recipe, "--json", "--memory", "1GiB"]);
    let minimum = number(&plan, "minimum_budget_bytes");
    assert_eq!(minimum, number(&plan, "peak_bytes"));
    assert_eq!(plan["fits"], true);
    let categories = plan["categories"].as_object().expect("categories");
    let sum: u64 = categories.values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(sum, minimum, "{categories:?}");
    for program in plan["programs"].as_array().expect("programs") {
        let (t, bound) = (number(program, "transient_bytes"), number(program, "live_bound_bytes"));
        assert!(t as f64 <= 1.02 * bound as f64, "{program}");
    }
    let names: Vec<&str> =
        plan["phases"].as_array().expect("phases").iter().filter_map(|p| p["name"].as_str()).collect();
    let all = [
        "prepare", "plan", "load", "micro", "update", "evaluate", "sample", "save", "resume", "export",
        "results",
    ];
    assert_eq!(names, all);

    // One percent under: refused, before the folder of the run is left behind.
    let less = format!("{}KiB", minimum * 99 / 100 / 1024);
    let less = less.replace("KiB", "");
    let less = format!("{:.6}MiB", less.parse::<f64>().expect("a number") / 1024.0);
    let (code, text) = common::said(dir, &["train", &recipe, "--memory", &less]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("does not fit: needs"), "{text}");
    assert!(!dir.join("run").exists());

    // At the minimum: ends well, within the plan.
    let exact = format!("{:.6}MiB", (minimum as f64 / 1_048_576.0 * 1e6).ceil() / 1e6);
    let summary = common::json(dir, &["train", &recipe, "--memory", &exact, "--json"]);
    assert_eq!(number(&summary, "updates"), 6);
    assert_eq!(number(&summary, "arena_bytes_used"), number(&summary, "arena_bytes_planned"));
    let (peak, planned) = (number(&summary, "peak_rss_bytes"), number(&summary, "peak_planned_bytes"));
    assert!(peak <= planned, "peak {peak} above the plan {planned}");
    assert!(planned - peak <= (planned / 50).max(64 << 20), "peak {peak} far under the plan {planned}");
    // Phase by phase, but for the one that did not take place.
    let phases = summary["phases"].as_array().expect("phases");
    let took_place: Vec<&str> = phases.iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(took_place, all.into_iter().filter(|name| *name != "resume").collect::<Vec<_>>());
    for phase in phases {
        let (measured, planned) = (number(phase, "measured_bytes"), number(phase, "planned_bytes"));
        assert!(measured > 1 << 20 && measured <= planned.min(peak), "{phase}");
    }
    let run = dir.join("run");
    for file in [
        "recipe.yaml",
        "plan.json",
        "metrics.jsonl",
        "summary.json",
        "notes.jsonl",
        "report.html",
        "export/model.safetensors",
        "export/config.yaml",
        "export/vocab.txt",
        "pictures/loss.png",
        "pictures/memory.png",
        "pictures/mel.png",
        "audio/true.wav",
        "audio/base.wav",
        "audio/tuned.wav",
    ] {
        assert!(run.join(file).is_file(), "{file}");
    }
    let lines = std::fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    assert_eq!(lines.lines().count(), 6);

    // A second run in the same folder is refused; the table knows the first.
    let (code, text) = common::said(dir, &["train", &recipe, "--memory", "1GiB"]);
    assert_eq!(code, 2, "{text}");
    let table = common::ok(dir, &["runs", &dir.display().to_string()]);
    assert!(table.contains("run"), "{table}");

    // The export is a model that trains on.
    let export = run.join("export").display().to_string();
    let voice = dir.join("voice").display().to_string();
    let again = ["train", "--model", &export, "--data", &voice, "--updates", "1", "--memory", "1GiB"];
    common::ok(dir, &again);
}

fn states(run: &Path) -> Vec<(String, Vec<u8>)> {
    let step = run.join("checkpoints/step-6");
    let mut files: Vec<_> = ["model", "optimizer", "ema"]
        .iter()
        .map(|n| (n.to_string(), std::fs::read(step.join(format!("{n}.safetensors"))).expect("a shard")))
        .collect();
    files.sort();
    files
}

#[test]
fn killed_runs_end_with_the_same_bits() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let whole = common::recipe(dir, "whole", SHORT).display().to_string();
    common::ok(dir, &["train", &whole, "--memory", "1GiB"]);
    let want = states(&dir.join("whole"));

    let run = dir.join("cut");
    common::kill_and_resume(dir, &common::recipe(dir, "cut", SHORT), "1GiB", &run);
    assert!(states(&run) == want, "the resumed run differs");
}

/// What is damaged is passed over where an older checkpoint is whole, and no run begins again while any is there.
#[test]
fn damaged_checkpoints_are_no_missing_ones() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = common::recipe(dir, "run", &format!("{SHORT}\nkeep: 3")).display().to_string();
    common::ok(dir, &["train", &recipe, "--memory", "1GiB"]);
    let run = dir.join("run");
    let (at, want) = (run.display().to_string(), states(&run));
    let model = |step: u64| run.join(format!("checkpoints/step-{step}/model.safetensors"));
    let flip = |step: u64| {
        let mut bytes = std::fs::read(model(step)).expect("a file");
        *bytes.last_mut().expect("a byte") ^= 1;
        std::fs::write(model(step), bytes).expect("a file");
    };

    // The run is at update 2 again: a checkpoint comes before the damaged one of update 6.
    [4, 6].into_iter().for_each(flip);
    let (code, said) = common::said(dir, &["export", &at, "--out", "of-2"]);
    let passed = |said: &str| said.matches("damaged checkpoint passed over").count();
    assert!(code == 0 && passed(&said) == 2 && said.contains("step-6"), "{said}");
    std::fs::remove_file(run.join("summary.json")).expect("a summary");
    let (code, said) = common::said(dir, &["resume", &at]);
    assert!(code == 0 && passed(&said) == 2 && said.contains("resuming after update 2"), "{said}");
    assert!(states(&run) == want, "the resumed run differs");

    [2, 4].into_iter().for_each(flip);
    let manifest = run.join("checkpoints/step-6/manifest.json");
    std::fs::rename(&manifest, dir.join("moved")).expect("a file");
    for command in ["resume", "export"] {
        let (code, said) = common::said(dir, &[command, &at]);
        assert!(code == 4 && said.contains("no checkpoint here can be used"), "{command}: {code}: {said}");
        assert!(said.contains("step-6/manifest.json") && said.contains("step-2/model.safetensors"), "{said}");
    }
    std::fs::rename(dir.join("moved"), &manifest).expect("a file");
    common::ok(dir, &["resume", &at]);
    assert!(states(&run) == want, "nothing was replaced");
}

#[test]
fn a_signal_ends_the_step_and_saves() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let lines = SHORT.replace("updates: 6", "updates: 100000").replace("save_every: 2", "save_every: 0");
    let recipe = common::recipe(dir, "long", &lines).display().to_string();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ambitus"))
        .current_dir(dir)
        .args(["train", &recipe, "--memory", "1GiB"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let metrics = dir.join("long/metrics.jsonl");
    while std::fs::read_to_string(&metrics).map_or(0, |t| t.lines().count()) < 3 {
        std::thread::sleep(Duration::from_millis(20));
        assert!(child.try_wait().expect("a status").is_none(), "the run ended by itself");
    }
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(child.wait().expect("a status").code(), Some(10));
    let saved = std::fs::read_dir(dir.join("long/checkpoints")).expect("checkpoints").count();
    assert_eq!(saved, 1);
}
