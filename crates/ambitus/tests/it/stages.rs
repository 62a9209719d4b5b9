//! Runs in stages, from recipe to export: each a run of its own, on what the one before made.

use crate::common;
use std::collections::BTreeMap;
use std::path::Path;

const SHORT: &str = "batch: {clips: 3}\nmicro_batch: 200\nsave_every: 2\nvalidate_every: 3\nthreads: 2\nwarmup: 1\nmemory: 1GiB";
/// The head first; then everything but the blocks' attention, at the recipe's own rate.
const STAGES: &str = "
stages:
  - {name: head, freeze: ['*.transformer_blocks', '*.text_embed'], updates: 3, learning_rate: 5e-3}
  - {freeze: ['*.attn'], updates: 4}";

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn exists(run: &Path, path: &str) -> bool {
    run.join(path).exists()
}

/// Bits of a file's f32 tensors by name, without the prefix of released files.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u32>> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let floats = file.tensors().into_iter().filter(|(_, t)| t.dtype() == safetensors::Dtype::F32);
    let named = |n: String| n.strip_prefix("ema_model.").map_or(n.clone(), str::to_owned);
    let bits =
        |b: &[u8]| b.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("4 bytes"))).collect();
    floats.map(|(n, t)| (named(n), bits(t.data()))).filter(|(n, _)| n.starts_with("transformer.")).collect()
}

/// What is frozen has the bits of before, all else others.
#[track_caller]
fn only_moved(before: &Path, after: &Path, frozen: impl Fn(&str) -> bool) {
    let (before, after) = (tensors(before), tensors(after));
    let (mut kept, mut moved) = (0, 0);
    for (name, bits) in &before {
        let same = after[name] == *bits;
        assert_eq!(same, frozen(name) || name.ends_with(".inv_freq"), "{name}");
        *(if same { &mut kept } else { &mut moved }) += 1;
    }
    assert!(kept > 5 && moved > 5, "{kept} kept, {moved} moved");
}

