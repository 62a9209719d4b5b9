//! Losses, alignment and every gradient of a Piper voice's two players against those that piper1-gpl's modules gave
//! (`parity/piper/record.py`), and its speech against theirs (`parity/piper/generate.py`).

use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_families::generate::Settings;
use ambitus_families::piper::Piper;
use ambitus_recipe::recipe::DeviceChoice;
use ambitus_store::TensorFile;
use ambitus_testkit::gradients::{self, GRADIENT, Named, errors};
use ambitus_testkit::tolerances::VOICE_AUDIO;
use ambitus_train::generate::generate;
use ambitus_train::gradients::{GradientOptions, gradients as compute};
use ambitus_train::inference::InferenceOptions;
use std::path::{Path, PathBuf};

/// What the reference's gradients of the duration predictor are off by themselves, fp32 to float64.
const ERROR: &str = "error.";
/// Of its gradients: those are ill-conditioned, and twice as much is allowed.
const ALLOWED: f64 = 2.0;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/piper/fixtures").join(name)
}

fn plain() -> GradientOptions {
    GradientOptions {
        checkpoint: Blocks::None,
        precision: Precision::Fp32,
        micro_batch: None,
        sharding: None,
        placement: None,
        device: DeviceChoice::Cpu,
        threads: 2,
        memory: None,
    }
}

/// Returns the bytes of a file of losses, paths and gradients.
fn computed(folder: &Path, options: GradientOptions) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let model = ModelDir::open(&[&Piper], folder, OpenOptions::default()).unwrap();
    compute(&model, &folder.join("batch.safetensors"), &out, options, None).unwrap();
    (dir, out)
}

/// Returns the tensors of f32, by name.
fn floats(path: &Path) -> Named {
    let mut all = gradients::read(&std::fs::read(path).unwrap()).unwrap();
    all.retain(|(name, _)| !name.starts_with("clips."));
    all
}

/// Returns the integers of each clip under these names: the phoneme of each frame, the frames of each phoneme.
fn integers(path: &Path, leaf: &str) -> Vec<(String, Vec<i64>)> {
    let file = TensorFile::open(path).unwrap();
    let of_clips =
        file.tensors().iter().filter(|t| t.name().starts_with("clips.") && t.name().ends_with(leaf));
    let read = |t: &ambitus_store::TensorInfo| {
        let mut values = vec![0; t.elements()];
        file.read_i64(t.name(), &mut values, &mut vec![0; 1 << 12]).unwrap();
        (t.name().to_owned(), values)
    };
    let mut all: Vec<_> = of_clips.map(read).collect();
    all.sort();
    all
}

fn agrees(out: &Path, folder: &Path) {
    let expected = folder.join("expected.safetensors");
    assert_eq!(integers(out, ".path"), integers(&expected, ".path"));
    let (of_reference, want): (Named, Named) =
        floats(&expected).into_iter().partition(|(name, _)| name.starts_with(ERROR));
    let own = |name: &str| {
        let name = format!("{ERROR}{}", name.trim_start_matches("grad."));
        of_reference.iter().find(|(n, _)| *n == name).map_or(0.0, |(_, error)| f64::from(error[0]))
    };
    let errors = errors(&floats(out), &want, GRADIENT).unwrap();
    let over = errors.iter().filter(|(name, share)| *share > (ALLOWED * own(name) / GRADIENT).max(1.0));
    let over: Vec<_> = over.collect();
    assert!(over.is_empty(), "{}: errors, in units of what is allowed: {over:?}", folder.display());
}

fn check(name: &str) {
    let folder = fixture(name);
    let (_kept, out) = computed(&folder, plain());
    agrees(&out, &folder);
    let bytes = std::fs::read(&out).unwrap();
    let all = GradientOptions { checkpoint: Blocks::All, threads: 1, ..plain() };
    let (_kept, recomputed) = computed(&folder, all);
    assert!(std::fs::read(recomputed).unwrap() == bytes, "{name}: recomputed, not the same bits");
    // The longest clip has 23 frames: several micro-batches.
    let (_kept, split) = computed(&folder, GradientOptions { micro_batch: Some(23), ..plain() });
    agrees(&split, &folder);
}

#[test]
fn a_voice_with_a_flow_of_durations_agrees_with_the_reference() {
    check("base");
}

#[test]
fn a_voice_of_several_speakers_agrees_with_the_reference() {
    check("speakers");
}

#[test]
fn a_voice_with_plain_durations_agrees_with_the_reference() {
    check("plain");
}

/// Speaks what a fixture's file gives, and returns what came of it.
fn spoken(name: &str, threads: usize) -> (tempfile::TempDir, PathBuf) {
    let (dir, folder) = (tempfile::tempdir().unwrap(), fixture(name));
    let out = dir.path().join("out.safetensors");
    let model = ModelDir::open(&[&Piper], &folder, OpenOptions::default()).unwrap();
    let options =
        InferenceOptions { precision: Precision::Fp32, device: DeviceChoice::Cpu, threads, memory: None };
    generate(&model, &folder.join("generate.safetensors"), &out, &Settings::PLAIN, options).unwrap();
    (dir, out)
}

/// Samples of a file, by name.
fn waves(path: &Path) -> Named {
    let mut all = gradients::read(&std::fs::read(path).unwrap()).unwrap();
    all.retain(|(name, _)| name.ends_with(".wave"));
    all
}

/// Without noise, with the voice's own, and longer than a window.
#[test]
fn speech_is_the_references() {
    for name in ["base", "speakers", "plain"] {
        let expected = fixture(name).join("generate.safetensors");
        let (_kept, out) = spoken(name, 2);
        let durations = |path: &Path| integers(path, ".durations");
        assert_eq!(durations(&out), durations(&expected), "{name}");
        let (got, want) = (waves(&out), waves(&expected));
        assert!(got.len() == 3 && want.len() == 3);
        for (clip, want) in &want {
            let (_, got) = got.iter().find(|(of, _)| of == clip).expect("a sound");
            let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(got.len() == want.len() && off <= VOICE_AUDIO, "{name}, {clip}: {off:.1e}");
        }
        let (_kept, again) = spoken(name, 1);
        assert!(std::fs::read(again).unwrap() == std::fs::read(&out).unwrap(), "{name}: by other threads");
    }
}
