//! Parquet files as pyarrow writes them (`parity/orpheus/record_parquet.py` has the formulas), whole and damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ambitus_data::prepare::Verdict;
use ambitus_data::sources::Format;
use ambitus_data::speech::{
    Codec, Codes, LabelScope, Sequences, SpeechOptions, TokenSource, load_token_clip, prepare_speech,
    prepare_tokens,
};
use ambitus_data::{Bpe, DataError, Limits, Policy, PrepareOptions, Prepared, Source};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/orpheus/fixtures")
}

fn options(dir: &Path) -> PrepareOptions {
    PrepareOptions {
        limits: Limits::default(),
        policy: Policy::Skip,
        cache: dir.join("cache"),
        threads: 2,
        rate: 24_000,
        edits: Default::default(),
    }
}

/// Keeps the samples that it is given.
#[derive(Default)]
struct Keeping(Vec<Vec<f32>>);

impl Codec for Keeping {
    fn encode(&mut self, samples: &[f32]) -> Result<Codes, String> {
        self.0.push(samples.to_vec());
        let n = samples.len().div_ceil(2048) as u32;
        // No frame repeats the coarse code of the one before.
        Codes::new([(0..n).collect(), (0..2 * n).collect(), (0..4 * n).collect()])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

fn prepare(source: &Source, dir: &Path, codec: &mut Keeping) -> Result<Prepared, DataError> {
    let sequences = Sequences::new(Bpe::read(&fixtures(), u64::MAX)?, LabelScope::All)?;
    prepare_speech(source, &sequences, codec, &SpeechOptions::default(), &options(dir), &|_| true)
}

fn read(path: &Path) -> Result<Source, DataError> {
    Source::read(path, &std::env::temp_dir(), u64::MAX)
}

/// Prepares files of tokenised rows.
fn tokens(
    path: &Path,
    vocabulary: u32,
    max_tokens: Option<usize>,
    options: &PrepareOptions,
) -> Result<Prepared, DataError> {
    let source = TokenSource::open(path, u64::MAX)?.expect("tokenised");
    prepare_tokens(&source, vocabulary, max_tokens, options, &|_| true)
}

fn is_tokenised(path: &Path) -> Result<bool, DataError> {
    Ok(TokenSource::open(path, u64::MAX)?.is_some())
}

/// Names with reasons, by name: what is wrong with rows stands before what became of clips.
fn verdicts(prepared: &Prepared) -> Vec<(String, String)> {
    let reason = |v: &Verdict| match v {
        Verdict::Ok { .. } => "ok".to_owned(),
        Verdict::Bad { reason, .. } | Verdict::Outside { reason } => reason.clone(),
    };
    let all = prepared.outcomes.iter().map(|o| o.expect("readable"));
    let mut all: Vec<_> = all.map(|o| (o.name, reason(&o.verdict))).collect();
    all.sort();
    all
}

fn check(prepared: &Prepared, expected: &[(&str, &str)]) {
    let found = verdicts(prepared);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((name, reason), (wanted, part)) in found.iter().zip(expected) {
        assert!(name == wanted && reason.contains(part), "{name}: {reason}; expected {wanted}: {part}");
    }
}

#[test]
fn embedded_audio_is_read_row_by_row() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    std::fs::copy(fixtures().join("train-00000-of-00001.parquet"), data.join("train-00000-of-00001.parquet"))
        .expect("copied");
    let beside: Vec<f32> = (0..24_000).map(|i| (i as f32 * 0.05).sin() * 0.3).collect();
    ambitus_data::wav::write_wav(&data.join("beside.wav"), &beside, 24_000).expect("written");

    let source = read(&data).expect("readable");
    assert_eq!(source.format, Format::Parquet);
    let entries: Vec<_> = source.entries().map(|e| e.expect("readable")).collect();
    let texts: Vec<_> = entries.iter().map(|e| (e.text.as_str(), e.voice.as_deref())).collect();
    // As they stand, as in the official preprocessing.
    assert_eq!(texts[..2], [("First.", Some("tara")), ("Two\nlines ", Some("leo"))]);
    assert_eq!(texts[4..], [("Beside.", None), ("Last <laugh>.", Some("leo"))]);
    assert!((1..64 << 10).contains(&source.row_bytes), "{}", source.row_bytes);

    let mut codec = Keeping::default();
    let prepared = prepare(&source, dir.path(), &mut codec).expect("prepared");
    let name = |row: usize| format!("train-00000-of-00001#{row}");
    let names: Vec<String> = (0..7).map(name).collect();
    check(
        &prepared,
        &[
            (&names[0], "ok"),
            (&names[1], "ok"),
            (&names[2], "train-00000-of-00001.parquet#3"),
            (&names[3], "no audio in the row"),
            (&names[4], "ok"),
            (&names[5], "empty text"),
            (&names[6], "ok"),
        ],
    );
    // Half a second at 8, 24 and 48 kHz, each by its own rate, and the second that lies beside.
    let mut lengths: Vec<usize> = codec.0.iter().map(Vec::len).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [12_000, 12_000, 12_000, 24_000]);
    let tone = |i: usize| 0.3 * (2.0 * std::f32::consts::PI * (i % 16) as f32 / 16.0).sin();
    const SIXTEEN_BIT: f32 = 1.0 / 32768.0;
    let same = |samples: &Vec<f32>| {
        samples.len() == 12_000
            && samples.iter().enumerate().all(|(i, x)| (x - tone(i)).abs() < 2.0 * SIXTEEN_BIT)
    };
    assert!(codec.0.iter().any(same), "the row at 24 kHz is not changed");
    // Again, and everything is there.
    let again = prepare(&source, dir.path(), &mut codec).expect("prepared");
    assert_eq!((again.summary.cached, codec.0.len()), (4, 4));
    assert_eq!(again.index, prepared.index);
}

