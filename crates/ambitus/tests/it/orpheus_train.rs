//! Orpheus from audio to a checkpoint, through the real binary: a Llama and a SNAC of random weights, made here, on short hums.

use crate::common::{self, json, ok, root, said};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const WIDTH: usize = 16;
const INNER: usize = 24;
/// Rows of a fine-tuned checkpoint; a pretrained one has one less.
const VOCABULARY: usize = 156_940;
const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
/// An update of several micro-batches; the whole run within a few seconds.
const SHORT: &str =
    "updates: 4\nbatch: {clips: 3}\nmicro_batch: 160\nsave_every: 2\nkeep: 9\nlearning_rate: 1e-2";

/// Type, shape and bytes by name.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let owned = |t: TensorView<'_>| (t.dtype(), t.shape().to_vec(), t.data().to_vec());
    file.tensors().into_iter().map(|(name, t)| (name, owned(t))).collect()
}

pub fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).expect("a tensor of its shape"))
    });
    std::fs::write(path, serialize(views, None).expect("safetensors")).expect("a file");
}

/// Numbers between -1 and 1 that are the same everywhere.
fn noise() -> impl FnMut() -> f32 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A Llama of one layer with the vocabulary and the wrapper ids of Orpheus, in bf16.
fn llama(dir: &Path, name: &str, vocabulary: usize, tied: bool) -> PathBuf {
    let folder = dir.join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let mut draw = noise();
    let mut tensors = Tensors::new();
    let mut add = |name: &str, shape: &[usize]| {
        let norm = name.ends_with("norm.weight");
        let value = |_| if norm { 1.0 } else { 0.05 * draw() };
        // The upper half of a float is bf16, rounded down.
        let data =
            (0..shape.iter().product()).map(value).flat_map(|x| [x.to_le_bytes()[2], x.to_le_bytes()[3]]);
        tensors.insert(name.to_owned(), (Dtype::BF16, shape.to_vec(), data.collect()));
    };
    for (name, shape) in [
        ("self_attn.q_proj", &[WIDTH, WIDTH][..]),
        ("self_attn.k_proj", &[WIDTH / 2, WIDTH]),
        ("self_attn.v_proj", &[WIDTH / 2, WIDTH]),
        ("self_attn.o_proj", &[WIDTH, WIDTH]),
        ("mlp.gate_proj", &[INNER, WIDTH]),
        ("mlp.up_proj", &[INNER, WIDTH]),
        ("mlp.down_proj", &[WIDTH, INNER]),
        ("input_layernorm", &[WIDTH]),
        ("post_attention_layernorm", &[WIDTH]),
    ] {
        add(&format!("model.layers.0.{name}.weight"), shape);
    }
    add("model.norm.weight", &[WIDTH]);
    add(EMBEDDING, &[vocabulary, WIDTH]);
    if !tied {
        add(HEAD, &[vocabulary, WIDTH]);
    }
    write(&folder.join("model.safetensors"), &tensors);
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_act": "silu", "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192},
        "tie_word_embeddings": tied, "attention_bias": false, "mlp_bias": false, "torch_dtype": "bfloat16",
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    std::fs::copy(common::orpheus("tokenizer.json"), folder.join("tokenizer.json")).expect("a file");
    std::fs::write(folder.join("generation_config.json"), "{\"do_sample\": true}\n").expect("a file");
    folder
}

/// The recorded codec of few channels, with codebooks of SNAC's size.
fn snac(dir: &Path) -> PathBuf {
    const ENTRIES: usize = 4096;
    let from = root().join("parity/snac/fixtures/strides");
    let folder = dir.join("snac");
    std::fs::create_dir(&folder).expect("a folder");
    let config = std::fs::read_to_string(from.join("config.json")).expect("a file");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["codebook_size"] = ENTRIES.into();
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    let mut tensors = read(&from.join("model.safetensors"));
    let mut draw = noise();
    for (_, (dtype, shape, data)) in tensors.iter_mut().filter(|(name, _)| name.ends_with("codebook.weight"))
    {
        *dtype = Dtype::F32;
        shape[0] = ENTRIES;
        *data = (0..ENTRIES * shape[1]).flat_map(|_| draw().to_le_bytes()).collect();
    }
    write(&folder.join("model.safetensors"), &tensors);
    folder
}

