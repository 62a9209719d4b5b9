//! `ambitus import` and `plan --accelerate` from the outside, and the refusal of more than one rank.

use crate::common::{self, ambitus, json, ok, said};
use std::fs;
use std::path::Path;

const ACCELERATE: &str = "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config:\n  \
                          fsdp_sharding_strategy: 1\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";

fn put(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).expect("a file");
}

#[test]
fn files_and_flags_become_a_recipe() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    put(dir, "a.yaml", ACCELERATE);
    put(dir, "args.txt", "TrainingArguments(\n  per_device_train_batch_size=2, # clips\n)");
    let files = ["import", "a.yaml", "args.txt"];
    // The table is a message, the recipe the result.
    let out = ambitus(
        dir,
        &[&files[..], &["--model", "m", "--data", "d", "--", "--learning_rate", "1e-4"]].concat(),
    );
    let (recipe, table) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{table}");
    assert!(
        recipe.starts_with("# From a.yaml, args.txt, command line, by `ambitus import`.\nmodel:\n"),
        "{recipe}"
    );
    assert!(recipe.contains("ranks: 4 ") && recipe.contains("learning_rate: 1e-4 "), "{recipe}");
    assert!(table.contains("used: sharding.strategy: full"), "{table}");
    assert!(
        table.contains("effective batch: 2 clips per device × 1 accumulated × 4 ranks = 8 clips an update"),
        "{table}"
    );
    // With -o the table is the result; nothing is written over.
    let to = [&files[..], &["-o", "r.yaml"]].concat();
    assert!(ok(dir, &to).contains("used: ranks: 4"));
    assert!(fs::read_to_string(dir.join("r.yaml")).expect("a recipe").contains("strategy: full"));
    let (code, text) = said(dir, &to);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("r.yaml: is there already"), "{text}");
    let as_json = json(dir, &[&files[..], &["--json"]].concat());
    assert_eq!(
        (as_json["rows"][0]["key"].as_str(), as_json["rows"][0]["is"].as_str()),
        (Some("distributed_type"), Some("used"))
    );
    // A launch script beside the file that it names.
    put(
        dir,
        "run.sh",
        "set -e\nX=1 accelerate launch --config_file a.yaml train.py --bf16 True 2>&1 | tee log\n",
    );
    let (code, text) = said(dir, &["import", "run.sh", "a.yaml", "-o", "s.yaml"]);
    assert!(code == 0 && text.contains("used: a.yaml is read beside it"), "{code}: {text}");
    // What contradicts itself writes nothing.
    let (code, text) = said(dir, &["import", "a.yaml", "-o", "x.yaml", "--", "--fp16"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("fp16: is true, and mixed_precision: bf16 (a.yaml:3:18) says otherwise"), "{text}");
    assert!(!dir.join("x.yaml").exists());
    let (code, text) = said(dir, &["import", "none.yaml"]);
    assert!(code == 2 && text.contains("none.yaml: No such file"), "{text}");
    assert_eq!(said(dir, &["import"]).0, 2);
}

#[test]
fn several_ranks_are_planned_for_where_nothing_can_be_trained() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    // Only its shape is there, which is all that a plan reads.
    let model = common::root().join("recipes/orpheus");
    let recipe = format!("model: {{dir: {}}}\ndata: {{dir: d}}\n", model.display());
    put(dir, "one.yaml", &recipe);
    put(dir, "four.yaml", &format!("{recipe}ranks: 4\nsharding: {{strategy: full}}\nrun_dir: run\n"));
    put(dir, "stages.yaml", &format!("{recipe}ranks: 2\nrun_dir: run\nstages: [{{name: a, updates: 1}}]\n"));
    put(dir, "a.yaml", ACCELERATE);
    for args in
        [&["train", "four.yaml"][..], &["train", "stages.yaml"], &["train", "--ranks", "2", "one.yaml"]]
    {
        let (code, text) = said(dir, args);
        assert!(code >= 2 && text.contains("error: "), "{args:?}: {code}: {text}");
    }
    assert!(!dir.join("run").exists(), "no folder is left");
    for args in [&["plan", "four.yaml"][..], &["plan", "--accelerate", "a.yaml", "one.yaml"]] {
        let text = ok(dir, &[args, &["--card", "a800", "--micro-batch", "2600"]].concat());
        assert!(text.contains("4 ranks, each with 1/4 of parameters"), "{args:?}: {text}");
    }
    put(dir, "no.yaml", "distributed_type: 'NO'\nmixed_precision: bf16\n");
    // On a card that need not be here. Options go before the file, and the file before the recipe.
    let plan = ["plan", "--accelerate", "no.yaml", "one.yaml", "--card", "a800", "--micro-batch", "2600"];
    let text = said(dir, &plan).1;
    assert!(text.contains("precision = bf16-mixed (recipe)"), "{text}");
    let text = said(dir, &[&plan[..], &["--precision", "bf16-pure"]].concat()).1;
    assert!(text.contains("precision = bf16-pure (command line)"), "{text}");
    assert!(
        text.contains("no effect, because the command line says `precision: bf16-pure`"),
        "what is said of the file is true of the plan: {text}"
    );
    put(dir, "own.yaml", &format!("{recipe}checkpoint: all\n"));
    put(dir, "off.yaml", "distributed_type: 'NO'\ngradient_checkpointing: false\n");
    let plan = ["plan", "--accelerate", "off.yaml", "own.yaml", "--card", "a800", "--micro-batch", "2600"];
    let text = said(dir, &plan).1;
    assert!(
        text.contains("checkpoint = all") && text.contains("because the recipe says `checkpoint: all`"),
        "{text}"
    );
}

#[test]
fn files_that_are_none_are_the_command_lines_mistake() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    put(dir, "r.yaml", "model: {dir: m}\ndata: {dir: d}\n");
    fs::write(dir.join("latin"), b"card = \"\xff\"\n").expect("a file");
    for file in ["/nonexistent", ".", "latin"] {
        for args in [
            &["import", file][..],
            &["plan", file],
            &["plan", "--cluster", file, "r.yaml"],
            &["plan", "--cards", "--cards-file", file, "r.yaml"],
        ] {
            let (code, text) = said(dir, args);
            assert_eq!(code, 2, "{args:?}: {text}");
            assert!(text.contains(&format!("error: {file}: ")), "{args:?}: {text}");
        }
    }
}

/// Opening a pipe waits for whoever writes to it, and no signal ends that.
#[cfg(unix)]
#[test]
fn pipes_are_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    put(dir, "r.yaml", "model: {dir: m}\ndata: {dir: d}\n");
    let made = std::process::Command::new("mkfifo").arg(dir.join("pipe")).status().expect("mkfifo");
    assert!(made.success());
    for args in [
        &["import", "pipe"][..],
        &["plan", "pipe"],
        &["plan", "--accelerate", "pipe", "r.yaml"],
        &["plan", "--cluster", "pipe", "r.yaml"],
        &["plan", "--cards", "--cards-file", "pipe", "r.yaml"],
    ] {
        let (code, text) = said(dir, args);
        assert!(code == 2 && text.contains("pipe: is not a file"), "{args:?}: {code}: {text}");
    }
}
