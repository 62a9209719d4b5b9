//! `ambitus export --dtype`: the base's type without it, one rounding, configurations that stay true, stages that hand over fp32.

use crate::common::{self, json, ok, said};
use crate::orpheus_train::{self, Tensors};
use crate::say;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const SHORT: &str =
    "updates: 2\nbatch: {clips: 3}\nmicro_batch: 200\nsave_every: 2\nthreads: 2\nmemory: 1GiB";
/// Prefix of released F5-TTS files, and its text embedding, whose last row, that of `m`, no text of [`common::voice`] uses.
const PREFIX: &str = "ema_model.";
const EMBEDDING: &str = "ema_model.transformer.text_embed.text_embed.weight";
const INV_FREQ: &str = "ema_model.transformer.rotary_embed.inv_freq";
const WORDS: [(&str, Dtype); 3] = [("fp32", Dtype::F32), ("bf16", Dtype::BF16), ("fp16", Dtype::F16)];

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Every file of a folder, by name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").path());
    let name = |p: &Path| p.file_name().expect("a name").to_string_lossy().into_owned();
    entries.map(|p| (name(&p), std::fs::read(&p).expect("a file"))).collect()
}

fn weights(dir: &Path) -> Tensors {
    orpheus_train::read(&dir.join("model.safetensors"))
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")))
}

/// Bytes of fp32 numbers in another type, to nearest and ties to even, by the distance to its two neighbours.
fn rounded(bytes: &[u8], dtype: Dtype) -> Vec<u8> {
    let value = |bits: u16| match dtype {
        Dtype::BF16 => f64::from(f32::from_bits(u32::from(bits) << 16)),
        _ => {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
            match exponent {
                0 => fraction * 2f64.powi(-14),
                e => (1.0 + fraction) * 2f64.powi(e - 15),
            }
        }
    };
    let nearest = |x: f32| {
        let size = f64::from(x.abs());
        // Magnitudes grow with their bits.
        let (mut low, mut high) = (0u16, if dtype == Dtype::BF16 { 0x7f7f } else { 0x7bff });
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if value(middle) <= size { low = middle } else { high = middle - 1 }
        }
        let (below, above) = (size - value(low), value(low + 1) - size);
        let up = above < below || above == below && low % 2 == 1;
        (low + u16::from(up)) | if x.is_sign_negative() { 0x8000 } else { 0 }
    };
    match dtype {
        Dtype::F32 => bytes.to_vec(),
        _ => floats(bytes).flat_map(|x| nearest(x).to_le_bytes()).collect(),
    }
}

/// The v1 fixture with its floats in another type, and `change`d before.
fn f5(dir: &Path, name: &str, dtype: Dtype, change: impl FnOnce(&mut Tensors)) -> PathBuf {
    let folder = dir.join(name);
    std::fs::create_dir(&folder).expect("a folder");
    for file in ["config.yaml", "vocab.txt"] {
        std::fs::copy(common::fixture("v1").join(file), folder.join(file)).expect("a file");
    }
    let mut tensors = weights(&common::fixture("v1"));
    for tensor in tensors.values_mut().filter(|t| t.0 == Dtype::F32) {
        tensor.2 = rounded(&tensor.2, dtype);
        tensor.0 = dtype;
    }
    change(&mut tensors);
    orpheus_train::write(&folder.join("model.safetensors"), &tensors);
    folder
}

/// Puts a value into the unused row of the text embedding, which is then in fp32.
fn spoilt(tensors: &mut Tensors, value: f32) {
    let from = weights(&common::fixture("v1")).remove(EMBEDDING).expect("the embedding");
    let to = tensors.get_mut(EMBEDDING).expect("the embedding");
    *to = from;
    let last = to.2.len() - 4;
    to.2[last..].copy_from_slice(&value.to_le_bytes());
}

