//! What a family says of a reference clip and a text, through its vocoder.

use super::cases::{self, Case};
use super::export;
use ambitus_compile::passes::precision::Precision;
use ambitus_data::SoundWriter;
use ambitus_data::audio::AudioReader;
use ambitus_families::CODECS;
use ambitus_families::codec;
use ambitus_families::console::Silent;
use ambitus_families::error::RunError;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_families::generate::Settings;
use ambitus_families::sampling::Sampling;
use ambitus_families::speech::{Asked, Line, Reference};
use ambitus_ir::{DType, Session};
use ambitus_recipe::recipe::DeviceChoice;
use ambitus_train::inference::InferenceOptions;
use ambitus_train::say::{self, Taken};
use ambitus_train::trained::Trained;
use ambitus_train::writing::Out;
use std::path::{Path, PathBuf};

/// Who speaks, how fast, and in how many bytes.
#[derive(Clone, Copy)]
struct How {
    clip: bool,
    language: Option<&'static str>,
    cleaned: bool,
    speed: f64,
    seconds: Option<f64>,
    memory: Option<u64>,
}

const ENGLISH: How =
    How { clip: true, language: Some("en"), cleaned: false, speed: 1.0, seconds: None, memory: None };

/// Asks for lines, ten codes of each at most.
fn ask<T>(case: &Case, lines: &[&str], how: How, with: impl FnOnce(&Asked<'_>) -> T) -> T {
    let sampling = Sampling { greedy: true, ..Settings::SPEECH.sampling };
    let settings = Settings { sampling, max_new: Some(10), sequences: 2, ..Settings::SPEECH };
    let reference = Reference::Sound(case.dir.path().join("voice/clip1.wav"), String::new());
    with(&Asked {
        lines: &lines.iter().map(|line| Line::Text((*line).to_owned())).collect::<Vec<_>>(),
        reference: how.clip.then_some(&reference),
        voice: None,
        language: how.language,
        cleaned: how.cleaned,
        decoder: None,
        settings: &settings,
        speed: how.speed,
        seconds: how.seconds,
        most_seconds: f64::INFINITY,
        threads: 1,
        room: how.memory.unwrap_or(u64::MAX),
    })
}

/// Says lines into one file a line.
fn says(case: &Case, lines: &[&str], how: How) -> Result<(Taken, Vec<Vec<f32>>), RunError> {
    let trained = Trained::open(case.families, &case.model, (None, None), &mut Silent)?;
    let (precision, device, memory) = (Precision::Fp32, DeviceChoice::Cpu, how.memory);
    let options = InferenceOptions { precision, device, threads: 1, memory };
    let file = |i| case.dir.path().join(format!("said-{i}.wav"));
    let files: Vec<PathBuf> = (0..lines.len()).map(file).collect();
    let out = Out::Files(files.clone());
    let taken = ask(case, lines, how, |asked| say::say(&trained, asked, &options, &out, &mut Silent))?;
    let sound = |file: &PathBuf| ambitus_data::audio::load(file, 24_000, 60.0).expect("a sound");
    Ok((taken, files.iter().map(sound).collect()))
}

/// Why a family does not say something, which it knows without weights.
fn refusal(case: &Case, how: How) -> RunError {
    let scratch = OpenOptions { from_scratch: true, ..OpenOptions::default() };
    let model = ModelDir::open(case.families, &case.model, scratch).expect("its own folder");
    let speaker = model.opened.speaker().expect("it speaks");
    ask(case, &["abc."], how, |asked| speaker.speech(asked)).err().expect("a refusal")
}

/// Ten codes are as many samples as the speed says; a line's sound does not depend on what is said beside it.
#[test]
fn speech_is_as_fast_as_is_asked_for() {
    let case = cases::xtts();
    let at =
        |speed| says(&case, &["Hello there.", "A bright day.", "Hello there."], How { speed, ..ENGLISH });
    let (taken, plain) = at(1.0).expect("it speaks");
    // Rows, frames of a quarter of a code, at 24 kHz instead of 22.05, of 256 samples.
    for (speed, rows) in [(1.0, 10), (2.0, 5), (0.5, 20), (1.6, 6)] {
        let (faster, sounds) = at(speed).expect("it speaks");
        let samples = (4 * rows) * 24_000 / 22_050 * 256;
        assert!(sounds.iter().all(|sound| sound.len() == samples), "{speed}: {}", sounds[0].len());
        assert!(sounds[0] == sounds[2] && sounds[0] != sounds[1], "{speed}");
        assert_eq!(sounds == plain, speed == 1.0);
        assert_eq!(faster.planned_bytes, taken.planned_bytes);
    }
    let (_, alone) = says(&case, &["Hello there."], ENGLISH).expect("it speaks");
    assert!(alone[0] == plain[0]);
    // What a plan predicts seconds of are the programs that there are.
    let trained =
        Trained::open(case.families, &case.model, (None, None), &mut Silent).expect("its own folder");
    let speaker = trained.model.opened.speaker().expect("it speaks");
    let speech = ask(&case, &["Hello there."], ENGLISH, |asked| speaker.speech(asked)).expect("it speaks");
    let mut built = Session::default();
    let programs = (*speech.programs())(&mut built, DType::F32);
    let runs = speech.runs();
    assert!(programs.iter().map(|p| &p.name).eq(runs.iter().map(|(name, _)| name)), "{runs:?}");
    assert!(runs.iter().all(|(_, times)| *times >= 1.0), "{runs:?}");
    // What chooses its own pace says so.
    for case in [cases::orpheus(), cases::parler()] {
        let why = refusal(&case, How { clip: false, language: None, speed: 1.2, ..ENGLISH });
        assert!(why.exit_code() == 2 && why.to_string().starts_with("--speed: "), "{why}");
    }
}

/// Music is as long as is asked for, and no text's depends on what is made beside it; who chooses the length says so.
#[test]
fn music_is_as_long_as_is_asked_for() {
    let case = cases::musicgen();
    let none = How { clip: false, language: None, ..ENGLISH };
    let of = |seconds, lines: &[&str]| says(&case, lines, How { seconds, ..none }).expect("it plays").1;
    let all = of(Some(0.5), &["slow piano", "drums", "slow piano"]);
    // At 24 kHz; of ten columns after the first, the second codebook's delay is one.
    assert!(all.iter().all(|sound| sound.len() == 12_000), "{}", all[0].len());
    assert!(all[0] == all[2] && all[0] != all[1] && all[..1] == of(Some(0.5), &["slow piano"]));
    assert_eq!(of(None, &["drums"])[0].len(), 9 * 640 * 3 / 4);
    // What is continued has 0.4 s.
    let shorter = How { clip: true, seconds: Some(0.4), ..none };
    for (how, option) in [(shorter, "--ref: "), (How { speed: 2.0, ..none }, "--speed: ")] {
        assert!(refusal(&case, how).to_string().starts_with(option), "{option}");
    }
    let case = cases::xtts();
    let why =
        says(&case, &["hello"], How { seconds: Some(1.0), ..ENGLISH }).map(|_| ()).expect_err("it chooses");
    assert!(why.exit_code() == 2 && why.to_string().starts_with("--seconds: this model chooses"), "{why}");
}

/// Music begins with the sound that it continues, as the codec has it, in each channel.
#[test]
fn music_goes_on_from_a_sound() {
    for channels in [1, 2] {
        let case = cases::musicgen_of(channels);
        let clip = case.dir.path().join("voice/clip1.wav");
        let tone = |step: f32| (0..12_800).map(move |t| 0.4 * (t as f32 * step).sin()).collect::<Vec<f32>>();
        let given = [tone(0.05), tone(0.013)];
        let mut file = SoundWriter::create(&clip, 32_000, channels as u16).expect("a file");
        let both = given[0].iter().zip(&given[1]).flat_map(|(left, right)| [*left, *right]);
        file.push(
            &both.collect::<Vec<f32>>().chunks(2).flat_map(|c| &c[..channels]).copied().collect::<Vec<f32>>(),
        )
        .expect("written");
        file.finish().expect("written");
        let how = How { clip: true, language: None, seconds: Some(1.0), ..ENGLISH };
        let (taken, _) = says(&case, &["slow piano"], how).expect("it plays");
        assert_eq!(taken.lines[0].seconds, 1.0);
        let said = case.dir.path().join("said-0.wav");
        let mut codec = codec::open(CODECS, &case.model, 1).expect("its own codec");
        let of_channel = |path: &Path, channel| {
            let mut reader = AudioReader::open(path).expect("a sound").of_channel(channel);
            let mut all = Vec::new();
            while let Some(some) = reader.next_chunk().expect("samples") {
                all.extend_from_slice(some);
            }
            all
        };
        let sounds: Vec<Vec<f32>> = (0..channels).map(|channel| of_channel(&said, channel)).collect();
        for (channel, sound) in sounds.iter().enumerate() {
            assert_eq!(sound.len(), 32_000);
            let codes = codec.encode(&of_channel(&clip, channel)).expect("codes");
            let alone = codec.decode(&codes).expect("samples");
            // What follows reaches back over the last frames.
            let off = alone[..9_600].iter().zip(sound).map(|(a, b)| (a.clamp(-1.0, 1.0) - b).abs());
            assert!(off.fold(0.0, f32::max) < 2e-4, "channel {channel} of {channels}");
        }
        assert!(channels == 1 || sounds[0] != sounds[1]);
        // It is the text's and the seed's from there on.
        let (_, again) = says(&case, &["slow piano", "drums"], how).expect("it plays");
        assert!(again[0] != again[1]);
    }
}

/// Music is heard while a model trains, of its held-out clips' texts or given ones, and moves no bit of the run.
#[test]
fn music_is_heard_while_a_model_trains() {
    let case = cases::musicgen_of(2);
    let plain = case.trained("plain", "samples: false");
    let all: [(&str, &str, &str, f64); 2] = [
        ("given", "samples: {texts: [slow piano], seconds: 0.5, every: 2}", "slow-piano", 0.5),
        // About as long as the longest clip, which has 28 frames, a step each, and one more.
        ("held-out", "samples: {every: 2}", "clip3", 0.58),
    ];
    for (name, lines, file, seconds) in all {
        let run = case.trained(name, lines);
        assert!(export(&run) == export(&plain), "{name}: other bits");
        for update in [0, 2, 4] {
            let path = run.join(format!("samples/{update}/{file}.wav"));
            let reader = AudioReader::open(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!((reader.info().rate, reader.info().channels), (32_000, 2), "{name}");
            let said = std::fs::read_to_string(path.with_file_name("samples.json")).expect("facts");
            let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
            assert_eq!(said["lines"][0]["seconds"], seconds, "{name}");
        }
    }
    // Who chooses the length says so.
    let talks = cases::parler();
    let why = talks.run("refused", &talks.model, "samples: {texts: [abc], voice: deep, seconds: 1}");
    let why = why.expect_err("it chooses").to_string();
    assert!(why.contains("samples: seconds: this model chooses how long it speaks"), "{why}");
}

/// Whose fault it is that nothing can be said.
#[test]
fn what_cannot_be_said_has_its_exit_code() {
    let case = cases::xtts();
    let refused = |text: &str, how, code, words: &str| {
        let why = says(&case, &[text], how).map(|_| ()).expect_err(words);
        assert!(why.exit_code() == code && why.to_string().contains(words), "{}: {why}", why.exit_code());
    };
    let german = How { language: Some("de"), ..ENGLISH };
    refused("Es sind 5.", german, 2, "numbers (5) in German are not known here");
    refused("hello", How { language: Some("fi"), ..ENGLISH }, 2, "`fi` is none of the model's");
    refused("hello", How { language: None, ..ENGLISH }, 2, "--language");
    refused("hello", How { clip: false, ..ENGLISH }, 2, "--ref: is missing");
    let korean = How { language: Some("ko"), ..ENGLISH };
    refused("hello", korean, 2, "Korean is written in Latin letters");
    says(&case, &["annyeonghaseyo"], How { cleaned: true, ..korean }).expect("it was cleaned");
    // Too little for the tokenizer, and for the plan.
    refused("hello", How { memory: Some(1 << 20), ..ENGLISH }, 3, "vocab.json: takes");
    refused("hello", How { memory: Some(24 << 20), ..ENGLISH }, 3, "raise --memory");
    // Files of the model.
    let path = case.model.join("vocab.json");
    let vocab = std::fs::read_to_string(&path).expect("a vocabulary");
    for (text, words) in [
        (vocab.replace("[START]", "[BEGIN]"), "vocab.json: has no [START]"),
        (vocab.replace("[en]", "[eo]"), "has no [en]: the model does not speak it"),
        (vocab.replacen(": 309", ": 4194304", 1), "vocab.json: has the id 4194304"),
        (vocab[..vocab.len() / 2].to_owned(), "vocab.json: "),
    ] {
        assert_ne!(text, vocab, "{words}");
        std::fs::write(&path, text).expect("a file");
        refused("hello", ENGLISH, 4, words);
    }
    std::fs::remove_file(&path).expect("it is there");
    refused("hello", ENGLISH, 4, "vocab.json: ");
    std::fs::write(&path, vocab).expect("a file");
    let clip = case.dir.path().join("voice/clip1.wav");
    std::fs::write(&clip, b"RIFF").expect("a file");
    refused("hello", ENGLISH, 5, "clip1.wav: ");
    // Who reads all texts alike says so.
    for case in [cases::f5(), cases::orpheus(), cases::parler()] {
        let cleaned = How { clip: false, language: None, cleaned: true, ..ENGLISH };
        let why = refusal(&case, cleaned);
        assert!(why.exit_code() == 2 && why.to_string().starts_with("--cleaned: "), "{why}");
    }
}
