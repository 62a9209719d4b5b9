//! Data sets in several files or folders.

use crate::prepare::{english, entries, options, problems, put, run, write_tone};
use ambitus_data::sources::{Audio, DataSet, Sets, split_described};
use ambitus_data::{Source, prepare};

/// A data set in two halves, each with its file, and the language beside them, as AllTalk makes it.
#[test]
fn a_second_file_says_which_clips_are_held_out() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(data.join("wavs")).expect("folder");
    let csv = |names: &[&str]| {
        let line = |name: &&str| format!("wavs/{name}.wav|Words of {name}.|coqui\n");
        "audio_file|text|speaker_name\n".to_owned() + &names.iter().map(line).collect::<String>()
    };
    for name in ["voice_00000001", "voice_00000002", "voice_00000003", "short"] {
        let seconds = if name == "short" { 0.1 } else { 1.0 };
        write_tone(&data.join(format!("wavs/{name}.wav")), seconds, 0.0, 0.3);
    }
    put(&data.join("metadata_train.csv"), csv(&["voice_00000001", "voice_00000003"]));
    put(&data.join("metadata_eval.csv"), csv(&["short", "voice_00000002"]));
    put(&data.join("lang.txt"), "en\n");
    let prepared = run(dir.path(), &options(dir.path())).expect("prepared");
    assert_eq!(prepared.index.len(), 3);
    let split = |file: &str| split_described(&prepared.index, &Sets::from(&data.join(file)), dir.path());
    let held_out = split("metadata_eval.csv").expect("described");
    assert_eq!((&*held_out.train, &*held_out.validation), (&[0, 2][..], &[1][..]));
    assert_ne!(held_out.digest(), split("metadata_train.csv").expect("described").digest());
    put(&data.join("other.csv"), csv(&["short", "voice_9"]));
    let why = split("other.csv").expect_err("none of them").to_string();
    assert!(why.contains("other.csv: describes no usable clip"), "{why}");
    assert!(split("none.csv").is_err());
}

#[test]
fn several_sets_are_one_list_whose_names_begin_with_theirs() {
    let dir = tempfile::tempdir().expect("folder");
    let sets = ["b", "a b", "a"].map(|name| {
        let path = dir.path().join("data").join(name);
        std::fs::create_dir_all(&path).expect("folder");
        for i in 0..2 + name.len() {
            write_tone(&path.join(format!("{i}.wav")), 1.0, 0.0, 0.3);
            put(&path.join(format!("{i}.txt")), format!("words {i}"));
        }
        let voice = (name == "b").then(|| "leo".to_owned());
        DataSet { path, name: Some(name.to_owned()), voice }
    });
    put(&sets[2].path.join("metadata_eval.csv.txt"), "lonely");
    let all = Sets::new(sets.to_vec());
    let source = Source::read(&all, dir.path(), u64::MAX).expect("read");
    let listed = entries(&source);
    assert_eq!(listed.len(), 3 + 5 + 3);
    for entry in &listed {
        let (set, file) = entry.name.split_once('/').expect("a set");
        let path = &sets.iter().find(|of| of.name.as_deref() == Some(set)).expect("known").path;
        assert_eq!(entry.audio, Audio::File(path.join(file)));
        assert_eq!(entry.voice.as_deref(), (set == "b").then_some("leo"));
    }
    assert_eq!(problems(&source)[0].name, "a/metadata_eval.csv.txt");
    let options = options(dir.path());
    let index = prepare(&source, &english(), &options, &|_| true).expect("prepared").index;
    assert_eq!([index.of_set("a"), index.of_set("a b"), index.of_set("b")], [5..8, 0..5, 8..11]);
    assert_eq!((index.of_set("c"), index.of_set("A")), (11..11, 0..0));
    // Each may bring a file that says which of its clips are held out.
    put(&sets[0].path.join("eval.csv"), "audio_file|text\n1.wav|words\n");
    let eval = DataSet { path: sets[0].path.join("eval.csv"), ..sets[0].clone() };
    let split = split_described(&index, &Sets::new(vec![eval]), dir.path()).expect("described");
    let held_out: Vec<&str> = split.validation.iter().map(|i| index.name(*i)).collect();
    assert_eq!(held_out, ["b/1.wav"]);
    // One that has nothing is not passed over.
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).expect("folder");
    let with = [sets[0].clone(), DataSet { path: empty, name: Some("c".into()), voice: None }];
    let why = Source::read(Sets::new(with.to_vec()), dir.path(), u64::MAX).expect_err("empty").to_string();
    assert!(why.contains("empty: no usable clip: no metadata.csv"), "{why}");
}
