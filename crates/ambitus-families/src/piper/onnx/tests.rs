//! The file is read back. `parity/piper/voice.py` runs it in onnxruntime, beside the trainer's modules.

mod reader;

use super::*;
use crate::family::OpenOptions;
use crate::hugging_face::CONFIG;
use crate::piper::{folder, hyper};
use crate::weights::Weights;
use ambitus_ir::Session;
use ambitus_models::piper::config::{Durations, Quality};
use ambitus_models::{Capacity, Model as _};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of voices to write ONNX files into, for `parity/piper/voice.py`.
const VOICES: &str = "AMBITUS_VOICES";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/piper/fixtures").join(name)
}

fn opened(dir: &Path) -> (Config, Weights) {
    let weights = folder::open(dir, OpenOptions::default()).unwrap().weights.unwrap();
    (hyper::config(&weights, None).unwrap(), weights)
}

fn tensor(weights: &Weights, name: &str) -> Vec<f32> {
    let (file, key) = weights.find(name).unwrap_or_else(|| panic!("no {name}"));
    let mut all = vec![0.0; weights.shape_of(name).unwrap().iter().product()];
    file.read_into(&key, &mut all, &mut vec![0; 1 << 16]).unwrap();
    all
}

/// Returns the file of a voice, and which tensors were asked for.
fn written(config: &Config, weights: &Weights) -> (Vec<u8>, BTreeSet<String>) {
    let (mut bytes, mut asked) = (Vec::new(), BTreeSet::new());
    let mut get = |name: &str| {
        assert!(asked.insert(name.to_owned()), "{name} was asked for twice");
        Ok(tensor(weights, name))
    };
    write(config, &mut get, &[("model_type", "vits"), ("n_speakers", "1")], &mut bytes).unwrap();
    (bytes, asked)
}

/// Returns whether only training has the tensor: the encoder of spectrograms, the posterior of durations, and the spline that the
/// project leaves out when it speaks.
fn is_of_training(name: &str) -> bool {
    ["model_g.enc_q.", "model_g.dp.post_", "model_g.dp.flows.1.", "model_d."]
        .iter()
        .any(|p| name.starts_with(p))
}

/// Asserts that nodes read what is there before them, names are given once, and nothing is there for nothing.
fn is_whole(model: &reader::Model) {
    let mut there: BTreeSet<&str> = BTreeSet::new();
    let begin = model.inputs.iter().map(|end| &*end.0).chain(model.tensors.iter().map(|t| &*t.name));
    for name in begin {
        assert!(!name.is_empty() && there.insert(name), "{name} is there twice");
    }
    let (mut names, mut used) = (BTreeSet::new(), BTreeSet::new());
    for node in &model.nodes {
        assert!(names.insert(&*node.name), "two nodes are {}", node.name);
        for input in &node.inputs {
            assert!(there.contains(&**input), "{} reads {input}, which is not there yet", node.name);
            used.insert(&**input);
        }
        for output in &node.outputs {
            assert!(there.insert(output), "{output} is given twice");
        }
    }
    for end in &model.outputs {
        assert!(there.contains(&*end.0));
        used.insert(&end.0);
    }
    for tensor in &model.tensors {
        assert!(used.contains(&*tensor.name), "{} is not used", tensor.name);
        let each = if tensor.kind == 1 { 4 } else { 8 };
        assert_eq!(tensor.raw.len(), each * tensor.dims.iter().product::<usize>(), "{}", tensor.name);
    }
    for node in &model.nodes {
        assert!(node.outputs.iter().any(|o| used.contains(&**o)), "{} is not used", node.name);
    }
}

fn count(model: &reader::Model, op: &str) -> usize {
    model.nodes.iter().filter(|node| node.op == op).count()
}