/// Trains on a model; the run's folder, and what was said.
fn train(dir: &Path, name: &str, model: &Path, lines: &str) -> (PathBuf, String) {
    let recipe = text(&common::recipe(dir, name, &format!("{SHORT}\n{lines}")));
    let (code, words) = said(dir, &["train", &recipe, "--model", &text(model)]);
    assert_eq!(code, 0, "{words}");
    (dir.join(name), words)
}

#[test]
fn a_decoder_has_the_type_that_is_asked_for_and_its_configuration_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = orpheus_train::prepared(dir);
    let config = |dir: &Path| std::fs::read_to_string(dir.join("config.json")).expect("a configuration");
    let given = config(&model);
    let short = "updates: 1\nbatch: {clips: 3}\nlearning_rate: 1e-2";
    let recipe = orpheus_train::recipe(dir, "run", &model, "", short);
    let (code, words) = said(dir, &["train", &recipe]);
    assert!(code == 0 && words.contains("(raw weights in bf16; loads in"), "{words}");
    let run = dir.join("run");
    let trained = weights(&run.join("checkpoints/step-1"));
    assert!(trained.values().all(|t| t.0 == Dtype::F32));

    let (default, out) = (weights(&run.join("export")), dir.join("out"));
    assert_eq!(config(&run.join("export")), given);
    let ids =
        || (Dtype::I64, vec![5], [128_259i64, 5, 6, 7, 8].iter().flat_map(|id| id.to_le_bytes()).collect());
    let clip = ["input_ids", "labels"].map(|what| (format!("clips.0.{what}"), ids()));
    let batch = text(&dir.join("batch.safetensors"));
    orpheus_train::write(Path::new(&batch), &clip.into());
    let mut losses = Vec::new();
    for (word, dtype) in WORDS {
        let args = ["export", &text(&run), "--dtype", word, "--out", &text(&out)];
        let (_, words) = said(dir, &args);
        assert!(words.contains(&format!("raw weights in {word}")), "{words}");
        assert_eq!(json(dir, &[&args[..], &["--json"]].concat())["dtype"], word);
        let made = weights(&out);
        assert!(made.keys().eq(trained.keys()));
        for (name, (is, shape, bytes)) in &made {
            let want = &trained[name];
            assert_eq!((is, shape), (&dtype, &want.1), "{name}");
            assert!(*bytes == rounded(&want.2, dtype), "{name} in {word} is not the nearest");
        }
        assert_eq!(made == default, dtype == Dtype::BF16);
        let torch = [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")];
        let torch = torch.iter().find(|(w, _)| *w == word).expect("a word").1;
        assert_eq!(config(&out), given.replace("\"bfloat16\"", &format!("\"{torch}\"")));
        let beside = |dir: &Path| {
            let mut files = files(dir);
            files.retain(|name, _| name != "config.json" && name != "model.safetensors");
            files
        };
        assert!(beside(&out) == beside(&model));
        let plan = json(dir, &["plan", &recipe, "--model", &text(&out), "--json"]);
        assert_eq!(plan["fits"], true, "{plan:#}");
        let args = ["gradients", "--model", &text(&out), "--batch", &batch, "--out", "gradients.safetensors"];
        losses.push(json(dir, &[&args[..], &["--json"]].concat())["loss"].as_f64().expect("a loss"));
    }
    let apart = |loss: &f64| (loss / losses[0] - 1.0).abs();
    assert!(losses[1..].iter().all(|loss| (1e-9..1e-2).contains(&apart(loss))), "{losses:?}");

    // A run of before the type was noted: as the configuration says.
    std::fs::remove_file(run.join("model/manifest.json")).expect("a manifest");
    let said_now = json(dir, &["export", &text(&run), "--out", &text(&out), "--json"]);
    assert!(said_now["dtype"] == "bf16" && config(&out) == given, "{said_now:#}");
    let (code, words) = said(dir, &["export", &text(&run), "--dtype", "int8"]);
    assert!(code == 2 && words.contains("`int8` is none of fp32, bf16, fp16"), "{words}");
}

