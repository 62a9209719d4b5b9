//! What holds of every model family: of those that Ambitus has, and of a toy that only this test knows, alone and in a game of two
//! players. Each technique of the table is taken, and does what the table says, or is refused by name; a run that is cut and resumed
//! has the bits of one that was not; an export loads again; files that do not fit are refused by tensor.

mod cases;
mod decay;
mod exports;
mod speech;
mod warm;

use ambitus_families::ALL;
use ambitus_families::console::Silent;
use ambitus_families::error::RunError;
use ambitus_families::family::{self, ModelDir, OpenOptions, Progressed};
use ambitus_plan::cards::Cards;
use ambitus_plan::device::Device;
use ambitus_plan::resolve::{Purpose, resolve_on};
use ambitus_recipe::recipe::{Origins, Precision, Recipe, Validation};
use ambitus_store::{Item, TensorFile, TensorInfo, TensorSpec, TensorWriter};
use ambitus_testkit::drawn;
use ambitus_train::export::Form;
use ambitus_train::run::{self, Shared};
use ambitus_train::world::World;
use cases::{Case, all, toy};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// What a technique does to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// The weights have the bits of the run without it.
    Bits,
    /// As these, and a held-out clip is sampled, of families that do; the others leave the key alone.
    Sampled,
    /// Losses differ from those by the order of sums.
    Sums,
    /// Other numbers, and the validation loss falls.
    Learns,
}

/// Something that a recipe may ask for.
struct Technique {
    /// In the table of docs/status.md.
    name: &'static str,
    /// In a recipe.
    lines: &'static str,
    holds: Holds,
    /// Of the run that it is compared with, where that is not the plain one.
    against: &'static str,
}

const fn technique(name: &'static str, lines: &'static str, holds: Holds) -> Technique {
    Technique { name, lines, holds, against: "" }
}

impl Technique {
    /// The same, compared with a run that has these lines.
    const fn against(self, against: &'static str) -> Technique {
        Technique { against, ..self }
    }
}

/// `PART`: a part of the model, by pattern. `DIR`: a folder.
static TECHNIQUES: [Technique; 34] = [
    technique("sample of a held-out clip", "sample: {steps: 2}", Holds::Sampled),
    technique("recompute, all blocks", "checkpoint: all", Holds::Bits),
    technique("recompute, chosen values", "checkpoint: values:2", Holds::Bits),
    technique("offload, parameters", "offload: {parameters: true}\nhost_memory: 1GiB", Holds::Bits),
    technique("offload, gradients", "offload: {gradients: true}\nhost_memory: 1GiB", Holds::Bits),
    technique("offload, optimizer", "offload: {optimizer: 1.0}\nhost_memory: 1GiB", Holds::Bits),
    technique("offload, average", "ema: true\noffload: {ema: true}\nhost_memory: 1GiB", Holds::Bits)
        .against("ema: true"),
    technique("offload, activations", "offload: {activations: true}\nhost_memory: 1GiB", Holds::Bits),
    technique("offload to disk", "offload: {optimizer: 1.0, disk: DIR}", Holds::Bits),
    technique(
        "update in backward",
        "batch: {clips: 1}\nclip_per_tensor: true\nupdate: backward",
        Holds::Bits,
    )
    .against("batch: {clips: 1}\nclip_per_tensor: true"),
    technique("model parallel, 2 ranks", "ranks: 2\nplacement: model", Holds::Bits),
    technique("model parallel, 3 ranks", "ranks: 3\nplacement: model", Holds::Bits),
    technique("pipeline parallel, 2 ranks", "ranks: 2\nplacement: pipeline", Holds::Bits),
    technique("pipeline parallel, 3 ranks", "ranks: 3\nplacement: pipeline", Holds::Bits),
    technique("full sharding, 2 ranks", "ranks: 2\nsharding: {strategy: full}", Holds::Sums),
    technique("full sharding, 3 ranks", "ranks: 3\nsharding: {strategy: full}", Holds::Sums),
    technique("gradient sharding, 2 ranks", "ranks: 2\nsharding: {strategy: grad_op}", Holds::Sums),
    technique("gradient sharding, 3 ranks", "ranks: 3\nsharding: {strategy: grad_op}", Holds::Sums),
    technique("data parallel, 2 ranks", "ranks: 2\nsharding: {strategy: none}", Holds::Sums),
    technique("data parallel, 3 ranks", "ranks: 3\nsharding: {strategy: none}", Holds::Sums),
    technique(
        "hybrid sharding, 4 ranks",
        "ranks: 4\nsharding: {strategy: hybrid_full, group: 2}",
        Holds::Sums,
    ),
    technique("bf16, mixed", "precision: bf16-mixed", Holds::Learns),
    technique("fp16, mixed", "precision: fp16-mixed", Holds::Learns),
    technique("bf16 weights", "precision: bf16-pure", Holds::Learns),
    technique("bf16 optimizer states", "optimizer: adamw-bf16", Holds::Learns),
    technique("8-bit optimizer states", "optimizer: adamw-8bit", Holds::Learns),
    technique("Lion", "optimizer: lion", Holds::Learns),
    technique("Lion with an 8-bit state", "optimizer: lion-8bit", Holds::Learns),
    technique(
        "Lion with everything on the host",
        "optimizer: lion-8bit\noffload: all\nhost_memory: 1GiB",
        Holds::Bits,
    )
    .against("optimizer: lion-8bit"),
    technique("moving average", "ema: true", Holds::Learns),
    // Gradients of these models are below the usual norm.
    technique("clipping per tensor", "clip: 0.01\nclip_per_tensor: true", Holds::Learns)
        .against("clip: 0.01"),
    technique("freezing", "freeze: ['PART']", Holds::Learns),
    technique("LoRA, merged and as adapters", "lora: {rank: 4}", Holds::Learns),
    technique("stages", "stages: [{freeze: ['PART'], updates: 2}, {updates: 2}]", Holds::Learns),
];

