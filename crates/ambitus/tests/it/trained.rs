//! Runs that train a part of the model: `freeze` and `lora`, from recipe to export.

use crate::{common, say};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::Path;

const SHORT: &str =
    "updates: 6\nbatch: {clips: 3}\nmicro_batch: 200\nsave_every: 2\nvalidate_every: 3\nthreads: 2\n";
const LORA: &str =
    "lora: {rank: 4, alpha: 8, dropout: 0.1, rslora: true, also_train: ['*.text_embed.text_embed']}";
/// alpha / sqrt(rank)
const SCALE: f64 = 4.0;

/// Shape and values by name, without the prefix of released files.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let floats =
        |b: &[u8]| b.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().expect("4 bytes"))).collect();
    let named = |n: &str| n.strip_prefix("ema_model.").unwrap_or(n).to_owned();
    let all = file.tensors().into_iter().filter(|(_, t)| t.dtype() == safetensors::Dtype::F32);
    all.map(|(n, t)| (named(&n), (t.shape().to_vec(), floats(t.data())))).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Bytes of the arena and trained parameters of a plan. (The peak of so small a model is in preparing the data.)
fn planned(dir: &Path, recipe: &str) -> (u64, u64) {
    let plan = common::json(dir, &["plan", recipe, "--json", "--memory", "1GiB"]);
    let of = |key: &str| plan[key].as_u64().expect("a number");
    (of("arena_bytes"), of("trained_parameters"))
}

/// Removes the last checkpoint and resumes from the one before: the same bits come out.
fn resumes_to_the_same_bits(dir: &Path, run: &Path) {
    let states = || {
        ["model", "optimizer", "ema"]
            .map(|n| std::fs::read(run.join(format!("checkpoints/step-6/{n}.safetensors"))).expect("a shard"))
    };
    let whole = states();
    std::fs::remove_dir_all(run.join("checkpoints/step-6")).expect("the last checkpoint");
    common::ok(dir, &["resume", &text(run)]);
    assert!(states() == whole, "the resumed run differs");
}

#[test]
fn adapters_train_merge_and_stand_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = text(&common::recipe(dir, "run", &format!("{SHORT}{LORA}")));
    let full = text(&common::recipe(dir, "full", SHORT));
    let ((less, some), (more, all)) = (planned(dir, &recipe), planned(dir, &full));
    assert!(less < more && some < all, "{less} of {more} bytes, {some} of {all} parameters");

    let summary = common::json(dir, &["train", &recipe, "--memory", "1GiB", "--json"]);
    assert!(summary["peak_rss_bytes"].as_u64() <= summary["peak_planned_bytes"].as_u64(), "{summary:#}");
    let run = dir.join("run");
    let base = read(&common::fixture("v1").join("model.safetensors"));
    let averages = read(&run.join("checkpoints/step-6/ema.safetensors"));
    let trained = |n: &str| n.contains(".lora_") || n.ends_with(".text_embed.text_embed.weight");
    assert!(averages.keys().all(|n| trained(n)), "{:?}", averages.keys());

    // Merged: the formula on the adapters as PEFT has them; what is frozen keeps its bits.
    let (merged, alone) = (text(&dir.join("merged")), text(&dir.join("alone")));
    common::ok(dir, &["export", &text(&run), "--weights", "raw", "--out", &merged]);
    common::ok(dir, &["export", &text(&run), "--weights", "raw", "--adapter", "--out", &alone]);
    let merged = read(&dir.join("merged/model.safetensors"));
    let alone = read(&dir.join("alone/adapter_model.safetensors"));
    let config = std::fs::read_to_string(dir.join("alone/adapter_config.json")).expect("a file");
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &8.into()));
    assert_eq!((&config["peft_type"], &config["bias"]), (&"LORA".into(), &"none".into()));
    assert_eq!((&config["use_rslora"], &config["lora_dropout"]), (&true.into(), &0.1.into()));
    assert_eq!(config["modules_to_save"], serde_json::json!(["transformer.text_embed.text_embed"]));
    let modules: Vec<&str> =
        config["target_modules"].as_array().expect("a list").iter().filter_map(|m| m.as_str()).collect();
    // Two blocks of four projections and two products of the feed-forward.
    assert_eq!(modules.len(), 12);
    assert_eq!(alone.len(), 2 * 12 + 1);
    let mut frozen = 0;
    for (name, (shape, w)) in &base {
        if !name.starts_with("transformer.") {
            continue;
        }
        let (now, merged) = merged.get(name).unwrap_or_else(|| panic!("{name} is not exported"));
        assert_eq!(now, shape, "{name}");
        let module = name.strip_suffix(".weight").filter(|m| modules.contains(m));
        let Some(module) = module else {
            let whole = alone.get(&format!("base_model.model.{name}"));
            assert_eq!(whole.is_some(), name.ends_with(".text_embed.text_embed.weight"), "{name}");
            match whole {
                Some((_, whole)) => assert!(bits(whole) == bits(merged) && whole != w, "{name}"),
                None => assert!(bits(merged) == bits(w), "{name} was frozen and has changed"),
            }
            frozen += usize::from(whole.is_none());
            continue;
        };
        let of = |end: &str| &alone[&format!("base_model.model.{module}.{end}.weight")];
        let ((a_shape, a), (b_shape, b)) = (of("lora_A"), of("lora_B"));
        assert_eq!((&**a_shape, &**b_shape), (&[4, shape[1]][..], &[shape[0], 4][..]), "{name}");
        assert!(b.iter().any(|x| *x != 0.0), "{name}: the adapter has not moved");
        for (i, (w, merged)) in w.iter().zip(merged).enumerate() {
            let (row, col) = (i / shape[1], i % shape[1]);
            let sum: f64 = (0..4).map(|k| f64::from(b[4 * row + k]) * f64::from(a[k * shape[1] + col])).sum();
            let want = (f64::from(*w) + SCALE * sum) as f32;
            assert!((want - merged).abs() <= f32::EPSILON * want.abs(), "{name}: {merged}, not {want}");
        }
    }
    assert!(frozen > 20, "{frozen}");

    // From wherever the weights come, they speak alike: the run, its checkpoint, the merged export, the base with the adapter.
    let base = text(&common::fixture("v1"));
    let (checkpoint, alone_dir, merged_dir) =
        (text(&run.join("checkpoints/step-6")), text(&dir.join("alone")), text(&dir.join("merged")));
    let reference = say::reference(dir);
    let speech = |model: &[&str]| {
        let reference: Vec<&str> = reference.iter().map(String::as_str).collect();
        say::speech(dir, &[model, &["bad 7", "--steps", "2", "--cfg", "0"], &reference].concat()).0
    };
    let of_export = speech(&[&merged_dir]);
    assert!(speech(&[&text(&run), "--weights", "raw"]) == of_export);
    assert!(speech(&[&checkpoint, "--weights", "raw"]) == of_export);
    assert!(speech(&[&base, "--adapter", &alone_dir]) == of_export);
    assert!(speech(&[&base]) != of_export);
    // The run's own export has the better weights by its last validation, as its last checkpoint speaks.
    assert!(speech(&[&checkpoint]) == speech(&[&text(&run.join("export"))]));
    assert!(speech(&[&text(&run), "--weights", "ema"]) != of_export);

    // A run from the merged export starts where this one ended.
    let export = text(&run.join("export"));
    let next = text(&dir.join("next"));
    let args = ["train", &full, "--model", &export, "--run-dir", &next, "--updates", "1", "--memory", "1GiB"];
    let next = common::json(dir, &[&args[..], &["--json"]].concat());
    let (last, first) = (&summary["validation_last"], &next["validation_base"]);
    let (last, first) = (last.as_f64().expect("a loss"), first.as_f64().expect("a loss"));
    assert!((last - first).abs() <= 1e-5 * last, "{last} ended, {first} begins");
    assert!(Some(last) != summary["validation_base"].as_f64());

    resumes_to_the_same_bits(dir, &run);
}

