//! Loss and gradients of the real binary against those recorded from the reference package (`parity/f5/record.py`).

mod common;

use safetensors::SafeTensors;
use std::path::Path;

/// Loss: relative error. The reference itself moves by 1e-7 between thread counts.
const LOSS: f64 = 1e-5;
/// A gradient: ‖Δ‖ over max(‖g‖, 1e-3 √(n/N) ‖all g‖), as some gradients are mathematically zero.
const GRADIENT: f64 = 1e-4;
/// Another split into micro-batches: all gradients together, and each.
const REORDERED: (f64, f64) = (1e-6, 5e-6);

type Tensors = Vec<(String, Vec<f32>)>;

fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let floats =
        |b: &[u8]| b.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().expect("4 bytes"))).collect();
    let mut all: Tensors = file.tensors().into_iter().map(|(n, t)| (n, floats(t.data()))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|v| v * v).sum::<f64>().sqrt()
}

fn values(x: &[f32]) -> impl Iterator<Item = f64> + '_ {
    x.iter().map(|v| f64::from(*v))
}

/// Names are equal; every gradient is within `tolerance` of the reference.
fn compare(got: &Tensors, want: &Tensors, tolerance: f64) {
    let names = |t: &Tensors| t.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(got), names(want));
    let grads = || want.iter().filter(|(n, _)| n != "loss");
    let all = norm(grads().flat_map(|(_, g)| values(g)));
    let total: usize = grads().map(|(_, g)| g.len()).sum();
    for ((name, a), (_, b)) in got.iter().zip(want) {
        let delta = norm(values(a).zip(values(b)).map(|(x, y)| x - y));
        if name == "loss" {
            assert!(delta <= LOSS * f64::from(b[0]).abs(), "loss {} against {}", a[0], b[0]);
            continue;
        }
        let floor = 1e-3 * (b.len() as f64 / total as f64).sqrt() * all;
        let scale = norm(values(b)).max(floor);
        assert!(delta <= tolerance * scale, "{name}: {delta:e} of {scale:e}");
    }
}

fn gradients(model: &str, dir: &Path, options: &[&str]) -> (Tensors, Vec<u8>) {
    let folder = common::fixture(model);
    let batch = folder.join("batch.safetensors");
    let out = dir.join("out.safetensors");
    let (folder, batch, out_text) =
        (folder.display().to_string(), batch.display().to_string(), out.display().to_string());
    let mut args = vec!["gradients", "--model", &folder, "--batch", &batch, "--out", &out_text];
    args.extend(options);
    common::ok(dir, &args);
    (read(&out), std::fs::read(&out).expect("a file"))
}

/// Frames of the longest clip of a fixture's batch: the smallest micro-batch.
fn longest(model: &str) -> usize {
    let bytes = std::fs::read(common::fixture(model).join("batch.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let frames = file.tensors().into_iter().filter(|(n, _)| n.ends_with(".mel")).map(|(_, t)| t.shape()[0]);
    frames.max().expect("a clip")
}

fn check(model: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let want = read(&common::fixture(model).join("expected.safetensors"));
    let (plain, bytes) = gradients(model, dir.path(), &["--threads", "2"]);
    compare(&plain, &want, GRADIENT);
    for options in [&["--checkpoint", "all"][..], &["--checkpoint", "1"], &["--threads", "1"]] {
        let (_, other) = gradients(model, dir.path(), options);
        assert!(other == bytes, "{model} {options:?}: not the same bits");
    }
    let frames = longest(model).to_string();
    let (split, _) = gradients(model, dir.path(), &["--micro-batch", &frames]);
    compare(&split, &want, GRADIENT);
    let grads =
        |t: &Tensors| t.iter().filter(|(n, _)| n != "loss").flat_map(|(_, g)| g.clone()).collect::<Vec<_>>();
    let (a, b) = (grads(&split), grads(&plain));
    let delta = norm(values(&a).zip(values(&b)).map(|(x, y)| x - y));
    assert!(delta <= REORDERED.0 * norm(values(&b)), "{model}: {delta:e} between splits");
    compare(&split, &plain, REORDERED.1);
}

#[test]
fn v1_agrees_with_the_reference() {
    check("v1");
}

#[test]
fn v0_agrees_with_the_reference() {
    check("v0");
}

#[test]
fn rare_options_agree_with_the_reference() {
    check("options");
}
