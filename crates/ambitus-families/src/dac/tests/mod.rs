//! On small codecs of random weights, against the formulas written out ([`plain`]). What the packages make of theirs is compared in
//! `crates/ambitus/tests/it/codec.rs`; here, that windows, pieces, names and spellings change nothing, and what is refused.

mod made;
mod plain;

use super::{Codec, Dac};
use crate::codec::made::{Folder, Spelling};
use crate::codec::{Codec as _, Codes, Kind as _, Spec};
use ambitus_models::dac::config::Config;
use ambitus_models::dac::weights::Names;
use made::{shape, written};

/// Rates with an even product of even strides, and with odd ones, at which sounds end within a row.
const EVEN: [usize; 3] = [2, 4, 2];
const ODD: [usize; 3] = [2, 5, 3];

/// A sound that does not repeat.
fn sound(samples: usize) -> Vec<f32> {
    let at = |t: usize| t as f32 / 16_000.0;
    let sweep = |t: usize| (9000.0 * at(t) * at(t)).sin();
    (0..samples).map(|t| 0.4 * sweep(t) + 0.2 * (1240.0 * at(t % 901)).cos()).collect()
}

fn open(folder: &Folder, frames: usize) -> Codec {
    Codec::open_with(folder.path(), 1, frames).unwrap()
}

#[test]
fn codes_and_samples_are_the_formulas() {
    for rates in [EVEN, ODD] {
        let folder = written(&shape(&rates), Names::Package, Spelling::Old, "");
        let plain = plain::Codec::new(&shape(&rates));
        let (mut codec, hop) = (open(&folder, 1), rates.iter().product::<usize>());
        // Ends within rows of every rate.
        for samples in [hop - 1, hop, 5 * hop, 20 * hop + 1, 20 * hop + 7, 21 * hop - 1] {
            let x = sound(samples);
            let codes = codec.encode(&x).unwrap();
            let want = plain.encode(&x);
            assert_eq!(codes.layers, want, "{rates:?}: {samples} samples");
            let frames = codes.layers[0].len();
            assert_eq!(frames, codec.kind().folder.config.frames(samples));
            let y = codec.decode(&codes).unwrap();
            assert_eq!(y.len(), codec.spec().samples(frames), "{rates:?}: {samples} samples");
            let z = plain.decode(&codes.layers);
            assert_eq!(y.len(), z.len(), "{rates:?}: {samples} samples");
            let off = y.iter().zip(&z).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(off < 1e-5, "{rates:?}: {samples} samples: {off:e}");
        }
    }
}

#[test]
fn windows_give_what_the_whole_gives() {
    for rates in [EVEN, ODD] {
        let folder = written(&shape(&rates), Names::Package, Spelling::New, "");
        let hop: usize = rates.iter().product();
        // The narrowest windows, and one for all.
        let mut windows = Codec::open_with(folder.path(), 2, 1).unwrap();
        let mut whole = open(&folder, 6 * windows.frames());
        assert!(windows.bytes() < whole.bytes());
        for samples in [5 * windows.frames() * hop, 4 * windows.frames() * hop + hop / 2 + 1, 77 * hop + 1] {
            let x = sound(samples);
            let codes = whole.encode(&x).unwrap();
            assert_eq!(windows.encode(&x).unwrap(), codes, "{rates:?}: {samples} samples");
            let (y, z) = (windows.decode(&codes).unwrap(), whole.decode(&codes).unwrap());
            assert_eq!(y, z, "{rates:?}: {samples} samples");

            // In pieces of all sizes.
            let mut encoding = windows.encoding().unwrap();
            let (mut at, mut n) = (0, 1);
            while at < x.len() {
                let end = x.len().min(at + n);
                encoding.push(&x[at..end]).unwrap();
                (at, n) = (end, n * 3 % 2011);
            }
            assert_eq!(encoding.finish().unwrap(), codes, "{rates:?}: {samples} samples in pieces");
        }
    }
}

/// Both projects' names, alone and in a model, one file or shards, folded or not: the same tensors.
#[test]
fn names_and_spellings_change_nothing() {
    let cfg = shape(&EVEN);
    let x = sound(1000);
    let mut first: Option<(Codes, Vec<f32>)> = None;
    for (names, prefix) in [
        (Names::Package, ""),
        (Names::Package, "model."),
        (Names::Package, "audio_encoder.model."),
        (Names::Transformers, ""),
        (Names::Transformers, "audio_encoder."),
    ] {
        for spelling in [Spelling::Folded, Spelling::Old, Spelling::New] {
            let folder = written(&cfg, names, spelling, prefix);
            let mut codec = open(&folder, 0);
            assert_eq!(codec.kind().folder.config, cfg);
            let codes = codec.encode(&x).unwrap();
            let y = codec.decode(&codes).unwrap();
            let (want, z) = first.get_or_insert((codes.clone(), y.clone()));
            assert!(*want == codes && *z == y, "{names:?} {spelling:?} {prefix}");
        }
    }
    let folder = written(&cfg, Names::Package, Spelling::Old, "audio_encoder.model.");
    let before = open(&folder, 0).fingerprint().unwrap();
    folder.shard();
    let mut codec = open(&folder, 0);
    assert_eq!(Some(codec.encode(&x).unwrap()), first.map(|(codes, _)| codes));
    // Where a tensor is does not matter, nor what else the files hold.
    assert_eq!(codec.fingerprint().unwrap(), before);
}

