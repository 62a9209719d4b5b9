//! On the small vocoders of `parity/vocos/fixtures`, whose samples the package recorded. What comes out of the command line is
//! compared in `crates/ambitus/tests/it/vocos.rs`; here, that windows change nothing, and what is refused.

use super::{Vocoder, Vocos};
use crate::codec::{self, Kind as _, Mels, Vocoder as _};
use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/vocos/fixtures").join(name)
}

/// Frames that do not repeat.
fn mel(frames: usize, channels: usize) -> Vec<f32> {
    (0..frames * channels).map(|i| ((i * 7919 + i / 997) % 601) as f32 / 100.0 - 5.0).collect()
}

#[test]
fn windows_give_what_the_whole_gives() {
    for (name, channels) in [("center", 100), ("same", 12)] {
        let dir = fixture(name);
        let mut whole = Vocoder::open_with(&dir, 2, 300).unwrap();
        let mut windows = Vocoder::open_with(&dir, 1, 1).unwrap();
        assert!(windows.frames < 40 && windows.bytes() < whole.bytes(), "{name}: {}", windows.frames);
        // Several windows, of which the last has all sizes.
        for frames in [0, 1, 2, windows.frames, windows.frames + 1, 100, 101, 102, 103, 300] {
            let mel = mel(frames, channels);
            let wave = whole.decode(&mel, 0).unwrap();
            assert_eq!(wave.len(), whole.samples(frames));
            assert_eq!(windows.decode(&mel, 1).unwrap(), wave, "{name}: {frames} frames");
        }
    }
}

#[test]
fn the_arena_is_the_plans() {
    let mut vocoder = Vocoder::open(&fixture("center"), 1).unwrap();
    assert_eq!(vocoder.decode(&mel(3, 100), 0).unwrap().len(), 512);
    let work = vocoder.work().unwrap();
    let beside = 4 * (work.mel.capacity() + work.head.capacity()) as u64;
    let arena = work.exec.arena_bytes();
    assert!(arena == vocoder.planned.arena_bytes() && arena + beside < vocoder.bytes());
    let no_number = vocoder.decode(&[f32::NAN; 300], 0).unwrap_err();
    assert_eq!(no_number.exit_code(), 4, "{no_number}");
}

#[test]
fn a_run_takes_the_vocoder_of_its_frames() {
    let open = |dir: Option<&Path>| codec::vocoder(crate::CODECS, dir, 1);
    let mut rough = open(None).unwrap();
    assert_eq!((rough.name(), rough.mels(), rough.samples(3)), ("Griffin-Lim", Mels::OF_CLIPS, 512));
    assert_eq!(rough.decode(&mel(3, 100), 5).unwrap().len(), 512);
    let vocos = open(Some(&fixture("center"))).unwrap();
    assert_eq!((vocos.name(), vocos.samples(3)), ("Vocos", 512));
    let why = |dir: &Path| open(Some(dir)).err().unwrap().to_string();
    assert!(why(&fixture("same")).contains("takes mel frames of 12 channels every 14 samples at 24000 Hz"));
    let snac = fixture("../../snac/fixtures/dense");
    assert!(why(&snac).contains("holds a codec"));
    let why = codec::open(crate::CODECS, &fixture("same"), 1).err().unwrap();
    assert!(why.to_string().contains("has no codes"), "{why}");
    assert!(!Vocos.recognises(&fixture("../../f5/fixtures/v1")));
}

