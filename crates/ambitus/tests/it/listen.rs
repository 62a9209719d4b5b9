//! `ambitus prepare --page` through the real binary, and the corrections that it saves.

use crate::common::{json, ok, recipe, said, voice};
use std::fs;

#[test]
fn a_page_is_written_and_its_corrections_are_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 4);
    let before = fs::read(data.join("clip00.wav")).expect("a file");
    let data_text = data.to_str().expect("a path");
    let found = json(dir, &["prepare", "--data", data_text, "--page", "--json"]);
    assert_eq!(found["clips"].as_array().map(Vec::len), Some(4));
    assert_eq!(found["page"].as_str(), data.join("listen.html").to_str());
    let page = fs::read_to_string(data.join("listen.html")).expect("a page");
    assert!(page.contains("\"name\":\"clip02.wav\",\"link\":\"./clip02.wav\""), "{page}");
    let csv =
        "audio_file|text|verdict\n\"clip01.wav\"|\"a fabled 12\"|\n\"clip02.wav\"||drop\nclip09.wav||keep\n";
    fs::write(data.join("corrections.csv"), csv).expect("a file");
    let text = ok(dir, &["prepare", "--data", data_text, "--page", "there.html", "--threads", "1"]);
    assert!(
        text.contains("1 clip left out by corrections.csv") && text.contains("open there.html"),
        "{text}"
    );
    let page = fs::read_to_string(dir.join("there.html")).expect("a page");
    assert!(page.contains("\"corrected\":\"a fabled 12\"") && page.contains("\"keep\":false"), "{page}");

    // Training reads them too.
    let recipe = recipe(dir, "run", "updates: 2");
    let result = json(dir, &["prepare", recipe.to_str().expect("a path"), "--json"]);
    let outcomes = result["outcomes"].as_array().expect("a list");
    let of = |name: &str| outcomes.iter().find(|o| o["name"] == name).expect("an outcome");
    assert_eq!(
        (&result["summary"]["clips"], &result["summary"]["causes"]["dropped"]),
        (&3.into(), &1.into())
    );
    assert_eq!((&of("clip02.wav")["cause"], &of("clip02.wav")["line"]), (&"dropped".into(), &3.into()));
    assert!(
        of("clip09.wav")["reason"].as_str().is_some_and(|why| why.contains("corrects no clip")),
        "{result:#}"
    );
    assert_eq!(fs::read(data.join("clip00.wav")).expect("a file"), before);
}

#[test]
fn a_page_that_cannot_be_is_refused_before_anything_is_measured() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let data = voice(dir, 1);
    let data = data.to_str().expect("a path");
    for (code, words, args) in [
        (2, "--data DIR", &["--page"][..]),
        (2, "must end with .html", &["--data", data, "--page", "voice/clip00.txt"]),
        (2, "no folder", &["--data", data, "--page", "none/a.html"]),
        (5, "none", &["--data", "none", "--page"]),
    ] {
        let (got, text) = said(dir, &[&["prepare"], args].concat());
        assert!(got == code && text.contains(words), "{args:?}: {got}: {text}");
    }
}