/// A recipe on nine hums of half a second, all of them with one cache of prepared clips.
pub fn recipe(dir: &Path, name: &str, model: &Path, data: &str, lines: &str) -> String {
    let path = dir.join(format!("{name}.yaml"));
    let [model, dir, voice, cache, codec] =
        [model.to_owned(), dir.join(name), dir.join("voice"), dir.join("cache"), dir.join("snac")]
            .map(|p| p.display().to_string());
    let text = format!(
        "model: {{dir: {model}}}\ndata: {{dir: {voice}, cache: {cache}, codec: {codec}, max_seconds: 1, validation: \
         [clip03.wav, clip07.wav]{data}}}\nrun_dir: {dir}\nthreads: 2\nmemory: 1GiB\n{lines}\n"
    );
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// Clips, codec and a tied model.
pub fn prepared(dir: &Path) -> PathBuf {
    common::voice(dir, 9);
    snac(dir);
    llama(dir, "model", VOCABULARY, true)
}

fn number(v: &serde_json::Value, key: &str) -> f64 {
    v[key].as_f64().unwrap_or_else(|| panic!("{key} in {v:#}"))
}

/// What holds for every run.
#[track_caller]
fn keeps_its_promises(summary: &serde_json::Value) {
    assert!(number(summary, "validation_last") < number(summary, "validation_base"), "{summary:#}");
    let (peak, planned) = (number(summary, "peak_rss_bytes"), number(summary, "peak_planned_bytes"));
    assert!(peak <= planned, "peak {peak} above the plan {planned}");
    assert_eq!(number(summary, "arena_bytes_used"), number(summary, "arena_bytes_planned"));
}

/// Trains; the summary.
#[track_caller]
fn train(dir: &Path, recipe: &str) -> serde_json::Value {
    let summary = json(dir, &["train", recipe, "--json"]);
    keeps_its_promises(&summary);
    summary
}

/// Removes the last checkpoint and resumes from the one before: the same bits come out.
#[track_caller]
fn resumes_to_the_same_bits(dir: &Path, run: &Path) {
    let last = run.join("checkpoints/step-4");
    let shards =
        || ["model", "optimizer"].map(|n| std::fs::read(last.join(format!("{n}.safetensors"))).expect("it"));
    let whole = shards();
    std::fs::remove_dir_all(&last).expect("the last checkpoint");
    ok(dir, &["resume", &run.display().to_string()]);
    assert!(shards() == whole, "the resumed run differs");
}

/// The export of a model's folder: its other files byte for byte, and all of its tensors and no other, in their type.
#[track_caller]
fn is_an_export(export: &Path, model: &Path) -> Tensors {
    for file in ["config.json", "tokenizer.json", "generation_config.json"] {
        let [made, given] = [export, model].map(|f| std::fs::read(f.join(file)).expect("a file"));
        assert!(made == given, "{file} is not the model's");
    }
    let bytes = std::fs::read(export.join("model.safetensors")).expect("a file");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("safetensors");
    let format = header.metadata().as_ref().and_then(|m| m.get("format"));
    assert_eq!(format.map(String::as_str), Some("pt"));
    let (made, given) = (read(&export.join("model.safetensors")), read(&model.join("model.safetensors")));
    let shapes = |tensors: &Tensors| -> Vec<(String, Vec<usize>)> {
        tensors.iter().map(|(name, (_, shape, _))| (name.clone(), shape.clone())).collect()
    };
    assert_eq!(shapes(&made), shapes(&given));
    assert!(made.values().all(|(dtype, ..)| *dtype == Dtype::BF16));
    made
}

/// A tensor's bits as fp32.
fn bits(tensor: &(Dtype, Vec<usize>, Vec<u8>)) -> Vec<u8> {
    match tensor.0 {
        Dtype::BF16 => tensor.2.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]).collect(),
        _ => tensor.2.clone(),
    }
}