#[test]
fn each_stage_trains_its_part_of_what_the_one_before_made() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = text(&common::recipe(dir, "run", &format!("{SHORT}{STAGES}")));
    let plan = common::json(dir, &["plan", &recipe, "--memory", "1GiB", "--json"]);
    let count = |i: usize| plan["stages"][i]["trained_parameters"].as_u64().expect("a number");
    assert!(count(0) < count(1) && plan["fits"] == true, "{plan:#}");
    assert_eq!((&plan["stages"][0]["name"], &plan["stages"][1]["name"]), (&"head".into(), &"stage-2".into()));
    let said = common::ok(dir, &["plan", &recipe, "--memory", "1GiB"]);
    assert!(
        said.contains("stage 1 of 2, head:\nplan: peak") && said.contains("stage 2 of 2, stage-2:"),
        "{said}"
    );

    let summary = common::json(dir, &["train", &recipe, "--memory", "1GiB", "--json"]);
    let run = dir.join("run");
    let (first, second) = (run.join("stages/1-head"), run.join("stages/2-stage-2"));
    let base = common::fixture("v1").join("model.safetensors");
    let in_blocks = |n: &str| n.contains(".transformer_blocks.") || n.contains(".text_embed.");
    let in_attention = |n: &str| n.contains(".attn.");
    for out in ["checkpoints/step-3/model.safetensors", "export/model.safetensors"] {
        only_moved(&base, &first.join(out), in_blocks);
    }
    for out in ["checkpoints/step-4/model.safetensors", "export/model.safetensors"] {
        only_moved(&first.join("export/model.safetensors"), &second.join(out), in_attention);
    }
    for (stage, step, frozen) in
        [(&first, 3, &in_blocks as &dyn Fn(&str) -> bool), (&second, 4, &in_attention)]
    {
        for shard in ["optimizer", "ema"] {
            let path = stage.join(format!("checkpoints/step-{step}/{shard}.safetensors"));
            let names = common::named(&path);
            assert!(
                !names.is_empty() && names.iter().all(|(n, _)| !frozen(n)),
                "{shard} keeps frozen states"
            );
        }
    }

    // The second begins where the first ended; the whole is the last one's result, with what is of both.
    let number = |v: &serde_json::Value| v.as_f64().expect("a number");
    let each = summary["stages"].as_array().expect("stages");
    let (ended, begins) = (number(&each[0]["validation_last"]), number(&each[1]["validation_base"]));
    assert!((ended - begins).abs() <= 1e-6 * ended, "{ended} ended, {begins} begins");
    assert!(number(&each[0]["validation_base"]) != ended);
    assert_eq!(
        (&summary["updates"], &each[0]["updates"], &each[1]["updates"]),
        (&7.into(), &3.into(), &4.into())
    );
    assert_eq!(summary["validation_last"], each[1]["validation_last"]);
    assert_eq!(summary["validation_base"], each[0]["validation_base"]);
    for s in each.iter().chain([&summary]) {
        assert!(s["peak_rss_bytes"].as_u64() <= s["peak_planned_bytes"].as_u64(), "{s:#}");
    }
    let exported = |dir: &Path| std::fs::read(dir.join("export/model.safetensors")).expect("an export");
    assert!(exported(&run) == exported(&second));

    // Killed in the second stage, or before it began: the same bits.
    let states = || {
        let of =
            |n| std::fs::read(second.join(format!("checkpoints/step-4/{n}.safetensors"))).expect("a shard");
        (["model", "optimizer", "ema"].map(of), exported(&run))
    };
    let whole = states();
    let one = std::fs::metadata(first.join("summary.json")).and_then(|m| m.modified()).expect("a time");
    std::fs::remove_dir_all(second.join("checkpoints/step-4")).expect("a checkpoint");
    std::fs::remove_file(second.join("summary.json")).expect("a summary");
    common::ok(dir, &["resume", &text(&run)]);
    assert!(states() == whole, "resumed within the second stage");
    std::fs::remove_dir_all(&second).expect("the second stage");
    std::fs::remove_dir_all(run.join("export")).expect("the export");
    std::fs::remove_file(run.join("summary.json")).expect("a summary");
    let out = text(&dir.join("out"));
    common::ok(dir, &["export", &text(&run), "--out", &out]);
    assert!(std::fs::read(dir.join("out/model.safetensors")).expect("an export") == exported(&first));
    common::ok(dir, &["resume", &text(&run)]);
    assert!(states() == whole, "resumed before the second stage");
    let now = std::fs::metadata(first.join("summary.json")).and_then(|m| m.modified()).expect("a time");
    assert_eq!(one, now, "the first stage ran again");

    let (code, said) = common::said(dir, &["train", &recipe, "--memory", "1GiB"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("holds a run already"), "{said}");
    let table = common::ok(dir, &["runs", "."]);
    assert!(table.contains("run") && table.contains("complete") && !table.contains("missing"), "{table}");
    assert!(!exists(&run, "checkpoints"));
}

#[test]
fn adapters_are_merged_at_the_hand_over() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let stages = "
ema: false
stages:
  - {name: low-rank, lora: {rank: 2}, epochs: 1}
  - {name: low_rank_again, lora: {rank: 4, targets: ['*.to_q']}, updates: 2, checkpoint: all, optimizer: adamw-8bit}";
    let recipe = text(&common::recipe(dir, "run", &format!("{SHORT}{stages}")));
    common::ok(dir, &["train", &recipe, "--memory", "1GiB"]);
    let run = dir.join("run");
    let (first, second) = (run.join("stages/1-low-rank/export"), run.join("stages/2-low_rank_again/export"));
    let weights = |dir: &Path| dir.join("model.safetensors");
    only_moved(&common::fixture("v1").join("model.safetensors"), &weights(&first), |n| {
        let adapted = [".to_q.", ".to_k.", ".to_v.", ".to_out.0.", ".ff.ff.0.0.", ".ff.ff.2."];
        !n.ends_with(".weight")
            || !n.contains(".transformer_blocks.")
            || !adapted.iter().any(|a| n.contains(a))
    });
    let (before, after) = (tensors(&weights(&first)), tensors(&weights(&second)));
    for (name, bits) in &before {
        assert_eq!(after[name] != *bits, name.ends_with(".to_q.weight"), "{name}");
    }
    // The adapters of the last stage stand alone.
    common::ok(dir, &["export", &text(&run), "--adapter"]);
    assert!(exists(&run, "adapter/adapter_model.safetensors"));
}

