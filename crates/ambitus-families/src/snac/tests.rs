//! On the small codecs of `parity/snac/fixtures`, whose codes and samples the package recorded. What comes out of the command
//! line is compared in `crates/ambitus/tests/it/codec.rs`; here, that windows and pieces change nothing, and what is refused.

use super::Codec;
use crate::codec::{Codec as _, Codes};
use crate::error::RunError;
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/snac/fixtures").join(name)
}

/// Three seconds that do not repeat.
fn sound() -> Vec<f32> {
    let at = |t: usize| t as f32 / 24_000.0;
    let sweep = |t: usize| (900.0 * at(t) * at(t)).sin();
    (0..70_001).map(|t| 0.4 * sweep(t) + 0.2 * (240.0 * at(t % 9001)).cos()).collect()
}

#[test]
fn windows_give_what_the_whole_gives() {
    let x = sound();
    for (name, samples, frames) in [("strides", x.len(), 35), ("dense", 5000, 417)] {
        let x = &x[..samples];
        let dir = fixture(name);
        // The narrowest windows (seven or more frames are within reach), and one for all.
        let mut whole = Codec::open_with(&dir, 1, frames).unwrap();
        let mut windows = Codec::open_with(&dir, 2, 1).unwrap();
        assert!(
            windows.frames() * windows.kind().folder.config.frame() * 2 < x.len(),
            "{name}: several windows"
        );
        assert!(windows.bytes() < whole.bytes());
        let codes = whole.encode(x).unwrap();
        assert_eq!(windows.encode(x).unwrap(), codes, "{name}");
        assert_eq!(x.len().div_ceil(whole.kind().folder.config.frame()), frames);
        let lengths: Vec<usize> = codes.layers.iter().map(Vec::len).collect();
        let each = (0..lengths.len()).map(|i| frames * whole.kind().folder.config.codes_per_frame(i));
        assert_eq!(lengths, each.collect::<Vec<_>>());

        // In pieces of all sizes.
        let mut encoding = windows.encoding().unwrap();
        let (mut at, mut n) = (0, 1);
        while at < x.len() {
            let end = x.len().min(at + n);
            encoding.push(&x[at..end]).unwrap();
            (at, n) = (end, n * 3 % 20_011);
        }
        assert_eq!(encoding.finish().unwrap(), codes, "{name} in pieces");

        assert_eq!(windows.decode(&codes).unwrap(), whole.decode(&codes).unwrap(), "{name}");
    }
}

#[test]
fn noise_depends_on_the_seed_only() {
    let dir = fixture("strides");
    let codes = Codes { layers: (0..3).map(|i| (0..30 << i).map(|k| k * 7 % 64).collect()).collect() };
    let all = |codec: &mut Codec, seed| {
        let (mut decoding, mut all) = (codec.decoding(&codes, seed).unwrap(), Vec::new());
        while let Some(piece) = decoding.next_piece().unwrap() {
            all.extend_from_slice(piece);
        }
        all
    };
    let mut windows = Codec::open_with(&dir, 1, 1).unwrap();
    let mut whole = Codec::open_with(&dir, 1, 30).unwrap();
    let noisy = all(&mut windows, Some(3));
    assert_eq!(noisy, all(&mut whole, Some(3)));
    assert_ne!(noisy, all(&mut windows, Some(4)));
    assert_ne!(noisy, all(&mut windows, None));
    let mut without = Codec::open(&fixture("dense"), 1).unwrap();
    let codes = Codes { layers: vec![vec![0], vec![0, 0]] };
    let refused = without.decoding(&codes, Some(3)).err().unwrap();
    assert_eq!(refused.exit_code(), 2, "{refused}");
}

