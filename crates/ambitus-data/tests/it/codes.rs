//! Speech as codes beside descriptions: the passes over a data set, with a toy codec, encoder and tokenizer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ambitus_data::codes::{
    Codec, CodesOptions, Counts, Encoder, Frames, Rows, Texts, code_lengths, load_code_clip, load_states,
    longest_description, prepare_codes, prepare_states,
};
use ambitus_data::prepare::Verdict;
use ambitus_data::{ClipIndex, DataError, Limits, Policy, PrepareOptions, Prepared, Source, load_clip, wav};

const RATE: u32 = 44_100;
const FRAME: usize = 512;
const CODEBOOKS: usize = 3;
const WIDTH: usize = 4;

/// Ids are the lengths of words, and an end.
struct Words(u8);

impl Words {
    fn ids(text: &str) -> Vec<u32> {
        text.split(' ').map(|word| 2 + word.len() as u32).chain([1]).collect()
    }
}

impl Texts for Words {
    fn prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        if text.contains('#') { Err("the sign # cannot be read".into()) } else { Ok(Self::ids(text)) }
    }

    fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(Self::ids(text))
    }

    fn fingerprint(&self) -> [u8; 32] {
        [self.0; 32]
    }
}

/// States are made of ids.
#[derive(Default)]
struct Numbers {
    calls: usize,
    fails: bool,
}

impl Encoder for Numbers {
    fn states(&mut self, ids: &[u32]) -> Result<Vec<f32>, String> {
        self.calls += 1;
        if self.fails {
            return Err("out of memory".into());
        }
        Ok(ids.iter().flat_map(|id| [*id as f32 * 0.5; WIDTH]).collect())
    }

    fn width(&self) -> usize {
        WIDTH
    }
}

/// Codes made of the samples' own frames, so that a test can follow them.
#[derive(Default)]
struct Hashing {
    calls: usize,
    longest: usize,
    short: bool,
}

fn codes_of(samples: &[f32]) -> Vec<Vec<u32>> {
    let code = |frame: &[f32], k: usize| {
        let mut hash = blake3::Hasher::new();
        frame.iter().for_each(|x| {
            hash.update(&x.to_le_bytes());
        });
        u32::from(hash.finalize().as_bytes()[k])
    };
    (0..CODEBOOKS).map(|k| samples.chunks(FRAME).map(|frame| code(frame, k)).collect()).collect()
}

impl Codec for Hashing {
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<Vec<u32>>, String> {
        assert!(!samples.is_empty() && samples.len().is_multiple_of(FRAME), "whole frames");
        self.calls += 1;
        self.longest = self.longest.max(samples.len());
        let mut codes = codes_of(samples);
        if self.short {
            codes[1].pop();
        }
        Ok(codes)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [7; 32]
    }
}

/// A rising tone at a rate of its own.
fn write_tone(path: &Path, seconds: f64, rate: u32, level: f32) {
    let n = (seconds * f64::from(rate)) as usize;
    let tone: Vec<f32> = (0..n).map(|i| (i as f32 * (0.02 + i as f32 * 1e-7)).sin() * level).collect();
    wav::write_wav(path, &tone, rate).expect("written");
}

const CLEAR: &str = "Tara speaks clearly.";

fn data(dir: &Path) -> PathBuf {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).expect("folder");
    let long = "word ".repeat(40);
    let mut lines = String::new();
    for (name, seconds, rate, level, description, text) in [
        ("a", 1.0, 24_000, 0.3, CLEAR, " The boy laughed. "),
        ("b", 0.7, 16_000, 0.3, CLEAR, "Again."),
        ("c", 0.5, 44_100, 0.3, "A slow, deep voice.", "It is 12:30."),
        ("bare", 0.6, 44_100, 0.3, "", "No description."),
        ("brief", 0.02, 44_100, 0.3, CLEAR, "Hm."),
        ("long", 5.0, 8_000, 0.3, CLEAR, "Too long."),
        ("quiet", 1.0, 8_000, 0.0, CLEAR, "Silence."),
        ("sign", 1.0, 8_000, 0.2, CLEAR, "A # in it."),
        ("verbose", 1.0, 8_000, 0.2, long.as_str(), "Much is said of it."),
        ("wordy", 0.4, 8_000, 0.2, CLEAR, &"w ".repeat(300)),
    ] {
        write_tone(&data.join(format!("{name}.wav")), seconds, rate, level);
        lines += &format!("{name}.wav|{text}|{description}\n");
    }
    std::fs::write(data.join("metadata.csv"), format!("audio_file|text|description\n{lines}"))
        .expect("written");
    data
}

