//! The memory of making clips of codes, against what is planned for it.

use std::path::{Path, PathBuf};

use crate::counting::{ALONE, peak_of};
use ambitus_data::codes::{
    Codec, CodesOptions, Counts, Encoder, Frames, Rows, Texts, longest_description, prepare_codes,
    prepare_states, states_bytes,
};
use ambitus_data::{Limits, Policy, PrepareOptions, Prepared, Source, wav};

const FRAME: usize = 512;
const CODEBOOKS: usize = 9;
const WIDTH: usize = 64;
/// Of the toy tokenizer, for each byte.
const TEXT_BYTES: u64 = 8;

/// An id for each byte, and the end.
struct Bytes;

impl Texts for Bytes {
    fn prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).chain([1]).collect())
    }

    fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        self.prompt(text)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [1; 32]
    }
}

struct Zeros;

impl Encoder for Zeros {
    fn states(&mut self, ids: &[u32]) -> Result<Vec<f32>, String> {
        Ok(vec![0.0; ids.len() * WIDTH])
    }

    fn width(&self) -> usize {
        WIDTH
    }
}

impl Codec for Zeros {
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<Vec<u32>>, String> {
        Ok(vec![vec![0; samples.len() / FRAME]; CODEBOOKS])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [2; 32]
    }
}

fn rows(counts: Counts) -> Result<Rows, String> {
    Ok(Rows { own: counts.prompt + counts.frames + CODEBOOKS, context: counts.description })
}

fn codes() -> CodesOptions<'static> {
    CodesOptions {
        description: None,
        most_description: 1000,
        draws: 0,
        frames: Frames { codebooks: CODEBOOKS, samples: FRAME },
        rows: &rows,
        spec: "toy-v1",
    }
}

fn options(dir: &Path, max_seconds: f64) -> PrepareOptions {
    let limits = Limits { max_seconds, ..Limits::default() };
    PrepareOptions {
        limits,
        policy: Policy::Cut,
        cache: dir.join("cache"),
        threads: 1,
        rate: 44_100,
        edits: Default::default(),
    }
}

fn write_clip(path: &Path, seconds: f64, i: usize) {
    let n = (seconds * 22_050.0) as usize;
    let samples: Vec<f32> = (0..n).map(|t| 0.3 * ((t + i) as f32 * 0.1).sin()).collect();
    wav::write_wav(path, &samples, 22_050).expect("written");
}

/// Makes a folder with `n` clips, each with a description of its own.
fn data(dir: &Path, n: usize, seconds: f64, description: &str) -> PathBuf {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).expect("folder");
    let mut lines = String::from("audio_file|text|description\n");
    for i in 0..n {
        write_clip(&data.join(format!("clip-{i:05}.wav")), seconds, i);
        lines += &format!("clip-{i:05}.wav|Text {i}.|{description} {i}.\n");
    }
    std::fs::write(data.join("metadata.csv"), lines).expect("written");
    data
}

/// Reads and prepares; what both passes allocated at most, and what is planned for each.
fn measured(data: &Path, options: &PrepareOptions) -> (Prepared, [u64; 2], [u64; 2]) {
    let (codes, texts) = (codes(), Bytes);
    let mut planned = [0; 2];
    let (source, of_states) = peak_of(|| {
        let source = Source::read_described(data, None, &options.cache, u64::MAX).expect("readable");
        let longest = longest_description(&source, &texts, &codes).expect("readable");
        planned[1] = codes.memory_bound(&source, TEXT_BYTES, options);
        planned[0] =
            planned[1] - codes.frames.fixed_bound(options) + states_bytes(longest, WIDTH) + (1 << 20);
        prepare_states(&source, &texts, (&mut Zeros, &[3; 32]), &codes, options, &|_| true)
            .expect("prepared");
        source
    });
    let (prepared, of_codes) = peak_of(|| {
        let source = Source::read_described(data, None, &options.cache, u64::MAX).expect("readable");
        prepare_codes(&source, &texts, (&mut Zeros, [3; 32]), &codes, options, &|_| true)
    });
    drop(source);
    let peaks = [of_states, of_codes].map(|peak| peak as u64);
    println!("{}: {peaks:?} bytes of {planned:?}", data.display());
    (prepared.expect("prepared"), peaks, planned)
}

#[test]
fn clips_of_codes_take_fixed_bytes_each_new_or_from_the_cache() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    const MANY: usize = 1000;
    let dir = tempfile::tempdir().expect("folder");
    let (few, many) = (dir.path().join("few"), dir.path().join("many"));
    for (dir, n) in [(&few, 1), (&many, MANY)] {
        data(dir, n, 0.4, "Someone speaks");
    }
    for round in ["new", "cached"] {
        let (_, base, planned) = measured(&few.join("data"), &options(&few, 1.0));
        let (prepared, peaks, more_planned) = measured(&many.join("data"), &options(&many, 1.0));
        assert_eq!((prepared.index.len(), prepared.outcomes.len()), (MANY, MANY));
        assert_eq!(prepared.summary.cached, if round == "new" { 0 } else { MANY });
        for pass in 0..2 {
            assert!(base[pass] <= planned[pass] && peaks[pass] <= more_planned[pass], "{round} {pass}");
            let of = |a: u64, b: u64| b.saturating_sub(a) / (MANY as u64 - 1);
            let (each, planned) = (of(base[pass], peaks[pass]), of(planned[pass], more_planned[pass]));
            assert!(
                each <= planned && planned < 320,
                "{round} {pass}: {each} bytes a clip, {planned} planned"
            );
        }
    }
}

#[test]
fn long_clips_and_descriptions_take_what_is_planned() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    for seconds in [2.0, 60.0] {
        let data = data(dir.path(), 2, seconds - 0.01, &"much is said ".repeat(60));
        let (prepared, peaks, planned) = measured(&data, &options(dir.path(), seconds));
        assert_eq!((prepared.index.len(), prepared.index.context()), (2, 784));
        assert!(peaks[0] <= planned[0] && peaks[1] <= planned[1], "{peaks:?} of {planned:?}");
    }
}
