//! Planning for cards that are not here, by the real binary.

use crate::common::{self, json, ok, said};
use ambitus_testkit::drawn;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
/// The recipe's own budget is for its own device.
const SHORT: &str = "updates: 6\nbatch: {clips: 3}\nmicro_batch: 200\nmemory: 60MiB\nthreads: 2";

const MINE: &str = "[mine]\nname = \"Mine\"\nusable = \"2GiB\"\ncapability = \"8.6\"\nfp32_tflops = 1\nhalf_tflops = 1\n\
                    memory_gb_per_s = 100\nlink_gb_per_s = 10\nbf16 = true\n";

fn bytes(v: &serde_json::Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or_else(|| panic!("{key} in {v:#}"))
}

fn recipe(dir: &Path) -> String {
    common::voice(dir, 9);
    common::recipe(dir, "run", SHORT).display().to_string()
}

/// One block of the fixture's model with a width that no card holds. Plans read no weights.
fn huge(dir: &Path) -> PathBuf {
    let model = dir.join("huge");
    std::fs::create_dir_all(&model).expect("a folder");
    let from = common::fixture("v1");
    let config = std::fs::read_to_string(from.join("config.yaml")).expect("a file");
    let wide = |line: &str| match line.split_once(": ") {
        Some((key, _)) if key.trim() == "dim" => format!("{key}: 65536\n"),
        Some((key, _)) if key.trim() == "depth" => format!("{key}: 1\n"),
        Some((key, _)) if key.trim() == "ff_mult" => format!("{key}: 16\n"),
        Some((key, _)) if key.trim() == "conv_layers" => format!("{key}: 0\n"),
        _ => format!("{line}\n"),
    };
    std::fs::write(model.join("config.yaml"), config.lines().map(wide).collect::<String>()).expect("a file");
    std::fs::copy(from.join("vocab.txt"), model.join("vocab.txt")).expect("a file");
    model
}

#[test]
fn a_plan_for_a_card_needs_no_card() {
    let dir = tempfile::tempdir().expect("a folder");
    let (dir, recipe) = (dir.path(), recipe(dir.path()));
    let plan = json(dir, &["plan", &recipe, "--card", "RTX 3090", "--json"]);
    assert_eq!((&plan["card"]["id"], &plan["fits"]), (&"rtx3090".into(), &true.into()));
    let card = &plan["card"];
    assert_eq!((&card["multiprocessors"], &card["tensor_cores"]), (&82.into(), &true.into()));
    assert_eq!((card["tf32_tflops"].as_f64(), card["half_tflops"].as_f64()), (Some(33.8), Some(67.5)));
    assert_eq!(bytes(&plan, "budget_bytes"), bytes(&plan["card"], "usable_bytes"));
    assert!(ok(dir, &["plan", &recipe, "--card", "rtx3090"]).contains("on GeForce RTX 3090"));
    // One plan for all.
    let fp32 = ["plan", &recipe, "--precision", "fp32", "--json", "--card"];
    let arena = |card: &str| bytes(&json(dir, &[&fp32[..], &[card]].concat()), "arena_bytes");
    assert_eq!(arena("rtx3090"), arena("gtx1650"));
    assert_eq!(arena("rtx3090"), arena("h200"));

    let less = format!("{:.6}MiB", (bytes(&plan, "peak_bytes") - MIB / 16) as f64 / MIB as f64);
    let tight = ["plan", &recipe, "--card", "rtx3090", "--memory", &less];
    let (code, text) = said(dir, &[&tight[..], &["--checkpoint", "none", "--offload", "none"]].concat());
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("changes that fit, the smallest change of numbers first:\n    --"), "{text}");
    assert!(ok(dir, &["plan", &recipe, "--card", "cpu"]).contains("on 2 threads (cpu)"));
    // What is left to the planner is changed by it.
    let text = ok(dir, &[&tight[..], &["--offload", "none", "--explain"]].concat());
    assert!(text.contains("checkpoint = values:"), "{text}");
    assert!(text.contains("chosen") && text.contains("same numbers"), "{text}");
}

