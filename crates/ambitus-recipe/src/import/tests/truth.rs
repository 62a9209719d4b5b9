//! What is said of a key is true of the recipe that results: of two keys for one thing, of code, of meshes and of DeepSpeed.

use super::*;

#[test]
fn what_another_key_turns_on_is_no_default() {
    let json = "{\"fsdp\": \"full_shard auto_wrap\", \"fsdp_config\": {\"activation_checkpointing\": true},\n \
                \"gradient_checkpointing\": false}";
    let imported = good(&[("a.json", json)]);
    assert!(imported.recipe.contains("checkpoint: all"), "{}", imported.recipe);
    assert_eq!(
        said(&imported, "gradient_checkpointing"),
        "no effect, because fsdp_config.activation_checkpointing at a.json:1:78 says `checkpoint: all`"
    );
    let yaml =
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_activation_checkpointing: false\n";
    let imported = good(&[("a.yaml", yaml), ("b.py", "gradient_checkpointing=True")]);
    assert_eq!(
        said(&imported, "fsdp_config.fsdp_activation_checkpointing"),
        "no effect, because gradient_checkpointing at b.py:1:24 says `checkpoint: all`"
    );
    let imported = good(&[("a.json", "{\"optim\": \"adamw_torch\", \"bnb_optimizer\": true}")]);
    assert!(imported.recipe.contains("optimizer: adamw-8bit"), "{}", imported.recipe);
    assert_eq!(
        said(&imported, "optim"),
        "no effect, because bnb_optimizer at a.json:1:43 says `optimizer: adamw-8bit`"
    );
    let imported = good(&[("a.json", "{\"optim\": \"adamw_8bit\", \"bnb_optimizer\": false}")]);
    assert!(said(&imported, "bnb_optimizer").contains("optim at a.json:1:11 says `optimizer: adamw-8bit`"));
    // What the other leaves open stays a default.
    let offload = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {offload_params: true, \
                   activation_checkpointing_offload: false}\n";
    let imported = good(&[("a.yaml", offload)]);
    assert!(said(&imported, "fsdp_config.activation_checkpointing_offload").starts_with("default: "));
    let both = offload.replace("offload: false", "offload: true").replace("params: true", "params: false");
    let imported = good(&[("a.yaml", &both)]);
    assert!(said(&imported, "fsdp_config.offload_params").contains("says `offload: {activations: blocks}`"));
    let word = "{\"fsdp\": \"full_shard offload\", \"fsdp_config\": {\"offload_params\": false}}";
    let imported = good(&[("a.json", word)]);
    assert!(
        said(&imported, "fsdp_config.offload_params").contains("because offload in fsdp at a.json:1:10 says")
    );
    let imported = good(&[("a.py", "bf16=True, fp16=False")]);
    assert_eq!(said(&imported, "fp16"), "no effect, because bf16 at a.py:1:6 says `precision: bf16-mixed`");
}

#[test]
fn no_warmup_is_written_as_none() {
    let warmup = |words: &str| recipe_of(&[("a.py", &format!("max_steps=300, {words}"))]).warmup;
    for (words, expected) in [
        ("warmup_ratio=0.0", Some(0)),
        ("warmup_steps=0", Some(0)),
        ("warmup_ratio=0, warmup_steps=0", Some(0)),
        ("warmup_ratio=0.1, warmup_steps=0", Some(30)),
        ("warmup_ratio=0.0, warmup_steps=5", Some(5)),
        ("warmup_ratio=0.1, warmup_steps=5", Some(5)),
        ("warmup_ratio=0, warmup_steps=0.1", Some(30)),
        ("warmup_ratio=w, warmup_steps=5", Some(5)),
        ("warmup_ratio=w, warmup_steps=0", None),
        ("warmup_ratio=0.1, warmup_steps=n", None),
        ("seed=1", None),
    ] {
        assert_eq!(warmup(words), expected, "{words}");
    }
    let both = good(&[("a.py", "warmup_ratio=0.0, warmup_steps=0")]);
    assert_eq!(said(&both, "warmup_ratio"), "used: warmup: 0");
    assert_eq!(said(&both, "warmup_steps"), "used: warmup: 0");
    let ratio = good(&[("a.py", "max_steps=10, warmup_ratio=0.1, warmup_steps=0")]);
    assert_eq!(said(&ratio, "warmup_steps"), "no effect, because 0 leaves it to warmup_ratio");
}

