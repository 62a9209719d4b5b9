//! From a folder to checked, cached clips.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use ambitus_data::prepare::{Cause, PrepareOptions, Progress, Verdict};
use ambitus_data::sources::{Entry, Format};
use ambitus_data::{
    ClipIndex, ClipMeta, DataError, Limits, OUTCOMES_FILE, Outcome, Policy, Prepared, Source, Tokenizer,
    TokenizerKind, Vocab, load_clip, prepare, read_index,
};

pub fn write_tone(path: &Path, seconds: f64, lead: f64, level: f32) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).expect("created");
    let silent = (lead * 16_000.0) as usize;
    for i in 0..(seconds * 16_000.0) as usize + 2 * silent {
        let inside = i >= silent && i < silent + (seconds * 16_000.0) as usize;
        let x = if inside { (i as f32 * 0.1).sin() * level } else { 0.0 };
        writer.write_sample((x * 32767.0) as i16).expect("written");
    }
    writer.finalize().expect("finished");
}

pub fn put(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::write(path, bytes).expect("written");
}

pub fn english() -> Tokenizer {
    let mut tokens = vec![" ".to_owned()];
    tokens.extend(('!'..='~').map(String::from));
    tokens.push("é".into());
    Tokenizer::new(TokenizerKind::Pinyin, Some(Vocab::new(tokens).expect("valid"))).expect("valid")
}

pub fn options(dir: &Path) -> PrepareOptions {
    PrepareOptions {
        limits: Limits::default(),
        policy: Policy::Skip,
        cache: dir.join("cache"),
        threads: 2,
        rate: 24_000,
        edits: Default::default(),
    }
}

/// Reads a data set; what is read lies in the system's folder for such things.
fn source(path: &Path) -> Result<Source, DataError> {
    Source::read(path, &std::env::temp_dir(), u64::MAX)
}

pub fn entries(source: &Source) -> Vec<Entry> {
    source.entries().map(|e| e.expect("readable")).collect()
}

pub fn problems(source: &Source) -> Vec<Outcome> {
    source.problems.iter().map(|o| o.expect("readable")).collect()
}

pub fn run(dir: &Path, options: &PrepareOptions) -> Result<Prepared, DataError> {
    prepare(&source(&dir.join("data"))?, &english(), options, &|_| true)
}

/// The clips as the index file has them.
fn clips(options: &PrepareOptions) -> Vec<ClipMeta> {
    let mut clips = Vec::new();
    let all = read_index(&options.cache.join("index.json"), |clip| {
        clips.push(clip);
        Ok(())
    });
    all.expect("readable");
    clips
}

fn names(index: &ClipIndex) -> Vec<&str> {
    (0..index.len()).map(|i| index.name(i)).collect()
}

fn outcome(prepared: &Prepared, name: &str) -> Outcome {
    let mut all = prepared.outcomes.iter().map(|o| o.expect("readable"));
    all.find(|o| o.name == name).unwrap_or_else(|| panic!("{name} is missing"))
}

fn reason(prepared: &Prepared, name: &str) -> String {
    match outcome(prepared, name).verdict {
        Verdict::Ok { .. } => "ok".to_owned(),
        Verdict::Bad { reason, .. } | Verdict::Outside { reason } => reason,
    }
}

