//! Speech as codes with its sound: the pass over a data set, with a toy codec and tokenizer.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use ambitus_data::pieces::{
    Codec, Counts, PiecesOptions, Texts, load_counts, load_piece_clip, piece_lengths, prepare_pieces,
};
use ambitus_data::prepare::Verdict;
use ambitus_data::sources::{Entry, Lines};
use ambitus_data::{DataError, Limits, Policy, PrepareOptions, Prepared, Source, load_clip, wav};

const RATE: u32 = 22_050;
const FRAME: usize = 1024;

/// Ids are the lengths of words.
struct Words(u8);

impl Texts for Words {
    fn ids(&self, text: &str, _: &Entry) -> Result<Vec<u32>, String> {
        match text.contains('#') {
            true => Err("the sign # cannot be read".into()),
            false => Ok(text.split(' ').map(|word| word.len() as u32).collect()),
        }
    }

    fn fingerprint(&self) -> [u8; 32] {
        [self.0; 32]
    }
}

/// Codes say how long their frames are, and where the loudest sample is.
#[derive(Default)]
struct Places {
    calls: usize,
    short: bool,
}

fn codes_of(samples: &[f32]) -> Vec<u32> {
    let loudest =
        |frame: &[f32]| (0..frame.len()).max_by(|a, b| frame[*a].total_cmp(&frame[*b])).unwrap_or(0);
    samples.chunks(FRAME).map(|frame| (loudest(frame) + 10_000 * frame.len()) as u32).collect()
}

impl Codec for Places {
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<u32>, String> {
        self.calls += 1;
        let mut codes = codes_of(samples);
        codes.truncate(codes.len() - usize::from(self.short));
        Ok(codes)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [7; 32]
    }
}

fn write_data(data: &Path) {
    std::fs::create_dir_all(data).expect("folder");
    let mut lines = String::new();
    for (name, seconds, rate, level, text) in [
        ("a", 1.0, 24_000, 0.3, " The boy laughed. "),
        ("b", 0.7, 16_000, 1.0, "Again."),
        ("brief", 0.3, 22_050, 0.3, "Hm."),
        ("frames", 2.4, 22_050, 0.3, "Too many codes."),
        ("long", 5.0, 8_000, 0.3, "Too long."),
        ("quiet", 1.0, 8_000, 0.0, "Silence."),
        ("sign", 1.0, 8_000, 0.2, "A # in it."),
        ("wordy", 0.6, 8_000, 0.2, &"w ".repeat(300)),
    ] {
        let n = (seconds * f64::from(rate)) as usize;
        // Full scale between samples, so that another rate goes beyond it.
        let tone: Vec<f32> = (0..n).map(|i| (i as f32 * 1.57 + 0.78).sin().signum() * level).collect();
        wav::write_wav(&data.join(format!("{name}.wav")), &tone, rate).expect("written");
        lines += &format!("{name}.wav|{text}\n");
    }
    std::fs::write(data.join("metadata.csv"), format!("audio_file|text\n{lines}")).expect("written");
}

fn options(dir: &Path) -> PrepareOptions {
    let limits = Limits { min_seconds: 0.5, max_seconds: 3.0, ..Limits::default() };
    PrepareOptions {
        limits,
        policy: Policy::Skip,
        cache: dir.join("cache"),
        threads: 2,
        rate: RATE,
        edits: Default::default(),
    }
}

fn rows(counts: Counts) -> Result<usize, String> {
    assert_eq!(counts.codes, counts.samples.div_ceil(FRAME));
    if counts.codes > 50 { Err(format!("{} codes", counts.codes)) } else { Ok(counts.text + counts.codes) }
}

fn pieces() -> PiecesOptions<'static> {
    PiecesOptions { frame: Some(FRAME), context: false, rows: &rows, spec: "toy-v1" }
}

fn run(dir: &Path, codec: &mut Places, texts: &Words) -> Result<Prepared, DataError> {
    let options = options(dir);
    let source = Source::read(&dir.join("data"), &options.cache, u64::MAX)?;
    prepare_pieces(&source, texts, Some(codec), &pieces(), &options, &|_| true)
}

