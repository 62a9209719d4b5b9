//! On the small DVAE of `parity/dvae/fixtures`, whose codes and frames the package recorded.

use super::{Codec, Dvae};
use crate::codec::{Codec as _, Codes, Kind as _, decode_file, encode_file};
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use ambitus_testkit::tolerances::{SPEECH_PARTS, relative};
use std::path::{Path, PathBuf};

/// Samples that are encoded: whole codes, one less, and little.
const LENGTHS: [usize; 4] = [12_288, 12_287, 5_000, 600];
/// Of these, those whose frames are recorded.
const SHORT: [usize; 2] = [5_000, 600];

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/dvae/fixtures/small")
}

fn recorded() -> TensorFile {
    TensorFile::open(fixture().join("expected.safetensors")).unwrap()
}

fn floats(file: &TensorFile, name: &str) -> Vec<f32> {
    let mut out = vec![0.0; file.get(name).unwrap().elements()];
    file.read_into(name, &mut out, &mut vec![0; 1 << 16]).unwrap();
    out
}

fn integers(file: &TensorFile, name: &str) -> Vec<u32> {
    let mut out = vec![0; file.get(name).unwrap().elements()];
    file.read_i64(name, &mut out, &mut vec![0; 1 << 16]).unwrap();
    out.into_iter().map(|x| x as u32).collect()
}

/// The fixture has no near ties.
#[test]
fn codes_and_frames_are_the_packages() {
    let file = recorded();
    let wave = floats(&file, "wave");
    let mut codec = Codec::open(&fixture(), 1).unwrap();
    for n in LENGTHS {
        let codes = codec.encode(&wave[..n]).unwrap();
        assert_eq!(codes.layers, [integers(&file, &format!("codes.{n}"))], "{n} samples");
        assert_eq!(codes.layers[0].len(), n / 1024 + 1);
        let clip = codec.encode_clip(&wave[..n]).unwrap();
        assert_eq!(clip, codes.layers[0][..n.div_ceil(1024)], "{n} samples");
        if !SHORT.contains(&n) {
            continue;
        }
        let mel = codec.decode(&codes).unwrap();
        let want = floats(&file, &format!("decoded.{n}"));
        let frames = 4 * codes.layers[0].len();
        let mel: Vec<f64> = mel.into_iter().map(f64::from).collect();
        let want: Vec<f64> = (0..mel.len()).map(|i| f64::from(want[i % 80 * frames + i / 80])).collect();
        let off = relative(&mel, &want);
        assert!(off <= SPEECH_PARTS, "{n} samples: {off:e}");
    }
}

#[test]
fn windows_give_what_the_whole_gives() {
    let mut whole = Codec::open(&fixture(), 2).unwrap();
    let mut windows = Codec::open_with(&fixture(), 1, 1).unwrap();
    assert!(windows.window < 16 && windows.bytes() < whole.bytes());
    let sound = |n: usize| -> Vec<f32> {
        (0..n).map(|t| 0.4 * (t as f32 * t as f32 * 2e-6).sin() + 0.1 * (t as f32 * 0.3).cos()).collect()
    };
    let window = windows.window * 1024;
    for n in [600, window - 1, window, window + 1023, 5 * window + 513, 6 * window + 1024] {
        let x = sound(n);
        let codes = whole.encode(&x).unwrap();
        assert_eq!(windows.encode(&x).unwrap(), codes, "{n} samples");
        let (a, b) = (windows.decode(&codes).unwrap(), whole.decode(&codes).unwrap());
        assert_eq!(a, b, "{n} samples");
        // In pieces of all sizes.
        let mut encoding = windows.encoding().unwrap();
        let (mut at, mut size) = (0, 1);
        while at < x.len() {
            let end = x.len().min(at + size);
            encoding.push(&x[at..end]).unwrap();
            (at, size) = (end, size * 3 % 2011);
        }
        assert_eq!(encoding.finish().unwrap(), codes, "{n} samples in pieces");
    }
    assert!(whole.decode(&Codes { layers: vec![vec![]] }).unwrap().is_empty());
}

#[test]
fn files_hold_codes_and_mel_frames() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut codec = Codec::open(&fixture(), 1).unwrap();
    assert!(Dvae.recognises(&fixture()) && !Dvae.recognises(folder.path()));
    let file = encode_file(&mut codec, &fixture().join("expected.safetensors")).unwrap();
    assert_eq!((file.sample_rate, file.samples, file.codes[0].len()), (22_050, Some(12_288), 13));
    file.write(&at("c.json")).unwrap();
    let said = decode_file(&mut codec, &at("c.json"), &at("m.wav"), None).unwrap_err();
    assert!(said.exit_code() == 2 && said.to_string().contains("mel frames"), "{said}");
    decode_file(&mut codec, &at("c.json"), &at("m.safetensors"), None).unwrap();
    let mel = TensorFile::open(at("m.safetensors")).unwrap();
    assert_eq!(mel.get("mel").unwrap().shape(), [52, 80]);
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let said = |dir: &Path| Codec::open(dir, 1).err().expect("refused").to_string();
    std::fs::copy(fixture().join("dvae.pth"), dir.join("dvae.pth")).unwrap();
    assert!(said(dir).contains("mel_stats.pth"), "{}", said(dir));
    // A dictionary in its place.
    std::fs::copy(fixture().join("dvae.pth"), dir.join("mel_stats.pth")).unwrap();
    assert!(said(dir).contains("must be one of 80 numbers"), "{}", said(dir));
    let write = |path: &str, name: &str, shape: &[usize], value: f32| {
        let spec = TensorSpec::new(name, DType::F32, shape);
        let mut writer = SafetensorsWriter::create(dir.join(path), vec![spec], &Default::default()).unwrap();
        writer.write_f32(name, &vec![value; shape.iter().product()]).unwrap();
        writer.finish().unwrap();
    };
    write("mel_stats.pth", "x", &[79], 1.0);
    assert!(said(dir).contains("must be [80]"), "{}", said(dir));
    write("mel_stats.pth", "x", &[80], 0.0);
    assert!(said(dir).contains("number 0 is 0"), "{}", said(dir));
    write("dvae.pth", "encoder.0.0.weight", &[4, 80, 3], 0.0);
    assert!(said(dir).contains("encoder.1.net.0.weight is missing"), "{}", said(dir));

    let mut codec = Codec::open(&fixture(), 1).unwrap();
    let short = codec.encode(&[0.0; 512]).unwrap_err();
    assert!(short.to_string().contains("512 samples at 22050 Hz"), "{short}");
}
