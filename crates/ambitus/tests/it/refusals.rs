//! What does not fit, by the real binary: what is named fits when it is typed behind the command, smallest budgets are true on
//! both sides, and plans say where their values are from.

use crate::common::{self, ambitus, json, ok, said};
use ambitus_testkit::drawn;
use serde_json::Value;
use std::path::Path;

const SHORT: &str = "updates: 2\nbatch: {clips: 3}\nthreads: 2\nvalidate_every: 0\nsave_every: 0";

fn number(v: &Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or_else(|| panic!("{key} in {v:#}"))
}

fn recipe(dir: &Path, name: &str, lines: &str) -> String {
    common::recipe(dir, name, &format!("{SHORT}\n{lines}")).display().to_string()
}

/// Must be refused; its JSON.
#[track_caller]
fn refused(dir: &Path, args: &[&str]) -> Value {
    let out = ambitus(dir, args);
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{args:?}: {told}");
    assert_eq!(told.matches("does not fit").count(), 1, "one refusal: {told}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {told}"))
}

/// The fixture's model with another value of one key of its configuration; its folder.
fn shaped(dir: &Path, key: &str, value: u32) -> String {
    let model = dir.join(key);
    std::fs::create_dir_all(&model).expect("a folder");
    let from = common::fixture("v1");
    let config = std::fs::read_to_string(from.join("config.yaml")).expect("a file");
    let line = config.lines().find(|l| l.trim_start().starts_with(&format!("{key}:"))).expect("the key");
    let indent = &line[..line.len() - line.trim_start().len()];
    std::fs::write(model.join("config.yaml"), config.replace(line, &format!("{indent}{key}: {value}")))
        .expect("a file");
    std::fs::copy(from.join("vocab.txt"), model.join("vocab.txt")).expect("a file");
    model.display().to_string()
}

/// Every change that is named fits typed behind the command; with nothing that fits there is a least all the same.
#[track_caller]
fn named_changes_fit(dir: &Path, base: &[&str], budgets: &[u64]) {
    for budget in budgets {
        let memory = format!("{budget}B");
        let command = [base, &["--json", "--memory", &memory]].concat();
        let told = refused(dir, &command);
        let least = &told["least"];
        assert!(number(least, "peak_bytes") > 0 && least["options"].is_string(), "{told:#}");
        assert_eq!(told["fits"], false);
        let changes = told["changes"].as_array().expect("changes");
        let fits = number(least, "peak_bytes") <= *budget;
        assert_eq!(changes.is_empty(), !fits, "{budget}: {changes:#?} {least:#}");
        for change in changes {
            let options: Vec<&str> = change["options"].as_str().expect("options").split(' ').collect();
            let plan = json(dir, &[&command[..], &options].concat());
            assert_eq!(plan["fits"], true, "{change:#}");
            assert_eq!(plan["peak_bytes"], change["peak_bytes"], "{change:#}");
            assert_eq!(plan["step_seconds"], change["seconds"], "{change:#}");
            assert!(change["numerics"].is_string());
        }
        let options: Vec<&str> = least["options"].as_str().expect("options").split(' ').collect();
        let out = ambitus(dir, &[&command[..], &options].concat());
        let plan: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!(plan["peak_bytes"], least["peak_bytes"], "{least:#}");
    }
}

#[test]
fn what_is_named_fits_when_it_is_typed_behind_the_command() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let wide = shaped(dir, "dim", 320);
    let run = recipe(dir, "run", "");
    let base = ["plan", &run, "--model", &wide, "--max-seconds", "2"];
    // Options that the command gives already are typed again.
    let given = [
        &[][..],
        &["--checkpoint", "none", "--offload", "optimizer", "--precision", "bf16-mixed"],
        &["--low-vram", "--micro-batch", "200"],
        // A change without an average offloads none; then nothing may be left to offload.
        &["--ema", "--offload", "ema,parameters"],
        &["--ema", "--offload", "ema", "--host-memory", "1GiB"],
    ];
    for given in drawn(given, 2) {
        let base = [&base, given].concat();
        let free = json(dir, &[&base[..], &["--json", "--memory", "2GiB"]].concat());
        let most = number(&free, "minimum_budget_bytes");
        let low = refused(dir, &[&base[..], &["--json", "--memory", "20MiB"]].concat());
        let least = number(&low["least"], "peak_bytes");
        named_changes_fit(dir, &base, &[least - 1, least + (most - least) / 2]);
    }
}

