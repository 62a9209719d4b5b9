//! Models that are placed on ranks of one process, by the real binary: gradients and whole runs with the bits of one rank, budget,
//! kill and resume, also on other ranks and another placement, export.

use crate::common;
use ambitus_families::ALL;
use ambitus_families::console::Silent;
use ambitus_recipe::recipe::{Placement, Recipe};
use ambitus_train::{run, world};
use std::path::{Path, PathBuf};

/// Updates of five micro-batches: each has one clip.
const SHORT: &str =
    "updates: 4\nbatch: {clips: 5}\nmicro_batch: 80\nsave_every: 2\nvalidate_every: 2\nthreads: 3\nkeep: 9";

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A recipe for a new F5-TTS of four blocks, with further lines.
fn recipe(dir: &Path, name: &str, lines: &str) -> PathBuf {
    let model = dir.join("model");
    if !model.exists() {
        std::fs::create_dir(&model).expect("a folder");
        let fixture = common::fixture("v1");
        let config = std::fs::read_to_string(fixture.join("config.yaml")).expect("a file");
        assert!(config.contains("depth: 2"));
        std::fs::write(model.join("config.yaml"), config.replace("depth: 2", "depth: 4")).expect("a file");
        std::fs::copy(fixture.join("vocab.txt"), model.join("vocab.txt")).expect("a file");
    }
    let path = dir.join(format!("{name}.yaml"));
    let text = format!(
        "model: {{dir: {}, from_scratch: true}}\ndata: {{dir: {}, cache: {}}}\nrun_dir: {}\nlearning_rate: 1e-3\nsample: {{steps: \
         2}}\n{lines}\n",
        model.display(),
        dir.join("voice").display(),
        dir.join("cache").display(),
        dir.join(name).display(),
    );
    std::fs::write(&path, text).expect("a file");
    path
}

fn train(dir: &Path, name: &str, lines: &str, options: &[&str]) -> serde_json::Value {
    let recipe = text(&recipe(dir, name, lines));
    let args = [&["train", &recipe, "--memory", "2GiB", "--json"], options].concat();
    common::json(dir, &args)
}

/// All that a run made of numbers: losses of its log, and tensors of every kind at a step, whoever wrote them.
fn results(run: &Path, step: u64) -> (Vec<String>, Vec<(String, Vec<u8>)>) {
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    let of = |l: &str| {
        let line: serde_json::Value = serde_json::from_str(l).expect("JSON");
        ["update", "loss", "grad_norm", "frames"].map(|key| line[key].to_string()).join(" ")
    };
    let mut tensors = Vec::new();
    for entry in std::fs::read_dir(run.join(format!("checkpoints/step-{step}"))).expect("a checkpoint") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).expect("a file");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        tensors.extend(file.tensors().into_iter().map(|(name, t)| (name, t.data().to_vec())));
    }
    tensors.sort();
    (log.lines().map(of).collect(), tensors)
}

#[track_caller]
fn assert_same(what: &str, have: &Path, want: &Path) {
    let ((have_losses, have_tensors), (losses, tensors)) = (results(have, 4), results(want, 4));
    assert_eq!(have_losses, losses, "{what}");
    let names = |t: &[(String, Vec<u8>)]| t.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(&have_tensors), names(&tensors), "{what}");
    for ((name, have), (_, want)) in have_tensors.iter().zip(&tensors) {
        assert!(have == want, "{what}: {name} differs");
    }
    let of = |run: &Path| {
        ["export/model.safetensors", "audio/tuned.wav"].map(|f| std::fs::read(run.join(f)).expect("a file"))
    };
    assert!(of(have) == of(want), "{what}: the export or what was sampled differs");
}

fn gradients(folder: &Path, dir: &Path, options: &[&str]) -> Vec<u8> {
    let (batch, out) = (folder.join("batch.safetensors"), dir.join("out.safetensors"));
    let [model, batch, out] = [folder, &batch, &out].map(text);
    let mut args = vec!["gradients", "--model", &model, "--batch", &batch, "--out", &out, "--threads", "2"];
    args.extend(options);
    common::ok(dir, &args);
    std::fs::read(&out).expect("a file")
}

