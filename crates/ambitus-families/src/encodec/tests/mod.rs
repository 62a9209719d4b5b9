//! On small codecs of random weights, against the formulas written out ([`plain`]). What the packages make of theirs is compared in
//! `crates/ambitus/tests/it/encodec.rs`; here, that windows, pieces, names and spellings change nothing, and what is refused.

mod made;
mod plain;

use super::{Codec, Encodec};
use crate::codec::made::Spelling;
use crate::codec::{Codec as _, Codes, Kind as _};
use ambitus_models::encodec::config::Config;
use ambitus_store::{DType, Item, RealDisk, TensorSpec, TensorWriter};
use made::{checkpoint, config, forms, small, written};
use std::path::Path;
use std::sync::Arc;

/// A sound that does not repeat.
fn sound(samples: usize) -> Vec<f32> {
    let at = |t: usize| t as f32 / 16_000.0;
    let sweep = |t: usize| (9000.0 * at(t) * at(t)).sin();
    (0..samples).map(|t| 0.4 * sweep(t) + 0.2 * (1240.0 * at(t % 901)).cos()).collect()
}

fn open(dir: &Path, frames: usize) -> Codec {
    Codec::open_with(dir, 1, frames).unwrap()
}

#[test]
fn codes_and_samples_are_the_formulas() {
    for cfg in forms() {
        let folder = written(&cfg, Spelling::Old, false);
        let plain = plain::Codec::new(&cfg);
        let (mut codec, hop) = (open(folder.path(), 1), cfg.hop());
        // Too short to be reflected, ends within rows of every rate, and ends behind each window's.
        let windows = [codec.frames(), codec.frames() + 1, 2 * codec.frames() + cfg.encoder_context()];
        let lengths = [1, 2, hop - 1, hop, hop + 1, 3 * hop, 5 * hop + 7];
        for samples in lengths.into_iter().chain(windows.into_iter().flat_map(|n| [n * hop, n * hop + 1])) {
            let x = sound(samples);
            let codes = codec.encode(&x).unwrap();
            assert_eq!(codes.layers, plain.encode(&x), "{samples} samples: {cfg:?}");
            assert_eq!(codes.layers[0].len(), samples.div_ceil(hop));
            let (y, z) = (codec.decode(&codes).unwrap(), plain.decode(&codes.layers));
            assert_eq!((y.len(), z.len()), (codes.layers[0].len() * hop, y.len()), "{samples} samples");
            let off = y.iter().zip(&z).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(off < 1e-5, "{samples} samples: {off:e}: {cfg:?}");
        }
        assert_eq!(codec.encode(&[]).unwrap().layers, vec![Vec::<u32>::new(); cfg.codebooks]);
    }
}

/// Windows that continue each other give the bits of one for all.
#[test]
fn windows_give_what_the_whole_gives() {
    for cfg in forms() {
        let folder = written(&cfg, Spelling::New, false);
        let hop = cfg.hop();
        // The narrowest windows, and one for all.
        let mut windows = Codec::open_with(folder.path(), 2, 1).unwrap();
        let n = windows.frames();
        let mut whole = open(folder.path(), 9 * n);
        assert!(windows.bytes() < whole.bytes());
        for samples in [8 * n * hop, 7 * n * hop + hop / 2 + 1, 77 * hop + 1] {
            let x = sound(samples);
            let codes = whole.encode(&x).unwrap();
            assert_eq!(windows.encode(&x).unwrap(), codes, "{samples} samples: {cfg:?}");
            let (y, z) = (windows.decode(&codes).unwrap(), whole.decode(&codes).unwrap());
            assert!(y == z, "{samples} samples: {cfg:?}");

            // In pieces of all sizes.
            let mut encoding = windows.encoding().unwrap();
            let (mut at, mut n) = (0, 1);
            while at < x.len() {
                let end = x.len().min(at + n);
                encoding.push(&x[at..end]).unwrap();
                (at, n) = (end, n * 3 % 2011);
            }
            assert_eq!(encoding.finish().unwrap(), codes, "{samples} samples in pieces: {cfg:?}");
        }
    }
}

