//! What is changed about the sound of clips where that is asked for, measured on what is made of them: pieces, mel frames, codes, music.

use std::path::Path;
use std::sync::Mutex;

use ambitus_data::check::{Options, check};
use ambitus_data::codes::{self, CodesOptions, Frames, Rows};
use ambitus_data::music::{self, MusicOptions, Pieces, Sound, Weighting, prepare_music};
use ambitus_data::pieces::{Counts, PiecesOptions, Texts, load_piece_clip, prepare_pieces};
use ambitus_data::prepare::{Cause, Edits, Verdict};
use ambitus_data::sources::{DataSet, Entry, Sets};
use ambitus_data::{
    DataError, Edited, Limits, Outcome, Policy, PrepareOptions, Prepared, SoundWriter, Source, load_clip, wav,
};

use crate::prepare::{english, put};

/// Hz.
const RATE: u32 = 22_050;
/// What is asked for, LUFS, and how near what is made comes, LU.
const TARGET: f64 = -23.0;
const NEAR: f64 = 0.1;

/// The voice of a fixture, said so often, with pauses between.
fn voice(times: usize) -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech_22k_mono.wav");
    let once = ambitus_data::audio::load(&path, RATE, 60.0).expect("a fixture");
    let mut all = once.clone();
    for _ in 1..times {
        all.extend([0.0; 5000]);
        all.extend(&once);
    }
    all
}

fn scaled(samples: &[f32], by: f32) -> Vec<f32> {
    samples.iter().map(|x| x * by).collect()
}

/// Returns the loudness of samples as `check` measures a file of them.
fn loudness(samples: &[f32], rate: u32) -> f64 {
    let dir = tempfile::tempdir().expect("a folder");
    wav::write_wav(&dir.path().join("a.wav"), samples, rate).expect("a file");
    put(&dir.path().join("metadata.csv"), "audio_file|text\na.wav|Some words.\n");
    let options = Options { threads: 1, room: 1 << 20, advised: None, progress: &|_, _| true };
    let checked = check::<DataError>(dir.path(), dir.path(), &options, None).expect("a report");
    checked.set.voices[0].loudness.expect("a loudness")
}

fn options(cache: &Path, rate: u32, edits: Edits) -> PrepareOptions {
    let limits = Limits { min_seconds: 0.2, max_seconds: 20.0, ..Limits::default() };
    PrepareOptions { limits, policy: Policy::Skip, cache: cache.to_owned(), threads: 2, rate, edits }
}

const LEVEL: Edits = Edits { loudness: Some(TARGET), trim: None };

/// Reads any text as one id.
struct One;

impl Texts for One {
    fn ids(&self, _: &str, _: &Entry) -> Result<Vec<u32>, String> {
        Ok(vec![1])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [1; 32]
    }
}

fn piece_rows(counts: Counts) -> Result<usize, String> {
    Ok(counts.samples / 256 + 1)
}

fn pieces(source: &Source, options: &PrepareOptions) -> Prepared {
    let pieces = PiecesOptions { frame: None, context: false, rows: &piece_rows, spec: "toy-v1" };
    prepare_pieces(source, &One, None, &pieces, options, &|_| true).expect("prepared")
}

/// Returns the sound of a clip.
fn sound(prepared: &Prepared, name: &str) -> Vec<f32> {
    let index = &prepared.index;
    let at = (0..index.len()).find(|i| index.name(*i) == name).unwrap_or_else(|| panic!("{name} is missing"));
    let clip = load_piece_clip(&index.path(at)).expect("whole");
    clip.sound(0..clip.counts().samples).collect()
}

fn outcome(prepared: &Prepared, name: &str) -> Outcome {
    let mut all = prepared.outcomes.iter().map(|o| o.expect("readable"));
    all.find(|o| o.name == name).unwrap_or_else(|| panic!("{name} is missing"))
}

fn edited(prepared: &Prepared, name: &str) -> Edited {
    match outcome(prepared, name).verdict {
        Verdict::Ok { edited, .. } => edited,
        other => panic!("{name}: {other:?}"),
    }
}

const LEAD: usize = 33_075;
const TAIL: usize = 44_100;

