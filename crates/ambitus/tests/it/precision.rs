//! Runs in 16 bits, by the real binary: they learn, resume from a checkpoint to the same bits, and keep their own types.

use crate::common;
use ambitus_testkit::drawn;
use std::path::Path;

const SHORT: &str =
    "updates: 6\nsave_every: 3\nkeep: 9\nbatch: {clips: 3}\nmemory: 1GiB\nthreads: 2\ncheckpoint: none";

/// The shards of a run's last checkpoint.
fn last(run: &Path) -> Vec<(String, Vec<u8>)> {
    let folder = std::fs::read_dir(run.join("checkpoints/step-6")).expect("the last checkpoint");
    let mut files: Vec<_> = folder
        .flatten()
        .filter(|f| f.path().extension().is_some_and(|e| e == "safetensors"))
        .map(|f| (f.file_name().to_string_lossy().into_owned(), std::fs::read(f.path()).expect("a shard")))
        .collect();
    files.sort();
    files
}

#[test]
fn every_precision_trains_and_resumes_to_the_same_bits() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let mut losses = Vec::new();
    for precision in ["fp32", "bf16-mixed", "fp16-mixed", "bf16-pure"] {
        let lines = format!("{SHORT}\nprecision: {precision}");
        let recipe = common::recipe(dir, precision, &lines).display().to_string();
        let summary = common::json(dir, &["train", &recipe, "--json"]);
        let loss = summary["validation_last"].as_f64().expect("a loss");
        assert!(loss < summary["validation_base"].as_f64().expect("a loss"), "{precision}: {summary:#}");
        let (measured, planned) = (&summary["peak_rss_bytes"], &summary["peak_planned_bytes"]);
        assert!(measured.as_u64() <= planned.as_u64(), "{precision}: {measured} of {planned}");
        losses.push((precision, loss));

        let run = dir.join(precision);
        let want = last(&run);
        std::fs::remove_dir_all(run.join("checkpoints/step-6")).expect("the last checkpoint");
        common::ok(dir, &["resume", &run.display().to_string()]);
        assert!(want == last(&run), "{precision}: other bits after resuming");
        let weights = want.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        assert!(weights > 0, "{precision}");
    }
    let fp32 = losses[0].1;
    for (precision, loss) in &losses {
        assert!((loss / fp32 - 1.0).abs() < 0.03, "{precision}: {loss}, fp32 {fp32}");
    }
}

/// What a plan says that it computes in.
fn planned(plan: &serde_json::Value) -> [&str; 2] {
    let choices = plan["choices"].as_array().expect("choices");
    let choice = choices.iter().find(|c| c["key"] == "precision").expect("a choice");
    ["value", "from"].map(|key| choice[key].as_str().expect("a text"))
}

#[test]
fn what_is_left_open_is_16_bits_on_gpus_with_tensor_cores() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = common::recipe(dir, "run", SHORT).display().to_string();
    let plan = |options: &str| {
        let options: Vec<&str> = options.split_whitespace().collect();
        planned(&common::json(dir, &[&["plan", &recipe, "--json"], &options[..]].concat())).map(str::to_owned)
    };
    let told = |options: &str| {
        let options: Vec<&str> = options.split_whitespace().collect();
        common::ok(dir, &[&["plan", &recipe], &options[..]].concat())
    };
    for (options, precision, from, note) in [
        ("--card rtx4090", "bf16-mixed", "default", "for fp32: --precision fp32"),
        ("--card a100", "bf16-mixed", "default", "for fp32: --precision fp32"),
        ("--cards 2xrtx3090", "bf16-mixed", "default", "for fp32: --precision fp32"),
        ("--card rtx4090 --lora 4 --clip-per-tensor", "bf16-mixed", "default", "for fp32: --precision fp32"),
        // Turing has fp16 alone, with a loss scale.
        ("--card quadro-rtx6000", "fp16-mixed", "default", "for fp32: --precision fp32"),
        (
            "--card quadro-rtx6000 --clip-per-tensor",
            "fp32",
            "default",
            "computes in fp32: fp16-mixed, the default",
        ),
        // No tensor cores.
        ("--card gtx1650", "fp32", "default", ""),
        ("--card cpu", "fp32", "default", ""),
        ("", "fp32", "default", ""),
        ("--card rtx4090 --numerics same", "fp32", "default", "by numerics: same"),
        ("--card rtx4090 --precision fp32", "fp32", "command line", ""),
        ("--card rtx4090 --precision fp16-mixed", "fp16-mixed", "command line", ""),
    ] {
        assert_eq!(plan(options), [precision, from], "{options}");
        let text = told(options);
        let said = text.contains("computes in ");
        assert!(said != note.is_empty() && text.contains(note), "{options}: {text}");
    }
    // Every row of a table is that card's plan, also beside cards that lack the first one's precision.
    let table = common::json(dir, &["plan", &recipe, "--cards", "--json"]);
    for row in drawn(table["cards"].as_array().expect("rows"), 4) {
        let id = row["card"]["id"].as_str().expect("an id");
        assert_eq!(row["precision"], plan(&format!("--card {id}"))[0], "{id}");
    }
    let scaling = common::json(dir, &["plan", &recipe, "--card", "a800", "--scaling=a800,gtx1650", "--json"]);
    assert_eq!(scaling["scaling"]["rows"].as_array().map(Vec::len), Some(44));
}

