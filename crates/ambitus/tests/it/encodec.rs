//! `ambitus codec` with EnCodec against what transformers and audiocraft made of the same weights and sound
//! (`parity/encodec/record.py`).

use crate::common::{ok, root, said};
use crate::tensors::{floats, integers, write_floats, write_integers};
use ambitus_testkit::tolerances::CODEC_AUDIO;
use std::path::Path;

/// Every `STEP`-th sample of the audio is recorded, as in `record.py`.
const STEP: usize = 17;
/// The fixtures, their samples a frame, and how many samples are encoded.
const FIXTURES: [(&str, usize, [usize; 3]); 7] = [
    ("hop/musicgen-g-v", 640, [6400, 6401, 639]),
    ("two/native-original", 20, [12_000, 5001, 1]),
    ("two/native-g-v", 20, [12_000, 5001, 1]),
    ("two/musicgen-original", 20, [12_000, 5001, 1]),
    ("two/audiocraft-g-v", 20, [12_000, 5001, 1]),
    ("causal/native-folded", 12, [7000, 1001, 7]),
    ("causal/audiocraft-g-v", 12, [7000, 1001, 7]),
];

fn codec(name: &str) -> String {
    root().join("parity/encodec/fixtures").join(name).to_str().unwrap().to_owned()
}

/// Both projects' files, a folder of the codec alone and a model's, three spellings of weight norm; sounds of less than a frame and of
/// several windows.
#[test]
fn codes_and_audio_are_the_packages() {
    let folder = tempfile::tempdir().unwrap();
    for (name, hop, lengths) in FIXTURES {
        let recorded =
            root().join("parity/encodec/fixtures").join(name).with_file_name("expected.safetensors");
        let (_, wave) = floats(&recorded, "wave");
        for n in lengths {
            same(folder.path(), &codec(name), &recorded, &wave[..n], n.div_ceil(hop) * hop);
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
    assert_eq!(shape, [n], "{codec}");
    // Without the number of samples, all that the codes give.
    write_integers(&dir.join("c.safetensors"), &[("codes", &books, &codes)]);
    ok(dir, &["codec", "decode", "--codec", codec, "--codes", "c.safetensors", "--out", "all.safetensors"]);
    let (shape, all) = floats(&dir.join("all.safetensors"), "wave");
    assert!(shape == [decoded] && all[..n] == audio, "{codec}: {n} samples: {shape:?}");
    let (_, want) = floats(recorded, &format!("audio.{n}"));
    assert_eq!(decoded.div_ceil(STEP), want.len());
    let off = all.iter().step_by(STEP).zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= CODEC_AUDIO, "{codec}: {n} samples: {off:e}");
}

/// Two channels are coded apart, each as if it were alone, and come back side by side.
#[test]
fn stereo_is_two_channels() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let codec = codec("two/native-original");
    let (n, rate) = (3001, 32_000);
    let channel =
        |step: i64| -> Vec<i16> { (0..n as i64).map(|t| (t * step % 20_011 - 10_000) as i16).collect() };
    let (left, right) = (channel(131), channel(1777));
    let write = |name: &str, channels: &[&[i16]]| {
        let spec = hound::WavSpec {
            channels: channels.len() as u16,
            sample_rate: rate,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut wav = hound::WavWriter::create(dir.join(name), spec).unwrap();
        (0..n).for_each(|t| channels.iter().for_each(|c| wav.write_sample(c[t]).unwrap()));
        wav.finalize().unwrap();
    };
    write("both.wav", &[&left, &right]);
    write("left.wav", &[&left]);
    write("right.wav", &[&right]);
    let encode = |audio: &str, out: &str, stereo: bool| {
        let mut args = vec!["codec", "encode", "--codec", &codec, "--audio", audio, "--out", out];
        args.extend(stereo.then_some("--stereo"));
        said(dir, &args)
    };
    for (audio, out, stereo) in [
        ("both.wav", "both.safetensors", true),
        ("left.wav", "left.safetensors", false),
        ("right.wav", "right.safetensors", false),
    ] {
        assert_eq!(encode(audio, out, stereo).0, 0);
    }
    let codes = |name: &str| integers(&dir.join(name), "codes");
    let ((shape, both), (_, one), (_, two)) =
        (codes("both.safetensors"), codes("left.safetensors"), codes("right.safetensors"));
    let frames = n.div_ceil(20);
    assert_eq!(shape, [8, frames]);
    for q in 0..4 {
        let row = |all: &[i64], row: usize| all[row * frames..][..frames].to_vec();
        assert_eq!(row(&both, 2 * q), row(&one, q), "left of codebook {q}");
        assert_eq!(row(&both, 2 * q + 1), row(&two, q), "right of codebook {q}");
    }
    // Tensors, and a file of one channel, which is both.
    let wave: Vec<f32> = left.iter().chain(&right).map(|x| f32::from(*x) / 32_768.0).collect();
    write_floats(&dir.join("wave.safetensors"), "wave", &[2, n], &wave);
    assert_eq!(encode("wave.safetensors", "again.safetensors", true).0, 0);
    assert_eq!(codes("again.safetensors").1, both);
    assert_eq!(encode("left.wav", "alike.safetensors", true).0, 0);
    assert!(codes("alike.safetensors").1.chunks(frames).step_by(2).eq(one.chunks(frames)));

    let decode = |codes: &str, out: &str, stereo: bool| {
        let mut args = vec!["codec", "decode", "--codec", &codec, "--codes", codes, "--out", out];
        args.extend(stereo.then_some("--stereo"));
        said(dir, &args)
    };
    assert_eq!(decode("both.safetensors", "out.safetensors", true).0, 0);
    assert_eq!(
        [
            decode("left.safetensors", "l.safetensors", false).0,
            decode("right.safetensors", "r.safetensors", false).0
        ],
        [0, 0]
    );
    let wave = |name: &str| floats(&dir.join(name), "wave");
    let (shape, out) = wave("out.safetensors");
    assert_eq!(
        (shape, &out[..n], &out[n..]),
        (vec![2, n], &wave("l.safetensors").1[..], &wave("r.safetensors").1[..])
    );
    assert_eq!(decode("both.safetensors", "out.wav", true).0, 0);
    let mut wav = hound::WavReader::open(dir.join("out.wav")).unwrap();
    assert_eq!((wav.spec().channels, wav.spec().sample_rate, wav.duration()), (2, rate, n as u32));
    let read: Vec<f32> = wav.samples::<i16>().map(|x| f32::from(x.unwrap()) / 32_767.0).collect();
    let off = (0..n).flat_map(|t| [read[2 * t] - out[t], read[2 * t + 1] - out[n + t]]);
    assert!(off.map(f32::abs).fold(0.0, f32::max) < 2e-5);

    for (exit, (code, text), words) in [
        (
            5,
            decode("left.safetensors", "no", true),
            "codes: are of 4 codebooks, the codec has 8; one channel's: leave out --stereo",
        ),
        (
            5,
            decode("both.safetensors", "no", false),
            "codes: are of 8 codebooks, the codec has 4; two channels': add --stereo",
        ),
        (5, encode("r.safetensors", "no", true), "wave: is [3001], must be [2, samples]"),
        (5, encode("wave.safetensors", "no", false), "wave: is [2, 3001], must be [samples]"),
    ] {
        assert!(code == exit && text.contains(words), "{words}: {code}: {text}");
        assert!(!dir.join("no").exists());
    }
}
