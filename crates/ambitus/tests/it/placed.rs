//! Placements on cards that are not here, by the real binary.

use crate::common::{self, json, ok};
use serde_json::Value;

fn row<'p>(plan: &'p Value, placement: &str) -> &'p Value {
    let rows = plan["placements"]["rows"].as_array().expect("rows");
    rows.iter().find(|r| r["placement"] == placement).unwrap_or_else(|| panic!("{placement}"))
}

fn peaks(row: &Value) -> Vec<u64> {
    row["peak_bytes"].as_array().expect("a list").iter().map(|b| b.as_u64().expect("bytes")).collect()
}

fn seconds(row: &Value) -> f64 {
    row["step_seconds"].as_f64().expect("seconds")
}

/// The report's question: 24 GB twice hold a model that one card cannot, when it is cut, not copied.
#[test]
fn a_decoder_of_parlers_size_is_cut_over_two_cards() {
    let dir = tempfile::tempdir().expect("a folder");
    let recipes = common::root().join("recipes").display().to_string();
    let recipe = format!("{recipes}/parler-large-2x24gb.yaml");
    let fixed = ["--checkpoint", "none", "--offload", "none", "--micro-batch", "5120"];
    let plan = |model: &str, run: &dyn Fn(&[&str]) -> String| {
        let model = format!("{recipes}/parler-{model}");
        run(&[&["plan", &recipe, "--cards", "2xrtx3090", "--model", &model][..], &fixed].concat())
    };
    let read = |model: &str| -> Value {
        let text = plan(model, &|args| json(dir.path(), &[args, &["--json"]].concat()).to_string());
        serde_json::from_str(&text).expect("JSON")
    };
    let large = read("large");
    let [data, model, pipeline] = ["data", "model", "pipeline"].map(|name| row(&large, name));
    // Alone, parameters, gradients and moments are 16 bytes for each of 1.16 billion.
    assert_eq!((data["fits"] == false, peaks(data).len()), (true, 2));
    assert!(peaks(data)[0] > 16 * 1_160_000_000, "{data:#}");
    for cut in [model, pipeline] {
        let blocks = cut["blocks"].as_array().expect("a list");
        let counts: Vec<u64> = blocks.iter().filter_map(|b| b[1].as_u64()).collect();
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (2, 30), "{cut:#}");
        assert_eq!(cut["micro_batches"], 32, "{cut:#}");
    }
    assert_eq!(model["fits"], true, "{model:#}");
    assert!(peaks(model).iter().all(|b| 10 * b < 7 * peaks(data)[0]), "{model:#}");
    // A card of two works half of the time at most; a pipeline of eight in eight ninths of it, were there no head.
    let busy = |r: &Value| 1.0 - r["waiting_seconds"].as_f64().expect("seconds") / seconds(r);
    assert!(busy(model) <= 0.5 && busy(pipeline) > 0.8, "{model:#} {pipeline:#}");
    assert!(peaks(pipeline) > peaks(model));

    // The small one fits each way.
    let mini = read("mini");
    assert!(["data", "model", "pipeline"].iter().all(|name| row(&mini, name)["fits"] == true), "{mini:#}");
    let text = plan("mini", &|args| ok(dir.path(), args));
    for said in ["data parallel leaves each replica 24 GB, not 48", "split one model over all 2"] {
        assert!(text.contains(said), "{text}");
    }
}

/// Where the fastest cut does not fit, another one is found that does.
#[test]
fn a_pipeline_is_cut_where_it_fits() {
    let dir = tempfile::tempdir().expect("a folder");
    // A Llama of 24 blocks, whose clips may be of any length.
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 9792, "hidden_size": 1024,
        "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "rms_norm_eps": 1e-5,
    });
    let model = dir.path().join("llama");
    std::fs::create_dir(&model).expect("a folder");
    std::fs::write(model.join("config.json"), config.to_string()).expect("a file");
    let recipe = dir.path().join("recipe.yaml");
    let text = format!(
        "model: {{dir: {}}}\ndata: {{dir: voice}}\nprecision: fp16-mixed\nbatch: {{clips: 32}}\nepochs: 1\n",
        model.display()
    );
    std::fs::write(&recipe, text).expect("a file");
    let recipe = recipe.display().to_string();
    let plan = |options: &[&str]| json(dir.path(), &[&["plan", &recipe, "--json"], options].concat());
    let table = plan(&["--cards", "2xrtx3090"]);
    let pipeline = row(&table, "pipeline");
    assert_eq!((&pipeline["fits"], &pipeline["interleaved"]), (&true.into(), &true.into()), "{pipeline:#}");
    assert_eq!(pipeline["in_flight"], 2, "{pipeline:#}");
    assert!(seconds(pipeline) < seconds(row(&table, "model")), "{table:#}");
    // A run of that placement: it is cut elsewhere before anything waits on the host or fewer go through at a time.
    let options = ["--checkpoint", "values:0+20", "--micro-batch", "39376", "--ranks", "2", "--placement"];
    let cut = |room| plan(&[&options[..], &["pipeline", "--card", "rtx3090", "--memory", room]].concat());
    let (roomy, tight) = (cut("40GiB"), cut("23.6GiB"));
    let bytes = |plan: &Value| plan["peak_bytes"].as_u64().expect("bytes");
    assert!(bytes(&roomy) > bytes(&tight), "{roomy:#} {tight:#}");
    for run in [&roomy, &tight] {
        assert_eq!((&run["host_bytes"], &run["placement"]["in_flight"]), (&0.into(), &8.into()), "{run:#}");
    }
}

/// Of a tied embedding every micro-batch waits on every card, so their number decides.
#[test]
fn fewer_micro_batches_at_a_time_fit_where_more_do_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = common::root().join("recipes/orpheus").display().to_string();
    let recipe = dir.join("recipe.yaml");
    let text = format!(
        "model: {{dir: {model}}}\ndata: {{dir: voice}}\nprecision: bf16-mixed\nbatch: {{clips: 16}}\nepochs: 1\n"
    );
    std::fs::write(&recipe, text).expect("a file");
    let recipe = recipe.display().to_string();
    let fixed = ["--checkpoint", "none", "--offload", "none", "--micro-batch", "8192", "--json"];
    let plan = json(dir, &[&["plan", &recipe, "--cards", "2xa800"], &fixed[..]].concat());
    let pipeline = row(&plan, "pipeline");
    assert_eq!((&pipeline["fits"], &pipeline["interleaved"]), (&true.into(), &false.into()), "{pipeline:#}");
    assert_eq!((&pipeline["in_flight"], &pipeline["micro_batches"]), (&4.into(), &16.into()), "{pipeline:#}");
    let model = row(&plan, "model");
    assert!(peaks(pipeline) > peaks(model) && seconds(pipeline) < seconds(model), "{plan:#}");
}

/// What is said of a run that has too few blocks.
#[test]
fn more_cards_than_blocks_are_no_row() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = common::recipe(dir, "run", "updates: 6\nbatch: {clips: 3}\nmicro_batch: 200\nthreads: 2");
    let plan = json(dir, &["plan", &recipe.display().to_string(), "--cards", "16xa800", "--json"]);
    assert_eq!(plan["placements"]["rows"].as_array().map(Vec::len), Some(1));
    let note = plan["placements"]["note"].as_str().expect("a note");
    assert!(note.contains("too few for each of 16 GPUs"), "{note}");
}