#[test]
fn audio_and_text_become_clips_with_their_sound() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    write_data(&data);
    let mut codec = Places::default();
    let prepared = run(dir.path(), &mut codec, &Words(1)).expect("prepared");
    let index = &prepared.index;
    assert_eq!((0..index.len()).map(|i| index.name(i)).collect::<Vec<_>>(), ["a.wav", "b.wav"]);
    for (name, expected) in [
        ("brief.wav", "0.30 s, shorter than 0.5 s"),
        ("frames.wav", "52 codes"),
        ("long.wav", "longer than 3 s"),
        ("quiet.wav", "nothing to hear"),
        ("sign.wav", "# cannot be read"),
        ("wordy.wav", "599 characters of text, more than 300"),
    ] {
        let mut all = prepared.outcomes.iter().map(|o| o.expect("readable"));
        let reason = match all.find(|o| o.name == name).expect("listed").verdict {
            Verdict::Ok { .. } => "ok".to_owned(),
            Verdict::Bad { reason, .. } | Verdict::Outside { reason } => reason,
        };
        assert!(reason.contains(expected), "{name}: {reason}");
    }
    // What the model cannot have is not encoded.
    assert_eq!(codec.calls, 2);
    for (i, text) in [[3, 3, 8].as_slice(), &[6]].into_iter().enumerate() {
        let path = data.join(index.name(i));
        let mut samples = ambitus_data::audio::load(&path, RATE, 3.0).expect("readable");
        let beyond = samples.iter().any(|x| x.abs() > 1.0);
        assert_eq!(beyond, i == 1, "the second is resampled beyond full scale");
        samples.iter_mut().for_each(|x| *x = x.clamp(-1.0, 1.0));
        let clip = load_piece_clip(&index.path(i)).expect("whole");
        assert_eq!((clip.text().as_slice(), clip.codes()), (text, codes_of(&samples)));
        assert!(clip.sound(0..samples.len()).eq(samples.iter().copied()));
        assert!(clip.sound(500..700).eq(samples[500..700].iter().copied()));
        let counts = Counts { text: text.len(), codes: codes_of(&samples).len(), samples: samples.len() };
        assert_eq!((clip.counts(), load_counts(&index.path(i)).expect("whole")), (counts, counts));
        assert_eq!(index.frames()[i] as usize, counts.text + counts.codes);
        assert!(load_clip(&index.path(i)).is_err(), "not a clip of mel frames");
    }
    let source = Source::read(&data, &dir.path().join("cache"), u64::MAX).expect("readable");
    let lengths = piece_lengths(&source, &Words(1), &pieces(), &options(dir.path()), &|_| true);
    assert_eq!(lengths.expect("measured").index.frames(), index.frames());
}

#[test]
fn clips_with_sound_are_resumed_repaired_and_keyed_by_what_they_depend_on() {
    let dir = tempfile::tempdir().expect("folder");
    write_data(&dir.path().join("data"));
    let mut codec = Places::default();
    let source = Source::read(&dir.path().join("data"), dir.path(), u64::MAX).expect("readable");
    let (seen, alone) = (AtomicUsize::new(0), PrepareOptions { threads: 1, ..options(dir.path()) });
    let stopping = |_: ambitus_data::prepare::Progress<'_>| seen.fetch_add(1, Ordering::Relaxed) < 1;
    let stopped = prepare_pieces(&source, &Words(1), Some(&mut codec), &pieces(), &alone, &stopping);
    assert!(matches!(stopped, Err(DataError::Stopped)));
    let first = run(dir.path(), &mut codec, &Words(1)).expect("prepared");
    assert_eq!(codec.calls, 2, "nothing is made twice");

    // Any damage is noticed and mended.
    let path = first.index.path(0);
    let good = std::fs::read(&path).expect("readable");
    for at in [0, 9, 41, 45, 49, 53, 100, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).expect("written");
        assert!(load_piece_clip(&path).is_err(), "byte {at}");
    }
    let mut lying = good.clone();
    lying[40..52].fill(0xff);
    for bad in [&lying, &good[..good.len() / 2], &good[..50], &[]] {
        std::fs::write(&path, bad).expect("written");
        assert!(load_piece_clip(&path).is_err() && load_counts(&path).is_err());
    }
    let mended = run(dir.path(), &mut codec, &Words(1)).expect("prepared");
    assert_eq!((&*mended.index, codec.calls), (&*first.index, 3));
    assert_eq!(std::fs::read(&path).expect("readable"), good);

    let other = run(dir.path(), &mut codec, &Words(2)).expect("prepared");
    assert_ne!(other.index.digest(), first.index.digest());
    assert_eq!(codec.calls, 5);
    codec.short = true;
    let error = run(dir.path(), &mut codec, &Words(3)).expect_err("fails").to_string();
    assert!(error.contains("a.wav: the audio codec failed: 21 codes, where 22 are expected"), "{error}");
}