#[test]
fn decoded_audio_and_numbered_speakers() {
    let dir = tempfile::tempdir().expect("folder");
    let source = read(&fixtures().join("arrays.parquet")).expect("readable");
    let voices: Vec<_> = source.entries().map(|e| e.expect("readable").voice).collect();
    assert_eq!(voices, [Some("7".to_owned()), None]);
    let mut codec = Keeping::default();
    let prepared = prepare(&source, dir.path(), &mut codec).expect("prepared");
    check(&prepared, &[("arrays#0", "ok"), ("arrays#1", "ok")]);
    // 0.4 s from 8 and from 16 kHz.
    assert!(codec.0.iter().all(|samples| samples.len() == 9_600));
    let expected = ambitus_data::audio::resample(
        &(0..3200)
            .map(|i| (0.3 * (2.0 * std::f64::consts::PI * f64::from(i % 16) / 16.0).sin()) as f32)
            .collect::<Vec<_>>(),
        8_000,
        24_000,
    );
    let near = |samples: &Vec<f32>| samples.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(codec.0.iter().any(near));
}

#[test]
fn tokenised_rows_are_checked_and_kept() {
    let dir = tempfile::tempdir().expect("folder");
    let path = fixtures().join("tokens.parquet");
    assert!(is_tokenised(&path).expect("readable"));
    assert!(!is_tokenised(&fixtures().join("arrays.parquet")).expect("readable"));
    let run = || tokens(&path, 156_939, Some(250), &options(dir.path()));
    let prepared = run().expect("prepared");
    check(
        &prepared,
        &[
            ("tokens#0", "ok"),
            ("tokens#1", "300 ids, more than 250"),
            ("tokens#2", "ok"),
            ("tokens#3", "input id -5"),
            ("tokens#4", "none is scored"),
            ("tokens#5", "1 labels for 2"),
            ("tokens#6", "input id 156939"),
        ],
    );
    let clips: Vec<_> = (0..2).map(|i| load_token_clip(&prepared.index.path(i)).expect("readable")).collect();
    assert_eq!(
        (clips[0].ids.clone(), clips[0].labels.clone()),
        (vec![128_259, 5, 6, 7], vec![128_259, 5, 6, 7])
    );
    // Its padding is gone.
    assert_eq!((clips[1].ids.clone(), clips[1].labels.clone()), (vec![9, 9], vec![9, 9]));
    assert_eq!(prepared.index.frames(), [4, 2]);
    assert_eq!(run().expect("prepared").summary.cached, 2);

    // Labels that begin late, in a row that is longer than a page of the next file.
    let prepared = tokens(&path, 156_940, None, &options(dir.path())).expect("prepared");
    let late = load_token_clip(&prepared.index.path(1)).expect("readable");
    assert_eq!((late.ids.len(), late.scored(), late.labels[99], late.labels[100]), (300, 200, -100, 100));
    let ids = tokens(&fixtures().join("ids.parquet"), 7, None, &options(dir.path()));
    let ids = ids.expect("prepared");
    assert_eq!(ids.index.frames(), (2..40).collect::<Vec<u32>>());
    for (i, n) in (2u32..40).enumerate() {
        let clip = load_token_clip(&ids.index.path(i)).expect("readable");
        assert_eq!(clip.ids, (0..n).map(|i| i % 7).collect::<Vec<_>>());
    }
}

