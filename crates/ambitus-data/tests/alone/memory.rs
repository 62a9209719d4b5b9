//! What grows with the data: clips, texts, lines, problems. Each is scaled by a thousand and more, against what is planned for it.

use std::path::{Path, PathBuf};

use crate::counting::{ALONE, peak_of};
use ambitus_data::pack::{self, Capacity, pack};
use ambitus_data::prepare::Edits;
use ambitus_data::updates::{Drawn, Set, UpdateSize, Updates};
use ambitus_data::{
    ClipIndex, DataError, Limits, Policy, PrepareOptions, Prepared, Source, Tokenizer, TokenizerKind,
    prepare, wav,
};

fn options(dir: &Path) -> PrepareOptions {
    let limits = Limits { max_seconds: 1.0, ..Limits::default() };
    PrepareOptions {
        limits,
        policy: Policy::Skip,
        cache: dir.join("cache"),
        threads: 1,
        rate: 24_000,
        edits: Default::default(),
    }
}

fn bytes() -> Tokenizer {
    Tokenizer::new(TokenizerKind::Byte, None).expect("valid")
}

/// A tenth of a second that is different for each number; the shortest that is taken has three.
fn write_clip(path: &Path, i: usize) {
    let samples: Vec<f32> = (0..7300).map(|t| 0.3 * ((t + i) as f32 * 0.1).sin()).collect();
    wav::write_wav(path, &samples, 24_000).expect("written");
}

/// Makes a folder with `n` clips and nothing else.
fn clips(dir: &Path, n: usize) -> PathBuf {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).expect("folder");
    for i in 0..n {
        write_clip(&data.join(format!("clip-{i:05}.wav")), i);
    }
    data
}

/// Reads and prepares; what it allocated at most, and what is planned for that.
fn measured(data: &Path, options: &PrepareOptions) -> (Result<Prepared, DataError>, u64, u64) {
    let tokenizer = bytes();
    let mut planned = 0;
    let (prepared, peak) = peak_of(|| {
        let source = Source::read(data, &options.cache, u64::MAX)?;
        planned = options.memory_bound(&tokenizer, &source);
        prepare(&source, &tokenizer, options, &|_| true)
    });
    println!("{}: {peak} bytes of {planned}", data.display());
    (prepared, peak as u64, planned)
}

/// Bytes beyond the first measurement for each thing more.
fn slope(few: u64, many: u64, more: usize) -> u64 {
    many.saturating_sub(few) / more as u64
}

#[test]
fn clips_take_fixed_bytes_each_new_or_from_the_cache() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    const FEW: usize = 1;
    const MANY: usize = 1000;
    let dir = tempfile::tempdir().expect("folder");
    let (few, many) = (dir.path().join("few"), dir.path().join("many"));
    for (dir, n) in [(&few, FEW), (&many, MANY)] {
        let data = clips(dir, n);
        for i in 0..n {
            std::fs::write(data.join(format!("clip-{i:05}.txt")), format!("Text {i}.")).expect("written");
        }
    }
    for round in ["new", "cached"] {
        let (prepared, base, planned) = measured(&few.join("data"), &options(&few));
        assert_eq!(prepared.expect("prepared").index.len(), FEW);
        assert!(base <= planned, "{round}: {base} of {planned}");
        let (prepared, peak, more_planned) = measured(&many.join("data"), &options(&many));
        let prepared = prepared.expect("prepared");
        assert_eq!((prepared.index.len(), prepared.outcomes.len()), (MANY, MANY));
        assert!(peak <= more_planned, "{round}: {peak} of {more_planned}");
        let (each, planned) = (slope(base, peak, MANY - FEW), slope(planned, more_planned, MANY - FEW));
        // Far less than the kilobytes that a clip took as strings, paths and results of its own.
        assert!(each <= planned && planned < 320, "{round}: {each} bytes a clip, {planned} planned");
        let held = prepared.index.bytes();
        assert!(held / (MANY as u64) < 100, "{held}");
    }
}

