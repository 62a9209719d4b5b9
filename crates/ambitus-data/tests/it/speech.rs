//! Speech as token sequences: codes, text, labels, and the pass over a data set.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ambitus_data::prepare::Verdict;
use ambitus_data::speech::interleave::{
    CODEBOOK, FRAME_SAMPLES, Frames, deinterleave, drop_repeated_frames, interleave,
};
use ambitus_data::speech::sequence::{
    BEGIN_OF_TEXT, END_OF_AI, END_OF_SPEECH, FIRST_AUDIO, IGNORED, LAST_AUDIO, START_OF_HUMAN,
    START_OF_SPEECH,
};
use ambitus_data::speech::{
    Codec, Codes, LabelScope, Sequences, SpeechOptions, TokenSource, load_token_clip, prepare_speech,
};
use ambitus_data::{
    Bpe, ClipIndex, ClipMeta, DataError, Limits, Policy, PrepareOptions, Prepared, Source, load_clip,
    read_index, wav,
};
use arbtest::arbtest;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/orpheus/fixtures")
}

fn bpe() -> Bpe {
    Bpe::read(&fixtures(), u64::MAX).expect("tokenizer")
}

fn json(name: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(fixtures().join(name)).expect("fixture");
    serde_json::from_str(&text).expect("valid")
}

fn numbers(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().expect("list").iter().map(|n| n.as_u64().expect("number") as u32).collect()
}

/// What a model writes need not be whole frames: what is malformed is dropped, and counted, and what follows is kept.
#[test]
fn malformed_frames_are_dropped() {
    let codes = |n: u32| [vec![n], vec![n + 1, 0], vec![4095, n, n + 2, 3]];
    let frame = |n: u32| interleave(&Codes::new(codes(n)).expect("in range"));
    let parsed = |ids: &[u32]| {
        let mut frames = Frames::default();
        ids.iter().for_each(|id| frames.push(*id));
        frames
    };
    let whole = [frame(0), frame(1), frame(2)].concat();
    let frames = parsed(&whole);
    assert_eq!((frames.len(), frames.dropped()), (3, 0));
    assert_eq!(frames.codes(1..2), codes(1));
    assert_eq!(frames.codes(0..3), deinterleave(&whole).expect("whole").layers().clone());
    // A stray id of the first slot begins a frame, which is dropped too.
    let (missing, twice, other, begun) = (None, Some(whole[9]), Some(LAST_AUDIO), Some(FIRST_AUDIO));
    for (at, id, dropped) in [(9, missing, 1), (7, missing, 1), (9, twice, 1), (12, other, 1), (9, begun, 2)]
    {
        let mut ids = whole.clone();
        match id {
            None => _ = ids.remove(at),
            Some(id) => ids.insert(at, id),
        }
        let frames = parsed(&ids);
        assert_eq!((frames.len(), frames.dropped()), (2, dropped), "{at} {id:?}");
        assert_eq!([frames.codes(0..1), frames.codes(1..2)], [codes(0), codes(2)], "{at} {id:?}");
    }
    // Other ids are passed over, and an end without a whole frame is no frame.
    let mut ids = whole.clone();
    ids.insert(3, END_OF_AI);
    ids.extend([START_OF_SPEECH, FIRST_AUDIO]);
    let frames = parsed(&ids);
    assert_eq!((frames.len(), frames.dropped()), (3, 0));
}

