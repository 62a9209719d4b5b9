//! Ranks with a card each, on the emulated card and the emulated NCCL: processes started as torchrun, srun and indexed jobs start
//! them, and threads of one process.

use crate::common;
use ambitus_testkit::emulated_cuda;
use ambitus_testkit::gradients::{GRADIENT, errors};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Relative difference that losses may have between the processor and a card after a few updates: as in the tests of one card.
const BETWEEN_DEVICES: f64 = 1e-3;
/// The process of one rank of several.
type Rank<'a> = (usize, usize, &'a str);

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// The command line on the emulated cards; `None` without a C++ compiler.
fn command(dir: &Path, args: &[&str]) -> Option<Command> {
    let folder = emulated_cuda::libraries().map_err(|why| println!("SKIPPED: {why}")).ok()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambitus"));
    command.current_dir(dir).args(args).env("AMBITUS_CUDA_LIBS", &folder).env("XDG_CACHE_HOME", &folder);
    command.env("EMULATED_CARDS", "4").stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

/// One rank as torchrun starts it; `meeting` is a name that no other world of this machine has.
fn rank(dir: &Path, (rank, ranks, meeting): Rank<'_>, args: &[&str]) -> Option<Child> {
    let meeting = format!("{meeting}-{}", std::process::id());
    let mut command = command(dir, args)?;
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
    command.env("LOCAL_RANK", rank.to_string()).env("MASTER_ADDR", meeting).env("MASTER_PORT", "29500");
    Some(command.spawn().expect("the binary starts"))
}

/// All ranks of a world, to their end; `None` if there is no emulation or no CUDA in this build.
fn world(dir: &Path, ranks: usize, meeting: &str, args: &[&str]) -> Option<Vec<Output>> {
    let children: Option<Vec<Child>> = (0..ranks).map(|k| rank(dir, (k, ranks, meeting), args)).collect();
    let outs: Vec<Output> =
        children?.into_iter().map(|c| c.wait_with_output().expect("the binary ends")).collect();
    if outs.iter().any(|out| text(out).contains("built without CUDA")) {
        println!(
            "SKIPPED: this build of the command line has no CUDA; `cargo test --workspace` builds it in"
        );
        return None;
    }
    Some(outs)
}

#[track_caller]
fn well(outs: &[Output]) -> String {
    assert!(
        outs.iter().all(|out| out.status.success()),
        "{}",
        outs.iter().map(text).collect::<Vec<_>>().join("\n")
    );
    String::from_utf8_lossy(&outs[0].stdout).into_owned()
}

#[test]
fn gradients_have_the_same_bits_with_every_strategy() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = common::fixture("v1");
    let want = common::named(&folder.join("expected.safetensors"));
    let (batch, folder) =
        (folder.join("batch.safetensors").display().to_string(), folder.display().to_string());
    let mut first: Option<Vec<u8>> = None;
    let read = |name: &str| std::fs::read(dir.path().join(name)).expect("gradients");
    let fixed = ["gradients", "--device", "cuda", "--model", &folder, "--batch", &batch, "--out"];
    for (sharding, ranks) in [("full", 4), ("none", 4), ("hybrid:2", 4), ("grad_op", 4)] {
        let name = format!("{}.safetensors", sharding.replace(':', "-"));
        let args = [&fixed[..], &[&name, "--sharding", sharding]].concat();
        let Some(outs) =
            world(dir.path(), ranks, &format!("gradients-{}", sharding.replace(':', "-")), &args)
        else {
            return;
        };
        well(&outs);
        let bytes = read(&name);
        let worst = errors(&common::named(&dir.path().join(&name)), &want, GRADIENT).expect("the same names");
        let over: Vec<_> = worst.iter().filter(|(_, share)| *share > 1.0).collect();
        assert!(over.is_empty(), "{sharding}: errors, in units of what is allowed: {over:?}");
        assert!(first.get_or_insert_with(|| bytes.clone()) == &bytes, "{sharding}: other bits");
    }
    // Ranks that are threads of one process, with a card each.
    let args = [&fixed[..], &["threads", "--ranks", "4"]].concat();
    let out = command(dir.path(), &args).expect("as before").output().expect("the binary runs");
    well(&[out]);
    assert!(first.as_ref() == Some(&read("threads")), "threads: other bits");
}

