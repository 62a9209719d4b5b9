//! Texts beside the package's: `parity/xtts_text/record.py`.

use super::*;
use serde::Deserialize;
use std::path::PathBuf;

#[derive(Deserialize)]
struct Case {
    language: String,
    text: String,
    cleaned: String,
    ids: Vec<u32>,
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../parity/xtts_text/fixtures")
}

fn texts(cleaned: bool) -> Texts {
    Texts::read(&fixtures(), u64::MAX, cleaned).unwrap()
}

fn cases(json: &str) -> Vec<Case> {
    serde_json::from_str(json).unwrap()
}

#[test]
fn texts_are_cleaned_and_spelled_as_the_package_does() {
    let all = cases(&std::fs::read_to_string(fixtures().join("vectors.json")).unwrap());
    let (texts, taken) = (texts(false), texts(true));
    assert!(all.len() > 80);
    for case in &all {
        let shown = format!("{} {:?}", case.language, case.text);
        assert_eq!(cleaned(&case.text, &case.language, &texts.syllables).unwrap(), case.cleaned, "{shown}");
        assert_eq!(texts.encode(&case.text, &case.language).unwrap(), case.ids, "{shown}");
        assert_eq!(taken.encode(&case.cleaned, &case.language).unwrap(), case.ids, "{shown}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let texts = texts(false);
    for (text, language, says) in [
        ("Es sind 5 Leute.", "de", "numbers (5) in German"),
        ("안녕하세요", "ko", "Korean is written in Latin letters"),
        ("こんにちは", "ja", "Japanese is written in Latin letters"),
        ("hello", "fi", "`fi` is none of the model's: en, zh"),
        (&"9".repeat(400), "en", "400 digits"),
        (&format!("{}元", "9".repeat(1001)), "zh-cn", "1001 digits"),
    ] {
        let why = texts.encode(text, language).unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
        assert!(language == "fi" || why.contains("with --cleaned (`xtts: {cleaned: true}`)"), "{why}");
    }
    // What the package cleaned is taken as it is, where the file has the language.
    let taken = self::texts(true);
    assert!(taken.encode("annyeonghaseyo", "ko").is_ok());
    assert!(taken.encode("moi", "fi").unwrap_err().to_string().contains("vocab.json: has no [fi]"));
}

#[test]
fn ends_and_unknown_characters_are_known() {
    let texts = texts(false);
    assert_eq!(texts.bpe().piece(texts.stop).as_deref(), Some("[STOP]"));
    let refused = |text: &str| texts.refused(&texts.encode(text, "en").unwrap());
    assert_eq!(refused("all is known."), None);
    assert!(refused("ж ☃").unwrap().contains("does not have"));
    assert!(refused("an end [STOP]").is_none(), "in lower case it is a word in brackets");
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::read_to_string(fixtures().join(VOCAB_FILE)).unwrap();
    std::fs::write(dir.path().join(VOCAB_FILE), file.replace("[START]", "[BEGIN]")).unwrap();
    let why = Texts::read(dir.path(), u64::MAX, false).err().unwrap().to_string();
    assert!(why.contains("vocab.json: has no [START]"), "{why}");
    let why = Texts::read(&fixtures(), 1000, false).err().unwrap().to_string();
    assert!(why.contains("vocab.json"), "{why}");
}

#[test]
fn a_data_set_names_its_language() {
    let dir = tempfile::tempdir().unwrap();
    let csv = dir.path().join("metadata_train.csv");
    std::fs::write(&csv, "audio_file|text|speaker_name\n").unwrap();
    assert_eq!(language_of(dir.path()).unwrap(), None);
    std::fs::write(dir.path().join("lang.txt"), "zh\n").unwrap();
    for data in [dir.path(), &csv] {
        assert_eq!(language_of(data).unwrap().as_deref(), Some("zh"));
    }
    std::fs::write(dir.path().join("lang.txt"), "fi").unwrap();
    // The data's fault, as that of a file that is no text.
    let why = language_of(&csv).unwrap_err();
    assert!(why.exit_code() == 5 && why.to_string().contains("lang.txt: language `fi` is none"), "{why}");
    std::fs::write(dir.path().join("lang.txt"), [0xff]).unwrap();
    let why = language_of(&csv).unwrap_err();
    assert!(why.exit_code() == 5 && why.to_string().contains("lang.txt: "), "{why}");
}

#[test]
fn a_reader_gives_ids_and_their_pieces() {
    let reader = texts(false).reader("en").unwrap();
    let read = reader("Hi 5").unwrap();
    let pieces: String = read.pieces.concat();
    assert_eq!(pieces, "[en]hi[SPACE]five");
    assert_eq!(read.ids.len(), read.pieces.len());
    assert!(texts(false).reader("fi").is_err());
    assert!(texts(false).reader("de").unwrap()("5").is_err());
}
