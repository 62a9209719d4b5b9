//! The real binary on the emulated card: everything between the command line and the driver's calls is what runs on a card.

use crate::common;
use ambitus_testkit::emulated_cuda;
use ambitus_testkit::gradients::{GRADIENT, errors};
use std::path::Path;
use std::process::{Command, Output};

/// Relative difference that losses may have between the processor and a card after a few updates: sums in another order,
/// amplified by AdamW's division.
const BETWEEN_DEVICES: f64 = 1e-3;

/// The command line in `dir`, on the emulated card; kernels are kept beside the emulation. `None` without a C++ compiler, or
/// where the binary was built without CUDA.
fn emulated(dir: &Path, variables: &[(&str, &str)], args: &[&str]) -> Option<Output> {
    let folder = emulated_cuda::libraries().map_err(|why| println!("SKIPPED: {why}")).ok()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambitus"));
    command.current_dir(dir).args(args).env("AMBITUS_CUDA_LIBS", &folder).env("XDG_CACHE_HOME", &folder);
    let out = command.envs(variables.iter().copied()).output().expect("the binary runs");
    if text(&out).contains("built without CUDA") {
        println!(
            "SKIPPED: this build of the command line has no CUDA; `cargo test --workspace` builds it in"
        );
        return None;
    }
    Some(out)
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[track_caller]
fn well(out: &Output) -> String {
    assert!(out.status.success(), "{}", text(out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn without_a_card_it_says_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = common::fixture("v1").display().to_string();
    let batch = common::fixture("v1").join("batch.safetensors").display().to_string();
    let args =
        ["gradients", "--device", "cuda:7", "--model", &folder, "--batch", &batch, "--out", "o.safetensors"];
    let (code, text) = common::said(dir.path(), &args);
    assert_eq!(code, 8, "{text}");
    // No driver, no card of that number, or no CUDA in this build: each with what to do.
    assert!(["install", "doctor", "--features cuda", "built in"].iter().any(|s| text.contains(s)), "{text}");
    assert!(!dir.path().join("o.safetensors").exists());
    let (code, text) = common::said(dir.path(), &["train", "--device", "gpu", "--model", ".", "--data", "."]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("cpu, cuda or cuda:N"), "{text}");
}

#[test]
fn gradients_agree_with_the_reference() {
    let dir = tempfile::tempdir().expect("a folder");
    for model in ["v1", "v0", "options"] {
        let folder = common::fixture(model);
        let want = common::named(&folder.join("expected.safetensors"));
        let (batch, folder) =
            (folder.join("batch.safetensors").display().to_string(), folder.display().to_string());
        let run = |name: &str, options: &[&str]| {
            let mut args =
                vec!["gradients", "--device", "cuda", "--model", &folder, "--batch", &batch, "--out", name];
            args.extend(options);
            let out = emulated(dir.path(), &[], &args)?;
            well(&out);
            Some((
                common::named(&dir.path().join(name)),
                std::fs::read(dir.path().join(name)).expect("a file"),
            ))
        };
        let Some((plain, bytes)) = run("plain.safetensors", &[]) else { return };
        let worst = errors(&plain, &want, GRADIENT).expect("the same names");
        let over: Vec<_> = worst.iter().filter(|(_, share)| *share > 1.0).collect();
        assert!(over.is_empty(), "{model}: errors, in units of what is allowed: {over:?}");
        let again = run("again.safetensors", &["--checkpoint", "all"]).expect("as before").1;
        assert!(again == bytes, "{model}: other bits with blocks recomputed");
    }
}

#[test]
fn a_run_trains_stops_within_its_plan_and_resumes() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let lines = "updates: 4\nbatch: {clips: 2}\nmicro_batch: 120\nsave_every: 2\nvalidate_every: 2";
    let of = |name: &str, device: &str| {
        let recipe = common::recipe(dir, name, &format!("{lines}\ndevice: {device}\nmemory: 3GiB"));
        recipe.display().to_string()
    };
    let card = of("card", "cuda");
    let Some(plan) = emulated(dir, &[], &["plan", &card, "--json"]) else { return };
    let plan: serde_json::Value = serde_json::from_str(&well(&plan)).expect("JSON");
    assert!(
        plan["categories"]["process"].as_u64() >= Some(128 << 20),
        "the card's context is a row: {plan:#}"
    );

    let train = |recipe: &str| emulated(dir, &[], &["train", recipe, "--json"]).expect("as before");
    let summary: serde_json::Value = serde_json::from_str(&well(&train(&card))).expect("JSON");
    assert_eq!(summary["arena_bytes_used"], summary["arena_bytes_planned"]);
    let (peak, planned) = (summary["peak_rss_bytes"].as_u64(), summary["peak_planned_bytes"].as_u64());
    assert!(peak.is_some() && peak <= planned, "{peak:?} on the card, {planned:?} planned");

    let host: serde_json::Value = serde_json::from_str(&well(&train(&of("host", "cpu")))).expect("JSON");
    for key in ["validation_base", "validation_last", "loss_first", "loss_last"] {
        let (a, b) = (summary[key].as_f64().expect(key), host[key].as_f64().expect(key));
        assert!((a - b).abs() <= BETWEEN_DEVICES * b.abs(), "{key}: {a} on the card, {b} on the processor");
    }

    // What the first run measured is what the next plan reserves.
    let said = text(&emulated(dir, &[], &["plan", &card]).expect("as before"));
    assert!(said.contains("measured here before"), "{said}");

    // From the checkpoint after update 2, the same end.
    let export =
        |name: &str| std::fs::read(dir.join(name).join("export/model.safetensors")).expect("an export");
    let whole = export("card");
    std::fs::remove_dir_all(dir.join("card/checkpoints/step-4"))
        .or_else(|_| {
            let steps = std::fs::read_dir(dir.join("card/checkpoints"))?.flatten();
            let last = steps.map(|e| e.path()).max().expect("a checkpoint");
            std::fs::remove_dir_all(last)
        })
        .expect("the last checkpoint is removed");
    let resumed = emulated(dir, &[], &["resume", "card"]).expect("as before");
    well(&resumed);
    assert!(export("card") == whole, "other bits after resuming on the card");
}

#[test]
fn states_on_the_host_give_the_same_bits_from_less_of_the_card() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let lines = "updates: 2\nbatch: {clips: 2}\nmicro_batch: 120\nsave_every: 1\ndevice: cuda\nmemory: 3GiB";
    let run = |name: &str, lines: &str| -> Option<serde_json::Value> {
        let recipe = common::recipe(dir, name, lines).display().to_string();
        let out = emulated(dir, &[], &["train", &recipe, "--json"])?;
        serde_json::from_str(&well(&out)).ok()
    };
    let Some(plain) = run("plain", lines) else { return };
    let host = run("host", &format!("{lines}\noffload: all\nhost_memory: 1GiB")).expect("as before");
    let arena = |summary: &serde_json::Value| summary["arena_bytes_used"].as_u64().expect("bytes");
    assert!(arena(&host) < arena(&plain), "{host:#}");
    assert!(host["peak_rss_bytes"].as_u64() <= host["peak_planned_bytes"].as_u64(), "{host:#}");
    for shard in ["model", "optimizer", "ema"] {
        let bytes =
            |run: &str| std::fs::read(dir.join(format!("{run}/checkpoints/step-2/{shard}.safetensors")));
        assert!(bytes("plain").expect("a shard") == bytes("host").expect("a shard"), "{shard} differs");
    }
}

#[test]
fn a_card_that_others_hold_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 4);
    let recipe = common::recipe(dir, "run", "updates: 1\ndevice: cuda\nmemory: 3GiB").display().to_string();
    let held = [("EMULATED_NEIGHBOUR_MIB", "3900")];
    let Some(out) = emulated(dir, &held, &["train", &recipe]) else { return };
    let said = text(&out);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("held by") && said.contains("leave out --memory"), "{said}");
    assert!(!dir.join("run").exists());
}

#[test]
fn doctor_lists_cards_and_who_holds_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(out) = emulated(dir.path(), &[], &["doctor"]) else { return };
    let said = well(&out);
    for part in ["driver 0.0 emulated", "emulated card", "capability 8.0", "NVRTC", "cuBLASLt", "held by"] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
}
