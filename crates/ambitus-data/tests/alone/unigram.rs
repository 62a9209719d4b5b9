//! Files of Unigram tokenizers that are odd, or made to do harm.

use std::path::Path;

use crate::counting::{ALONE, peak_of};
use ambitus_data::text::{SPIECE_FILE, UNIGRAM_ENCODING_BYTES};
use ambitus_data::{DataError, Unigram};
use base64::Engine as _;
use serde_json::{Value, json};

const TOKENIZER: &str = "tokenizer.json";
const SETTINGS: &str = "tokenizer_config.json";

/// A table that replaces `letter` by a text of any length: a trie of two nodes.
fn table(letter: u8, becomes: &str) -> Vec<u8> {
    let mut units = vec![0u32; 1024];
    let (first, leaf) = (256 ^ u32::from(letter), 768);
    units[0] = 256 << 10;
    units[first as usize] = u32::from(letter) | 1 << 8 | (first ^ leaf) << 10;
    units[leaf as usize] = 1 << 31;
    let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(becomes.as_bytes());
    bytes.push(0);
    bytes
}

fn file(table: &[u8]) -> Value {
    let table = base64::engine::general_purpose::STANDARD.encode(table);
    let token = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "added_tokens": [token(0, "<pad>"), token(1, "</s>"), token(2, "<unk>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": table},
            {"type": "Strip", "strip_left": false, "strip_right": true},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
        ]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [], "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "decoder": {"type": "Whatever"},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [
            ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["▁", -2.0], ["▁a", -3.0], ["b", -4.5], ["ab", -5.0], ["a", -6.0],
        ]},
    })
}

/// A field of a message: its number and its bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(bytes);
    out
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let mut inner = field(1, text.as_bytes());
    inner.push(0x15);
    inner.extend(score.to_le_bytes());
    inner.extend([0x18, kind]);
    field(1, &inner)
}

/// The pieces of [`file`] in the other format.
fn spiece(table: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (text, score, kind) in [
        ("<pad>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<unk>", 0.0, 2),
        ("▁", -2.0, 1),
        ("▁a", -3.0, 1),
        ("b", -4.5, 1),
        ("ab", -5.0, 1),
        ("a", -6.0, 1),
    ] {
        out.extend(piece(text, score, kind));
    }
    // trainer_spec.unk_id = 2; normalizer_spec.precompiled_charsmap.
    out.extend(field(2, &[0xc0, 0x02, 2]));
    out.extend(field(3, &field(2, table)));
    out
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), bytes).expect("written");
}

fn refused(dir: &Path) -> String {
    match Unigram::read(dir, u64::MAX) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn both_files_give_the_same_ids() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (json, own) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    write(json.path(), TOKENIZER, file(&table(b'z', "ab")).to_string());
    write(own.path(), SPIECE_FILE, spiece(&table(b'z', "ab")));
    let [from_json, from_own] =
        [json.path(), own.path()].map(|dir| Unigram::read(dir, u64::MAX).expect("a tokenizer"));
    for (text, ids) in [
        ("", vec![1]),
        ("a", vec![4, 1]),
        ("  z  ", vec![3, 6, 1]),
        ("ab a", vec![3, 6, 4, 1]),
        ("a你好b 😀", vec![4, 2, 5, 3, 2, 1]),
        ("b</s>a<unk>", vec![3, 5, 1, 4, 2, 1]),
    ] {
        for tokenizer in [&from_json, &from_own] {
            let got = tokenizer.encode(text).expect("ids");
            assert_eq!(got, ids, "{text:?}");
        }
    }
    assert_eq!((from_json.id("▁a"), from_json.piece(6).as_deref()), (Some(4), Some("ab")));
    // 100 extra ids follow the pieces, from the last to the first.
    assert_eq!(from_own.encode("<extra_id_99>").expect("ids")[0], 8);
    assert_eq!((from_own.id("<extra_id_0>"), from_own.size()), (Some(107), 108));
    assert_ne!(from_json.fingerprint(), from_own.fingerprint());
}

#[test]
fn which_file_is_read_is_as_the_package_says() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    assert!(refused(dir).contains(TOKENIZER));
    write(dir, TOKENIZER, file(&table(b'z', "a")).to_string());
    write(dir, SPIECE_FILE, spiece(&table(b'z', "b")));
    let read = || Unigram::read(dir, u64::MAX).expect("a tokenizer");
    assert!(read().path().ends_with(TOKENIZER));
    let plain = read().fingerprint();
    write(dir, SETTINGS, json!({"add_prefix_space": null, "extra_ids": 2}).to_string());
    assert!(read().path().ends_with(TOKENIZER) && read().fingerprint() != plain);
    assert_eq!(read().id("<extra_id_2>"), None);
    write(dir, SETTINGS, json!({"add_prefix_space": false}).to_string());
    assert!(read().path().ends_with(SPIECE_FILE));
    // What the settings say of a token holds: this one takes the spaces around it.
    let token = json!({"content": "<extra_id_0>", "single_word": false, "lstrip": true, "rstrip": true,
        "normalized": false, "special": true});
    write(dir, SETTINGS, json!({"extra_ids": 1, "added_tokens_decoder": {"8": token}}).to_string());
    assert_eq!(read().encode("a <extra_id_0> a").expect("ids"), [4, 8, 4, 1]);
    write(dir, SETTINGS, "{");
    assert!(refused(dir).contains(SETTINGS));
    write(dir, SETTINGS, json!({"extra_ids": 1_000_000_000}).to_string());
    assert!(refused(dir).contains("extra_ids"));
}

