//! What the keys mean: strategies, units, launchers' quirks, conflicts, nearest names.

use super::*;
use crate::recipe::Batch;

fn fsdp(more: &str) -> String {
    format!(
        "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 8\nfsdp_config:\n  {}\n",
        more.replace('\n', "\n  ")
    )
}

fn strategy(more: &str) -> (Strategy, Option<u32>) {
    let s = recipe_of(&[("a.yaml", &fsdp(more))]).sharding.unwrap();
    (s.strategy, s.group)
}

#[test]
fn strategies_by_name_and_code_with_and_without_prefix() {
    for (words, expected) in [
        (["1", "FULL_SHARD", "full_shard"], (Strategy::Full, None)),
        (["2", "SHARD_GRAD_OP", "ShardingStrategy.SHARD_GRAD_OP"], (Strategy::GradOp, None)),
        (["3", "NO_SHARD", "'3'"], (Strategy::None, None)),
        (["4", "HYBRID_SHARD", "Hybrid_Shard"], (Strategy::HybridFull, Some(4))),
        (["5", "HYBRID_SHARD_ZERO2", "'HYBRID_SHARD_ZERO2'"], (Strategy::HybridGradOp, Some(4))),
    ] {
        for word in words {
            assert_eq!(strategy(&format!("fsdp_sharding_strategy: {word}")), expected, "{word}");
            assert_eq!(strategy(&format!("sharding_strategy: {word}")), expected, "{word}");
        }
    }
    assert_eq!(strategy("fsdp_offload_params: false"), (Strategy::Full, None));
    for bad in ["0", "6", "FULL", "ZERO3", "[]x"] {
        assert!(read(&[("a.yaml", &fsdp(&format!("fsdp_sharding_strategy: {bad}")))]).is_err(), "{bad}");
    }
    refused(
        &[("a.yaml", &fsdp("fsdp_sharding_strategy: FULL_SHARDS"))],
        "a.yaml:5:27: fsdp_config.fsdp_sharding_strategy: `FULL_SHARDS` is not one of FULL_SHARD (1), SHARD_GRAD_OP (2)",
    );
}

#[test]
fn units_and_prefetch() {
    let sharding = |more: &str| recipe_of(&[("a.yaml", &fsdp(more))]).sharding.unwrap();
    for word in ["1", "TRANSFORMER_BASED_WRAP", "transformer_based_wrap"] {
        assert_eq!(sharding(&format!("auto_wrap_policy: {word}\nmin_num_params: 5")).units, Units::Block);
    }
    assert_eq!(sharding("fsdp_auto_wrap_policy: 2\nmin_num_params: 5").units, Units::MinParams(5));
    assert_eq!(sharding("fsdp_auto_wrap_policy: SIZE_BASED_WRAP").units, Units::MinParams(100_000_000));
    for none in
        ["fsdp_auto_wrap_policy: NO_WRAP", "auto_wrap_policy: 2\nmin_num_params: 0", "fsdp_version: 1"]
    {
        let imported = good(&[("a.yaml", &fsdp(none))]);
        assert!(imported.recipe.contains("the whole model would be gathered at once"), "{}", imported.recipe);
    }
    let prefetch = |more: &str| sharding(more).backward_prefetch;
    assert_eq!(prefetch("fsdp_backward_prefetch: BACKWARD_PRE"), BackwardPrefetch::Pre);
    assert_eq!(prefetch("fsdp_backward_prefetch_policy: 2"), BackwardPrefetch::Post);
    assert_eq!(prefetch("backward_prefetch: NO_PREFETCH"), BackwardPrefetch::None);
    // accelerate's default, not ours.
    assert_eq!(prefetch("fsdp_version: 1"), BackwardPrefetch::None);
    assert!(sharding("fsdp_forward_prefetch: 'yes'").forward_prefetch);
    let none = "NO_SHARD gathers nothing";
    let imported =
        good(&[("a.yaml", &fsdp("sharding_strategy: 3\nforward_prefetch: true\nauto_wrap_policy: 2"))]);
    assert!(said(&imported, "fsdp_config.forward_prefetch").ends_with(none));
}