#[test]
fn gradients_have_the_bits_of_one_rank() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    for folder in [common::fixture("v1"), common::orpheus("tied")] {
        let bytes = std::fs::read(folder.join("batch.safetensors")).expect("a file");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let of_rows = |name: &str| name.ends_with(".mel") || name.ends_with(".input_ids");
        let rows = file.tensors().into_iter().filter(|(n, _)| of_rows(n)).map(|(_, t)| t.shape()[0]);
        let rows = rows.max().expect("a clip").to_string();
        for precision in ["fp32", "fp16-mixed"] {
            for checkpoint in ["none", "all"] {
                let shared = ["--micro-batch", &rows, "--precision", precision, "--checkpoint", checkpoint];
                let one = gradients(&folder, dir, &shared);
                for placement in ["model", "pipeline"] {
                    let placed = [&shared[..], &["--ranks", "2", "--placement", placement]].concat();
                    let same = gradients(&folder, dir, &placed) == one;
                    assert!(
                        same,
                        "{}, {placement}, {precision}, {checkpoint}: other bytes",
                        folder.display()
                    );
                }
            }
        }
    }
}

#[test]
fn placed_ranks_train_with_the_bits_of_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 12);
    // Of 13 micro-batches two ranks take eight at a time, and five with three empty ones; three take twelve, and one.
    let lines = SHORT.replace("clips: 5", "clips: 13");
    let one = train(dir, "one", &lines, &[]);
    for (ranks, placement) in [(2, "model"), (2, "pipeline"), (3, "pipeline"), (4, "model")] {
        let name = format!("{placement}-{ranks}");
        let n = ranks.to_string();
        let have = train(dir, &name, &lines, &["--ranks", &n, "--placement", placement]);
        assert_same(&name, &dir.join(&name), &dir.join("one"));
        for key in ["validation_base", "validation_last", "frames", "updates"] {
            assert_eq!(have[key], one[key], "{name}: {key}");
        }
        // Every byte as planned, on every rank.
        assert_eq!(have["arena_bytes_of_ranks"], have["arena_bytes_planned_of_ranks"], "{name}: {have:#}");
        assert_eq!(have["arena_bytes_of_ranks"].as_array().map(Vec::len), Some(ranks), "{name}");
        let of = |key: &str| have[key].as_u64().expect("bytes");
        let (peak, planned) = (of("peak_rss_bytes"), of("peak_planned_bytes"));
        assert!(peak <= planned, "{name}: peak {peak} above the plan {planned}");
        // Preparing is planned with a dictionary; of what ranks exchange through, small transfers touch little.
        assert!(
            planned - peak <= (64 + 4 * ranks as u64) << 20,
            "{name}: peak {peak} far under the plan {planned}"
        );
    }
}

#[test]
fn what_else_a_run_may_want_is_placed() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    for (name, lines) in [
        ("narrow", "precision: bf16-pure\noptimizer: adamw-8bit\ncheckpoint: all"),
        ("scaled", "precision: fp16-mixed\nema: false"),
        ("lora", "lora: {rank: 4, alpha: 8, dropout: 0.1}"),
        ("frozen", "freeze: ['*.text_embed', '*.transformer_blocks.0', '*.transformer_blocks.1']"),
        ("offloaded", "offload: all"),
        ("each", "clip_per_tensor: true"),
    ] {
        let lines = format!("{SHORT}\n{lines}");
        let of = |how: &str| format!("{name}-{how}");
        train(dir, &of("one"), &lines, &[]);
        for how in ["model", "pipeline"] {
            train(dir, &of(how), &lines, &["--ranks", "2", "--placement", how]);
            assert_same(&of(how), &dir.join(of(how)), &dir.join(of("one")));
        }
    }
    let lines = "updates: 4\nbatch: {clips: 3}\nthreads: 2\nclip_per_tensor: true\nupdate: backward";
    train(dir, "backward-one", lines, &[]);
    train(dir, "backward", lines, &["--ranks", "2", "--placement", "model"]);
    assert_same("in backward", &dir.join("backward"), &dir.join("backward-one"));
    let stages = "stages:\n  - {name: head, freeze: ['*.text_embed'], updates: 2}\n  - {updates: 2}";
    let lines = format!("{}\n{stages}", SHORT.replace("updates: 4\n", ""));
    let one = train(dir, "staged-one", &lines, &[]);
    let have = train(dir, "staged", &lines, &["--ranks", "2", "--placement", "pipeline"]);
    assert_eq!(have["validation_last"], one["validation_last"]);
}