/// Of a long file whose voice is brought to a loudness, and of one that is trimmed to a clip or is too long for that: nothing of the sound
/// that is left out is held.
#[test]
fn edits_take_what_is_planned() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech_22k_mono.wav");
    let voice = ambitus_data::audio::load(&fixture, 24_000, 60.0).expect("a fixture");
    for (name, silent) in [("short", 0), ("padded", 15), ("long", 700)] {
        // What is said in less than a twentieth of a file is not heard.
        let samples = [vec![0.0; silent * 24_000], voice.repeat(3)].concat();
        wav::write_wav(&data.join(format!("{name}.wav")), &samples, 24_000).expect("written");
        std::fs::write(data.join(format!("{name}.txt")), "Text.").expect("written");
    }
    for (loudness, trim, usable) in [(None, None, 1), (Some(-23.0), None, 1), (Some(-23.0), Some(0.1), 2)] {
        let mut options = options(&dir.path().join(usable.to_string()));
        options.limits.max_seconds = 10.0;
        options.edits = Edits { loudness, trim };
        let (prepared, peak, planned) = measured(&data, &options);
        let prepared = prepared.expect("prepared");
        assert_eq!(prepared.index.len(), usable, "{:?}", prepared.outcomes.odd);
        assert!(peak <= planned && peak < 6 << 20, "{peak} of {planned}");
    }
}

#[test]
fn an_index_takes_the_bytes_that_it_says() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("index.json");
    let clip = |i: usize| {
        serde_json::json!({"name": format!("clip {i:07}"), "frames": 9, "tokens": 1, "key": "",
            "file": format!("{i:032x}.clip"),
            "measured": {"seconds": 1.0, "rms": 0.1, "peak": 0.2, "clipped": false, "trimmed": false}})
    };
    let all: Vec<_> = (0..20_000).map(clip).collect();
    std::fs::write(&path, serde_json::json!({ "clips": all }).to_string()).expect("written");
    drop(all);
    let (index, peak) = peak_of(|| ClipIndex::load(&path).expect("readable"));
    assert_eq!(index.len(), 20_000);
    // While a vector is copied to one twice as large, half of it is there twice.
    assert!(peak as u64 <= index.bytes() * 3 / 2 + (64 << 10), "{peak} of {}", index.bytes());
}

#[test]
fn texts_of_a_megabyte_are_bad_clips_and_take_no_memory() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    const LONG: usize = 40;
    let dir = tempfile::tempdir().expect("folder");
    let data = clips(dir.path(), LONG + 1);
    let text = |i: usize| "word ".repeat(if i < LONG { 200_000 } else { 2 });
    for kind in ["txt", "csv", "jsonl"] {
        let mut lines = String::new();
        for i in 0..=LONG {
            match kind {
                "txt" => std::fs::write(data.join(format!("clip-{i:05}.txt")), text(i)).expect("written"),
                "csv" => lines += &format!("clip-{i:05}|{}\n", text(i)),
                _ => lines += &format!("{{\"audio\": \"clip-{i:05}\", \"text\": \"{}\"}}\n", text(i)),
            }
        }
        if kind != "txt" {
            let _ = std::fs::remove_file(data.join("metadata.csv"));
            std::fs::write(data.join(format!("metadata.{kind}")), &lines).expect("written");
        }
        drop(lines);
        let (prepared, peak, planned) = measured(&data, &options(dir.path()));
        let prepared = prepared.expect("one clip is good");
        assert_eq!((prepared.summary.clips, prepared.summary.bad), (1, LONG), "{kind}");
        assert!(
            prepared.outcomes.odd[0].to_string().contains("999999 bytes of text"),
            "{:?}",
            prepared.outcomes.odd[0]
        );
        // A line at a time, and what is made of it.
        assert!(peak <= planned && peak < 12 << 20, "{kind}: {peak} of {planned}");
    }
}

#[test]
fn texts_that_fit_no_clip_are_not_tokenised() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let data = clips(dir.path(), 2);
    std::fs::write(data.join("clip-00000.txt"), "Short.").expect("written");
    std::fs::write(data.join("clip-00001.txt"), "你好".repeat(9000)).expect("written");
    let options = options(dir.path());
    let source = Source::read(&data, &options.cache, u64::MAX).expect("readable");
    let mut tokens = vec![" ".to_owned()];
    tokens.extend(('!'..='~').map(String::from));
    let vocab = ambitus_data::Vocab::new(tokens).expect("valid");
    let tokenizer = Tokenizer::new(TokenizerKind::Pinyin, Some(vocab)).expect("valid");
    // Its 18,000 unknown characters are no reason to refuse the vocabulary.
    let prepared = prepare(&source, &tokenizer, &options, &|_| true).expect("prepared");
    let reason = prepared.outcomes.odd[0].to_string();
    assert!(reason.contains("18000 characters of text for 94 frames of the longest clip (1 s)"), "{reason}");
}