fn options(dir: &Path) -> PrepareOptions {
    let limits = Limits { min_seconds: 0.0, max_seconds: 3.0, ..Limits::default() };
    PrepareOptions {
        limits,
        policy: Policy::Skip,
        cache: dir.join("cache"),
        threads: 2,
        rate: RATE,
        edits: Default::default(),
    }
}

/// Prompt, frames and delays; descriptions stand beside them.
fn rows(counts: Counts) -> Result<Rows, String> {
    let Counts { prompt, frames, description } = counts;
    match frames > 1 {
        true => Ok(Rows { own: prompt + frames + CODEBOOKS, context: description }),
        false => Err(format!("{frames} frames are too few")),
    }
}

fn codes() -> CodesOptions<'static> {
    CodesOptions {
        description: None,
        most_description: 30,
        draws: 0,
        frames: Frames { codebooks: CODEBOOKS, samples: FRAME },
        rows: &rows,
        spec: "toy-v1",
    }
}

fn read(path: &Path) -> Result<Source, DataError> {
    Source::read_described(path, None, &std::env::temp_dir(), u64::MAX)
}

#[derive(Default)]
struct Toys {
    encoder: Numbers,
    codec: Hashing,
}

impl Toys {
    fn run(&mut self, dir: &Path, codes: &CodesOptions<'_>) -> Result<Prepared, DataError> {
        self.with(dir, codes, &Words(1))
    }

    fn with(&mut self, dir: &Path, codes: &CodesOptions<'_>, texts: &Words) -> Result<Prepared, DataError> {
        let (source, options) = (read(&dir.join("data"))?, options(dir));
        prepare_states(&source, texts, (&mut self.encoder, &[9; 32]), codes, &options, &|_| true)?;
        prepare_codes(&source, texts, (&mut self.codec, [9; 32]), codes, &options, &|_| true)
    }
}

fn reason(prepared: &Prepared, name: &str) -> String {
    let mut all = prepared.outcomes.iter().map(|o| o.expect("readable"));
    match all.find(|o| o.name == name).expect("listed").verdict {
        Verdict::Ok { .. } => "ok".to_owned(),
        Verdict::Bad { reason, .. } | Verdict::Outside { reason } => reason,
    }
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir.join("cache")).expect("folder").map(|f| f.expect("file").path());
    all.filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}

#[test]
fn audio_text_and_descriptions_become_clips_of_codes() {
    let dir = tempfile::tempdir().expect("folder");
    let data = data(dir.path());
    let mut toys = Toys::default();
    let prepared = toys.run(dir.path(), &codes()).expect("prepared");
    let index = &prepared.index;
    let names: Vec<_> = (0..index.len()).map(|i| index.name(i)).collect();
    assert_eq!(names, ["a.wav", "b.wav", "c.wav"]);
    for (name, expected) in [
        ("bare.wav", "no description: give one in a column or key `description`"),
        ("brief.wav", "1 frames are too few"),
        ("long.wav", "longer than 3 s"),
        ("quiet.wav", "nothing to hear"),
        ("sign.wav", "# cannot be read"),
        ("verbose.wav", "41 tokens of description; at least one and at most 30"),
        ("wordy.wav", "599 characters of text, more than 300, which nobody says in the 3 s"),
    ] {
        assert!(reason(&prepared, name).contains(expected), "{name}: {}", reason(&prepared, name));
    }
    assert_eq!((prepared.summary.clips, prepared.summary.outside, prepared.summary.bad), (3, 2, 5));
    assert!(prepared.summary.to_string().contains("2 by their descriptions"), "{}", prepared.summary);
    assert!(toys.codec.longest <= 3 * RATE as usize);
    // Two clips have one description, and what none can use is not encoded.
    assert_eq!((toys.encoder.calls, files(dir.path(), "states").len()), (2, 2));

    for (i, (name, text, description)) in [
        ("a", "The boy laughed.", CLEAR),
        ("b", "Again.", CLEAR),
        ("c", "It is 12:30.", "A slow, deep voice."),
    ]
    .into_iter()
    .enumerate()
    {
        let samples =
            ambitus_data::audio::load(&data.join(format!("{name}.wav")), RATE, 3.0).expect("readable");
        // What is no whole frame is cut off.
        let frames = samples.len() / FRAME;
        assert!(samples.len() > frames * FRAME);
        let mut clip = load_code_clip(&index.path(i)).expect("readable");
        assert_eq!(clip.codes, codes_of(&samples[..frames * FRAME]).concat());
        assert_eq!((&clip.prompt, clip.codebooks), (&Words::ids(text), CODEBOOKS));
        let ids = Words::ids(description);
        assert_eq!(index.frames()[i] as usize, Words::ids(text).len() + frames + CODEBOOKS);
        let states = load_states(index.folder(), &clip, None, WIDTH).expect("readable");
        assert_eq!(states, Numbers::default().states(&ids).expect("states"));
        assert!(load_states(index.folder(), &clip, None, WIDTH - 1).is_err());
        clip.described -= 1;
        assert!(load_states(index.folder(), &clip, None, WIDTH).is_err());
        assert!(load_clip(&index.path(i)).is_err(), "not a clip of mel frames");
    }
    assert_eq!(index.context(), 5);
    assert_eq!(ClipIndex::load(&dir.path().join("cache/index.json")).expect("readable"), **index);

    // One description for all that have none; a clip's own goes before it.
    let fixed = CodesOptions { description: Some(format!(" {CLEAR} ")), ..codes() };
    let described = toys.run(dir.path(), &fixed).expect("prepared");
    assert_eq!((described.summary.clips, described.summary.cached, toys.encoder.calls), (4, 3, 2));
    assert_eq!(reason(&described, "bare.wav"), "ok");
}

