//! Texts beside the package's: `parity/piper/texts.py`.

use super::*;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

#[derive(serde::Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    voice: String,
    text: String,
    /// Of the text, or of its parts between blocks of phonemes.
    printed: BTreeMap<String, Vec<String>>,
    /// For training, or none.
    #[serde(default)]
    ids: Vec<u32>,
    /// As it is spoken, or none.
    #[serde(default)]
    sentences: Vec<Vec<u32>>,
    #[serde(default)]
    clusters: Vec<Vec<String>>,
}

impl Case {
    fn texts(&self) -> Texts {
        read(&json!({ "espeak": { "voice": self.voice }, "vowel_clusters": self.clusters })).unwrap()
    }

    /// What the package's espeak-ng says.
    fn said(&self, text: &str) -> Result<Vec<String>, String> {
        if text.contains(NO_TUNE) {
            return Ok(Vec::new());
        }
        let text = text.replace("[ ", "[").replace("] ", "]");
        let found = self.printed.iter().find(|(of, _)| of.replace("[ ", "[").replace("] ", "]") == text);
        found.map(|(_, lines)| lines.clone()).ok_or_else(|| format!("nothing of {text:?}"))
    }
}

fn cases() -> Vec<Case> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../parity/piper/fixtures/texts.json");
    let fixture: Fixture = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert!(fixture.cases.len() > 80);
    fixture.cases
}

fn read(config: &Value) -> Result<Texts, RunError> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(CONFIG), config.to_string()).unwrap();
    Texts::read(dir.path())
}

/// Of a voice with its own map.
fn small() -> Texts {
    let map = json!({ "_": [0], "^": 1, "$": [2], "a": [3, 4], ".": 5 });
    read(&json!({ "phoneme_type": "text", "num_symbols": 6, "phoneme_id_map": map })).unwrap()
}

#[test]
fn ids_of_what_was_printed_are_the_packages() {
    for case in cases() {
        let (texts, shown) = (case.texts(), format!("{} {:?}", case.voice, case.text));
        let say = |text: &str| case.said(text);
        if case.sentences.is_empty() {
            let sentences = texts.with(&say, &case.text).unwrap();
            let ids: Vec<u32> = sentences.iter().flat_map(|sentence| texts.ids_of(sentence)).collect();
            assert_eq!(ids, case.ids, "{shown}");
        } else {
            let mut sentences = texts.spoken_with(&say, &case.text).unwrap();
            sentences.retain(|sentence| !sentence.is_empty());
            let ids: Vec<Vec<u32>> = sentences.iter().map(|sentence| texts.ids_of(sentence)).collect();
            assert_eq!(ids, case.sentences, "{shown}");
        }
    }
}

#[test]
fn clauses_are_the_text_together_and_read_one_by_one_where_a_program_has_others() {
    for case in cases() {
        let clauses = clauses(&case.text, &case.voice);
        assert_eq!(clauses.iter().map(|clause| clause.text).collect::<String>(), case.text);
    }
    let texts = read(&json!({ "espeak": { "voice": "en" } })).unwrap();
    let say = |text: &str| match text {
        "Hi. No, b" => Ok(vec!["x".to_owned()]),
        "Hi. " => Ok(vec!["h".to_owned(), "i".to_owned()]),
        other => Ok(vec![other[..1].to_lowercase()]),
    };
    let sentences = texts.with(&say, "Hi. No, b").unwrap();
    assert_eq!(sentences.iter().map(|s| s.concat()).collect::<Vec<_>>(), ["h i.", "n, b"]);
}

#[test]
fn stress_of_a_tune_is_taken_back() {
    let texts = read(&json!({ "espeak": { "voice": "nl" } })).unwrap();
    let said = |again: &'static [&'static str]| {
        let of = |lines: &[&str]| Ok(lines.iter().map(|line| (*line).to_owned()).collect());
        let say = move |text: &str| match text {
            "Dit – huis, twee huizen." => of(&["dˈɪt", "hˈœys", "tʋˈeː hˈœyzən"]),
            "Dit \u{1}V huis \u{1}V" => of(again),
            other => Err(other.to_owned()),
        };
        texts.with(&say, "Dit – huis, twee huizen.").unwrap().concat().concat()
    };
    assert_eq!(said(&["dɪt", "hˈœys"]), "dɪt; hˈœys, tʋˈeː hˈœyzən.");
    // Other phonemes, or other clauses, are no news of stress.
    assert_eq!(said(&["dɪt", "hˈys"]), "dɪt; hˈœys, tʋˈeː hˈœyzən.");
    assert_eq!(said(&["dɪt"]), "dˈɪt; hˈœys, tʋˈeː hˈœyzən.");
}

