//! What `plan --accelerate` says of each key is true of the recipe that it plans.

use super::*;
use crate::recipe::Batch;
use ambitus_compile::passes::shard;

const PLAIN: &str = "model: {dir: m}\ndata: {dir: d}\n";

#[track_caller]
fn over(recipe: &str, text: &str, options: impl FnOnce(&mut Recipe)) -> (Recipe, Imported) {
    let (file, _) = Recipe::parse(&format!("{PLAIN}{recipe}"), "r.yaml").unwrap_or_else(|e| panic!("{e}"));
    lay_over(&file, &[Source::text("a.yaml", text)], &[], options).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn what_is_off_there_is_no_default_where_the_recipe_says_otherwise() {
    let off = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_offload_params: false\n  \
               fsdp_activation_checkpointing: false\n  fsdp_activation_checkpointing_offload: false\n";
    let set = "checkpoint: all\noffload: all\nprecision: bf16-mixed\noptimizer: adamw-8bit\nupdates: 300\n\
               warmup: 7\nsave_every: 0\nmicro_batch: {clips: 3}\n";
    let (_, imported) = over(set, off, |_| ());
    for (key, why) in [
        ("offload_params", "the recipe says `offload: all`"),
        ("activation_checkpointing", "the recipe says `checkpoint: all`"),
        ("activation_checkpointing_offload", "the recipe says `offload.activations: true`"),
    ] {
        assert_eq!(said(&imported, &format!("fsdp_config.fsdp_{key}")), format!("no effect, because {why}"));
    }
    let (recipe, plain) = over("", off, |_| ());
    assert_eq!((recipe.offload, recipe.checkpoint), (None, None));
    for row in plain.rows.iter().filter(|r| r.value == "false") {
        assert!(matches!(row.verdict, Verdict::Default(_)), "{plain}");
    }
    let arguments = "{\"bf16\": false, \"optim\": \"adamw_torch\", \"max_steps\": -1, \"warmup_ratio\": 0.0, \
                     \"gradient_checkpointing\": false, \"save_strategy\": \"steps\", \"max_samples\": 64, \
                     \"batch_size\": 2, \"adafactor\": false}";
    let (_, imported) = over(set, arguments, |_| ());
    for (key, why) in [
        ("bf16", "the recipe says `precision: bf16-mixed`"),
        ("optim", "the recipe says `optimizer: adamw-8bit`"),
        ("max_steps", "the recipe says `updates: 300`"),
        ("gradient_checkpointing", "the recipe says `checkpoint: all`"),
        ("save_strategy", "the recipe says `save_every: 0`"),
        ("max_samples", "the recipe says `micro_batch.clips: 3`"),
        (
            "warmup_ratio",
            "only ranks, sharding, precision, offload, checkpoint are laid over a recipe, which keeps its own warmup",
        ),
    ] {
        assert_eq!(said(&imported, key), format!("no effect, because {why}"));
    }
    assert_eq!(said(&imported, "adafactor"), "default: AdamW");
    let (_, plain) = over("", arguments, |_| ());
    for key in ["bf16", "optim", "max_steps", "gradient_checkpointing", "save_strategy"] {
        assert!(said(&plain, key).starts_with("default: "), "{plain}");
    }
}

#[test]
fn the_command_line_goes_before_both() {
    let text = "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\nfsdp_config:\n  \
                fsdp_sharding_strategy: 1\n  fsdp_auto_wrap_policy: 2\n  fsdp_min_num_params: 5\n  \
                fsdp_offload_params: false\n";
    let options = |r: &mut Recipe| {
        r.ranks = Some(3);
        r.share_by(shard::Strategy::None);
        r.precision = Some(Precision::Fp32);
        r.offload = Some(crate::recipe::Offload::all());
    };
    let own = "ranks: 4\noffload: all\nsharding: {forward_prefetch: true}\n";
    let (recipe, imported) = over(own, text, options);
    let of_sharding = recipe.sharding.unwrap();
    assert_eq!(
        (recipe.ranks, of_sharding.strategy, recipe.precision),
        (Some(3), Strategy::None, Some(Precision::Fp32))
    );
    // Without shards nothing else of them is left.
    assert_eq!(of_sharding.units, Units::Block);
    for (key, words) in [
        ("num_processes", "no effect, because the command line says `ranks: 3`"),
        ("distributed_type", "no effect, because the command line says `sharding.strategy: none`"),
        ("mixed_precision", "no effect, because the command line says `precision: fp32`"),
        (
            "fsdp_config.fsdp_sharding_strategy",
            "no effect, because the command line says `sharding.strategy: none`",
        ),
        (
            "fsdp_config.fsdp_min_num_params",
            "no effect, because the command line says `sharding.strategy: none`",
        ),
        ("fsdp_config.fsdp_offload_params", "no effect, because the recipe says `offload: all`"),
    ] {
        assert_eq!(said(&imported, key), words);
    }
    // Only what an option says goes before the file.
    let (recipe, other) = over("", text, |r| r.share_by(shard::Strategy::GradOp));
    let kept =
        Sharding { strategy: Strategy::GradOp, units: Units::MinParams(5), ..recipe.sharding.unwrap() };
    assert_eq!(recipe.sharding, Some(kept));
    assert_eq!(said(&other, "fsdp_config.fsdp_min_num_params"), "used: sharding.units: {min_params: 5}");
    // The same said twice is used.
    let (_, same) = over("", text, |r| r.ranks = Some(2));
    assert_eq!(said(&same, "num_processes"), "used: ranks: 2");
}

#[test]
fn questions_that_the_recipe_answers_are_not_asked() {
    let text = "distributed_type: FSDP\nnum_processes: -1\nlearning_rate: 1e-3\nmodel_name: a/b\nwarmup_ratio: 0.1\n\
                batch_size: 3200\nweight_decay: 0.1\nlr_scheduler_type: reduce_lr_on_plateau\n";
    let (recipe, open) = over("", text, |_| ());
    assert_eq!((recipe.ranks, recipe.learning_rate, recipe.batch), (None, None, None::<Batch>));
    assert!(said(&open, "num_processes").starts_with("asks: -1 means"), "{open}");
    let notes = |i: &Imported| i.notes.join("\n");
    assert!(notes(&open).contains("write `ranks:` in the recipe"), "{open}");
    let (_, answered) = over("ranks: 4\n", text, |_| ());
    assert_eq!(said(&answered, "num_processes"), "no effect, because the recipe says `ranks: 4`");
    assert_eq!(answered.notes.len(), 1, "{answered}");
    assert!(notes(&answered).contains("there is no such schedule"), "{answered}");
    for (key, own) in [("learning_rate", "learning_rate"), ("model_name", "model"), ("batch_size", "batch")] {
        assert!(said(&answered, key).ends_with(&format!("which keeps its own {own}")), "{answered}");
    }
}

#[test]
fn stages_say_their_own() {
    let stages = "run_dir: r\nstages:\n- {name: a, updates: 1, precision: fp32}\n- {name: b, updates: 2}\n";
    let text =
        "distributed_type: 'NO'\nmixed_precision: bf16\nmax_steps: -1\ngradient_checkpointing: false\n";
    let (recipe, imported) = over(stages, text, |_| ());
    assert_eq!(
        said(&imported, "mixed_precision"),
        "used: precision: bf16-mixed; but stage `a` of the recipe says `precision: fp32`"
    );
    assert_eq!(said(&imported, "max_steps"), "no effect, because stage `a` of the recipe says `updates: 1`");
    assert!(said(&imported, "gradient_checkpointing").starts_with("default: "));
    assert_eq!(
        (recipe.stage(0).precision, recipe.stage(1).precision),
        (Some(Precision::Fp32), Some(Precision::Bf16Mixed))
    );
}