#[test]
fn the_arena_is_the_plans() {
    let folder = written(&shape(&EVEN), Names::Transformers, Spelling::Folded, "");
    let mut codec = open(&folder, 0);
    let codes = codec.encode(&[0.25; 100]).unwrap();
    assert_eq!(codec.open_bytes(), Some(codec.encode_bytes()));
    assert_eq!(codec.decode(&codes).unwrap().len(), 6 * 16);
    assert!(codec.open_bytes().unwrap() <= codec.bytes());
    assert_eq!(codec.encode(&[0.5; 15]).unwrap().layers, vec![Vec::<u32>::new(); 3]);
    let no_number = codec.encode(&[f32::NAN; 30]).unwrap_err();
    assert_eq!(no_number.exit_code(), 4, "{no_number}");
    let noise = codec.decoding(&codes, Some(3)).err().unwrap();
    assert_eq!(noise.exit_code(), 2, "{noise}");
}

#[test]
fn rates_are_the_configurations() {
    let cfg = shape(&EVEN);
    let rate = |folder: &Folder| open(folder, 0).spec().rate;
    // What the two projects mean by none.
    let folder = written(&cfg, Names::Transformers, Spelling::Folded, "");
    folder.config(r#"{"model_type":"dac"}"#);
    assert_eq!(rate(&folder), 16_000);
    let folder = written(&cfg, Names::Package, Spelling::Old, "audio_encoder.model.");
    folder.config(r#"{"model_type":"parler_tts","audio_encoder":{"model_type":"dac"}}"#);
    assert_eq!(rate(&folder), 44_100);
    folder.config(r#"{"audio_encoder":{"model_type":"dac_on_the_hub","sampling_rate":24000}}"#);
    assert_eq!(rate(&folder), 24_000);
    let spec = Spec { rate: 24_000, ..open(&folder, 0).spec().clone() };
    assert_eq!((spec.frame, spec.tail, spec.codebooks.len()), (16, 0, 3));
}

#[test]
fn folders_are_recognised_by_their_type() {
    let dir = tempfile::tempdir().unwrap();
    let recognised = |text: &str| {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        Dac.recognises(dir.path())
    };
    assert!(!Dac.recognises(dir.path()));
    assert!(recognised(r#"{"model_type":"dac"}"#));
    assert!(recognised(r#"{"model_type":"parler_tts","audio_encoder":{"model_type":"dac_on_the_hub"}}"#));
    for other in [
        r#"{"model_type":"musicgen","audio_encoder":{"model_type":"encodec"}}"#,
        r#"{"model_type":"llama"}"#,
        r#"{"audio_encoder":3,"model_type":"dac"}"#,
        "[]",
        "{",
    ] {
        assert!(!recognised(other), "{other}");
    }
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let cfg = shape(&EVEN);
    let why = |folder: &Folder| {
        let opened = Codec::open(folder.path(), 1);
        let e = opened.and_then(|mut codec| codec.encode(&[0.0; 100])).unwrap_err();
        assert_eq!(e.exit_code(), 4, "{e}");
        e.to_string()
    };
    let says =
        |said: &str, parts: &[&str]| parts.iter().for_each(|p| assert!(said.contains(p), "{p}: {said}"));
    let folder = written(&cfg, Names::Package, Spelling::Old, "");
    folder.change(|name, shape, data| {
        if name == "encoder.block.1.block.4.bias" {
            data.pop();
            shape[0] -= 1;
        }
        name != "decoder.model.5.bias" && name != "encoder.block.0.weight_g"
    });
    folder.add("extra.weight");
    says(
        &why(&folder),
        &[
            "2 tensors missing: encoder.block.0.weight_g, decoder.model.5.bias",
            "1 tensors that the architecture does not have: extra.weight",
            "encoder.block.1.block.4.bias is [5], the architecture says [6]",
        ],
    );
    let folder = written(&cfg, Names::Package, Spelling::Old, "");
    folder.change(|name, _, data| {
        if name == "decoder.model.2.block.1.weight_v" || name == "encoder.block.2.block.4.weight_v" {
            data[0] = f32::INFINITY;
        }
        true
    });
    says(&why(&folder), &["tensor encoder.block.2.block.4.weight_g, encoder.block.2.block.4.weight_v holds"]);
    // A model's other tensors are none of its business, but the codec must be where the configuration says.
    let folder = written(&cfg, Names::Package, Spelling::Old, "");
    folder.config(r#"{"audio_encoder":{"model_type":"dac"}}"#);
    says(&why(&folder), &["holds no DAC codec", "audio_encoder.encoder.conv1.weight"]);
    for (config, said) in [
        ("{", "config.json: EOF"),
        (r#"{"model_type":"dac","hop_length":-1}"#, "config.json: invalid value"),
        (r#"{"model_type":"dac","hop_length":320}"#, "config.json: hop_length: is 320, the tensors have 16"),
        (r#"{"model_type":"dac","sampling_rate":0}"#, "config.json: sampling_rate: must be"),
    ] {
        folder.config(config);
        says(&why(&folder), &[said]);
    }
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    says(&why(&folder), &["no model.safetensors, model.safetensors.index.json or pytorch_model.bin"]);
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    says(&why(&folder), &["config.json: is missing"]);
}

/// The plan of the published shape, for which no weights are needed.
#[test]
fn the_published_shape_takes_what_its_window_does() {
    let cfg = Config::dac_44khz();
    let mut session = ambitus_ir::Session::default();
    let target = ambitus_exec::cpu::CpuTarget::new(1);
    let p = ambitus_models::dac::model::encode(&mut session, &cfg, 144 * cfg.hop());
    let p = ambitus_compile::pipeline::plain(&mut session, p, &target);
    session.programs = vec![p];
    let bytes = ambitus_compile::plan::plan(session, &target, 1).arena_bytes();
    // Weights of the encoder and codebooks, 112 MB, and a few values of 74 thousand rows and 64 channels.
    assert!((112_000_000..250_000_000).contains(&bytes), "{bytes}");
}
