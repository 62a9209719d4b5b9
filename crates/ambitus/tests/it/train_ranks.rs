//! Runs of the real binary on ranks that are threads of one process: one rank's results but for the order of sums, the same
//! bits with every strategy, budget, kill and resume, also on other ranks, export.

use crate::common;
use ambitus_families::ALL;
use ambitus_families::console::Silent;
use ambitus_recipe::recipe::Recipe;
use ambitus_train::{Strategy, run, world};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SHORT: &str =
    "updates: 6\nbatch: {clips: 3}\nmicro_batch: 100\nsave_every: 2\nvalidate_every: 3\nthreads: 2\nkeep: 9";
/// Six updates after another order of sums: what AdamW makes of gradients that cancel.
const REORDERED: f64 = 1e-4;

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn train(dir: &Path, name: &str, lines: &str, options: &[&str]) -> serde_json::Value {
    let recipe = text(&common::recipe(dir, name, lines));
    let args = [&["train", &recipe, "--memory", "2GiB", "--json"], options].concat();
    common::json(dir, &args)
}

fn float(v: &serde_json::Value, key: &str) -> f64 {
    v[key].as_f64().unwrap_or_else(|| panic!("{key} in {v:#}"))
}

#[track_caller]
fn assert_near(what: &str, have: f64, want: f64) {
    assert!((have / want - 1.0).abs() < REORDERED, "{what}: {have}, one rank has {want}");
}

/// Every file of a step, by name.
fn step(run: &Path, step: u64) -> Vec<(String, Vec<u8>)> {
    let folder = std::fs::read_dir(run.join(format!("checkpoints/step-{step}"))).expect("a checkpoint");
    let mut files: Vec<_> = folder
        .map(|e| e.expect("an entry"))
        .map(|e| (e.file_name().to_string_lossy().into_owned(), std::fs::read(e.path()).expect("a file")))
        .filter(|(name, _)| name.ends_with(".safetensors"))
        .collect();
    files.sort();
    files
}

fn losses(run: &Path) -> Vec<f64> {
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    let line = |l: &str| serde_json::from_str::<serde_json::Value>(l).expect("JSON")["loss"].as_f64();
    log.lines().map(|l| line(l).expect("a loss")).collect()
}

#[test]
fn ranks_train_as_one_does() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let one = train(dir, "one", SHORT, &[]);
    let mut first = None;
    for (ranks, strategy) in [(2, "full"), (3, "full"), (3, "grad_op"), (3, "none"), (4, "hybrid:2")] {
        let name = format!("ranks-{ranks}-{}", strategy.replace(':', "-"));
        let (n, run) = (ranks.to_string(), dir.join(&name));
        let have = train(dir, &name, SHORT, &["--ranks", &n, "--sharding", strategy]);
        // The base is the same model on the same batches, summed in their order.
        assert_eq!(have["validation_base"], one["validation_base"], "{name}");
        assert_near(&name, float(&have, "validation_last"), float(&one, "validation_last"));
        for (k, (have, want)) in losses(&run).iter().zip(losses(&dir.join("one"))).enumerate() {
            assert_near(&format!("{name}, update {k}"), *have, want);
        }
        for key in ["frames", "updates"] {
            assert_eq!(have[key], one[key], "{name}: {key}");
        }
        // Every byte as planned, on every rank.
        let used: Vec<_> = have["arena_bytes_of_ranks"].as_array().expect("a list").clone();
        assert_eq!(used.len(), ranks, "{name}");
        assert!(used.iter().all(|b| *b == have["arena_bytes_planned"]), "{name}: {used:?}");
        let (peak, planned) = (float(&have, "peak_rss_bytes"), float(&have, "peak_planned_bytes"));
        assert!(peak <= planned, "{name}: peak {peak} above the plan {planned}");
        assert!(planned - peak <= f64::from(64 << 20), "{name}: peak {peak} far under the plan {planned}");
        if ranks == 3 {
            // The strategies write other files of the same bits.
            let exported = std::fs::read(run.join("export/model.safetensors")).expect("a file");
            let (of_full, loss) =
                first.get_or_insert_with(|| (exported.clone(), have["validation_last"].clone()));
            assert!(exported == *of_full, "{name}: the export differs from that of full");
            assert_eq!(have["validation_last"], *loss, "{name}");
            let names: BTreeSet<String> = step(&run, 6).into_iter().map(|f| f.0).collect();
            let whole = ["ema.safetensors", "model.safetensors", "optimizer.safetensors"];
            match strategy {
                "none" => assert!(names.iter().eq(whole), "{names:?}"),
                _ => assert!(names.len() > 6 && names.contains("model.1-of-3.safetensors"), "{names:?}"),
            }
        }
    }
}