#[test]
fn a_long_text_takes_what_is_planned_for_it() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let data = clips(dir.path(), 1);
    let mut options = options(dir.path());
    // As long as the longest clip there can be.
    options.limits.max_seconds = 600.0;
    let mut tokens = vec![" ".to_owned()];
    tokens.extend(('!'..='~').map(String::from));
    let vocab = ambitus_data::Vocab::new(tokens).expect("valid");
    let tokenizer = Tokenizer::new(TokenizerKind::Pinyin, Some(vocab)).expect("valid");
    tokenizer.encode("Once, for the dictionary: 你好.");
    for text in ["word ".repeat(10_000), "x".repeat(50_000), "你好吗".repeat(7_000), "1.".repeat(25_000)] {
        std::fs::write(data.join("clip-00000.txt"), &text).expect("written");
        let source = Source::read(&data, &options.cache, u64::MAX).expect("readable");
        std::fs::write(data.join("clip-00000.txt"), "x").expect("written");
        let short = Source::read(&data, &options.cache, u64::MAX).expect("readable");
        let planned = options.memory_bound(&tokenizer, &source) - options.memory_bound(&tokenizer, &short);
        let (_, peak) = peak_of(|| tokenizer.encode(&text));
        println!("{} bytes: {peak} of {planned}", text.len());
        assert!(peak as u64 <= planned, "{peak} of {planned}");
    }
}

/// Writes metadata of `lines` lines of which one is good.
fn metadata(data: &Path, name: &str, lines: usize, line: &dyn Fn(usize) -> String) {
    use std::io::Write;
    let mut file = std::io::BufWriter::new(std::fs::File::create(data.join(name)).expect("created"));
    for i in 0..lines {
        writeln!(file, "{}", line(i)).expect("written");
    }
}

#[test]
fn lines_that_describe_no_clip_take_no_memory() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    const LINES: usize = 40_000;
    let dir = tempfile::tempdir().expect("folder");
    let data = clips(dir.path(), 1);
    type Line<'a> = (&'a str, &'a str, &'a str, &'a dyn Fn(usize) -> String);
    let kinds: [Line<'_>; 5] = [
        ("missing", "metadata.csv", "clip-00000|good", &|i| format!("missing/clip-{i:07}|some text {i}")),
        ("fields", "metadata.csv", "clip-00000|good", &|i| format!("bad {i}")),
        ("the same", "metadata.csv", "clip-00000|good", &|_| "clip-00000.wav|again".into()),
        ("objects", "metadata.jsonl", r#"{"audio": "clip-00000", "text": "good"}"#, &|i| {
            format!("{{\"x\": {i}}}")
        }),
        ("columns", "metadata.csv", "clip-00000|good", &|i| "|".repeat(i % 100)),
    ];
    for (what, name, good, line) in kinds {
        let mut peaks = Vec::new();
        for lines in [LINES / 1000, LINES] {
            let _ = std::fs::remove_file(data.join("metadata.csv"));
            let lines_of = |i: usize| if i == 0 { good.to_owned() } else { line(i) };
            metadata(&data, name, lines, &lines_of);
            let (prepared, peak, planned) = measured(&data, &options(dir.path()));
            let prepared = prepared.expect("one clip is good");
            assert_eq!(prepared.index.len(), 1, "{what}");
            // Blank lines are none.
            assert!(prepared.summary.bad >= lines - lines / 100 - 1, "{what}: {}", prepared.summary.bad);
            assert_eq!(prepared.outcomes.odd.len(), 20, "{what}");
            assert_eq!(prepared.outcomes.describe().len(), 21, "{what}");
            assert!(peak <= planned);
            peaks.push(peak);
            let file = std::fs::read_to_string(dir.path().join("cache/outcomes.jsonl")).expect("all of them");
            assert_eq!(file.lines().count(), prepared.outcomes.len(), "{what}");
        }
        assert!(peaks[1] < peaks[0] + (128 << 10), "{what}: {peaks:?}");
    }
}