#[test]
fn fsdp2_reads_reshard_and_fsdp1_does_not() {
    assert_eq!(strategy("fsdp_version: 2\nfsdp_reshard_after_forward: true"), (Strategy::Full, None));
    assert_eq!(strategy("fsdp_version: 2\nreshard_after_forward: 'False'"), (Strategy::GradOp, None));
    assert_eq!(strategy("fsdp_version: 2\nfsdp_sharding_strategy: NO_SHARD"), (Strategy::Full, None));
    let pre = recipe_of(&[("a.yaml", &fsdp("fsdp_version: 2"))]).sharding.unwrap().backward_prefetch;
    assert_eq!(pre, BackwardPrefetch::Pre);
    refused(&[("a.yaml", &fsdp("fsdp_version: 2\nforward_prefetch: true"))], "FSDP2 has no forward prefetch");
    refused(&[("a.yaml", &fsdp("fsdp_version: 3"))], "fsdp_config.fsdp_version: 3 is not between 1 and 2");
    // The wizard writes the strategy there, and the launcher's FULL_SHARD goes before it.
    let wizard = good(&[("a.yaml", &fsdp("fsdp_version: 1\nfsdp_reshard_after_forward: SHARD_GRAD_OP"))]);
    assert_eq!(
        strategy("fsdp_version: 1\nfsdp_reshard_after_forward: SHARD_GRAD_OP"),
        (Strategy::Full, None)
    );
    assert!(wizard.notes.iter().any(|n| n.contains("strategy: grad_op")), "{:?}", wizard.notes);
    // The Trainer's own default is the other one.
    let trainer = good(&[("a.json", "{\"fsdp\": \"full_shard\", \"fsdp_config\": {\"version\": 2}}")]);
    assert!(trainer.recipe.contains("strategy: grad_op") && trainer.notes.len() == 2, "{:?}", trainer.notes);
    // A mesh is the hybrid of FSDP2.
    let mesh = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\nparallelism_config:\n  \
                parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4\n  \
                parallelism_config_tp_size: 1\n";
    let s = recipe_of(&[("a.yaml", mesh)]).sharding.unwrap();
    assert_eq!((s.strategy, s.group), (Strategy::HybridFull, Some(4)));
    refused(
        &[("a.yaml", &mesh.replace("tp_size: 1", "tp_size: 2"))],
        "tensor, context and sequence parallelism",
    );
    refused(
        &[("a.yaml", &mesh.replace("shard_size: 4", "shard_size: 3"))],
        "2 replicas of 3 shards are 6 ranks",
    );
    refused(&[("a.yaml", &mesh.replace("shard_size: 4", "shard_size: 1"))], "replicas without shards");
}

#[test]
fn other_kinds_of_launch() {
    let ddp =
        recipe_of(&[("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: 'no'\n")]);
    assert_eq!((ddp.ranks, ddp.sharding.unwrap().strategy), (Some(2), Strategy::None));
    assert_eq!(ddp.precision, Some(Precision::Fp32));
    let one =
        good(&[("a.yaml", "distributed_type: NO\nnum_processes: 2\nmixed_precision: no\nuse_cpu: true\n")]);
    assert!(one.recipe.contains("ranks: 1") && one.recipe.contains("device: cpu"), "{}", one.recipe);
    assert!(said(&one, "num_processes").contains("starts one process"));
    let flags = "torchrun --nproc_per_node 4 --nnodes=2 train.py --fsdp full_shard --bf16 True";
    assert_eq!(recipe_of(&[("run.sh", flags)]).ranks, Some(8));
    let open = good(&[("a.yaml", "distributed_type: FSDP\nnum_processes: -1\n")]);
    assert!(open.notes.iter().any(|n| n.contains("write `ranks:`")), "{:?}", open.notes);
    for (text, message) in [
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}",
            "ZeRO-3 is what `distributed_type: FSDP`",
        ),
        ("distributed_type: MEGATRON_LM", "Megatron-LM splits single layers"),
        ("distributed_type: XLA", "TPUs are not supported"),
        ("distributed_type: MULTI_NPU", "MULTI_NPU is a device that is not supported"),
        (
            "distributed_type: FSPD",
            "`FSPD` is not one of NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED, MEGATRON_LM, XLA; FSDP is nearest",
        ),
        ("deepspeed: ds.json", "a.yaml:1:12: deepspeed: DeepSpeed's configuration is not read"),
        ("distributed_type: FSDP\nmixed_precision: fp8", "fp8 is not supported"),
        (
            "distributed_type: FSDP\nnum_processes: 3\nnum_machines: 2",
            "2 machines cannot have 3 ranks in equal shares",
        ),
        ("distributed_type: FSDP\nnum_processes: 100000", "100000 is not between 1 and 65536"),
        (
            "distributed_type: FSDP\nfsdp_config: {sharding_strategy: 4}",
            "give num_processes and num_machines too",
        ),
    ] {
        refused(&[("a.yaml", text)], message);
    }
    // Sections that other launchers leave behind, empty or not.
    let left = "distributed_type: FSDP\nnum_processes: 2\ndeepspeed_config: {}\nmegatron_lm_config: {}\nfsdp_config: {}\n";
    assert_eq!(recipe_of(&[("a.yaml", left)]).ranks, Some(2));
}