/// The quickstart, a few updates of it.
fn quickstart(dir: &Path, name: &str, ranks: u32) -> String {
    let quickstart = common::root().join("recipes/quickstart");
    let recipe = format!(
        "model: {{dir: {0}/model}}\ndata: {{dir: {0}/clips, cache: {1}/cache, max_seconds: 10, validation: [clip-09.wav, \
         clip-12.flac]}}\nrun_dir: {1}/{name}\ncheckpoint: all\nthreads: 2\nbatch: {{clips: 5}}\nmicro_batch: 1000\nupdates: \
         3\nlearning_rate: 1.0e-3\nsample: {{steps: 2}}\nranks: {ranks}\n",
        quickstart.display(),
        dir.display()
    );
    let path = dir.join(format!("{name}.yaml"));
    std::fs::write(&path, recipe).expect("a file");
    text(&path)
}

#[test]
fn the_plan_counts_every_rank_and_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let of = |v: &serde_json::Value, key: &str| v[key].as_u64().unwrap_or_else(|| panic!("{key} in {v:#}"));
    for ranks in [2, 3] {
        let name = format!("run-{ranks}");
        let recipe = quickstart(dir, &name, ranks);
        let plan = common::json(dir, &["plan", &recipe, "--json", "--memory", "2GiB"]);
        let row = &plan["ranks"]["in_process"];
        let sum = of(row, "ranks") * (of(row, "arena_bytes") + of(row, "beside_bytes"));
        assert_eq!(of(row, "arena_bytes"), of(&plan, "arena_bytes"));
        let peak = of(&plan, "peak_bytes");
        let whole = sum + of(row, "process_bytes") + of(row, "exchange_bytes");
        assert!(whole <= peak && peak - whole < u64::from(ranks), "{whole} of {peak}: {row:#}");
        let categories = plan["categories"].as_object().expect("categories");
        assert_eq!(categories.values().filter_map(serde_json::Value::as_u64).sum::<u64>(), peak);
        let said = common::ok(dir, &["plan", &recipe, "--memory", "2GiB"]);
        assert!(said.contains(&format!("in this process: {ranks} x (arena ")), "{said}");
        assert!(said.contains(&format!("{ranks} ranks of 1 thread (cpu)")), "{said}");

        // Under the minimum nothing begins, with it it ends well.
        let less = format!("{:.6}MiB", peak as f64 * 0.98 / 1_048_576.0);
        let (code, said) = common::said(dir, &["train", &recipe, "--memory", &less]);
        assert!(code == 3 && said.contains("does not fit: needs"), "{code}: {said}");
        assert!(!dir.join(&name).exists());
        let exact = format!("{:.6}MiB", (peak as f64 / 1_048_576.0 * 1e6).ceil() / 1e6);
        let summary = common::json(dir, &["train", &recipe, "--memory", &exact, "--json"]);
        let measured = of(&summary, "peak_rss_bytes");
        println!("{ranks} ranks: planned {peak}, measured {measured}");
        assert!(measured <= peak && peak - measured <= 64 << 20, "{measured} of {peak}");
        assert_eq!(summary["arena_bytes_of_ranks"].as_array().map(Vec::len), Some(ranks as usize));
    }
}

#[test]
fn killed_ranks_end_with_the_same_bits() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let lines = format!("{SHORT}\nranks: 2\noptimizer: adamw-8bit");
    train(dir, "whole", &lines, &[]);
    let want = step(&dir.join("whole"), 6);
    let run = dir.join("cut");
    common::kill_and_resume(dir, &common::recipe(dir, "cut", &lines), "2GiB", &run);
    assert!(step(&run, 6) == want, "the resumed run differs");
}