#[test]
fn audio_becomes_a_checkpoint_that_trains_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = prepared(dir);
    let first = recipe(dir, "run", &model, "", SHORT);
    let report = json(dir, &["prepare", &first, "--json"]);
    assert_eq!((&report["summary"]["clips"], &report["summary"]["cached"]), (&9.into(), &0.into()));
    assert!(report["outcomes"].as_array().expect("clips").iter().all(|o| o["verdict"] == "ok"), "{report:#}");

    let (code, text) = said(dir, &["train", &first]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("9 clips") && text.contains("(9 from the cache)"), "{text}");
    // That of guessing, 11.96, said in words.
    assert!(text.contains("a checkpoint of Orpheus near 5"), "{text}");
    let run = dir.join("run");
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).expect("the log");
    let losses: Vec<f64> =
        log.lines().map(|line| number(&serde_json::from_str(line).expect("JSON"), "loss")).collect();
    assert_eq!(losses.len(), 4);
    assert!((losses[0] - (VOCABULARY as f64).ln()).abs() < 0.2, "{losses:?}");
    let summary = std::fs::read_to_string(run.join("summary.json")).expect("the summary");
    let summary = serde_json::from_str(&summary).expect("JSON");
    keeps_its_promises(&summary);
    resumes_to_the_same_bits(dir, &run);

    let export = run.join("export");
    let made = is_an_export(&export, &model);
    assert!(!made.contains_key(HEAD));
    // Unrounded, it continues where the run ended.
    let whole = dir.join("whole");
    let [from, to] = [&run, &whole].map(|p| p.display().to_string());
    ok(dir, &["export", &from, "--dtype", "fp32", "--out", &to]);
    let next = recipe(dir, "next", &whole, "", "updates: 1\nbatch: {clips: 3}");
    let next = json(dir, &["train", &next, "--json"]);
    let (ended, begins) = (number(&summary, "validation_last"), number(&next, "validation_base"));
    assert!((ended - begins).abs() <= 1e-5 * ended, "{ended} ended, {begins} begins");

    // Only audio scored: another mean, over fewer tokens.
    let audio = recipe(dir, "audio", &model, ", labels: audio", "updates: 1\nbatch: {clips: 3}");
    let audio = train(dir, &audio);
    let [all, audio] = [&summary, &audio].map(|s| number(s, "validation_base"));
    assert!((all - audio).abs() > 1e-4, "{all} over all tokens, {audio} over audio");
}

#[test]
fn an_untied_model_keeps_its_head_and_its_vocabulary() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    prepared(dir);
    let model = llama(dir, "untied", VOCABULARY - 1, false);
    train(dir, &recipe(dir, "run", &model, "", "updates: 2\nbatch: {clips: 3}\nlearning_rate: 1e-2"));
    let made = is_an_export(&dir.join("run/export"), &model);
    assert!(made[HEAD].2 != made[EMBEDDING].2);

    // A copy of the embedding as the head of a tied model is left out.
    let tied = dir.join("model");
    let mut tensors = read(&tied.join("model.safetensors"));
    tensors.insert(HEAD.to_owned(), tensors[EMBEDDING].clone());
    write(&tied.join("model.safetensors"), &tensors);
    train(dir, &recipe(dir, "copied", &tied, "", "updates: 1\nbatch: {clips: 3}\nlearning_rate: 1e-2"));
    let made = read(&dir.join("copied/export/model.safetensors"));
    tensors.remove(HEAD);
    assert!(made.keys().eq(tensors.keys()), "{:?}", made.keys());
}