/// A limit of length that leaves out what a recipe names is no change: neither alone nor in the least of all.
#[test]
fn clips_that_a_recipe_names_are_not_left_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    // The longest.
    let data = common::voice(dir, 9);
    let reader = hound::WavReader::open(data.join("clip00.wav")).expect("a file");
    let mut wav = hound::WavWriter::create(data.join("long.wav"), reader.spec()).expect("a file");
    for sample in reader.into_samples::<i16>().map(|s| s.expect("a sample")).collect::<Vec<_>>().repeat(8) {
        wav.write_sample(sample).expect("a sample");
    }
    wav.finalize().expect("a file");
    std::fs::write(data.join("long.txt"), "leaf 45").expect("a file");
    let (named, drawn) = ("[long]", "{share: 0.4}");
    let (text, voice) = ("samples: {texts: [abc]}", "samples: {texts: [abc], clip: long}");
    let mut limits = 0;
    for (held_out, samples) in [(named, ""), (named, text), (named, voice), (drawn, ""), (drawn, text)] {
        let run = recipe(dir, "run", samples);
        let lines = std::fs::read_to_string(&run).expect("a recipe");
        let lines = lines.replace("cache: ", &format!("validation: {held_out}, cache: "));
        std::fs::write(&run, lines).expect("a file");
        let base = ["plan", &run, "--max-seconds", "9"];
        let told = refused(dir, &[&base[..], &["--json", "--memory", "18MiB"]].concat());
        let (least, options) = (number(&told["least"], "peak_bytes"), told["least"]["options"].to_string());
        assert_ne!(options, "\"\"", "{held_out} {samples}");
        limits += usize::from(options.contains("--max-seconds"));
        named_changes_fit(dir, &base, &[least - 1]);
    }
    assert!(limits > 0, "no limit was named");
}

#[test]
fn train_names_the_same_and_takes_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let run = recipe(dir, "run", "");
    let least = number(&json(dir, &["plan", &run, "--json", "--memory", "1GiB"]), "minimum_budget_bytes");
    let (enough, less) = (format!("{least}B"), format!("{}B", least - least / 100));
    let planned = refused(dir, &["plan", &run, "--json", "--memory", &less]);
    let told = refused(dir, &["train", &run, "--json", "--memory", &less]);
    assert_eq!((&told["changes"], &told["least"]), (&planned["changes"], &planned["least"]));
    assert!(!dir.join("run").exists(), "a folder is left");
    // What needs least of the clips: a limit that leaves none out.
    let change = &told["changes"][0];
    let options: Vec<&str> = change["options"].as_str().expect("options").split(' ').collect();
    assert_eq!(change["numerics"], "same numbers", "{told:#}");
    let other = dir.join("other").display().to_string();
    let summary = json(
        dir,
        &[&["train", &run, "--json", "--memory", &less, "--run-dir", &other][..], &options].concat(),
    );
    assert_eq!(summary["peak_planned_bytes"], change["peak_bytes"]);
    assert_eq!(summary["ended"], "complete");
    ok(dir, &["train", &run, "--memory", &enough]);
}

/// A resumed run keeps its states: only options that leave numbers as they are may be changed.
#[test]
fn a_run_that_goes_on_is_told_what_leaves_its_numbers() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let run = recipe(dir, "run", "memory: 1GiB\nkeep: 9");
    let summary = json(dir, &["train", &run, "--save-every", "1", "--json"]);
    let less = format!("{}B", number(&summary, "peak_planned_bytes") - 1);
    std::fs::remove_dir_all(dir.join("run/checkpoints/step-2")).expect("a checkpoint");
    let path = dir.join("run/recipe.yaml");
    let text = std::fs::read_to_string(&path).expect("a recipe");
    std::fs::write(&path, text.replace("1GiB", &less)).expect("a file");
    let told = refused(dir, &["resume", "run", "--json"]);
    for change in told["changes"].as_array().expect("changes") {
        assert_ne!(change["numerics"], "changed numerics", "{told:#}");
    }
    let options = told["least"]["options"].as_str().expect("options");
    assert!(!options.contains("--lora") && !options.contains("--optimizer"), "{options}");
    let (_, text) = said(dir, &["resume", "run"]);
    assert!(text.contains("recipe.yaml") || text.contains("changes that fit"), "{text}");
}

