//! `ambitus tokens` beside what the packages make of the same texts (`parity/f5`, `parity/orpheus`).

use crate::common::{self, json, said};
use std::path::Path;

fn vectors(path: &Path) -> Vec<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

/// Returns those texts that are one line, with what the command reads of them; writes a config of so many ids.
fn read(dir: &Path, model: &Path, vectors: &[serde_json::Value], options: &[&str]) -> Vec<serde_json::Value> {
    let texts: Vec<&str> = vectors.iter().filter_map(|v| v["text"].as_str()).collect();
    std::fs::write(dir.join("texts.txt"), texts.join("\n") + "\n").expect("a file");
    let model = model.display().to_string();
    let args = [&["tokens", "--model", &model, "--text", "texts.txt", "--json"], options].concat();
    let lines = json(dir, &args).as_array().expect("a list").clone();
    let same = lines.iter().map(|l| l["text"].as_str().expect("a text"));
    assert!(same.eq(texts.iter().copied()), "a line for each text, in order");
    lines
}

fn one_line(vectors: Vec<serde_json::Value>) -> Vec<serde_json::Value> {
    vectors.into_iter().filter(|v| !v["text"].as_str().is_some_and(|t| t.contains(['\n', '\r']))).collect()
}

#[test]
fn f5_reads_syllables_and_letters() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = common::fixture("v1");
    let vocab = std::fs::read_to_string(model.join("vocab.txt")).expect("a file");
    let vocab: Vec<&str> = vocab.lines().collect();
    let vectors = one_line(vectors(&common::fixture("text_vectors.json")));
    assert!(vectors.len() > 50);
    for (line, vector) in read(dir.path(), &model, &vectors, &[]).iter().zip(&vectors) {
        assert_eq!(line["pieces"], vector["tokens"]);
        let id =
            |token: &serde_json::Value| vocab.iter().position(|t| Some(*t) == token.as_str()).unwrap_or(0);
        let ids: Vec<usize> = vector["tokens"].as_array().expect("a list").iter().map(id).collect();
        assert_eq!(line["ids"], serde_json::json!(ids), "{vector}");
    }
}

#[test]
fn orpheus_reads_its_prompt_and_other_llamas_plain_ids() {
    let dir = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "tokenizer.json"] {
        let from = if file == "config.json" { "tied/config.json" } else { file };
        std::fs::copy(common::orpheus(from), dir.path().join(file)).expect("a file");
    }
    let vectors = one_line(vectors(&common::orpheus("tokenizer_vectors.json")));
    let around = |ids: &serde_json::Value| {
        let ids: Vec<u64> = serde_json::from_value(ids.clone()).expect("ids");
        [&[128_259], &*ids, &[128_009, 128_260, 128_261, 128_257]].concat()
    };
    let config = std::fs::read_to_string(dir.path().join("config.json")).expect("a file");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    for (vocabulary, speaks) in [(156_940, true), (1000, false)] {
        config["vocab_size"] = vocabulary.into();
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("a file");
        for (line, vector) in read(dir.path(), dir.path(), &vectors, &[]).iter().zip(&vectors) {
            let ids = if speaks { serde_json::json!(around(&vector["ids"])) } else { vector["ids"].clone() };
            assert_eq!(line["ids"], ids, "{vector}");
            assert_eq!(line["pieces"].as_array().map(Vec::len), ids.as_array().map(Vec::len));
        }
        let spoken = [serde_json::json!({ "text": "a" }), serde_json::json!({ "text": "tara: a" })];
        if speaks {
            let voiced = &read(dir.path(), dir.path(), &spoken[..1], &["--voice", "tara"])[0];
            assert_eq!(voiced["ids"], read(dir.path(), dir.path(), &spoken[1..], &[])[0]["ids"]);
        }
    }
    let model = dir.path().display().to_string();
    for (option, why) in [("--voice", "has no named voices"), ("--language", "reads all languages alike")] {
        let args = ["tokens", "--model", &model, "--text", "texts.txt", option, "x"];
        let (exit, text) = said(dir.path(), &args);
        assert!(exit == 2 && text.contains(why), "{exit}: {text}");
    }
    let (exit, text) = said(dir.path(), &["tokens", "--model", &model, "--text", "absent.txt"]);
    assert!(exit == 2 && text.contains("absent.txt: is missing"), "{exit}: {text}");
}

#[test]
fn parler_reads_texts_with_t5s_tokenizer_and_refuses_another() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |file: &str| dir.path().join(file);
    let t5 = common::root().join("parity/t5/fixtures/tokenizer");
    let vectors = one_line(vectors(&t5.join("tokenizer_vectors.json")));
    std::fs::copy(common::parler("base").join("config.json"), at("config.json")).expect("a file");
    for file in ["spiece.model", "tokenizer.json"] {
        std::fs::copy(t5.join(file), at(file)).expect("a file");
        for (line, vector) in read(dir.path(), dir.path(), &vectors, &[]).iter().zip(&vectors) {
            assert_eq!(line["ids"], vector["ids"], "{file}: {vector}");
        }
    }
    std::fs::copy(common::orpheus("tokenizer.json"), at("tokenizer.json")).expect("a file");
    let model = dir.path().display().to_string();
    let (exit, text) = said(dir.path(), &["tokens", "--model", &model, "--text", "texts.txt"]);
    let words = ["of type BPE", "prompts have their own (Mini v1.1"];
    assert!(exit == 4 && words.iter().all(|w| text.contains(w)), "{exit}: {text}");
}