/// What the memory has heard is in samples long after, and in none before what convolutions see.
#[test]
fn the_memory_is_of_all_that_was_heard() {
    let folder = written(&small(), Spelling::Old, false);
    let (mut codec, hop) = (open(folder.path(), 1), small().hop());
    let codes = codec.encode(&sound(4000)).unwrap();
    let samples = codec.decode(&codes).unwrap();
    let mut other = codes.clone();
    other.layers[0][100] = (other.layers[0][100] + 7) % 16;
    let changed = codec.decode(&other).unwrap();
    let differs: Vec<usize> = (0..samples.len()).filter(|t| samples[*t] != changed[*t]).collect();
    let (first, last) = (differs[0] / hop, differs[differs.len() - 1] / hop);
    // Three frames before by the first convolution, and two by the others.
    assert!((95..=100).contains(&first) && last > 110, "{first}, {last}");
    // Another sound begins anew.
    assert_eq!(codec.decode(&codes).unwrap(), samples);
}

/// Alone and in a model, one file or shards, folded or not: the same tensors.
#[test]
fn names_and_spellings_change_nothing() {
    let (cfg, x) = (small(), sound(1000));
    let mut first: Option<(Codes, Vec<f32>)> = None;
    let mut same = |codec: &mut Codec, what: &str| {
        let codes = codec.encode(&x).unwrap();
        let y = codec.decode(&codes).unwrap();
        let (want, z) = first.get_or_insert((codes.clone(), y.clone()));
        assert!(*want == codes && *z == y, "{what}");
    };
    for spelling in [Spelling::Folded, Spelling::Old, Spelling::New] {
        for within in [false, true] {
            let folder = written(&cfg, spelling, within);
            let mut codec = open(folder.path(), 0);
            assert_eq!(codec.folder.config, cfg);
            same(&mut codec, &format!("{spelling:?} {within}"));
        }
        let dir = tempfile::tempdir().unwrap();
        checkpoint(dir.path(), &cfg, &yaml(&cfg), spelling);
        assert!(Encodec.recognises(dir.path()));
        let mut codec = open(dir.path(), 0);
        assert_eq!(codec.folder.config, cfg);
        same(&mut codec, &format!("{spelling:?} of audiocraft"));
    }
    let folder = written(&cfg, Spelling::Old, true);
    let before = open(folder.path(), 0).fingerprint().unwrap();
    folder.shard();
    let mut codec = open(folder.path(), 0);
    same(&mut codec, "shards");
    // Where a tensor is does not matter, nor what else the files hold.
    assert_eq!(codec.fingerprint().unwrap(), before);
}