/// Ids that the data set brings, after a number of who speaks.
struct Spoken;

impl Texts for Spoken {
    fn ids(&self, _: &str, entry: &Entry) -> Result<Vec<u32>, String> {
        let voice = entry.voice.as_deref().ok_or("nobody speaks")?;
        let id = voice
            .strip_prefix('v')
            .and_then(|n| n.parse().ok())
            .ok_or_else(|| format!("no voice {voice}"))?;
        Ok([&[id], &*entry.ids].concat())
    }

    fn fingerprint(&self) -> [u8; 32] {
        [4; 32]
    }
}

/// Lines of Piper's trainers, with voices and ids, become clips without codes whose texts are context. Other voices and ids make other
/// clips.
#[test]
fn spoken_lines_become_clips_without_codes() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(data.join("wav")).expect("folder");
    for name in ["a", "b", "c"] {
        let tone: Vec<f32> = (0..22_050).map(|i| (i as f32 * 0.1).sin() * 0.3).collect();
        wav::write_wav(&data.join(format!("wav/{name}.wav")), &tone, RATE).expect("written");
    }
    let rows = |counts: Counts| Ok(counts.samples / 256);
    let pieces = PiecesOptions { frame: None, context: true, rows: &rows, spec: "toy-v1" };
    let run = |lines: &str, voices: bool, ids: bool| {
        std::fs::write(data.join("metadata.csv"), lines).expect("written");
        let options = options(dir.path());
        let lines = Lines::Spoken { voices, ids };
        let source = Source::read_lines(&data, lines, &options.cache, u64::MAX).expect("readable");
        prepare_pieces(&source, &Spoken, None, &pieces, &options, &|_| true).expect("prepared")
    };
    let first = run("a|v1|Said.|1 0 5\nb|v2|Said.|1 0 5\nc|Said.|1 x\n", true, true);
    assert_eq!(first.index.len(), 2);
    let reasons: Vec<String> =
        first.outcomes.iter().map(|o| format!("{:?}", o.expect("readable").verdict)).collect();
    assert!(
        reasons.iter().any(|r| r.contains("3 field(s) where 4 are expected: audio|voice|text|ids")),
        "{reasons:?}"
    );
    for (i, want) in [[1, 1, 0, 5], [2, 1, 0, 5]].into_iter().enumerate() {
        let clip = load_piece_clip(&first.index.path(i)).expect("whole");
        assert_eq!((clip.text(), clip.codes(), clip.counts().samples), (want.into(), Vec::new(), 22_050));
        assert_eq!((first.index.frames()[i], first.index.context()), (22_050 / 256, 4));
    }
    let other = run("a|v1|Said.|1 0 5\nb|v1|Said.|1 0 6\n", true, true);
    assert_eq!((other.index.len(), other.summary.cached), (2, 1));
    let three = run("a|v1|Said.\nb|v1|Said.\n", true, false);
    assert_eq!(load_piece_clip(&three.index.path(0)).expect("whole").text(), [1]);
}
