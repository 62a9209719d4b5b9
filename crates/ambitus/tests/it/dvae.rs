//! `ambitus codec` with a DVAE against what the package made of the same weights and sound (`parity/dvae/record.py`).

use crate::common::{ok, root, said};
use crate::tensors::{floats, integers, write_floats};
use ambitus_testkit::tolerances::{SPEECH_PARTS, relative};

#[test]
fn codes_and_frames_are_the_packages() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let fixture = root().join("parity/dvae/fixtures/small");
    let (codec, recorded) = (fixture.to_str().unwrap(), fixture.join("expected.safetensors"));
    let (_, wave) = floats(&recorded, "wave");
    for n in [12_288, 12_287, 5_000, 600] {
        write_floats(&dir.join("a.safetensors"), "wave", &[n], &wave[..n]);
        let encode = ["codec", "encode", "--codec", codec, "--audio", "a.safetensors", "--out"];
        ok(dir, &[&encode[..], &["c.safetensors"]].concat());
        let (shape, codes) = integers(&dir.join("c.safetensors"), "codes");
        let (_, want) = integers(&recorded, &format!("codes.{n}"));
        assert!(shape == [1, n / 1024 + 1] && codes == want, "{n} samples");
    }
    // Codes of 600 samples give one code's frames.
    let decode = ["codec", "decode", "--codec", codec, "--codes", "c.safetensors", "--out"];
    ok(dir, &[&decode[..], &["m.safetensors"]].concat());
    let (shape, mel) = floats(&dir.join("m.safetensors"), "mel");
    let (_, want) = floats(&recorded, "decoded.600");
    let want: Vec<f64> = (0..320).map(|i| f64::from(want[i % 80 * 4 + i / 80])).collect();
    let mel: Vec<f64> = mel.into_iter().map(f64::from).collect();
    assert!(shape == [4, 80] && relative(&mel, &want) <= SPEECH_PARTS);
    let (exit, text) = said(dir, &[&decode[..], &["m.wav"]].concat());
    assert!(exit == 2 && text.contains("mel frames"), "{exit}: {text}");
}