#[test]
fn frozen_parts_keep_their_bits() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let freeze = "freeze: ['*.text_embed', 'transformer.transformer_blocks.*.attn']";
    let recipe = text(&common::recipe(dir, "run", &format!("{SHORT}{freeze}")));
    let full = text(&common::recipe(dir, "full", SHORT));
    let ((less, some), (more, all)) = (planned(dir, &recipe), planned(dir, &full));
    assert!(less < more && some < all, "{less} of {more} bytes, {some} of {all} parameters");
    common::ok(dir, &["train", &recipe, "--memory", "1GiB"]);
    let run = dir.join("run");
    let out = text(&dir.join("out"));
    common::ok(dir, &["export", &text(&run), "--weights", "raw", "--out", &out]);
    let (base, now) =
        (read(&common::fixture("v1").join("model.safetensors")), read(&dir.join("out/model.safetensors")));
    let frozen = |n: &str| n.contains(".text_embed.") || n.contains(".attn.") || n.ends_with(".inv_freq");
    let (mut kept, mut moved) = (0, 0);
    for (name, (_, w)) in base.iter().filter(|(n, _)| n.starts_with("transformer.")) {
        let same = bits(w) == bits(&now[name].1);
        assert_eq!(same, frozen(name), "{name}");
        kept += usize::from(same);
        moved += usize::from(!same);
    }
    assert!(kept > 10 && moved > 10, "{kept} kept, {moved} moved");
    for shard in ["optimizer", "ema"] {
        let states = read(&run.join(format!("checkpoints/step-6/{shard}.safetensors")));
        assert!(states.keys().all(|n| !frozen(n)), "{shard}: {:?}", states.keys());
    }
    resumes_to_the_same_bits(dir, &run);

    let (code, said) = common::said(dir, &["export", &text(&run), "--adapter"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("the run trained no adapters"), "{said}");
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 3);
    let plain = text(&common::recipe(dir, "plain", SHORT));
    let both = text(&common::recipe(dir, "both", &format!("{SHORT}freeze: ['*.attn']\n{LORA}")));
    for (args, words) in [
        (vec![&*plain, "--freeze", "*.atn"], "`*.atn` matches no parameter"),
        (vec![&plain, "--freeze", "*.atn"], "transformer.transformer_blocks.*.attn.to_q"),
        (vec![&plain, "--freeze", "*"], "nothing is left to train"),
        (vec![&plain, "--lora", "0"], "lora.rank: 0 is not between"),
        (
            vec![&plain, "--lora", "33"],
            "rank 33 does not suit transformer.transformer_blocks.0.attn.to_q.weight",
        ),
        (vec![&plain, "--lora", "4", "--freeze", "*"], "cannot be used with"),
        (vec![&both], "freeze: cannot be combined with `lora`"),
        (vec![&both], "both.yaml:"),
    ] {
        let (code, said) = common::said(dir, &[&["plan"][..], &args, &["--memory", "1GiB"]].concat());
        assert_eq!(code, 2, "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
