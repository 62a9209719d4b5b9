//! Data sets as they are found, through the real binary: much of it, odd, or made to do harm.

use crate::common::{self, ambitus, json, ok, orpheus, recipe, said, voice};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A tokenizer without dictionary: what data takes is not lost in what it takes.
const SHORT: &str = "batch: {clips: 3}\nmicro_batch: 400\nsave_every: 9\nvalidate_every: 9\nthreads: 1\nupdates: 2\nmemory: 1GiB";

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn put(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    std::fs::write(path, bytes).expect("a file");
}

/// A recipe like [`common::recipe`]'s with clips of a second at most and a tokenizer of characters.
fn short_recipe(dir: &Path, name: &str, lines: &str) -> String {
    let path = recipe(dir, name, lines);
    let whole = std::fs::read_to_string(&path).expect("a file");
    put(&path, whole.replace("tokenizer: char}", "tokenizer: char, max_seconds: 1}"));
    text(&path)
}

fn bytes(value: &serde_json::Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Peak of a phase as it is planned.
fn planned(plan: &serde_json::Value, phase: &str) -> u64 {
    let phases = plan["phases"].as_array().expect("phases");
    bytes(&phases.iter().find(|p| p["name"] == phase).expect("the phase")["peak_bytes"])
}

#[test]
fn only_what_is_odd_is_printed_and_all_of_it_is_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 1);
    put(data.join("broken.wav"), b"RIFF....WAVE");
    put(data.join("broken.txt"), "abc");
    put(data.join("zz.txt"), "abc");
    let recipe = short_recipe(dir, "run", SHORT);
    let out = ambitus(dir, &["prepare", &recipe, "--json"]);
    let shown = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{shown}");
    for part in ["1 clip, ", "broken.wav: not used", "zz.txt: zz.txt: not used: no audio file of this name"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains(": ok"), "{shown}");
    let result: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let outcomes = result["outcomes"].as_array().expect("a list");
    assert_eq!((outcomes.len(), bytes(&result["summary"]["bad"])), (3, 2));
    let lines = std::fs::read_to_string(dir.join("cache/outcomes.jsonl")).expect("kept");
    let kept: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(&kept, outcomes);
    assert_eq!(result["summary"]["causes"], serde_json::json!({"no_audio": 1, "audio": 1}));

    // A list that would fill the terminal is in the file alone.
    let mut lines = "audio_file|text\nclip00.wav|abc\n".to_owned();
    (0..3000).for_each(|i| writeln!(lines, "missing-{i}.wav|abc").expect("a string"));
    put(data.join("metadata.csv"), lines);
    let (code, shown) = said(dir, &["prepare", &recipe]);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("and 2980 others: all are in") && shown.contains("3000 without audio"), "{shown}");
    assert!(shown.len() < 8000, "{}", shown.len());
}

/// Bad lines, megabyte texts, a wav of an hour and many clips.
fn odd_data(dir: &Path, lines: usize, clips: usize) {
    let data = voice(dir, 3);
    for i in 0..clips {
        let mut wav = std::fs::read(data.join("clip00.wav")).expect("a clip");
        wav.truncate(44 + 2 * 8000);
        for at in [4usize, 40] {
            let length = (wav.len() - if at == 4 { 8 } else { 44 }) as u32;
            wav[at..at + 4].copy_from_slice(&length.to_le_bytes());
        }
        wav[44..46].copy_from_slice(&(i as u16).to_le_bytes());
        put(data.join(format!("many{i:04}.wav")), wav);
    }
    let mut long = std::fs::read(data.join("clip00.wav")).expect("a clip");
    const HOUR: u32 = 3600 * 24_000 * 2;
    long[4..8].copy_from_slice(&(HOUR + 36).to_le_bytes());
    long[40..44].copy_from_slice(&HOUR.to_le_bytes());
    put(data.join("hour.wav"), &long);
    let file = std::fs::File::options().write(true).open(data.join("hour.wav")).expect("a file");
    file.set_len(u64::from(HOUR) + 44).expect("a sparse file");
    let mut csv = "audio_file|text\nclip00|abc\nclip01|bad\nclip02|leaf\nhour|hide\n".to_owned();
    (0..clips).for_each(|i| writeln!(csv, "many{i:04}|hide {}", i % 7).expect("a string"));
    for i in 0..lines {
        match i % 1000 {
            0 => writeln!(csv, "clip0{}|{}", i % 3, "abc ".repeat(250_000)),
            _ => writeln!(csv, "missing/number-{i}|some words that are here for nothing"),
        }
        .expect("a string");
    }
    put(data.join("metadata.csv"), csv);
}

