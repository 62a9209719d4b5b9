//! What holds of every model family, of a toy that only this test knows as of those that Ambitus has: a run trains as planned, options
//! that are exact change no bit, a run that goes on has the bits of one that was not cut, an export loads again.

use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::{ALL, Families};
use ambitus_recipe::recipe::{Origins, Recipe};
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorInfo, TensorSpec};
use ambitus_train::export::Layout;
use ambitus_train::run::{self, Shared};
use ambitus_train::world::World;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

static TOYS: Families = &[&crate::toy::family::Toy];

/// A console that says nothing.
struct Quiet;

impl Console for Quiet {
    fn line(&mut self, _: &str) {}
    fn progress(&mut self, _: &str) {}
}

/// A family with a model of its own and what it can do.
struct Case {
    families: Families,
    dir: tempfile::TempDir,
    model: PathBuf,
    /// A part of the model, by pattern.
    part: &'static str,
    /// Rows of a micro-batch of one clip or two.
    rows: u32,
    /// Of the recipe, beside what all have.
    lines: String,
}

/// Nine short tones of other lengths and pitches, with texts.
fn voice(dir: &Path) -> PathBuf {
    let data = dir.join("voice");
    std::fs::create_dir(&data).expect("a folder");
    for i in 0..9 {
        let n = 8_000 + 1_700 * (i % 4);
        let tone = |t: usize| (t as f32 * (0.02 + 0.004 * i as f32)).sin() * 0.4 * (t as f32 * 6e-4).sin();
        let samples: Vec<f32> = (0..n).map(tone).collect();
        ambitus_data::wav::write_wav(&data.join(format!("clip{i}.wav")), &samples, 24_000).expect("a file");
        std::fs::write(data.join(format!("clip{i}.txt")), ["abc 12", "bad 7", "leaf 45"][i % 3])
            .expect("a file");
    }
    data
}

fn toy() -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    voice(dir.path());
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    std::fs::write(model.join("toy.json"), "{\"layers\": 3, \"width\": 24}").expect("a file");
    Case {
        families: TOYS,
        dir,
        model,
        part: "first",
        rows: 80,
        lines: "toy: {gain: 0.5}\nlearning_rate: 1e-3".to_owned(),
    }
}

fn f5() -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    voice(dir.path());
    let (model, lines) =
        (root().join("recipes/quickstart/model"), "sample: false\nlearning_rate: 1e-3".to_owned());
    Case { families: ALL, dir, model, part: "*.text_embed", rows: 80, lines }
}

/// A Llama of two layers with the ids of Orpheus, from random values.
fn orpheus() -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    voice(dir.path());
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 156_940, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
    });
    std::fs::write(model.join("config.json"), config.to_string()).expect("a file");
    std::fs::copy(root().join("parity/orpheus/fixtures/tokenizer.json"), model.join("tokenizer.json"))
        .expect("a file");
    let lines = format!("orpheus: {{codec: {}}}\nlearning_rate: 1e-2", snac(dir.path()).display());
    Case { families: ALL, dir, model, part: "*.layers.0", rows: 160, lines }
}

