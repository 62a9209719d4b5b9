//! Saved arguments next to other files, values that are no values, and what the originals refuse or ignore.

use super::*;

const SHARDED: &str = "distributed_type: FSDP\nnum_processes: 8\n";

/// What transformers 4's `to_json_string` writes of sharding and what is near it.
const SAVED: &str = r#"{
  "output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "learning_rate": 5e-05,
  "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-08, "max_grad_norm": 1.0,
  "num_train_epochs": 3.0, "max_steps": -1, "lr_scheduler_type": "linear", "lr_scheduler_kwargs": {}, "warmup_ratio": 0.0,
  "warmup_steps": 0, "bf16": true, "fp16": false, "fsdp": ["full_shard", "auto_wrap"], "fsdp_min_num_params": 0,
  "fsdp_config": {"min_num_params": 0, "xla": false, "xla_fsdp_v2": false, "xla_fsdp_grad_ckpt": false},
  "fsdp_transformer_layer_cls_to_wrap": null, "accelerator_config": null, "parallelism_config": null, "deepspeed": null,
  "label_smoothing_factor": 0.0, "neftune_noise_alpha": 0, "tf32": null, "debug": [], "seed": 42
}"#;

#[test]
fn saved_arguments_stand_beside_the_reports_file() {
    let alone = recipe_of(&[("acc.yaml", REPORT)]);
    for files in [[("acc.yaml", REPORT), ("args.json", SAVED)], [("args.json", SAVED), ("acc.yaml", REPORT)]]
    {
        let imported = good(&files);
        assert!(imported.rows.iter().all(|r| !matches!(r.verdict, Verdict::Unknown(_))), "{imported}");
        assert_eq!(imported.notes, Vec::<String>::new());
        let recipe = recipe_of(&files);
        assert_eq!((recipe.sharding, recipe.ranks), (alone.sharding, alone.ranks));
        let none = "no effect, because 0 is none given, and another place gives one";
        for key in ["fsdp_min_num_params", "fsdp_config.min_num_params"] {
            assert_eq!(said(&imported, key), none);
        }
        assert_eq!(said(&imported, "label_smoothing_factor"), "default: there is none");
        assert_eq!(said(&imported, "neftune_noise_alpha"), "default: there is none");
        assert!(said(&imported, "parallelism_config").starts_with("default: it is off or empty"));
        assert!(said(&imported, "accelerator_config").starts_with("default: it is off or empty"));
    }
    let short = "fsdp=\"full_shard auto_wrap\", fsdp_config={\"min_num_params\":0}";
    assert_eq!(recipe_of(&[("acc.yaml", REPORT), ("a.py", short)]).sharding, alone.sharding);
    for empty in ["{}", "'{}'"] {
        let text = format!("{SHARDED}parallelism_config: {empty}\nfsdp_config: {empty}\n");
        assert!(said(&good(&[("a.yaml", &text)]), "parallelism_config").starts_with("default: "));
    }
    assert!(
        said(&good(&[("a.py", "label_smoothing_factor=0.1")]), "label_smoothing_factor")
            .starts_with("no effect")
    );
}

#[test]
fn sizes_are_compared_where_units_go_by_size() {
    let yaml =
        format!("{SHARDED}fsdp_config: {{fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 5}}\n");
    let with = |n: u32| {
        format!("{{\"fsdp\": \"full_shard auto_wrap\", \"fsdp_config\": {{\"min_num_params\": {n}}}}}")
    };
    refused(
        &[("a.yaml", &yaml), ("b.json", &with(6))],
        "b.json:1:68: fsdp_config.min_num_params: is 6, and fsdp_config.fsdp_min_num_params: 5 (a.yaml:3:76) says otherwise",
    );
    let blocks = yaml.replace("SIZE_BASED", "TRANSFORMER_BASED");
    assert_eq!(recipe_of(&[("a.yaml", &blocks), ("b.json", &with(6))]).sharding.unwrap().units, Units::Block);
    for files in [[("b.json", with(0)), ("a.yaml", yaml.clone())], [("a.yaml", yaml), ("b.json", with(0))]] {
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        assert_eq!(recipe_of(&files).sharding.unwrap().units, Units::MinParams(5));
        assert!(good(&files).recipe.contains("# fsdp_config.fsdp_min_num_params at a.yaml:3:76"));
    }
}