/// What is chosen, and any other combination typed as it is printed.
#[test]
fn a_plan_is_the_fastest_of_the_lattice_which_can_be_typed() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe =
        common::recipe(dir, "run", "updates: 6\nbatch: {clips: 3}\nsamples: false").display().to_string();
    for (level, card) in
        drawn([("same", "rtx2060"), ("reordered", "rtx3060"), ("changed", "rtx2060"), ("changed", "h100")], 2)
    {
        let base = ["plan", &recipe, "--json", "--card", card, "--numerics", level];
        let all = json(dir, &[&base[..], &["--lattice"]].concat());
        let all = all["lattice"].as_array().expect("combinations");
        let peaks = all.iter().map(|c| bytes(c, "peak_bytes"));
        let budget = format!("{}B", peaks.clone().min().expect("some").midpoint(peaks.max().expect("some")));
        let base = [&base[..], &["--memory", &budget]].concat();
        let plan = json(dir, &[&base[..], &["--lattice"]].concat());
        let seconds = |v: &serde_json::Value, key: &str| v[key].as_f64().expect("seconds");
        let fastest = &plan["lattice"][0];
        assert_eq!((&plan["fits"], &fastest["verdict"]), (&true.into(), &"chosen".into()), "{level}, {card}");
        let (took, best) = (seconds(&plan, "step_seconds"), seconds(fastest, "seconds"));
        assert!(
            took <= 1.03 * best,
            "{level}, {card}: {} takes {took} s, {fastest:#}",
            plan["candidates"][0]
        );
        let fitting = plan["lattice"].as_array().expect("combinations").iter();
        let fitting: Vec<&serde_json::Value> = fitting.filter(|c| c["verdict"] != "too_large").collect();
        for c in fitting.iter().step_by(1 + fitting.len() / 4) {
            let options: Vec<&str> = c["options"].as_str().expect("options").split(' ').collect();
            let typed = json(dir, &[&base[..], &options].concat());
            assert_eq!(typed["step_seconds"], c["seconds"], "{c:#}");
            assert!(bytes(&typed, "peak_bytes") <= bytes(c, "peak_bytes"), "{c:#}");
        }
    }
}

#[test]
fn every_row_of_the_table_is_that_cards_plan() {
    let dir = tempfile::tempdir().expect("a folder");
    let (dir, recipe) = (dir.path(), recipe(dir.path()));
    let file = dir.join("more.toml");
    std::fs::write(&file, MINE).expect("a file");
    let file = file.display().to_string();
    let table = json(dir, &["plan", &recipe, "--cards", "--cards-file", &file, "--json"]);
    let rows = table["cards"].as_array().expect("rows");
    assert_eq!((rows.len(), &rows[0]["card"]["id"]), (29, &"mine".into()));
    for row in drawn(rows, 4) {
        let id = row["card"]["id"].as_str().expect("an id");
        let plan = json(dir, &["plan", &recipe, "--card", id, "--cards-file", &file, "--json"]);
        assert_eq!(bytes(&plan, "peak_bytes"), bytes(row, "peak_bytes"), "{id}");
        assert_eq!((&plan["step_seconds"], &row["fits"]), (&row["step_seconds"], &true.into()), "{id}");
    }
    let text = ok(dir, &["plan", &recipe, "--cards"]);
    assert!(text.contains("not measured") && text.contains("as asked"), "{text}");

    // A file of the working directory is read without being named, and replaces.
    std::fs::write(dir.join("cards.toml"), MINE.replace("[mine]", "[rtx3090]")).expect("a file");
    let plan = json(dir, &["plan", &recipe, "--card", "rtx3090", "--json"]);
    assert_eq!(bytes(&plan, "budget_bytes"), 2048 * MIB);
}