/// The recorded codec of few channels, with codebooks of SNAC's size.
fn snac(dir: &Path) -> PathBuf {
    const ENTRIES: usize = 4096;
    let (from, folder) = (root().join("parity/snac/fixtures/strides"), dir.join("snac"));
    std::fs::create_dir(&folder).expect("a folder");
    let config = std::fs::read_to_string(from.join("config.json")).expect("a file");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["codebook_size"] = ENTRIES.into();
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    let file = TensorFile::open(from.join("model.safetensors")).expect("a codec");
    let is_codebook = |name: &str| name.ends_with("codebook.weight");
    let shape = |t: &TensorInfo| match is_codebook(t.name()) {
        true => vec![ENTRIES, t.shape()[1]],
        false => t.shape().to_vec(),
    };
    let specs = file.tensors().iter().map(|t| TensorSpec::new(t.name(), DType::F32, &shape(t))).collect();
    let path = folder.join("model.safetensors");
    let mut writer = SafetensorsWriter::create(path, specs, &BTreeMap::new()).expect("a file");
    let order: Vec<(String, usize)> =
        writer.specs().iter().map(|s| (s.name.clone(), s.shape.iter().product())).collect();
    for (name, elements) in order {
        let mut values: Vec<f32> = (0..elements).map(|i| ((i * 7919 % 4093) as f32 / 2046.5) - 1.0).collect();
        if !is_codebook(&name) {
            file.read_into(&name, &mut values, &mut vec![0; 1 << 16]).expect("a tensor");
        }
        writer.write_f32(&name, &values).expect("a tensor");
    }
    writer.finish().expect("a file");
    folder
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Case {
    /// Six updates of several micro-batches.
    fn short(&self) -> String {
        format!(
            "updates: 6\nbatch: {{clips: 3}}\nmicro_batch: {}\nsave_every: 2\nvalidate_every: 3",
            self.rows
        )
    }

    fn recipe(&self, name: &str, model: &Path, lines: &str) -> (Recipe, Origins) {
        let path = |p: PathBuf| p.display().to_string();
        let dir = self.dir.path();
        let text = format!(
            "model: {{dir: {}, from_scratch: {}}}\ndata: {{dir: {}, cache: {}, validation: [clip3.wav]}}\nrun_dir: {}\n\
             memory: 2GiB\nthreads: 2\nkeep: 9\n{}\n{lines}\n",
            path(model.to_owned()),
            !model.join("model.safetensors").is_file(),
            path(dir.join("voice")),
            path(dir.join("cache")),
            path(dir.join(name)),
            self.lines,
        );
        let sections = ambitus_families::family::sections(self.families);
        Recipe::parse_with(&text, name, &sections).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    fn run(&self, name: &str, model: &Path, lines: &str) -> Result<PathBuf, RunError> {
        let (recipe, origins) = self.recipe(name, model, lines);
        let root = self.dir.path().join(name);
        run::train(self.families, recipe, &origins, root, &World::alone(), &mut Quiet).map(|run| run.root)
    }

    fn trained(&self, name: &str, lines: &str) -> PathBuf {
        self.run(name, &self.model, lines).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

fn summary(run: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(run.join("summary.json")).expect("a summary");
    serde_json::from_str(&text).expect("JSON")
}

fn losses(run: &Path) -> Vec<f64> {
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    let loss = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["loss"].as_f64();
    log.lines().map(|line| loss(line).expect("a loss")).collect()
}

fn export(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("export/model.safetensors")).expect("an export")
}

/// Goes back to the second update's checkpoint.
fn cut(run: &Path) {
    for step in [4, 6] {
        std::fs::remove_dir_all(run.join(format!("checkpoints/step-{step}"))).expect("a checkpoint");
    }
    std::fs::remove_file(run.join("summary.json")).expect("a summary");
    std::fs::remove_dir_all(run.join("export")).expect("an export");
}

#[track_caller]
fn conforms(case: &Case) {
    let short = &case.short();
    let plain = case.trained("plain", short);
    let said = summary(&plain);
    assert_eq!(said["arena_bytes_planned"], said["arena_bytes_used"]);
    let all = losses(&plain);
    assert!(all.len() == 6 && all.iter().all(|loss| loss.is_finite()), "{all:?}");
    let best = said["validation_best"].as_f64().expect("a loss");
    assert!(best < said["validation_base"].as_f64().expect("a loss"), "it learns: {said:#}");

    let whole = export(&plain);
    let disk = format!("offload: {{optimizer: 1.0, disk: {}}}", case.dir.path().display());
    for (name, lines) in [
        ("blocks", "checkpoint: all"),
        ("values", "checkpoint: values:2"),
        ("host", "offload: {parameters: true, gradients: true, optimizer: 1.0}\nhost_memory: 1GiB"),
        ("activations", "offload: {activations: true}\nhost_memory: 1GiB"),
        ("disk", &disk),
        ("placed", "ranks: 2\nplacement: model"),
        ("pipeline", "ranks: 3\nplacement: pipeline"),
    ] {
        let run = case.trained(name, &format!("{short}\n{lines}"));
        assert!(export(&run) == whole, "{name}: other bits");
    }

    // Cut after the second update, also on two ranks.
    cut(&plain);
    run::resume(case.families, &plain, Shared::default(), &World::alone(), &mut Quiet).expect("it goes on");
    assert!(export(&plain) == whole, "the resumed run differs");
    for sharding in ["full", "grad_op", "none"] {
        let run = case.trained(sharding, &format!("{short}\nranks: 2\nsharding: {{strategy: {sharding}}}"));
        for (have, want) in losses(&run).iter().zip(&all) {
            assert!((have / want - 1.0).abs() < 1e-4, "{sharding}: {have}, one rank has {want}");
        }
    }

    for (name, lines) in [
        ("bf16", "precision: bf16-mixed"),
        ("fp16", "precision: fp16-mixed"),
        ("pure", "precision: bf16-pure"),
        ("narrow", "optimizer: adamw-8bit"),
        ("lora", "lora: {rank: 4}"),
    ] {
        let said = summary(&case.trained(name, &format!("{short}\n{lines}")));
        let last = said["validation_last"].as_f64().expect("a loss");
        assert!(last < said["validation_base"].as_f64().expect("a loss"), "{name}: {said:#}");
    }
    let frozen = case.trained("frozen", &format!("{short}\nfreeze: ['{}']", case.part));
    assert!(export(&frozen) != whole);
    let stages =
        format!("batch: {{clips: 3}}\nstages: [{{freeze: ['{}'], updates: 2}}, {{updates: 2}}]", case.part);
    assert!(summary(&case.trained("stages", &stages))["stages"].is_array());

    // Its export is a model to begin with.
    let again = case.run("again", &plain.join("export"), short).expect("an export loads");
    assert_eq!(summary(&again)["validation_base"], summary(&plain)["validation_last"]);
    let adapter = case.dir.path().join("adapter");
    let lora = case.dir.path().join("lora");
    run::export_run(case.families, &lora, None, Layout::Adapter, &adapter, &mut Quiet).expect("adapters");
    assert!(adapter.join("adapter_model.safetensors").is_file());
}

#[test]
fn a_toy_conforms() {
    conforms(&toy());
}

#[test]
fn f5_conforms() {
    conforms(&f5());
}

#[test]
fn orpheus_conforms() {
    conforms(&orpheus());
}

#[test]
fn every_family_has_its_case() {
    let cased: Vec<&str> = [f5(), orpheus()]
        .iter()
        .map(|case| ambitus_families::family::of(case.families, &case.model).expect("its folder").name())
        .collect();
    assert_eq!(cased, ALL.iter().map(|family| family.name()).collect::<Vec<_>>());
}

#[test]
fn what_fits_no_family_is_refused_by_name() {
    let case = toy();
    let short = &case.short();
    let refused =
        |model: &Path, lines: &str| case.run("refused", model, lines).expect_err("refused").to_string();
    let empty = case.dir.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    let said = refused(&empty, short);
    assert!(said.contains("toy.json and model.safetensors (Toy)"), "{said}");
    let none = refused(&case.dir.path().join("none"), short);
    assert!(none.contains("is not a folder"), "{none}");
}
