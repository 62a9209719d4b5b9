//! `tokenizer.json` files that are odd, or made to do harm.

use std::path::{Path, PathBuf};

use crate::counting::{ALONE, peak_of};
use ambitus_data::speech::{LabelScope, Sequences};
use ambitus_data::text::ENCODING_BYTES;
use ambitus_data::{Bpe, DataError};
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/orpheus/fixtures")
}

fn good() -> Value {
    let text = std::fs::read_to_string(fixtures().join("tokenizer.json")).expect("fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn read(dir: &Path, text: &str) -> Result<Bpe, DataError> {
    std::fs::write(dir.join("tokenizer.json"), text).expect("written");
    Bpe::read(dir, u64::MAX)
}

/// The good file with one key changed, read.
fn changed(dir: &Path, change: impl Fn(&mut Value)) -> Result<Bpe, DataError> {
    let mut value = good();
    change(&mut value);
    read(dir, &value.to_string())
}

fn refused(dir: &Path, change: impl Fn(&mut Value)) -> String {
    match changed(dir, change) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    }
}

const SENTENCE: &str =
    "The quick brown fox <laugh> jumps over 12345 lazy dogs, doesn't it? Ja, natürlich; 你好。";

#[test]
fn truncation_padding_and_dropout_change_no_ids() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let plain = changed(dir.path(), |_| {}).expect("valid");
    let expected = plain.encode(SENTENCE).expect("encoded");
    assert!(expected.len() > 20);
    let cut = |v: &mut Value| {
        v["truncation"] =
            json!({"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    };
    let fill = |v: &mut Value| {
        v["padding"] = json!({"strategy": {"Fixed": 1_000_000_000u64}, "direction": "Right",
            "pad_to_multiple_of": 1_000_000_000_000u64, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"});
    };
    let drop = |v: &mut Value| v["model"]["dropout"] = json!(0.5);
    for change in [&cut as &dyn Fn(&mut Value), &fill, &drop] {
        let bpe = changed(dir.path(), change).expect("valid");
        for _ in 0..3 {
            assert_eq!(bpe.encode(SENTENCE).expect("encoded"), expected);
        }
        // What was prepared as such a file asked is not taken for what is prepared here.
        let bytes = std::fs::read(dir.path().join("tokenizer.json")).expect("written");
        assert_ne!(bpe.fingerprint(), *blake3::hash(&bytes).as_bytes());
    }
    let none = changed(dir.path(), |v| v["model"]["dropout"] = json!(0.0)).expect("valid");
    let bytes = std::fs::read(dir.path().join("tokenizer.json")).expect("written");
    assert_eq!(none.fingerprint(), *blake3::hash(&bytes).as_bytes());
}

#[test]
fn parts_that_no_llama_has_are_refused_by_name() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let chain = |n: usize, content: &str| {
        let one = json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
        json!({"type": "Sequence", "normalizers": vec![one; n]})
    };
    for (key, part, named) in [
        ("normalizer", chain(34, "aa"), "more than 16"),
        ("normalizer", chain(1, "aa"), "Replace"),
        ("normalizer", chain(1, &"a".repeat(1_000_000)), "a part of"),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "Precompiled"),
        ("pre_tokenizer", json!({"type": "BertPreTokenizer"}), "BertPreTokenizer"),
        ("post_processor", json!({"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2]}), "Roberta"),
    ] {
        let error = refused(dir.path(), |v| v[key] = part.clone());
        assert!(error.contains(named) && error.contains("fine-tune") && error.len() < 700, "{error}");
    }
    let error = refused(dir.path(), |v| v["model"]["type"] = json!("Unigram"));
    assert!(error.contains("Unigram"), "{error}");
    assert!(refused(dir.path(), |v| v["model"]["end_of_word_suffix"] = json!("</w>")).contains("words"));
    // What decodes is not used, whatever it says.
    changed(dir.path(), |v| v["decoder"] = json!({"type": "Whatever", "x": "y".repeat(100_000)}))
        .expect("valid");
}

#[test]
fn a_message_does_not_quote_a_whole_tokenizer() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let bpe = changed(dir.path(), |v| {
        let ids: Vec<u32> = vec![5; 60];
        v["post_processor"] = json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "s", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
            "special_tokens": {"s": {"id": "s", "ids": ids, "tokens": vec!["!"; 60]}}});
    });
    let error =
        Sequences::new(bpe.expect("admitted"), LabelScope::All).err().expect("no Orpheus").to_string();
    assert!(error.contains("begins a text with 128000") && error.len() < 400, "{error}");
    let long = format!("{{\"model\": {{\"type\": \"{}\"}}}}", "x".repeat(5_000_000));
    let error = read(dir.path(), &long).err().expect("refused").to_string();
    assert!(error.len() < 700, "{}", error.len());
}

/// Files that take as much memory as their bytes can be made to.
fn nasty(bytes: usize) -> Vec<(&'static str, String)> {
    let file = |added: &str, vocab: &str, merges: &str| {
        format!(
            r#"{{"version":"1.0","added_tokens":[{added}],"normalizer":null,"pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}},"post_processor":null,"model":{{"type":"BPE","vocab":{{{vocab}}},"merges":[{merges}]}}}}"#
        )
    };
    let joined = |one: &dyn Fn(usize) -> String| {
        let mut text = one(0);
        let mut i = 1;
        while text.len() < bytes {
            text.push(',');
            text += &one(i);
            i += 1;
        }
        text
    };
    let added = |content: &dyn Fn(usize) -> String| {
        let token = |i: usize| {
            let flags =
                r#""single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true"#;
            format!(r#"{{"id":{i},"content":"{}",{flags}}}"#, content(i))
        };
        file(&joined(&token), r#""a":0"#, "")
    };
    // No two begin alike, so that nothing of them is shared.
    let random = |i: usize, n: usize| {
        let mut state = (i as u64).wrapping_mul(6364136223846793005).wrapping_add(99);
        let mut letter = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            char::from(b'a' + ((state >> 33) % 26) as u8)
        };
        (0..n).map(|_| letter()).collect::<String>()
    };
    let hard = r#"\\p{L}++(?!\\p{N})"#.repeat(60);
    let split =
        format!(r#"{{"type":"Split","pattern":{{"Regex":"{hard}"}},"behavior":"Isolated","invert":false}}"#);
    vec![
        ("short tokens", file("", &joined(&|i| format!("\"{i:x}\":{i}")), "")),
        ("long tokens", file("", &joined(&|i| format!("\"{}\":{i}", random(i, 4000))), "")),
        (
            "escaped tokens",
            file(
                "",
                &joined(&|i| {
                    format!("\"\\u4f{:02x}\\u4f{:02x}\\u4f{:02x}\":{i}", i % 256, i / 256 % 256, i / 65536)
                }),
                "",
            ),
        ),
        ("merges", file("", r#""a":0,"b":1,"ab":2"#, &joined(&|_| r#"["a","b"]"#.into()))),
        ("merges as they were written", file("", r#""a":0,"b":1,"ab":2"#, &joined(&|_| r#""a b""#.into()))),
        ("long merges", file("", r#""a":0"#, &joined(&|i| format!("[\"{}\",\"\"]", random(i, 4000))))),
        ("added tokens", added(&|i| format!("{i:x}"))),
        ("long added tokens", added(&|i| random(i, 300))),
        ("very long added tokens", added(&|i| random(i, 20_000))),
        (
            "wide added tokens",
            added(&|i| {
                (0..200u32)
                    .map(|k| {
                        char::from_u32(0x4e00 + (k * 7919 + i as u32 * 31) % 20000).expect("a character")
                    })
                    .collect()
            }),
        ),
        (
            "an expression",
            file("", r#""a":0"#, "").replace(
                r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}"#,
                &split,
            ),
        ),
        ("space", file("", &" ".repeat(bytes), "")),
    ]
}

#[test]
fn no_tokenizer_takes_more_memory_than_it_is_planned_with() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    // Warms up what is made once.
    changed(dir.path(), |_| {}).expect("valid").encode(SENTENCE).expect("encoded");
    for bytes in [100_000, 1_500_000] {
        for (what, text) in nasty(bytes) {
            std::fs::write(dir.path().join("tokenizer.json"), &text).expect("written");
            // The bound is found without building anything.
            let (unbuilt, _) = peak_of(|| Bpe::read(dir.path(), text.len() as u64));
            let planned = match unbuilt {
                Err(DataError::DoesNotFit { needed, .. }) => needed as usize,
                Err(error) => panic!("{what}: {error}"),
                Ok(_) => panic!("{what}: takes no memory"),
            };
            let (bpe, peak) = peak_of(|| Bpe::read(dir.path(), u64::MAX));
            let held = bpe.as_ref().map_or(0, |b| b.memory_bytes());
            println!(
                "{what} of {bytes} bytes: {peak} of {planned} ({:?})",
                bpe.as_ref().err().map(|e| e.to_string().len())
            );
            assert!(peak <= planned, "{what} of {bytes} bytes: {peak} of {planned}");
            assert!(bpe.is_err() || held as usize == planned);
            let small = planned as u64 - 1;
            let (refused, peak) = peak_of(|| Bpe::read(dir.path(), small));
            assert!(matches!(refused, Err(DataError::DoesNotFit { .. })), "{what}");
            assert!(peak <= text.len() + (1 << 20), "{what}: {peak}");
        }
    }
    let small = Bpe::read(dir.path(), 1000);
    assert!(matches!(small, Err(DataError::DoesNotFit { .. })), "refused by its length, unread");
}

#[test]
fn encoding_takes_what_is_planned_for_each_byte_of_text() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let bpe = Bpe::read(&fixtures(), u64::MAX).expect("tokenizer");
    bpe.encode(SENTENCE).expect("encoded");
    for (what, text) in [
        ("words", "word ".repeat(10_000)),
        ("one word", "x".repeat(50_000)),
        ("digits", "1".repeat(50_000)),
        ("spaces", " ".repeat(50_000)),
        ("lines", "\n".repeat(50_000)),
        ("letters of three bytes", "你".repeat(17_000)),
        ("symbols of four", "😀".repeat(12_000)),
        ("tags", "<laugh>".repeat(7_000)),
        ("all different", (0..17_000u32).filter_map(|i| char::from_u32(0x3400 + i)).collect()),
    ] {
        let (ids, peak) = peak_of(|| bpe.encode(&text));
        println!(
            "{what}: {} ids, {:.0} bytes a byte",
            ids.expect("encoded").len(),
            peak as f64 / text.len() as f64
        );
        assert!(peak as u64 <= ENCODING_BYTES * text.len() as u64, "{what}: {peak} for {}", text.len());
    }
}
