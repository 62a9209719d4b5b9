//! PyTorch files made to lie or to run something: each is refused, by name, with the reason.

use crate::counted::exercise;
use ambitus_store::TensorFile;

/// CRC is not checked by the reader, so an archive around a pickle is quick to make.
fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let (start, len, name_len) = (file.len() as u32, data.len() as u32, name.len() as u16);
        let mut common = vec![0; 12];
        common.extend(len.to_le_bytes());
        common.extend(len.to_le_bytes());
        common.extend(name_len.to_le_bytes());
        file.extend(b"PK\x03\x04\0\0");
        file.extend(&common[2..]);
        file.splice(start as usize + 6..start as usize + 6, [0, 0]);
        file.extend([0, 0]);
        file.extend(name.as_bytes());
        file.extend(*data);
        directory.extend(b"PK\x01\x02\0\0\0\0");
        directory.extend(&common);
        directory.extend([0; 12]);
        directory.extend(start.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, len, count) = (file.len() as u32, directory.len() as u32, entries.len() as u16);
    file.extend(directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend(count.to_le_bytes());
    file.extend(count.to_le_bytes());
    file.extend(len.to_le_bytes());
    file.extend(start.to_le_bytes());
    file.extend([0, 0]);
    file
}

fn open_pickle(pickle: &[u8]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.pt");
    std::fs::write(&path, zip(&[("a/data.pkl", pickle), ("a/data/0", &[0; 8])])).unwrap();
    exercise(&path)
}

/// Pickle of `{"w": tensor}` over storage 0 (two floats), with these fields.
fn tensor(storage: &str, elements: i32, offset: i32, shape: &[i32], strides: &[i32]) -> Vec<u8> {
    let int = |v: i32| [b"J".as_slice(), &v.to_le_bytes()].concat();
    let text = |s: &str| [b"X".as_slice(), &(s.len() as u32).to_le_bytes(), s.as_bytes()].concat();
    let tuple = |v: &[i32]| [b"(".to_vec(), v.iter().flat_map(|&v| int(v)).collect(), b"t".to_vec()].concat();
    [
        b"\x80\x02}".to_vec(),
        text("w"),
        b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        format!("ctorch\n{storage}\n").into_bytes(),
        text("0"),
        text("cpu"),
        int(elements),
        b"tQ".to_vec(),
        int(offset),
        tuple(shape),
        tuple(strides),
        b"\x89}tRs.".to_vec(),
    ]
    .concat()
}

#[test]
fn lying_tensors_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.pt");
    let open = |pickle: &[u8]| {
        std::fs::write(&path, zip(&[("a/data.pkl", pickle), ("a/data/0", &[0; 8])])).unwrap();
        let file = TensorFile::open(&path).unwrap();
        file.get("w").map(|t| t.elements()).map_err(|e| e.to_string())
    };
    assert_eq!(open(&tensor("FloatStorage", 2, 0, &[2], &[1])), Ok(2));
    assert_eq!(open(&tensor("FloatStorage", 2, 1, &[1, 1], &[99, 5])), Ok(1));
    assert_eq!(open(&tensor("FloatStorage", 2, 0, &[0, 3], &[3, 1])), Ok(0));
    for (what, pickle, why) in [
        ("too many elements", tensor("FloatStorage", 2, 0, &[3], &[1]), "outside its storage"),
        ("offset", tensor("FloatStorage", 2, 1, &[2], &[1]), "outside its storage"),
        ("stride", tensor("FloatStorage", 2, 0, &[2], &[2]), "outside its storage"),
        ("negative offset", tensor("FloatStorage", 2, -1, &[2], &[1]), "starts before"),
        ("negative extent", tensor("FloatStorage", 2, 0, &[-2], &[1]), "negative extent"),
        ("negative stride", tensor("FloatStorage", 2, 1, &[2], &[-1]), "negative extent or stride"),
        ("repetition", tensor("FloatStorage", 2, 0, &[i32::MAX], &[0]), "repeats elements"),
        ("overflow", tensor("FloatStorage", 2, 0, &[i32::MAX; 9], &[0; 9]), "outside"),
        (
            "empty but huge",
            tensor("FloatStorage", 2, 0, &[0, i32::MAX, i32::MAX, i32::MAX], &[0; 4]),
            "too large",
        ),
        ("rank", tensor("FloatStorage", 2, 0, &[1; 17], &[1; 17]), "dimensions"),
        ("rank of strides", tensor("FloatStorage", 2, 0, &[2], &[1, 1]), "strides"),
        ("storage too long", tensor("FloatStorage", 3, 0, &[2], &[1]), "the file holds 8"),
        ("storage too short", tensor("FloatStorage", 1, 0, &[1], &[1]), "the file holds 8"),
        ("storage negative", tensor("FloatStorage", -1, 0, &[1], &[1]), "negative size"),
        ("storage of another type", tensor("DoubleStorage", 2, 0, &[2], &[1]), "the file holds 8"),
        ("unknown storage", tensor("QInt8Storage", 8, 0, &[8], &[1]), "torch.QInt8Storage"),
    ] {
        let message = open(&pickle).expect_err(what);
        assert!(message.contains(why) && message.contains("`w`"), "{what}: {message}");
    }
}

