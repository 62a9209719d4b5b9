//! The memory of making clips with their sound, against what is planned for it.

use std::path::Path;

use crate::counting::{ALONE, peak_of};
use ambitus_data::pieces::{Codec, Counts, PiecesOptions, Texts, prepare_pieces};
use ambitus_data::sources::Entry;
use ambitus_data::{Limits, Policy, PrepareOptions, Source, wav};

const FRAME: usize = 1024;
/// Of the toy tokenizer, for each byte.
const TEXT_BYTES: u64 = 8;

/// An id for each byte.
struct Bytes;

impl Texts for Bytes {
    fn ids(&self, text: &str, _: &Entry) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn fingerprint(&self) -> [u8; 32] {
        [1; 32]
    }
}

struct Zeros;

impl Codec for Zeros {
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<u32>, String> {
        Ok(vec![0; samples.len().div_ceil(FRAME)])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [2; 32]
    }
}

fn rows(counts: Counts) -> Result<usize, String> {
    Ok(counts.text + counts.codes)
}

/// Prepares `n` clips of so many seconds; what that allocated at most, and what is planned for it.
fn measured(dir: &Path, n: usize, seconds: f64, text: &str) -> [u64; 2] {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).expect("folder");
    let mut lines = String::from("audio_file|text\n");
    for i in 0..n {
        let samples: Vec<f32> =
            (0..(seconds * 22_050.0) as usize).map(|t| 0.3 * ((t + i) as f32 * 0.1).sin()).collect();
        wav::write_wav(&data.join(format!("clip-{i:05}.wav")), &samples, 22_050).expect("written");
        lines += &format!("clip-{i:05}.wav|{text} {i}.\n");
    }
    std::fs::write(data.join("metadata.csv"), lines).expect("written");
    let limits = Limits { max_seconds: seconds + 0.01, ..Limits::default() };
    let options = PrepareOptions {
        limits,
        policy: Policy::Cut,
        cache: dir.join("cache"),
        threads: 1,
        rate: 22_050,
        edits: Default::default(),
    };
    let pieces = PiecesOptions { frame: Some(FRAME), context: false, rows: &rows, spec: "toy-v1" };
    let mut both = [0; 2];
    for cached in [0, n] {
        let mut planned = 0;
        let (prepared, peak) = peak_of(|| {
            let source = Source::read(&data, &options.cache, u64::MAX).expect("readable");
            planned = pieces.memory_bound(&source, TEXT_BYTES, &options);
            prepare_pieces(&source, &Bytes, Some(&mut Zeros), &pieces, &options, &|_| true).expect("prepared")
        });
        assert_eq!((prepared.index.len(), prepared.summary.cached), (n, cached));
        assert!(peak as u64 <= planned, "{n} clips of {seconds} s: {peak} of {planned}");
        both = [both[0].max(peak as u64), planned];
    }
    both
}

#[test]
fn clips_with_sound_take_what_is_planned() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    const MANY: usize = 500;
    let dir = || tempfile::tempdir().expect("folder");
    let [few, many] = [1, MANY].map(|n| measured(dir().path(), n, 0.4, "Text"));
    let [each, planned] = [0, 1].map(|i| many[i].saturating_sub(few[i]) / (MANY as u64 - 1));
    assert!(each <= planned && planned < 320, "{each} bytes a clip, {planned} planned");
    let [short, long] = [2.0, 60.0].map(|seconds| measured(dir().path(), 2, seconds, &"much ".repeat(30)));
    assert!(long[0] > short[0]);
}