#[test]
fn preparing_is_one_of_the_phases_and_its_limit_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let run = recipe(dir, "run", "");
    let free = json(dir, &["plan", &run, "--json", "--memory", "1GiB"]);
    let phase = |name: &str| {
        let phases = free["phases"].as_array().expect("phases");
        number(phases.iter().find(|p| p["name"] == name).expect(name), "peak_bytes")
    };
    // Clips of under a second, and a limit of 30.
    assert!(phase("prepare") > phase("micro"), "{free:#}");
    let memory = format!("{}B", phase("prepare") - 1);
    let (code, text) = said(dir, &["plan", &run, "--memory", &memory]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("in prepare") && text.contains("\n    --max-seconds "), "{text}");
    let (code, text) = said(dir, &["prepare", &run, "--memory", &memory]);
    assert!(code == 3 && text.contains("--max-seconds "), "{text}");
    let limit = text.split("--max-seconds ").nth(1).and_then(|t| t.split(',').next()).expect("a limit");
    ok(dir, &["prepare", &run, "--memory", &memory, "--max-seconds", limit]);
    // Nothing was prepared to say it, and the numbers are those of what is.
    let lean = ["plan", &run, "--json", "--memory", &memory, "--max-seconds", limit];
    assert_eq!(json(dir, &lean)["fits"], true);
}

/// A tokenizer has to fit beside the shortest clips only: beside longer ones a limit of length is named.
#[test]
fn a_tokenizer_leaves_room_for_shorter_clips() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let (voice, model) = (common::voice(dir, 9), dir.join("model"));
    std::fs::create_dir_all(&model).expect("a folder");
    for file in
        ["dvae/fixtures/small/dvae.pth", "dvae/fixtures/small/mel_stats.pth", "xtts_text/fixtures/vocab.json"]
    {
        let from = common::root().join("parity").join(file);
        std::fs::copy(&from, model.join(from.file_name().expect("a name"))).expect("a file");
    }
    let config = serde_json::json!({"model": "xtts", "model_args": {
        "gpt_layers": 2, "gpt_n_model_channels": 64, "gpt_n_heads": 1,
        "gpt_num_audio_tokens": 66, "gpt_start_audio_token": 64, "gpt_stop_audio_token": 65,
    }});
    std::fs::write(model.join("config.json"), config.to_string()).expect("a file");
    let text = format!(
        "model: {{dir: {}, from_scratch: true}}\ndata: {{dir: {}, cache: {}}}\nupdates: 2\nsample: false\nema: false\nxtts: {{language: en}}\n",
        model.display(),
        voice.display(),
        dir.join("cache").display(),
    );
    std::fs::write(dir.join("run.yaml"), text).expect("a file");
    let lean = ["plan", "run.yaml", "--json", "--max-seconds", "1", "--lora", "8", "--memory", "1GiB"];
    let lean = number(&json(dir, &lean), "minimum_budget_bytes");
    let told = refused(dir, &["plan", "run.yaml", "--json", "--memory", &format!("{}B", lean + lean / 100)]);
    let change =
        told["changes"][0]["options"].as_str().unwrap_or_else(|| panic!("nothing is named: {told:#}"));
    assert!(change.contains("--max-seconds"), "{change}");
}