/// Phonemes are those of the installed version, so only the clauses are those of the fixture. Where none is installed, nothing is tested.
#[test]
fn the_installed_program_has_the_packages_clauses() {
    if program::version().is_err() {
        return;
    }
    for case in cases() {
        for (text, lines) in case.printed.iter().filter(|(text, _)| !text.is_empty()) {
            let printed = program::lines(&case.voice, &apart(text)).unwrap();
            assert_eq!(printed.len(), lines.len(), "{} {text:?}: {printed:?}", case.voice);
        }
    }
    let english = read(&json!({ "espeak": { "voice": "en-us" } })).unwrap();
    assert!(english.ids("Hello. \"Hi.\"").unwrap().ends_with(&[10, 0, 2, 1, 0, 2]));
    assert_eq!(english.sentences("Hello. \"Hi.\"").unwrap().len(), 2);
    // The program stresses both, for the tune of a question.
    assert_eq!(english.phonemes("What? And.").unwrap().concat().concat(), "wˌʌt?ænd.");
    let nobody = read(&json!({ "espeak": { "voice": "xx-nobody" } })).unwrap();
    let why = nobody.ids("Hello.").unwrap_err();
    assert!(why.contains("xx-nobody") && why.contains("--voices"), "{why}");
    let print = |voice: &str| read(&json!({ "espeak": { "voice": voice } })).unwrap().fingerprint().unwrap();
    assert!(print("de") == print("de") && print("de") != print("en-us"));
}

#[test]
fn characters_are_phonemes_where_the_file_says_so() {
    let texts = small();
    assert_eq!(texts.ids("ab\u{e1}.").unwrap(), [1, 0, 3, 4, 0, 3, 4, 0, 5, 0, 2]);
    assert_eq!(texts.sentences("").unwrap(), Vec::<Vec<u32>>::new());
    assert_eq!(texts.ids("").unwrap(), [1, 0, 2]);
    let sentences = texts.spoken("ab\u{e1}. [[x]]").unwrap();
    assert_eq!(texts.unknown(&sentences).into_iter().collect::<String>(), " []bx\u{301}");
    assert_eq!(texts.fingerprint().unwrap(), small().fingerprint().unwrap());
    let other = read(&json!({ "phoneme_type": "text" })).unwrap();
    assert_ne!(texts.fingerprint().unwrap(), other.fingerprint().unwrap());
    let read = small().reader()("a.").unwrap();
    assert_eq!(read.ids, [1, 0, 3, 4, 0, 5, 0, 2]);
    assert_eq!(read.pieces, ["^", "_", "a", "a", "_", ".", "_", "$"]);
}

#[test]
fn the_default_map_is_the_packages() {
    let texts = read(&json!({ "espeak": { "voice": "en" }, "phoneme_id_map": {} })).unwrap();
    assert_eq!(texts.map.len(), 166);
    let id = |phoneme: &str| texts.map.get(phoneme).map(|ids| ids[0]);
    let some =
        [("^", 1), (".", 10), ("ə", 59), ("ˈ", 120), ("\u{327}", 140), ("\"", 150), ("ʷ", 160), ("oʊ", 165)];
    assert!(some.into_iter().all(|(phoneme, of)| id(phoneme) == Some(of)));
}

#[test]
fn files_that_say_something_else_are_refused_by_name() {
    let voice = json!({ "voice": "en" });
    for (config, named) in [
        (json!({ "phoneme_type": "pinyin", "espeak": voice }), "`pinyin` is not made here"),
        (json!({}), "espeak.voice: is missing"),
        (json!({ "espeak": { "voice": "en us; ls" } }), "`en us; ls` is no voice"),
        (json!({ "espeak": { "voice": "" } }), "`` is no voice"),
        (json!({ "espeak": { "voice": "a".repeat(65) } }), "is no voice"),
        (json!({ "espeak": voice, "num_symbols": 100 }), "has the id 1"),
        (json!({ "espeak": voice, "phoneme_id_map": { "_": [0], "^": [1] } }), "has no `$`"),
        (json!({ "espeak": voice, "phoneme_id_map": { "_": [-1] } }), "phoneme_id_map"),
        (json!([1]), "config.json"),
    ] {
        let why = read(&config).unwrap_err().to_string();
        assert!(why.contains("config.json") && (why.contains(named) || named == "phoneme_id_map"), "{why}");
    }
    let dir = tempfile::tempdir().unwrap();
    let why = Texts::read(dir.path()).unwrap_err().to_string();
    assert!(why.contains("NAME.onnx.json"), "{why}");
}

#[test]
fn languages_that_are_changed_to_are_left_out_as_the_package_does() {
    for (line, left) in [
        ("(en)kˈat(de) ist", "kˈat ist"),
        ("a(b", "a(b"),
        ("()a", "()a"),
        ("((a)b)", "b)"),
        ("()(a)b)", "()b)"),
        ("(()a)", "a)"),
    ] {
        assert_eq!(without_switches(line), left, "{line}");
    }
}