/// Returns the published configuration of audiocraft with the sizes of a codec.
fn yaml(cfg: &Config) -> String {
    assert_eq!(cfg, &small());
    let published = include_str!("../package.yaml");
    let sizes = [
        ("sample_rate: 32000", "sample_rate: 16000"),
        ("n_filters: 64", "n_filters: 2"),
        ("ratios:\n  - 8\n  - 5\n  - 4\n  - 4", "ratios: [5, 4]"),
        ("dimension: 128", "dimension: 5"),
        ("bins: 2048", "bins: 16"),
        ("n_q: 4", "n_q: 3"),
        ("pad_mode: constant", "pad_mode: reflect"),
    ];
    sizes.iter().fold(published.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

#[test]
fn the_arena_is_the_plans() {
    let folder = written(&small(), Spelling::Folded, false);
    let mut codec = open(folder.path(), 0);
    assert_eq!(codec.frames(), 512);
    let codes = codec.encode(&[0.25; 100]).unwrap();
    assert_eq!(codec.open_bytes(), Some(codec.encode_bytes()));
    assert_eq!(codec.decode(&codes).unwrap().len(), 5 * 20);
    assert!(codec.open_bytes().unwrap() <= codec.bytes());
    let no_number = codec.encode(&[f32::NAN; 30]).unwrap_err();
    assert_eq!(no_number.exit_code(), 4, "{no_number}");
    let noise = codec.decoding(&codes, Some(3)).err().unwrap();
    assert_eq!(noise.exit_code(), 2, "{noise}");
}

/// Of the codebooks that there are, as many as the first bandwidth takes.
#[test]
fn a_smaller_bandwidth_has_the_first_codes() {
    let (cfg, x) = (small(), sound(700));
    let folder = written(&cfg, Spelling::Old, false);
    let all = open(folder.path(), 0).encode(&x).unwrap().layers;
    let mut said = config(&cfg);
    let kbps = said["target_bandwidths"][0].as_f64().unwrap();
    said["target_bandwidths"] = serde_json::json!([0.7 * kbps, kbps]);
    folder.config(&said.to_string());
    let mut codec = open(folder.path(), 0);
    let two = codec.encode(&x).unwrap();
    assert_eq!(two.layers, all[..2]);
    assert_eq!(codec.decode(&two).unwrap().len(), 700);
}

#[test]
fn folders_are_recognised_by_their_type() {
    let dir = tempfile::tempdir().unwrap();
    let recognised = |text: &str| {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        Encodec.recognises(dir.path())
    };
    assert!(!Encodec.recognises(dir.path()));
    assert!(recognised(r#"{"model_type":"encodec"}"#));
    assert!(recognised(r#"{"model_type":"musicgen","audio_encoder":{"model_type":"encodec"}}"#));
    for other in [
        r#"{"model_type":"parler_tts","audio_encoder":{"model_type":"dac"}}"#,
        r#"{"model_type":"musicgen"}"#,
        r#"{"audio_encoder":3,"model_type":"encodec"}"#,
        "[]",
        "{",
    ] {
        assert!(!recognised(other), "{other}");
    }
}

/// Returns what is said of a folder that is opened and used.
fn why(dir: &Path) -> String {
    let e = Codec::open(dir, 1).and_then(|mut codec| codec.encode(&[0.0; 100])).unwrap_err();
    assert_eq!(e.exit_code(), 4, "{e}");
    e.to_string()
}

fn says(said: &str, parts: &[&str]) {
    parts.iter().for_each(|p| assert!(said.contains(p), "{p}: {said}"));
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let cfg = small();
    let folder = written(&cfg, Spelling::Old, false);
    folder.change(|name, shape, data| {
        if name == "encoder.layers.7.lstm.bias_hh_l1" {
            data.pop();
            shape[0] -= 1;
        }
        name != "decoder.layers.9.conv.bias" && name != "encoder.layers.0.conv.weight_g"
    });
    folder.add("extra.weight");
    says(
        &why(folder.path()),
        &[
            "model.safetensors: does not fit config.json",
            "2 tensors missing: encoder.layers.0.conv.weight_g, decoder.layers.9.conv.bias",
            "1 tensors that config.json does not have: extra.weight",
            "encoder.layers.7.lstm.bias_hh_l1 is [31], config.json says [32]",
        ],
    );
    let folder = written(&cfg, Spelling::Old, false);
    folder.change(|name, _, data| {
        if name == "encoder.layers.7.lstm.weight_ih_l0" {
            data[0] = f32::INFINITY;
        }
        true
    });
    says(&why(folder.path()), &["tensor encoder.layers.7.lstm.weight_ih_l0 holds"]);
    let with = |key: &str, value: serde_json::Value| {
        let mut said = config(&cfg);
        said[key] = value;
        folder.config(&said.to_string());
        why(folder.path())
    };
    says(
        &with("num_filters", 3.into()),
        &["encoder.layers.0.conv.weight_v is [2, 1, 7], config.json says [3, 1, 7]"],
    );
    says(&with("num_filters", (-1).into()), &["config.json: invalid value: integer `-1`"]);
    says(&with("norm_type", "time_group_norm".into()), &["config.json: norm_type: `time_group_norm`"]);
    says(&with("sampling_rate", 0.into()), &["config.json: sampling_rate: must be above 0"]);
    let within = serde_json::json!({ "audio_encoder": { "model_type": "encodec", "pad_mode": "circular" } });
    folder.config(&within.to_string());
    says(&why(folder.path()), &["config.json: audio_encoder.pad_mode: `circular` is not computed"]);
    folder.config("{");
    says(&why(folder.path()), &["config.json: names no codec of the type `encodec`"]);
    folder.config(&config(&cfg).to_string());
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    says(&why(folder.path()), &["no model.safetensors, model.safetensors.index.json or pytorch_model.bin"]);
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    says(&why(folder.path()), &["config.json: is missing"]);
}

#[test]
fn checkpoints_that_hold_no_codec_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |root: &[(&str, Item)]| {
        let root: Vec<_> = root.iter().map(|(key, item)| ((*key).to_owned(), item.clone())).collect();
        let specs = vec![TensorSpec::new("a", DType::F32, &[1])];
        let path = dir.path().join(super::folder::CHECKPOINT);
        let mut file = TensorWriter::create_torch_on(Arc::new(RealDisk), &path, specs, &root).unwrap();
        file.write_f32("a", &[1.0]).unwrap();
        file.finish().unwrap();
        why(dir.path())
    };
    let text = |text: &str| Item::Text(text.to_owned());
    let pretrained = write(&[("pretrained", text("facebook/encodec_32khz")), ("other", Item::Tensors)]);
    says(
        &pretrained,
        &["holds no codec, only the name of one, `facebook/encodec_32khz`; give the folder of that codec"],
    );
    says(&write(&[("best_state", Item::Tensors)]), &["compression_state_dict.bin: has no `xp.cfg`"]);
    let yaml = yaml(&small());
    let other = write(&[("best_state", Item::Tensors), ("xp.cfg", text(&yaml))]);
    says(&other, &["does not fit its xp.cfg", "best_state.encoder.model.0.conv.conv.weight"]);
    let refused = yaml.replace("norm: weight_norm", "norm: layer_norm");
    let refused = write(&[("best_state", Item::Tensors), ("xp.cfg", text(&refused))]);
    says(&refused, &["xp.cfg: seanet.norm: `layer_norm` is not supported"]);
}

/// The plan of the published shape, for which no weights are needed.
#[test]
fn the_published_shape_takes_what_its_window_does() {
    let (cfg, frames) = (Config::encodec_32khz(), 113);
    let programs = crate::codec::programs::Programs::plan(
        1,
        |s| ambitus_models::encodec::model::encode(s, &cfg, frames),
        |s| ambitus_models::encodec::model::decode(s, &cfg, frames),
    );
    // Weights of one side and codebooks, 118 MB, and a few values of 75 thousand rows and 64 channels.
    for way in [crate::codec::programs::Way::Encode, crate::codec::programs::Way::Decode] {
        let bytes = programs.bytes(way);
        assert!((118_000_000..260_000_000).contains(&bytes), "{way:?}: {bytes}");
    }
}

/// Audiocraft's checkpoint as a part of a model of transformers is that model's own: the same configuration, and the same tensors with the
/// same values.
#[test]
fn a_checkpoint_of_audiocrafts_is_a_part_of_a_model() {
    let cfg = small();
    let (dir, within) = (tempfile::tempdir().unwrap(), written(&cfg, Spelling::Old, true));
    checkpoint(dir.path(), &cfg, &yaml(&cfg), Spelling::Old);
    let [(theirs, of_audiocraft), (_, own)] =
        [dir.path(), within.path()].map(|dir| super::as_part(dir, "audio_encoder.").unwrap());
    let file: ambitus_models::encodec::config::File = serde_json::from_value(theirs).unwrap();
    assert_eq!(file.config().unwrap(), cfg);
    let tensors = |files: &[ambitus_store::TensorFile]| {
        let mut all = std::collections::BTreeMap::new();
        for (file, tensor) in files.iter().flat_map(|file| file.tensors().iter().map(move |t| (file, t))) {
            let mut values = vec![0.0; tensor.shape().iter().product()];
            file.read_into(tensor.name(), &mut values, &mut vec![0; 1 << 12]).unwrap();
            all.insert(tensor.name().to_owned(), (tensor.shape().to_vec(), values));
        }
        all.retain(|name, _| name.starts_with("audio_encoder."));
        all
    };
    let (found, want) = (tensors(&of_audiocraft), tensors(&own));
    assert_eq!(found.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    assert_eq!(found, want);
}