#[test]
fn schedules_are_transformers() {
    for (text, schedule, warmup) in [
        ("lr_scheduler_type: linear", Some("linear"), 7),
        ("lr_scheduler_type: SchedulerType.CONSTANT", Some("constant"), 0),
        ("lr_scheduler_type: constant_with_warmup", Some("constant"), 7),
        ("lr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycles: 1.5}", Some("cosine,cycles=1.5"), 7),
        (
            "lr_scheduler_type: cosine_with_restarts\nlr_scheduler_kwargs: '{\"num_cycles\": 3}'",
            Some("cosine-restarts,cycles=3"),
            7,
        ),
        (
            "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-5}\nlearning_rate: 1e-4",
            Some("cosine,floor=0.1"),
            7,
        ),
        ("lr_scheduler_type: polynomial\nlearning_rate: 1e-4", Some("linear,floor=0.001"), 7),
        (
            "lr_scheduler_type: inverse_sqrt\nlr_scheduler_kwargs: {timescale: 500}",
            Some("inverse-sqrt,timescale=500"),
            7,
        ),
    ] {
        let text = format!("{text}\nwarmup_steps: 7\nmax_steps: 100\n");
        let recipe = recipe_of(&[("a.yaml", &text)]);
        let known = schedule.map(|s| s.parse::<crate::recipe::Schedule>().expect("a schedule"));
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        let same = match (&recipe.schedule, &known) {
            (Some(a), Some(b)) => {
                (a.kind, a.cycles, a.timescale) == (b.kind, b.cycles, b.timescale) && close(a.floor, b.floor)
            }
            (a, b) => a == b,
        };
        assert!(same, "{text}: {:?}", recipe.schedule);
        assert_eq!(recipe.warmup, Some(warmup), "{text}");
    }
    let text = "lr_scheduler_type: reduce_lr_on_plateau\nlr_scheduler_kwargs: {factor: 0.5}\nmax_steps: 9\n";
    let notes = good(&[("a.yaml", text)]).notes.join("\n");
    assert!(notes.contains("there is no such schedule") && notes.contains("has no factor"), "{notes}");
    refused(
        &[("a.yaml", "lr_scheduler_type: cosine\nlr_scheduler_kwargs: 7\n")],
        "not a map of names and numbers",
    );
}

/// The Trainer's Lion has the constants of its AdamW, where it is told no others.
#[test]
fn lion_comes_with_the_trainers_constants() {
    let of = |text: &str| {
        let r = recipe_of(&[("a.py", text)]);
        (r.optimizer.map(|o| o.to_string()).unwrap_or_default(), r.learning_rate, r.betas, r.weight_decay)
    };
    let usual = |name: &str| (name.to_owned(), Some(5e-5), Some([0.9, 0.999]), Some(0.0));
    assert_eq!(of("optim='lion_32bit'"), usual("lion"));
    assert_eq!(of("optim='paged_lion_8bit'"), usual("lion-8bit"));
    let own = "optim='lion_8bit', learning_rate=1e-5, adam_beta2=0.98, weight_decay=0.1";
    assert_eq!(of(own), ("lion-8bit".to_owned(), Some(1e-5), Some([0.9, 0.98]), Some(0.1)));
}