#[test]
fn one_frame_has_the_ids_of_the_recipe() {
    let codes = Codes::new([vec![1], vec![2, 3], vec![4, 5, 6, 7]]).expect("valid");
    let ids = interleave(&codes);
    // 128266 + 4096·slot + code, in depth-first order.
    assert_eq!(ids, [128_267, 132_364, 136_462, 140_559, 144_653, 148_752, 152_849]);
    assert_eq!(deinterleave(&ids).expect("valid"), codes);
    let last = Codes::new([vec![4095], vec![4095; 2], vec![4095; 4]]).expect("valid");
    assert_eq!(interleave(&last).last(), Some(&LAST_AUDIO));
    assert_eq!(LAST_AUDIO, 156_937);
    for (layers, reason) in [
        ([vec![1], vec![2], vec![3; 4]], "1 codes in layer 1 for 1 frames"),
        ([vec![1], vec![2; 2], vec![4096, 0, 0, 0]], "code 4096 in layer 2"),
    ] {
        let error = Codes::new(layers).expect_err(reason);
        assert!(error.contains(reason), "{error}");
    }
    assert!(deinterleave(&ids[..6]).expect_err("cut").contains("multiple of 7"));
    let mut swapped = ids;
    swapped.swap(1, 2);
    assert!(deinterleave(&swapped).expect_err("swapped").contains("slot 1 takes 132362 to 136457"));
}

#[test]
fn interleaving_is_undone_and_repeated_frames_go() {
    arbtest(|u| {
        let n = u.int_in_range(0..=40)?;
        // Few coarse codes, so that some repeat.
        let coarse = u.int_in_range(1..=CODEBOOK)?.min(if u.arbitrary()? { 3 } else { CODEBOOK });
        let mut layer =
            |codes: u32, count: usize| (0..count).map(|_| u.int_in_range(0..=codes - 1)).collect();
        let layers: [Result<Vec<u32>, _>; 3] =
            [layer(coarse, n), layer(CODEBOOK, 2 * n), layer(CODEBOOK, 4 * n)];
        let [a, b, c] = layers;
        let codes = Codes::new([a?, b?, c?]).expect("valid");
        let ids = interleave(&codes);
        assert_eq!(ids.len(), 7 * n);
        assert!(ids.iter().all(|id| (FIRST_AUDIO..=LAST_AUDIO).contains(id)));
        assert_eq!(deinterleave(&ids).expect("valid"), codes);
        // Dropping keeps the first frame of each run of equal coarse codes, whole.
        let kept = drop_repeated_frames(&ids);
        let firsts: Vec<&[u32]> = ids
            .chunks(7)
            .enumerate()
            .filter(|(i, frame)| *i == 0 || codes.layers()[0][i - 1] + FIRST_AUDIO != frame[0])
            .map(|(_, frame)| frame)
            .collect();
        assert_eq!(kept, firsts.concat());
        assert_eq!(drop_repeated_frames(&kept), kept);
        Ok(())
    })
    .budget_ms(1_000);
}

#[test]
fn text_ids_are_those_of_the_package() {
    let bpe = bpe();
    let vectors = json("tokenizer_vectors.json");
    assert_eq!(vectors.len(), 15);
    for vector in vectors {
        let text = vector["text"].as_str().expect("text");
        assert_eq!(bpe.encode(text).expect("encoded"), numbers(&vector["ids"]), "{text:?}");
    }
}

#[test]
fn sequences_are_those_of_the_official_preprocessing() {
    let sequences = Sequences::new(bpe(), LabelScope::All).expect("valid");
    let audio_only = Sequences::new(bpe(), LabelScope::Audio).expect("valid");
    for case in json("sequences.json") {
        let layers = case["layers"].as_array().expect("layers");
        let codes = Codes::new([0, 1, 2].map(|i| numbers(&layers[i]))).expect("valid");
        let text =
            sequences.text(case["text"].as_str().expect("text"), case["voice"].as_str()).expect("text");
        let (ids, labels) = sequences.whole(&text, &codes);
        assert_eq!(ids, numbers(&case["ids"]));
        assert_eq!(labels, ids.iter().map(|&id| id as i32).collect::<Vec<_>>());
        let (same, labels) = audio_only.whole(&text, &codes);
        assert_eq!(same, ids);
        let audio = case["audio"].as_u64().expect("count") as usize;
        let scored = audio + 2;
        assert!(labels[..ids.len() - scored].iter().all(|&l| l == IGNORED));
        assert!(
            labels[ids.len() - scored..]
                .iter()
                .zip(&ids[ids.len() - scored..])
                .all(|(&l, &id)| l == id as i32)
        );
    }
}