#[test]
fn a_line_without_end_is_a_problem_with_its_number() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let data = clips(dir.path(), 2);
    for (name, good) in [
        ("metadata.csv", ["clip-00000|good", "clip-00001|good"]),
        (
            "metadata.jsonl",
            [r#"{"audio": "clip-00000", "text": "good"}"#, r#"{"audio": "clip-00001", "text": "good"}"#],
        ),
    ] {
        let _ = std::fs::remove_file(data.join("metadata.csv"));
        metadata(&data, name, 3, &|i| match i {
            0 => good[0].to_owned(),
            1 => "x".repeat(40 << 20),
            _ => good[1].to_owned(),
        });
        let (prepared, peak, _) = measured(&data, &options(dir.path()));
        let prepared = prepared.expect("two clips are good");
        assert_eq!(prepared.index.len(), 2);
        let problem = prepared.outcomes.odd[0].to_string();
        assert!(
            problem.contains(&format!("{name}:2: ")) && problem.contains("a line of 41943040 bytes"),
            "{problem}"
        );
        assert!(peak < 8 << 20, "{peak}");
    }
    // A line that is read whole, with as many things in it as there can be.
    for text in [
        "|".repeat(1 << 20),
        format!("{{{}\"z\":1}}", "\"a\":0,".repeat(150_000)),
        format!("{{\"audio\":[{}0]}}", "0,".repeat(500_000)),
    ] {
        let name = if text.starts_with('{') { "metadata.jsonl" } else { "metadata.csv" };
        let _ = std::fs::remove_file(data.join("metadata.csv"));
        metadata(&data, name, 2, &|i| match (i, name) {
            (0, "metadata.csv") => "clip-00000|good".into(),
            (0, _) => r#"{"audio": "clip-00000", "text": "good"}"#.into(),
            _ => text.clone(),
        });
        let (prepared, peak, _) = measured(&data, &options(dir.path()));
        assert_eq!(prepared.expect("one clip is good").index.len(), 1);
        assert!(peak < 8 << 20, "{peak}");
    }
}

#[test]
fn more_clips_than_there_is_room_for_end_the_reading() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let data = clips(dir.path(), 200);
    metadata(&data, "metadata.csv", 200, &|i| format!("clip-{i:05}|good"));
    let read = |room: u64| Source::read(&data, &dir.path().join("cache"), room);
    let needed = read(u64::MAX).expect("readable").held_bytes();
    assert_eq!(read(needed).expect("fits").len(), 200);
    match read(needed / 2) {
        Err(DataError::DoesNotFit { needed: n, room, what }) => {
            assert!(n > room && n < needed, "{n} of {needed}");
            assert!(what.contains("101 clips or more"), "{what}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn forming_updates_and_packing_take_what_is_planned() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for n in [10usize, 1_000, 50_000] {
        let lengths: Vec<u32> = (0..n as u32).map(|i| 40 + i * 7919 % 900).collect();
        let weights: Vec<f32> = (0..n).map(|i| if i % 2 == 0 { 1.1 } else { 0.9 }).collect();
        let sizes = [UpdateSize::Clips(5), UpdateSize::Frames(8000)];
        let two = [(n / 10, 9.0), (n - n / 10, 1.0)].map(|(clips, weight)| Set { clips, weight });
        let weights = [(&[][..], &[][..]), (&weights, &[]), (&[], &two)];
        for (size, (weights, sets)) in sizes.into_iter().flat_map(|size| weights.map(|of| (size, of))) {
            let (_, peak) = peak_of(|| {
                let drawn = Drawn { frames: &lengths, weights, sets };
                let mut updates = Updates::new(&drawn, size, 7).expect("formed");
                // Into the third epoch.
                let uses = updates.by_ref().map(|u| u.len()).scan(0, |sum, n| {
                    *sum += n;
                    Some(*sum)
                });
                uses.take_while(|sum| *sum < 5 * n / 2).count()
            });
            let planned = Updates::bytes_of(n, !weights.is_empty());
            assert!(peak as u64 <= planned, "{n} clips: {peak} of {planned}");
        }
        let n = n.min(2_000);
        for capacity in [Capacity { frames: 1000, clips: 64 }, Capacity { frames: 50_000, clips: 64 }] {
            let (packed, peak) = peak_of(|| pack(&lengths[..n], capacity).expect("packed"));
            let planned = pack::bytes_of(n);
            println!("{n} clips into {}: {peak} of {planned}", packed.len());
            assert!(peak as u64 <= planned, "{n} clips into {}: {peak} of {planned}", packed.len());
        }
    }
}