#[test]
fn arguments_to_keys() {
    let text = "num_train_epochs=2.5, warmup_steps=10, adam_beta2=0.99, adam_epsilon=1e-6, max_grad_norm=0, seed=42, \
                optim='paged_adamw_8bit', gradient_checkpointing=True, save_steps=200, save_total_limit=3, \
                eval_strategy='steps', eval_steps=50, weight_decay=0.01, lr_scheduler_type='cosine', \
                dataloader_num_workers=4, logging_steps=1, report_to='wandb', group_by_length=True, no_cuda=False";
    let imported = good(&[("a.py", text)]);
    let recipe = recipe_of(&[("a.py", text)]);
    assert_eq!(
        (recipe.epochs, recipe.warmup, recipe.betas, recipe.eps),
        (Some(2.5), Some(10), Some([0.9, 0.99]), Some(1e-6))
    );
    assert_eq!((recipe.clip, recipe.seed, recipe.save_every, recipe.keep), (Some(1e9), 42, 200, 3));
    assert_eq!((recipe.validate_every, recipe.weight_decay), (50, Some(0.01)));
    assert_eq!(recipe.optimizer.unwrap().to_string(), "adamw-8bit");
    assert!(said(&imported, "dataloader_num_workers").contains("it is loader threads, not data parallel"));
    assert_eq!(recipe.schedule.map(|s| s.to_string()).as_deref(), Some("cosine"));
    // What it leaves out is the family's, as the Trainer's is the model's.
    assert!(recipe.no_decay.is_none() && !imported.notes.iter().any(|n| n.contains("decay")));
    // The Trainer's own defaults where it says nothing.
    assert_eq!(recipe.batch, Some(Batch::Clips(8)));
    let words = imported.effective_batch.unwrap();
    assert_eq!(
        words,
        "8 clips per device (transformers' default) × 1 accumulated × 1 rank (nothing says more) = 8 clips"
    );
    assert_eq!(recipe_of(&[("a.py", "learning_rate=1e-4")]).epochs, Some(3.0));
    assert_eq!(recipe_of(&[("a.py", "max_steps=100, warmup_ratio=0.025")]).warmup, Some(3));
    let asks = good(&[("a.py", "warmup_ratio=0.1")]);
    assert!(said(&asks, "warmup_ratio").starts_with("asks: 0.1 of the updates"));
    let split = good(&[
        ("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 4\n"),
        ("b.json", "{\"per_device_train_batch_size\": 8, \"accelerator_config\": {\"split_batches\": true}}"),
    ]);
    assert!(split.recipe.contains("batch: {clips: 8}"), "{}", split.recipe);
    let many = good(&[("a.py", "per_device_train_batch_size=3200")]);
    assert!(said(&many, "per_device_train_batch_size").contains("were frames meant?"));
    refused(
        &[("a.py", "per_device_train_batch_size=2000000000, gradient_accumulation_steps=2000000000")],
        "is more than",
    );
    refused(&[("a.py", "learning_rate=2")], "a.py:1:15: learning_rate: 2 is not above 0 and at most 1");
}

