//! `ambitus generate` beside transformers and the packages of F5-TTS, Parler-TTS and XTTS: `parity/{orpheus,f5,parler,xtts}/generate.py` recorded what
//! they make of the same prompts, draws and noise.

use crate::common::{self, json, said};
use crate::orpheus_train;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Of a logit, relative to the largest of its step; of mel frames, relative L2 over those that are generated.
const TOLERANCE: f64 = 1e-4;
/// What the fixtures were recorded with.
const NEW: &str = "24";

/// A file's tensors.
#[derive(Default)]
struct Tensors {
    floats: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    ints: BTreeMap<String, Vec<i64>>,
}

fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).expect("a file");
    let mut all = Tensors::default();
    for (name, t) in SafeTensors::deserialize(&bytes).expect("safetensors").tensors() {
        if t.dtype() == safetensors::Dtype::F32 {
            let values = t.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            all.floats.insert(name, (t.shape().to_vec(), values));
        } else {
            all.ints.insert(name, t.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect());
        }
    }
    all
}

/// Runs the command on a fixture, in `dir`.
fn generate(dir: &Path, fixture: &Path, options: &[&str]) -> (Tensors, serde_json::Value) {
    let batch = fixture.join("generate.safetensors").display().to_string();
    let fixture = fixture.display().to_string();
    let mut args =
        vec!["generate", "--model", &fixture, "--batch", &batch, "--out", "out.safetensors", "--json"];
    args.extend(options);
    let said = json(dir, &args);
    let (measured, planned) = (said["measured_bytes"].as_u64(), said["planned_bytes"].as_u64());
    assert!(measured.is_some() && measured <= planned, "{said}");
    (read(&dir.join("out.safetensors")), said)
}

#[test]
fn tokens_are_those_of_transformers() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let sampled = ["--temperature", "0.7", "--top-k", "20", "--top-p", "0.9", "--repetition-penalty", "1.1"];
    for name in ["tied", "untied"] {
        let fixture = common::orpheus(name);
        let want = read(&fixture.join("generate.safetensors"));
        let is = |kind: &str, got: &Tensors| {
            for i in 0..3 {
                let (got, want) =
                    (&got.ints[&format!("clips.{i}.tokens")], &want.ints[&format!("clips.{i}.{kind}")]);
                assert_eq!(got, want, "{name}, {kind}, prompt {i}");
            }
        };
        let (got, _) = generate(dir, &fixture, &["--greedy", "--max-new", NEW, "--logits"]);
        is("greedy", &got);
        for i in 0..3 {
            let key = format!("clips.{i}.logits");
            let ((shape, got), (want_shape, want)) = (&got.floats[&key], &want.floats[&key]);
            assert_eq!(shape, want_shape);
            for (got, want) in got.chunks(shape[1]).zip(want.chunks(shape[1])) {
                let most = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let off =
                    got.iter().zip(want).map(|(a, b)| f64::from((a - b).abs() / most)).fold(0.0, f64::max);
                assert!(off < TOLERANCE, "{name}, prompt {i}: logits off by {off:.1e}");
            }
        }
        // However many at a time, and by whatever threads.
        for more in [["--sequences", "1"], ["--sequences", "2"], ["--threads", "1"]] {
            is("greedy", &generate(dir, &fixture, &[&["--greedy", "--max-new", NEW], &more[..]].concat()).0);
        }
        let penalised = ["--greedy", "--repetition-penalty", "1.3", "--max-new", NEW];
        is("penalised", &generate(dir, &fixture, &penalised).0);
        is("sampled", &generate(dir, &fixture, &[&sampled[..], &["--max-new", NEW]].concat()).0);
        // As many as have draws.
        is("sampled", &generate(dir, &fixture, &sampled).0);
    }
}

/// Codebooks that end by themselves, at once, late, alone and never; and those that are cut.
#[test]
fn codes_are_those_of_the_package() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    for name in ["base", "projected", "rope", "crossed", "fused", "ends"] {
        let fixture = common::parler(name);
        let want = read(&fixture.join("generate.safetensors"));
        let is = |before: &str, got: &Tensors| {
            for i in 0..4 {
                for leaf in ["tokens", "codes"] {
                    let got = &got.ints[&format!("clips.{i}.{leaf}")];
                    let want = &want.ints[&format!("clips.{i}.{before}{leaf}")];
                    assert_eq!(got, want, "{name}, {before}{leaf} of text {i}");
                }
            }
        };
        let new = want.ints["max_new"][0].to_string();
        is("", &generate(dir, &fixture, &["--greedy", "--max-new", &new]).0);
        is("default_", &generate(dir, &fixture, &["--greedy"]).0);
        // What reads descriptions is bounded too, before anything is planned.
        let batch = fixture.join("generate.safetensors").display().to_string();
        let model = fixture.display().to_string();
        let given =
            ["generate", "--model", &model, "--batch", &batch, "--out", "x.safetensors", "--memory", "8MiB"];
        let (code, text) = said(dir, &given);
        assert!(code == 3 && text.contains("the text encoder of"), "{name}: {code} {text}");
        for more in [["--sequences", "1"], ["--sequences", "3"], ["--threads", "1"]] {
            is("", &generate(dir, &fixture, &[&["--greedy", "--max-new", &new], &more[..]].concat()).0);
        }
    }
}