#[test]
fn what_no_t5_has_is_refused_by_name() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let good = file(&table(b'z', "b"));
    let long_piece = "x".repeat(600);
    let map = |bytes: &[u8]| {
        let table = base64::engine::general_purpose::STANDARD.encode(bytes);
        json!({"type": "Precompiled", "precompiled_charsmap": table})
    };
    let twice = json!({"type": "Sequence", "normalizers": [map(&table(b'a', "b")), map(&table(b'a', "b"))]});
    let regex = json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y"});
    let grows = json!({"type": "Replace", "pattern": {"String": "x"}, "content": "yy"});
    let rewrites = json!({"type": "Sequence", "pretokenizers": vec![good["pre_tokenizer"].clone(); 2]});
    for (path, part, named) in [
        ("/normalizer", json!({"type": "NFC"}), "NFC"),
        ("/normalizer", twice, "Precompiled"),
        ("/normalizer", regex, "Replace"),
        ("/normalizer", grows, "Replace"),
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "a"}), "base 64"),
        ("/normalizer", map(&[]), "broken"),
        ("/normalizer", map(&[0; 4]), "broken"),
        ("/normalizer", map(&[0xff; 400]), "broken"),
        ("/normalizer", map(&table(b'a', &"b".repeat(41))), "replacement of more than 40"),
        ("/pre_tokenizer", json!({"type": "ByteLevel"}), "ByteLevel"),
        ("/pre_tokenizer", rewrites, "more than once"),
        ("/post_processor", json!({"type": "BertProcessing"}), "BertProcessing"),
        ("/model/type", json!("BPE"), "BPE"),
        ("/model", json!({"type": "BPE", "vocab": {"a": 0}, "merges": []}), "of type BPE"),
        ("/model/unk_id", json!(null), "unk_id"),
        ("/model/unk_id", json!(8), "none of its 8 pieces"),
        ("/model/vocab/3/0", json!(long_piece), "600 bytes"),
        ("/model/vocab/3", json!(["a"]), "line"),
        ("/model/vocab", json!([]), "none of its 0 pieces"),
    ] {
        let mut changed = good.clone();
        *changed.pointer_mut(path).expect("a part") = part;
        write(dir, TOKENIZER, changed.to_string());
        let error = refused(dir);
        assert!(
            error.contains(named) && error.contains("fine-tune") && error.len() < 700,
            "{named}: {error}"
        );
    }
    let mut fallback = good.clone();
    fallback["model"]["byte_fallback"] = json!(true);
    write(dir, TOKENIZER, fallback.to_string());
    assert!(refused(dir).contains("falls back"));
    // A trie that leads out of itself is met when a text is read.
    let mut wild = table(b'a', "b");
    wild[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut changed = good.clone();
    changed["normalizer"] = map(&wild);
    write(dir, TOKENIZER, changed.to_string());
    let error = Unigram::read(dir, u64::MAX).expect("read").encode("abc").expect_err("no ids").to_string();
    assert!(error.contains("gave up") && error.contains("abc"), "{error}");
}

/// Every byte of a good `spiece.model` changed, and every beginning of it: an error or a tokenizer, never a panic.
#[test]
fn damaged_files_end_in_errors() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let good = spiece(&[]);
    let try_it = |bytes: &[u8]| {
        write(dir, SPIECE_FILE, bytes);
        match Unigram::read(dir, u64::MAX) {
            Ok(tokenizer) => drop(tokenizer.encode("a b你ab")),
            Err(error) => assert!(error.to_string().contains(SPIECE_FILE), "{error}"),
        }
    };
    for end in 0..good.len() {
        try_it(&good[..end]);
    }
    for at in 0..good.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            try_it(&bytes);
        }
    }
}