#[test]
fn what_cannot_be_read_says_why() {
    let dir = tempfile::tempdir().expect("folder");
    let error = |path: &Path| read(path).expect_err("refused").to_string();
    let refused = error(&fixtures().join("tokens.parquet"));
    assert!(refused.contains("tokenised already"), "{refused}");
    // Every file in the folder is a split of its own.
    let several = error(&fixtures());
    assert!(several.contains("several splits") && several.contains("train"), "{several}");
    let gzip = tokens(&fixtures().join("gzip.parquet"), 7, None, &options(dir.path()));
    let gzip = gzip.expect_err("not read").to_string();
    assert!(gzip.to_lowercase().contains("gzip") || gzip.contains("flate2"), "{gzip}");
    for (bytes, reason) in [
        (&b"PAR1"[..], "not all of one"),
        (b"not a parquet file at all", "not all of one"),
        (b"PAR1\xff\xff\xff\x7fPAR1", "a footer of 2147483647 bytes in a file of 12"),
    ] {
        let path = dir.path().join("x.parquet");
        std::fs::write(&path, bytes).expect("written");
        let refused = error(&path);
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn damaged_files_never_panic() {
    let dir = tempfile::tempdir().expect("folder");
    // A linear congruential generator (Knuth) is random enough here.
    let mut state = 7u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) as usize) % n.max(1)
    };
    ambitus_data::silence_caught_panics();
    for name in ["tokens.parquet", "arrays.parquet", "ids.parquet"] {
        let good = std::fs::read(fixtures().join(name)).expect("fixture");
        let path = dir.path().join(name);
        for round in 0..120 {
            let mut bad = good.clone();
            for _ in 0..=below(3) {
                let at = below(bad.len());
                match below(3) {
                    0 => bad[at] ^= 1 << below(8),
                    1 => bad[at] = [0, 0xff, 0x7f, 0x80][below(4)],
                    _ => bad.truncate(at.max(1)),
                }
            }
            std::fs::write(&path, &bad).expect("written");
            let cache = options(&dir.path().join(round.to_string()));
            if name == "arrays.parquet" {
                if let Ok(source) = read(&path) {
                    let _ = prepare(&source, dir.path(), &mut Keeping::default());
                }
            } else {
                if let Ok(Some(source)) = TokenSource::open(&path, u64::MAX) {
                    let _ = prepare_tokens(&source, 156_940, None, &cache, &|_| true);
                }
            }
        }
    }
}

/// A column of a file that a test writes, with gaps.
enum Written<'a> {
    Bytes(Vec<Option<&'a [u8]>>),
    Ints(Vec<Option<i64>>),
}