/// transformers writes `max_length` only where it is another than its own, 20.
#[test]
fn a_folder_without_a_length_has_that_of_transformers() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let fixture = common::parler("base");
    let batch = fixture.join("generate.safetensors").display().to_string();
    let model = with(dir, &fixture, "generation_config.json", "{}").display().to_string();
    let made = |more: &[&str]| {
        let given =
            ["generate", "--model", &model, "--batch", &batch, "--out", "out.safetensors", "--greedy"];
        common::ok(dir, &[&given[..], more].concat());
        read(&dir.join("out.safetensors")).ints
    };
    assert_eq!(made(&[]), made(&["--max-new", "19"]));
    assert_ne!(made(&[]), made(&["--max-new", "20"]));
}

/// Codes that follow from texts and from none, without guidance and with it.
#[test]
fn codes_of_music_are_those_of_transformers_and_audiocraft() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    for name in ["base", "stereo", "packed"] {
        let fixture = common::musicgen(name);
        let want = read(&fixture.join("generate.safetensors"));
        let (new, guidance) = (want.ints["max_new"][0].to_string(), want.floats["guidance"].1[0].to_string());
        let made = |more: &[&str]| {
            generate(dir, &fixture, &[&["--greedy", "--max-new", &new], more].concat()).0.ints
        };
        let is = |kind: &str, got: &BTreeMap<String, Vec<i64>>| {
            assert_eq!(got.len(), 3, "{name}");
            for i in 0..3 {
                let (got, want) =
                    (&got[&format!("clips.{i}.codes")], &want.ints[&format!("clips.{i}.{kind}")]);
                assert_eq!(got, want, "{name}, {kind}, text {i}");
            }
        };
        is("plain", &made(&[]));
        is("plain", &made(&["--cfg", "1", "--sequences", "2"]));
        for more in [["--sequences", "8"], ["--sequences", "1"], ["--sequences", "2"], ["--threads", "1"]] {
            is("guided", &made(&[&["--cfg", &guidance], &more[..]].concat()));
        }
        // Sampled codes follow from the seed, whatever is written beside them.
        let sampled = |more: &[&str]| {
            generate(dir, &fixture, &[&["--top-k", "9", "--seed", "4", "--max-new", &new], more].concat())
                .0
                .ints
        };
        let ones = sampled(&["--sequences", "1"]);
        assert!(sampled(&[]) == ones && ones != made(&[]), "{name}");
        let batch = fixture.join("generate.safetensors").display().to_string();
        let model = fixture.display().to_string();
        let given =
            ["generate", "--model", &model, "--batch", &batch, "--out", "x.safetensors", "--max-new", "3"];
        let (code, text) = said(dir, &given);
        assert!(code == 2 && text.contains("--max-new: 3 columns"), "{name}: {code} {text}");
    }
}

/// Codes, and the states that they were chosen by.
#[test]
fn states_are_those_of_the_package() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    for name in ["base", "odd"] {
        let fixture = common::xtts(name);
        let want = read(&fixture.join("generate.safetensors"));
        let batch = fixture.join("batch.safetensors").display().to_string();
        let model = fixture.display().to_string();
        let made = |options: &[&str]| {
            let given =
                ["generate", "--model", &model, "--batch", &batch, "--out", "out.safetensors", "--greedy"];
            common::ok(dir, &[&given[..], options].concat());
            read(&dir.join("out.safetensors"))
        };
        let is = |before: &str, got: &Tensors| {
            assert!(got.ints.keys().all(|key| key.ends_with("codes")) && !got.ints.is_empty(), "{name}");
            for (key, codes) in &got.ints {
                assert_eq!(
                    codes,
                    &want.ints[&key.replace("codes", &format!("{before}codes"))],
                    "{name}, {key}"
                );
            }
        };
        is("default_", &made(&[]));
        let new = want.ints["max_new"][0].to_string();
        let got = made(&["--max-new", &new]);
        is("", &got);
        for (key, (shape, latents)) in &got.floats {
            let (want_shape, want) = &want.floats[key];
            let off = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
            let size: f64 = want.iter().map(|x| f64::from(*x).powi(2)).sum();
            let off: f64 = latents.iter().zip(want).map(off).sum();
            assert!(shape == want_shape && (off / size).sqrt() < TOLERANCE, "{name}, {key}: {off:e}");
        }
        for more in [["--sequences", "1"], ["--threads", "1"]] {
            is("", &made(&[&["--max-new", &new], &more[..]].concat()));
        }
    }
}

