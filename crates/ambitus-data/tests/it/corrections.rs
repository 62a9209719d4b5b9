//! `corrections.csv` beside a data set, and what is wrong with it.

use std::fs;
use std::path::Path;

use ambitus_data::check::{self, Options};
use ambitus_data::sources::{Correction, Source, corrections};
use ambitus_data::{Cause, DataError, Verdict, wav};

const ROOM: u64 = 1 << 20;

fn sounds(dir: &Path, names: &[&str]) {
    for (i, name) in names.iter().enumerate() {
        let tone = |at: usize| 0.3 * ((at * (i + 3)) as f32 * 0.02).sin();
        wav::write_wav(&dir.join(name), &(0..8000).map(tone).collect::<Vec<_>>(), 8000).expect("a file");
    }
}

fn read(path: &Path) -> Result<Source, DataError> {
    Source::read(path, &std::env::temp_dir(), ROOM)
}

/// Returns names, texts and the files that say so.
fn texts(source: &Source) -> Vec<(String, String, String)> {
    let file = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let all = source.entries().map(|entry| entry.expect("an entry"));
    all.map(|entry| (entry.name, entry.text, file(&entry.file))).collect()
}

/// Returns the names, lines and reasons of what cannot be used, and what kind that is of.
fn problems(source: &Source) -> Vec<(String, Option<u64>, Cause, String)> {
    let all = source.problems.iter().map(|odd| odd.expect("an outcome"));
    all.map(|odd| match odd.verdict {
        Verdict::Bad { cause, reason } => (odd.name, odd.line, cause, reason),
        other => panic!("{other:?}"),
    })
    .collect()
}

#[test]
fn texts_are_replaced_and_clips_left_out_however_they_are_written_down() {
    type Write = fn(&Path);
    let csv: Write = |dir| {
        fs::write(
            dir.join("metadata.csv"),
            "audio_file|text|speaker_id\na.wav|one|v\nb.wav|two|v\nc.wav|three|v\n",
        )
        .expect("a file");
    };
    let headerless: Write =
        |dir| fs::write(dir.join("metadata.csv"), "a.wav|one\nb.wav|two\nc.wav|three\n").expect("a file");
    let lines: Write = |dir| {
        let line = |name: &str, text: &str| format!("{{\"audio\": \"{name}\", \"text\": \"{text}\"}}\n");
        let all = line("a.wav", "one") + &line("b.wav", "two") + &line("c.wav", "three");
        fs::write(dir.join("data.jsonl"), all).expect("a file");
    };
    // A text that is corrected need not have been there.
    let folder: Write = |dir| {
        fs::write(dir.join("a.txt"), "one").expect("a file");
        fs::write(dir.join("c.txt"), "three").expect("a file");
    };
    for (i, write) in [csv, headerless, lines, folder].into_iter().enumerate() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path();
        sounds(dir, &["a.wav", "b.wav", "c.wav"]);
        write(dir);
        let csv =
            "audio_file|text|verdict\na.wav||keep\nb.wav|\"two | \"\"zwei\"\" 二\"|\nc.wav|thrice|drop\n";
        fs::write(dir.join("corrections.csv"), csv).expect("a file");
        let source = read(dir).expect("a data set");
        let found = texts(&source);
        assert_eq!(found.len(), 2, "{i}: {found:?}");
        assert_eq!((&*found[0].0, &*found[0].1), ("a.wav", "one"), "{i}");
        let corrected = ("b.wav".to_owned(), "two | \"zwei\" 二".to_owned(), "corrections.csv".to_owned());
        assert_eq!(found[1], corrected, "{i}");
        let dropped = ("c.wav".to_owned(), Some(4), Cause::Dropped, "left out by hand".to_owned());
        assert_eq!(problems(&source), [dropped], "{i}");
        let before = Source::read_uncorrected(dir, &std::env::temp_dir(), ROOM).expect("a data set");
        assert_eq!(before.find("c.wav"), Some(before.len() - 1), "{i}");
        assert_eq!(before.find("d.wav"), None);
        assert!(texts(&before).iter().all(|(_, text, _)| ["one", "two", "three"].contains(&&**text)), "{i}");
    }
}

#[test]
fn what_is_wrong_with_corrections_is_named_by_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    sounds(dir, &["a.wav", "b.wav"]);
    fs::write(dir.join("metadata.csv"), "audio_file|text\na.wav|one\nb.wav|two\n").expect("a file");
    let path = dir.join("corrections.csv");
    let csv = "audio_file|text|verdict\na.wav|eins|\nz.wav|gone|\na.wav|uno|\nb.wav||maybe\n|x|keep\nb.wav|\u{7}|\n";
    fs::write(&path, csv).expect("a file");
    let source = read(dir).expect("a data set");
    assert_eq!(texts(&source).iter().map(|(name, ..)| &**name).collect::<Vec<_>>(), ["a.wav"]);
    assert_eq!(texts(&source)[0].1, "eins");
    let found = problems(&source);
    for (line, words) in [
        (3, "no clip of the data"),
        (4, "line 2 corrects this clip already"),
        (5, "\"maybe\" is neither keep nor drop"),
        (6, "no audio file named"),
        (7, "binary data in the transcript"),
    ] {
        let named = found.iter().any(|(_, at, _, why)| *at == Some(line) && why.contains(words));
        assert!(named, "{line}: {words}: {found:?}");
    }
    let expected = Correction { line: 2, text: Some("eins".to_owned()), keep: None };
    assert_eq!(corrections(dir).expect("a file")[0], ("a.wav".to_owned(), expected));
    // The whole file is doubtful.
    for (bytes, words) in [
        (&b"a.wav,eins\n"[..], "corrections.csv:1: not a header of corrections"),
        (b"\xff\xfea\0", "UTF-16"),
        (b"audio_file|text\na.wav|\xff\n", "corrections.csv:2"),
    ] {
        fs::write(&path, bytes).expect("a file");
        let why = read(dir).expect_err("refused").to_string();
        assert!(why.contains(words), "{words}: {why}");
    }
    fs::write(&path, "").expect("a file");
    assert_eq!(texts(&read(dir).expect("a data set")).len(), 2);
    fs::write(&path, "audio_file|verdict\n".to_owned() + &"a.wav|keep\n".repeat(50_000)).expect("a file");
    assert!(matches!(read(dir), Err(DataError::DoesNotFit { .. })));
}

#[test]
fn a_clip_that_is_left_out_is_not_checked() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    sounds(dir, &["a.wav", "b.wav"]);
    fs::write(dir.join("metadata.csv"), "audio_file|text\na.wav|one\nb.wav|two\n").expect("a file");
    fs::write(dir.join("corrections.csv"), "audio_file|text|verdict\nb.wav||drop\n").expect("a file");
    let options = Options { threads: 1, room: ROOM, advised: None, progress: &|_, _| true };
    let checked = check::check::<DataError>(dir, &std::env::temp_dir(), &options, None).expect("a data set");
    assert_eq!((checked.clips.len(), checked.set.dropped), (1, 1));
    assert!(checked.verdict.iter().any(|said| said.contains("1 clip left out by corrections.csv")));
    let clip = &checked.clips[0];
    assert!((clip.seconds - 1.0).abs() < 0.01 && clip.outline.iter().max() == Some(&255), "{clip:?}");
}
