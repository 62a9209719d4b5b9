//! Samples that a Whisper hears while a run trains: their word error rate is everywhere, within the plan, and the run computes what it
//! would without. The model of `parity/whisper/fixtures/heard` has random weights, and hears something in any sound.

use crate::common::{self, json, ok, root, said};
use crate::samples::same_numbers;
use serde_json::Value;
use std::fs;
use std::path::Path;

const LINES: &str =
    "updates: 4\nvalidate_every: 2\nsave_every: 2\nbatch: {clips: 2}\nmicro_batch: 200\nthreads: 2\n";
const TEXTS: &str = "texts: [bad hide leaf, abc 12], clip: clip01, clip_text: bad 7";

fn whisper(name: &str) -> String {
    root().join("parity/whisper/fixtures").join(name).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Updates and rates of what the notes of a run say was heard.
fn noted(run: &Path) -> Vec<(u64, f64)> {
    let notes = read(&run.join("notes.jsonl"));
    let notes = notes.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let heard = notes.filter(|note| note["kind"] == "heard");
    let number = |note: &Value, key: &str| note[key].as_u64().expect("a number");
    heard.map(|n| (number(&n, "update"), number(&n, "errors") as f64 / number(&n, "words") as f64)).collect()
}

#[test]
fn samples_are_heard_and_no_number_depends_on_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 8);
    let heard_by = format!("{TEXTS}, heard_by: {}, language: en", whisper("heard"));
    let with = common::recipe(dir, "with", &format!("{LINES}samples: {{{heard_by}}}"));
    let without = common::recipe(dir, "without", &format!("{LINES}samples: {{{TEXTS}}}"));
    let summary = same_numbers(dir, &with, &without);
    assert!(summary["phases"].as_array().expect("phases").iter().any(|p| p["name"] == "hear"));

    let run = dir.join("with");
    let rates = noted(&run);
    let updates: Vec<u64> = rates.iter().map(|(update, _)| *update).collect();
    assert_eq!(updates, [0, 2, 4]);
    let near = |value: &Value, rate: f64| (value.as_f64().expect("a rate") - rate).abs() < 1e-9;
    assert!(near(&summary["samples_wer_base"], rates[0].1) && near(&summary["samples_wer"], rates[2].1));
    for (update, rate) in &rates {
        let facts: Value =
            serde_json::from_str(&read(&run.join(format!("samples/{update}/samples.json")))).expect("JSON");
        assert!(near(&facts["wer"], *rate), "{facts:#}");
        let lines = facts["lines"].as_array().expect("lines");
        let sum = |key: &str| lines.iter().map(|line| line[key].as_f64().expect("a number")).sum::<f64>();
        assert!((sum("errors") / sum("words") - rate).abs() < 1e-9 && (sum("words") - 5.0).abs() < 1e-9);
        assert!(lines.iter().all(|line| line["heard"].is_string() && line["wer"].is_number()));
    }

    // On the pages, in the table, in the events.
    let page = read(&run.join("report.html"));
    let percent = format!("{:.1} %", 100.0 * rates[2].1);
    assert!(page.contains(&percent) && page.contains("id=\"chart-heard\"") && page.contains("词错误率"));
    assert_eq!(page.matches("<span lang=\"en\">heard (").count(), 6);
    let folder = dir.display().to_string();
    let table = ok(dir, &["runs", &folder]);
    assert!(table.contains("wer") && table.contains(&percent), "{table}");
    let runs = json(dir, &["runs", &folder, "--json"]);
    let of = |name: &str| {
        let runs = runs["runs"].as_array().expect("runs");
        runs.iter().find(|run| run["name"] == name).expect("the run")["samples_wer"].clone()
    };
    assert!(near(&of("with"), rates[2].1) && of("without").is_null());
    let watched = ok(dir, &["watch", &run.display().to_string()]);
    assert!(watched.contains("update 2: word error rate of the samples"), "{watched}");
    let events = fs::read_dir(run.join("tensorboard")).expect("a folder").next().expect("a file");
    let events = fs::read(events.expect("a file").path()).expect("events");
    assert!(events.windows(11).filter(|tag| tag == b"samples/wer").count() == 3);

    // As after a kill: what was heard before its last checkpoint stays, the rest is heard again.
    fs::remove_dir_all(run.join("checkpoints/step-4")).expect("a checkpoint");
    fs::remove_file(run.join("summary.json")).expect("a summary");
    let again = json(dir, &["resume", &run.display().to_string(), "--json"]);
    assert_eq!(noted(&run), rates);
    assert!(near(&again["samples_wer_base"], rates[0].1) && near(&again["samples_wer"], rates[2].1));
}