/// A copy of a fixture's folder with another file.
fn with(dir: &Path, fixture: &Path, file: &str, text: &str) -> PathBuf {
    let to = dir.join("model");
    std::fs::create_dir_all(&to).expect("a folder");
    for item in std::fs::read_dir(fixture).expect("a fixture").flatten() {
        std::fs::copy(item.path(), to.join(item.file_name())).expect("a copy");
    }
    std::fs::write(to.join(file), text).expect("a file");
    to
}

#[test]
fn a_sequence_ends_with_its_stop_token_and_the_cache_has_its_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let fixture = common::orpheus("tied");
    let want = read(&fixture.join("generate.safetensors"));
    let greedy = &want.ints["clips.0.greedy"];
    let stop = greedy[5];
    let first = greedy.iter().position(|t| *t == stop).expect("it is there");
    let model = with(dir, &fixture, "generation_config.json", &format!("{{\"eos_token_id\": [{stop}, 31]}}"));
    let (got, full) = generate(dir, &model, &["--greedy", "--max-new", NEW]);
    assert_eq!(got.ints["clips.0.tokens"], greedy[..=first]);
    // Keys and values: layers x sequences x (longest prompt and new tokens) x key heads x channels, in fp32.
    assert_eq!(full["cache_bytes"].as_u64(), Some(2 * 2 * 3 * (12 + 24) * 2 * 8 * 4), "{full}");
    let (_, half) = generate(dir, &model, &["--greedy", "--max-new", NEW, "--precision", "bf16-pure"]);
    assert_eq!(half["cache_bytes"].as_u64(), full["cache_bytes"].as_u64().map(|n| n / 2), "{half}");

    let (model, batch) =
        (model.display().to_string(), fixture.join("generate.safetensors").display().to_string());
    let given =
        ["generate", "--model", &model, "--batch", &batch, "--out", "x.safetensors", "--max-new", NEW];
    let args = [&given[..], &["--memory", "1MiB"]].concat();
    let (code, text) = said(dir, &args);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("--sequences") && !dir.join("x.safetensors").exists(), "{text}");
    let [given @ .., _, _] = given;
    let huge = u64::MAX.to_string();
    for (option, value) in [
        ("--temperature", "0"),
        ("--top-p", "1.5"),
        ("--sequences", "0"),
        ("--max-new", &huge),
        ("--steps", "4000000000"),
        ("--cfg", "nan"),
        ("--sway", "inf"),
    ] {
        let (code, text) = said(dir, &[&given[..], &[option, value]].concat());
        assert!(code == 2 && text.contains(option.trim_start_matches('-')), "{option}: {text}");
    }
}