#[test]
fn no_default_stands_for_code() {
    let text =
        "TrainingArguments(per_device_train_batch_size=2*4, max_steps=int(1e3),\n  learning_rate=1e-4)";
    let imported = good(&[("a.py", text)]);
    assert_eq!(imported.effective_batch, None);
    let words = "effective batch: not known, because per_device_train_batch_size: 2*4 (a.py:1:47) is code";
    assert!(
        imported.to_string().contains(words) && imported.recipe.contains(&format!("# {words}")),
        "{imported}"
    );
    let lines: Vec<&str> = imported.recipe.lines().filter(|l| !l.starts_with('#')).collect();
    assert!(!lines.iter().any(|l| l.starts_with("batch") || l.starts_with("epochs")), "{lines:?}");
    assert!(
        imported.recipe.contains("# max_steps: int(1e3) (a.py:1): asks: it is code"),
        "{}",
        imported.recipe
    );
    let recipe = |text: &str| recipe_of(&[("a.sh", text)]);
    for text in [
        "--learning_rate 1e-4 --gradient_accumulation_steps $N",
        "accelerate launch --num_processes $N train.py --per_device_train_batch_size 2",
        "torchrun --nproc_per_node 4 --nnodes $N train.py --per_device_train_batch_size 2",
    ] {
        assert_eq!((recipe(text).batch, recipe(text).ranks), (None, None), "{text}");
    }
    assert_eq!(recipe("--learning_rate 1e-4 --num_train_epochs $N").epochs, None);
    let every = Recipe::new("m", "d").save_every;
    assert_eq!(recipe("--save_strategy $S --save_steps 7").save_every, every);
    assert_eq!(recipe("--adam_beta1 $B --adam_beta2 0.5").betas, Recipe::new("m", "d").betas);
    let launch = "accelerate launch --use_fsdp --num_processes 2 --fsdp_sharding_strategy $S \
                  --fsdp_auto_wrap_policy $W --fsdp_backward_prefetch $P train.py";
    let imported = good(&[("a.sh", launch)]);
    assert!(!imported.recipe.contains("sharding:\n"), "{}", imported.recipe);
    let mesh = "--use_fsdp --fsdp_version 2 --parallelism_config_dp_replicate_size $R --parallelism_config_dp_shard_size 4";
    assert_eq!(recipe(mesh).ranks, None);
}

#[test]
fn deepspeeds_own_file_is_refused_at_its_key() {
    for (text, place) in [
        (
            "{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}},\n \
             \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2, \"fp16\": {\"enabled\": true}}",
            "a.json:1:23: zero_optimization",
        ),
        ("{\"fp16\": {\"enabled\": false}, \"bf16\": {\"enabled\": true}}", "a.json:1:10: fp16"),
        ("{\"optimizer\": {}, \"train_micro_batch_size_per_gpu\": \"auto\"}", "a.json:1:53: train_micro"),
    ] {
        refused(&[("a.json", text)], place);
        refused(&[("a.json", text)], "DeepSpeed's configuration is not read. ZeRO-3 is what");
    }
}

#[test]
fn a_mesh_without_fsdp_changes_nothing_but_the_number_of_ranks() {
    let mesh = "parallelism_config: {dp_replicate_size: 2, dp_shard_size: 4}\n";
    let ranks = "used: ranks: 8, and nothing more: ";
    for (kind, is) in [
        ("mixed_precision: bf16\n", ranks),
        ("distributed_type: MULTI_GPU\n", ranks),
        ("distributed_type: MULTI_GPU\nnum_processes: 8\n", "no effect, because "),
    ] {
        let files = [("a.yaml", &*format!("{kind}{mesh}"))];
        let recipe = recipe_of(&files);
        assert_eq!((recipe.ranks, recipe.sharding.unwrap().strategy), (Some(8), Strategy::None), "{kind}");
        let imported = good(&files);
        for key in ["dp_replicate_size", "dp_shard_size"] {
            let said = said(&imported, &format!("parallelism_config.{key}"));
            let why = format!("{is}without FSDP every rank holds the whole model, whatever the mesh");
            assert!(said.starts_with(&why), "{said}");
        }
        assert!(
            imported.notes.iter().any(|n| n.starts_with("parallelism_config.dp_shard_size: 4")),
            "{imported}"
        );
    }
    let second = format!("distributed_type: FSDP\nfsdp_config: {{fsdp_version: 2}}\n{mesh}");
    let imported = good(&[("a.yaml", &second)]);
    assert_eq!(said(&imported, "parallelism_config.dp_shard_size"), "used: sharding.group: 4");
    assert_eq!(said(&imported, "parallelism_config.dp_replicate_size"), "used: ranks: 8");
    // Without replicas it is no hybrid.
    let one = good(&[("a.yaml", &second.replace("dp_replicate_size: 2, ", ""))]);
    assert_eq!(said(&one, "parallelism_config.dp_shard_size"), "used: ranks: 4");
    let single = good(&[("a.yaml", &format!("distributed_type: 'NO'\n{mesh}"))]);
    assert_eq!(
        said(&single, "parallelism_config.dp_shard_size"),
        "no effect, because distributed_type: NO starts one process"
    );
    let ones = "distributed_type: MULTI_GPU\nnum_processes: 8\nparallelism_config: {dp_replicate_size: 1, dp_shard_size: 1}\n";
    assert_eq!(recipe_of(&[("a.yaml", ones)]).ranks, Some(8));
    assert_eq!(recipe_of(&[("a.yaml", "parallelism_config: {dp_shard_size: 1}\n")]).sharding, None);
    // Data parallel needs no shards.
    let replicas = "distributed_type: MULTI_GPU\nparallelism_config: {dp_replicate_size: 2}\n";
    assert_eq!(recipe_of(&[("a.yaml", replicas)]).ranks, Some(2));
}