#[test]
fn tokenizers_and_texts_that_cannot_be_used() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("tokenizer.json");
    let write = |text: &str| {
        std::fs::write(&path, text).expect("written");
        Bpe::read(dir.path(), u64::MAX).and_then(|bpe| Sequences::new(bpe, LabelScope::All))
    };
    let refused = |text: &str| match write(text) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    };
    assert!(Bpe::read(&dir.path().join("none"), u64::MAX).is_err());
    for text in ["", "{}", "[1]", "{\"model\": {\"type\": \"BPE\"}}"] {
        let error = refused(text);
        assert!(error.contains("tokenizer.json: not a tokenizer"), "{error}");
    }
    let good = std::fs::read_to_string(fixtures().join("tokenizer.json")).expect("fixture");
    let mut value: serde_json::Value = serde_json::from_str(&good).expect("JSON");
    value["post_processor"] = serde_json::Value::Null;
    let error = refused(&value.to_string());
    assert!(error.contains("begins a text with 128000"), "{error}");
    let mut value: serde_json::Value = serde_json::from_str(&good).expect("JSON");
    let vocab = value["model"]["vocab"].as_object_mut().expect("vocabulary");
    vocab.remove("Ñ").expect("a byte's token");
    let error = refused(&value.to_string());
    assert!(error.contains("no token for the byte 'Ñ'"), "{error}");
    // Cut anywhere: an error, no panic.
    for end in (0..good.len()).step_by(997) {
        if good.is_char_boundary(end) {
            refused(&good[..end]);
        }
    }
    let sequences = write(&good).expect("valid");
    for text in ["all <|eot_id|> over", "<custom_token_2>"] {
        let error = sequences.text(text, None).expect_err("special").to_string();
        assert!(error.contains("spells the special token"), "{error}");
    }
    assert!(sequences.text("laughs <laugh> & <sigh>", Some("tara")).is_ok());
}

/// Codes made of the samples' own frames, so that a test can follow them; keeps what it was given.
#[derive(Default)]
struct Hashing {
    calls: AtomicUsize,
    longest: usize,
    fails: bool,
    weights: u8,
}

fn codes_of(samples: &[f32]) -> Codes {
    let mut layers = [const { Vec::new() }; 3];
    for frame in samples.chunks(FRAME_SAMPLES) {
        let mut hash = blake3::Hasher::new();
        frame.iter().for_each(|x| {
            hash.update(&x.to_le_bytes());
        });
        let bytes = *hash.finalize().as_bytes();
        let code = |i: usize| u32::from(bytes[2 * i]) << 4 | u32::from(bytes[2 * i + 1]) >> 4;
        layers[0].push(code(0));
        layers[1].extend([1, 2].map(code));
        layers[2].extend([3, 4, 5, 6].map(code));
    }
    Codes::new(layers).expect("valid")
}

impl Codec for Hashing {
    fn encode(&mut self, samples: &[f32]) -> Result<Codes, String> {
        if self.fails {
            return Err("out of memory".into());
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.longest = self.longest.max(samples.len());
        Ok(codes_of(samples))
    }

    fn fingerprint(&self) -> [u8; 32] {
        [self.weights; 32]
    }
}

/// A rising tone at a rate of its own.
fn write_tone(path: &Path, seconds: f64, rate: u32, level: f32) {
    let n = (seconds * f64::from(rate)) as usize;
    let tone = |i: usize| (i as f32 * (0.02 + i as f32 * 1e-7)).sin() * level;
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: rate,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).expect("created");
    (0..n).for_each(|i| writer.write_sample((tone(i) * 32767.0) as i16).expect("written"));
    writer.finalize().expect("finished");
}

