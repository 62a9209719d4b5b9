//! `ambitus say` on small models: the same speech from wherever the weights come, in files and as a stream, within its plan; what
//! cannot be said is refused.

use crate::common::{self, ambitus, json, said};
use crate::orpheus_train;
use std::path::{Path, PathBuf};

/// Of the smallest model: few steps, no guidance.
const QUICK: [&str; 4] = ["--steps", "2", "--cfg", "0"];

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Speaks as the arguments say, and returns the sound's file and what was said of it. What was measured is within the plan.
pub fn speech(dir: &Path, args: &[&str]) -> (Vec<u8>, serde_json::Value) {
    let out = text(&dir.join("out.wav"));
    let said = json(dir, &[&["say", "-o", &out, "--json"], args].concat());
    let (measured, planned) = (said["measured_bytes"].as_u64(), said["planned_bytes"].as_u64());
    assert!(measured.is_some() && measured <= planned, "{said:#}");
    (std::fs::read(&out).expect("a sound"), said)
}

/// Arguments for a reference clip of [`common::voice`].
pub fn reference(dir: &Path) -> [String; 4] {
    let clip = text(&dir.join("voice/clip00.wav"));
    ["--ref".to_owned(), clip, "--ref-text".to_owned(), "abc 12".to_owned()]
}

/// The fixture, as if its text were characters.
fn by_characters(dir: &Path) -> PathBuf {
    let folder = dir.join("characters");
    std::fs::create_dir(&folder).expect("a folder");
    for file in std::fs::read_dir(common::fixture("v1")).expect("a fixture") {
        let path = file.expect("a file").path();
        std::fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("copied");
    }
    let config = folder.join("config.yaml");
    let said = std::fs::read_to_string(&config).expect("a configuration");
    let changed = said.replace("tokenizer: custom", "tokenizer: char");
    std::fs::write(&config, changed).expect("a file");
    folder
}

#[test]
fn a_cloned_voice_speaks() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 1);
    let model = text(&common::fixture("v1"));
    let reference = reference(dir);
    let voice: Vec<&str> = reference.iter().map(String::as_str).collect();
    let with = |more: &[&str]| speech(dir, &[&[model.as_str()], more, &voice, &QUICK].concat());
    let long = "bad hide. leaf 45, abc; bad 7! hide 3, bad abc leaf 12 bad. abc abc abc.".repeat(3);
    let (sound, report) = with(&[&long]);
    assert_eq!(report["lines"][0]["pieces"], 1, "{report:#}");
    // 44 bytes of header, 2 a sample.
    let seconds = (sound.len() - 44) as f64 / 48_000.0;
    assert!((seconds - report["speech_seconds"].as_f64().expect("seconds")).abs() < 1e-9 && seconds > 5.0);

    // The same again, by other threads; another with another seed.
    assert!(with(&[&long, "--threads", "1"]).0 == sound);
    assert!(with(&[&long, "--seed", "1"]).0 != sound);

    // As a stream: the header does not know the length yet.
    let args = [&["say", model.as_str(), &long, "-o", "-"], &voice[..], &QUICK].concat();
    let out = ambitus(dir, &args);
    assert!(out.status.success() && out.stdout[44..] == sound[44..]);

    // Of several lines each has its file, and a lossless one the same samples.
    std::fs::write(dir.join("lines.txt"), format!("bad 7\n\n  \n{long}\n")).expect("a file");
    let lines = text(&dir.join("lines.txt"));
    let flac = text(&dir.join("two.flac"));
    common::ok(dir, &[&["say", &model, "--text", &lines, "-o", &flac], &voice[..], &QUICK].concat());
    let sizes = ["two-1.flac", "two-2.flac"].map(|f| std::fs::metadata(dir.join(f)).expect("a file").len());
    assert!(sizes[0] < sizes[1] && sizes[1] < sound.len() as u64, "{sizes:?}");

    // A budget below what the text needs whole makes shorter pieces, a smaller one is refused with what it takes. Reading by
    // characters takes no dictionary, which is more than a small model's speech.
    let by_characters = text(&by_characters(dir));
    let with =
        |more: &[&str]| speech(dir, &[&[by_characters.as_str(), &long], more, &voice, &QUICK].concat()).1;
    let planned = with(&[])["planned_bytes"].as_u64().expect("bytes");
    let less = with(&["--memory", &format!("{}B", planned - (200 << 10))]);
    assert!(less["lines"][0]["pieces"].as_u64() > Some(1), "{less:#}");
    assert!(less["planned_bytes"].as_u64() < Some(planned));
    let (code, why) =
        said(dir, &[&["say", &model, "bad", "-o", "no.wav", "--memory", "8MiB"], &voice[..]].concat());
    assert!(code == 3 && why.contains("--memory allows") && !dir.join("no.wav").exists(), "{code}: {why}");
}

