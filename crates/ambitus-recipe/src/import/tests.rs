//! The golden reading of a whole file, then the forms, the rules and the traps one by one.

mod forms;
mod lightning;
mod over;
mod pasted;
mod quirks;
mod rules;
mod scripts;
mod truth;

use super::*;
use crate::recipe::{BackwardPrefetch, Precision, Sharding, Strategy, Units};

const REPORT: &str = include_str!("tests/report-accelerate.yaml");

/// Returns an import of files by name and text.
fn read(files: &[(&str, &str)]) -> Result<Imported, RecipeError> {
    let sources: Vec<Source> = files.iter().map(|(name, text)| Source::text(*name, *text)).collect();
    import(&sources, &Folders::default(), &[])
}

#[track_caller]
fn good(files: &[(&str, &str)]) -> Imported {
    read(files).unwrap_or_else(|e| panic!("{files:?}: {e}"))
}

#[track_caller]
fn recipe_of(files: &[(&str, &str)]) -> Recipe {
    let text = good(files).recipe;
    Recipe::parse(&text, "r.yaml").unwrap_or_else(|e| panic!("{text}\n{e}")).0
}

/// Returns what was said of a key.
#[track_caller]
fn said(imported: &Imported, key: &str) -> String {
    let row = imported.rows.iter().find(|r| r.key == key);
    row.unwrap_or_else(|| panic!("no key {key}")).verdict.to_string()
}

#[track_caller]
fn refused(files: &[(&str, &str)], message: &str) {
    let error = read(files).map(|i| i.recipe).expect_err(message).to_string();
    assert!(error.contains(message), "{error}\nis not\n{message}");
}

/// The accelerate file of a field report (3B parameters on 4 x A800), every key of it.
#[test]
fn the_reports_file_key_by_key() {
    const LOADED: &str = "each rank reads its own part of the weights, in bounded pieces to where they live: never a whole copy in the host's memory";
    const MEETING: &str = "how processes find each other is the launcher's matter, not a recipe's";
    let no = |why: &str| format!("no effect, because {why}");
    let tpu = no("it is for TPUs only");
    let expected = [
        ("compute_environment", "LOCAL_MACHINE", no("a run computes where it is started")),
        ("debug", "false", no("it checks shapes while training; here no shape depends on data")),
        ("distributed_type", "FSDP", "used: sharding, as the FSDP keys say".to_owned()),
        ("downcast_bf16", "true", tpu.clone()),
        (
            "enable_cpu_affinity",
            "false",
            no("it binds processes to cores, which changes no number and no byte"),
        ),
        (
            "fsdp_config.fsdp_auto_wrap_policy",
            "TRANSFORMER_BASED_WRAP",
            "used: sharding.units: block".to_owned(),
        ),
        (
            "fsdp_config.fsdp_backward_prefetch",
            "BACKWARD_PRE",
            "used: sharding.backward_prefetch: pre".to_owned(),
        ),
        ("fsdp_config.fsdp_cpu_ram_efficient_loading", "true", no(LOADED)),
        ("fsdp_config.fsdp_forward_prefetch", "false", "used: sharding.forward_prefetch: false".to_owned()),
        (
            "fsdp_config.fsdp_offload_params",
            "false",
            "default: nothing waits in the host's memory unless the budget needs it".to_owned(),
        ),
        ("fsdp_config.fsdp_sharding_strategy", "1", "used: sharding.strategy: full".to_owned()),
        (
            "fsdp_config.fsdp_state_dict_type",
            "SHARDED_STATE_DICT",
            no(
                "each rank writes what it holds, nothing is gathered; any number of ranks reads it, and `ambitus export` \
                writes what the original loads",
            ),
        ),
        (
            "fsdp_config.fsdp_sync_module_states",
            "true",
            no("every rank starts from the same file and seed: there is nothing to send round"),
        ),
        (
            "fsdp_config.fsdp_use_orig_params",
            "true",
            no("parameters keep their names, and frozen ones may stand beside trained ones, in any case"),
        ),
        (
            "fsdp_config.fsdp_min_num_params",
            "1000000",
            no(
                "under TRANSFORMER_BASED_WRAP a unit is a block whatever its size; it counts for SIZE_BASED_WRAP only",
            ),
        ),
        ("machine_rank", "0", no(MEETING)),
        ("main_training_function", "main", no("it names a Python function for notebooks and TPUs")),
        ("mixed_precision", "bf16", "used: precision: bf16-mixed".to_owned()),
        (
            "num_machines",
            "1",
            no(
                "how ranks lie on machines is the launcher's matter; only the group of a hybrid follows from it",
            ),
        ),
        ("num_processes", "4", "used: ranks: 4".to_owned()),
        ("rdzv_backend", "static", no(MEETING)),
        ("same_network", "true", no(MEETING)),
        ("tpu_env", "[]", tpu.clone()),
        ("tpu_use_cluster", "false", tpu.clone()),
        ("tpu_use_sudo", "false", tpu),
        (
            "use_cpu",
            "false",
            no("a recipe leaves the device open: say --device cuda, or plan with --card NAME"),
        ),
    ];
    let imported = good(&[("report-accelerate.yaml", REPORT)]);
    for (row, (key, value, said)) in imported.rows.iter().zip(&expected) {
        assert_eq!((row.key.as_str(), row.value.as_str(), &row.verdict.to_string()), (*key, *value, said));
    }
    assert_eq!(imported.rows.len(), expected.len());
    assert_eq!((imported.notes.len(), imported.effective_batch.as_deref()), (0, None));
    let lines: Vec<u64> = imported.rows.iter().map(|r| r.line).collect();
    assert_eq!((lines[0], lines[5], lines[25]), (1, 7, 27));
    assert_eq!(
        imported.recipe,
        "\
# From report-accelerate.yaml, by `ambitus import`.
model:
  dir: path/to/model               # write the folder here, or give --model DIR
data:
  dir: path/to/data                # write the folder here, or give --data DIR
ranks: 4                           # num_processes at report-accelerate.yaml:21:16
sharding:
  strategy: full                   # fsdp_config.fsdp_sharding_strategy at report-accelerate.yaml:12:27
  units: block                     # fsdp_config.fsdp_auto_wrap_policy at report-accelerate.yaml:7:26
  backward_prefetch: pre           # fsdp_config.fsdp_backward_prefetch at report-accelerate.yaml:8:27
  forward_prefetch: false          # fsdp_config.fsdp_forward_prefetch at report-accelerate.yaml:10:26
precision: bf16-mixed              # mixed_precision at report-accelerate.yaml:19:18
"
    );
    let (recipe, _) = Recipe::parse(&imported.recipe, "r.yaml").unwrap();
    let sharding = Sharding {
        strategy: Strategy::Full,
        group: None,
        units: Units::Block,
        backward_prefetch: BackwardPrefetch::Pre,
        forward_prefetch: false,
    };
    assert_eq!((recipe.ranks(), recipe.sharding), (4, Some(sharding)));
    assert_eq!(recipe.precision, Some(Precision::Bf16Mixed));
}