#[test]
fn adapters_train_merge_and_stand_alone() {
    const MODULES: [&str; 7] = [
        "mlp.down_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "self_attn.k_proj",
        "self_attn.o_proj",
        "self_attn.q_proj",
        "self_attn.v_proj",
    ];
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = prepared(dir);
    let plain = recipe(dir, "run", &model, "", &format!("{SHORT}\nlora: {{rank: 4, alpha: 8}}"));
    train(dir, &plain);
    let run = dir.join("run");
    resumes_to_the_same_bits(dir, &run);

    // Merged: the model's own names, what is frozen keeps its bits.
    let merged = is_an_export(&run.join("export"), &model);
    let base = read(&model.join("model.safetensors"));
    for (name, tensor) in &merged {
        let adapted = MODULES.iter().any(|m| name.ends_with(&format!("{m}.weight")));
        assert_eq!(bits(tensor) != bits(&base[name]), adapted, "{name}");
    }

    // Alone, with and without embedding (the official script trains it beside the adapters).
    let with = "lora: {rank: 4, alpha: 8, also_train: [model.embed_tokens]}";
    train(
        dir,
        &recipe(dir, "with", &model, "", &format!("{SHORT}\n{with}").replace("updates: 4", "updates: 1")),
    );
    // The head is tied: PEFT would keep the base's.
    let both = serde_json::json!(["lm_head", "model.embed_tokens"]);
    for (name, saved) in [("run", serde_json::Value::Null), ("with", both)] {
        let [run, out] = [name, "alone"].map(|f| dir.join(f).display().to_string());
        ok(dir, &["export", &run, "--adapter", "--out", &out]);
        let tensors = read(&dir.join("alone/adapter_model.safetensors"));
        let stored = |name: &str| &tensors[&format!("base_model.model.{name}")];
        assert!(saved.is_null() || stored(EMBEDDING) == stored(HEAD));
        let mut names: Vec<String> = tensors.keys().cloned().collect();
        let ends =
            |m: &str| ["A", "B"].map(|ab| format!("base_model.model.model.layers.0.{m}.lora_{ab}.weight"));
        let mut want: Vec<String> = MODULES.iter().flat_map(|m| ends(m)).collect();
        let whole = [EMBEDDING, HEAD].map(|name| format!("base_model.model.{name}"));
        want.extend(whole.into_iter().filter(|_| !saved.is_null()));
        names.sort();
        want.sort();
        assert_eq!(names, want, "{name}");
        let config = std::fs::read_to_string(dir.join("alone/adapter_config.json")).expect("a file");
        let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        assert_eq!(
            config["target_modules"],
            serde_json::json!(MODULES.map(|m| format!("model.layers.0.{m}")))
        );
        assert_eq!(config["modules_to_save"], saved);
    }
}

/// The rows that `parity/orpheus/record_parquet.py` wrote, of which four can be used: ids, and labels.
#[cfg(feature = "parquet")]
fn usable_rows() -> [(Vec<i64>, Vec<i64>); 4] {
    let long: Vec<i64> = (0..300).collect();
    let late = long.iter().map(|&id| if id < 100 { -100 } else { id }).collect();
    let same = |ids: &[i64]| (ids.to_vec(), ids.to_vec());
    [same(&[128_259, 5, 6, 7]), (long, late), same(&[9, 9]), (vec![8, 156_939], vec![8, 8])]
}

