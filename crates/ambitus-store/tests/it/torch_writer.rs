//! PyTorch checkpoints, written: read back here, and by PyTorch itself in `parity/xtts_files/make_fixtures.py --check`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ambitus_store::{
    DType, Disk, Fault, FaultDisk, Item, RealDisk, Result, Scalar, TensorFile, TensorSpec, TensorWriter,
};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn specs() -> Vec<TensorSpec> {
    vec![
        TensorSpec::new("b", DType::F32, &[2, 3]),
        TensorSpec::new("a", DType::I64, &[]),
        TensorSpec::new("half", DType::F16, &[2]),
        TensorSpec::new("brain", DType::Bf16, &[2]),
        TensorSpec::new("empty", DType::F32, &[0, 3]),
        TensorSpec::new("flag", DType::Bool, &[1]),
    ]
}

fn root() -> Vec<(String, Item)> {
    let dict =
        |items: Vec<(&str, Item)>| items.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Vec<_>>();
    let languages = ["en", "zh-cn"].map(|l| Item::Text(l.to_owned())).to_vec();
    let deep = dict(vec![("flag", Item::Bool(true)), ("rate", Item::Float(0.25))]);
    let config = dict(vec![
        ("languages", Item::List(languages)),
        ("big", Item::Int(1 << 40)),
        ("deep", Item::Dict(deep)),
    ]);
    dict(vec![
        ("config", Item::Dict(config)),
        ("model", Item::Tensors),
        ("step", Item::Int(12)),
        ("scaler", Item::None),
        ("model_loss", Item::Float(-0.5)),
    ])
}

fn write(disk: Arc<dyn Disk>, path: &Path) -> Result<()> {
    let mut file = TensorWriter::create_torch_on(disk, path, specs(), &root())?;
    file.write_f32("b", &[0.0, 1.0, 2.0])?;
    file.write_f32("b", &[3.0, 4.0, 5.0])?;
    file.write_i64("a", &[7])?;
    file.write_f32("half", &[1.5, -2.0])?;
    file.write_f32("brain", &[1.5, -2.0])?;
    file.write("flag", &[1])?;
    file.finish().map(drop)
}

/// Texts at the top are metadata, as audiocraft's `xp.cfg` is; those further in are the model's own.
#[test]
fn texts_at_the_top_are_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state_dict.bin");
    let text = |text: &str| Item::Text(text.to_owned());
    let inner = vec![("name".to_owned(), text("inner"))];
    let root = [
        ("best_state".to_owned(), Item::Tensors),
        ("xp.cfg".to_owned(), text("sample_rate: 32000\n")),
        ("config".to_owned(), Item::Dict(inner)),
    ];
    let specs = vec![TensorSpec::new("a", DType::F32, &[1])];
    let mut file = TensorWriter::create_torch_on(Arc::new(RealDisk), &path, specs, &root).unwrap();
    file.write_f32("a", &[2.0]).unwrap();
    file.finish().unwrap();
    let file = TensorFile::open(&path).unwrap();
    let metadata: Vec<_> = file.metadata().iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(metadata, [("xp.cfg", "sample_rate: 32000\n")]);
    assert_eq!(file.get("best_state.a").unwrap().shape(), [1]);
}