#[test]
fn several_cards_are_planned_for_together() {
    let dir = tempfile::tempdir().expect("a folder");
    let (dir, recipe) = (dir.path(), recipe(dir.path()));
    let plan = json(dir, &["plan", &recipe, "--cards", "2xrtx3090", "--json"]);
    assert_eq!((bytes(&plan["ranks"], "ranks"), bytes(&plan["ranks"], "shard")), (2, 2));
    let rows = plan["strategies"]["rows"].as_array().expect("rows");
    let row = |name: &str| rows.iter().find(|r| r["strategy"] == name).unwrap_or_else(|| panic!("{name}"));
    // The plan is the row of its strategy, and holds half of what a copy of everything holds.
    assert_eq!(bytes(&plan, "peak_bytes"), bytes(row("full"), "peak_bytes"));
    assert!(bytes(row("full"), "peak_bytes") < bytes(row("none"), "peak_bytes"));
    let states = |strategy: &str| {
        let plan = json(dir, &["plan", &recipe, "--cards", "2xrtx3090", "--sharding", strategy, "--json"]);
        bytes(&plan["ranks"], "state_bytes") - bytes(&plan["ranks"], "padding_bytes")
    };
    let (half, whole) = (states("full") as f64, states("none") as f64);
    assert!((2.0 * half / whole - 1.0).abs() < 0.01, "{half} of {whole}");
    let text = ok(dir, &["plan", &recipe, "--cards", "2xrtx3090", "--sharding", "none"]);
    assert!(text.contains("data parallel: every rank has a copy of everything"), "{text}");

    // Through a slow network a collective takes longer than inside a host, and more cards are predicted for too.
    let network = |rate: &str| {
        let file = format!("card = \"a800\"\nhosts = 2\ncards_per_host = 2\nnetwork_gb_per_s = {rate}\n");
        std::fs::write(dir.join("c.toml"), file).expect("a file");
        let plan = json(dir, &["plan", &recipe, "--cluster", "c.toml", "--scaling", "--json"]);
        assert_eq!(plan["scaling"]["rows"].as_array().map(Vec::len), Some(22));
        assert_eq!(plan["strategies"]["rows"].as_array().map(Vec::len), Some(5));
        plan["ranks"]["exchange_seconds"].as_f64().expect("a number")
    };
    let alone = json(dir, &["plan", &recipe, "--card", "a800", "--scaling", "--json"]);
    let first = &alone["scaling"]["rows"][0];
    let rate = bytes(&alone, "tokens_per_step") as f64 / alone["step_seconds"].as_f64().expect("a number");
    assert!((first["frames_per_second"].as_f64().expect("a number") / rate - 1.0).abs() < 1e-9, "{first:#}");
    assert!(network("0.01") > 10.0 * network("100"));

    // However it is asked for, each card keeps its micro-batches.
    let small = ["--micro-batch", "200", "--scaling", "--json"];
    let of = |cards: &[&str]| json(dir, &[&["plan", &recipe], cards, &small].concat());
    let [one, four] = [of(&["--card", "a800"]), of(&["--cards", "4xa800"])];
    let (one_card, four_cards) = (&one["scaling"]["rows"], &four["scaling"]["rows"]);
    assert_eq!(one_card[0]["step_seconds"], four_cards[0]["step_seconds"]);
    assert_eq!(one_card[0]["frames_per_second"], four_cards[0]["frames_per_second"]);
    // Data parallel is one row in two tables.
    let none = four["strategies"]["rows"].as_array().expect("rows").iter().find(|r| r["strategy"] == "none");
    let data = &four["placements"]["rows"][0];
    let none = none.expect("a row");
    assert_eq!((&data["peak_bytes"][0], &data["step_seconds"]), (&none["peak_bytes"], &none["step_seconds"]));
    assert_eq!(four["parameters"], one["parameters"], "the model's, not a rank's");

    // Side by side: the rows of each kind are those that it has alone.
    let both = json(dir, &["plan", &recipe, "--card", "a800", "--scaling=a800,h100", "--json"]);
    let rows = both["scaling"]["rows"].as_array().expect("rows");
    let of = |card: &str| rows.iter().filter(|r| r["card"] == card).cloned().collect::<Vec<_>>();
    assert_eq!(Some(&of("a800")), alone["scaling"]["rows"].as_array());
    let seconds = |card: &str| of(card)[0]["step_seconds"].as_f64().expect("seconds");
    assert!(rows.len() == 44 && of("h100").len() == 22 && seconds("h100") < seconds("a800"), "{rows:#?}");
}

