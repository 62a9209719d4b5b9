//! PyTorch checkpoints, read without PyTorch: fixtures by `parity/store/make_fixtures.py`, with what it found in them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ambitus_store::{DType, Format, Scalar, TensorFile};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn expected() -> BTreeMap<String, Value> {
    serde_json::from_slice(&std::fs::read(fixture("expected.json")).unwrap()).unwrap()
}

fn refused(name: &str) -> String {
    let message = TensorFile::open(fixture(name)).err().expect("must be refused").to_string();
    assert!(message.contains(name), "names the file: {message}");
    message
}

fn dtype(torch: &str) -> DType {
    match torch {
        "float64" => DType::F64,
        "float32" => DType::F32,
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        "int64" => DType::I64,
        "int32" => DType::I32,
        "int16" => DType::I16,
        "int8" => DType::I8,
        "uint8" => DType::U8,
        "bool" => DType::Bool,
        other => panic!("{other}"),
    }
}

#[test]
fn files_are_read_as_torch_reads_them() {
    for (name, content) in expected() {
        let file = TensorFile::open(fixture(&name)).unwrap();
        assert_eq!(file.format(), Format::TorchZip);
        let tensors = content["tensors"].as_object().unwrap();
        assert!(file.tensors().iter().map(|t| t.name()).eq(tensors.keys()), "{name}: {:?}", file.tensors());
        for (tensor, want) in tensors {
            let info = file.get(tensor).unwrap();
            assert_eq!(info.dtype(), dtype(want[0].as_str().unwrap()), "{name} {tensor}");
            assert_eq!(serde_json::json!(info.shape()), want[1], "{name} {tensor}");
            let want: Vec<f32> =
                want[2].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
            let mut raw = vec![0; info.bytes()];
            file.read_bytes(tensor, &mut raw, &mut [0; 8]).unwrap();
            // Staging of one element, of a few, and of all: the pieces must join.
            for staging in [8, 24, 4096] {
                let mut got = vec![f32::NAN; info.elements()];
                file.read_into(tensor, &mut got, &mut vec![0; staging]).unwrap();
                assert_eq!(got, want, "{name} {tensor}");
                if info.dtype() == DType::F32 {
                    assert_eq!(
                        raw,
                        got.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>(),
                        "{name} {tensor}"
                    );
                }
                if !info.dtype().is_float() {
                    let mut got = vec![i64::MIN; info.elements()];
                    file.read_i64(tensor, &mut got, &mut vec![0; staging]).unwrap();
                    assert!(got.iter().map(|&v| v as f32).eq(want.iter().copied()), "{name} {tensor}");
                }
            }
        }
        let scalars: BTreeMap<_, _> = file.scalars().iter().cloned().collect();
        for (key, want) in content["scalars"].as_object().unwrap() {
            let same = match scalars.get(key).unwrap_or_else(|| panic!("{name} {key}")) {
                Scalar::Bool(v) => want.as_bool() == Some(*v),
                Scalar::Int(v) => want.as_i64() == Some(*v),
                Scalar::Float(v) => want.as_f64() == Some(*v),
            };
            assert!(same, "{name} {key}: {:?}", scalars[key]);
        }
        assert_eq!(scalars.len(), content["scalars"].as_object().unwrap().len(), "{name}: {scalars:?}");
    }
}

#[test]
fn a_training_checkpoint_is_taken_by_section() {
    let file = TensorFile::open(fixture("training.pt")).unwrap();
    let keys = [
        "done",
        "ema_model_state_dict",
        "model_state_dict",
        "optimizer_state_dict",
        "scheduler_state_dict",
        "update",
    ];
    assert_eq!(file.top_level(), keys);
    assert_eq!(file.scalar("update"), Some(Scalar::Int(1_250_000)));
    let model: Vec<&str> =
        file.section("model_state_dict").unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(model, ["0.bias", "0.weight", "1.bias", "1.weight"]);
    assert_eq!(file.section("ema_model_state_dict").unwrap().len(), 6);
    assert!(file.section("none").unwrap().is_empty());
    assert!(file.get("optimizer_state_dict.state.0.exp_avg").is_ok());
}

/// Checkpoints of speech models as they are passed around, with objects of the package that wrote them: `parity/xtts_files`.
#[test]
fn tensors_beside_objects_of_any_class_are_read() {
    let read = |file: &TensorFile, name: &str| {
        let mut values = vec![0.0; file.get(name).unwrap().elements()];
        file.read_into(name, &mut values, &mut [0; 64]).unwrap();
        values
    };
    let released = TensorFile::open(fixture("released.pth")).unwrap();
    assert_eq!(released.top_level(), ["config", "model"]);
    let error = released.section("config").err().unwrap().to_string();
    assert!(error.contains("TTS.tts.configs.xtts_config.XttsConfig"), "{error}");
    let trainer = TensorFile::open(fixture("trainer.pth")).unwrap();
    for (file, prefix) in [(&released, "model."), (&trainer, "model.xtts.")] {
        let transposed = read(file, &format!("{prefix}gpt.gpt.h.0.attn.c_attn.weight"));
        assert_eq!(transposed, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
        assert_eq!(read(file, "model.mel_stats"), [0.5; 5]);
    }
    assert_eq!(released.section("model").unwrap().len(), 4);
    assert_eq!(trainer.section("model").unwrap().len(), 5);
    assert_eq!(trainer.scalar("step"), Some(Scalar::Int(12)));
    assert_eq!(trainer.scalar("config.max_audio_len"), Some(Scalar::Float(f64::INFINITY)));
    assert!(trainer.get("optimizer.0.state.0.exp_avg").is_ok());
    assert!(trainer.section("model_loss").err().unwrap().to_string().contains("collections.defaultdict"));
    let speakers = TensorFile::open(fixture("speakers.pth")).unwrap();
    assert_eq!(speakers.get("Claribel Dervla.gpt_cond_latent").unwrap().shape(), [1, 2, 3]);
}

#[test]
fn what_is_not_needed_is_inert_until_asked_for() {
    let file = TensorFile::open(fixture("config.pth")).unwrap();
    assert_eq!(file.section("model").unwrap().len(), 1);
    for error in [
        file.section("config").err(),
        file.section("").err(),
        file.get("config").err(),
        file.get("config.x").err(),
    ] {
        assert!(error.unwrap().to_string().contains("__main__.Config"));
    }
    let file = TensorFile::open(fixture("hostile_part.pt")).unwrap();
    assert!(file.section("model").is_ok());
    assert!(file.section("").unwrap_err().to_string().contains("posix.system"));
    assert!(!std::path::Path::new("executed").exists());
}

#[test]
fn what_cannot_be_read_is_named() {
    let file = TensorFile::open(fixture("views.pt")).unwrap();
    for (tensor, why) in [
        ("expanded", ".contiguous()"),
        ("complex", "torch.ComplexFloatStorage"),
        ("float8", "_rebuild_tensor_v3"),
        ("sparse", "torch._utils._rebuild_sparse_tensor"),
    ] {
        let message = file.get(&format!("unreadable.{tensor}")).unwrap_err().to_string();
        assert!(message.contains(why) && message.contains(tensor), "{message}");
    }
    for (name, why) in [
        ("hostile.pt", "posix.system"),
        ("module.pt", "torch.nn.modules.container.Sequential"),
        ("script.pt", "made by `__torch__.torch.nn.modules.linear.Linear`"),
        ("legacy.pt", "before version 1.6"),
        ("deflated.pt", "compressed"),
    ] {
        let message = refused(name);
        assert!(message.contains(why), "{message}");
    }
}