#[test]
fn a_file_is_read_back_as_the_graph_and_the_checkpoint() {
    for name in ["base", "speakers", "plain"] {
        let (config, weights) = opened(&fixture(name));
        let (bytes, asked) = written(&config, &weights);
        assert_eq!(written(&config, &weights).0, bytes, "other bytes the second time");
        let wanted: BTreeSet<String> = weights
            .names()
            .filter(|n| n.starts_with(PREFIX) && !is_of_training(n))
            .map(str::to_owned)
            .collect();
        assert_eq!(asked, wanted, "{name}");

        let model = reader::model(&bytes);
        is_whole(&model);
        assert_eq!((model.ir, model.opset, &*model.producer), (8, 15, "ambitus"));
        assert_eq!(model.metadata[0], ("model_type".to_owned(), "vits".to_owned()));
        let end = |name: &str, kind, axes: &[&str]| {
            reader::End(name.to_owned(), kind, axes.iter().map(|s| (*s).to_owned()).collect())
        };
        let mut inputs = vec![
            end("input", 7, &["batch_size", "phonemes"]),
            end("input_lengths", 7, &["batch_size"]),
            end("scales", 1, &["3"]),
        ];
        inputs.extend((config.speakers > 1).then(|| end("sid", 7, &["1"])));
        assert_eq!(model.inputs, inputs);
        assert_eq!(model.outputs, [end("output", 1, &["batch_size", "1", "1", "time"])]);
        // Tools find what durations become by it.
        assert_eq!(count(&model, "Ceil"), 1);
        let flow = matches!(config.durations, Durations::Stochastic { .. });
        assert_eq!(count(&model, "RandomNormalLike"), 1 + usize::from(flow));
        let node = model.nodes.iter().find(|n| n.name == "/flow/flows.2/enc/in_layers.0/Conv").unwrap();
        assert_eq!(node.inputs[1], "flow.flows.2.enc.in_layers.0.weight");
        assert!(node.attrs.contains(&("pads".to_owned(), vec![2.0, 2.0])));
        values_are_the_checkpoints(&model, &weights);
    }
}

/// What the graphs of the fixtures were when `voice.py` last held them to the trainer's modules. Where one changes on purpose, run it and write
/// down the new one.
#[test]
fn graphs_are_those_that_agreed_with_the_trainers_modules() {
    let found = ["base", "speakers", "plain"].map(|name| {
        let graph = graph(&opened(&fixture(name)).0);
        let mut all = graph.nodes().to_vec();
        all.extend(format!("{:?}", graph.initializers()).bytes());
        blake3::hash(&all).to_hex()[..16].to_owned()
    });
    assert_eq!(found, ["62f0f217afd08516", "2c5c3191b3b476b1", "6851f6edb7bcc6bb"]);
}

fn values_are_the_checkpoints(model: &reader::Model, weights: &Weights) {
    for found in model.tensors.iter().filter(|t| !t.name.starts_with("constant.")) {
        let name = format!("{PREFIX}{}", found.name);
        if let Some(shape) = weights.shape_of(&name) {
            assert_eq!(found.dims, shape, "{name}");
            assert_eq!(found.floats(), tensor(weights, &name), "{name}");
            continue;
        }
        let layer = name.strip_suffix(".weight").unwrap();
        let [lengths, directions] = ["g", "v"].map(|of| tensor(weights, &format!("{layer}.weight_{of}")));
        assert_eq!(weights.shape_of(&format!("{layer}.weight_v")).unwrap(), found.dims);
        let row = found.dims[1] * found.dims[2];
        for (i, x) in found.floats().iter().enumerate() {
            let from = i / row * row;
            let size = directions[from..from + row].iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let want = f64::from(lengths[i / row]) * f64::from(directions[i]) / size;
            assert!((f64::from(*x) - want).abs() <= 1e-7 * want.abs(), "{name} {i}: {x}, not {want}");
        }
    }
}

/// The shapes of all published voices, and what is drawn of the options.
#[test]
fn tensors_are_those_of_the_generator_that_trains_without_what_only_training_has() {
    let plain = Durations::Plain { width: 256, taps: 3 };
    for config in [
        Config::of(Quality::XLow),
        Config::medium(),
        Config::of(Quality::High),
        Config { speakers: 904, speaker: 512, ..Config::medium() },
        Config { speakers: 3, speaker: 5, durations: plain, near: 0, kernel: 4, ..Config::medium() },
    ] {
        let mut session = Session::default();
        config.loss(&mut session, 0, Capacity { rows: 64, clips: 2 }, "micro", true);
        let trained: BTreeMap<String, Vec<usize>> = session
            .states
            .iter()
            .filter(|s| s.name.starts_with(PREFIX) && !is_of_training(&s.name))
            .map(|s| (s.name.clone(), s.ty.shape.to_vec()))
            .collect();
        let mut asked = BTreeMap::new();
        for of in graph(&config).initializers() {
            let name = format!("{PREFIX}{}", of.name);
            match &of.source {
                Source::Tensor => drop(asked.insert(name, of.dims.clone())),
                Source::Normed(layer) => {
                    assert_eq!(name, format!("{PREFIX}{layer}.weight"));
                    asked.insert(format!("{name}_v"), of.dims.clone());
                    asked.insert(format!("{name}_g"), vec![of.dims[0], 1, 1]);
                }
                Source::Floats(_) | Source::Ints(_) => {}
            }
        }
        assert_eq!(asked, trained);
    }
}