/// Neither codec nor tokenizer is needed, and what is trained on is what the file says: `ambitus gradients` has the same loss
/// of the same ids.
#[cfg(feature = "parquet")]
#[test]
fn parquet_that_is_tokenised_trains() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = llama(dir, "model", VOCABULARY, true);
    std::fs::remove_file(model.join("tokenizer.json")).expect("a file");
    std::fs::create_dir(dir.join("rows")).expect("a folder");
    let table = common::orpheus("tokens.parquet");
    std::fs::copy(table, dir.join("rows/train-00000-of-00001.parquet")).expect("a file");
    let text = "model: {dir: model}\ndata: {dir: rows, cache: cache, validation: {share: 0}}\nrun_dir: run\nthreads: 2\nmemory: 1GiB\n\
                batch: {clips: 4}\nmicro_batch: 300\nupdates: 4\nsave_every: 2\nkeep: 9\nlearning_rate: 1e-2\n";
    std::fs::write(dir.join("rows.yaml"), text).expect("a file");

    let report = json(dir, &["prepare", "rows.yaml", "--json"]);
    assert_eq!(report["summary"]["clips"], 4);
    let outcomes = report["outcomes"].as_array().expect("rows");
    let bad: Vec<&str> = outcomes.iter().filter_map(|o| o["reason"].as_str()).collect();
    assert!(bad.len() == 3 && bad[0].contains("input id -5"), "{report:#}");

    let summary = json(dir, &["train", "rows.yaml", "--json"]);
    assert_eq!((&summary["clips"], &summary["validation_clips"]), (&4.into(), &0.into()));
    let log = std::fs::read_to_string(dir.join("run/metrics.jsonl")).expect("the log");
    let losses: Vec<f64> =
        log.lines().map(|line| number(&serde_json::from_str(line).expect("JSON"), "loss")).collect();
    assert!(losses.len() == 4 && losses[3] < losses[0], "{losses:?}");

    let mut batch = Tensors::new();
    for (i, (ids, labels)) in usable_rows().iter().enumerate() {
        for (name, values) in [("input_ids", ids), ("labels", labels)] {
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            batch.insert(format!("clips.{i}.{name}"), (Dtype::I64, vec![values.len()], bytes));
        }
    }
    write(&dir.join("batch.safetensors"), &batch);
    ok(dir, &["gradients", "--model", "model", "--batch", "batch.safetensors", "--out", "out.safetensors"]);
    let loss = read(&dir.join("out.safetensors")).remove("loss").expect("the loss").2;
    let loss = f64::from(f32::from_le_bytes(loss.try_into().expect("one number")));
    assert!((losses[0] - loss).abs() <= 1e-5 * loss, "{} in training, {loss} of the same ids", losses[0]);

    resumes_to_the_same_bits(dir, &dir.join("run"));
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = prepared(dir);
    let good = recipe(dir, "good", &model, "", SHORT);
    let without = std::fs::read_to_string(&good).expect("a file");
    let codec = format!(", codec: {}", dir.join("snac").display());
    std::fs::write(dir.join("without.yaml"), without.replace(&codec, "")).expect("a file");
    let path = |p: PathBuf| p.display().to_string();
    let (other, none) = (path(root().join("parity/snac/fixtures/dense")), path(dir.join("none")));
    let (small, f5) = (path(common::orpheus("tied")), path(common::fixture("v1")));
    let cases: [(&[&str], i32, &str); 6] = [
        (&["without.yaml"], 2, "orpheus.codec: is missing"),
        (&[&good, "--codec", &none], 4, "none/config.json: is missing"),
        (&[&good, "--codec", &other], 4, "is not the codec that Orpheus speaks"),
        (&[&good, "--model", &small], 4, "vocab_size 32 has no ids for audio"),
        (&[&good, "--model", &f5], 2, "orpheus.codec: is for Orpheus"),
        (&[&good, "--memory", "16MiB"], 3, "does not fit"),
    ];
    for (args, code, words) in cases {
        let (exit, text) = said(dir, &[&["train"], args].concat());
        assert!(exit == code && text.contains(words), "{args:?}: {exit}: {text}");
    }
    if cfg!(not(feature = "parquet")) {
        let table = path(common::orpheus("tokens.parquet"));
        let (exit, text) = said(dir, &["train", &good, "--data", &table]);
        assert!(exit == 5 && text.contains("build it with the feature `parquet`"), "{exit}: {text}");
    }
    // A text that would end its clip early; a tokenizer that is not Orpheus's.
    std::fs::write(dir.join("voice/clip00.txt"), "abc <custom_token_3>").expect("a file");
    let (_, text) = said(dir, &["prepare", &good]);
    assert!(text.contains("clip00.wav") && text.contains("spells the special token"), "{text}");
    std::fs::write(model.join("tokenizer.json"), "{}").expect("a file");
    let (exit, text) = said(dir, &["train", &good]);
    assert!(matches!(exit, 4 | 5) && text.contains("tokenizer.json"), "{exit}: {text}");
    assert!(!dir.join("good").exists());
}
