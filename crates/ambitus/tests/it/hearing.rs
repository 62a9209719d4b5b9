//! Models that hear, beside what transformers made of the same weights and sounds (`parity/whisper/record.py`).

use crate::common::{json, ok, root, said};
use crate::tensors::{floats, integers};
use ambitus_testkit::tolerances::HEARD;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn model(name: &str) -> PathBuf {
    root().join("parity/whisper/fixtures").join(name)
}

/// Runs `generate` on a fixture's clips, which must stay within its plan.
fn generate(dir: &Path, name: &str, more: &[&str]) -> PathBuf {
    let model = model(name);
    let batch = model.join("generate.safetensors");
    let [model, batch] = [&model, &batch].map(|path| path.to_str().unwrap());
    let args = ["generate", "--model", model, "--batch", batch, "--out", "out.safetensors", "--json"];
    let told = json(dir, &[&args[..], more].concat());
    assert!(told["measured_bytes"].as_u64() <= told["planned_bytes"].as_u64(), "{told}");
    dir.join("out.safetensors")
}

#[test]
fn states_logits_and_tokens_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    // 80 bands in fp32 without lists of suppressed tokens, 128 in bf16 with them.
    for name in ["80", "128"] {
        let want = model(name).join("generate.safetensors");
        let got = generate(folder.path(), name, &["--max-new", "12", "--logits", "--states"]);
        for i in 0..2 {
            let of = |leaf: &str| format!("clips.{i}.{leaf}");
            assert_eq!(integers(&got, &of("tokens")), integers(&want, &of("tokens")), "{name} clip {i}");
            for leaf in ["states", "logits"] {
                let ((shape, got), (of_want, want)) = (floats(&got, &of(leaf)), floats(&want, &of(leaf)));
                assert_eq!(shape, of_want, "{name} clip {i}: {leaf}");
                let most = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs() / most).fold(0.0, f32::max);
                assert!(off < HEARD, "{name} clip {i}: {leaf} off by {off:.1e}");
            }
        }
        // One at a time.
        let alone = generate(folder.path(), name, &["--max-new", "12", "--sequences", "1"]);
        let tokens = |file: &Path| [0, 1].map(|i| integers(file, &format!("clips.{i}.tokens")));
        assert_eq!(tokens(&alone), tokens(&want), "{name}");
    }
}

/// In half the bytes, and where that is too much.
#[test]
fn sixteen_bits_and_budgets() {
    let folder = tempfile::tempdir().unwrap();
    let got = generate(folder.path(), "80", &["--max-new", "3", "--states", "--precision", "bf16-pure"]);
    let want = model("80").join("generate.safetensors");
    let ((_, got), (_, want)) = (floats(&got, "clips.0.states"), floats(&want, "clips.0.states"));
    let [off, all] =
        [got.iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum::<f32>(), want.iter().map(|x| x * x).sum()];
    assert!((off / all).sqrt() < 3e-2, "{}", (off / all).sqrt());
    let (model, batch) = (model("80"), model("80").join("generate.safetensors"));
    let args =
        ["generate", "--model", model.to_str().unwrap(), "--batch", batch.to_str().unwrap(), "--out", "no"];
    let (code, text) = said(folder.path(), &[&args[..], &["--memory", "10MiB"]].concat());
    assert!(code == 3 && text.contains("--memory allows"), "{text}");
    let (code, text) = said(folder.path(), &[&args[..], &["--max-new", "18"]].concat());
    assert!(code == 2 && text.contains("clips.1.prompt"), "{text}");
    assert!(!folder.path().join("no").exists());
}

/// The sound of `parity/whisper/package.py`, at 16 kHz.
fn sound(dir: &Path, name: &str, seconds: i64) -> String {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut wav = hound::WavWriter::create(dir.join(name), spec).unwrap();
    let mut state = 12_345u64;
    for t in 0..16_000 * seconds {
        state = (state * 1_103_515_245 + 12_345) % (1 << 31);
        let a = t * (40 + t / 900 % 300) % 4096;
        let tone = if t / 20_000 % 3 < 2 { 8 * (a - 2048).abs() - 8192 } else { 0 };
        wav.write_sample((tone + (state >> 20) as i64 - 1024) as i16).unwrap();
    }
    wav.finalize().unwrap();
    name.to_owned()
}

