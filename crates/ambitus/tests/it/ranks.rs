//! `ambitus gradients --ranks` on recorded models: one rank's file but for the order of sums, and the same bytes with every
//! strategy.

use crate::common;
use ambitus_testkit::gradients::errors;
use safetensors::SafeTensors;
use std::path::Path;

/// Another order of sums, as `parity.rs` has it between splits.
const REORDERED: f64 = 5e-6;

fn gradients(folder: &Path, dir: &Path, options: &[&str]) -> Vec<u8> {
    let (batch, out) = (folder.join("batch.safetensors"), dir.join("out.safetensors"));
    let [model, batch, out] = [folder, &batch, &out].map(|p| p.display().to_string());
    let mut args = vec!["gradients", "--model", &model, "--batch", &batch, "--out", &out, "--threads", "2"];
    args.extend(options);
    common::ok(dir, &args);
    std::fs::read(&out).expect("a file")
}

fn check(folder: &Path) {
    let dir = tempfile::tempdir().expect("a folder");
    let bytes = std::fs::read(folder.join("batch.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let of_rows = |name: &str| name.ends_with(".mel") || name.ends_with(".input_ids");
    let rows = file.tensors().into_iter().filter(|(n, _)| of_rows(n)).map(|(_, t)| t.shape()[0]);
    let rows = rows.max().expect("a clip").to_string();
    let named = |bytes: &[u8]| ambitus_testkit::gradients::read(bytes).expect("safetensors");
    for precision in ["fp32", "bf16-mixed"] {
        let shared = ["--micro-batch", &rows, "--precision", precision];
        let one = named(&gradients(folder, dir.path(), &shared));
        let mut first = None;
        let strategies = ["full", "grad_op", "none", "hybrid:2", "hybrid_grad_op:2"].map(|s| (s, "block"));
        // In units of one module each, and all in one.
        for (strategy, units) in strategies.into_iter().chain([("full", "1"), ("hybrid:2", "1000000000")]) {
            let how = ["--ranks", "4", "--sharding", strategy, "--units", units, "--checkpoint", "all"];
            let ranks = [&shared[..], &how].concat();
            let have = gradients(folder, dir.path(), &ranks);
            let off = errors(&named(&have), &one, REORDERED).expect("the same names");
            let over: Vec<_> = off.iter().filter(|(_, share)| *share > 1.0).collect();
            assert!(over.is_empty(), "{}, {strategy} of {units}, {precision}: {over:?}", folder.display());
            let same = first.get_or_insert_with(|| have.clone()) == &have;
            assert!(same, "{}, {strategy} of {units}, {precision}: other bytes", folder.display());
        }
    }
}

#[test]
fn f5_agrees_with_one_rank() {
    check(&common::fixture("v1"));
}

#[test]
fn a_tied_llama_agrees_with_one_rank() {
    check(&common::orpheus("tied"));
}

#[test]
fn what_ranks_cannot_is_said() {
    let (folder, dir) = (common::orpheus("tied"), tempfile::tempdir().expect("a folder"));
    let batch = folder.join("batch.safetensors").display().to_string();
    let model = folder.display().to_string();
    let run = |options: &[&str]| {
        let mut args = vec!["gradients", "--model", &model, "--batch", &batch, "--out", "out.safetensors"];
        args.extend(options);
        common::said(dir.path(), &args)
    };
    for (options, code, words) in [
        (&["--ranks", "4", "--sharding", "hybrid:3"][..], 2, "4 ranks are not whole groups of 3"),
        (&["--ranks", "0"], 2, "0 ranks"),
        (&["--sharding", "none"], 2, "--ranks"),
        (&["--ranks", "2", "--sharding", "FULL"], 2, "full, grad_op, none, hybrid:RANKS"),
        (&["--ranks", "2", "--memory", "1MiB"], 3, "2 ranks in this process need"),
    ] {
        let (exit, said) = run(options);
        assert!(exit == code && said.contains(words), "{options:?}: {exit}: {said}");
    }
    assert!(!dir.path().join("out.safetensors").exists());
}
