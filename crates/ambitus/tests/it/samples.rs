//! Speech while a run trains: the path of `say`, within the plan, and no number of the run depends on it.

use crate::common::{self, json, ok, said};
use crate::orpheus_train;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files below a folder of a run that hold its numbers, by path.
fn numbers(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let steps = std::fs::read_dir(run.join("checkpoints")).expect("checkpoints");
    let folders: Vec<PathBuf> = steps.map(|e| e.expect("an entry").path()).filter(|p| p.is_dir()).collect();
    let files = folders.iter().flat_map(|dir| std::fs::read_dir(dir).expect("a folder"));
    let files = files.map(|e| e.expect("an entry").path());
    let tensors = files.filter(|p| p.extension().is_some_and(|e| e == "safetensors"));
    tensors
        .map(|p| (p.strip_prefix(run).expect("below").to_owned(), std::fs::read(&p).expect("a file")))
        .collect()
}

/// Losses, norms and rates of a run's log.
fn logged(run: &Path) -> Vec<[Value; 3]> {
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    let line = |line: &str| -> Value { serde_json::from_str(line).expect("JSON") };
    let facts = |v: Value| ["loss", "grad_norm", "learning_rate"].map(|key| v[key].clone());
    log.lines().map(line).map(facts).collect()
}

/// Runs two recipes that differ in samples alone, and compares all numbers; returns the first one's summary.
pub fn same_numbers(dir: &Path, with: &Path, without: &Path) -> Value {
    let train = |recipe: &Path| json(dir, &["train", &recipe.display().to_string(), "--json"]);
    let [summary, other] = [train(with), train(without)];
    let runs = [with, without].map(|recipe| recipe.with_extension(""));
    let [a, b] = runs.each_ref().map(|run| numbers(run));
    assert!(!a.is_empty() && a == b, "weights or moments differ");
    assert_eq!(logged(&runs[0]), logged(&runs[1]));
    for key in ["validation_base", "validation_last", "validation_best"] {
        assert_eq!(summary[key], other[key], "{key}");
    }
    for phase in summary["phases"].as_array().expect("phases") {
        let [planned, measured] = ["planned_bytes", "measured_bytes"].map(|key| phase[key].as_u64());
        assert!(measured <= planned, "{phase:#}");
    }
    summary
}