fn data(dir: &Path) -> PathBuf {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).expect("folder");
    let mut lines = String::new();
    for (name, seconds, rate, level, voice, text) in [
        ("a", 1.0, 24_000, 0.3, "tara", "The boy <laugh> laughed."),
        ("b", 0.7, 16_000, 0.3, "", "No voice here."),
        ("c", 0.5, 44_100, 0.3, "leo", "It's 12:30."),
        ("long", 5.0, 8_000, 0.3, "leo", "Too long."),
        ("quiet", 1.0, 8_000, 0.0, "leo", "Silence."),
        ("tokens", 1.0, 8_000, 0.2, "leo", "\"A <|eot_id|> in it.\""),
        ("wordy", 1.0, 8_000, 0.2, "leo", &"word ".repeat(60)),
    ] {
        write_tone(&data.join(format!("{name}.wav")), seconds, rate, level);
        lines += &format!("{name}.wav|{text}|{voice}\n");
    }
    std::fs::write(data.join("damaged.wav"), b"RIFF....WAVE").expect("written");
    lines += "damaged.wav|Damaged.|leo\n";
    std::fs::write(data.join("metadata.csv"), format!("audio_file|text|source\n{lines}")).expect("written");
    data
}

fn options(dir: &Path) -> PrepareOptions {
    let limits = Limits { max_seconds: 3.0, ..Limits::default() };
    PrepareOptions {
        limits,
        policy: Policy::Skip,
        cache: dir.join("cache"),
        threads: 2,
        rate: 24_000,
        edits: Default::default(),
    }
}

fn run(
    dir: &Path,
    codec: &mut Hashing,
    speech: &SpeechOptions,
    labels: LabelScope,
) -> Result<Prepared, DataError> {
    let sequences = Sequences::new(bpe(), labels)?;
    let source = read(&dir.join("data"))?;
    prepare_speech(&source, &sequences, codec, speech, &options(dir), &|_| true)
}

fn read(path: &Path) -> Result<Source, DataError> {
    Source::read(path, &std::env::temp_dir(), u64::MAX)
}

/// The clips as the index file has them.
fn metas(options: &PrepareOptions) -> Vec<ClipMeta> {
    let mut clips = Vec::new();
    let all = read_index(&options.cache.join("index.json"), |clip| {
        clips.push(clip);
        Ok(())
    });
    all.expect("readable");
    clips
}

fn reason(prepared: &Prepared, name: &str) -> String {
    let mut all = prepared.outcomes.iter().map(|o| o.expect("readable"));
    match all.find(|o| o.name == name).expect("listed").verdict {
        Verdict::Ok { .. } => "ok".to_owned(),
        Verdict::Bad { reason, .. } | Verdict::Outside { reason } => reason,
    }
}