/// Two data sets: soft, hot and odd clips in one, one with silence at its ends in the other.
fn two_sets(dir: &Path) -> Sets {
    let voice = voice(2);
    let own = loudness(&voice, RATE);
    let soft = scaled(&voice, 10f32.powf(((-35.0 - own) / 20.0) as f32));
    let mut peaky = soft.clone();
    peaky[9000] = 0.9;
    let mut padded = vec![0.0; LEAD];
    padded.extend(&voice);
    padded.extend([0.0; TAIL]);
    let clipped: Vec<f32> = voice.iter().map(|x| (x * 40.0).clamp(-1.0, 1.0)).collect();
    let sounds: [(&str, &[f32]); 7] = [
        ("a/soft.wav", &soft),
        ("a/peaky.wav", &peaky),
        ("a/clipped.wav", &clipped),
        ("a/brief.wav", &soft[..6000]),
        ("a/moment.wav", &soft[..220]),
        ("a/silent.wav", &[0.0; 30_000]),
        ("b/padded.wav", &padded),
    ];
    for set in ["a", "b"] {
        std::fs::create_dir_all(dir.join(set)).expect("a folder");
        let mut lines = "audio_file|text\n".to_owned();
        for (name, samples) in sounds.iter().filter(|(name, _)| name.starts_with(set)) {
            wav::write_wav(&dir.join(name), samples, RATE).expect("a file");
            lines += &format!("{}|Some words.\n", &name[2..]);
        }
        put(&dir.join(set).join("metadata.csv"), lines);
    }
    let of = |name: &str| DataSet { path: dir.join(name), name: Some(name.to_owned()), voice: None };
    Sets::new(vec![of("a"), of("b")])
}