/// Resumes from the second update's checkpoint.
fn back(run: &Path) {
    std::fs::remove_dir_all(run.join("checkpoints/step-4")).expect("a checkpoint");
    std::fs::remove_file(run.join("summary.json")).expect("a summary");
}

#[test]
fn a_run_goes_on_placed_otherwise() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 12);
    train(dir, "one", SHORT, &[]);
    train(dir, "run", SHORT, &["--ranks", "2", "--placement", "model"]);
    let (one, run) = (dir.join("one"), dir.join("run"));
    let files = |step: u64| {
        let folder = std::fs::read_dir(run.join(format!("checkpoints/step-{step}"))).expect("a checkpoint");
        let names = folder.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|n| n.starts_with("model.")).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(files(4).iter().eq(["model.0-of-2.safetensors", "model.1-of-2.safetensors"]), "{:?}", files(4));
    for options in [
        &["--ranks", "3", "--placement", "pipeline"][..],
        // It remembers.
        &[],
        &["--ranks", "1"],
        &["--ranks", "4", "--placement", "model"],
    ] {
        back(&run);
        common::ok(dir, &[&["resume", &text(&run)], options].concat());
        assert_same(&format!("{options:?}"), &run, &one);
    }
    // Shared, in another order of sums, and back.
    let near = |have: serde_json::Value| {
        let want: serde_json::Value =
            serde_json::from_slice(&std::fs::read(one.join("summary.json")).expect("a file")).expect("JSON");
        let [have, want] = [have, want].map(|v| v["validation_last"].as_f64().expect("a loss"));
        assert!((have / want - 1.0).abs() < 1e-4, "{have}, one rank has {want}");
    };
    back(&run);
    near(common::json(dir, &["resume", &text(&run), "--ranks", "2", "--sharding", "full", "--json"]));
    assert!(files(4).contains("model.1-of-2.safetensors"));
    let kept = std::fs::read_to_string(run.join("recipe.yaml")).expect("a recipe");
    assert!(kept.contains("strategy: full") && !kept.contains("placement"), "{kept}");
    back(&run);
    common::ok(dir, &["resume", &text(&run), "--placement", "pipeline"]);
    assert_same("from 2 full", &run, &one);
}

#[test]
fn killed_ranks_end_with_the_same_bits() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 12);
    train(dir, "whole", SHORT, &[]);
    let lines = format!("{SHORT}\nranks: 2\nplacement: pipeline");
    let run = dir.join("cut");
    common::kill_and_resume(dir, &recipe(dir, "cut", &lines), "2GiB", &run);
    assert!(results(&run, 4).1 == results(&dir.join("whole"), 4).1, "the resumed run differs");
}

/// Ranks that share nothing but their engine and the folder, each with a plan of its own, as processes are.
#[test]
fn ranks_that_plan_for_themselves_agree() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 12);
    train(dir, "here", SHORT, &[]);
    let path = recipe(dir, "apart", &format!("{SHORT}\nmemory: 2GiB\nplacement: pipeline"));
    let (recipe, origins) =
        Recipe::read(&path, &ambitus_families::family::sections(ambitus_families::ALL)).expect("a recipe");
    let run = dir.join("apart");
    let begun = world::in_process(3, |world| {
        run::train(ALL, recipe.clone(), &origins, run.clone(), world, &mut Silent).map(|run| run.root)
    });
    assert_eq!(begun.expect("all end well").len(), 3);
    assert_same("apart", &run, &dir.join("here"));
    back(&run);
    let shared = run::Shared { placement: Some(Placement::Model), ..run::Shared::default() };
    world::in_process(2, |world| run::resume(ALL, &run, shared, world, &mut Silent).map(drop))
        .expect("both resume");
    assert_same("two resumed", &run, &dir.join("here"));
}