#[test]
fn a_card_that_lacks_the_precision_is_a_row_with_the_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let (dir, recipe) = (dir.path(), recipe(dir.path()));
    let table = json(dir, &["plan", &recipe, "--cards", "--precision", "bf16-mixed", "--json"]);
    let rows = table["cards"].as_array().expect("rows");
    assert_eq!(rows.len(), 28);
    for row in rows {
        let able = row["card"]["bf16"].as_bool().expect("a truth");
        assert_eq!((&row["fits"], row["peak_bytes"].is_u64()), (&able.into(), able), "{row:#}");
        let why = row["unable"].as_str().unwrap_or_default();
        assert_eq!(why.contains("has no bfloat16"), !able, "{row:#}");
    }
    let text = ok(dir, &["plan", &recipe, "--cards", "--precision", "bf16-mixed"]);
    assert_eq!(text.matches("unable, see below").count(), 5, "{text}");
    assert!(text.contains("gtx1650: precision: GeForce GTX 1650 has no bfloat16"), "{text}");
}

#[test]
fn a_model_for_which_every_card_is_too_small() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let (voice, model) = (common::voice(dir, 9), huge(dir));
    let (voice, model) = (voice.display().to_string(), model.display().to_string());
    let (code, text) = said(dir, &["plan", "--model", &model, "--data", &voice, "--cards"]);
    assert_eq!(code, 3, "{text}");
    assert_eq!(text.matches("does not fit: needs").count(), 28, "{text}");
    // A smaller card's row is the refusal of that card, though larger ones were asked first.
    let row = text.lines().find(|l| l.starts_with("rtx3080 ")).expect("a row");
    let least = row.split("needs ").nth(1).expect("bytes").trim().to_owned();
    let (code, text) = said(dir, &["plan", "--model", &model, "--data", &voice, "--card", "rtx3080"]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains(&format!("any combination of them needs is {least},")), "{text}, {least}");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (dir, recipe) = (dir.path(), recipe(dir.path()));
    let refused = |args: &[&str], why: &str| {
        let (code, text) = said(dir, args);
        assert!(code == 2 && text.contains(why), "{args:?}: {code}: {text}");
    };
    refused(&["plan", &recipe, "--card", "rtx3091"], "did you mean rtx3090?");
    refused(&["plan", &recipe, "--card", "rtx3090", "--device", "cuda"], "cannot be used with");
    refused(&["plan", &recipe, "--card", "rtx3090", "--cards"], "cannot be used with");
    refused(&["plan", &recipe, "--cards", "--memory", "8GiB"], "cannot be used with");
    refused(&["plan", &recipe, "--cards-file", "x.toml"], "--card");
    refused(&["plan", &recipe, "--cards", "4"], "write several GPUs of one kind as 4xa800");
    refused(&["plan", &recipe, "--cards", "4xa801"], "did you mean");
    refused(&["plan", &recipe, "--cards", "--scaling"], "--scaling: needs --card");
    refused(&["plan", &recipe, "--cards", "2xa800", "--clip-per-tensor"], "clip_per_tensor: false");
    refused(&["plan", &recipe, "--card", "a800", "--scaling=a800,h10"], "did you mean");
    refused(
        &["plan", &recipe, "--card", "a800", "--precision", "bf16-mixed", "--scaling=gtx1650"],
        "has no bfloat16",
    );
    refused(&["plan", &recipe, "--cards", "4xa800", "--ranks", "8"], "the recipe has 8, these are 4 GPUs");
    refused(&["plan", &recipe, "--cards", "4xa800", "--sharding", "hybrid:3"], "3 does not divide ranks: 4");
    refused(&["plan", &recipe, "--scaling"], "--scaling: needs --card");
    refused(&["plan", &recipe, "--cards", "--cards-file", "x.toml"], "x.toml: ");
    refused(&["train", &recipe, "--card", "rtx3090"], "can only be planned for");
    std::fs::write(dir.join("cards.toml"), MINE.replace("= 100", "= -1")).expect("a file");
    refused(&["plan", &recipe, "--cards"], "cards.toml:7: [mine] memory_gb_per_s: -1");
    // Who asks for no card is not bothered with the table.
    ok(dir, &["plan", &recipe, "--memory", "1GiB"]);
}
