//! `ambitus codec` against what the package made of the same weights and sound (`parity/snac/record.py`).

use crate::common::{ok, root, said};
use crate::tensors::{floats, integers, write_floats, write_integers};
use ambitus_testkit::tolerances::CODEC_AUDIO;
use safetensors::SafeTensors;
use std::path::Path;

/// Every `STEP`-th sample of the audio is recorded, as in `record.py`.
const STEP: usize = 17;

/// The sound of the fixtures: `signal` of `record.py`.
fn signal(samples: usize) -> Vec<i16> {
    let mut state = 12_345u64;
    (0..samples as i64)
        .map(|t| {
            state = (state * 1_103_515_245 + 12_345) % (1 << 31);
            let (a, b) = (t * (40 + t / 900) % 4096, t * 171 % 4096);
            (4 * (a - 2048).abs() + 2 * (b - 2048).abs() - 6144 + (state >> 20) as i64) as i16
        })
        .collect()
}

fn write(path: &Path, samples: &[i16]) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 24_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut wav = hound::WavWriter::create(path, spec).unwrap();
    samples.iter().for_each(|s| wav.write_sample(*s).unwrap());
    wav.finalize().unwrap();
}

/// Both spellings of weight norm, safetensors and a pickle, depthwise and dense, even and odd strides.
#[test]
fn codes_and_audio_are_the_packages() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    for (name, samples) in [("strides", 39_000), ("dense", 1_001)] {
        let codec = root().join("parity/snac/fixtures").join(name);
        let recorded = codec.join("expected.safetensors");
        let bytes = std::fs::read(&recorded).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        write(&dir.join("a.wav"), &signal(samples));
        let codec = codec.to_str().unwrap();
        ok(dir, &["codec", "encode", "--codec", codec, "--audio", "a.wav", "--out", "c.json"]);
        let text = std::fs::read_to_string(dir.join("c.json")).unwrap();
        let mut codes: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&codes["sample_rate"], &codes["samples"]), (&24_000.into(), &samples.into()));
        for (i, layer) in codes["codes"].as_array().unwrap().iter().enumerate() {
            let want = expected.tensor(&format!("codes.{i}")).unwrap();
            let want = want.data().chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()));
            let got: Vec<i32> =
                layer.as_array().unwrap().iter().map(|c| c.as_i64().unwrap() as i32).collect();
            assert_eq!(got, want.collect::<Vec<i32>>(), "{name} layer {i}");
        }

        // All that was encoded, and without `samples` all frames.
        ok(dir, &["codec", "decode", "--codec", codec, "--codes", "c.json", "--out", "b.wav"]);
        assert_eq!(hound::WavReader::open(dir.join("b.wav")).unwrap().duration(), samples as u32);
        codes.as_object_mut().unwrap().remove("samples");
        std::fs::write(dir.join("c.json"), codes.to_string()).unwrap();
        ok(dir, &["codec", "decode", "--codec", codec, "--codes", "c.json", "--out", "b.wav"]);
        let mut wav = hound::WavReader::open(dir.join("b.wav")).unwrap();
        let got: Vec<f32> = wav.samples::<i16>().map(|s| f32::from(s.unwrap()) / 32_768.0).collect();
        let (_, want) = floats(&recorded, "audio");
        assert_eq!(got.len().div_ceil(STEP), want.len());
        let off = got.iter().step_by(STEP).zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= CODEC_AUDIO, "{name}: {off:e}");
    }
}

/// Sound and codes as tensors are what the wav file and JSON say, in both directions.
#[test]
fn tensors_say_what_the_other_forms_say() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let codec = root().join("parity/snac/fixtures/dense");
    let codec = codec.to_str().unwrap();
    let samples = signal(1_001);
    write(&dir.join("a.wav"), &samples);
    let wave: Vec<f32> = samples.iter().map(|s| f32::from(*s) / 32_768.0).collect();
    write_floats(&dir.join("a.safetensors"), "wave", &[1_001], &wave);
    let encode = |audio: &str, out: &str| {
        ok(dir, &["codec", "encode", "--codec", codec, "--audio", audio, "--out", out]);
    };
    let decode = |codes: &str, out: &str| {
        ok(dir, &["codec", "decode", "--codec", codec, "--codes", codes, "--out", out]);
    };
    encode("a.wav", "c.json");
    encode("a.safetensors", "again.json");
    let text = std::fs::read_to_string(dir.join("c.json")).unwrap();
    assert_eq!(std::fs::read_to_string(dir.join("again.json")).unwrap(), text);
    encode("a.wav", "c.safetensors");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    for i in 0..2 {
        let want: Vec<i64> =
            json["codes"][i].as_array().unwrap().iter().map(|c| c.as_i64().unwrap()).collect();
        assert_eq!(integers(&dir.join("c.safetensors"), &format!("codes.{i}")), (vec![want.len()], want));
    }

    // Older files have `layers`.
    std::fs::write(dir.join("old.json"), text.replace("\"codes\"", "\"layers\"")).unwrap();
    decode("c.json", "b.wav");
    for codes in ["c.json", "old.json", "c.safetensors"] {
        decode(codes, "b.safetensors");
        let (shape, wave) = floats(&dir.join("b.safetensors"), "wave");
        assert_eq!(shape, [1_001], "{codes}");
        let mut wav = hound::WavReader::open(dir.join("b.wav")).unwrap();
        let rounded = wav.samples::<i16>().map(|s| f32::from(s.unwrap()) / 32_767.0);
        let off = rounded.zip(&wave).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 2e-5, "{codes}: {off:e}");
    }
}

