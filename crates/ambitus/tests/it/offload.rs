//! Runs of the real binary with everything on the host, in memory and on disk: the same weights from a smaller arena, resumed
//! too; what is refused.

use crate::common;
use std::path::Path;

const SHORT: &str = "updates: 4\nbatch: {clips: 3}\nmicro_batch: 120\nsave_every: 2\nvalidate_every: 2\nthreads: 2\nmemory: 1GiB";

fn number(v: &serde_json::Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or_else(|| panic!("{key} in {v:#}"))
}

fn shards(run: &Path) -> Vec<Vec<u8>> {
    let read = |n| std::fs::read(run.join("checkpoints/step-4").join(format!("{n}.safetensors")));
    let export = std::fs::read(run.join("export/model.safetensors")).expect("an export");
    let mut all = ["model", "optimizer", "ema"].map(|n| read(n).expect("a shard")).to_vec();
    all.push(export);
    all
}

#[test]
fn the_same_weights_from_a_smaller_arena() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let of = |name: &str, lines: &str| common::recipe(dir, name, &format!("{SHORT}\n{lines}"));
    let run = |name: &str, lines: &str, options: &[&str]| {
        let recipe = of(name, lines).display().to_string();
        common::json(dir, &[&["train", &recipe, "--json"], options].concat())
    };
    let plain = run("plain", "", &[]);
    let want = shards(&dir.join("plain"));

    let memory = run("memory", "", &["--low-vram", "--host-memory", "64MiB"]);
    let disk = run("disk", "offload: {parameters: true, optimizer: true, ema: true, disk: scratch}", &[]);
    for (name, summary) in [("memory", &memory), ("disk", &disk)] {
        assert!(shards(&dir.join(name)) == want, "{name}: weights, moments or averages differ");
        assert!(number(summary, "host_arena_bytes") > 0, "{name}");
        let arena = number(summary, "arena_bytes_used");
        assert_eq!(arena, number(summary, "arena_bytes_planned"));
        assert!(arena < number(&plain, "arena_bytes_used"), "{name}: {arena}");
        assert!(number(summary, "peak_rss_bytes") <= number(summary, "peak_planned_bytes"), "{summary:#}");
    }
    // Preparing has the peak of so small a model; a file takes nothing of it.
    assert_eq!(number(&disk, "peak_planned_bytes"), number(&plain, "peak_planned_bytes"));
    assert!(number(&memory, "peak_planned_bytes") >= number(&plain, "peak_planned_bytes"));
    assert_eq!(std::fs::read_dir(dir.join("scratch")).expect("the folder").count(), 0, "a file stays");

    // Without its last checkpoint the run resumes from the one before, to the same bits.
    for name in ["memory", "disk"] {
        std::fs::remove_dir_all(dir.join(name).join("checkpoints/step-4")).expect("a checkpoint");
        common::ok(dir, &["resume", &dir.join(name).display().to_string()]);
        assert!(shards(&dir.join(name)) == want, "{name}: the resumed run differs");
    }
}

/// States of 8 and 16 bits wait in memory and in a file as those of 32 do.
#[test]
fn every_element_type_waits_anywhere() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    for (form, options) in [
        ("8bit", &["--optimizer", "adamw-8bit"][..]),
        ("bf16", &["--optimizer", "adamw-bf16"]),
        ("pure", &["--precision", "bf16-pure", "--optimizer", "adamw-8bit"]),
    ] {
        let run = |place: &str, offload: &[&str]| {
            let name = format!("{form}-{place}");
            let recipe = common::recipe(dir, &name, SHORT).display().to_string();
            common::ok(dir, &[&["train", &recipe], options, offload].concat());
            shards(&dir.join(name))
        };
        let want = run("none", &[]);
        assert!(run("memory", &["--offload", "all"]) == want, "{form}, in memory");
        assert!(run("file", &["--offload", "all,disk=scratch"]) == want, "{form}, in a file");
    }
}

#[test]
fn plans_name_the_hosts_budget_and_contradictions_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = common::recipe(dir, "run", SHORT).display().to_string();
    let plan = common::json(dir, &["plan", &recipe, "--json", "--low-vram", "--host-memory", "64MiB"]);
    assert_eq!(number(&plan, "host_budget_bytes"), 64 << 20);
    let host = number(&plan, "host_bytes");
    assert!(host >= number(&plan, "host_state_bytes") && number(&plan, "host_state_bytes") > 0);
    let (code, text) = common::said(dir, &["plan", &recipe, "--offload", "all", "--host-memory", "100KiB"]);
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("of the host's memory, budget 100 KiB") && text.contains("--host-memory"),
        "{text}"
    );
    // A card that is not here: the host is not known, and is not refused.
    common::ok(dir, &["plan", &recipe, "--low-vram", "--card", "gtx1650"]);

    for (options, why) in [
        (&["--offload", "all,disk=x", "--host-memory", "1GiB"][..], "leave out one of the two"),
        (&["--offload", "disk=x"], "nothing is offloaded"),
        (&["--offload", "weights"], "is not one of all, none, parameters"),
        (&["--offload", "optimizer=1.5"], "a share from 0 to 1"),
        (&["--offload", "all,disk=x", "--card", "gtx1650"], "page-locked"),
    ] {
        let (code, text) = common::said(dir, &[&["plan", &recipe], options].concat());
        assert_eq!(code, 2, "{options:?}: {text}");
        assert!(text.contains(why), "{options:?}: {text}");
    }
    for (lines, why) in [
        ("ema: false\noffload: {ema: true}", "offload.ema"),
        ("offload: most", "all, or a map"),
        ("offload: {optimizer: -1}", "offload.optimizer"),
        ("offload: {wheels: true}", "wheels"),
    ] {
        let recipe = common::recipe(dir, "bad", &format!("{SHORT}\n{lines}")).display().to_string();
        let (code, text) = common::said(dir, &["plan", &recipe]);
        assert_eq!(code, 2, "{lines}: {text}");
        assert!(text.contains(why), "{lines}: {text}");
    }
    // A file in place of the folder.
    std::fs::write(dir.join("file"), "").expect("a file");
    let (code, text) = common::said(dir, &["train", &recipe, "--offload", "all,disk=file"]);
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("offload.disk"), "{text}");
}

/// A bound on the host's memory leaves open what is offloaded; a run that needs nothing of it must resume all the same.
#[test]
fn a_host_budget_that_nothing_needs_does_not_stop_a_resume() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let lines =
        "updates: 4\nsave_every: 2\nkeep: 9\nbatch: {clips: 3}\nmemory: 1GiB\nhost_memory: 1GiB\nthreads: 2";
    let recipe = common::recipe(dir, "run", lines).display().to_string();
    common::ok(dir, &["train", &recipe]);
    std::fs::remove_dir_all(dir.join("run/checkpoints/step-4")).expect("the last checkpoint");
    common::ok(dir, &["resume", &dir.join("run").display().to_string()]);
    assert!(dir.join("run/checkpoints/step-4").is_dir());
}