/// Of short runs: updates of several micro-batches, and few words to the disk.
const SHORT: &str =
    "updates: 4\nbatch: {clips: 3}\nsave_every: 0\nvalidate_every: 0\nema: false\nsample: false";

/// Lines of a recipe over others: a key that is in both is that of the first.
fn over(lines: &str, others: &str) -> String {
    let key = |line: &str| line.split(':').next().map(str::to_owned);
    let said: Vec<_> = lines.lines().map(key).collect();
    let instead =
        |line: &&str| !(said.contains(&key(line)) || lines.contains("stages") && line.contains("updates"));
    let kept: Vec<&str> = others.lines().filter(instead).collect();
    format!("{lines}\n{}", kept.join("\n"))
}

impl Case {
    fn recipe(&self, name: &str, model: &Path, lines: &str) -> (Recipe, Origins) {
        let path = |p: PathBuf| p.display().to_string();
        let dir = self.dir.path();
        let lines = lines.replace("PART", self.part).replace("DIR", &path(dir.to_owned()));
        let text = format!(
            "model: {{dir: {}, from_scratch: {}}}\ndata: {{dir: {}, cache: {}, validation: [clip3.wav]}}\nrun_dir: {}\n\
             memory: 2GiB\nthreads: 2\nkeep: 9\nmicro_batch: {}\n{}\n{}\n",
            path(model.to_owned()),
            weights(model).is_none(),
            path(dir.join("voice")),
            path(dir.join("cache")),
            path(dir.join(name)),
            self.rows,
            self.lines,
            over(&lines, SHORT),
        );
        let sections = family::sections(self.families);
        Recipe::parse_with(&text, name, &sections).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    fn run(&self, name: &str, model: &Path, lines: &str) -> Result<PathBuf, RunError> {
        let (recipe, origins) = self.recipe(name, model, lines);
        let root = self.dir.path().join(name);
        run::train(self.families, recipe, &origins, root, &World::alone(), &mut Silent).map(|run| run.root)
    }

    fn trained(&self, name: &str, lines: &str) -> PathBuf {
        self.run(name, &self.model, lines).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Its family samples a held-out clip.
    fn samples(&self) -> bool {
        let options = OpenOptions { from_scratch: true, ..OpenOptions::default() };
        ModelDir::open(self.families, &self.model, options).expect("its own folder").defaults().samples
    }

    /// The words with which it refuses a technique.
    fn refusal(&self, technique: &str) -> Option<&'static str> {
        let refused = self.refuses.iter().find(|(name, _)| technique.starts_with(name));
        refused.map(|(_, words)| *words)
    }
}

fn summary(run: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(run.join("summary.json")).expect("a summary");
    serde_json::from_str(&text).expect("JSON")
}

fn log(run: &Path) -> Vec<serde_json::Value> {
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn losses(run: &Path) -> Vec<f64> {
    log(run).iter().map(|line| line["loss"].as_f64().expect("a loss")).collect()
}

fn export(run: &Path) -> Vec<u8> {
    std::fs::read(weights(&run.join("export")).expect("an export")).expect("an export")
}

/// Returns a folder's file of weights.
fn weights(model: &Path) -> Option<PathBuf> {
    let names = ["model.safetensors", "model.pth", "state_dict.bin", "model.ckpt"];
    names.map(|name| model.join(name)).into_iter().find(|path| path.is_file())
}

#[track_caller]
fn learns(run: &Path, name: &str) {
    let said = summary(run);
    // Of stages, the whole run's.
    let of = |key: &str| said[key].as_f64().unwrap_or_else(|| panic!("{name}: no {key}: {said:#}"));
    assert!(of("validation_last") < of("validation_base"), "{name}: {said:#}");
}

/// Takes every technique, on two threads.
fn conforms(case: &Case) {
    let plain = case.trained("plain", "save_every: 2");
    let said = summary(&plain);
    assert_eq!(said["arena_bytes_planned"], said["arena_bytes_used"]);
    learns(&plain, "plain");
    let techniques = drawn(TECHNIQUES.iter().enumerate(), 2);
    std::thread::scope(|scope| {
        for half in techniques.chunks(techniques.len().div_ceil(2)) {
            scope.spawn(|| takes(case, &plain, half.iter().copied()));
        }
    });
    resumes(case, &plain);
    loads_what_fits(case, &plain);
}

/// Takes techniques, each with its place among all of them, beside a plain run.
fn takes(case: &Case, plain: &Path, techniques: impl Iterator<Item = (usize, &'static Technique)>) {
    let mut exports = HashMap::from([("", export(plain))]);
    for (k, t) in techniques {
        let name = format!("run-{k}");
        if let Some(words) = case.refusal(t.name) {
            let why = case.run(&name, &case.model, t.lines).expect_err(t.name);
            assert!(why.to_string().contains(words) && why.exit_code() == 2, "{}: {why}", t.name);
            continue;
        }
        let run = case.trained(&name, t.lines);
        let of_other = || export(&case.trained(&format!("{name}-against"), t.against));
        let same = *exports.entry(t.against).or_insert_with(of_other) == export(&run);
        match t.holds {
            Holds::Bits | Holds::Sampled => assert!(same, "{}: other bits", t.name),
            Holds::Sums => {
                assert_eq!(losses(&run).len(), 4, "{}", t.name);
                for (have, want) in losses(&run).iter().zip(losses(plain)) {
                    assert!((have / want - 1.0).abs() < 1e-4, "{}: {have}, one rank has {want}", t.name);
                }
            }
            Holds::Learns => {
                learns(&run, t.name);
                // Of averages the better is exported.
                assert!(t.lines.contains("ema") || !same, "{}: the same bits", t.name);
                assert_eq!(summary(&run)["stages"].is_array(), t.lines.contains("stages"), "{}", t.name);
            }
        }
        assert_eq!(run.join("audio").is_dir(), t.holds == Holds::Sampled && case.samples(), "{}", t.name);
        if t.lines.starts_with("lora") {
            let adapter = case.dir.path().join("adapter");
            let wanted = run::Wanted { source: None, form: Form::Adapter, layout: None, dtype: None };
            run::export_run(case.families, &run, wanted, &adapter, &mut Silent).expect("adapters");
            assert!(adapter.join("adapter_model.safetensors").is_file());
        }
    }
}

/// Cut after the second update, a run ends with the bits of one that was not.
fn resumes(case: &Case, run: &Path) {
    let whole = export(run);
    goes_on(case, run, Shared::default());
    assert!(export(run) == whole, "the resumed run differs");
}

/// Cuts a run after the second update and resumes it.
fn goes_on(case: &Case, run: &Path, shared: Shared) {
    std::fs::remove_dir_all(run.join("checkpoints/step-4")).expect("a checkpoint");
    std::fs::remove_file(run.join("summary.json")).expect("a summary");
    std::fs::remove_dir_all(run.join("export")).expect("an export");
    run::resume(case.families, run, shared, &World::alone(), &mut Silent).expect("it is resumed");
    assert_eq!(log(run).len(), 4);
}

/// Its export is a model to begin with; one with a tensor of another name or shape is refused by it.
fn loads_what_fits(case: &Case, run: &Path) {
    let model = run.join("export");
    let again = case.run("again", &model, "").expect("an export loads");
    assert_eq!(summary(&again)["validation_base"], summary(run)["validation_last"]);
    let path = weights(&model).expect("an export");
    let kept = case.dir.path().join("whole");
    std::fs::copy(&path, &kept).expect("a copy");
    let file = TensorFile::open(&kept).expect("an export");
    let form = family::of(case.families, &model).expect("its own").export();
    let layout = form.layout(None).expect("the default");
    // Of a checkpoint the names begin with the key of its tensors.
    let key = layout.map_or(String::new(), |layout| format!("{}.", layout.key));
    let prefix = format!("{}{}", layout.map_or("", |layout| layout.prefix), form.prefix);
    let tensors: Vec<(&str, &TensorInfo)> =
        file.tensors().iter().filter_map(|t| Some((t.name().strip_prefix(&*key)?, t))).collect();
    let opened = ModelDir::open(case.families, &model, OpenOptions::default()).expect("an export");
    let frozen = opened.opened.frozen().expect("an export");
    // What is wrong with those is said by what reads them.
    let is_frozen = |name: &str| frozen.as_ref().is_some_and(|frozen| (frozen.holds)(name));
    let oblong = |shape: &[usize]| shape.len() == 2 && shape[0] != shape[1];
    let (name, tensor) =
        tensors.iter().find(|(name, t)| oblong(t.shape()) && !is_frozen(name)).expect("a matrix");
    let with = |new: &str, shape: &[usize]| {
        let mut names = BTreeMap::new();
        let specs = tensors.iter().map(|(n, t)| {
            let (to, shape) = if n == name { (new, shape) } else { (*n, t.shape()) };
            names.insert(to.to_owned(), t.name());
            TensorSpec::new(to, t.dtype(), shape)
        });
        let specs = specs.collect();
        let mut writer = match layout {
            Some(layout) => {
                let run = Progressed { dir: &model, updates: 0, loss: None };
                let mut root = vec![(layout.key.to_owned(), Item::Tensors)];
                root.extend((layout.beside)(&run).expect("what stands beside the tensors"));
                TensorWriter::create_torch(&path, specs, &root)
            }
            None => TensorWriter::create(&path, specs, &BTreeMap::new()),
        }
        .expect("a file");
        for spec in writer.specs().to_vec() {
            let put = |bytes: &[u8]| writer.write(&spec.name, bytes).expect("written");
            file.read_stored(names[&spec.name], &mut [0; 1 << 12], put).expect("read");
        }
        writer.finish().expect("a file");
        let why = case.run("refused", &model, "").expect_err("another model's file");
        assert_eq!(why.exit_code(), 4, "{why}");
        why.to_string()
    };
    let own = name.strip_prefix(&*prefix).unwrap_or(name);
    let said = with(&format!("{prefix}stranger.weight"), tensor.shape());
    assert!(said.contains(own) && said.contains("stranger.weight"), "{own} is missing: {said}");
    let said = with(name, &[tensor.shape()[1], tensor.shape()[0]]);
    assert!(said.contains(own) && !said.contains("stranger"), "{own} has another shape: {said}");
}

#[test]
fn a_toy_conforms() {
    conforms(&toy());
}

#[test]
fn a_game_of_two_players_conforms() {
    conforms(&cases::game());
}

#[test]
fn f5_conforms() {
    conforms(&cases::f5());
}

#[test]
fn orpheus_conforms() {
    conforms(&cases::orpheus());
}

#[test]
fn parler_conforms() {
    conforms(&cases::parler());
}

#[test]
fn xtts_conforms() {
    conforms(&cases::xtts());
}

#[test]
fn piper_conforms() {
    conforms(&cases::piper());
}

#[test]
fn musicgen_conforms() {
    conforms(&cases::musicgen());
}

/// The log and the rates of a run that trains two players.
#[test]
fn a_game_says_what_each_player_does() {
    let case = cases::game();
    let lines = log(&case.trained("game", "updates: 6"));
    for line in &lines {
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{line}"));
        let [g, c] = ["g", "c"].map(|player| &line["players"][player]);
        assert_eq!((&line["loss"], &line["learning_rate"]), (&g["loss"], &g["learning_rate"]));
        assert_eq!(number(&c["learning_rate"]), 3e-4);
        let parts = number(&g["losses"]["mse"]) + number(&g["losses"]["fooled"]);
        assert!((parts / number(&g["loss"]) - 1.0).abs() < 1e-5 && line["losses"] == g["losses"], "{line}");
        assert!(number(&c["grad_norm"]) > 0.0 && c.get("losses").is_none(), "{line}");
    }
    let of =
        |line: &serde_json::Value, player: &str| line["players"][player]["loss"].as_f64().expect("a loss");
    let (first, last) = (&lines[0], &lines[5]);
    assert!(of(last, "g") < of(first, "g") && of(last, "c") < of(first, "c"), "both learn: {lines:?}");
    let stranger = "stages: [{updates: 2, players: {d: {clip: 1}}}]";
    let why = case.run("refused", &case.model, stranger).expect_err("refused").to_string();
    assert!(why.contains("players.d: the model has no such player; it has g, c"), "{why}");
}

/// fp16 would need a loss scale for each loss.
#[test]
fn a_game_is_in_fp32_on_a_gpu_that_has_only_fp16() {
    let case = cases::game();
    let (recipe, origins) = case.recipe("game", &case.model, "");
    let cards = Cards::load(None).expect("the table");
    let device = Device::for_card(cards.find("quadro-rtx6000").expect("a card"), 2);
    let resolved = resolve_on(case.families, recipe, &origins, device, Purpose::Plan(None), &mut Silent)
        .expect("it fits");
    assert_eq!(resolved.recipe.precision, Some(Precision::Fp32));
    let said = resolved.describe().expect("a plan").join("\n");
    assert!(
        said.contains("computes in fp32: fp16-mixed, the default on this GPU, scales one loss"),
        "{said}"
    );
}

/// A data set's own second half is validated on.
#[test]
fn clips_of_a_second_file_are_held_out() {
    let case = toy();
    let voice = case.dir.path().join("voice");
    let line = |i: u32| format!("clip{i}.wav|leaf {i}\n");
    for (file, clips) in [("metadata_train.csv", 0..7), ("metadata_eval.csv", 7..9)] {
        let lines: String = clips.map(line).collect();
        std::fs::write(voice.join(file), format!("audio_file|text\n{lines}")).expect("a file");
    }
    let (mut recipe, origins) = case.recipe("held-out", &case.model, "updates: 1");
    recipe.data.validation = Validation::File("metadata_eval.csv".into());
    let root = case.dir.path().join("held-out");
    let run = run::train(case.families, recipe, &origins, root, &World::alone(), &mut Silent);
    let said = summary(&run.unwrap_or_else(|e| panic!("{e}")).root);
    assert_eq!((&said["validation_clips"], &said["clips"]), (&2.into(), &7.into()), "{said:#}");
}

#[test]
fn every_family_has_its_case() {
    let cased: Vec<&str> = all()
        .iter()
        .filter(|case| std::ptr::eq(case.families, ALL))
        .map(|case| family::of(case.families, &case.model).expect("its folder").name())
        .collect();
    assert_eq!(cased, ALL.iter().map(|family| family.name()).collect::<Vec<_>>());
}

/// docs/status.md says of every technique and family what is held here.
#[test]
fn the_table_of_techniques_and_families_is_that_of_the_page() {
    let cases = all();
    let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
    let mut table = format!("| technique | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for t in &TECHNIQUES {
        let cell = |case: &Case| match (case.refusal(t.name), t.holds) {
            (Some(_), _) => "refused",
            (_, Holds::Sampled) if !case.samples() => "none",
            (_, Holds::Bits | Holds::Sampled) => "same bits",
            (_, Holds::Sums) => "same sums",
            (_, Holds::Learns) => "learns",
        };
        let cells: Vec<&str> = cases.iter().map(cell).collect();
        table += &format!("| {} | {} |\n", t.name, cells.join(" | "));
    }
    let page = std::fs::read_to_string(cases::root().join("docs/status.md")).expect("the page");
    assert!(page.contains(&table), "docs/status.md lacks this table:\n{table}");
}

#[test]
fn what_fits_no_family_is_refused_by_name() {
    let case = toy();
    let refused = |model: &Path| case.run("refused", model, "").expect_err("refused").to_string();
    let empty = case.dir.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    let said = refused(&empty);
    assert!(said.contains("toy.json and model.safetensors (Toy)"), "{said}");
    std::fs::write(empty.join("config.json"), "{\"architectures\": [\"BertModel\"]}").expect("a file");
    let said = refused(&empty);
    assert!(said.contains("its config.json is of BertModel, which is no model that is known"), "{said}");
    let none = refused(&case.dir.path().join("none"));
    assert!(none.contains("is not a folder"), "{none}");
}