fn sounds(run: &Path, update: u64) -> Vec<(String, Vec<u8>)> {
    let folder = run.join(format!("samples/{update}"));
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut all: Vec<(String, Vec<u8>)> = files
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "wav"))
        .map(|p| {
            (
                p.file_name().expect("a name").to_string_lossy().into_owned(),
                std::fs::read(p).expect("a sound"),
            )
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_cloned_voice_is_heard_while_it_trains() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 8);
    let clip = dir.join("voice/clip01.wav").display().to_string();
    let lines = "updates: 4\nvalidate_every: 2\nsave_every: 2\nbatch: {clips: 2}\nmicro_batch: 200\n";
    let texts = format!("texts: [bad hide leaf, abc 12], clip: {clip}, clip_text: bad 7");
    let with = common::recipe(dir, "with", &format!("{lines}samples: {{{texts}}}"));
    let without = common::recipe(dir, "without", &format!("{lines}samples: false"));
    let summary = same_numbers(dir, &with, &without);
    assert!(summary["phases"].as_array().expect("phases").iter().any(|p| p["name"] == "sample"));

    let run = dir.join("with");
    let heard: Vec<_> = [0, 2, 4].map(|update| sounds(&run, update)).into();
    for of_update in &heard {
        let names: Vec<&str> = of_update.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["abc-12.wav", "bad-hide-leaf.wav"]);
    }
    assert!(heard[0] != heard[2], "the base sounds like the result");
    let facts = std::fs::read_to_string(run.join("samples/4/samples.json")).expect("facts");
    let facts: Value = serde_json::from_str(&facts).expect("JSON");
    assert!(facts["seconds"].as_f64() > Some(0.0) && facts["lines"][0]["seconds"].as_f64() > Some(0.0));

    // It is what `say` says with the result.
    let weights = facts["weights"].as_str().expect("a word");
    let of_run = run.display().to_string();
    let by_say = |text: &str| {
        let voice = ["--ref", &clip, "--ref-text", "bad 7", "--weights", weights, "-o", "said.wav"];
        ok(dir, &[&["say", of_run.as_str(), text][..], &voice].concat());
        std::fs::read(dir.join("said.wav")).expect("a sound")
    };
    assert!(by_say("bad hide leaf") == heard[2][1].1, "say says it otherwise");

    // What nobody asked for is not waited for, and what cannot be said is refused before anything is trained.
    let choice = |lines: &str, more: &[&str]| -> [String; 2] {
        let usual = common::recipe(dir, "usual", lines).display().to_string();
        let plan = json(dir, &[&["plan", &usual, "--json"], more].concat());
        let choices = plan["choices"].as_array().expect("choices");
        let choice = choices.iter().find(|c| c["key"] == "samples").expect("samples");
        ["value", "from"].map(|key| choice[key].as_str().expect("text").to_owned())
    };
    let [value, from] = choice(lines, &[]);
    assert!(value == "off" && from.contains("of the arithmetic between two validations"), "{value}: {from}");
    // With enough between, they are there: where the sound is made in another memory than the budget's.
    let long = "updates: 30000\nvalidate_every: 10000\nbatch: {clips: 2}\nmicro_batch: 200\n";
    assert_eq!(choice(long, &["--card", "rtx4090"]), ["1 sentence with every validation", "default"]);
    // One rank alone speaks.
    let [value, from] = choice(&format!("{lines}samples: {{{texts}}}"), &["--ranks", "2"]);
    assert!(value == "off" && from.contains("several"), "{value}: {from}");
    for (samples, words) in [
        ("{voice: tara}", "no named voices"),
        ("{clip: nowhere}", "no validation clip and no file is named nowhere"),
        ("{texts: ['?!']}", "no words to say"),
        ("{every: never}", "validation, or a number of updates"),
    ] {
        let recipe = common::recipe(dir, "refused", &format!("{lines}samples: {samples}"));
        let (code, why) = said(dir, &["train", &recipe.display().to_string()]);
        assert!(code == 2 && why.contains(words), "{samples}: {code}: {why}");
    }
}

/// Nobody who did not ask for samples pays for them in memory: beside an arena, making sound takes more than any other phase.
#[test]
fn samples_that_would_be_the_peak_are_off() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(common::root().join("recipes/quickstart.yaml")).expect("a recipe");
    let ours = |line: &&str| !line.starts_with("samples") && !line.starts_with("memory");
    let text: String = text.lines().filter(ours).map(|l| l.to_owned() + "\n").collect();
    let text = text.replace("updates: 300", "updates: 30000").replace("every: 100", "every: 10000");
    let path = dir.path().join("recipe.yaml");
    std::fs::write(&path, text + "memory: 1GiB\n").expect("a file");
    let plan = json(&common::root(), &["plan", &path.display().to_string(), "--json"]);
    let choices = plan["choices"].as_array().expect("choices");
    let choice = choices.iter().find(|c| c["key"] == "samples").expect("samples");
    assert!(choice["value"] == "off" && choice["from"].to_string().contains("more memory"), "{choice}");
}

/// Keys and values lie where other programs have their work: they add nothing to a plan that has room for that.
#[test]
fn a_decoder_is_heard_while_it_trains() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = orpheus_train::prepared(dir);
    let lines =
        "updates: 2\nvalidate_every: 1\nsave_every: 2\nbatch: {clips: 2}\nmicro_batch: 400\nema: true\n";
    let recipe = |name: &str, samples: &str| {
        PathBuf::from(orpheus_train::recipe(dir, name, &model, "", &format!("{lines}samples: {samples}")))
    };
    let with = recipe("with", "{every: 2}");
    same_numbers(dir, &with, &recipe("without", "false"));
    for update in [0, 2] {
        let names: Vec<String> =
            sounds(&dir.join("with"), update).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["clip03.wav", "clip07.wav"], "{update}");
    }
    assert!(!dir.join("with/samples/1").exists());
}