#[test]
fn lengths_are_those_of_the_clips() {
    let dir = tempfile::tempdir().expect("folder");
    let data = data(dir.path());
    let (source, options) = (read(&data).expect("readable"), options(dir.path()));
    let texts = Words(1);
    assert_eq!(longest_description(&source, &texts, &codes()).expect("readable"), 5);
    let lengths = code_lengths(&source, &texts, &codes(), &options, &|_| true).expect("measured");
    assert!(!dir.path().join("cache").exists());
    let prepared = Toys::default().run(dir.path(), &codes()).expect("prepared");
    assert_eq!(lengths.index.frames(), prepared.index.frames());
    assert_eq!((lengths.index.context(), lengths.up_to(0.8).context()), (5, 5));
}

#[test]
fn clips_of_codes_are_resumed_repaired_and_keyed_by_what_they_depend_on() {
    let dir = tempfile::tempdir().expect("folder");
    let data = data(dir.path());
    let (source, options, texts) = (read(&data).expect("readable"), options(dir.path()), Words(1));
    let mut toys = Toys::default();
    // Stopped after the first description, and then after the first clip.
    let encoder = (&mut toys.encoder as &mut dyn Encoder, &[9; 32]);
    let stopped = prepare_states(&source, &texts, encoder, &codes(), &options, &|_| false);
    assert!(matches!(stopped, Err(DataError::Stopped)));
    assert_eq!(toys.encoder.calls, 1);
    let encoder = (&mut toys.encoder as &mut dyn Encoder, &[9; 32]);
    prepare_states(&source, &texts, encoder, &codes(), &options, &|_| true).expect("prepared");
    let seen = AtomicUsize::new(0);
    let stopping = |_: ambitus_data::prepare::Progress<'_>| seen.fetch_add(1, Ordering::Relaxed) < 1;
    let codec = (&mut toys.codec as &mut dyn Codec, [9; 32]);
    let stopped = prepare_codes(&source, &texts, codec, &codes(), &options, &stopping);
    assert!(matches!(stopped, Err(DataError::Stopped)));
    let first = toys.run(dir.path(), &codes()).expect("prepared");
    // One of the four is too short for the model.
    assert_eq!((toys.encoder.calls, toys.codec.calls), (2, 4), "nothing is made twice");

    // Any damage is noticed and mended.
    let (path, whole) = (first.index.path(0), load_code_clip(&first.index.path(0)).expect("whole"));
    // Of the first two, "a.wav" and "b.wav", which have one description.
    let states = files(dir.path(), "states");
    let states = states.into_iter().find(|path| {
        let good = std::fs::read(path).expect("readable");
        std::fs::write(path, []).expect("written");
        let is_its = load_states(first.index.folder(), &whole, None, WIDTH).is_err();
        std::fs::write(path, &good).expect("written");
        is_its
    });
    for path in [&path, &states.expect("one of them")] {
        let good = std::fs::read(path).expect("readable");
        let load = || match path.extension().is_some_and(|e| e == "codes") {
            true => load_code_clip(path).map(|_| ()),
            false => load_states(first.index.folder(), &whole, None, WIDTH).map(|_| ()),
        };
        load().expect("whole");
        for at in [0, 9, 41, 45, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(path, &bad).expect("written");
            assert!(load().is_err(), "byte {at}");
        }
        let mut lying = good.clone();
        lying[40..48].fill(0xff);
        lying[72..80].fill(0xff);
        std::fs::write(path, &lying).expect("written");
        assert!(load().expect_err("lying").to_string().contains("wrong length"));
        std::fs::write(path, &good[..good.len() / 2]).expect("written");
        assert!(load().is_err());
    }
    let mended = toys.run(dir.path(), &codes()).expect("prepared");
    assert_eq!(*mended.index, *first.index);
    assert_eq!((toys.encoder.calls, toys.codec.calls), (3, 5));

    // Another tokenizer makes all anew; so does another description, of the clips that have it.
    let other = toys.with(dir.path(), &codes(), &Words(2)).expect("prepared");
    assert_ne!(other.index.digest(), first.index.digest());
    assert_eq!((toys.encoder.calls, toys.codec.calls), (5, 9));
    let metadata = std::fs::read_to_string(data.join("metadata.csv")).expect("readable");
    let changed = metadata.replace("A slow, deep voice.", "A slow and deep voice.");
    std::fs::write(data.join("metadata.csv"), changed).expect("written");
    let changed = toys.run(dir.path(), &codes()).expect("prepared");
    assert_ne!(changed.index.digest(), first.index.digest());
    assert_eq!((toys.encoder.calls, toys.codec.calls), (6, 10));
}