#[test]
fn what_is_too_long_to_be_planned_is_refused_by_its_instructions() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let long = shaped(dir, "depth", 1000);
    let command = ["plan", "--model", &long, "--assume", "8x2s", "--memory", "200MiB", "--json"];
    let told = refused(dir, &command);
    assert_eq!(told["fits"], false, "{told:#}");
    assert_eq!(told["changes"], serde_json::json!([]), "{told:#}");
    assert!(number(&told["least"], "peak_bytes") > 200 << 20, "{told:#}");
    let (_, text) = said(dir, &command);
    assert!(text.contains("instructions in forward alone"), "{text}");

    // What fits when it is planned is not refused for its length, and what is short of that is told what else was tried.
    let deep = shaped(dir, "depth", 150);
    let command = ["plan", "--model", &deep, "--assume", "8x2s", "--json", "--memory"];
    let least = number(&json(dir, &[&command[..], &["2GiB"]].concat()), "minimum_budget_bytes");
    assert_eq!(json(dir, &[&command[..], &[&format!("{least}B")]].concat())["fits"], true);
    let less = format!("{}B", least - least / 50);
    let told = refused(dir, &[&command[..], &[&less]].concat());
    assert!(number(&told["least"], "peak_bytes") > 0, "{told:#}");
    let (_, text) = said(dir, &[&command[..], &[&less]].concat());
    assert!(text.contains("in plan") || text.contains("too many instructions"), "{text}");
}

#[test]
fn clips_are_assumed_in_every_family() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let f5 = common::fixture("v1").display().to_string();
    let orpheus = common::orpheus("tied").display().to_string();
    let plan = |model: &str, clips: &str, more: &[&str]| {
        json(
            dir,
            &[&["plan", "--model", model, "--assume", clips, "--json", "--memory", "1GiB"], more].concat(),
        )
    };
    let mel = plan(&f5, "32x5s,1x17s", &["--batch", "1"]);
    // 17 s are 1594 frames, which one micro-batch must hold.
    assert!(number(&mel["micro_batch"], "frames") >= 1594, "{mel:#}");
    assert!(mel["assumed"].as_str().is_some_and(|a| a.contains("32x5s,1x17s")), "{mel:#}");
    // Preparing is counted as of real clips, by their limit.
    let prepare = |plan: &Value| number(&plan["phases"][0], "peak_bytes");
    let short = plan(&f5, "32x5s,1x17s", &["--max-seconds", "20"]);
    assert!(prepare(&short) < prepare(&mel), "{short:#}");
    let tokens = plan(&orpheus, "32x800t", &["--batch", "1", "--micro-batch", "max"]);
    assert_eq!(number(&tokens["micro_batch"], "tokens"), 800, "no update fills more");
    // As many as 30 s have, which a clip may have by default.
    let longest = plan(&orpheus, "1x2461t", &["--batch", "1", "--micro-batch", "max"]);
    assert_eq!(number(&longest["micro_batch"], "tokens"), 2461);
    let seconds = plan(&orpheus, "8x2s", &["--batch", "1"]);
    // 24 frames of 7 tokens, 8 of text, 7 around them.
    assert_eq!(number(&seconds, "tokens_per_step"), 24 * 7 + 8 + 7);

    for (args, why) in [
        (&["plan", "--model", &f5, "--assume", "8x100t"][..], "counted in frames"),
        (&["plan", "--model", &f5, "--assume", "8"], "write 32x5s"),
        (&["plan", "--model", &f5, "--assume", "8x40s"], "outside the limits"),
        (&["plan", "--model", &f5], "--assume 32x5s"),
        (&["train", "--model", &f5, "--assume", "8x1s"], "can only be planned for"),
    ] {
        let (code, text) = said(dir, args);
        assert!(code == 2 && text.contains(why), "{args:?}: {code}: {text}");
    }
}

#[test]
fn a_micro_batch_is_what_an_update_fills() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let run = recipe(dir, "run", "memory: 2GiB");
    let size = |more: &[&str]| {
        let plan = json(dir, &[&["plan", &run, "--json"], more].concat());
        (number(&plan["micro_batch"], "frames"), number(&plan["micro_batch"], "clips"))
    };
    // Three clips of at most 71 frames.
    let (frames, clips) = size(&["--micro-batch", "max"]);
    assert!(frames <= 3 * 71 && clips == 3, "{frames} frames, {clips} clips");
    assert_eq!(size(&["--micro-batch", "100000"]), (frames, clips));
    // The number that is named is the number that is kept.
    let text = ok(dir, &["plan", &run, "--explain", "--numerics", "reordered"]);
    let chosen = text.lines().find(|l| l.contains("  chosen")).expect("chosen");
    let line = text.lines().find(|l| l.trim_start().starts_with("micro_batch = ")).expect("a choice");
    if let Some(named) = chosen.split("--micro-batch ").nth(1).and_then(|t| t.split(' ').next()) {
        assert!(line.contains(&format!("= {named} frames")), "{chosen}\n{line}");
    }
    ok(dir, &["train", &run]);
    let kept = std::fs::read_to_string(dir.join("run/recipe.yaml")).expect("a recipe");
    let frames = line.split("= ").nth(1).and_then(|t| t.split(' ').next()).expect("frames");
    assert!(kept.contains(&format!("frames: {frames}\n")), "{line}\n{kept}");
}