#[test]
fn tf32_is_fp32_with_faster_products_where_there_are_any() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = common::recipe(dir, "run", SHORT).display().to_string();
    let plan = |precision: &str| {
        let args = ["plan", &recipe, "--card", "a100", "--micro-batch", "300", "--precision", precision];
        common::json(dir, &[&args[..], &["--json"]].concat())
    };
    let [fp32, tf32] = ["fp32", "tf32-mixed"].map(plan);
    assert_eq!(planned(&tf32), ["tf32-mixed", "command line"]);
    assert_eq!(fp32["arena_bytes"], tf32["arena_bytes"]);
    let seconds = |plan: &serde_json::Value| plan["step_seconds"].as_f64().expect("seconds");
    assert!(seconds(&tf32) < seconds(&fp32), "{tf32:#}");
    for (device, instead) in
        [("gtx1650", "fp32"), ("quadro-rtx6000", "fp16-mixed"), ("cpu", "fp32")].into_iter()
    {
        let (code, text) =
            common::said(dir, &["plan", &recipe, "--precision", "tf32-mixed", "--card", device]);
        assert_eq!(code, 2, "{device}: {text}");
        let instead = format!("use {instead} (--precision {instead})");
        assert!(text.contains("from capability 8.0 on") && text.contains(&instead), "{device}: {text}");
    }
    let (code, text) = common::said(dir, &["train", &recipe, "--precision", "tf32-mixed"]);
    assert!(code == 2 && text.contains("tf32-mixed is for tensor cores"), "{code}: {text}");
    assert!(!dir.join("run").exists());
}

/// The tiny model with an output layer whose results are beyond fp16 (6.5e4), and within fp32.
fn beyond_fp16(dir: &Path) {
    let model = dir.join("loud");
    std::fs::create_dir(&model).expect("a folder");
    for file in ["config.yaml", "vocab.txt"] {
        std::fs::copy(common::fixture("v1").join(file), model.join(file)).expect("a file");
    }
    let mut bytes = std::fs::read(common::fixture("v1").join("model.safetensors")).expect("weights");
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).expect("safetensors");
    let name = metadata.tensors().keys().find(|n| n.ends_with("proj_out.weight")).expect("it").clone();
    let (from, to) = metadata.info(&name).expect("it").data_offsets;
    for value in bytes[8 + header + from..8 + header + to].chunks_exact_mut(4) {
        let loud = 1e6 * f32::from_le_bytes(value.try_into().expect("four bytes"));
        value.copy_from_slice(&loud.to_le_bytes());
    }
    std::fs::write(model.join("model.safetensors"), bytes).expect("a file");
}

#[test]
fn a_run_that_overflows_fp16_at_any_scale_goes_on_in_fp32() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    beyond_fp16(dir);
    // From 65536 the scale falls below 1 in 17 skipped updates.
    let lines = format!("{}\nprecision: fp16-mixed", SHORT.replace("updates: 6", "updates: 21"));
    let recipe = common::recipe(dir, "run", &lines).display().to_string();
    let model = dir.join("loud").display().to_string();
    let (code, said) = common::said(dir, &["train", &recipe, "--model", &model]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("overflow fp16 at any scale") && said.contains("it continues in fp32"), "{said}");
    let run = dir.join("run");
    let log = || std::fs::read_to_string(run.join("metrics.jsonl")).expect("the log");
    let updates: Vec<serde_json::Value> =
        log().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(updates.len(), 21);
    for (i, update) in updates.iter().enumerate() {
        let (scale, applied) = (update["loss_scale"].as_f64(), update["applied"].as_bool());
        let want = (i < 17).then(|| 65536.0 / 2f64.powi(i as i32 + 1));
        assert_eq!((scale, applied), (want, Some(i >= 17)), "update {i}: {update:#}");
    }
    // Resumed after the change, it stays in fp32 and ends with the same bits.
    let shards = |step: u32| {
        let folder = std::fs::read_dir(run.join(format!("checkpoints/step-{step}"))).expect("a checkpoint");
        let mut files: Vec<_> = folder.flatten().map(|f| f.path()).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == "safetensors"));
        files.sort();
        files.iter().map(|f| std::fs::read(f).expect("a shard")).collect::<Vec<_>>()
    };
    let want = shards(21);
    std::fs::remove_dir_all(run.join("checkpoints/step-21")).expect("the last checkpoint");
    common::ok(dir, &["resume", &run.display().to_string()]);
    assert!(want == shards(21), "other bits after resuming");
}