#[test]
fn a_cloned_voice_has_its_bases_type_and_speaks_alike_unrounded() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let reference = say::reference(dir);
    let speech = |model: &[&str]| {
        let reference: Vec<&str> = reference.iter().map(String::as_str).collect();
        say::speech(dir, &[model, &["bad 7", "--steps", "2", "--cfg", "0"], &reference].concat()).0
    };
    let out = text(&dir.join("out"));
    for (word, dtype) in WORDS {
        let model = f5(dir, &format!("model-{word}"), dtype, |_| {});
        let (run, words) = train(dir, &format!("run-{word}"), &model, "ema: false");
        assert!(words.contains(&format!("(raw weights in {word}; loads in F5-TTS)")), "{words}");
        let trained = weights(&run.join("checkpoints/step-2"));
        let export = weights(&run.join("export"));
        for (name, (is, _, bytes)) in export.iter().filter(|t| t.1.0 != Dtype::I64 && t.1.0 != Dtype::BOOL) {
            // The frequencies of positions are too fine for 16 bits.
            let want = if name == INV_FREQ { Dtype::F32 } else { dtype };
            let own = &trained[name.strip_prefix(PREFIX).expect("the project's name")];
            assert!(*is == want && *bytes == rounded(&own.2, want), "{name} is {is:?}");
        }
        ok(dir, &["export", &text(&run), "--dtype", "fp32", "--out", &out]);
        let whole = speech(&[&out]);
        assert!(speech(&[&text(&run)]) == whole, "{word}");
        assert_eq!(speech(&[&text(&run.join("export"))]) == whole, dtype == Dtype::F32, "{word}");
    }
}

#[test]
fn adapters_stay_in_fp32_unless_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let model = f5(dir, "model", Dtype::BF16, |_| {});
    let lines = "ema: false\nlora: {rank: 4, also_train: ['*.text_embed.text_embed']}";
    let run = text(&train(dir, "run", &model, lines).0);
    let adapter = |name: &str, more: &[&str]| {
        let out = dir.join(name);
        ok(dir, &[&["export", &run, "--adapter", "--out", &text(&out)], more].concat());
        orpheus_train::read(&out.join("adapter_model.safetensors"))
    };
    let (whole, narrow) = (adapter("whole", &[]), adapter("narrow", &["--dtype", "bf16"]));
    assert_eq!(whole.len(), 2 * 12 + 1);
    for (name, (dtype, shape, bytes)) in &whole {
        assert_eq!(*dtype, Dtype::F32, "{name}");
        assert_eq!(narrow[name], (Dtype::BF16, shape.clone(), rounded(bytes, Dtype::BF16)), "{name}");
    }
    // Added in fp32, and the sum rounded.
    let merged = |dtype: &str| {
        ok(dir, &["export", &run, "--dtype", dtype, "--out", &text(&dir.join("merged"))]);
        weights(&dir.join("merged"))
    };
    let (sums, rounded_sums) = (merged("fp32"), merged("bf16"));
    for (name, (dtype, _, bytes)) in sums.iter().filter(|t| t.1.0 == Dtype::F32 && t.0 != INV_FREQ) {
        assert!(*dtype == Dtype::F32 && rounded_sums[name].2 == rounded(bytes, Dtype::BF16), "{name}");
    }
    let reference = say::reference(dir);
    for adapter in ["whole", "narrow"] {
        let (model, adapter) = (text(&model), text(&dir.join(adapter)));
        let reference: Vec<&str> = reference.iter().map(String::as_str).collect();
        let args =
            [&[&model, "--adapter", &adapter, "bad 7", "--steps", "2", "--cfg", "0"], &*reference].concat();
        say::speech(dir, &args);
    }
}

