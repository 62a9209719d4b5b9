//! `ambitus prepare --check` through the real binary.

use crate::common::{self, json, ok, root, said, voice};
use std::fs;

#[test]
fn a_data_set_is_checked_without_a_model_and_nothing_is_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 4);
    fs::write(data.join("clip03.wav"), "RIFF").expect("a file");
    let data = data.to_str().expect("a path");
    let found = json(dir, &["prepare", "--data", data, "--check", "--json", "--threads", "2"]);
    let clips = found["clips"].as_array().expect("a list");
    assert_eq!(clips.len(), 4);
    let kinds = |clip: &serde_json::Value| -> Vec<String> {
        let issues = clip["issues"].as_array().expect("a list");
        issues.iter().map(|issue| issue["kind"].as_str().expect("a word").to_owned()).collect()
    };
    assert_eq!((clips[0]["name"].as_str(), clips[0]["doubt"].as_f64()), (Some("clip03.wav"), Some(1.0)));
    assert_eq!(kinds(&clips[0])[0], "unreadable");
    assert!(clips.iter().all(|clip| kinds(clip).contains(&"digits".to_owned())), "{found}");
    assert!(clips.iter().all(|clip| clip["file"].as_str().is_some_and(|file| file.contains("clip"))));
    assert!(found["verdict"][0].as_str().is_some_and(|said| said.contains("4 clips should be looked at")));
    assert_eq!(found["set"]["clips"], 4);
    // Words first, the table after.
    let text = ok(dir, &["prepare", "--data", data, "--check"]);
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
    assert!(at("should be looked at") < at("doubt  clip") && at("doubt  clip") < at("digits: \"12\""));
    // What is advised is the model's.
    let advised = |model: &str| said(dir, &["prepare", "--data", data, "--check", "--model", model]);
    let (code, text) = advised(&common::orpheus("tied").display().to_string());
    assert!(
        code == 0 && text.contains("better 300 clips, are advised (Orpheus-TTS's README)"),
        "{code}: {text}"
    );
    let (code, text) = advised(&common::fixture("v1").display().to_string());
    assert!(
        code == 0 && text.contains("are advised (users of F5-TTS): there are 0.0 min, too little"),
        "{text}"
    );
    assert_eq!(advised(data).0, 4);
    let names: Vec<_> =
        fs::read_dir(dir).expect("a folder").map(|item| item.expect("a file").file_name()).collect();
    assert_eq!(names, ["voice"]);
}

/// The model of `parity/whisper/fixtures/heard` has random weights: to it no text is as likely as its own.
#[test]
fn texts_are_held_against_what_is_heard() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 2);
    let [data, model] =
        [data, root().join("parity/whisper/fixtures/heard")].map(|path| path.display().to_string());
    let found =
        json(dir, &["prepare", "--data", &data, "--check", &model, "--json", "--check-language", "en"]);
    for clip in found["clips"].as_array().expect("a list") {
        let of_text =
            |issue: &&serde_json::Value| issue["kind"] == "other-text" && issue["proposed"].is_string();
        assert!(clip["issues"].as_array().expect("a list").iter().find(of_text).is_some(), "{found:#}");
    }
    let names: Vec<_> =
        fs::read_dir(dir).expect("a folder").map(|item| item.expect("a file").file_name()).collect();
    assert_eq!(names, ["voice"]);
    let (code, text) = said(dir, &["prepare", "--data", &data, "--check", &data]);
    assert!(code == 4 && text.contains("--check"), "{code}: {text}");
}

#[test]
fn what_cannot_be_checked_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    fs::create_dir(dir.join("empty")).expect("a folder");
    for (code, words, args) in [
        (2, "--data DIR --check", &["--check"][..]),
        (5, "no usable clip", &["--data", "empty", "--check"]),
        (5, "none", &["--data", "none", "--check"]),
    ] {
        let (got, text) = said(dir, &[&["prepare"], args].concat());
        assert!(got == code && text.contains(words), "{args:?}: {got}: {text}");
    }
}