#[test]
fn what_is_wrong_with_encoder_or_codec_ends_the_pass() {
    let dir = tempfile::tempdir().expect("folder");
    data(dir.path());
    let mut toys = Toys { encoder: Numbers { fails: true, ..Numbers::default() }, ..Toys::default() };
    let error = toys.run(dir.path(), &codes()).expect_err("fails").to_string();
    assert!(error.contains("a.wav: the text encoder failed on its description: out of memory"), "{error}");
    toys.encoder.fails = false;
    toys.codec.short = true;
    let error = toys.run(dir.path(), &codes()).expect_err("fails").to_string();
    assert!(error.contains("where 3 codebooks of"), "{error}");
    assert!(files(dir.path(), "codes").is_empty());
}

#[test]
fn data_without_any_description_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    write_tone(&data.join("a.wav"), 1.0, RATE, 0.3);
    std::fs::write(data.join("a.txt"), "Text.").expect("written");
    let error = Toys::default().run(dir.path(), &codes()).expect_err("none").to_string();
    assert!(error.contains("a.wav: not used: no description") && error.contains("--description"), "{error}");
    let fixed = CodesOptions { description: Some(CLEAR.to_owned()), ..codes() };
    assert_eq!(Toys::default().run(dir.path(), &fixed).expect("prepared").index.len(), 1);
}

/// Descriptions are read from JSON lines as well, and only where they are asked for.
#[test]
fn descriptions_are_read_where_they_are_asked_for() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path();
    for name in ["a", "b", "c", "d"] {
        write_tone(&data.join(format!("{name}.wav")), 0.5, RATE, 0.3);
    }
    let long = "x".repeat(9000);
    let lines = [
        r#"{"audio": "a.wav", "text": "One.", "text_description": " Fast,\nloud. ", "description": "of another kind"}"#,
        r#"{"audio": "b.wav", "text": "Two.", "description": "Slow."}"#,
        r#"{"audio": "c.wav", "text": "Three.", "description": null}"#,
        &format!(r#"{{"audio": "d.wav", "text": "Four.", "description": "{long}"}}"#),
    ];
    std::fs::write(data.join("metadata.jsonl"), lines.join("\n")).expect("written");
    let of = |source: Source| -> Vec<Option<String>> {
        source.entries().map(|e| e.expect("readable").description).collect()
    };
    let source = read(data).expect("readable");
    let problem = source.problems.odd[0].to_string();
    assert!(
        problem.contains("metadata.jsonl:4") && problem.contains("a description of 9000 bytes; at most 4096"),
        "{problem}"
    );
    assert_eq!(source.longest_description(), 11);
    assert_eq!(of(source), [Some("Fast, loud.".to_owned()), Some("Slow.".to_owned()), None]);
    let plain = Source::read(data, &std::env::temp_dir(), u64::MAX).expect("readable");
    assert_eq!((plain.len(), plain.longest_description()), (4, 0));
    assert_eq!(of(plain), [None, None, None, None]);
}

