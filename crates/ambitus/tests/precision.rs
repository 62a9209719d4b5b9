//! Runs in 16 bits, by the real binary: they learn, go on from a checkpoint to the same bits, and keep their own types.

mod common;

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