#[test]
fn a_mesh_is_fsdp2s() {
    let mesh = "parallelism_config: {dp_replicate_size: 2, dp_shard_size: 4}\n";
    let first = good(&[("a.yaml", &format!("{SHARDED}{mesh}"))]);
    for key in ["dp_replicate_size", "dp_shard_size"] {
        let said = said(&first, &format!("parallelism_config.{key}"));
        assert!(said.starts_with("no effect, because FSDP1 ignores the mesh"), "{said}");
    }
    assert!(first.notes.iter().any(|n| n.contains("FSDP1 ignores the mesh")), "{:?}", first.notes);
    assert!(first.recipe.contains("strategy: full") && first.recipe.contains("ranks: 8"), "{}", first.recipe);
    let recipe = recipe_of(&[("a.yaml", &format!("distributed_type: FSDP\n{mesh}"))]);
    assert_eq!((recipe.ranks, recipe.sharding.unwrap().strategy), (Some(8), Strategy::Full));
    let second = recipe_of(&[("a.yaml", &format!("{SHARDED}{mesh}fsdp_config: {{version: 2}}\n"))]);
    assert_eq!(second.sharding.unwrap().strategy, Strategy::HybridFull);
}

#[test]
fn loading_that_accelerate_refuses_is_said() {
    let notes = |text: &str| {
        let notes = good(&[("a.yaml", text)]).notes;
        notes.iter().filter(|n| n.contains("is refused by accelerate, under FSDP2 too")).count()
    };
    for (keys, expected) in [
        ("cpu_ram_efficient_loading: true, sync_module_states: false", 1),
        ("cpu_ram_efficient_loading: true, sync_module_states: false, version: 2", 1),
        // Its launcher turns the first on by default.
        ("sync_module_states: false", 1),
        ("sync_module_states: false, version: 2", 1),
        ("cpu_ram_efficient_loading: false, sync_module_states: false", 0),
        ("cpu_ram_efficient_loading: true", 0),
    ] {
        assert_eq!(notes(&format!("{SHARDED}fsdp_config: {{{keys}}}\n")), expected, "{keys}");
    }
    assert_eq!(notes("fsdp: full_shard\nfsdp_config: {sync_module_states: false}\n"), 0);
}

#[test]
fn strategies_that_fsdp2_has_not_are_said() {
    let of = |word: &str, reshard: &str| {
        good(&[(
            "a.json",
            &format!("{{\"fsdp\": \"{word}\", \"fsdp_config\": {{\"version\": 2{reshard}}}}}"),
        )])
    };
    let on = ", \"reshard_after_forward\": true";
    for (word, instead) in [
        ("no_shard", "write `sharding: {strategy: none}`"),
        ("shard_grad_op", "write `sharding: {strategy: grad_op}`"),
        ("hybrid_shard", "give parallelism_config's dp_replicate_size"),
    ] {
        let imported = of(word, on);
        assert!(imported.recipe.contains("strategy: full"), "{}", imported.recipe);
        let note = imported.notes.iter().find(|n| n.contains("FSDP2 has no such strategy")).expect(word);
        assert!(
            note.contains("reshard_after_forward, which is true here, decides") && note.contains(instead),
            "{note}"
        );
        assert!(said(&imported, "fsdp").contains("FSDP2 has no strategy by that word"), "{imported}");
    }
    assert!(!of("full_shard", on).to_string().contains("FSDP2 has no"));
    assert!(!of("shard_grad_op", "").to_string().contains("FSDP2 has no"));
}

#[test]
fn values_are_values_also_where_they_change_nothing() {
    for kind in ["FSDP", "MULTI_GPU", "'NO'"] {
        for version in [1, 2] {
            for (key, value, message) in [
                ("fsdp_sharding_strategy", "BLA", "`BLA` is not one of FULL_SHARD (1)"),
                ("fsdp_sharding_strategy", "0", "`0` is not one of FULL_SHARD (1)"),
                ("fsdp_sharding_strategy", "1.5", "1.5 is not a word"),
                ("fsdp_backward_prefetch", "BLA", "`BLA` is not one of BACKWARD_PRE (1)"),
                ("fsdp_state_dict_type", "BLA", "`BLA` is not one of FULL_STATE_DICT (1)"),
                ("use_orig_params", "maybe", "fsdp_config.use_orig_params: maybe is not true or false"),
                ("fsdp_sync_module_states", "maybe", "maybe is not true or false"),
                ("fsdp_reshard_after_forward", "BLA", "`BLA` is not one of FULL_SHARD (1)"),
                ("min_num_params", "-1", "-1 is not between 0 and"),
            ] {
                let text = format!(
                    "distributed_type: {kind}\nnum_processes: 2\nfsdp_config:\n  version: {version}\n  {key}: {value}\n"
                );
                refused(&[("a.yaml", &text)], message);
            }
        }
    }
    for one in ["1.0", "'1.0'", "1", "'1'"] {
        let text = format!("{SHARDED}fsdp_config: {{fsdp_sharding_strategy: {one}}}\n");
        assert_eq!(recipe_of(&[("a.yaml", &text)]).sharding.unwrap().strategy, Strategy::Full, "{one}");
    }
    let own = good(&[("own.yaml", "datasets: {batch_size_per_gpu: 3200}\nckpts: {save_dir: ckpts/x}\n")]);
    assert_eq!(said(&own, "ckpts.save_dir"), "no effect, because where checkpoints go is run_dir");
}