/// Ranks that share nothing but their engine and the folder, each with a plan of its own, as processes are.
#[test]
fn ranks_that_plan_for_themselves_agree() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    train(dir, "here", SHORT, &["--ranks", "2"]);
    let path = common::recipe(dir, "apart", &format!("{SHORT}\nmemory: 2GiB"));
    let (recipe, origins) =
        Recipe::read(&path, &ambitus_families::family::sections(ambitus_families::ALL)).expect("a recipe");
    let run = dir.join("apart");
    let begun = world::in_process(2, |world| {
        run::train(ALL, recipe.clone(), &origins, run.clone(), world, &mut Silent).map(|run| run.root)
    });
    assert_eq!(begun.expect("both end well"), [run.clone(), run.clone()]);
    assert!(step(&run, 6) == step(&dir.join("here"), 6), "other bits than in one process");
    let said = std::fs::read_to_string(run.join("recipe.yaml")).expect("a recipe");
    assert!(said.contains("ranks: 2"), "{said}");
    let whole = step(&run, 6);
    back(&run);
    let shared = run::Shared { ranks: None, sharding: Some(Strategy::None), placement: None };
    world::in_process(2, |world| run::resume(ALL, &run, shared, world, &mut Silent).map(drop))
        .expect("both resume");
    let export = |name: &str| std::fs::read(dir.join(name).join("export/model.safetensors")).expect("a file");
    assert!(step(&run, 6) != whole && export("apart") == export("here"), "whole tensors of the same bits");
    // Another number of processes than the run's, which it then has.
    back(&run);
    world::in_process(3, |world| {
        let shared = run::Shared { ranks: None, sharding: Some(Strategy::Full), placement: None };
        run::resume(ALL, &run, shared, world, &mut Silent).map(drop)
    })
    .expect("three resume");
    assert!(step(&run, 6).iter().any(|(name, _)| name == "model.1-of-3.safetensors"));
}

/// Resumes from the second update's checkpoint.
fn back(run: &Path) {
    for step in [4, 6] {
        std::fs::remove_dir_all(run.join(format!("checkpoints/step-{step}"))).expect("a checkpoint");
    }
    std::fs::remove_file(run.join("summary.json")).expect("a summary");
}

#[test]
fn a_run_goes_on_with_other_ranks_and_strategies() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let forms = [
        ("plain", ""),
        ("narrow", "optimizer: adamw-bf16"),
        ("units", "sharding: {units: {min_params: 2000}, forward_prefetch: true}"),
    ];
    for (form, lines) in forms.map(|(form, more)| (form, format!("{SHORT}\n{more}"))) {
        let of = |name: &str| format!("{form}-{name}");
        let one = train(dir, &of("one"), &lines, &[]);
        let want = float(&one, "validation_last");
        let run = dir.join(of("run"));
        let two = train(dir, &of("run"), &lines, &["--ranks", "2"]);
        let whole = step(&run, 6);
        assert_near(&of("on 2"), float(&two, "validation_last"), want);
        // Another strategy at the same number of ranks: the same bits, in other files.
        back(&run);
        common::ok(dir, &["resume", &text(&run), "--sharding", "none"]);
        let export = |run: &Path| std::fs::read(run.join("export/model.safetensors")).expect("a file");
        let with_none = export(&run);
        back(&run);
        common::ok(dir, &["resume", &text(&run), "--sharding", "full"]);
        assert!(step(&run, 6) == whole && export(&run) == with_none, "{form}: other bits");
        // Other numbers of ranks.
        for ranks in ["3", "1", "4"] {
            back(&run);
            let have = common::json(dir, &["resume", &text(&run), "--ranks", ranks, "--json"]);
            assert_near(&of(&format!("on {ranks}")), float(&have, "validation_last"), want);
            assert_eq!(have["ranks"].to_string(), ranks);
            let recipe = std::fs::read_to_string(run.join("recipe.yaml")).expect("a recipe");
            assert!(recipe.contains(&format!("ranks: {ranks}")), "{recipe}");
        }
        // It remembers.
        back(&run);
        let have = common::json(dir, &["resume", &text(&run), "--json"]);
        assert_eq!(have["ranks"], 4);
    }
}