#[test]
fn a_stage_that_does_not_fit_is_refused_before_any_is_trained() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    // A model large enough for its step to be the peak, and not preparing the data.
    let of = |name: &str| text(&common::root().join("recipes/quickstart").join(name));
    let (model, clips) = (of("model"), of("clips"));
    let stages = "
numerics: same
checkpoint: none
stages:
  - {name: small, freeze: ['*.transformer_blocks', '*.text_embed', '*.input_embed', '*.time_embed'], updates: 2}
  - {name: large, updates: 2}";
    let recipe = text(&common::recipe(dir, "run", &format!("{SHORT}{stages}")));
    let mut args = vec![&*recipe, "--model", &model, "--data", &clips, "--micro-batch", "1200", "--memory"];
    args.push("1GiB");
    let plan = common::json(dir, &[&["plan", "--json"], &*args].concat());
    let peak = |i: usize| plan["stages"][i]["peak_bytes"].as_u64().expect("a number");
    assert!(peak(0) < peak(1), "{plan:#}");
    let between = format!("{}B", (peak(0) + peak(1)) / 2);
    args.pop();
    args.push(&between);
    for command in ["train", "plan"] {
        let (code, said) = common::said(dir, &[&[command], &*args].concat());
        assert_eq!(code, 3, "{said}");
        assert!(said.contains("stage 2 of 2, large: does not fit: needs"), "{said}");
    }
    assert!(!exists(dir, "run"), "something is left of a run that never began");
}

#[test]
fn what_cannot_be_meant_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 3);
    let stages = |lines: &str| format!("{SHORT}\nstages:\n{lines}");
    let two = "  - {name: a, updates: 1}\n  - {name: b, epochs: 1, learning_rate: 1e-4}";
    for (i, (lines, args, words)) in [
        (
            stages("  - {name: a/b}"),
            &[][..],
            "bad0.yaml:14:12: stages.0.name: \"a/b\" is not 1 to 40 letters",
        ),
        (stages("  - {name: x}\n  - {name: x}"), &[], "stages.1.name: two stages are called `x`"),
        (stages("  - {name: stage-2}\n  - {}"), &[], "two stages are called `stage-2`"),
        (
            stages("  - {frees: ['*']}"),
            &[],
            "unknown key `frees` (did you mean `freeze`?); known here: name, freeze, lora",
        ),
        (stages("  - {updates: 1, epochs: 1}"), &[], "stages.0.epochs: cannot be combined with `updates`"),
        (stages("  - {}\n  - {learning_rate: 3}"), &[], "stages.1.learning_rate: 3 is not above 0"),
        (stages("  - {lora: {rank: 0}}"), &[], "stages.0.lora.rank: 0 is not between"),
        (
            stages("  - {lora: {}, freeze: ['*.attn']}"),
            &[],
            "stages.0.freeze: cannot be combined with `lora`",
        ),
        (format!("freeze: ['*.attn']\n{}", stages(two)), &[], "freeze: cannot be combined with `stages`"),
        (stages(two), &["--lora", "4"], "lora: cannot be combined with `stages`"),
        (
            stages(two),
            &["--updates", "4"],
            "--updates: stage `a` of the recipe sets its own updates or epochs",
        ),
        (stages(two), &["--learning-rate", "1e-4"], "--learning-rate: stage `b` of the recipe sets its own"),
        (
            stages("  - {}\n  - {name: b, freeze: ['*.atn']}"),
            &[],
            "stage 2 of 2, b: `*.atn` matches no parameter",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let recipe = text(&common::recipe(dir, &format!("bad{i}"), &lines));
        for command in ["plan", "train"] {
            let (code, said) = common::said(dir, &[&[command, &recipe, "--memory", "1GiB"], args].concat());
            assert_eq!(code, 2, "{lines}: {said}");
            assert!(said.contains(words), "{lines}: {said}");
        }
        assert!(!exists(dir, &format!("bad{i}")), "{lines}");
    }
    let good = text(&common::recipe(dir, "good", &stages(two)));
    common::ok(dir, &["plan", &good, "--memory", "1GiB", "--optimizer", "adamw-bf16"]);
}
