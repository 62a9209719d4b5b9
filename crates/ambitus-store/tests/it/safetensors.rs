//! Safetensors files: ours read by the reference crate and the other way, and what is refused.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use ambitus_store::{DType, Format, SafetensorsWriter, TensorFile, TensorSpec};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A safetensors file with this header text and `data` bytes of zeros.
fn file(dir: &tempfile::TempDir, header: &str, data: usize) -> PathBuf {
    let path = dir.path().join("t.safetensors");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn refused(header: &str, data: usize) -> String {
    let dir = dir();
    let message = TensorFile::open(file(&dir, header, data)).err().expect("must be refused").to_string();
    assert!(message.contains("t.safetensors"), "names the file: {message}");
    message
}

#[test]
fn headers_of_every_length_are_read() {
    // The length comes first in the file: some begin like a pickle (80 01 is 384).
    let dir = dir();
    for length in (64..2048).step_by(8) {
        let header = format!("{:<length$}", r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#);
        let path = file(&dir, &header, 1);
        let read = TensorFile::open(path).unwrap_or_else(|e| panic!("{length}: {e}"));
        assert!(read.contains("a"), "{length}");
    }
}

#[test]
fn our_bytes_are_the_reference_crates_bytes() {
    let dir = dir();
    let path = dir.path().join("ours.safetensors");
    let specs = vec![
        TensorSpec::new("flag", DType::Bool, &[]),
        TensorSpec::new("b.weight", DType::F32, &[2, 3]),
        TensorSpec::new("a.weight", DType::F32, &[4]),
        TensorSpec::new("half", DType::F16, &[3]),
        TensorSpec::new("brain", DType::Bf16, &[3]),
        TensorSpec::new("step", DType::I64, &[]),
        TensorSpec::new("empty", DType::F32, &[0, 5]),
        TensorSpec::new("quote\"d ü", DType::U8, &[1]),
    ];
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let values = [1.0f32, -2.5, 3.25, 0.1, f32::MIN_POSITIVE, 1e9];
    let mut w = SafetensorsWriter::create(&path, specs.clone(), &metadata).unwrap();
    for spec in w.specs().to_vec() {
        let n: usize = spec.shape.iter().product();
        match spec.dtype {
            DType::I64 => w.write_i64(&spec.name, &[-7]).unwrap(),
            DType::Bool | DType::U8 => w.write(&spec.name, &[1]).unwrap(),
            _ => {
                // In two pieces, as from a ring of staging buffers.
                let (a, b) = values[..n].split_at(n / 2);
                w.write_f32(&spec.name, a).unwrap();
                w.write_f32(&spec.name, b).unwrap();
            }
        }
    }
    assert!(!path.exists(), "the file has its name only when it is finished");
    let written = w.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(written.bytes, bytes.len() as u64);
    assert_eq!(written.blake3, blake3::hash(&bytes).to_hex().to_string());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");

    let parsed = SafeTensors::deserialize(&bytes).unwrap();
    let tensors: Vec<(String, TensorView)> = parsed.tensors();
    assert_eq!(tensors.len(), specs.len());
    let reference = serialize(tensors, Some(HashMap::from([("format".into(), "pt".into())]))).unwrap();
    assert_eq!(reference, bytes);

    let file = TensorFile::open(&path).unwrap();
    assert_eq!(file.format(), Format::Safetensors);
    assert_eq!(file.metadata(), &metadata);
    let mut scratch = [0u8; 8]; // the smallest: several reads per tensor
    let read = |name: &str, scratch: &mut [u8]| {
        let mut out = vec![0.0; file.get(name).unwrap().elements()];
        file.read_into(name, &mut out, scratch).unwrap();
        out
    };
    assert_eq!(read("b.weight", &mut scratch), values);
    assert_eq!(read("brain", &mut scratch), [1.0, -2.5, 3.25]);
    assert_eq!(read("half", &mut scratch), [1.0, -2.5, 3.25]);
    assert_eq!(read("flag", &mut scratch), [1.0]);
    assert!(read("empty", &mut scratch).is_empty());
    let mut step = [0];
    file.read_i64("step", &mut step, &mut scratch).unwrap();
    assert_eq!(step, [-7]);
    let mut flag = [0];
    file.read_u8("flag", &mut flag, &mut scratch).unwrap();
    assert_eq!(flag, [1]);
    let mut raw = [0; 16];
    file.read_bytes("a.weight", &mut raw, &mut scratch).unwrap();
    assert_eq!(raw[..4], 1.0f32.to_le_bytes());
}

#[test]
fn every_type_is_read_as_the_reference_wrote_it() {
    let dir = dir();
    let path = dir.path().join("t.safetensors");
    let ints = [-3i8 as u8, 5, 0, 127];
    let data: Vec<(&str, Dtype, Vec<u8>)> = vec![
        ("f64", Dtype::F64, [-3.0f64, 5.0, 0.0, 127.0].iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("i64", Dtype::I64, [-3i64, 5, 0, 127].iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("i32", Dtype::I32, [-3i32, 5, 0, 127].iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("i16", Dtype::I16, [-3i16, 5, 0, 127].iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("i8", Dtype::I8, ints.to_vec()),
    ];
    let views = data.iter().map(|(n, d, b)| (*n, TensorView::new(*d, vec![4], b).unwrap()));
    std::fs::write(&path, serialize(views, None).unwrap()).unwrap();
    let file = TensorFile::open(&path).unwrap();
    let mut scratch = [0; 16];
    for info in file.tensors() {
        let mut floats = [0.0; 4];
        file.read_into(info.name(), &mut floats, &mut scratch).unwrap();
        assert_eq!(floats, [-3.0, 5.0, 0.0, 127.0], "{}", info.name());
        let mut ints = [0; 4];
        match file.read_i64(info.name(), &mut ints, &mut scratch) {
            Ok(()) => assert_eq!(ints, [-3, 5, 0, 127]),
            Err(e) => assert!(info.name() == "f64" && e.to_string().contains("F64"), "{e}"),
        }
    }
}

#[test]
fn lying_headers_are_refused() {
    let t = |name: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let (a, b) = (t("a", "[2]", 0, 8), t("b", "[1]", 8, 12));
    assert!(
        TensorFile::open(file(&dir(), &format!("{{{a},{b}}}"), 12)).is_ok(),
        "the honest one is accepted"
    );
    for (what, header, data, expect) in [
        ("duplicate", format!("{{{a},{b},{a}}}"), 12, "`a` twice"),
        (
            "duplicate field",
            r#"{"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#.into(),
            8,
            "duplicate",
        ),
        ("duplicate metadata", format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{a}}}"#), 8, "twice"),
        ("duplicate metadata key", format!(r#"{{"__metadata__":{{"x":"","x":""}},{a}}}"#), 8, "`x` twice"),
        ("metadata of another kind", format!(r#"{{"__metadata__":{{"x":1}},{a}}}"#), 8, "string"),
        (
            "unknown field",
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}"#.into(),
            8,
            "unknown field",
        ),
        ("hole", format!("{{{a},{}}}", t("b", "[1]", 12, 16)), 16, "hole"),
        ("overlap", format!("{{{a},{}}}", t("b", "[1]", 4, 8)), 8, "overlap"),
        ("data left over", format!("{{{a}}}"), 9, "1 bytes after"),
        ("data missing", format!("{{{a},{b}}}"), 11, "holds 11"),
        ("end before begin", format!("{{{}}}", t("a", "[2]", 0, 8).replace("[0,8]", "[8,0]")), 8, "hole"),
        ("shape too large", format!("{{{}}}", t("a", "[3]", 0, 8)), 8, "does not take"),
        ("shape overflows", format!("{{{}}}", t("a", "[9223372036854775807,8]", 0, 8)), 8, "does not take"),
        (
            "overflow to zero",
            format!("{{{}}}", t("a", "[4611686018427387904,4,0]", 0, 0)),
            0,
            "does not take",
        ),
        ("negative", format!("{{{}}}", t("a", "[-2]", 0, 8)), 8, "invalid value"),
        ("fraction", format!("{{{}}}", t("a", "[2.0]", 0, 8)), 8, "invalid type"),
        (
            "end past 2^64",
            format!("{{{}}}", t("a", "[2]", 0, 8).replace("8]}", "18446744073709551616]}")),
            8,
            "invalid",
        ),
        (
            "many dimensions",
            format!("{{{}}}", t("a", &format!("[{}2]", "1,".repeat(16)), 0, 8)),
            8,
            "dimensions",
        ),
        ("empty name", format!("{{{}}}", t("", "[2]", 0, 8)), 8, "not a name"),
        ("control character", format!("{{{}}}", t("a\\u001b[2J", "[2]", 0, 8)), 8, "not a name"),
        ("not JSON", "{nonsense".into(), 0, "bad header"),
        ("two values", format!("{{{a}}}{{}}"), 8, "trailing"),
        ("an array", format!("[{{{a}}}]"), 8, "neither a safetensors"),
        ("deep", format!("{{\"a\":{}", "[".repeat(100_000)), 0, "bad header"),
    ] {
        let message = refused(&header, data);
        assert!(message.contains(expect), "{what}: {message}");
    }
    let unknown = format!("{{{a},{}}}", b.replace("F32", "F8_E4M3"));
    let dir = dir();
    let file = TensorFile::open(file(&dir, &unknown, 12)).unwrap();
    assert!(file.get("a").is_ok() && file.section("").is_err());
    assert!(file.get("b").unwrap_err().to_string().contains("F8_E4M3"));
}

#[test]
fn lying_lengths_are_refused() {
    let dir = dir();
    let path = dir.path().join("t.safetensors");
    for (len, expect) in [(u64::MAX, "claims a header"), ((16 << 20) + 1, "at most"), (1 << 20, "has only")] {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(b"{}                      ");
        std::fs::write(&path, bytes).unwrap();
        let message = TensorFile::open(&path).err().unwrap().to_string();
        assert!(message.contains(expect), "{message}");
    }
    for content in [
        &b""[..],
        b"PK",
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        b"<!DOCTYPE html><html>",
        b"PK\x03\x04",
    ] {
        std::fs::write(&path, content).unwrap();
        assert!(TensorFile::open(&path).is_err());
    }
    assert!(TensorFile::open(dir.path()).err().unwrap().to_string().contains("not a file"));
    assert!(TensorFile::open(dir.path().join("none")).err().unwrap().to_string().contains("check the path"));
}

#[test]
fn a_file_cut_after_opening_is_an_error() {
    let dir = dir();
    let path = file(&dir, r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 8);
    let open = TensorFile::open(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(70 - 8).unwrap();
    let error = open.read_into("a", &mut [0.0; 2], &mut [0; 64]).unwrap_err();
    assert!(error.is_io() && error.to_string().contains("shorter than when it was opened"), "{error}");
    assert!(open.read_into("a", &mut [0.0; 3], &mut [0; 64]).unwrap_err().to_string().contains("shape [2]"));
    assert!(open.read_into("a", &mut [0.0; 2], &mut [0; 3]).unwrap_err().to_string().contains("staging"));
    assert!(
        open.read_into("b", &mut [0.0; 2], &mut [0; 8]).unwrap_err().to_string().contains("not in the file")
    );
}

#[test]
fn misuse_of_the_writer_leaves_nothing() {
    let dir = dir();
    let path = dir.path().join("t.safetensors");
    let specs = || vec![TensorSpec::new("a", DType::F32, &[2]), TensorSpec::new("b", DType::I64, &[1])];
    let create = || SafetensorsWriter::create(&path, specs(), &BTreeMap::new()).unwrap();
    assert!(create().write_f32("a", &[0.0; 2]).is_err(), "b comes first");
    assert!(create().write_f32("b", &[0.0]).is_err(), "b is not a float");
    assert!(create().write_i64("b", &[0; 2]).is_err(), "b has one element");
    assert!(create().finish().is_err(), "nothing was written");
    let mut w = create();
    w.write_i64("b", &[1]).unwrap();
    w.write_f32("a", &[1.0]).unwrap();
    assert!(w.finish().unwrap_err().to_string().contains("not written in full"));
    let twice = vec![TensorSpec::new("a", DType::F32, &[2]); 2];
    assert!(SafetensorsWriter::create(&path, twice, &BTreeMap::new()).is_err());
    let huge = vec![TensorSpec::new("a", DType::F32, &[usize::MAX, 2])];
    assert!(SafetensorsWriter::create(&path, huge, &BTreeMap::new()).is_err());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