#[test]
fn moments_in_8_bits_go_on_at_any_number_of_ranks() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let one = train(dir, "run", &format!("{SHORT}\noptimizer: adamw-8bit"), &[]);
    let run = dir.join("run");
    for ranks in ["2", "3", "1"] {
        back(&run);
        let have = common::json(dir, &["resume", &text(&run), "--ranks", ranks, "--json"]);
        assert_near(ranks, float(&have, "validation_last"), float(&one, "validation_last"));
    }
}

#[test]
fn adapters_and_stages_have_ranks() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let lora = "lora: {rank: 4, alpha: 8, also_train: ['*.text_embed.text_embed']}\nema: false";
    let lines = format!("{SHORT}\n{lora}");
    let one = train(dir, "one", &lines, &[]);
    let mut files = Vec::new();
    for strategy in ["full", "none"] {
        let have = train(dir, strategy, &lines, &["--ranks", "3", "--sharding", strategy]);
        assert_near(strategy, float(&have, "validation_last"), float(&one, "validation_last"));
        let run = dir.join(strategy);
        common::ok(dir, &["export", &text(&run), "--adapter"]);
        // Of a checkpoint in pieces and of one in whole tensors: the same bytes, merged and alone.
        let names =
            ["export/model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"];
        files.push(names.map(|n| std::fs::read(run.join(n)).expect("a file")));
    }
    assert!(files[0] == files[1], "exports differ");

    let stages = "stages:\n  - {name: head, freeze: ['*.transformer_blocks'], updates: 2}\n  - {updates: 2}";
    let short = SHORT.replace("updates: 6\n", "");
    let one = train(dir, "staged-one", &format!("{short}\n{stages}"), &[]);
    let have = train(dir, "staged", &format!("{short}\nranks: 2\n{stages}"), &[]);
    assert_near("stages", float(&have, "validation_last"), float(&one, "validation_last"));
    assert!(have["stages"].as_array().expect("a list").iter().all(|s| s["ranks"] == 2), "{have:#}");
}

/// A run that does not end by itself, after its third update.
fn endless(dir: &Path, name: &str) -> Child {
    let lines = SHORT.replace("updates: 6", "updates: 100000").replace("save_every: 2", "save_every: 0");
    let recipe = text(&common::recipe(dir, name, &format!("{lines}\nranks: 2")));
    let mut child = Command::new(env!("CARGO_BIN_EXE_ambitus"))
        .current_dir(dir)
        .args(["train", &recipe, "--memory", "2GiB"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let metrics = dir.join(name).join("metrics.jsonl");
    while std::fs::read_to_string(&metrics).map_or(0, |t| t.lines().count()) < 3 {
        std::thread::sleep(Duration::from_millis(20));
        assert!(child.try_wait().expect("a status").is_none(), "the run ended by itself");
    }
    child
}

#[test]
fn a_stop_ends_every_rank_after_the_same_update() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let child = endless(dir, "long");
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(child.wait_with_output().expect("a status").status.code(), Some(10));
    assert_eq!(std::fs::read_dir(dir.join("long/checkpoints")).expect("checkpoints").count(), 1);
}

#[test]
fn what_goes_wrong_on_a_rank_names_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let child = endless(dir, "broken");
    // Clips that are damaged while they are trained on: the rank whose turn one is finds out, the other ends with it.
    let (mut damaged, mut folders) = (0, vec![dir.join("cache")]);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).expect("a folder").map(|e| e.expect("an entry").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "clip") {
                std::fs::write(&path, b"").expect("a file");
                damaged += 1;
            }
        }
    }
    assert_eq!(damaged, 9);
    let out = child.wait_with_output().expect("a status");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(5) && said.contains("error: rank "), "{}: {said}", out.status);
    assert!(!dir.join("broken/checkpoints").exists(), "nothing is half written");
}
