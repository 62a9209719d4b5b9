//! `ambitus clips` through the real binary.

use crate::common::{ambitus, json, ok, root, said, xtts};
use std::fs;
use std::path::Path;

/// Writes sentences of 4 s with seconds of silence after each, from the voice of a fixture.
fn talk(path: &Path, pauses: &[f64]) {
    let voice =
        fs::read(root().join("crates/ambitus-data/tests/fixtures/speech_22k_mono.wav")).expect("a fixture");
    let (header, voice) = voice.split_at(44);
    let mut samples = vec![0u8; 22_050];
    for pause in pauses {
        (0..5).for_each(|_| samples.extend(voice));
        samples.resize(samples.len() + 2 * (pause * 22_050.0) as usize, 0);
    }
    let mut file = header.to_vec();
    file[4..8].copy_from_slice(&(samples.len() as u32 + 36).to_le_bytes());
    file[40..44].copy_from_slice(&(samples.len() as u32).to_le_bytes());
    file.extend(samples);
    fs::write(path, file).expect("a file");
}

#[test]
fn clips_are_listed_and_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    talk(&dir.join("talk.wav"), &[0.8, 0.8, 0.5]);
    let listed = json(dir, &["clips", "talk.wav", "-o", "out", "--json", "--threads", "2"]);
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), 3);
    for (i, clip) in listed.iter().enumerate() {
        let keys: Vec<_> = clip.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, ["end", "file", "source", "start"]);
        assert_eq!(clip["source"], "talk.wav");
        assert!(dir.join(clip["file"].as_str().expect("a path")).is_file());
        let middle =
            (clip["start"].as_f64().expect("seconds") + clip["end"].as_f64().expect("seconds")) / 2.0;
        assert!((middle - (2.5 + 4.8 * i as f64)).abs() < 0.3, "{clip}");
    }
    let (code, words) = said(dir, &["clips", "talk.wav", "-o", "out"]);
    assert!(code == 0 && words.contains("3 were there"), "{words}");
    // A model's own limit.
    let (code, words) = said(
        dir,
        &[
            "clips",
            "talk.wav",
            "-o",
            "b",
            "--max-seconds",
            "20",
            "--model",
            &xtts("base").display().to_string(),
        ],
    );
    assert!(code == 2 && words.contains("that the model takes"), "{words}");
    ok(dir, &["clips", "talk.wav", "-o", "b", "--max-seconds", "20", "--min-seconds", "6"]);
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    talk(&dir.join("talk.wav"), &[0.8]);
    let refused = |args: &[&str], code: i32, words: &str| {
        let out = ambitus(dir, args);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(code) && text.contains(words), "{args:?}: {code}, {text}");
        assert!(out.stdout.is_empty() && !dir.join("out").exists());
    };
    refused(&["clips", "none.wav", "-o", "out", "--json"], 5, "none.wav");
    refused(&["clips", "talk.wav", "-o", "out", "--max-seconds", "0"], 2, "--max-seconds");
    refused(&["clips", "talk.wav", "-o", "out", "--min-seconds", "11"], 2, "--min-seconds");
    refused(&["clips", "talk.wav", "-o", "."], 2, "not empty");
    fs::write(
        dir.join("talk.srt"),
        "1\n00:00:01,000 --> 00:00:02,000\nOne.\n\n2\n00:00:01,500 --> 00:00:03,000\nTwo.\n",
    )
    .expect("a file");
    refused(&["clips", "talk.wav", "-o", "out"], 5, "talk.srt:6: ");
    fs::write(dir.join("cut.wav"), &fs::read(dir.join("talk.wav")).expect("a file")[..9000]).expect("a file");
    refused(&["clips", "cut.wav", "-o", "out"], 5, "cut.wav: truncated");
}