/// A run of few updates in `dir`.
fn recipe(dir: &Path, name: &str, device: &str) -> String {
    let lines =
        "updates: 4\nbatch: {clips: 4}\nmicro_batch: 120\nsave_every: 2\nvalidate_every: 2\nmemory: 3GiB";
    common::recipe(dir, name, &format!("{lines}\ndevice: {device}")).display().to_string()
}

#[test]
fn two_ranks_train_as_two_on_processors_and_resume() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let card = recipe(dir, "card", "cuda");
    let Some(outs) = world(dir, 2, "train", &["train", &card, "--json"]) else { return };
    let summary: serde_json::Value = serde_json::from_str(&well(&outs)).expect("JSON");
    assert_eq!(summary["arena_bytes_used"], summary["arena_bytes_planned"]);
    assert_eq!(summary["ranks"], 2);
    let args = ["train", &recipe(dir, "host", "cpu"), "--json", "--ranks", "2"];
    let host = command(dir, &args).expect("as before").output().expect("the binary runs");
    let host: serde_json::Value = serde_json::from_str(&well(&[host])).expect("JSON");
    for key in ["validation_base", "validation_last", "loss_first", "loss_last"] {
        let (a, b) = (summary[key].as_f64().expect(key), host[key].as_f64().expect(key));
        assert!((a - b).abs() <= BETWEEN_DEVICES * b.abs(), "{key}: {a} on cards, {b} on processors");
    }
    // From the checkpoint after update 2, the same end.
    let export = || std::fs::read(dir.join("card/export/model.safetensors")).expect("an export");
    let whole = export();
    std::fs::remove_dir_all(dir.join("card/checkpoints/step-4")).expect("the last checkpoint is removed");
    well(&world(dir, 2, "resume", &["resume", "card"]).expect("as before"));
    assert!(export() == whole, "other bits after resuming");
}

#[test]
fn a_model_placed_on_two_cards_trains_with_the_bits_of_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let card = recipe(dir, "card", "cuda");
    let export =
        |run: &str| std::fs::read(dir.join(run).join("export/model.safetensors")).expect("an export");
    for placement in ["model", "pipeline"] {
        let args = ["train", &card, "--run-dir", placement, "--updates", "2", "--placement", placement];
        let Some(outs) = world(dir, 2, placement, &args) else { return };
        well(&outs);
    }
    let one =
        command(dir, &["train", &card, "--run-dir", "one", "--updates", "2"]).expect("as before").output();
    well(&[one.expect("the binary runs")]);
    assert!(export("model") == export("one"), "model parallel: other bits");
    assert!(export("pipeline") == export("one"), "pipeline: other bits");
}

#[test]
fn a_rank_that_is_missing_ends_the_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let card = recipe(dir, "card", "cuda");
    // It never comes.
    let Some(alone) = rank(dir, (0, 2, "alone"), &["train", &card, "--watchdog", "2"]) else { return };
    let out = alone.wait_with_output().expect("the binary ends");
    if text(&out).contains("built without CUDA") {
        return println!("SKIPPED: this build of the command line has no CUDA");
    }
    assert_eq!(out.status.code(), Some(9), "{}", text(&out));
    assert!(text(&out).contains("another rank has not come to it"), "{}", text(&out));
    // It is killed once the run has begun; its connections break.
    let first = rank(dir, (0, 2, "killed"), &["train", &card]).expect("as before");
    let mut second = rank(dir, (1, 2, "killed"), &["train", &card]).expect("as before");
    let begun = dir.join("card/metrics.jsonl");
    while !begun.exists() && second.try_wait().expect("a process").is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    second.kill().expect("it runs");
    second.wait().expect("it ends");
    let out = first.wait_with_output().expect("the binary ends");
    assert_eq!(out.status.code(), Some(9), "{}", text(&out));
    assert!(text(&out).contains("has lost another rank in"), "{}", text(&out));
    // What is left can be resumed.
    well(&world(dir, 2, "again", &["resume", "card"]).expect("as before"));
}

#[test]
fn launchers_say_what_they_lack() {
    let dir = tempfile::tempdir().expect("a folder");
    common::voice(dir.path(), 4);
    let card = recipe(dir.path(), "card", "cuda");
    let Some(mut command) = command(dir.path(), &["train", &card]) else { return };
    command.env("RANK", "1").env("WORLD_SIZE", "2").env("LOCAL_RANK", "1");
    let out = command.output().expect("the binary runs");
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    assert!(text(&out).contains("set MASTER_ADDR"), "{}", text(&out));
}