#[test]
fn hostile_pickles_are_refused() {
    let deep = |open: &[u8], n: usize| [b"\x80\x02".to_vec(), open.repeat(n), b".".to_vec()].concat();
    // Each list holds the one before it twice: 2^40 leaves, and 2^24.
    let laughs = [
        b"\x80\x02]q\x00N".to_vec(),
        (0..40u8).flat_map(|i| [b'0', b'(', b'h', i, b'h', i, b'l', b'q', i + 1, b'N']).collect(),
        b"0h\x28.".to_vec(),
    ]
    .concat();
    let wide = [
        b"\x80\x02]q\x00N".to_vec(),
        (0..24u8).flat_map(|i| [b'0', b'(', b'h', i, b'h', i, b'l', b'q', i + 1, b'N']).collect(),
        b"0h\x18.".to_vec(),
    ]
    .concat();
    let itself = b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.".to_vec();
    // As a trainer's options, which are read as values: a list of numbers that is in itself, and one that doubles.
    let option = |value: &[u8]| {
        [b"\x80\x02}X\x10\x00\x00\x00hyper_parameters}X\x01\x00\x00\x00a", value, b"ss."].concat()
    };
    let doubled: Vec<u8> =
        (0..24u8).flat_map(|i| [b'0', b'(', b'h', i, b'h', i, b'l', b'q', i + 1]).collect();
    let doubled = option(&[b"]q\x00".to_vec(), doubled].concat());
    for (what, pickle, why) in [
        ("os.system", b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.".to_vec(), "os.system"),
        (
            "builtins.eval by stack",
            b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.".to_vec(),
            "builtins.eval",
        ),
        ("instance", b"\x80\x02(X\x02\x00\x00\x00lsios\nsystem\n.".to_vec(), "os.system"),
        ("object", b"\x80\x02(cos\nsystem\nX\x02\x00\x00\x00lso.".to_vec(), "os.system"),
        ("new object", b"\x80\x02cos\nsystem\n)\x81.".to_vec(), "os.system"),
        ("call of a result", b"\x80\x02cbuiltins\ngetattr\n)R)R.".to_vec(), "builtins.getattr"),
        ("call of a number", b"\x80\x02K\x01)R.".to_vec(), "not callable"),
        ("extension registry", b"\x80\x02\x82\x01.".to_vec(), "not supported"),
        ("text protocol", b"\x80\x02I01\n.".to_vec(), "text form"),
        ("future protocol", b"\x80\x09.".to_vec(), "protocol 9"),
        ("open marks", deep(b"(", 100_000), "nested too deeply"),
        ("full stack", deep(b"N", 100_000), "stack"),
        (
            "deep lists",
            [deep(b"]q\x00", 50_000), b"a".repeat(49_999), b".".to_vec()].concat().replace_stop(),
            "nested",
        ),
        ("repetition", laughs, "nested deeper"),
        ("shallow repetition", wide, "than its size justifies"),
        ("cycle", itself, "nested deeper"),
        ("options in themselves", option(b"]q\x00h\x00a"), "hyper_parameters is nested deeper"),
        ("options that double", doubled, "than its size justifies"),
        ("long string", b"\x80\x02X\xff\xff\xff\xff.".to_vec(), "ends in the middle"),
        ("longer string", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.".to_vec(), "ends in the middle"),
        ("long integer", b"\x80\x02\x8b\xff\xff\xff\x7f.".to_vec(), "ends in the middle"),
        ("not UTF-8", b"\x80\x02U\x01\xffX\x01\x00\x00\x00\xff.".to_vec(), "UTF-8"),
        ("empty stack", b"\x80\x02.".to_vec(), "empty stack"),
        ("over a mark", b"\x80\x02N(0000.".to_vec(), "empty stack"),
        ("no mark", b"\x80\x02t.".to_vec(), "not opened"),
        ("item into a tuple", b"\x80\x02)Na.".to_vec(), "not a list"),
        ("key without value", b"\x80\x02}(Nu.".to_vec(), "without a value"),
        ("lost memory", b"\x80\x02h\x05.".to_vec(), "not remembered"),
        ("foreign reference", b"\x80\x02K\x01Q.".to_vec(), "not to a storage"),
        ("a number", b"\x80\x02K\x01.".to_vec(), "no dictionary"),
        ("nothing", Vec::new(), "ends in the middle"),
        (
            "two of a name",
            b"\x80\x02}(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00aK\x02u.".to_vec(),
            "two values of the name `a`",
        ),
    ] {
        let message = open_pickle(&pickle).unwrap_or_else(|| panic!("{what} was accepted"));
        assert!(message.contains(why), "{what}: {message}");
    }
}

/// Moves the STOP that `deep` put in the middle to the end.
trait ReplaceStop {
    fn replace_stop(self) -> Self;
}

impl ReplaceStop for Vec<u8> {
    fn replace_stop(mut self) -> Self {
        let at = self.iter().position(|&b| b == b'.').unwrap();
        self.remove(at);
        self
    }
}

#[test]
fn lying_archives_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.pt");
    let pickle: &[u8] = b"\x80\x02}.";
    let good = zip(&[("a/data.pkl", pickle)]);
    let changed = |from: &[u8], to: &[u8]| {
        let at = good.windows(from.len()).rposition(|w| w == from).unwrap();
        let mut bytes = good.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    std::fs::write(&path, &good).unwrap();
    assert_eq!(exercise(&path), None);
    for (what, bytes, why) in [
        ("climbing name", zip(&[("a/data.pkl", pickle), ("a/../../etc/x", b"")]), "leads out"),
        ("absolute name", zip(&[("a/data.pkl", pickle), ("/etc/x", b"")]), "leads out"),
        ("entry twice", zip(&[("a/data.pkl", pickle), ("a/data.pkl", b"\x80\x02].")]), "there twice"),
        ("two pickles", zip(&[("a/data.pkl", pickle), ("b/data.pkl", pickle)]), "or several"),
        ("no pickle", zip(&[("a/b/data.pkl", pickle)]), "no data.pkl"),
        ("big-endian", zip(&[("a/data.pkl", pickle), ("a/byteorder", b"big")]), "big-endian"),
        ("two names", changed(b"a/data.pkl", b"b/data.pkl"), "contradict"),
        ("something after", [good.clone(), b"more".to_vec()].concat(), "cut short"),
        ("something before", [b"PK\x03\x04".to_vec(), good.clone()].concat(), "does not end"),
        ("a directory elsewhere", changed(b"PK\x05\x06", b"PK\x05\x07"), "cut short"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let message = exercise(&path).unwrap_or_else(|| panic!("{what} was accepted"));
        assert!(message.contains(why), "{what}: {message}");
    }
}

#[test]
fn many_small_objects_are_bounded_by_the_file() {
    const N: usize = 300_000;
    let dicts = [b"\x80\x04".to_vec(), b"}\x940".repeat(N), b"}.".to_vec()].concat();
    let message = open_pickle(&dicts).unwrap();
    assert!(message.contains("than its size justifies"), "{message}");
}

/// What a trainer keeps of its options: numbers, words, tuples, and an object of any class, which is not made.
#[test]
fn options_beside_tensors_are_plain_values() {
    let text = |s: &str| [b"X".as_slice(), &(s.len() as u32).to_le_bytes(), s.as_bytes()].concat();
    let pickle = [
        b"\x80\x02}".to_vec(),
        text("hyper_parameters"),
        b"}(".to_vec(),
        text("rates"),
        b"K\x08K\x08K\x04\x87".to_vec(),
        text("kind"),
        text("1"),
        text("fast"),
        b"\x88".to_vec(),
        text("weight"),
        b"G@F\x80\x00\x00\x00\x00\x00".to_vec(),
        text("folder"),
        b"cpathlib\nPosixPath\n(".to_vec(),
        text("/home"),
        b"tR".to_vec(),
        text("none"),
        b"Nus.".to_vec(),
    ]
    .concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.ckpt");
    std::fs::write(&path, zip(&[("a/data.pkl", &pickle)])).unwrap();
    let file = TensorFile::open(&path).unwrap();
    let want = serde_json::json!({
        "rates": [8, 8, 4], "kind": "1", "fast": true, "weight": 45.0, "folder": null, "none": null
    });
    assert_eq!(file.settings(), Some(&want));
    std::fs::write(&path, zip(&[("a/data.pkl", b"\x80\x02}.")])).unwrap();
    assert_eq!(TensorFile::open(&path).unwrap().settings(), None);
}
