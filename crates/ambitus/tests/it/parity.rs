//! Loss and gradients of the real binary against those recorded from the references (`parity/f5/record.py`,
//! `parity/orpheus/record.py`, `parity/parler/record.py`, `parity/xtts/record.py`, `parity/musicgen/record.py`).

use crate::common;
use ambitus_testkit::gradients::{GRADIENT, Named, errors, is_loss, norm, values};
use safetensors::SafeTensors;
use std::path::Path;

/// Another split into micro-batches: all gradients together, and each.
const REORDERED: (f64, f64) = (1e-6, 5e-6);

/// Names are equal; every gradient is within `tolerance` of the reference.
fn compare(got: &Named, want: &Named, tolerance: f64) {
    let errors = errors(got, want, tolerance).expect("the same names");
    let over: Vec<_> = errors.iter().filter(|(_, share)| *share > 1.0).collect();
    assert!(over.is_empty(), "errors, in units of what is allowed: {over:?}");
}

fn gradients(folder: &Path, dir: &Path, options: &[&str]) -> (Named, Vec<u8>) {
    let batch = folder.join("batch.safetensors");
    let out = dir.join("out.safetensors");
    let (folder, batch, out_text) =
        (folder.display().to_string(), batch.display().to_string(), out.display().to_string());
    let mut args = vec!["gradients", "--model", &folder, "--batch", &batch, "--out", &out_text];
    args.extend(options);
    common::ok(dir, &args);
    (common::named(&out), std::fs::read(&out).expect("a file"))
}

/// Rows of the longest clip of a fixture's batch: the smallest micro-batch.
fn longest(folder: &Path) -> usize {
    let bytes = std::fs::read(folder.join("batch.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let of = |i: usize, leaf: &str| Some(file.tensor(&format!("clips.{i}.{leaf}")).ok()?.shape().to_vec());
    let rows = |i: usize| match of(i, "mel").or_else(|| of(i, "input_ids")) {
        Some(shape) => Some(shape[0]),
        // A prompt, frames, and a column for each codebook; or latents, text and codes with their ends.
        None => of(i, "codes")
            .zip(of(i, "prompt_ids").or_else(|| of(i, "text_ids")))
            .map(|(codes, text)| text[0] + codes[0] + codes.get(1).copied().unwrap_or(32 + 1 + 4)),
    };
    (0..).map_while(rows).max().expect("a clip")
}

fn check(model: &Path) {
    let dir = tempfile::tempdir().expect("a folder");
    let want = common::named(&model.join("expected.safetensors"));
    let shown = model.display();
    let (plain, bytes) = gradients(model, dir.path(), &["--threads", "2"]);
    compare(&plain, &want, GRADIENT);
    for options in [&["--checkpoint", "all"][..], &["--checkpoint", "1"], &["--threads", "1"]] {
        let (_, other) = gradients(model, dir.path(), options);
        assert!(other == bytes, "{shown} {options:?}: not the same bits");
    }
    let rows = longest(model).to_string();
    let (split, _) = gradients(model, dir.path(), &["--micro-batch", &rows]);
    compare(&split, &want, GRADIENT);
    let grads =
        |t: &Named| t.iter().filter(|(n, _)| !is_loss(n)).flat_map(|(_, g)| g.clone()).collect::<Vec<_>>();
    let (a, b) = (grads(&split), grads(&plain));
    let delta = norm(values(&a).zip(values(&b)).map(|(x, y)| x - y));
    assert!(delta <= REORDERED.0 * norm(values(&b)), "{shown}: {delta:e} between splits");
    compare(&split, &plain, REORDERED.1);
}

#[test]
fn v1_agrees_with_the_reference() {
    check(&common::fixture("v1"));
}

#[test]
fn v0_agrees_with_the_reference() {
    check(&common::fixture("v0"));
}

#[test]
fn rare_options_agree_with_the_reference() {
    check(&common::fixture("options"));
}

#[test]
fn a_tied_llama_agrees_with_transformers() {
    check(&common::orpheus("tied"));
}

#[test]
fn a_llama_with_its_own_head_agrees_with_transformers() {
    check(&common::orpheus("untied"));
}

#[test]
fn shards_and_the_newer_spelling_agree_with_transformers() {
    check(&common::orpheus("sharded"));
}

#[test]
fn a_parler_decoder_agrees_with_the_package() {
    check(&common::parler("base"));
    check(&common::parler("projected"));
}

#[test]
fn an_xtts_decoder_agrees_with_the_package() {
    check(&common::xtts("base"));
    check(&common::xtts("odd"));
}

#[test]
fn a_musicgen_decoder_agrees_with_transformers_and_audiocraft() {
    for name in ["base", "stereo", "packed"] {
        check(&common::musicgen(name));
    }
}

#[test]
fn rare_options_of_a_parler_decoder_agree_with_the_package() {
    for name in ["rope", "crossed", "fused"] {
        check(&common::parler(name));
    }
}
