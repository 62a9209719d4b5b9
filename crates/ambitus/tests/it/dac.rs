//! `ambitus codec` with DAC against what transformers made of the same weights and sound (`parity/dac/record.py`).

use crate::common::{ok, root, said};
use crate::tensors::{floats, integers, write_floats, write_integers};
use ambitus_testkit::tolerances::CODEC_AUDIO;
use std::path::Path;

/// Every `STEP`-th sample of the audio is recorded, as in `record.py`.
const STEP: usize = 17;
/// Samples that are encoded: whole frames, one more, and less of them.
const LENGTHS: [usize; 3] = [10_240, 10_241, 5_000];

fn codec(name: &str) -> String {
    root().join("parity/dac/fixtures").join(name).to_str().unwrap().to_owned()
}

/// Both projects' names, a folder of the codec alone and a model's, three spellings of weight norm; even and odd strides.
#[test]
fn codes_and_audio_are_the_packages() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    for name in [
        "even/native",
        "even/parler-native",
        "even/parler-g-v",
        "even/parler-original",
        "odd/native",
        "odd/parler-g-v",
    ] {
        let recorded = root().join("parity/dac/fixtures").join(name).with_file_name("expected.safetensors");
        let (_, wave) = floats(&recorded, "wave");
        let (_, decoded) = integers(&recorded, "samples");
        for (n, decoded) in LENGTHS.into_iter().zip(decoded) {
            same(dir, &codec(name), &recorded, &wave[..n], decoded as usize);
        }
    }
}

fn same(dir: &Path, codec: &str, recorded: &Path, wave: &[f32], decoded: usize) {
    let n = wave.len();
    let (books, want) = integers(recorded, &format!("codes.{n}"));
    write_floats(&dir.join("a.safetensors"), "wave", &[n], wave);
    ok(dir, &["codec", "encode", "--codec", codec, "--audio", "a.safetensors", "--out", "c.safetensors"]);
    let (shape, codes) = integers(&dir.join("c.safetensors"), "codes");
    // The fixtures have no near ties.
    assert!(shape == books && codes == want, "{codec}: codes of {n} samples");

    ok(dir, &["codec", "decode", "--codec", codec, "--codes", "c.safetensors", "--out", "b.safetensors"]);
    let (shape, audio) = floats(&dir.join("b.safetensors"), "wave");
    assert_eq!(shape, [decoded.min(n)], "{codec}: {n} samples");
    let (_, want) = floats(recorded, &format!("audio.{n}"));
    assert_eq!(decoded.div_ceil(STEP), want.len());
    let off = audio.iter().step_by(STEP).zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= CODEC_AUDIO, "{codec}: {n} samples: {off:e}");

    // Without the number of samples, all that the codes give.
    write_integers(&dir.join("c.safetensors"), &[("codes", &books, &codes)]);
    ok(dir, &["codec", "decode", "--codec", codec, "--codes", "c.safetensors", "--out", "all.safetensors"]);
    let (shape, all) = floats(&dir.join("all.safetensors"), "wave");
    assert!(shape == [decoded] && all[..audio.len()] == audio, "{codec}: {n} samples: {shape:?}");
}

/// Audio of any kind goes in, and what is less than a frame has no codes.
#[test]
fn audio_files_are_resampled_and_cut_to_frames() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let codec = codec("even/parler-original");
    let write = |name: &str, samples: usize| {
        let spec = hound::WavSpec {
            channels: 2,
            sample_rate: 22_050,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut wav = hound::WavWriter::create(dir.join(name), spec).unwrap();
        (0..2 * samples).for_each(|i| wav.write_sample((i * 7919 % 20_011) as i16).unwrap());
        wav.finalize().unwrap();
    };
    write("a.wav", 1_000);
    ok(dir, &["codec", "encode", "--codec", &codec, "--audio", "a.wav", "--out", "c.json"]);
    let json = std::fs::read_to_string(dir.join("c.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // 2,000 samples at 44.1 kHz are three frames of 512.
    assert_eq!((&json["sample_rate"], &json["samples"]), (&44_100.into(), &1_536.into()));
    let lengths = json["codes"].as_array().unwrap().iter().map(|codes| codes.as_array().unwrap().len());
    assert_eq!(lengths.collect::<Vec<_>>(), [3; 9]);
    ok(dir, &["codec", "decode", "--codec", &codec, "--codes", "c.json", "--out", "b.wav"]);
    let wav = hound::WavReader::open(dir.join("b.wav")).unwrap();
    assert_eq!((wav.duration(), wav.spec().sample_rate), (1_536, 44_100));

    write("short.wav", 255);
    let (exit, text) =
        said(dir, &["codec", "encode", "--codec", &codec, "--audio", "short.wav", "--out", "d.json"]);
    assert!(exit == 5 && text.contains("has 510 samples at 44100 Hz, less than one frame of 512"), "{text}");
    assert!(!dir.join("d.json").exists());
}
