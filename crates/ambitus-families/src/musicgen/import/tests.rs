//! Configurations as hydra composes them for audiocraft's solvers, whole and in parts, and overrides of them.

use super::super::keys;
use super::*;
use ambitus_recipe::import::{Folders, Imported, Source, Verdict, import};
use ambitus_recipe::recipe::{Average, Batch, Precision, Recipe, ScheduleKind, Strategy, Unbiased, Units};

#[track_caller]
fn read(sources: &[Source]) -> Imported {
    import(sources, &Folders::default(), &[&TRAINER]).unwrap_or_else(|e| panic!("{e}"))
}

fn file(name: &str, text: &str) -> Source {
    Source::text(name, text)
}

fn words(text: &str) -> Source {
    Source::words(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
}

#[track_caller]
fn said(imported: &Imported, key: &str) -> String {
    let row = imported.rows.iter().find(|r| r.key == key);
    row.unwrap_or_else(|| panic!("no key {key}")).verdict.to_string()
}

#[track_caller]
fn recipe(imported: &Imported) -> Recipe {
    Recipe::parse_with(&imported.recipe, "r.yaml", &[&keys::SECTION])
        .unwrap_or_else(|e| panic!("{}\n{e}", imported.recipe))
        .0
}

/// Every key of a composed configuration of the package (1.3.0), as a run's folder has it in `.hydra/config.yaml`.
const COMPOSED: &str = include_str!("composed.yaml");

#[test]
fn every_key_of_a_composed_file_has_a_meaning() {
    let imported = read(&[file("config.yaml", COMPOSED)]);
    let open: Vec<String> = imported
        .rows
        .iter()
        .filter(|r| matches!(r.verdict, Verdict::Unknown(_) | Verdict::Ask(_)))
        .map(|r| format!("{}: {}", r.key, r.verdict))
        .collect();
    assert_eq!(open.len(), 2, "{open:#?}");
    assert!(
        open[0].starts_with("continue_from: asks") && open[1].starts_with("datasource.train: asks"),
        "{open:?}"
    );
    let r = recipe(&imported);
    assert_eq!((r.updates, r.batch, r.learning_rate), (Some(500 * 2000), Some(Batch::Clips(64)), Some(1e-4)));
    assert_eq!(
        (r.betas, r.weight_decay, r.eps, r.clip),
        (Some([0.9, 0.95]), Some(0.1), Some(1e-8), Some(1.0))
    );
    assert_eq!((r.precision, r.warmup, r.seed), (Some(Precision::Fp16Mixed), Some(4000), 2036));
    assert_eq!(r.ema, Some(Average::Unbiased(Unbiased { decay: 0.99, every: 10 })));
    let schedule = r.schedule.unwrap();
    assert_eq!((schedule.kind, schedule.floor, schedule.cycles), (ScheduleKind::Cosine, 0.1, None));
    assert_eq!((r.data.max_seconds, r.save_every, r.validate_every, r.keep), (30.0, 2000, 2000, 10));
    for line in ["condition_dropout: 0.3", "word_dropout: 0.3", "merge_metadata: 0.25", "keep_metadata: 0.5"]
    {
        assert!(imported.recipe.contains(line), "{}", imported.recipe);
    }
    assert_eq!(imported.effective_batch.as_deref(), Some("64 clips (of all ranks together)"));
    assert!(
        imported.notes.iter().any(|n| n.contains("drops the texts of a whole batch")),
        "{:?}",
        imported.notes
    );
}

#[test]
fn overrides_go_before_files_and_files_before_those_that_they_name() {
    let base = "defaults:\n  - musicgen/default\n  - /model: lm/musicgen_lm\n  - _self_\noptim:\n  optimizer: dadam\n  lr: 1\n  epochs: 500\n  \
                ema: {use: true, updates: 10, device: cuda}\ndataset: {batch_size: 192, sample_on_weight: false}\n\
                schedule: {lr_scheduler: cosine, cosine: {warmup: 4000, lr_min_ratio: 0.0, cycle_length: 1.0}}\n";
    let default = "solver: musicgen\nautocast: true\noptim:\n  epochs: 200\n  updates_per_epoch: 2000\n  lr: 1e-4\n  optimizer: adamw\n  \
                   ema: {updates: \"${optim.updates_per_epoch}\"}\ndataset: {batch_size: 128, segment_duration: 30}\nschedule: {lr_scheduler: null}\n";
    let run = "dora run solver=musicgen/base model/lm/model_scale=medium continue_from=//pretrained/facebook/musicgen-medium \
               optim.lr=2e-5 optim.optimizer=adamw dataset.batch_size=16 +optim.updates_per_epoch=100 ~schedule.cosine.warmup= optim.adam.betas=[0.8,0.9]";
    let all = [file("config/solver/musicgen/base.yaml", base), file("default.yaml", default), words(run)];
    let imported = read(&all);
    let r = recipe(&imported);
    assert_eq!(
        (r.updates, r.batch, r.learning_rate),
        (Some(50_000), Some(Batch::Clips(16)), Some(2e-5)),
        "{imported}"
    );
    assert_eq!((r.betas, r.warmup), (Some([0.8, 0.9]), Some(0)));
    assert_eq!(r.ema, Some(Average::Unbiased(Unbiased { decay: 0.99, every: 10 })));
    assert!(imported.to_string().contains("`musicgen/base` is read beside it"), "{imported}");
    let why = said(&imported, "optim.lr");
    assert!(why.contains("optim.lr: 2e-5 (command line:1:") && why.contains("goes before it"), "{why}");
    // The same in a script, whose variables are not hydra's.
    let script = format!("#!/bin/sh\nOMP_NUM_THREADS=2 {}\n", run.replace(" optim.lr", " \\\n  optim.lr"));
    assert_eq!(recipe(&read(&[all[0].clone(), all[1].clone(), file("run.sh", &script)])), r);
    assert_eq!(recipe(&read(&[all[0].clone(), all[1].clone(), file("run", &run.replace("  ", " "))])), r);
    // The root, whose own keys come first, and a file that is named through another.
    let root =
        file("config/config.yaml", "defaults:\n  - _self_\n  - solver: default\nautocast: false\nseed: 7\n");
    let lowest =
        file("config/solver/default.yaml", "optim: {lr: 0.5, optimizer: adam}\ndataset: {batch_size: 1}\n");
    let middle = default.replacen(
        "solver: musicgen\n",
        "defaults:\n  - /solver/default\n  - _self_\nsolver: musicgen\n",
        1,
    );
    let middle = file("config/solver/musicgen/default.yaml", &middle);
    let composed = recipe(&read(&[root, lowest, all[0].clone(), middle, all[2].clone()]));
    assert_eq!((composed.seed, composed.precision, composed.batch), (7, r.precision, r.batch));
    assert_eq!(Recipe { seed: r.seed, ..composed }, r);
    // Without it, its own optimizer is named as missing, and no rate of 1 is taken.
    let imported = read(&all[..2]);
    assert_eq!(recipe(&imported).learning_rate, None);
    assert!(said(&imported, "optim.lr").starts_with("asks: it is a factor"), "{imported}");
    assert!(imported.notes.iter().any(|n| n.contains("D-Adaptation")), "{:?}", imported.notes);
    assert!(imported.notes.iter().any(|n| n.contains("from_scratch")), "{:?}", imported.notes);
    // A file that is not given is asked for.
    let alone = read(&[words("solver=musicgen/musicgen_base_32khz optim.lr=1e-5")]);
    assert!(
        said(&alone, "solver").contains("give config/solver/musicgen/musicgen_base_32khz.yaml"),
        "{alone}"
    );
    let r = recipe(&alone);
    assert_eq!((r.updates, r.batch, r.ema), (Some(400_000), Some(Batch::Clips(128)), None));
    assert_eq!((r.precision, r.schedule.unwrap().kind), (Some(Precision::Fp16Mixed), ScheduleKind::Constant));
    // Two files of which none names the other contradict each other.
    let two = [file("a.yaml", "optim: {optimizer: adam}"), file("b.yaml", "optim: {optimizer: adamw}")];
    let why = import(&two, &Folders::default(), &[&TRAINER]).unwrap_err().to_string();
    assert!(why.contains("optim.optimizer") && why.contains("otherwise"), "{why}");
}

#[test]
fn schedules_precisions_and_shards_are_taken_or_asked_about() {
    let with = |text: &str| read(&[words(&format!("solver=musicgen optim.lr=1e-3 {text}"))]);
    for (text, want, warmup) in [
        (
            "schedule.lr_scheduler=cosine schedule.cosine.warmup=5 schedule.cosine.cycle_length=2",
            "cosine,cycles=0.25",
            5,
        ),
        (
            "schedule.lr_scheduler=polynomial_decay schedule.polynomial_decay.warmup=7 schedule.polynomial_decay.end_lr=1e-4",
            "linear,floor=0.1",
            7,
        ),
        (
            "schedule.lr_scheduler=inverse_sqrt schedule.inverse_sqrt.warmup=9 schedule.cosine.warmup=3",
            "inverse-sqrt",
            9,
        ),
        ("schedule.lr_scheduler=linear_warmup schedule.linear_warmup.warmup=2", "constant", 2),
        ("schedule.lr_scheduler=null", "constant", 0),
    ] {
        let r = recipe(&with(text));
        assert_eq!((r.schedule.unwrap().to_string(), r.warmup), (want.to_owned(), Some(warmup)), "{text}");
    }
    for text in ["schedule.lr_scheduler=step schedule.step.step_size=3", "schedule.lr_scheduler=cosin"] {
        let imported = with(text);
        assert!(said(&imported, "schedule.lr_scheduler").starts_with("asks: "), "{imported}");
        assert_eq!(recipe(&imported).schedule.unwrap().kind, ScheduleKind::Constant);
    }
    for (text, want) in [
        ("autocast=false", Precision::Fp32),
        ("autocast=true autocast_dtype=bfloat16", Precision::Bf16Mixed),
        ("autocast=false fsdp.use=true", Precision::Fp16Mixed),
        ("autocast=false fsdp.use=true fsdp.param_dtype=bfloat16", Precision::Bf16Mixed),
    ] {
        assert_eq!(recipe(&with(text)).precision, Some(want), "{text}");
    }
    let sharded = with("autocast=false fsdp.use=true fsdp.sharding_strategy=full_shard fsdp.per_block=true");
    let sharding = recipe(&sharded).sharding.unwrap();
    assert_eq!((sharding.strategy, sharding.units), (Strategy::Full, Units::Block));
    assert!(sharded.notes.iter().any(|n| n.contains("over how many ranks")), "{:?}", sharded.notes);
    assert_eq!(recipe(&with("fsdp.use=true autocast=false")).sharding.unwrap().strategy, Strategy::GradOp);
    assert_eq!(recipe(&with("fsdp.use=false fsdp.sharding_strategy=full_shard")).sharding, None);
    // The average moves once an epoch where nothing else is said, and how long one is may follow from the data.
    let average = |text: &str| recipe(&with(&format!("optim.ema.use=true {text}"))).ema;
    let every = |every| Some(Average::Unbiased(Unbiased { decay: 0.99, every }));
    assert_eq!((average(""), average("optim.updates_per_epoch=30")), (every(2000), every(30)));
    let open = with("optim.ema.use=true optim.epochs=3 optim.updates_per_epoch=null");
    assert_eq!((recipe(&open).updates, recipe(&open).ema), (None, None));
    assert!(said(&open, "optim.epochs").contains("write `updates:`"), "{open}");
    // No bound, and no average.
    assert_eq!(recipe(&with("optim.max_norm=null")).clip, Some(1e9));
    assert_eq!(recipe(&with("optim.ema.use=false optim.ema.decay=0.9")).ema, Some(Average::Off));
    assert_eq!(recipe(&with("transformer_lm.checkpointing=torch")).checkpoint, Some("all".parse().unwrap()));
    for (text, part) in [
        ("optim.epochs=0", "optim.epochs: 0 is not between"),
        ("optim.ema.use=true optim.ema.decay=1", "never moves"),
        ("optim.adam.betas=[0.9]", "two numbers"),
        ("dataset.segment_duration=-1", "dataset.segment_duration: -1 is not from 0"),
        ("autocast_dtype=float8", "is not float32, float16 or bfloat16"),
        ("classifier_free_guidance.training_dropout=2", "2 is not from 0 to 1"),
        ("fsdp.use=maybe", "not true or false"),
        (
            "schedule.lr_scheduler=cosine schedule.cosine.lr_min_ratio=-1",
            "schedule.cosine.lr_min_ratio: -1 is not",
        ),
        ("schedule.lr_scheduler=cosine schedule.cosine.cycle_length=0", "cycle_length: 0 is not above 0"),
        (
            "schedule.lr_scheduler=polynomial_decay schedule.polynomial_decay.end_lr=2",
            "end_lr: 2 is not from 0",
        ),
    ] {
        let why = import(&[words(&format!("solver=musicgen {text}"))], &Folders::default(), &[&TRAINER])
            .unwrap_err();
        assert!(why.to_string().contains(part), "{text}: {why}");
    }
}

/// Files that no solver wrote: sections without end, files that name each other, thousands of keys that are in both.
#[test]
fn hostile_files_end_soon() {
    let deep = format!("dora run solver=musicgen {}=1", vec!["a"; 300_000].join("."));
    assert!(!read(&[file("run.sh", &deep)]).rows.iter().any(|r| r.key.starts_with('a')));
    let keys: String = (0..900).map(|i| format!("key{i}: 1\n")).collect();
    let list = |name: &str| "  - ".to_owned() + name + "\n";
    let defaults = |name: &str| {
        format!("defaults:\n{}{keys}solver: musicgen\n", list("none").repeat(3000) + &list(name))
    };
    let both = read(&[file("a.yaml", &defaults("b")), file("b.yaml", &defaults("c"))]);
    assert!(
        said(&both, "key7").starts_with("unknown") && both.to_string().contains("key7: 1 (a.yaml:"),
        "{both}"
    );
    let each = [
        file("a.yaml", "defaults: [b]\noptim: {optimizer: adam}"),
        file("b.yaml", "defaults: [a]\noptim: {optimizer: adamw}"),
    ];
    let why = import(&each, &Folders::default(), &[&TRAINER]).unwrap_err().to_string();
    assert!(why.contains("otherwise"), "{why}");
}