#[test]
fn conflicts_name_both_places() {
    let yaml = (
        "acc.yaml",
        "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config: {sharding_strategy: 2}\n",
    );
    refused(
        &[yaml, ("args.py", "\nfp16=True")],
        "args.py:2:6: fp16: is true, and mixed_precision: bf16 (acc.yaml:3:18) says otherwise: remove or change one of the two",
    );
    refused(
        &[yaml, ("args.py", "fsdp='full_shard'")],
        "args.py:1:6: fsdp: is full_shard, and fsdp_config.sharding_strategy: 2 (acc.yaml:4:34) says otherwise",
    );
    refused(
        &[("a.py", "learning_rate=1e-4"), ("b.json", "{\"learning_rate\": 2e-4}")],
        "b.json:1:19: learning_rate: is 2e-4, and learning_rate: 1e-4 (a.py:1:15) says otherwise",
    );
    refused(&[("a.py", "fp16=True, bf16=True")], "fp16: is true, and bf16: true (a.py:1:17) says otherwise");
    refused(&[("a.sh", "--seed 1 --seed 2")], "seed: is 2, and seed: 1 (a.sh:1:8) says otherwise");
    refused(
        &[yaml, ("r.sh", "--nproc_per_node 2 --seed 1")],
        "num_processes: 4 (acc.yaml:2:16) says otherwise",
    );
    // The same said twice, and what is only off, is no conflict; arguments go before a launcher's `no`.
    let both = recipe_of(&[yaml, ("a.py", "bf16=True, fp16=False, fsdp='shard_grad_op auto_wrap'")]);
    assert_eq!(both.precision, Some(Precision::Bf16Mixed));
    let no = [("a.yaml", "distributed_type: 'NO'\nmixed_precision: 'no'\n"), ("a.py", "fp16=True")];
    assert_eq!(recipe_of(&no).precision, Some(Precision::Fp16Mixed));
    // A switch and its precision are of one file, a script's dtype stands next to the launcher's.
    let coqui = |on| {
        recipe_of(&[("c.json", &format!("{{\"mixed_precision\": {on}, \"precision\": \"bf16\"}}"))]).precision
    };
    assert_eq!((coqui("true"), coqui("false")), (Some(Precision::Bf16Mixed), Some(Precision::Fp32)));
    assert_eq!(
        recipe_of(&[no[0], ("p.json", "{\"dtype\": \"bfloat16\"}")]).precision,
        Some(Precision::Bf16Mixed)
    );
}

#[test]
fn unknown_keys_are_named_with_the_nearest() {
    let text = "distributed_type: FSDP\nnum_proceses: 4\nfsdp_config:\n  fsdp_shardng_strategy: 1\n  sync_module_stats: true\n\
                qwertyuiop: 1\n";
    let imported = good(&[("a.yaml", text)]);
    assert_eq!(said(&imported, "num_proceses"), "unknown, not taken over; nearest: num_processes");
    let near = "unknown, not taken over; nearest: fsdp_";
    assert_eq!(said(&imported, "fsdp_config.fsdp_shardng_strategy"), format!("{near}sharding_strategy"));
    assert_eq!(said(&imported, "fsdp_config.sync_module_stats"), format!("{near}sync_module_states"));
    assert_eq!(said(&imported, "qwertyuiop"), "unknown, not taken over");
    assert!(
        imported.recipe.contains("# num_proceses: 4 (a.yaml:2): unknown, not taken over"),
        "{}",
        imported.recipe
    );
}

/// No known key is without a word, whatever stands next to it.
#[test]
fn every_judged_key_is_judged() {
    let mut silent = Vec::new();
    for kind in ["FSDP", "MULTI_GPU", "'NO'"] {
        for name in keys::all() {
            if ["deepspeed", "use_deepspeed", "megatron_lm_config", "use_megatron_lm"].contains(&name) {
                continue;
            }
            let (section, key) = match name.split_once('.') {
                Some(("fsdp", key)) => ("fsdp_config", key),
                Some(("parallel", key)) => ("parallelism_config", key),
                Some(("accelerator", key)) => ("accelerator_config", key),
                Some(("arch", _)) | None => ("", name),
                Some((section, key)) => (section, key),
            };
            if section.is_empty() && name.contains('.') {
                continue;
            }
            for value in ["1", "0.5", "true", "x", "FULL_SHARD", "bf16", "steps"] {
                let inner = if section.is_empty() {
                    format!("{key}: {value}")
                } else {
                    format!("{section}: {{{key}: {value}}}")
                };
                let text = format!("distributed_type: {kind}\nnum_processes: 2\n{inner}\n");
                let Ok(imported) = read(&[("a.yaml", &text)]) else { continue };
                let row = imported.rows.last().unwrap();
                let said = row.verdict.to_string();
                assert!(!said.contains("unknown"), "{text}: {said}");
                if said.contains("it is off or empty") {
                    silent.push(text);
                }
            }
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}