/// fp16 ends at 65504, and what is nearer to 65536 is no number in it.
#[test]
fn what_fp16_cannot_hold_is_refused_and_nothing_is_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let model = f5(dir, "model", Dtype::F32, |tensors| spoilt(tensors, 1e5));
    let (run, _) = train(dir, "run", &model, "ema: false\nweight_decay: 0");
    let (export, before) = (run.join("export"), files(&run.join("export")));
    let out = dir.join("out");
    for more in [vec![], vec!["--out".to_owned(), text(&out)]] {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let (code, why) = said(dir, &[&["export", &text(&run), "--dtype", "fp16"], &more[..]].concat());
        assert_eq!(code, 4, "{why}");
        let tensor = format!("tensor {EMBEDDING} has the value 100000, which is infinite in fp16");
        assert!(why.contains(&tensor) && why.contains("--dtype fp32"), "{why}");
    }
    assert!(files(&export) == before && !out.exists());
    ok(dir, &["export", &text(&run), "--dtype", "bf16", "--out", &text(&out)]);

    // A run ends with an export all the same, where its own type does not hold it.
    let model = f5(dir, "half", Dtype::F16, |tensors| spoilt(tensors, 65_520.0));
    let (run, words) = train(dir, "of-half", &model, "ema: false\nweight_decay: 0");
    assert!(words.contains("exported in fp32: ") && words.contains("(raw weights in fp32; loads"), "{words}");
    let export = weights(&run.join("export"));
    assert!(export.values().all(|t| t.0 != Dtype::F16));
    let model = f5(dir, "held", Dtype::F16, |tensors| spoilt(tensors, 65_519.0));
    let (run, words) = train(dir, "of-held", &model, "ema: false\nweight_decay: 0");
    assert!(words.contains("(raw weights in fp16; loads"), "{words}");
    assert_eq!(weights(&run.join("export"))[EMBEDDING].2[998..], 0x7bffu16.to_le_bytes());
}

#[test]
fn stages_hand_over_fp32_and_the_whole_has_the_bases_type() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = orpheus_train::prepared(dir);
    let stages =
        "batch: {clips: 3}\nlearning_rate: 1e-2\nstages: [{name: a, updates: 1}, {name: b, updates: 1}]";
    let recipe = orpheus_train::recipe(dir, "run", &model, "", stages);
    ok(dir, &["train", &recipe]);
    let run = dir.join("run");
    let (first, second) = (run.join("stages/1-a"), run.join("stages/2-b"));
    let config = |dir: &Path| std::fs::read_to_string(dir.join("config.json")).expect("a configuration");
    let handed = || weights(&first.join("export")) == weights(&first.join("checkpoints/step-1"));
    let (given, whole) = (config(&model), files(&run.join("export")));
    assert!(handed() && config(&run.join("export")) == given);
    assert_eq!(config(&first.join("export")), given.replace("bfloat16", "float32"));
    let last = weights(&second.join("checkpoints/step-1"));
    for (name, (dtype, _, bytes)) in weights(&run.join("export")) {
        assert!(dtype == Dtype::BF16 && bytes == rounded(&last[&name].2, dtype), "{name}");
    }

    // Nothing that `export` does changes what the second stage begins with.
    let before = files(&first.join("export"));
    ok(dir, &["export", &text(&first)]);
    let (code, why) = said(&first, &["export", ".", "--dtype", "bf16"]);
    assert!(code == 2 && why.contains("is what the next stage begins with, in fp32"), "{why}");
    assert!(files(&first.join("export")) == before);
    ok(dir, &["export", &text(&first), "--dtype", "bf16", "--out", &text(&dir.join("out"))]);
    std::fs::remove_dir_all(&second).expect("the second stage");
    // Of the first stage, which is complete.
    ok(dir, &["export", &text(&run), "--dtype", "fp16"]);
    ok(dir, &["resume", &text(&run)]);
    assert!(files(&run.join("export")) == whole && weights(&second.join("checkpoints/step-1")) == last);
}