#[test]
fn every_clip_is_used_or_reported() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(data.join("wavs")).expect("folder");
    let wavs = data.join("wavs");
    write_tone(&wavs.join("good.wav"), 1.0, 0.0, 0.3);
    write_tone(&wavs.join("windows.wav"), 1.0, 0.0, 0.3);
    write_tone(&wavs.join("short.wav"), 0.1, 0.0, 0.3);
    write_tone(&wavs.join("long.wav"), 31.0, 0.0, 0.3);
    write_tone(&wavs.join("padded.wav"), 20.0, 8.0, 0.3);
    write_tone(&wavs.join("silent.wav"), 1.0, 0.0, 0.0);
    write_tone(&wavs.join("loud.wav"), 1.0, 0.0, 1.6);
    write_tone(&wavs.join("wordy.wav"), 0.5, 0.0, 0.3);
    put(&wavs.join("broken.wav"), b"RIFF....WAVE");
    let mut csv = "\u{feff}audio_file|text|speaker_name\r\n".to_owned();
    for (name, text) in [
        ("wavs/good.wav", r#""She said ""caf\u00e9"" | no\yes.""#),
        (r"wavs\windows.wav", "One. Two. Three."),
        ("wavs/short.wav", "Short."),
        ("wavs/long.wav", "Long."),
        ("wavs/padded.wav", "Padded."),
        ("wavs/silent.wav", "Silent."),
        ("wavs/loud.wav", "Loud."),
        ("wavs/broken.wav", "Broken."),
        ("wavs/missing.wav", "Missing."),
        ("../outside.wav", "Outside."),
        ("wavs/empty.wav", "  "),
    ] {
        csv += &format!("{name}|{text}|me\r\n");
    }
    csv += &format!("wavs/wordy.wav|{}|me\r\n", "word ".repeat(30));
    csv += "wavs/good.wav|Again.|me\r\nonly one field\r\n";
    put(&data.join("metadata.csv"), &csv);

    let read = source(&data).expect("readable");
    assert_eq!(read.format, Format::Csv);
    let first = entries(&read).into_iter().find(|e| e.name == "wavs/good.wav").expect("found");
    assert_eq!(first.text, r#"She said "caf\u00e9" | no\yes."#);
    assert_eq!(first.line, 2);

    let options = options(dir.path());
    let prepared = run(dir.path(), &options).expect("prepared");
    assert_eq!(names(&prepared.index), ["wavs/good.wav", "wavs/loud.wav", r"wavs\windows.wav"]);
    for (name, expected) in [
        ("wavs/short.wav", "shorter than 0.3 s"),
        ("wavs/long.wav", "longer than 30 s"),
        ("wavs/padded.wav", "longer than 30 s"),
        ("wavs/silent.wav", "nothing to hear"),
        ("wavs/broken.wav", "wavs/broken.wav"),
        ("wavs/missing.wav", "no such audio file"),
        ("../outside.wav", "`..`"),
        ("wavs/wordy.wav", "one text position per frame"),
        ("only one field", "1 field(s)"),
    ] {
        assert!(reason(&prepared, name).contains(expected), "{name}: {}", reason(&prepared, name));
    }
    let shown = prepared.outcomes.describe();
    assert!(shown.iter().any(|line| line.contains("metadata.csv:15")), "duplicate has its line");
    let summary = &prepared.summary;
    assert_eq!((summary.clips, summary.outside, summary.bad), (3, 3, 8));
    assert_eq!(summary.outside + summary.bad + summary.clips, prepared.outcomes.len());
    assert_eq!(prepared.outcomes.iter().count(), prepared.outcomes.len());
    let causes: Vec<(Cause, usize)> = summary.causes.iter().map(|(cause, n)| (*cause, *n)).collect();
    let expected = [
        (Cause::Metadata, 1),
        (Cause::NoAudio, 3),
        (Cause::Twice, 1),
        (Cause::Transcript, 1),
        (Cause::Audio, 1),
        (Cause::Silent, 1),
    ];
    assert_eq!(causes, expected);
    assert_eq!((summary.over_two_sentences.count, summary.loud.count), (1, 1));
    assert_eq!(summary.over_two_sentences.first, [r"wavs\windows.wav"]);
    assert_eq!(summary.loud.first, ["wavs/loud.wav"]);
    assert_eq!(summary.clipped.first, ["wavs/loud.wav"]);
    assert_eq!(summary.silent.first, ["wavs/silent.wav"]);
    assert!(summary.to_string().contains("8 bad (1 unreadable lines, 3 without audio"), "{summary}");
    assert!(summary.to_string().contains("3 clips"));

    let cut = PrepareOptions { policy: Policy::Cut, ..options.clone() };
    let prepared = run(dir.path(), &cut).expect("prepared");
    assert_eq!(prepared.summary.trimmed.first, ["wavs/padded.wav"]);
    let padded = clips(&cut).into_iter().find(|c| c.name == "wavs/padded.wav").expect("used");
    // Twenty seconds of tone with 0.1 s kept at both ends.
    assert!((padded.measured.seconds - 20.2).abs() < 0.05, "{}", padded.measured.seconds);
    assert!(reason(&prepared, "wavs/long.wav").contains("transcript cannot be cut"));

    let refuse = PrepareOptions { policy: Policy::Refuse, ..options };
    match run(dir.path(), &refuse) {
        Err(DataError::OutsideLimits { clips, lines }) => {
            assert_eq!(clips, 3);
            assert!(lines.iter().any(|line| line.contains("short.wav")), "{lines:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn cache_is_resumed_repaired_and_keyed_by_content() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    for i in 0..6 {
        write_tone(&data.join(format!("{i}.wav")), 0.5 + 0.1 * f64::from(i), 0.0, 0.3);
        put(&data.join(format!("{i}.txt")), format!("Clip {i}."));
    }
    let options = options(dir.path());
    let read = source(&data).expect("readable");
    assert_eq!(read.format, Format::Folder);
    // Stopped in the middle, then continued.
    let seen = AtomicUsize::new(0);
    let stopping = |_: Progress<'_>| seen.fetch_add(1, Ordering::Relaxed) < 2;
    assert!(matches!(prepare(&read, &english(), &options, &stopping), Err(DataError::Stopped)));
    let first = run(dir.path(), &options).expect("prepared");
    assert!((2..6).contains(&first.summary.cached), "{}", first.summary.cached);
    assert_eq!(first.index.len(), 6);
    let metas = clips(&options);

    let one_thread = PrepareOptions { threads: 1, cache: dir.path().join("other"), ..options.clone() };
    let other = run(dir.path(), &one_thread).expect("prepared");
    assert_eq!(clips(&one_thread), metas, "threads change nothing");
    assert_eq!(other.index.digest(), first.index.digest());
    // Of every clip its name and key in hexadecimal digits.
    let mut digest = blake3::Hasher::new();
    for clip in &metas {
        digest.update(&(clip.name.len() as u64).to_le_bytes());
        digest.update(clip.name.as_bytes());
        digest.update(clip.key.as_bytes());
        assert_eq!(clip.file, format!("{}.clip", &clip.key[..32]));
    }
    assert_eq!(first.index.digest(), digest.finalize().to_hex().to_string());

    // The index stands without the audio.
    let loaded = ClipIndex::load(&options.cache.join("index.json")).expect("readable");
    assert_eq!(loaded, *first.index);
    let before = load_clip(&loaded.path(3)).expect("readable");
    assert_eq!(before.frames(), loaded.frames()[3] as usize);
    assert_eq!(before.ids.len(), metas[3].tokens as usize);

    // Any damage is noticed, and prepared again to the same content.
    let path = loaded.path(3);
    let good = std::fs::read(&path).expect("readable");
    for at in [0, 9, 41, 70, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        put(&path, &bad);
        assert!(load_clip(&path).is_err(), "byte {at}");
    }
    put(&path, &good[..good.len() / 2]);
    assert!(load_clip(&path).is_err());
    let repaired = run(dir.path(), &options).expect("prepared");
    assert_eq!(repaired.summary.cached, 5);
    assert_eq!(load_clip(&path).expect("readable"), before);

    // Other text or audio is another clip.
    put(&data.join("3.txt"), "Other words.");
    write_tone(&data.join("4.wav"), 0.7, 0.0, 0.2);
    let changed = run(dir.path(), &options).expect("prepared");
    assert_eq!(changed.summary.cached, 4);
    assert_ne!(changed.index.digest(), first.index.digest());
    let leftovers = std::fs::read_dir(&options.cache)
        .expect("folder")
        .filter(|f| f.as_ref().is_ok_and(|f| f.file_name().as_encoded_bytes().starts_with(b".")))
        .count();
    assert_eq!(leftovers, 0);
}

#[test]
fn metadata_in_its_other_forms() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(data.join("wavs")).expect("folder");
    for name in ["LJ001-0001", "LJ001-0002", "LJ001-0003"] {
        write_tone(&data.join(format!("wavs/{name}.wav")), 0.5, 0.0, 0.3);
    }
    let texts = |source: &Source| -> Vec<String> { entries(source).into_iter().map(|e| e.text).collect() };
    put(
        &data.join("metadata.csv"),
        "LJ001-0001|It cost $1|It cost one dollar\nLJ001-0002|\"Quoted,\" he said|\nLJ001-0003|a\\b\n",
    );
    let read = source(&data).expect("readable");
    assert_eq!(read.format, Format::Headerless);
    assert_eq!(texts(&read), ["It cost one dollar", "\"Quoted,\" he said", "a\\b"]);
    assert!(read.problems.is_empty());

    // Not UTF-8: the file and the line.
    put(&data.join("metadata.csv"), b"LJ001-0001|fine\nLJ001-0002|caf\xe9\n");
    let error = source(&data).expect_err("not UTF-8").to_string();
    assert!(error.contains("metadata.csv:2:") && error.contains("UTF-8"), "{error}");
    put(&data.join("metadata.csv"), b"LJ001-0001|bin\0ary\n");
    assert!(source(&data).expect_err("binary").to_string().contains("metadata.csv:1:"));
    put(&data.join("metadata.csv"), "no bars at all\n");
    assert!(source(&data).is_err());

    std::fs::remove_file(data.join("metadata.csv")).expect("removed");
    let absolute = data.join("wavs/LJ001-0003.wav");
    put(
        &data.join("train.jsonl"),
        format!(
            "{}\n\n{}\n{}\nnot json\n{}\n{}\n",
            r#"{"audio_filepath": "wavs/LJ001-0001.wav", "text": "One\nline", "duration": 1.5}"#,
            r#"{"audio": {"path": "LJ001-0002"}, "sentence": "Two"}"#,
            serde_json::json!({"path": absolute, "transcription": "Three"}),
            r#"{"path": "wavs/LJ001-0001.wav", "text": "a", "text": "b"}"#,
            r#"{"path": "wavs/LJ001-0001.wav"}"#,
        ),
    );
    let read = source(&data).expect("readable");
    assert_eq!(read.format, Format::Jsonl);
    let mut found = texts(&read);
    found.sort();
    assert_eq!(found, ["One line", "Three", "Two"]);
    let lines: Vec<_> = problems(&read).iter().map(|p| p.line).collect();
    assert_eq!(lines, [Some(5), Some(6), Some(7)]);
    // A metadata file may be given itself.
    assert_eq!(entries(&source(&data.join("train.jsonl")).expect("readable")), entries(&read));
    put(&data.join("eval.jsonl"), "");
    assert!(source(&data).expect_err("two files").to_string().contains("several metadata files"));
}

#[cfg(unix)]
#[test]
fn links_do_not_lead_out_of_the_folder() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    write_tone(&dir.path().join("secret.wav"), 0.5, 0.0, 0.3);
    write_tone(&data.join("inside.wav"), 0.5, 0.0, 0.3);
    std::os::unix::fs::symlink(dir.path().join("secret.wav"), data.join("link.wav")).expect("linked");
    std::os::unix::fs::symlink(data.join("inside.wav"), data.join("near.wav")).expect("linked");
    std::os::unix::fs::symlink("/etc/passwd", data.join("inside.txt")).expect("linked");
    put(&data.join("link.txt"), "Text.");
    put(&data.join("near.txt"), "Text.");
    let read = source(&data).expect("readable");
    let names: Vec<_> = entries(&read).into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["near.wav"]);
    assert_eq!(read.problems.len(), 2);
    assert!(problems(&read).iter().all(|p| p.to_string().contains("outside the data folder")));

    // As metadata names them, through folders too.
    std::fs::create_dir(data.join("wavs")).expect("folder");
    std::fs::rename(data.join("inside.wav"), data.join("wavs/inside.wav")).expect("renamed");
    std::fs::remove_file(data.join("near.wav")).expect("removed");
    std::os::unix::fs::symlink("wavs/inside.wav", data.join("near.wav")).expect("linked");
    std::os::unix::fs::symlink(dir.path(), data.join("out")).expect("linked");
    std::os::unix::fs::symlink(data.join("wavs"), data.join("around")).expect("linked");
    std::fs::create_dir(data.join("folder.wav")).expect("folder");
    let lines =
        ["inside", "near.wav", "around/inside.wav", "link.wav", "out/secret.wav", "folder.wav", "a/b"];
    let csv: String = lines.iter().map(|name| format!("{name}|Text.\n")).collect();
    put(&data.join("metadata.csv"), csv);
    let read = source(&data).expect("readable");
    let names: Vec<_> = entries(&read).into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["around/inside.wav", "inside", "near.wav"]);
    let reasons: Vec<String> = problems(&read).iter().map(ToString::to_string).collect();
    for (name, why) in [
        ("link.wav", "outside the data folder"),
        ("out/secret.wav", "outside the data folder"),
        ("folder.wav", "no such audio file (folder.wav, wavs/folder.wav)"),
        ("a/b", "wavs/a/b, or either with .wav"),
    ] {
        assert!(reasons.iter().any(|r| r.contains(name) && r.contains(why)), "{name}: {reasons:#?}");
    }
}

