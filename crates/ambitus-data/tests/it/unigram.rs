//! Ids of a small T5 tokenizer beside transformers' (`parity/t5/make_tokenizer.py`).

use std::path::{Path, PathBuf};

use ambitus_data::Unigram;
use ambitus_data::text::{SPIECE_FILE, TOKENIZER_FILE, strip};
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/t5/fixtures/tokenizer")
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixtures().join(name)).expect("fixture")).expect("JSON")
}

/// Compares every text's ids with those recorded under a name, or with the ones of all where there are none.
fn compare(tokenizer: &Unigram, name: &str) {
    let vectors = json("tokenizer_vectors.json");
    let vectors = vectors.as_array().expect("a list");
    assert!(vectors.len() >= 200);
    for vector in vectors {
        let text = vector["text"].as_str().expect("a text");
        let ids = vector.get(name).unwrap_or(&vector["ids"]);
        let got = tokenizer.encode(strip(text)).expect("ids");
        assert_eq!(serde_json::json!(got), *ids, "{name}: {text:?}");
        assert!(got.iter().all(|id| tokenizer.piece(*id).is_some()));
    }
}

#[test]
fn ids_are_the_packages_from_either_file() {
    for file in [TOKENIZER_FILE, SPIECE_FILE] {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::copy(fixtures().join(file), folder.path().join(file)).expect("copied");
        let tokenizer = Unigram::read(folder.path(), u64::MAX).expect("a tokenizer");
        assert!(tokenizer.path().ends_with(file));
        compare(&tokenizer, "ids");
    }
}

#[test]
fn older_forms_give_the_ids_that_they_gave() {
    let saved = json(TOKENIZER_FILE);
    let table = &saved["normalizer"]["normalizers"][0]["precompiled_charsmap"];
    for (name, form) in json("forms.json").as_object().expect("forms") {
        let mut file = saved.clone();
        for (part, value) in form.as_object().expect("parts") {
            file[part] = value.clone();
        }
        let text = file.to_string();
        let text =
            text.replace("\"precompiled_charsmap\":null", &format!("\"precompiled_charsmap\":{table}"));
        let folder = tempfile::tempdir().expect("folder");
        std::fs::write(folder.path().join(TOKENIZER_FILE), text).expect("written");
        compare(&Unigram::read(folder.path(), u64::MAX).expect("a tokenizer"), name);
    }
}

#[test]
fn texts_are_stripped_as_python_strips_them() {
    assert_eq!(strip(" \t\u{1c}\u{a0}a b\u{3000}\u{1f}\u{85}\n"), "a b");
    assert_eq!(strip("\u{200b}a\u{feff}"), "\u{200b}a\u{feff}");
    assert_eq!(strip(" \n"), "");
}
