//! The real binary on the emulated card: everything between the command line and the driver's calls is what runs on a card.

use crate::common;
use ambitus_testkit::emulated_cuda;
use ambitus_testkit::gradients::{GRADIENT, Named, errors, together};
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
    let lines =
        "updates: 4\nbatch: {clips: 2}\nmicro_batch: 120\nsave_every: 2\nvalidate_every: 2\nprecision: fp32";
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

/// The library has two algorithms for each product, which sum in other orders; a run that is resumed where the other is faster, and
/// where no cache knows better, keeps the order that it was begun with.
#[test]
fn a_resumed_run_sums_in_the_order_that_it_was_begun_with() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let lines = "updates: 2\nbatch: {clips: 2}\nmicro_batch: 120\nsave_every: 1\nkeep: 9\nprecision: fp32\ndevice: cuda\nmemory: 3GiB";
    let run = |fast: &str, args: &[&str]| {
        let out = emulated(dir, &[("EMULATED_CUBLASLT_FAST", fast)], args)?;
        Some(text(&out)).filter(|_| out.status.success() || panic!("{}", text(&out)))
    };
    let train = |fast: &str, name: &str| {
        run(fast, &["train", &common::recipe(dir, name, lines).display().to_string()])?;
        Some(std::fs::read(dir.join(name).join("export/model.safetensors")).expect("an export"))
    };
    let forget = || {
        let kernels = emulated_cuda::libraries().expect("as before").join("ambitus");
        for file in std::fs::read_dir(kernels).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with("products-") {
                std::fs::remove_file(file.path()).expect("the cache of algorithms is removed");
            }
        }
    };
    if emulated(dir, &[], &["doctor"]).is_none() {
        return;
    }
    forget();
    let Some(up) = train("up", "up") else { return };
    forget();
    let down = train("down", "down").expect("as before");
    assert!(up != down, "the order of sums makes no difference here, so nothing is tested");
    assert!(train("up", "again").expect("as before") == down, "what the cache knows is not timed again");

    let kept = dir.join("up/products.txt");
    let before = std::fs::read_to_string(&kept).expect("the run keeps its algorithms");
    assert!(before.lines().count() > 10, "{before}");
    std::fs::remove_dir_all(dir.join("up/checkpoints/step-2")).expect("the last checkpoint is removed");
    run("down", &["resume", "up"]).expect("as before");
    let resumed = std::fs::read(dir.join("up/export/model.safetensors")).expect("an export");
    assert!(resumed == up, "other bits after resuming");
    assert_eq!(std::fs::read_to_string(&kept).expect("a file"), before);

    // Where another library or card timed them, they are timed again, and it is said.
    std::fs::write(&kept, before.replacen("cuBLASLt 120001", "cuBLASLt 130000", 1)).expect("a file");
    std::fs::remove_dir_all(dir.join("up/checkpoints/step-2")).expect("the last checkpoint is removed");
    let said = run("down", &["resume", "up"]).expect("as before");
    assert!(said.contains("warning: this run's products were timed with cuBLASLt 130000 on"), "{said}");
    forget();
}

/// Losses of a run in bf16, the default, on a card, and of the same on the processor: they round other sums to bf16.
const BETWEEN_DEVICES_IN_BF16: f64 = 5e-3;