#[test]
fn audio_and_text_become_token_clips() {
    let dir = tempfile::tempdir().expect("folder");
    let data = data(dir.path());
    assert!(TokenSource::open(&data, u64::MAX).expect("readable").is_none());
    let mut codec = Hashing::default();
    let speech = SpeechOptions { max_tokens: Some(170), voice: None, spec: "a-v1" };
    let prepared = run(dir.path(), &mut codec, &speech, LabelScope::All).expect("prepared");
    let names: Vec<_> = (0..prepared.index.len()).map(|i| prepared.index.name(i)).collect();
    let clips = metas(&options(dir.path()));
    assert_eq!(names, ["a.wav", "b.wav", "c.wav"]);
    for (name, expected) in [
        ("long.wav", "longer than 3 s"),
        ("quiet.wav", "nothing to hear"),
        ("tokens.wav", "spells the special token 128009"),
        ("wordy.wav", "more than 170"),
        ("damaged.wav", "damaged.wav"),
    ] {
        assert!(reason(&prepared, name).contains(expected), "{name}: {}", reason(&prepared, name));
    }
    assert_eq!((prepared.summary.clips, prepared.summary.outside, prepared.summary.bad), (3, 2, 3));
    assert!(prepared.summary.to_string().contains("at least 50 clips"), "{}", prepared.summary);
    assert!(codec.longest <= 3 * 24_000);

    // Each clip is what the parts make of its own samples, at its own rate.
    let sequences = Sequences::new(bpe(), LabelScope::All).expect("valid");
    for (i, (name, text, voice)) in [
        ("a", "The boy <laugh> laughed.", Some("tara")),
        ("b", "No voice here.", None),
        ("c", "It's 12:30.", Some("leo")),
    ]
    .into_iter()
    .enumerate()
    {
        let samples =
            ambitus_data::audio::load(&data.join(format!("{name}.wav")), 24_000, 3.0).expect("readable");
        let text = sequences.text(text, voice).expect("text");
        let (ids, labels) = sequences.whole(&text, &codes_of(&samples));
        let clip = load_token_clip(&prepared.index.path(i)).expect("readable");
        assert_eq!((&clip.ids, &clip.labels, clip.name.as_str()), (&ids, &labels, names[i]));
        assert_eq!(clip.scored(), ids.len() - 1);
        let meta = &clips[i];
        assert_eq!(meta.frames, prepared.index.frames()[i]);
        assert_eq!((meta.frames as usize, meta.tokens as usize), (ids.len(), text.len()));
        assert_eq!((ids[0], ids[1], ids[ids.len() - 1]), (START_OF_HUMAN, BEGIN_OF_TEXT, END_OF_AI));
        assert!(ids.contains(&START_OF_SPEECH) && ids.contains(&END_OF_SPEECH));
        assert!(load_clip(&prepared.index.path(i)).is_err(), "not a clip of mel frames");
    }

    // The voice of the options stands in where the data names none, and only there.
    let speech = SpeechOptions { voice: Some("zoe".into()), ..speech };
    let voiced = run(dir.path(), &mut codec, &speech, LabelScope::All).expect("prepared");
    assert_eq!(voiced.summary.cached, 2);
    let text = sequences.text("No voice here.", Some("zoe")).expect("text");
    assert_eq!(metas(&options(dir.path()))[1].tokens as usize, text.len());
}

