//! `ambitus codec decode --mel` against what the package made of the same weights and frames (`parity/vocos/record.py`).

use crate::common::{ok, root, said};
use crate::tensors::{floats, write_floats};
use ambitus_testkit::tolerances::VOCODER_AUDIO;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    root().join("parity/vocos/fixtures").join(name)
}

/// The package's frames and sound.
fn expected(name: &str) -> (Vec<usize>, Vec<f32>, Vec<f32>) {
    let file = fixture(name).join("expected.safetensors");
    let (shape, mel) = floats(&file, "mel");
    (shape, mel, floats(&file, "wave").1)
}

/// Centred and not, a pickle and safetensors, the published window and one that is no multiple of its hop.
#[test]
fn sound_is_the_packages() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    for name in ["center", "same"] {
        let (_, _, want) = expected(name);
        let codec = fixture(name);
        let mel = codec.join("expected.safetensors");
        let [codec, mel] = [&codec, &mel].map(|path| path.to_str().unwrap());
        let decode = ["codec", "decode", "--codec", codec, "--mel", mel, "--out"];
        ok(dir, &[&decode[..], &["a.safetensors"]].concat());
        let (shape, got) = floats(&dir.join("a.safetensors"), "wave");
        assert_eq!((shape, got.len()), (vec![want.len()], want.len()));
        let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= VOCODER_AUDIO * largest, "{name}: {off:e} of {largest:e}");

        ok(dir, &[&decode[..], &["a.wav", "--threads", "1"]].concat());
        let mut wav = hound::WavReader::open(dir.join("a.wav")).unwrap();
        assert_eq!(wav.spec().sample_rate, 24_000);
        let rounded: Vec<f32> = wav.samples::<i16>().map(|s| f32::from(s.unwrap()) / 32_767.0).collect();
        assert_eq!(rounded.len(), got.len());
        assert!(rounded.iter().zip(&got).all(|(a, b)| (a - b).abs() < 2e-5), "{name}");
    }
}

#[test]
fn a_frame_alone_gives_no_sound() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let codec = fixture("center");
    for frames in [0, 1] {
        write_floats(&dir.join("m.safetensors"), "mel", &[frames, 100], &vec![-3.0; frames * 100]);
        let args = ["codec", "decode", "--codec", codec.to_str().unwrap(), "--mel", "m.safetensors", "--out"];
        ok(dir, &[&args[..], &["a.safetensors"]].concat());
        assert_eq!(floats(&dir.join("a.safetensors"), "wave"), (vec![0], vec![]));
        ok(dir, &[&args[..], &["a.wav"]].concat());
        assert_eq!(hound::WavReader::open(dir.join("a.wav")).unwrap().duration(), 0);
    }
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let [vocos, snac] = [fixture("same"), root().join("parity/snac/fixtures/dense")];
    let [vocos, snac] = [&vocos, &snac].map(|path| path.to_str().unwrap());
    write_floats(&dir.join("m.safetensors"), "mel", &[2, 12], &[0.0; 24]);
    write_floats(&dir.join("wide.safetensors"), "mel", &[2, 13], &[0.0; 26]);
    write_floats(&dir.join("other.safetensors"), "mels", &[2, 12], &[0.0; 24]);
    let mut bad = [0.0; 24];
    bad[17] = f32::NAN;
    write_floats(&dir.join("nan.safetensors"), "mel", &[2, 12], &bad);
    std::fs::write(dir.join("c.json"), r#"{"sample_rate":24000,"codes":[[0],[0,0]]}"#).unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["decode", "--codec", vocos], 2, "--codes"),
        (
            &["decode", "--codec", vocos, "--mel", "m.safetensors", "--codes", "c.json"],
            2,
            "cannot be used with",
        ),
        (
            &["decode", "--codec", vocos, "--codes", "c.json"],
            4,
            "holds Vocos, which makes sound of mel frames",
        ),
        (
            &["decode", "--codec", snac, "--mel", "m.safetensors"],
            4,
            "holds a codec, which makes sound of codes",
        ),
        (&["encode", "--codec", vocos, "--audio", "a.wav"], 4, "and has no codes"),
        (&["decode", "--codec", vocos, "--mel", "no.safetensors"], 6, "no.safetensors"),
        (
            &["decode", "--codec", vocos, "--mel", "wide.safetensors"],
            5,
            "mel: is [2, 13], must be [frames, 12]",
        ),
        (&["decode", "--codec", vocos, "--mel", "other.safetensors"], 5, "`mel`"),
        (&["decode", "--codec", vocos, "--mel", "nan.safetensors"], 5, "mel[1, 5]: is NaN"),
    ];
    for (args, code, words) in cases {
        let (exit, text) = said(dir, &[&["codec"], args, &["--out", "out.wav"]].concat());
        assert!(exit == code && text.contains(words), "{args:?}: {exit}: {text}");
        assert!(!dir.join("out.wav").exists());
    }
    assert_eq!(
        left_behind(dir),
        ["c.json", "m.safetensors", "nan.safetensors", "other.safetensors", "wide.safetensors"]
    );
}

/// A result replaces a file by another of its name: whatever else has the name stays.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let codec = fixture("same");
    let mel = codec.join("expected.safetensors");
    let [codec, mel] = [&codec, &mel].map(|path| path.to_str().unwrap());
    for out in ["device.wav", "device.safetensors"] {
        std::os::unix::fs::symlink("/dev/null", dir.join(out)).unwrap();
    }
    std::fs::create_dir(dir.join("folder")).unwrap();
    for out in ["device.wav", "device.safetensors", "folder"] {
        let (exit, text) = said(dir, &["codec", "decode", "--codec", codec, "--mel", mel, "--out", out]);
        assert!(exit == 2 && text.contains("name a file"), "{out}: {exit}: {text}");
    }
    assert!(dir.join("device.wav").is_symlink() && dir.join("device.safetensors").is_symlink());
    assert_eq!(left_behind(dir), ["device.safetensors", "device.wav", "folder"]);
}

fn left_behind(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