/// Files that take as much memory as their bytes can be made to.
fn nasty(bytes: usize) -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let good = file(&table(b'z', "b")).to_string();
    let vocab = |one: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        let mut i = 0;
        while text.len() < bytes {
            text += &format!("[\"{}\",0],", one(i));
            i += 1;
        }
        good.replace("\"vocab\":[", &format!("\"vocab\":[{text}")).into_bytes()
    };
    let mut added = String::new();
    let mut i = 0;
    while added.len() < bytes {
        added += &format!(
            r#"{{"id":{i},"content":"{i:x}","single_word":false,"lstrip":false,"rstrip":false,"normalized":true,"special":false}},"#
        );
        i += 1;
    }
    let added = good.replace("\"added_tokens\":[", &format!("\"added_tokens\":[{added}")).into_bytes();
    let mut wide = table(b'z', "b");
    wide.resize(bytes.min(4 << 20), 0);
    let pieces = |one: &dyn Fn(usize) -> Vec<u8>| {
        let mut out = spiece(&[]);
        let mut i = 0;
        while out.len() < bytes {
            out.extend(one(i));
            i += 1;
        }
        out
    };
    vec![
        ("short pieces", TOKENIZER, vocab(&|i| format!("{i:x}"))),
        ("pieces spelled alike", TOKENIZER, vocab(&|_| String::new())),
        ("escaped pieces", TOKENIZER, vocab(&|i| format!("\\u{i:04x}").repeat(8)[..48].to_owned())),
        ("long pieces", TOKENIZER, vocab(&|i| format!("{i:0>500}"))),
        ("added tokens", TOKENIZER, added),
        ("a table", TOKENIZER, file(&wide).to_string().into_bytes()),
        ("space", TOKENIZER, [good.as_bytes(), &vec![b' '; bytes]].concat()),
        ("empty pieces", SPIECE_FILE, pieces(&|_| vec![0x0a, 0])),
        ("short pieces", SPIECE_FILE, pieces(&|i| piece(&format!("{i:x}"), 0.0, 1))),
        ("control tokens", SPIECE_FILE, pieces(&|i| piece(&format!("{i:x}"), 0.0, 3))),
        ("a table", SPIECE_FILE, spiece(&wide)),
        ("fields that do not matter", SPIECE_FILE, pieces(&|_| field(7, &[1; 100]))),
    ]
}

#[test]
fn no_unigram_takes_more_memory_than_it_is_planned_with() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let warm = tempfile::tempdir().expect("folder");
    // Warms up what is made once.
    write(warm.path(), TOKENIZER, file(&table(b'z', "b")).to_string());
    Unigram::read(warm.path(), u64::MAX).expect("a tokenizer").encode("a z b").expect("ids");
    for bytes in [100_000, 1_500_000] {
        for (what, name, content) in nasty(bytes) {
            let folder = tempfile::tempdir().expect("folder");
            let dir = folder.path();
            write(dir, name, &content);
            // The bound is found without building anything.
            let (unbuilt, _) = peak_of(|| Unigram::read(dir, content.len() as u64));
            let planned = match unbuilt {
                Err(DataError::DoesNotFit { needed, .. }) => needed as usize,
                Err(error) => panic!("{what}: {error}"),
                Ok(_) => panic!("{what}: takes no memory"),
            };
            let (read, peak) = peak_of(|| Unigram::read(dir, u64::MAX));
            let held = read.as_ref().map_or(0, |tokenizer| tokenizer.memory_bytes());
            println!("{what} of {bytes} bytes: {peak} of {planned} ({:?})", read.as_ref().err());
            assert!(peak <= planned, "{what} of {bytes} bytes: {peak} of {planned}");
            assert!(read.is_err() || held as usize == planned);
            let (refused, peak) = peak_of(|| Unigram::read(dir, planned as u64 - 1));
            assert!(matches!(refused, Err(DataError::DoesNotFit { .. })), "{what}");
            assert!(peak <= content.len() + (1 << 20), "{what}: {peak}");
        }
    }
}

#[test]
fn a_unigram_takes_what_is_planned_for_each_byte_of_text() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    // A letter becomes forty, and each of them a character of four bytes.
    let mut grows = file(&table(b'z', &"y".repeat(40)));
    let longer = json!({"type": "Replace", "pattern": {"String": "y"}, "content": "😀"});
    grows["normalizer"]["normalizers"].as_array_mut().expect("steps").push(longer);
    grows["model"]["vocab"].as_array_mut().expect("pieces").push(json!(["😀", -1.0]));
    write(dir, TOKENIZER, grows.to_string());
    let tokenizer = Unigram::read(dir, u64::MAX).expect("a tokenizer");
    tokenizer.encode("a z b").expect("ids");
    for (what, text) in [
        ("words", "ab ".repeat(5000)),
        ("one word", "a".repeat(10_000)),
        ("spaces", format!("{}a", " ".repeat(10_000))),
        ("what has no piece", "你".repeat(3000)),
        ("what grows", "z".repeat(2000)),
        ("words that grow", "z ".repeat(2000)),
        ("tags", "</s>".repeat(2000)),
    ] {
        let (ids, peak) = peak_of(|| tokenizer.encode(&text));
        let (ids, each) = (ids.expect("ids").len(), peak as f64 / text.len() as f64);
        println!("{what}: {ids} ids, {each:.0} bytes a byte");
        assert!(peak as u64 <= UNIGRAM_ENCODING_BYTES * text.len() as u64, "{what}: {each:.0}");
    }
}