#[test]
fn values_say_where_they_are_from() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let voice = common::voice(dir, 9).display().to_string();
    let model = common::fixture("v1").display().to_string();
    let bare = ["plan", "--model", &model, "--data", &voice, "--memory", "1GiB", "--threads", "2"];
    let text = ok(dir, &bare);
    for line in [
        "threads = 2 (command line)",
        "device = 2 threads (cpu) (default)",
        "updates = 1000 (default)",
        "learning_rate = 1e-5 (default)",
        "memory = 1.00 GiB (command line)",
        "precision = fp32 (default)",
        "checkpoint = none (the search)",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = ok(dir, &[&bare[..], &["--lora", "4", "--updates", "7", "--micro-batch", "9999"]].concat());
    for line in [
        "learning_rate = 1e-4 (default, of adapters)",
        "updates = 7 (command line)",
        "(command line, 9999 cut to what updates fill)",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let run = recipe(dir, "run", "memory: 1GiB\nlora: {rank: 4}\nwarmup: 1");
    let text = ok(dir, &["plan", &run]);
    let origin = |line: usize, column: usize| format!("({run}:{line}:{column})");
    for line in [format!("updates = 2 {}", origin(6, 10)), format!("learning_rate = 1e-3 {}", origin(4, 16))]
    {
        assert!(text.contains(&line), "{line}: {text}");
    }
    let text = std::fs::read_to_string(&run).expect("a recipe").replace("learning_rate: 1e-3\n", "");
    std::fs::write(&run, text).expect("a file");
    ok(dir, &["train", &run]);
    let kept = std::fs::read_to_string(dir.join("run/recipe.yaml")).expect("a recipe");
    assert!(kept.contains("learning_rate: 0.0001"), "{kept}");
}

#[test]
fn options_without_a_key_of_the_command_line_have_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let run = recipe(dir, "run", "memory: 1GiB\nema: true");
    let options = ["--no-ema", "--warmup", "1", "--batch", "2", "--save-every", "1"];
    ok(dir, &[&["train", &run][..], &options].concat());
    let kept = std::fs::read_to_string(dir.join("run/recipe.yaml")).expect("a recipe");
    for line in ["ema: false", "warmup: 1", "clips: 2", "save_every: 1"] {
        assert!(kept.contains(line), "{line}: {kept}");
    }
    // The later of two counts.
    let states =
        |more: &[&str]| number(&json(dir, &[&["plan", &run, "--json"], more].concat()), "state_bytes");
    assert!(states(&["--no-ema", "--ema"]) > states(&["--ema", "--no-ema"]));
    // What nothing is kept of cannot wait on the host: said before anything is trained.
    let (code, text) = said(dir, &["train", &run, "--no-ema", "--offload", "ema"]);
    assert!(code == 2 && text.contains("offload.ema"), "{code}: {text}");
    let orpheus = common::orpheus("tied").display().to_string();
    let (code, text) = said(dir, &["plan", "--model", &orpheus, "--offload", "ema"]);
    assert!(code == 2 && text.contains("offload.ema"), "{code}: {text}");

    let (code, text) = said(dir, &["plan", &recipe(dir, "wrong", "warmpu: 3")]);
    assert!(code == 2 && text.contains("did you mean `warmup`?"), "{code}: {text}");
    let (code, text) = said(dir, &["plan", "--model", "nowhere", "--assume", "3x1s"]);
    assert!(code == 4 && text.contains("nowhere is relative to the working directory, /"), "{code}: {text}");
}