/// Writes the fixture's tensors, changed, to a folder and uses it.
fn changed(dir: &Path, change: impl Fn(&str, &mut Vec<f32>, &mut Vec<usize>) -> bool) -> RunError {
    let from = TensorFile::open(fixture("same").join("model.safetensors")).unwrap();
    let mut tensors = Vec::new();
    if change("extra.weight", &mut vec![1.0], &mut vec![1]) {
        tensors.push((TensorSpec::new("extra.weight", DType::F32, &[1]), vec![1.0]));
    }
    for t in from.tensors() {
        let (mut data, mut shape) = (vec![0.0; t.elements()], t.shape().to_vec());
        from.read_into(t.name(), &mut data, &mut vec![0; 1 << 16]).unwrap();
        if change(t.name(), &mut data, &mut shape) {
            tensors.push((TensorSpec::new(t.name(), DType::F32, &shape), data));
        }
    }
    let specs = tensors.iter().map(|t| t.0.clone()).collect();
    let file = dir.join("model.safetensors");
    let mut writer = SafetensorsWriter::create(file, specs, &Default::default()).unwrap();
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    for name in order {
        let data = &tensors.iter().find(|t| t.0.name == name).unwrap().1;
        writer.write_f32(&name, data).unwrap();
    }
    writer.finish().unwrap();
    let opened = Vocoder::open(dir, 1);
    opened.and_then(|mut vocoder| vocoder.decode(&mel(3, 12), 0)).unwrap_err()
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let text = |e: RunError| {
        assert_eq!(e.exit_code(), 4, "{e}");
        e.to_string()
    };
    let says =
        |said: &str, parts: &[&str]| parts.iter().for_each(|p| assert!(said.contains(p), "{p}: {said}"));
    says(&text(Vocoder::open(dir, 1).err().unwrap()), &["config.yaml: is missing"]);
    std::fs::copy(fixture("same").join("config.yaml"), dir.join("config.yaml")).unwrap();
    says(&text(Vocoder::open(dir, 1).err().unwrap()), &["no model.safetensors or pytorch_model.bin"]);
    let said = text(changed(dir, |name, data, shape| {
        if name == "backbone.norm.bias" {
            data.pop();
            shape[0] -= 1;
        }
        name != "backbone.convnext.1.gamma" && name != "head.istft.window"
    }));
    says(
        &said,
        &[
            "2 tensors missing: backbone.convnext.1.gamma, head.istft.window",
            "1 tensors that the configuration does not have: extra.weight",
            "1 tensors of another shape: backbone.norm.bias is [5], the configuration says [6]",
        ],
    );
    // What the shapes do not say is found when the weights are read.
    for (tensor, value, said) in [
        ("backbone.embed.weight", f32::INFINITY, "tensor backbone.embed.weight holds or gives inf"),
        ("head.istft.window", 0.0, "tensor head.istft.window leaves samples out"),
    ] {
        let why = text(changed(dir, |name, data, _| {
            if name == tensor {
                data.fill(value);
            }
            name != "extra.weight"
        }));
        says(&why, &[said]);
    }
}

#[test]
fn configurations_that_are_not_known_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let config = std::fs::read_to_string(fixture("same").join("config.yaml")).unwrap();
    for (from, to, said) in [
        (
            "MelSpectrogramFeatures",
            "EncodecFeatures",
            "feature_extractor.class_path: `vocos.feature_extractors.Enc",
        ),
        ("num_layers: 3", "num_layers: 3\n    adanorm_num_embeddings: 4", "adanorm_num_embeddings"),
        ("padding: same", "padding: valid", "unknown variant `valid`"),
        ("num_layers", "layers", "unknown field `layers`"),
    ] {
        assert!(config.contains(from), "{from}");
        std::fs::write(dir.join("config.yaml"), config.replace(from, to)).unwrap();
        assert!(Vocos.recognises(dir), "{to}");
        let why = Vocoder::open(dir, 1).err().unwrap();
        assert!(why.exit_code() == 4 && why.to_string().contains(said), "{said}: {why}");
    }
    for other in ["model: {arch: {dim: 4}}", "backbone: 3", "backbone: [", ""] {
        std::fs::write(dir.join("config.yaml"), other).unwrap();
        assert!(!Vocos.recognises(dir), "{other}");
    }
    let why = codec::open_vocoder(crate::CODECS, dir, 1).err().unwrap();
    assert!(why.to_string().contains("config.yaml: is that of no codec"), "{why}");
}