#[test]
fn transcripts_and_vocabularies_that_cannot_be_used() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    for name in ["a", "b", "c", "d", "e"] {
        write_tone(&data.join(format!("{name}.wav")), 3.0, 0.0, 0.3);
    }
    put(&data.join("a.txt"), "\u{feff}Fine é.\r\n");
    put(&data.join("b.txt"), b"first\ncaf\xe9");
    put(&data.join("c.txt"), " \n");
    put(&data.join("d.txt"), b"\x7fELF\0\0");
    let options = options(dir.path());
    let prepared = run(dir.path(), &options).expect("prepared");
    assert_eq!(reason(&prepared, "a.wav"), "ok");
    let shown = |name: &str| outcome(&prepared, name).to_string();
    assert!(shown("b.wav").contains("b.txt:2:") && shown("b.wav").contains("UTF-8"));
    assert!(reason(&prepared, "c.wav").contains("empty transcript"));
    assert!(reason(&prepared, "d.wav").contains("binary"));
    assert!(reason(&prepared, "e.wav").contains("no transcript"));

    // One unknown token in two hundred is listed; one in ten ends the pass.
    put(&data.join("b.txt"), format!("{}ж", "x".repeat(200)));
    let prepared = run(dir.path(), &options).expect("prepared");
    assert_eq!(prepared.summary.unknown, [("ж".to_owned(), 1)]);
    put(&data.join("b.txt"), "xxxxxxxxжжж");
    put(&data.join("f.wav"), b"RIFF....WAVE");
    put(&data.join("f.txt"), "Broken.");
    match run(dir.path(), &options) {
        Err(error @ DataError::UnknownTokens { .. }) => {
            // What else is wrong does not have to wait for another vocabulary.
            let text = error.to_string();
            for part in [
                "3 of ",
                "\"ж\" x 3",
                "--extend-vocab",
                "append",
                "e.wav: not used: no transcript",
                "f.wav: not used",
            ] {
                assert!(text.contains(part), "{text}");
            }
            let DataError::UnknownTokens { missing, tokens, .. } = error else { unreachable!() };
            assert_eq!((missing, tokens), (3, vec![("ж".to_owned(), 3)]));
            assert!(options.cache.join(OUTCOMES_FILE).is_file());
        }
        other => panic!("{other:?}"),
    }
    for (text, line) in [("", 1), ("a\nb\n", 1), (" \na\na\n", 3), (" \n\nb\n", 2)] {
        let path = dir.path().join("vocab.txt");
        put(&path, text);
        let error = Vocab::read(&path).expect_err("not a vocabulary").to_string();
        assert!(error.contains(&format!("vocab.txt:{line}:")), "{error}");
    }
    put(&dir.path().join("vocab.txt"), " \r\na\r\n");
    let vocab = Vocab::read(&dir.path().join("vocab.txt")).expect("valid");
    assert_eq!((vocab.len(), vocab.id("a")), (2, Some(1)));
    let empty = dir.path().join("nothing");
    std::fs::create_dir_all(&empty).expect("folder");
    assert!(matches!(source(&empty), Err(DataError::NoClips { .. })));
}