#[test]
fn odd_data_takes_no_more_than_the_plan() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    odd_data(dir, 30_000, 300);
    for name in ["fresh", "cached"] {
        let recipe = short_recipe(dir, name, SHORT);
        let summary = json(dir, &["train", &recipe, "--json"]);
        let (peak, planned) = (bytes(&summary["peak_rss_bytes"]), bytes(&summary["peak_planned_bytes"]));
        assert!(peak <= planned, "{name}: {peak} of {planned}");
        // Without odd data it is the same but for the clips: 37 MiB and a little more.
        assert!(planned < 40 << 20, "{name}: {planned}");
    }
}

#[test]
fn clips_that_do_not_fit_are_refused_before_they_are_prepared() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    odd_data(dir, 0, 300);
    let recipe = short_recipe(dir, "run", SHORT);
    let plan = json(dir, &["plan", &recipe, "--json"]);
    let needed = planned(&plan, "prepare");
    std::fs::remove_dir_all(dir.join("cache")).expect("a cache");
    let (code, shown) = said(dir, &["prepare", &recipe, "--memory", &format!("{}B", needed - 1)]);
    assert!(code == 3 && shown.contains("304 clips, the longest text"), "{code}: {shown}");
    let (code, shown) = said(dir, &["prepare", &recipe, "--memory", &format!("{}B", needed - 40_000)]);
    assert!(code == 3 && shown.contains("304 clips"), "{code}: {shown}");
    let prepared = std::fs::read_dir(dir.join("cache")).map_or(0, Iterator::count);
    assert_eq!(prepared, 0, "nothing was made");
    ok(dir, &["prepare", &recipe, "--memory", &format!("{needed}B")]);
}

#[test]
fn levels_are_changed_where_asked_and_stay_with_the_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 4);
    let files = || (0..4).map(|i| std::fs::read(data.join(format!("clip0{i}.wav"))).expect("a file"));
    let before: Vec<Vec<u8>> = files().collect();
    let recipe = short_recipe(dir, "run", SHORT);
    let plain = json(dir, &["train", &recipe, "--json"]);
    let result = json(dir, &["prepare", &recipe, "--json", "--loudness", "-23", "--trim"]);
    let outcomes = result["outcomes"].as_array().expect("a list");
    assert_eq!((outcomes.len(), bytes(&result["summary"]["edits"]["levelled"])), (4, 4));
    for outcome in outcomes {
        let [was, is] = [0, 1].map(|i| outcome["loudness"][i].as_f64().expect("a number"));
        assert!((is + 23.0).abs() < 0.1 && (was - is).abs() > 0.1, "{outcome}");
        assert!(outcome["trimmed"][1].is_number(), "{outcome}");
    }
    let (code, shown) = said(dir, &["prepare", &recipe, "--loudness=-23", "--trim=0.2"]);
    assert!(code == 0 && shown.contains("loudness: 4 clips from ") && shown.contains("trimmed: "), "{shown}");

    let run = ["--run-dir", "levelled", "--loudness", "-23", "--trim=0.2", "--json"];
    let levelled = json(dir, &[&["train", &*recipe], &run[..]].concat());
    assert!(bytes(&levelled["peak_rss_bytes"]) <= bytes(&levelled["peak_planned_bytes"]), "{levelled}");
    assert_ne!(plain["validation_base"], levelled["validation_base"]);
    let kept = std::fs::read_to_string(dir.join("levelled/recipe.yaml")).expect("kept");
    assert!(kept.contains("loudness: -23") && kept.contains("trim: 0.2"), "{kept}");
    assert_eq!(files().collect::<Vec<_>>(), before, "files are only read");

    let (music, data) = (text(&common::musicgen("base")), text(&data));
    for (args, words) in [
        (&["plan", "--model", &music, "--data", &data, "--trim"][..], "which music has not"),
        (&["plan", &recipe, "--loudness", "-3"], "data.loudness: -3 is not from -40 to -5"),
        (&["plan", &recipe, "--trim=2"], "data.trim: 2 is not from 0 to 1"),
    ] {
        let (code, shown) = said(dir, args);
        assert!(code == 2 && shown.contains(words), "{args:?}: {code}: {shown}");
    }
}