#[test]
fn token_clips_are_resumed_repaired_and_keyed_by_what_they_depend_on() {
    let dir = tempfile::tempdir().expect("folder");
    let data = data(dir.path());
    let speech = SpeechOptions::default();
    let sequences = Sequences::new(bpe(), LabelScope::All).expect("valid");
    let source = read(&data).expect("readable");
    let mut codec = Hashing::default();
    let seen = AtomicUsize::new(0);
    let stopping = |_: ambitus_data::prepare::Progress<'_>| seen.fetch_add(1, Ordering::Relaxed) < 1;
    let stopped = prepare_speech(&source, &sequences, &mut codec, &speech, &options(dir.path()), &stopping);
    assert!(matches!(stopped, Err(DataError::Stopped)));
    let before = codec.calls.load(Ordering::Relaxed);
    assert!((1..4).contains(&before), "{before}");
    let first = run(dir.path(), &mut codec, &speech, LabelScope::All).expect("prepared");
    assert_eq!(first.index.len(), 4);
    assert_eq!(codec.calls.load(Ordering::Relaxed), 4, "no clip is encoded twice");
    assert_eq!(ClipIndex::load(&dir.path().join("cache/index.json")).expect("readable"), *first.index);

    // A tighter limit judges what is cached without making it again.
    let tight = SpeechOptions { max_tokens: Some(100), ..speech.clone() };
    let fewer = run(dir.path(), &mut codec, &tight, LabelScope::All).expect("prepared");
    assert_eq!((fewer.index.len(), codec.calls.load(Ordering::Relaxed)), (2, 4));

    // Any damage is noticed and mended.
    let path = first.index.path(0);
    let good = std::fs::read(&path).expect("readable");
    for at in [0, 9, 41, 45, 60, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).expect("written");
        assert!(load_token_clip(&path).is_err(), "byte {at}");
    }
    std::fs::write(&path, &good[..good.len() / 2]).expect("written");
    assert!(load_token_clip(&path).is_err());
    let mut lying = good.clone();
    lying[40..48].fill(0xff);
    std::fs::write(&path, &lying).expect("written");
    assert!(load_token_clip(&path).expect_err("lying").to_string().contains("wrong length"));
    let mended = run(dir.path(), &mut codec, &speech, LabelScope::All).expect("prepared");
    assert_eq!(mended.summary.cached, 3);
    assert_eq!(std::fs::read(&path).expect("readable"), good);

    // Other labels and another codec are other clips.
    let audio = run(dir.path(), &mut codec, &speech, LabelScope::Audio).expect("prepared");
    assert_eq!(audio.summary.cached, 0);
    let clip = load_token_clip(&audio.index.path(0)).expect("readable");
    assert_eq!((clip.labels[0], *clip.labels.last().expect("some")), (IGNORED, END_OF_AI as i32));
    let mut other = Hashing { weights: 1, ..Hashing::default() };
    assert_eq!(run(dir.path(), &mut other, &speech, LabelScope::All).expect("prepared").summary.cached, 0);

    // A codec that fails ends the pass and names the clip.
    let mut broken = Hashing { weights: 2, fails: true, ..Hashing::default() };
    let error = run(dir.path(), &mut broken, &speech, LabelScope::All).expect_err("fails").to_string();
    assert!(error.contains(".wav: the audio codec failed: out of memory"), "{error}");
}

#[test]
fn silence_is_cut_and_the_codec_never_gets_more_than_the_longest_clip() {
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    // Four seconds of silence around one of noise, and no whole number of frames.
    let mut samples = vec![0.0f32; 24_000 * 5 + 77];
    for (i, x) in samples[48_000..72_000].iter_mut().enumerate() {
        *x = ((i * 7919 % 2000) as f32 / 1000.0 - 1.0) * 0.5;
    }
    wav::write_wav(&data.join("a.wav"), &samples, 24_000).expect("written");
    std::fs::write(data.join("a.txt"), "Noise.").expect("written");
    let sequences = Sequences::new(bpe(), LabelScope::All).expect("valid");
    let source = read(&data).expect("readable");
    let cut = PrepareOptions { policy: Policy::Cut, ..options(dir.path()) };
    let mut codec = Hashing::default();
    let prepare = |codec: &mut Hashing, options: &PrepareOptions| {
        prepare_speech(&source, &sequences, codec, &SpeechOptions::default(), options, &|_| true)
    };
    let prepared = prepare(&mut codec, &cut).expect("prepared");
    assert_eq!(prepared.summary.trimmed.first, ["a.wav"]);
    assert_eq!(prepared.index.len(), 1);
    let seconds = metas(&cut)[0].measured.seconds;
    assert!((seconds - 1.2).abs() < 0.05, "{seconds}");
    assert_eq!(codec.longest, (seconds * 24_000.0).round() as usize);
    let whole = PrepareOptions { limits: Limits::default(), cache: dir.path().join("whole"), ..cut };
    prepare(&mut codec, &whole).expect("prepared");
    assert_eq!(codec.longest, samples.len(), "no sample more or less");
}

#[cfg(not(feature = "parquet"))]
#[test]
fn without_the_feature_parquet_is_named_with_how_to_build_it() {
    for error in [
        read(&fixtures().join("arrays.parquet")).expect_err("not read"),
        TokenSource::open(&fixtures().join("tokens.parquet"), u64::MAX).expect_err("not read"),
    ] {
        let error = error.to_string();
        assert!(error.contains(".parquet: ") && error.contains("--features parquet"), "{error}");
    }
}