/// A second data set is compared with the first row by row, or has the names of audio and any order.
#[test]
fn descriptions_stand_in_a_second_data_set() {
    let dir = tempfile::tempdir().expect("folder");
    let (data, second) = (dir.path().join("data"), dir.path().join("second.jsonl"));
    std::fs::create_dir_all(&data).expect("folder");
    for name in ["a", "b", "c"] {
        write_tone(&data.join(format!("{name}.wav")), 0.5, RATE, 0.3);
    }
    let read = |second: &Path| Source::read_described(&data, Some(second), &std::env::temp_dir(), u64::MAX);
    let of = |source: &Source| -> Vec<Option<String>> {
        source.entries().map(|e| e.expect("readable").description).collect()
    };
    // Rows of one are those of the other, also of what cannot be used; a clip's own goes after it.
    let first = [
        r#"{"audio": "b.wav", "text": "Two.", "id": 2, "description": "Its own."}"#,
        r#"{"audio": "gone.wav", "text": "Gone.", "id": 3}"#,
        r#"{"audio": "a.wav", "text": "One.", "id": "1"}"#,
        r#"{"audio": "c.wav", "text": "Three."}"#,
    ];
    std::fs::write(data.join("metadata.jsonl"), first.join("\n")).expect("written");
    let rows = |last: &str| {
        let lines = [
            r#"{"text_description": "Of two.", "id": "2"}"#,
            r#"{"text_description": "Of nothing.", "id": "3"}"#,
            r#"{"text_description": null, "id": 1}"#,
            last,
        ];
        std::fs::write(&second, lines.join("\n")).expect("written");
        read(&second)
    };
    let source = rows(r#"{"text_description": "Of three.", "id": "77"}"#).expect("readable");
    let described = [None, Some("Of two.".to_owned()), Some("Of three.".to_owned())];
    assert_eq!(of(&source), described);
    let error = rows("").expect_err("too few").to_string();
    assert!(error.contains("second.jsonl: has no row for") && error.contains("metadata.jsonl:4"), "{error}");
    let error = rows("{}\n{}").expect_err("too many").to_string();
    assert!(error.contains("second.jsonl:5: there are more rows than in the data"), "{error}");
    let source = rows("not JSON").expect("readable");
    let problem = source.problems.odd.iter().find(|o| o.name == "c.wav").expect("named").to_string();
    assert!(problem.contains("not a JSON object"), "{problem}");
    std::fs::write(&second, "{\"description\": \"Of two.\", \"id\": \"1\"}").expect("written");
    let error = read(&second).expect_err("another").to_string();
    assert!(error.contains("second.jsonl:1: the row of \"2\" has the id \"1\""), "{error}");

    // With names, in another order and with more of them.
    let named = dir.path().join("named.csv");
    let lines = "description|audio_file\nOf three.|./c.wav\nOf more.|more.wav\nOf two.|b.wav\n";
    std::fs::write(&named, lines).expect("written");
    assert_eq!(of(&read(&named).expect("readable")), described);
    std::fs::remove_file(data.join("metadata.jsonl")).expect("removed");
    for name in ["a", "b", "c"] {
        std::fs::write(data.join(format!("{name}.txt")), "Text.").expect("written");
    }
    assert_eq!(of(&read(&named).expect("readable")), described);
    // Audio files in a folder have no order.
    let error = read(&second).expect_err("no order").to_string();
    assert!(error.contains("name each one's audio (audio_file"), "{error}");
    std::fs::write(&second, "").expect("written");
    assert!(read(&second).expect_err("nothing").to_string().contains("no rows with descriptions"));
    std::fs::write(&named, "audio_file|text\na.wav|x\n").expect("written");
    assert!(
        read(&named).expect_err("none").to_string().contains("no column of descriptions (text_description")
    );
}
