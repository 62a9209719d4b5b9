//! On the small encoder of `parity/hifigan/fixtures` and the rows of `parity/dvae/fixtures`, which the package recorded.

use super::{Encoder, FRONT, MOST_SECONDS, rows};
use crate::weights::Weights;
use ambitus_store::TensorFile;
use ambitus_testkit::tolerances::{SPEECH_PARTS, relative};
use std::path::Path;

fn floats(file: &str, name: &str) -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity").join(file);
    let file = TensorFile::open(path).unwrap();
    let mut out = vec![0.0; file.get(name).unwrap().elements()];
    file.read_into(name, &mut out, &mut vec![0; 1 << 16]).unwrap();
    out
}

fn same(got: &[f32], want: &[f32], what: &str) {
    let wide = |all: &[f32]| all.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    assert_eq!(got.len(), want.len(), "{what}");
    let off = relative(&wide(got), &wide(want));
    assert!(off <= SPEECH_PARTS, "{what}: {off:e}");
}

fn encoder(prefix: &str) -> Result<Encoder, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/hifigan/fixtures/decoder.pth");
    let files = vec![TensorFile::open(&path).unwrap()];
    let weights = Weights { files, prefix: prefix.to_owned(), path };
    Encoder::open(weights, 1).map_err(|e| e.to_string())
}

const PREFIX: &str = "model.hifigan_decoder.speaker_encoder.";

#[test]
fn voices_are_the_packages() {
    let file = "dvae/fixtures/mels.safetensors";
    same(&rows(&FRONT, &floats(file, "wave16")), &floats(file, "normed"), "rows");
    let (file, encoder) = ("hifigan/fixtures/decoder.safetensors", encoder(PREFIX).unwrap());
    let voice = encoder.voice(&floats(file, "wave")).unwrap();
    same(&voice, &floats(file, "embedding"), "voice");
    assert_eq!(voice.len(), encoder.width());
}

/// Rows and planes of all parities; what longer sound takes is more.
#[test]
fn sound_of_any_length_has_a_voice() {
    let encoder = encoder(PREFIX).unwrap();
    let sound: Vec<f32> =
        (0..6000).map(|t| 0.3 * (t as f32 * 0.11).sin() + 0.1 * (t as f32 * 0.7).sin()).collect();
    for n in [257, 320, 480, 1600, 2401, 6000] {
        let voice = encoder.voice(&sound[..n]).unwrap();
        let length = voice.iter().map(|x| x * x).sum::<f32>();
        assert!((length - 1.0).abs() < 1e-4, "{n} samples: {length}");
        assert!(encoder.bytes(n) < encoder.bytes(n + 3200));
    }
    for n in [0, 256, MOST_SECONDS * 16_000 + 1] {
        let said = encoder.voice(&vec![0.1; n]).unwrap_err().to_string();
        assert!(said.contains(&format!("{n} samples")), "{said}");
    }
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let said = |prefix| encoder(prefix).err().unwrap();
    assert!(said("model.").contains("layer1.0.conv2.weight is missing"), "{}", said("model."));
}