fn expected() -> Value {
    let text = std::fs::read_to_string(model("heard").join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Runs `transcribe` on files, and returns what it says of each.
fn transcribe(dir: &Path, files: &[&str], more: &[&str]) -> Vec<Value> {
    let model = model("heard").display().to_string();
    let args = [&["transcribe", "--model", &model, "--json"], files, more].concat();
    let lines: Vec<Value> = ok(dir, &args).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        assert!(line["measured_bytes"].as_u64() <= line["planned_bytes"].as_u64(), "{line}");
    }
    lines
}

fn near(got: &Value, want: &Value, by: f64) {
    let off = (got.as_f64().unwrap() - want.as_f64().unwrap()).abs();
    assert!(off <= by, "{got} is not {want}");
}

/// Text, language and segments of two windows, and word times within a state of the package's.
#[test]
fn a_long_file_is_heard_as_by_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let file = sound(dir, "long.wav", 37);
    let got =
        &transcribe(dir, &[&file], &["--no-fallback", "--srt", "subtitles", "--metadata", "metadata.csv"])[0];
    let want = expected();
    assert_eq!(got["language"], want["language"]);
    assert_eq!(got["text"], want["text"].as_str().unwrap().trim());
    // Those without text are left out.
    let with_text = |s: &&Value| !s["text"].as_str().unwrap().is_empty();
    let wants: Vec<&Value> = want["segments"].as_array().unwrap().iter().filter(with_text).collect();
    let segments = got["segments"].as_array().unwrap();
    assert_eq!(segments.len(), wants.len());
    for (got, want) in segments.iter().zip(wants) {
        assert_eq!(got["text"], want["text"]);
        for time in ["start", "end"] {
            near(&got[time], &want[time], 0.0201);
        }
        for (of, by) in [("avg_logprob", 1e-3), ("compression_ratio", 0.1), ("no_speech_prob", 1e-4)] {
            near(&got[of], &want[of], by);
        }
        let [got, want] = [got, want].map(|s| s["words"].as_array().unwrap());
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert_eq!(got["word"], want["word"]);
            near(&got["start"], &want["start"], 0.0201);
            near(&got["end"], &want["end"], 0.0201);
        }
    }
    let subtitles = std::fs::read_to_string(dir.join("subtitles/long.srt")).unwrap();
    assert_eq!(subtitles.matches(" --> ").count(), segments.len());
    let metadata = std::fs::read_to_string(dir.join("metadata.csv")).unwrap();
    assert!(metadata.starts_with("long.wav|"), "{metadata}");
}

/// Sums of log-probabilities of a text that is given, by word.
#[test]
fn scores_are_sums_of_the_packages_log_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let want = &expected()["forced"];
    let file = sound(dir, "clip.wav", want["seconds"].as_i64().unwrap());
    let text = want["text"].as_str().unwrap();
    std::fs::write(dir.join("text.txt"), text).unwrap();
    let one = transcribe(dir, &[&file], &["--language", "en", "--text", "text.txt"]);
    std::fs::write(dir.join("texts.txt"), format!("on\n{text}\n")).unwrap();
    // Beside others.
    let two = transcribe(dir, &[&file, &file], &["--language", "en", "--text", "texts.txt"]);
    for got in [&one[0], &two[1]] {
        near(&got["end_logprob"], &want["end_logprob"], 1e-5 * 8.0);
        let [got, want] = [got, want].map(|of| of["words"].as_array().unwrap());
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert_eq!(got["word"], want["word"]);
            near(&got["logprob"], &want["logprob"], 1e-5 * want["logprob"].as_f64().unwrap().abs().max(1.0));
        }
    }
    // Where a text is unlikely it is written again, by the seed.
    let drawn = |seed| transcribe(dir, &[&file], &["--seed", seed])[0]["text"].clone();
    assert_eq!(drawn("1"), drawn("1"));
}

#[test]
fn what_cannot_be_heard_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let long = sound(dir, "long.wav", 31);
    std::fs::write(dir.join("text.txt"), "a").unwrap();
    std::fs::write(dir.join("no.wav"), "RIFF").unwrap();
    let heard = model("heard").display().to_string();
    for (code, words, more) in [
        (5, "no.wav", &["no.wav"][..]),
        (5, "absent.wav", &["absent.wav"]),
        (5, "long.wav", &[&long, "--text", "text.txt"]),
        (2, "text.txt: has 1 lines for 2 files", &[&long, &long, "--text", "text.txt"]),
        (2, "--language xx", &[&long, "--language", "xx"]),
        (2, "one of the files that are heard", &[&long, "--metadata", "long.wav"]),
        (2, "same subtitles", &[&long, &long, "--srt", "out"]),
        (3, "--memory allows", &[&long, "--memory", "20MiB"]),
    ] {
        let (got, text) = said(dir, &[&["transcribe", "--model", &heard], more].concat());
        assert!(got == code && text.contains(words), "{more:?}: {got}: {text}");
    }
    // A folder without a tokenizer.
    let (code, text) = said(dir, &["transcribe", "--model", model("80").to_str().unwrap(), &long]);
    assert!(code == 4 && text.contains("tokenizer.json"), "{text}");
    assert!(!dir.join("out").exists());
}