/// Codebooks with as many codes each are one tensor.
#[test]
fn codes_of_one_rate_are_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let codec = flat(dir);
    write(&dir.join("a.wav"), &signal(100));
    ok(dir, &["codec", "encode", "--codec", &codec, "--audio", "a.wav", "--out", "c.safetensors"]);
    let (shape, codes) = integers(&dir.join("c.safetensors"), "codes");
    assert_eq!(shape, [2, 17]);
    ok(dir, &["codec", "encode", "--codec", &codec, "--audio", "a.wav", "--out", "c.json"]);
    let json = std::fs::read_to_string(dir.join("c.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["codes"], serde_json::json!([codes[..17], codes[17..]]));
    let decode = |codes: &str, out: &str| {
        said(dir, &["codec", "decode", "--codec", &codec, "--codes", codes, "--out", out])
    };
    let wave = |name: &str| floats(&dir.join(name), "wave");
    assert_eq!([decode("c.safetensors", "a.safetensors").0, decode("c.json", "b.safetensors").0], [0, 0]);
    assert_eq!(wave("a.safetensors"), wave("b.safetensors"));
    assert_eq!(wave("a.safetensors").0, [100]);
    // Without metadata, whole frames.
    write_integers(&dir.join("c.safetensors"), &[("codes", &[2, 17], &codes)]);
    assert_eq!(decode("c.safetensors", "b.safetensors").0, 0);
    assert_eq!(wave("b.safetensors").0, [17 * 6]);
    assert_eq!(wave("b.safetensors").1[..100], wave("a.safetensors").1);

    for (tensors, words) in [
        (&[("codes", &[3, 1][..], &[0, 0, 0][..])][..], "codes: are of 3 codebooks, the codec has 2"),
        (&[("codes", &[2], &[0, 0])], "codes: is [2], must be [codebooks, frames]"),
        (&[("codes", &[2, 1], &[0, -1])], "codes: -1 is no code of any codebook"),
        (&[("codes", &[2, 1], &[0, 32])], "codes[1][0]: 32 is not below the codebook's size 32"),
        (&[("codes.0", &[1], &[0])], "`codes.1`"),
        (&[("code", &[1], &[0])], "`codes`"),
    ] {
        write_integers(&dir.join("c.safetensors"), tensors);
        let (exit, text) = decode("c.safetensors", "out");
        assert!(exit == 5 && text.contains(words), "{words}: {exit}: {text}");
        assert!(!dir.join("out").exists());
    }
}

/// The fixture `dense` with a code of each codebook every six samples. Returns its folder.
fn flat(dir: &Path) -> String {
    let (from, to) = (root().join("parity/snac/fixtures/dense"), dir.join("flat"));
    std::fs::create_dir(&to).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["vq_strides"] = serde_json::json!([1, 1]);
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    std::fs::copy(from.join("pytorch_model.bin"), to.join("pytorch_model.bin")).unwrap();
    to.to_str().unwrap().to_owned()
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let codec = root().join("parity/snac/fixtures/dense");
    let codec = codec.to_str().unwrap();
    write(&dir.join("empty.wav"), &[]);
    write(&dir.join("a.wav"), &signal(50));
    write_floats(&dir.join("rows.safetensors"), "wave", &[1, 50], &[0.0; 50]);
    write_floats(&dir.join("none.safetensors"), "wave", &[0], &[]);
    write_floats(&dir.join("nan.safetensors"), "wave", &[2], &[0.0, f32::NAN]);
    write_integers(&dir.join("whole.safetensors"), &[("wave", &[2], &[1, 2])]);
    let cases: [(&[&str], i32, &str); 7] = [
        (&["encode", "--codec", "none", "--audio", "a.wav"], 4, "none/config.json: is missing"),
        (&["encode", "--codec", codec, "--audio", "no.wav"], 5, "no.wav"),
        (&["encode", "--codec", codec, "--audio", "empty.wav"], 5, "empty.wav: no audio samples"),
        (
            &["encode", "--codec", codec, "--audio", "none.safetensors"],
            5,
            "none.safetensors: no audio samples",
        ),
        (
            &["encode", "--codec", codec, "--audio", "rows.safetensors"],
            5,
            "wave: is [1, 50], must be [samples]",
        ),
        (&["encode", "--codec", codec, "--audio", "nan.safetensors"], 5, "wave[1]: is NaN"),
        (
            &["encode", "--codec", codec, "--audio", "whole.safetensors"],
            5,
            "wave: holds I64, must hold floats",
        ),
    ];
    for (args, code, words) in cases {
        let (exit, text) = said(dir, &[&["codec"], args, &["--out", "out"]].concat());
        assert!(exit == code && text.contains(words), "{args:?}: {exit}: {text}");
        assert!(!dir.join("out").exists());
    }
    for (codes, words) in [
        ("[", "c.json: EOF"),
        (r#"{"sample_rate":44100,"layers":[[0],[0,0]]}"#, "c.json: sample_rate"),
        (r#"{"sample_rate":24000,"codes":[[0],[0]]}"#, "c.json: codes[1]"),
        (r#"{"sample_rate":24000,"codes":[[0],[0,-1]]}"#, "c.json: invalid value"),
        (
            r#"{"sample_rate":24000,"samples":13,"codes":[[0],[0,0]]}"#,
            "c.json: samples: 13 are more than the 12",
        ),
    ] {
        std::fs::write(dir.join("c.json"), codes).unwrap();
        let (exit, text) =
            said(dir, &["codec", "decode", "--codec", codec, "--codes", "c.json", "--out", "out"]);
        assert!(exit == 5 && text.contains(words), "{codes}: {exit}: {text}");
        assert!(!dir.join("out").exists());
    }
}