/// The report's file with its arguments next to it.
#[test]
fn the_report_with_its_arguments() {
    let arguments = "TrainingArguments(\n    fsdp=\"full_shard auto_wrap\",\n    bf16=True,\n    \
                     per_device_train_batch_size=2,\n    gradient_accumulation_steps=3,\n    learning_rate=5.0e-5,\n)\n";
    let files = [("report-accelerate.yaml", REPORT), ("train.py", arguments)];
    let imported = good(&files);
    assert_eq!(said(&imported, "fsdp"), "used: sharding.strategy: full");
    assert_eq!(said(&imported, "bf16"), "used: precision: bf16-mixed");
    let words = "2 clips per device × 3 accumulated × 4 ranks = 24 clips";
    assert_eq!(imported.effective_batch.as_deref(), Some(words));
    assert!(imported.to_string().contains(&format!("effective batch: {words} an update\n")), "{imported}");
    let recipe = recipe_of(&files);
    assert_eq!(recipe.batch, Some(crate::recipe::Batch::Clips(24)));
    assert_eq!((recipe.learning_rate, recipe.ranks), (Some(5e-5), Some(4)));
}

#[test]
fn laid_over_a_recipe_only_sharding_ranks_and_precision_change() {
    let mut recipe = Recipe::new("m", "d");
    recipe.updates = Some(7);
    recipe.precision = Some(Precision::Fp32);
    let before = recipe.clone();
    recipe = lay_over(&recipe, &[Source::text("a.yaml", REPORT)], &[], |_| ()).unwrap().0;
    let sharding = recipe.sharding.take();
    assert_eq!(sharding, Some(Sharding::default()));
    let expected = Recipe { ranks: Some(4), precision: Some(Precision::Bf16Mixed), ..before };
    assert_eq!(recipe, expected);
    // What the two say together may contradict itself.
    recipe.clip_per_tensor = true;
    let fp16 = Source::text("a.yaml", "distributed_type: 'NO'\nmixed_precision: fp16\n");
    let error = lay_over(&recipe, &[fp16], &[], |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("a.yaml: precision: over this recipe: fp16-mixed skips an update"), "{error}");
}

#[test]
fn what_is_written_is_never_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recipe.yaml");
    write(&path, "a").unwrap();
    let error = write(&path, "b").unwrap_err().to_string();
    assert!(error.contains("is there already"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a");
}