/// As where one matrix holds what a model has as three.
#[test]
fn a_file_has_the_names_of_its_tensors_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bin");
    let specs = ["a", "b", "c"].map(|name| TensorSpec::new(name, DType::F16, &[6, 2])).to_vec();
    let root = [("state".to_owned(), Item::Tensors)];
    let mut file = TensorWriter::create_torch_on(Arc::new(RealDisk), &path, specs, &root).unwrap();
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        let values: Vec<f32> = (0..12).map(|k| (12 * i + k) as f32).collect();
        file.write_f32(name, &values).unwrap();
    }
    file.finish().unwrap();
    let parts = |name: &str| -> Vec<String> {
        let all: &[&str] = match name {
            "state.a" => &["z"],
            "state.b" => &["q", "k", "v"],
            "state.c" => &["1", "2", "3", "4"],
            _ => &[],
        };
        all.iter().map(|name| (*name).to_owned()).collect()
    };
    let file = TensorFile::open(&path).unwrap().renamed(parts);
    let names: Vec<(&str, &[usize])> = file.tensors().iter().map(|t| (t.name(), t.shape())).collect();
    assert_eq!(
        names,
        [("k", &[2, 2][..]), ("q", &[2, 2]), ("state.c", &[6, 2]), ("v", &[2, 2]), ("z", &[6, 2])]
    );
    let mut values = [0.0; 4];
    for (name, first) in [("q", 12.0), ("k", 16.0), ("v", 20.0)] {
        file.read_into(name, &mut values, &mut [0; 64]).unwrap();
        assert_eq!(values, [first, first + 1.0, first + 2.0, first + 3.0], "{name}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.pth");
    write(Arc::new(RealDisk), &path).unwrap();
    let file = TensorFile::open(&path).unwrap();
    assert_eq!(file.top_level(), ["config", "model", "model_loss", "step"]);
    assert_eq!(file.scalar("config.big"), Some(Scalar::Int(1 << 40)));
    assert_eq!(file.scalar("config.deep.rate"), Some(Scalar::Float(0.25)));
    assert_eq!(file.section("model").unwrap().len(), 6);
    for spec in specs() {
        let found = file.get(&format!("model.{}", spec.name)).unwrap();
        assert_eq!((found.dtype(), found.shape()), (spec.dtype, &*spec.shape), "{}", spec.name);
    }
    let mut read = [0.0; 6];
    file.read_into("model.b", &mut read, &mut [0; 64]).unwrap();
    assert_eq!(read, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    file.read_into("model.brain", &mut read[..2], &mut [0; 64]).unwrap();
    assert_eq!(read[..2], [1.5, -2.0]);
    // PyTorch has loaded this file.
    let written = std::fs::read(&path).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(fixture("written.pth"), &written).unwrap();
    }
    assert!(
        written == std::fs::read(fixture("written.pth")).unwrap(),
        "the format has changed: check it with PyTorch"
    );
}

#[test]
fn whatever_fails_the_old_file_or_the_new_is_there() {
    for fault in [Fault::Kill, Fault::Eio, Fault::Enospc, Fault::ShortWrite, Fault::Interrupted] {
        for n in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("model.pth");
            std::fs::write(&path, b"old").unwrap();
            let disk = FaultDisk::new(fault, n, false);
            let result = write(Arc::new(disk.clone()), &path);
            let old = std::fs::read(&path).unwrap() == b"old";
            assert!(old || TensorFile::open(&path).is_ok(), "{fault:?} at {n}");
            assert!(!old || result.is_err(), "{fault:?} at {n}");
            write(Arc::new(RealDisk), &path).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
            if n > disk.ops() {
                break;
            }
        }
    }
}

#[test]
fn misuse_is_named_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.pth");
    let twice = vec![TensorSpec::new("x", DType::F32, &[1]), TensorSpec::new("x", DType::F32, &[1])];
    let huge = vec![TensorSpec::new("x", DType::F32, &[0, usize::MAX, 2])];
    let mut deep = Item::Int(1);
    for _ in 0..20 {
        deep = Item::List(vec![deep]);
    }
    let all = [("model".to_owned(), Item::Tensors)];
    for (specs, root, says) in [
        (twice, &all, "declared twice"),
        (huge, &all, "too large"),
        (specs(), &[("deep".to_owned(), deep)], "nested deeper"),
    ] {
        let why = TensorWriter::create_torch(&path, specs, root).err().unwrap().to_string();
        assert!(why.contains(says) && why.contains("model.pth"), "{why}");
    }
    let mut file = TensorWriter::create_torch(&path, specs(), &all).unwrap();
    let why = file.write_i64("a", &[7]).unwrap_err().to_string();
    assert!(why.contains("`b` comes next"), "{why}");
    file.write_f32("b", &[0.0; 6]).unwrap();
    let why = file.finish().err().unwrap().to_string();
    assert!(why.contains("not written in full"), "{why}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