#[test]
fn a_decoder_that_panics_says_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 1);
    let ogg = common::root().join("crates/ambitus-data/tests/fixtures/speech_24k_stereo.ogg");
    let mut crafted = std::fs::read(ogg).expect("a fixture");
    // A first codebook without dimensions.
    let at = crafted.windows(3).position(|w| w == b"BCV").expect("a codebook") + 3;
    crafted[at..at + 2].fill(0);
    put(data.join("zero.ogg"), crafted);
    put(data.join("zero.txt"), "abc");
    let (code, shown) = said(dir, &["prepare", &short_recipe(dir, "run", SHORT)]);
    assert!(code == 0 && shown.contains("zero.ogg: not used") && !shown.contains("panicked"), "{shown}");
}

#[test]
fn what_is_wrong_is_said_once_in_a_run_of_stages() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 4);
    put(data.join("broken.wav"), b"RIFF....WAVE");
    put(data.join("broken.txt"), "abc");
    let stages = format!("{SHORT}\nstages:\n  - {{name: one}}\n  - {{name: two}}");
    let (code, shown) = said(dir, &["train", &short_recipe(dir, "run", &stages)]);
    assert_eq!(code, 0, "{shown}");
    assert_eq!(shown.matches("broken.wav: not used").count(), 1, "{shown}");
}

#[test]
fn runs_with_different_seeds_validate_on_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    voice(dir, 9);
    let base = |seed: u64| {
        let recipe = short_recipe(dir, &format!("seed-{seed}"), &format!("{SHORT}\nseed: {seed}"));
        let summary = json(dir, &["train", &recipe, "--json"]);
        ["validation_base", "validation_last"].map(|key| summary[key].as_f64().expect("a loss"))
    };
    let (first, other) = (base(1), base(2));
    // Updates of other clips may have other micro-batches, which sum in another order.
    let apart = (first[0] / other[0] - 1.0).abs();
    assert!(apart < 1e-6, "the untrained model is judged alike: {first:?} {other:?}");
    assert!(
        (first[1] / other[1] - 1.0).abs() > 10.0 * apart,
        "and trained on other draws: {first:?} {other:?}"
    );
}

#[test]
fn an_unknown_vocabulary_says_how_to_extend_it_and_what_else_is_wrong() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 2);
    put(data.join("clip00.txt"), "ЖЖЖЖ");
    put(data.join("broken.wav"), b"RIFF....WAVE");
    put(data.join("broken.txt"), "abc");
    let (code, shown) = said(dir, &["prepare", &short_recipe(dir, "run", SHORT)]);
    assert_eq!(code, 5, "{shown}");
    for part in
        ["\"Ж\" x 4", "append the missing tokens to vocab.txt", "--extend-vocab", "broken.wav: not used"]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}

/// A copy of a small Orpheus with another tokenizer.
fn with_tokenizer(dir: &Path, name: &str, tokenizer: &str) -> PathBuf {
    let folder = dir.join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(orpheus("tied/config.json")).expect("a file")).expect("JSON");
    config["vocab_size"] = 156_940.into();
    put(folder.join("config.json"), config.to_string());
    put(folder.join("tokenizer.json"), tokenizer);
    folder
}

#[test]
fn a_tokenizer_that_cannot_be_used_is_the_models_fault() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 1);
    let good = std::fs::read_to_string(orpheus("tokenizer.json")).expect("a fixture");
    let grows = good.replace("\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKD\"}");
    assert!(grows != good);
    let cut = &good[..good.find("\"merges\"").expect("merges")];
    let large = good.clone() + &" ".repeat(30 << 20);
    for (name, tokenizer, memory, expected, part) in [
        ("cut", cut, "1GiB", 4, "tokenizer.json"),
        ("grows", &grows, "1GiB", 4, "normalizer NFKD"),
        ("large", &large, "60MiB", 3, "tokenizer.json"),
    ] {
        let model = with_tokenizer(dir, name, tokenizer);
        let args = ["prepare", "--model", &text(&model), "--data", &text(&data), "--codec", "nowhere"];
        let (code, shown) = said(dir, &[&args[..], &["--memory", memory, "--max-seconds", "1"]].concat());
        assert!(code == expected && shown.contains(part), "{name}: {code}: {shown}");
        assert!(!shown.contains("panicked"), "{shown}");
    }
}