fn write(path: &Path, schema: &str, columns: &[Written<'_>]) {
    let schema = parse_message_type(&format!("message rows {{ {schema} }}")).expect("a schema");
    let file = std::fs::File::create(path).expect("created");
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).expect("begun");
    let mut group = writer.next_row_group().expect("begun");
    for column in columns {
        let mut out = group.next_column().expect("begun").expect("a column of the schema");
        let levels = |there: Vec<bool>| there.into_iter().map(i16::from).collect::<Vec<i16>>();
        match column {
            Written::Bytes(cells) => {
                let levels = levels(cells.iter().map(Option::is_some).collect());
                let values: Vec<ByteArray> = cells.iter().flatten().map(|v| v.to_vec().into()).collect();
                out.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).expect("written");
            }
            Written::Ints(cells) => {
                let levels = levels(cells.iter().map(Option::is_some).collect());
                let values: Vec<i64> = cells.iter().flatten().copied().collect();
                out.typed::<Int64Type>().write_batch(&values, Some(&levels), None).expect("written");
            }
        }
        out.close().expect("written");
    }
    group.close().expect("written");
    writer.close().expect("written");
}

/// As the scripts of a description-led model make them: audio with ids, and descriptions in a second set whose rows are the same.
#[test]
fn descriptions_are_a_column_or_a_second_file() {
    let dir = tempfile::tempdir().expect("folder");
    let (data, second) = (dir.path().join("data.parquet"), dir.path().join("second.parquet"));
    let wav = dir.path().join("a.wav");
    ambitus_data::wav::write_wav(&wav, &vec![0.1; 24_000], 24_000).expect("written");
    let sound = std::fs::read(&wav).expect("readable");
    let texts =
        |texts: [Option<&'static str>; 3]| Written::Bytes(texts.map(|t| t.map(str::as_bytes)).to_vec());
    let audio = || Written::Bytes(vec![Some(sound.as_slice()); 3]);
    let spoken = || texts([Some("One."), None, Some("Three.")]);
    let read = |second: Option<&Path>| Source::read_described(&data, second, dir.path(), u64::MAX);
    let of = |source: &Source| -> Vec<Option<String>> {
        source.entries().map(|e| e.expect("readable").description).collect()
    };
    let own = texts([Some(" Slow. "), Some("Of nothing."), None]);
    write(
        &data,
        "required group audio { optional binary bytes; } optional binary text (UTF8); optional binary description (UTF8);",
        &[audio(), spoken(), own],
    );
    let source = read(None).expect("readable");
    assert_eq!(of(&source), [Some("Slow.".to_owned()), None]);
    assert_eq!((source.problems.len(), source.longest_description()), (1, 5));
    let plain = Source::read(&data, dir.path(), u64::MAX).expect("readable");
    assert_eq!(of(&plain), [None, None]);
    assert!(plain.row_bytes < source.row_bytes + 1);

    let ids = |ids: [Option<i64>; 3]| Written::Ints(ids.to_vec());
    write(
        &data,
        "required group audio { optional binary bytes; } optional binary text (UTF8); optional int64 id;",
        &[audio(), spoken(), ids([Some(4), Some(5), None])],
    );
    let described = |of_ids| {
        let schema = "optional binary text_description (UTF8); optional int64 id;";
        write(&second, schema, &[texts([Some("Of one."), Some("Of two."), Some("Of three.")]), of_ids]);
        read(Some(&second))
    };
    let source = described(ids([Some(4), None, Some(9)])).expect("the same rows");
    assert_eq!(of(&source), [Some("Of one.".to_owned()), Some("Of three.".to_owned())]);
    let error = described(ids([Some(5), None, None])).expect_err("others").to_string();
    assert!(error.contains("second.parquet:1: the row of \"4\" has the id \"5\""), "{error}");
    write(&second, "optional binary text (UTF8);", &[texts([Some("x"); 3])]);
    let error = read(Some(&second)).expect_err("none").to_string();
    assert!(error.contains("no column of descriptions") && error.contains("its columns: text"), "{error}");
}