/// Returns the bytes of all files of both.
fn contents(dir: &Path) -> Vec<Vec<u8>> {
    let mut all: Vec<_> = ["a", "b"]
        .iter()
        .flat_map(|set| std::fs::read_dir(dir.join(set)).expect("a folder"))
        .map(|file| file.expect("a file").path())
        .collect();
    all.sort();
    all.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

#[test]
fn clips_of_several_sets_come_to_one_loudness_without_their_silence() {
    let dir = tempfile::tempdir().expect("a folder");
    let sets = two_sets(dir.path());
    let before = contents(dir.path());
    let source = Source::read(&sets, dir.path(), u64::MAX).expect("readable");
    let cache = dir.path().join("cache");
    let asked = options(&cache, RATE, Edits { loudness: Some(TARGET), trim: Some(0.1) });
    let prepared = pieces(&source, &asked);
    assert!(contents(dir.path()) == before, "files are only read");

    let near = |x: f64, y: f64| assert!((x - y).abs() < NEAR, "{x} is not {y}");
    for (name, from) in [("a/soft.wav", Some(-35.0)), ("b/padded.wav", None), ("a/clipped.wav", None)] {
        let samples = sound(&prepared, name);
        assert!(samples.iter().all(|x| x.is_finite() && x.abs() < 1.0), "{name}");
        near(loudness(&samples, RATE), TARGET);
        let [was, is] = edited(&prepared, name).loudness.expect("a loudness");
        near(is, TARGET);
        from.iter().for_each(|from| near(was, *from));
    }
    // One large sample holds the gain back; the outcome says which loudness was reached.
    let peaky = sound(&prepared, "a/peaky.wav");
    let peak = peaky.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
    assert!((0.999..1.0).contains(&peak), "{peak}");
    let [_, reached] = edited(&prepared, "a/peaky.wav").loudness.expect("a loudness");
    assert!(reached < TARGET - 5.0);
    near(loudness(&peaky, RATE), reached);
    assert_eq!(edited(&prepared, "a/brief.wav").loudness, None);

    // All of the voice stays, and a tenth of a second at least on both sides.
    let [start, end] = edited(&prepared, "b/padded.wav").trimmed.expect("trimmed");
    let [lead, tail] = [LEAD, TAIL].map(|n| n as f64 / f64::from(RATE));
    assert!((lead - 0.4..=lead - 0.1).contains(&start), "{start} s of {lead} s");
    assert!((tail - 0.4..=tail - 0.1).contains(&end), "{end} s of {tail} s");
    let seconds = (LEAD + TAIL + voice(2).len()) as f64 / f64::from(RATE) - start - end;
    near(sound(&prepared, "b/padded.wav").len() as f64 / f64::from(RATE), seconds);

    for (name, cause) in [("a/moment.wav", None), ("a/silent.wav", Some(Cause::Silent))] {
        match (outcome(&prepared, name).verdict, cause) {
            (Verdict::Outside { reason }, None) => assert!(reason.contains("shorter than 0.2 s"), "{reason}"),
            (Verdict::Bad { cause, .. }, Some(expected)) => assert_eq!(cause, expected),
            (other, _) => panic!("{name}: {other:?}"),
        }
    }
    let said = prepared.summary.to_string();
    for words in [
        "loudness: 4 clips from -35.",
        "by their peaks: 1 (a/peaky.wav)",
        "too short or too soft to have one: 1 (a/brief.wav)",
        "of silence at the ends of ",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let lines: Vec<String> = prepared.outcomes.lines().map(|line| line.expect("a line")).collect();
    let soft = lines.iter().find(|line| line.contains("soft.wav")).expect("is listed");
    assert!(soft.contains(r#""loudness":[-35."#) && soft.contains(r#""trimmed":["#), "{soft}");
}

#[test]
fn edits_are_part_of_what_a_prepared_clip_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let source = Source::read(two_sets(dir.path()), dir.path(), u64::MAX).expect("readable");
    let cache = dir.path().join("cache");
    let run = |edits| pieces(&source, &options(&cache, RATE, edits));
    let plain = run(Edits::default());
    // As before there were any: sound and text and nothing else.
    assert_eq!(sound(&plain, "a/brief.wav"), {
        let path = dir.path().join("a/brief.wav");
        ambitus_data::audio::load(&path, RATE, 9.0).expect("reads")
    });
    assert_eq!(edited(&plain, "a/soft.wav"), Edited::default());
    assert!(!plain.summary.to_string().contains("loudness") && plain.summary.edits.is_none());
    let levelled = run(LEVEL);
    let softer = run(Edits { loudness: Some(-30.0), trim: None });
    let trimmed = run(Edits { loudness: None, trim: Some(0.1) });
    let all = [&plain, &levelled, &softer, &trimmed];
    for (i, one) in all.iter().enumerate() {
        assert_eq!(one.summary.cached, 0, "{i}");
        assert!(all[..i].iter().all(|other| other.index.digest() != one.index.digest()), "{i}");
    }
    // What was changed is known of clips that are there already, and made anew where that was lost.
    let again = run(LEVEL);
    assert_eq!((again.summary.cached, again.index.digest()), (again.summary.clips, levelled.index.digest()));
    assert_eq!(again.summary.edits, levelled.summary.edits);
    let file = again.index.path(0).with_extension("edited");
    for damage in [&b"[]"[..], b"{\"loudness\": 1e999}", b""] {
        put(&file, damage);
        let mended = run(LEVEL);
        assert_eq!(mended.summary.cached, mended.summary.clips - 1);
        assert_eq!(mended.summary.edits, levelled.summary.edits);
    }
    assert_eq!(run(Edits::default()).summary.cached, plain.summary.clips);
    for edits in [
        Edits { loudness: Some(-4.0), trim: None },
        Edits { loudness: Some(f64::NAN), trim: None },
        Edits { loudness: None, trim: Some(1.5) },
    ] {
        let options = options(&cache, 24_000, edits);
        let refused = ambitus_data::prepare(&source, &english(), &options, &|_| true);
        assert!(matches!(refused, Err(DataError::Invalid(_))), "{refused:?}");
    }
}

#[test]
fn mel_frames_are_those_of_a_file_at_that_loudness() {
    let dir = tempfile::tempdir().expect("a folder");
    let (data, voice) = (dir.path().join("data"), voice(3));
    let own = loudness(&voice, RATE);
    std::fs::create_dir_all(&data).expect("a folder");
    for (name, level) in [("soft", -35.0), ("there", TARGET)] {
        let samples = scaled(&voice, 10f32.powf(((level - own) / 20.0) as f32));
        let mut file = SoundWriter::create(&data.join(format!("{name}.wav")), RATE, 1).expect("a file");
        file.push(&samples).expect("writes");
        file.finish().expect("ends");
        put(&data.join(format!("{name}.txt")), "Some words.");
    }
    let source = Source::read(&data, dir.path(), u64::MAX).expect("readable");
    let options = options(&dir.path().join("cache"), 24_000, LEVEL);
    let prepared = ambitus_data::prepare(&source, &english(), &options, &|_| true).expect("prepared");
    let [soft, there] = [0, 1].map(|i| load_clip(&prepared.index.path(i)).expect("whole").mel);
    let off = soft.iter().zip(&there).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>() / soft.len() as f64;
    // The soft file has two bits fewer; a gain that was not applied is off by 1.4 in the logarithm.
    assert!(off < 0.05 && soft.len() == there.len(), "{off}");
}

/// A codec that keeps what it is given.
#[derive(Default)]
struct Keeps {
    sounds: Mutex<Vec<Vec<f32>>>,
}

const FRAME: usize = 512;

impl codes::Codec for Keeps {
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<Vec<u32>>, String> {
        self.sounds.lock().expect("kept").push(samples.to_vec());
        Ok(vec![vec![0; samples.len() / FRAME]])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [2; 32]
    }
}

impl music::Codec for Keeps {
    fn encode(&mut self, sound: &mut Sound<'_>) -> Result<Result<Vec<Vec<u32>>, String>, DataError> {
        let mut all = Vec::new();
        while let Some(piece) = sound()? {
            all.extend(piece);
        }
        let codes = vec![vec![0; all.len().div_ceil(FRAME)]];
        self.sounds.lock().expect("kept").push(all);
        Ok(Ok(codes))
    }

    fn fingerprint(&self) -> [u8; 32] {
        [2; 32]
    }
}

impl codes::Texts for One {
    fn prompt(&self, _: &str) -> Result<Vec<u32>, String> {
        Ok(vec![1])
    }

    fn description(&self, _: &str) -> Result<Vec<u32>, String> {
        Ok(vec![1])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [1; 32]
    }
}

#[test]
fn codes_are_of_that_loudness() {
    let dir = tempfile::tempdir().expect("a folder");
    let source = Source::read(two_sets(dir.path()), dir.path(), u64::MAX).expect("readable");
    let rows = |counts: codes::Counts| Ok(Rows { own: counts.frames + 1, context: 0 });
    let codes = CodesOptions {
        description: Some("A voice.".to_owned()),
        most_description: 30,
        draws: 0,
        frames: Frames { codebooks: 1, samples: FRAME },
        rows: &rows,
        spec: "toy-v1",
    };
    let options = PrepareOptions { threads: 1, ..options(&dir.path().join("cache"), 44_100, LEVEL) };
    let mut codec = Keeps::default();
    let made = codes::prepare_codes(&source, &One, (&mut codec, [5; 32]), &codes, &options, &|_| true);
    let prepared = made.expect("prepared");
    let sounds = codec.sounds.into_inner().expect("kept");
    assert_eq!(sounds.len(), prepared.index.len());
    for (i, sound) in sounds.iter().enumerate() {
        let name = prepared.index.name(i);
        let Some([_, reached]) = edited(&prepared, name).loudness else { continue };
        let heard = loudness(sound, 44_100);
        assert!((heard - reached).abs() < NEAR, "{name}: {heard}");
        assert!(name == "a/peaky.wav" || (reached - TARGET).abs() < NEAR, "{name}: {reached}");
    }
}

#[test]
fn channels_of_music_get_one_gain() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("a folder");
    const RATE: u32 = 16_000;
    let tone = |t: usize, hz: f32| (t as f32 * hz * std::f32::consts::TAU / RATE as f32).sin();
    let both: Vec<f32> =
        (0..6 * RATE as usize).flat_map(|t| [0.02 * tone(t, 440.0), 0.01 * tone(t, 660.0)]).collect();
    let mut file = SoundWriter::create(&data.join("a.wav"), RATE, 2).expect("a file");
    file.push(&both).expect("writes");
    file.finish().expect("ends");
    let source = Source::read_music(&data, dir.path(), 1 << 20).expect("is read");
    let rows = |counts: music::Counts| Ok(Rows { own: counts.frames + 1, context: 0 });
    for pieces in [Pieces::Whole, Pieces::Drawn { count: 1, seed: 3 }] {
        let music = MusicOptions {
            frames: Frames { codebooks: 2, samples: FRAME },
            channels: 2,
            pieces,
            weighting: Weighting::default(),
            longest: 60.0,
            most_text: 20,
            rows: &rows,
            spec: "toy-v1",
        };
        let mut codec = Keeps::default();
        let options = options(&dir.path().join("cache"), RATE, LEVEL);
        let prepared = prepare_music(&source, &One, (&mut codec, [5; 32]), &music, &options, &|_| true);
        let [_, reached] = edited(&prepared.expect("prepared"), "a.wav").loudness.expect("a loudness");
        assert!((reached - TARGET).abs() < NEAR, "{reached}");
        let [left, right] = <[Vec<f32>; 2]>::try_from(codec.sounds.into_inner().expect("kept")).expect("two");
        let [left, right] = [left, right].map(|of| loudness(&of, RATE));
        let together = 10.0 * (10f64.powf(left / 10.0) + 10f64.powf(right / 10.0)).log10();
        assert!((together - TARGET).abs() < NEAR, "{together}");
        // They were 6 dB apart, and the ear hears 660 Hz some tenths louder.
        assert!((5.0..6.5).contains(&(left - right)), "{left} {right}");
    }
}