/// By file, tensor and element.
#[test]
fn what_a_batch_gives_wrong_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let refused = |fixture: &Path, change: &dyn Fn(&mut orpheus_train::Tensors), why: &str| {
        let mut given = orpheus_train::read(&fixture.join("generate.safetensors"));
        change(&mut given);
        orpheus_train::write(&dir.join("b.safetensors"), &given);
        let model = fixture.display().to_string();
        let args = ["generate", "--model", &model, "--batch", "b.safetensors", "--out", "x.safetensors"];
        let (code, text) = said(dir, &args);
        assert!(code == 2 && text.contains("b.safetensors") && text.contains(why), "{why}: {code}: {text}");
        assert!(!dir.join("x.safetensors").exists());
    };
    let [orpheus, parler, f5] = [common::orpheus("tied"), common::parler("base"), common::fixture("v1")];
    let write = |name: &'static str, bytes: Vec<u8>| {
        move |given: &mut orpheus_train::Tensors| {
            let (_, _, data) = given.get_mut(name).expect("a tensor");
            data[..bytes.len()].copy_from_slice(&bytes);
        }
    };
    let id = |id: i64| id.to_le_bytes().to_vec();
    let float = |x: f32| x.to_le_bytes().to_vec();
    refused(&orpheus, &write("clips.1.input_ids", id(-1)), "clips.1.input_ids: element 0 is -1");
    refused(&orpheus, &write("clips.1.q", float(0.0)), "clips.1.q: element 0 is 0");
    refused(&orpheus, &write("clips.0.q", float(f32::NAN)), "clips.0.q: element 0 is NaN");
    refused(&parler, &write("clips.2.description_ids", id(1 << 40)), "clips.2.description_ids: element 0");
    refused(&parler, &write("clips.2.description_ids", id(50)), "clips.2.description_ids: element 0 is 50");
    refused(&f5, &write("clips.1.text", id(1 << 40)), "clips.1.text: element 0 is 1099511627776");
    refused(&f5, &write("clips.0.x0", float(f32::INFINITY)), "clips.0.x0: element 0 is inf");
    let without = |name: &'static str| move |given: &mut orpheus_train::Tensors| drop(given.remove(name));
    refused(&parler, &without("clips.0.description_ids"), "clips.0.description_ids: is not in the file");
    refused(&f5, &without("clips.1.x0"), "clips.1.x0: is not in the file");
    refused(&orpheus, &without("clips.1.input_ids"), "clips.1.input_ids: is missing; the batch has 3 clips");
}

#[test]
fn mel_frames_are_those_of_the_package() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    for name in ["v1", "v0"] {
        let fixture = common::fixture(name);
        let given = read(&fixture.join("generate.safetensors"));
        for (kind, options) in
            [("guided", &["--steps", "5"][..]), ("plain", &["--steps", "4", "--cfg", "0", "--sway", "0"])]
        {
            let (got, _) = generate(dir, &fixture, options);
            for i in 0..2 {
                let (shape, got) = &got.floats[&format!("clips.{i}.mel")];
                let (want_shape, want) = &given.floats[&format!("clips.{i}.{kind}")];
                let reference = given.floats[&format!("clips.{i}.ref_mel")].1.len();
                assert_eq!((shape, &got[..reference]), (want_shape, &want[..reference]), "{name}, {kind}");
                let square = |x: f32| f64::from(x) * f64::from(x);
                let pairs = || got[reference..].iter().zip(&want[reference..]);
                let off: f64 = pairs().map(|(a, b)| square(a - b)).sum();
                let all: f64 = pairs().map(|(_, b)| square(*b)).sum();
                assert!(
                    (off / all).sqrt() < TOLERANCE,
                    "{name}, {kind}, clip {i}: {:.1e}",
                    (off / all).sqrt()
                );
            }
        }
    }
    // As many frames as the reference has leave nothing to generate.
    let batch = common::orpheus("tied").join("generate.safetensors").display().to_string();
    let model = common::fixture("v1").display().to_string();
    let (code, text) =
        said(dir, &["generate", "--model", &model, "--batch", &batch, "--out", "x.safetensors"]);
    assert!(code == 2 && text.contains("clips.0.ref_mel"), "{code}: {text}");
}

/// A result would be renamed over it: as root, over a device of the system.
#[test]
#[cfg(unix)]
fn results_take_the_place_of_files_alone() {
    use std::os::unix::{fs::FileTypeExt, net::UnixListener};
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let at = |folder: PathBuf| folder.display().to_string();
    let (f5, tied) = (common::fixture("v1"), common::orpheus("tied"));
    let batch = |folder: &Path, file: &str| at(folder.join(file));
    let _there = UnixListener::bind(dir.join("there.wav")).expect("a socket");
    std::fs::create_dir(dir.join("folder.wav")).expect("a folder");
    for out in ["there.wav", "folder.wav"] {
        for args in [
            [
                "generate",
                "--model",
                &at(tied.clone()),
                "--batch",
                &batch(&tied, "generate.safetensors"),
                "--out",
                out,
            ],
            [
                "gradients",
                "--model",
                &at(f5.clone()),
                "--batch",
                &batch(&f5, "batch.safetensors"),
                "--out",
                out,
            ],
            ["say", &at(f5.clone()), "abc", "--ref", "no.wav", "-o", out],
        ] {
            let (code, text) = said(dir, &args);
            assert!(code == 2 && text.contains("is a folder, device or pipe"), "{args:?}: {code}: {text}");
        }
    }
    let kind = std::fs::metadata(dir.join("there.wav")).expect("it is there").file_type();
    assert!(kind.is_socket() && std::fs::read_dir(dir).expect("a folder").count() == 2);
}