/// A model that cannot be used when samples are due.
#[test]
fn a_run_goes_on_when_nothing_can_be_heard() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 8);
    fs::create_dir(dir.join("ear")).expect("a folder");
    for entry in fs::read_dir(whisper("heard")).expect("a folder") {
        let path = entry.expect("a file").path();
        fs::copy(&path, dir.join("ear").join(path.file_name().expect("a name"))).expect("a copy");
    }
    let weights = dir.join("ear/model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    // NaN in bf16.
    let n = bytes.len();
    bytes[n - 8..].fill(0xff);
    fs::write(&weights, bytes).expect("weights");
    let lines = LINES.replace("updates: 4", "updates: 1");
    let recipe = common::recipe(dir, "run", &format!("{lines}samples: {{{TEXTS}, heard_by: ear}}"));
    let (code, text) = said(dir, &["train", &recipe.display().to_string()]);
    assert!(code == 0 && text.contains("update 0: samples are not heard"), "{code}: {text}");
    assert!(text.contains("update 1: samples are not heard") && text.contains("the run continues"), "{text}");
    let run = dir.join("run");
    assert!(run.join("samples/1/abc-12.wav").exists() && noted(&run).is_empty());
    assert!(!read(&run.join("summary.json")).contains("samples_wer"));
    assert!(!read(&run.join("report.html")).contains("chart-heard"));
}

#[test]
fn what_cannot_hear_is_refused_before_anything_starts() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 8);
    let heard = whisper("heard");
    let recipe = |name: &str, samples: &str| {
        common::recipe(dir, name, &format!("{LINES}samples: {{{samples}}}")).display().to_string()
    };
    for (code, words, samples) in [
        (4, "/voice: give a folder with config.json of a Whisper model", format!("{TEXTS}, heard_by: voice")),
        (4, "tokenizer.json", format!("{TEXTS}, heard_by: {}", whisper("80"))),
        (
            2,
            "samples.language xx: the model does not know it",
            format!("{TEXTS}, heard_by: {heard}, language: xx"),
        ),
        (2, "needs samples.texts", format!("heard_by: {heard}")),
        (2, "samples.language", format!("{TEXTS}, language: en")),
    ] {
        let (got, text) = said(dir, &["train", &recipe("refused", &samples)]);
        assert!(got == code && text.contains(words), "{samples}: {got}: {text}");
        assert!(!dir.join("refused").exists() && !dir.join("cache").exists(), "{samples}");
    }
    // Its memory is the run's: on a processor of the budget, beside a card of the host's.
    let with = recipe("heard", &format!("{TEXTS}, heard_by: {heard}"));
    let without = recipe("unheard", TEXTS);
    ok(dir, &["prepare", &with]);
    let plan = json(dir, &["plan", &with, "--json"]);
    assert!(plan["peak_in"].as_str().is_some_and(|place| place.starts_with("hear, ")), "{}", plan["peak_in"]);
    let budget = format!("{}MiB", (plan["peak_bytes"].as_u64().expect("bytes") >> 20) - 2);
    let (code, text) = said(dir, &["train", &with, "--memory", &budget]);
    assert!(code == 3 && text.contains("a smaller model in samples.heard_by takes less"), "{code}: {text}");
    let [more, less] = [with, without].map(|recipe| {
        json(dir, &["plan", &recipe, "--card", "rtx4090", "--json"])["host_needed_bytes"].as_u64()
    });
    assert!(more > less, "{more:?} {less:?}");

    let text = format!(
        "model: {{dir: {}}}\ndata: {{dir: voice}}\nsamples: {{texts: [slow piano], heard_by: {heard}}}\n",
        common::musicgen("base").display()
    );
    fs::write(dir.join("music.yaml"), text).expect("a file");
    let (code, text) = said(dir, &["plan", "music.yaml", "--assume", "4x2s"]);
    assert!(code == 2 && text.contains("samples.heard_by: this model speaks no words"), "{code}: {text}");
}
