//! Runs of the real binary with the update in backward: the same weights as at the end, resumed too; what is refused.

use crate::common;
use std::path::Path;

const SHORT: &str = "updates: 6\nbatch: {clips: 3}\nsave_every: 2\nvalidate_every: 3\nthreads: 2\nclip: 0.5";
const BACKWARD: &str = "update: backward\nclip_per_tensor: true";

fn number(v: &serde_json::Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or_else(|| panic!("{key} in {v:#}"))
}

fn shards(run: &Path) -> Vec<Vec<u8>> {
    let step = run.join("checkpoints/step-6");
    let read = |n| std::fs::read(step.join(format!("{n}.safetensors"))).expect("a shard");
    ["model", "optimizer", "ema"].map(read).to_vec()
}

#[test]
fn the_same_weights_from_less_memory() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let backward = common::recipe(dir, "backward", &format!("{SHORT}\n{BACKWARD}")).display().to_string();
    let plan = common::json(dir, &["plan", &backward, "--json", "--memory", "1GiB"]);
    let frames = number(&plan["micro_batch"], "frames");
    assert_eq!(number(&plan, "micro_batches"), 1);
    assert!(common::ok(dir, &["plan", &backward, "--memory", "1GiB"]).contains("gradients are not kept"));

    let at_end = format!("{SHORT}\nclip_per_tensor: true\nmicro_batch: {frames}");
    let at_end = common::recipe(dir, "at_end", &at_end).display().to_string();
    let wide =
        |more: &[&str]| common::json(dir, &[&["plan", &at_end, "--json", "--memory", "1GiB"], more].concat());
    let gradients = 4 * number(&plan, "parameters");
    let states = |plan: &serde_json::Value| number(plan, "state_bytes");
    let several = wide(&["--batch", "6"]);
    assert_eq!(number(&several, "micro_batches"), 2);
    assert!(states(&plan) + gradients <= states(&several), "a state holds a gradient");
    let saved = number(&several, "arena_bytes") - number(&plan, "arena_bytes");
    assert!(saved as f64 >= 0.9 * gradients as f64, "saves {saved} of {gradients}");
    // At the end of an update of one micro-batch they only take the bytes of activations.
    let one = wide(&[]);
    assert_eq!(states(&plan), states(&one), "a gradient is kept");
    assert!(number(&plan, "arena_bytes") <= number(&one, "arena_bytes"));

    // Within exactly what was planned.
    let exact = (number(&plan, "peak_bytes") as f64 / 1_048_576.0 * 1e6).ceil() / 1e6;
    let exact = format!("{exact:.6}MiB");
    let summary = common::json(dir, &["train", &backward, "--memory", &exact, "--json"]);
    assert!(number(&summary, "peak_rss_bytes") <= number(&summary, "peak_planned_bytes"));
    common::ok(dir, &["train", &at_end, "--memory", "1GiB"]);
    let want = shards(&dir.join("at_end"));
    assert!(shards(&dir.join("backward")) == want, "weights, moments or averages differ");
    let norms = |run: &str| {
        let text = std::fs::read_to_string(dir.join(run).join("metrics.jsonl")).expect("metrics");
        let norm =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["grad_norm"].clone();
        text.lines().map(norm).collect::<Vec<_>>()
    };
    assert_eq!(norms("backward"), norms("at_end"));

    // Without its last checkpoint the run resumes from the one before, to the same bits.
    std::fs::remove_dir_all(dir.join("backward/checkpoints/step-6")).expect("a checkpoint");
    common::ok(dir, &["resume", &dir.join("backward").display().to_string()]);
    assert!(shards(&dir.join("backward")) == want, "the resumed run differs");
}

#[test]
fn what_is_not_legal_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = common::recipe(dir, "run", SHORT).display().to_string();
    let (code, text) = common::said(dir, &["plan", &recipe, "--update-in-backward"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("clip_per_tensor: true (--clip-per-tensor)"), "{text}");
    let legal = ["plan", &recipe, "--update-in-backward", "--clip-per-tensor", "--memory", "1GiB"];
    common::ok(dir, &legal);
    let (code, text) = common::said(dir, &[&legal[..], &["--micro-batch", "80"]].concat());
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("must be one micro-batch") && text.contains("batch: {frames: 80}"), "{text}");
    // The number that it names is legal, and one less is not.
    let named: u64 = text
        .split("--micro-batch ")
        .nth(1)
        .and_then(|t| t.split(')').next())
        .and_then(|t| t.parse().ok())
        .expect(&text);
    common::ok(dir, &[&legal[..], &["--micro-batch", &named.to_string()]].concat());
    let (code, text) =
        common::said(dir, &[&legal[..], &["--micro-batch", &(named - 1).to_string()]].concat());
    assert_eq!(code, 2, "{text}");
    // What does not fit is not offered a smaller micro-batch: it would be another update.
    let (code, text) = common::said(
        dir,
        &["plan", &recipe, "--update-in-backward", "--clip-per-tensor", "--memory", "24MiB"],
    );
    assert_eq!(code, 3, "{text}");
    let offered = text.split("--micro-batch ").nth(1).and_then(|t| t.split(' ').next());
    // Shorter clips make another update.
    assert!(offered.and_then(|n| n.parse().ok()) == Some(named) || text.contains("--max-seconds"), "{text}");
}