#[test]
fn what_cannot_be_said_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 1);
    let model = text(&common::fixture("v1"));
    let clip = text(&dir.join("voice/clip00.wav"));
    std::fs::write(dir.join("bytes.txt"), [0xff, 0xfe, 0x00]).expect("a file");
    let silent = dir.join("silent.wav");
    wav(&silent, &vec![0.0; 48_000]);
    let silent = text(&silent);
    let of =
        |clip: &str| vec!["--ref".to_owned(), clip.to_owned(), "--ref-text".to_owned(), "abc".to_owned()];
    let cases: [(&str, Vec<String>, i32, &str); 8] = [
        ("bad", Vec::new(), 2, "--ref: is missing"),
        ("  ", of(&clip), 2, "has no words to say"),
        ("?!", of(&clip), 2, "has no words to say"),
        ("bad", of("nowhere.wav"), 5, "nowhere.wav"),
        ("bad", of(&silent), 5, "is silent"),
        ("Ω Ж Ω Ж Ω Ж Ω Ж", of(&clip), 2, "the vocabulary has"),
        ("bad", [of(&clip), vec!["--voice".into(), "tara".into()]].concat(), 2, "no named voices"),
        ("bad", [of(&clip), vec!["--speed".into(), "0".into()]].concat(), 2, "--speed"),
    ];
    for (line, more, want, words) in cases {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let (code, why) = said(dir, &[&["say", &model, line, "-o", "no.wav"], &more[..], &QUICK].concat());
        assert!(code == want && why.contains(words), "{line} {more:?}: {code}, {why}");
    }
    let (code, why) = said(dir, &["say", &model, "bad", "-o", "no.mp3"]);
    assert!(code == 2 && why.contains("name a .wav or .flac file"), "{code}: {why}");
    let (code, why) = said(dir, &["say", &model, "--text", "bytes.txt", "-o", "no.wav"]);
    assert!(code == 2 && why.contains("is not UTF-8"), "{code}: {why}");
    assert!(!dir.join("no.wav").exists());
}

/// A plan says how much speech its budget is enough for: more where there is more, within it.
#[test]
fn plans_say_how_much_fits_and_how_fast() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let models = [common::fixture("v1"), orpheus_train::prepared(dir)].map(|model| text(&model));
    for (model, most) in models.iter().zip([16.0, 160.0]) {
        let speech = |memory: u64| {
            let memory = format!("{memory}B");
            let args = ["plan", "--model", model, "--assume", "8x2s", "--json", "--memory", &memory];
            let out = ambitus(dir, &args);
            let plan: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
            let number =
                |key: &str| plan["speech"][key].as_f64().unwrap_or_else(|| panic!("{key}: {plan:#}"));
            (number("seconds"), number("peak_bytes"), number("cache_bytes"), number("per_second"))
        };
        let (all, peak, ..) = speech(8 << 30);
        assert_eq!(all, most);
        let (some, less, _, rate) = speech(peak as u64 - (64 << 10));
        assert!(0.0 < some && some < most && less < peak && rate > 0.0, "{some} {less} {peak} {rate}");
        let (none, least, ..) = speech(8 << 20);
        assert!(none == 0.0 && least > f64::from(8 << 20), "{none} {least}");
    }
}

/// Writes samples as a wav file.
fn wav(path: &Path, samples: &[f32]) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 24_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut wav = hound::WavWriter::create(path, spec).expect("a file");
    samples.iter().for_each(|x| wav.write_sample((x * 32_767.0) as i16).expect("a sample"));
    wav.finalize().expect("a file");
}

/// Tokens become sound: as a file, as a stream that is decoded while it is written, and several texts at a time.
#[test]
fn a_decoder_speaks_through_its_codec() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = text(&orpheus_train::prepared(dir));
    let codec = text(&dir.join("snac"));
    std::fs::write(dir.join("lines.txt"), "one two\nthree four five\nsix\n").expect("a file");
    let lines = text(&dir.join("lines.txt"));
    let base = ["say", &model, "--text", &lines, "--codec", &codec, "--voice", "tara"];
    // A model of random weights writes any ids: few are frames.
    let said = |sequences: &str, out: &str| {
        let more = ["--temperature", "5", "--max-new", "40", "--sequences", sequences, "-o", out];
        ambitus(dir, &[&base[..], &more].concat())
    };
    let [one, three] = ["1", "3"].map(|n| {
        let out = said(n, &format!("at{n}.wav"));
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        [1, 2, 3].map(|i| std::fs::read(dir.join(format!("at{n}-{i}.wav"))).expect("a sound"))
    });
    assert!(one == three);
    let stream = said("1", "-");
    assert!(stream.status.success());
    assert!(stream.stdout[44..] == one.map(|sound| sound[44..].to_vec()).concat());
    let (code, why) = common::said(dir, &["say", &model, "one", "-o", "no.wav"]);
    assert!(code == 2 && why.contains("--codec: is missing"), "{code}: {why}");
    let (_, report) = speech(dir, &[&model, "one two", "--codec", &codec, "--max-new", "14", "--greedy"]);
    let odd = report["lines"][0]["oddities"].to_string();
    assert!(odd.contains("ran to its limit"), "{report:#}");
}