#[test]
fn a_checkpoint_that_makes_no_voice_is_refused_by_name() {
    let (config, weights) = opened(&fixture("base"));
    let fails = |of: &str, change: fn(&mut Vec<f32>)| {
        let mut get = |name: &str| {
            let mut all = tensor(&weights, name);
            if name == of {
                change(&mut all);
            }
            Ok(all)
        };
        write(&config, &mut get, &[], &mut Vec::new()).unwrap_err().to_string()
    };
    let why = fails("model_g.enc_p.emb.weight", |all| all.truncate(7));
    assert!(why.contains("model_g.enc_p.emb.weight has 7 values; the voice's shape wants"), "{why}");
    let why = fails("model_g.dec.conv_pre.bias", |all| all[3] = f32::NAN);
    assert!(why.contains("model_g.dec.conv_pre.bias: value 3 is NaN"), "{why}");
    let why = fails("model_g.dec.ups.0.weight_v", |all| all.fill(0.0));
    assert!(why.contains("model_g.dec.ups.0.weight_v: row 0 is zero"), "{why}");
    let mut get = |name: &str| Err(RunError::Model(format!("no {name}")));
    let why = write(&config, &mut get, &[], &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(why, "no model_g.enc_p.emb.weight");

    /// A disk with room for some bytes.
    struct Disk(usize);
    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut get = |name: &str| Ok(tensor(&weights, name));
    let full = write(&config, &mut get, &[], &mut Disk(100_000)).unwrap_err();
    assert!(matches!(full, RunError::Full(_)), "{full}");
    let broken = Config { heads: 5, ..config.clone() };
    assert!(matches!(write(&broken, &mut get, &[], &mut Vec::new()), Err(RunError::Model(_))));
    let huge = Config { symbols: 1 << 16, filter: 1 << 16, hidden: 3 << 9, ..Config::medium() };
    let why = write(&huge, &mut get, &[], &mut Vec::new()).unwrap_err().to_string();
    assert!(why.contains("2 GiB"), "{why}");
}

#[test]
fn the_json_keeps_what_is_said_and_adds_what_the_model_is() {
    let config = Config { speakers: 2, speaker: 4, symbols: 130, ..Config::medium() };
    let said = json!({
        "audio": {"sample_rate": 16000, "quality": "medium"},
        "espeak": {"voice": "de"},
        "hop_length": 128,
        "inference": {"noise_scale": 0.3},
        "phoneme_id_map": {"_": [0]},
        "speaker_id_map": {"a": 0, "b": 1},
        "piper_version": "1.5.0",
        "dataset": "x",
    });
    let mut wanted = said.clone();
    wanted["audio"]["sample_rate"] = json!(22_050);
    wanted["hop_length"] = json!(256);
    wanted["inference"] = json!({"noise_scale": 0.3, "length_scale": 1.0, "noise_w": 0.8});
    wanted["num_symbols"] = json!(130);
    wanted["num_speakers"] = json!(2);
    assert_eq!(voice_json(&said, &config), wanted);
    assert_eq!(voice_json(&wanted, &config), wanted);
    let bare = voice_json(&json!({"espeak": {"voice": "de"}, "audio": 3}), &Config::medium());
    assert_eq!(bare["audio"], json!({"sample_rate": 22_050}));
    assert_eq!(bare["inference"], json!({"noise_scale": 0.667, "length_scale": 1.0, "noise_w": 0.8}));
    assert_eq!((&bare["speaker_id_map"], &bare["piper_version"]), (&json!({}), &json!("1.0.0")));
}

/// Writes `voice.onnx` and `voice.onnx.json` into each folder of a voice under the one that `AMBITUS_VOICES` names; without, those of the
/// fixtures into one that is not kept.
#[test]
fn voices_are_written_for_the_reference() {
    let kept = tempfile::tempdir().unwrap();
    let voices: Vec<(PathBuf, PathBuf)> = match std::env::var_os(VOICES) {
        Some(under) => {
            let all = fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path());
            all.filter(|dir| dir.join(folder::MODEL_FILE).is_file()).map(|dir| (dir.clone(), dir)).collect()
        }
        None => ["base", "speakers", "plain"].map(|name| (fixture(name), kept.path().join(name))).to_vec(),
    };
    assert!(!voices.is_empty());
    for (from, to) in voices {
        fs::create_dir_all(&to).unwrap();
        let (config, weights) = opened(&from);
        fs::write(to.join("voice.onnx"), written(&config, &weights).0).unwrap();
        let said: Value = serde_json::from_str(&fs::read_to_string(from.join(CONFIG)).unwrap()).unwrap();
        let json = serde_json::to_string_pretty(&voice_json(&said, &config)).unwrap();
        fs::write(to.join("voice.onnx.json"), json).unwrap();
    }
}
