//! `ambitus codec` against what the package made of the same weights and sound (`parity/snac/record.py`).

use crate::common::{ok, root, said};
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

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Both spellings of weight norm, safetensors and a pickle, depthwise and dense, even and odd strides.
#[test]
fn codes_and_audio_are_the_packages() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    for (name, samples) in [("strides", 39_000), ("dense", 1_001)] {
        let codec = root().join("parity/snac/fixtures").join(name);
        let expected = std::fs::read(codec.join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&expected).unwrap();
        write(&dir.join("a.wav"), &signal(samples));
        let codec = codec.to_str().unwrap();
        ok(dir, &["codec", "encode", "--codec", codec, "--audio", "a.wav", "--out", "c.json"]);
        let text = std::fs::read_to_string(dir.join("c.json")).unwrap();
        let mut codes: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&codes["sample_rate"], &codes["samples"]), (&24_000.into(), &samples.into()));
        for (i, layer) in codes["layers"].as_array().unwrap().iter().enumerate() {
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
        let want = floats(expected.tensor("audio").unwrap().data());
        assert_eq!(got.len().div_ceil(STEP), want.len());
        let off = got.iter().step_by(STEP).zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= CODEC_AUDIO, "{name}: {off:e}");
    }
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let codec = root().join("parity/snac/fixtures/dense");
    let codec = codec.to_str().unwrap();
    write(&dir.join("empty.wav"), &[]);
    write(&dir.join("a.wav"), &signal(50));
    let cases: [(&[&str], i32, &str); 3] = [
        (&["encode", "--codec", "none", "--audio", "a.wav"], 4, "none/config.json: is missing"),
        (&["encode", "--codec", codec, "--audio", "no.wav"], 5, "no.wav"),
        (&["encode", "--codec", codec, "--audio", "empty.wav"], 5, "empty.wav: no audio samples"),
    ];
    for (args, code, words) in cases {
        let (exit, text) = said(dir, &[&["codec"], args, &["--out", "out"]].concat());
        assert!(exit == code && text.contains(words), "{args:?}: {exit}: {text}");
        assert!(!dir.join("out").exists());
    }
    for (codes, words) in [
        ("[", "c.json: EOF"),
        (r#"{"sample_rate":44100,"layers":[[0],[0,0]]}"#, "c.json: sample_rate"),
        (r#"{"sample_rate":24000,"layers":[[0],[0]]}"#, "c.json: layers[1]"),
        (r#"{"sample_rate":24000,"layers":[[0],[0,-1]]}"#, "c.json: invalid value"),
        (
            r#"{"sample_rate":24000,"samples":13,"layers":[[0],[0,0]]}"#,
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