#[test]
fn a_plan_has_a_line_for_each_rank() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 12);
    let path = text(&recipe(dir, "run", &format!("{SHORT}\ncheckpoint: none")));
    let plan = |options: &[&str]| {
        common::json(dir, &[&["plan", &path, "--memory", "2GiB", "--json"], options].concat())
    };
    let of = |v: &serde_json::Value| v.as_u64().unwrap_or_else(|| panic!("bytes in {v:#}"));
    for (placement, at_a_time) in [("model", 1), ("pipeline", 5)] {
        let options = ["--ranks", "2", "--placement", placement];
        let have = plan(&options);
        let rows = have["placement"]["ranks"].as_array().expect("rows").clone();
        let blocks: Vec<u64> = rows.iter().map(|r| of(&r["blocks"][1])).collect();
        assert!(blocks.len() == 2 && blocks.iter().sum::<u64>() == 4, "{rows:?}");
        assert_eq!(of(&have["placement"]["in_flight"]), at_a_time);
        // In one process the peak is of both; categories sum to it.
        let (peak, arenas) =
            (of(&have["peak_bytes"]), rows.iter().map(|r| of(&r["arena_bytes"])).sum::<u64>());
        assert!(arenas < peak && rows.iter().any(|r| r["arena_bytes"] == have["arena_bytes"]), "{have:#}");
        let categories = have["categories"].as_object().expect("categories");
        assert_eq!(categories.values().filter_map(serde_json::Value::as_u64).sum::<u64>(), peak);
        let said = common::ok(dir, &[&["plan", &path, "--memory", "2GiB"], &options[..]].concat());
        for words in
            ["placed on 2 ranks, each with some of 4 blocks", "rank 0: blocks 0 to ", "rank 1: blocks "]
        {
            assert!(said.contains(words), "{said}");
        }
        // Under the minimum nothing begins.
        let less = format!("{:.6}MiB", peak as f64 * 0.97 / 1_048_576.0);
        let (code, said) = common::said(dir, &[&["train", &path, "--memory", &less], &options[..]].concat());
        assert!(code == 3 && said.contains("does not fit: needs"), "{code}: {said}");
        assert!(!dir.join("run").exists());
    }
    // On cards the largest rank decides.
    let cards = common::json(
        dir,
        &["plan", &path, "--cards", "2xrtx3090", "--placement", "model", "--checkpoint", "none", "--json"],
    );
    let rows = cards["placements"]["rows"].as_array().expect("rows");
    let model = rows.iter().find(|r| r["placement"] == "model").expect("a row");
    let most = model["peak_bytes"].as_array().expect("a list").iter().map(of).max();
    assert_eq!(Some(of(&cards["peak_bytes"])), most, "{cards:#}");
}

#[test]
fn what_cannot_be_placed_is_said() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let plain = text(&recipe(dir, "plain", SHORT));
    let sharded = text(&recipe(dir, "sharded", &format!("{SHORT}\nsharding: {{strategy: none}}")));
    let model = ["--placement", "model"];
    for (path, options, words) in [
        (&plain, &["--ranks", "5"][..], "the model has 4 blocks, too few for each of 5 ranks"),
        (&plain, &["--ranks", "2", "--sharding", "full"], "leave out sharding"),
        (&sharded, &["--ranks", "2"], "leave out sharding"),
    ] {
        let (code, said) =
            common::said(dir, &[&["train", path, "--memory", "2GiB"], options, &model].concat());
        assert!(code == 2 && said.contains(words), "{options:?}: {code}: {said}");
    }
    assert!(!dir.join("plain").exists());
}