/// A GPU with tensor cores computes in bf16 unless it is told otherwise, whether it is here or in the table; what a run of before
/// that did not say is fp32.
#[test]
fn a_run_computes_in_the_cards_default_and_keeps_what_it_had() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let lines = "updates: 2\nbatch: {clips: 2}\nmicro_batch: 120\nsave_every: 1\nkeep: 9\ncheckpoint: none\ndevice: cuda";
    let recipe = |name: &str, more: &str| {
        common::recipe(dir, name, &format!("{lines}\nmemory: 3GiB\n{more}")).display().to_string()
    };
    let card = recipe("card", "");
    let run = |args: &[&str]| Some(text(&emulated(dir, &[], args)?));
    let Some(here) = run(&["plan", &card]) else { return };
    for plan in [here, run(&["plan", &card, "--card", "rtx4090"]).expect("as before")] {
        assert!(plan.contains("precision = bf16-mixed (default)"), "{plan}");
        assert!(plan.contains("for fp32: --precision fp32"), "{plan}");
    }
    let losses = |args: &[&str]| -> serde_json::Value {
        let out = emulated(dir, &[], args).expect("as before");
        serde_json::from_str(&well(&out)).expect("JSON")
    };
    let summary = losses(&["train", &card, "--json"]);
    let host = recipe("host", "precision: bf16-mixed");
    let host = losses(&["train", &host, "--device", "cpu", "--json"]);
    for key in ["validation_base", "validation_last", "loss_first", "loss_last"] {
        let (a, b) = (summary[key].as_f64().expect(key), host[key].as_f64().expect(key));
        assert!(
            (a - b).abs() <= BETWEEN_DEVICES_IN_BF16 * b.abs(),
            "{key}: {a} on the card, {b} on the processor"
        );
    }
    run(&["train", &recipe("before", "precision: fp32")]).expect("as before");
    let export =
        |name: &str| std::fs::read(dir.join(name).join("export/model.safetensors")).expect("an export");
    for (name, kept) in [("card", "precision: bf16-mixed\n"), ("before", "precision: fp32\n")] {
        let path = dir.join(name).join("recipe.yaml");
        let own = std::fs::read_to_string(&path).expect("the run's recipe");
        assert!(own.contains(kept), "{own}");
        if name == "before" {
            std::fs::write(&path, own.replace(kept, "")).expect("the run's recipe");
        }
        let whole = export(name);
        std::fs::remove_dir_all(dir.join(name).join("checkpoints/step-2")).expect("the last checkpoint");
        well(&emulated(dir, &[], &["resume", name]).expect("as before"));
        assert!(export(name) == whole, "{name}: other bits after resuming");
    }
}

/// What the errors of gradients in bf16 may be, in those of the reference's own autocast (`parity/autocast.py`).
const OF_AUTOCAST: f64 = 1.5;
/// The error that a single gradient may have whatever autocast's is: of a vector with 16 elements both are one draw of many.
const BF16: f64 = 3e-2;
/// What those in tf32-mixed may be, of what they may be in bf16: operands have 10 bits of fraction for 7.
const TF32: f64 = 1.0 / 8.0;

/// The error of all gradients together, and of each as a share of its norm or the floor.
fn off(got: &Named, want: &Named) -> (f64, Vec<(String, f64)>) {
    let mut each = errors(got, want, 1.0).expect("the same names");
    each.retain(|(name, _)| name != "loss");
    (together(got, want), each)
}

#[test]
fn gradients_in_fewer_bits_are_as_near_as_they_promise() {
    let dir = tempfile::tempdir().expect("a folder");
    let f5 = ["v1", "v0", "options"].map(common::fixture);
    let orpheus = ["tied", "untied", "sharded"].map(common::orpheus);
    let parler = ["base", "projected", "rope", "crossed", "fused"].map(common::parler);
    for folder in f5.into_iter().chain(orpheus).chain(parler) {
        let (model, batch) = (folder.display().to_string(), folder.join("batch.safetensors"));
        let fixed = ["gradients", "--device", "cuda", "--model", &model, "--batch"];
        let in_precision = |precision: &str| -> Option<Named> {
            let batch = batch.display().to_string();
            let args = [&fixed[..], &[&batch, "--out", "out", "--precision", precision]].concat();
            well(&emulated(dir.path(), &[], &args)?);
            Some(common::named(&dir.path().join("out")))
        };
        let want = common::named(&folder.join("expected.safetensors"));
        let Some(bf16) = in_precision("bf16-mixed") else { return };
        let text = std::fs::read_to_string(folder.join("autocast.json")).expect("what autocast.py recorded");
        let autocast: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let (all, each) = off(&bf16, &want);
        let of_autocast = all / autocast["all"].as_f64().expect("a number");
        println!("{model}: bf16-mixed {:.2} % off, {of_autocast:.2} of autocast's error", 100.0 * all);
        assert!(of_autocast <= OF_AUTOCAST, "{model}: {of_autocast} of autocast's error");
        let allowed = |name: &str| {
            let known = autocast["gradients"][name].as_f64().unwrap_or_else(|| panic!("{name}"));
            BF16.max(OF_AUTOCAST * known)
        };
        for (name, error) in each {
            assert!(error <= allowed(&name), "{model}: {name}: {error} of {}", allowed(&name));
        }
        let [fp32, tf32] = ["fp32", "tf32-mixed"].map(|p| in_precision(p).expect("as before"));
        let (all, each) = off(&tf32, &fp32);
        println!("{model}: tf32-mixed {:.3} % off", 100.0 * all);
        assert!(all > 1e-5, "{model}: tf32-mixed has fp32's numbers");
        for (name, error) in each {
            assert!(error <= TF32 * allowed(&name), "{model}: {name}: {error} in tf32-mixed");
        }
    }
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