#[test]
fn split_follows_the_list_or_a_tenth() {
    let dir = tempfile::tempdir().expect("folder");
    let index = |clips: usize| {
        let mut index = ClipIndex::new(dir.path(), "clip");
        for i in 0..clips {
            let clip = ClipMeta {
                name: format!("wavs/{i:03}.wav"),
                frames: 10,
                tokens: 2,
                context: 0,
                weight: 1.0,
                measured: Default::default(),
                file: format!("{i:032x}.clip"),
                key: String::new(),
            };
            index.push(&clip).expect("sound");
        }
        index
    };
    let all = index(40);
    assert_eq!((all.name(7), all.path(10)), ("wavs/007.wav", dir.path().join(format!("{:032x}.clip", 10))));
    let split = all.split_share(0.1, 7).expect("split");
    assert_eq!((split.train.len(), split.validation.len()), (36, 4));
    assert_eq!(split, all.split_share(0.1, 7).expect("split"));
    assert_ne!(split, all.split_share(0.1, 8).expect("split"));
    let list = ["wavs/003.wav".to_owned(), "010".into(), "020.wav".into()];
    assert_eq!(all.split(&list).expect("split").validation, [3, 10, 20]);
    assert!(all.split(&["nobody".to_owned()]).is_err());
    assert_eq!(index(2).split_share(0.1, 7).expect("split").validation.len(), 1);
    assert_eq!(index(1).split_share(0.1, 7).expect("split").validation.len(), 0);
    assert!(index(1).split(&["000".to_owned()]).is_err());
    assert!(index(0).split_share(0.1, 7).is_err());
    put(&dir.path().join("index.json"), r#"{"clips": [{"name": "a", "file": "../../x"}]}"#);
    assert!(ClipIndex::load(&dir.path().join("index.json")).is_err());
}