#[test]
fn the_arena_is_the_plans() {
    let mut codec = Codec::open(&fixture("dense"), 1).unwrap();
    let codes = codec.encode(&[0.25; 100]).unwrap();
    assert_eq!(codec.open_bytes(), Some(codec.encode_bytes()));
    let y = codec.decode(&codes).unwrap();
    assert_eq!(y.len(), 9 * codec.kind().folder.config.frame());
    assert!(codec.open_bytes().unwrap() <= codec.bytes());
    assert_eq!(codec.encode(&[]).unwrap().layers, vec![Vec::<u32>::new(); 2]);
    let no_number = codec.encode(&[f32::NAN; 30]).unwrap_err();
    assert_eq!(no_number.exit_code(), 4, "{no_number}");
}

#[test]
fn codes_of_another_codec_are_refused() {
    let codec = Codec::open(&fixture("dense"), 1).unwrap();
    let why = |layers: &[&[u32]]| {
        codec.spec().frames(&Codes { layers: layers.iter().map(|l| l.to_vec()).collect() })
    };
    assert_eq!(why(&[&[1], &[2, 3]]), Ok(1));
    for (layers, said) in [
        (&[&[1][..]][..], "2 codebooks"),
        (&[&[1], &[2]], "codes[1]: 1 codes, 2 belong"),
        (&[&[1], &[2, 32]], "codes[1][1]: 32 is not below the codebook's size 32"),
    ] {
        assert!(why(layers).unwrap_err().contains(said), "{said}");
    }
}

/// Returns the fixture's tensors, changed, in a folder of their own.
fn changed(dir: &Path, change: impl Fn(&str, &mut Vec<f32>, &mut Vec<usize>) -> bool) -> RunError {
    let from = TensorFile::open(fixture("strides").join("model.safetensors")).unwrap();
    let mut scratch = vec![0; 1 << 16];
    let mut tensors = vec![(TensorSpec::new("extra.weight", DType::F32, &[1]), vec![1.0])];
    for t in from.tensors() {
        let (mut data, mut shape) = (vec![0.0; t.elements()], t.shape().to_vec());
        from.read_into(t.name(), &mut data, &mut scratch).unwrap();
        if change(t.name(), &mut data, &mut shape) {
            tensors.push((TensorSpec::new(t.name(), DType::F32, &shape), data));
        }
    }
    let specs = tensors.iter().map(|t| t.0.clone()).collect();
    let mut writer =
        SafetensorsWriter::create(dir.join("model.safetensors"), specs, &Default::default()).unwrap();
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    for name in order {
        let data = &tensors.iter().find(|t| t.0.name == name).unwrap().1;
        writer.write_f32(&name, data).unwrap();
    }
    writer.finish().unwrap();
    let opened = Codec::open(dir, 1);
    opened.and_then(|mut codec| codec.encode(&[0.0; 10])).unwrap_err()
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let text = |e: RunError| {
        assert_eq!(e.exit_code(), 4, "{e}");
        e.to_string()
    };
    let said = text(Codec::open(dir, 1).err().unwrap());
    assert!(said.contains("config.json: is missing"), "{said}");
    std::fs::copy(fixture("strides").join("config.json"), dir.join("config.json")).unwrap();
    let said = text(Codec::open(dir, 1).err().unwrap());
    assert!(said.contains("no model.safetensors or pytorch_model.bin"), "{said}");
    let said = text(changed(dir, |name, data, shape| {
        if name == "encoder.block.1.block.4.bias" {
            data.pop();
            shape[0] -= 1;
        }
        name != "decoder.model.7.bias" && name != "encoder.block.0.parametrizations.weight.original0"
    }));
    for part in [
        "2 tensors missing: encoder.block.0.parametrizations.weight.original0, decoder.model.7.bias",
        "1 tensors that the configuration does not have: extra.weight",
        "1 tensors of another shape: encoder.block.1.block.4.bias is [1], the configuration says [2]",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
    std::fs::write(dir.join("config.json"), config.replace("\"noise\"", "\"noises\"")).unwrap();
    let said = text(Codec::open(dir, 1).err().unwrap());
    assert!(said.contains("unknown field `noises`"), "{said}");
}
