//! The configuration that the trainer itself writes (`parity/xtts_files/make_config.py`), what it leaves out, and AllTalk's settings.

use super::*;
use ambitus_recipe::import::{Folders, Imported, Source, Verdict, import};
use ambitus_recipe::recipe::{Batch, Per, Recipe, ScheduleKind, Validation as RecipeValidation};

#[track_caller]
fn read(name: &str, text: &str) -> Imported {
    import(&[Source::text(name, text)], &Folders::default(), &[&TRAINER])
        .unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[track_caller]
fn said(imported: &Imported, key: &str) -> String {
    let row = imported.rows.iter().find(|r| r.key == key);
    row.unwrap_or_else(|| panic!("no key {key}")).verdict.to_string()
}

#[track_caller]
fn recipe(imported: &Imported) -> Recipe {
    Recipe::parse(&imported.recipe, "r.yaml").unwrap_or_else(|e| panic!("{}\n{e}", imported.recipe)).0
}

fn config() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parity/xtts_files/fixtures/config.json");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_key_of_the_trainers_own_file_has_a_meaning() {
    let imported = read("config.json", &config());
    let open = imported.rows.iter().filter(|r| matches!(r.verdict, Verdict::Unknown(_) | Verdict::Ask(_)));
    assert_eq!(open.map(|r| &*r.key).collect::<Vec<_>>(), ["datasets"], "{imported}");
    let r = recipe(&imported);
    assert_eq!((r.epochs, r.batch, r.learning_rate), (Some(10.0), Some(Batch::Clips(4)), Some(5e-6)));
    assert_eq!((r.weight_decay, r.precision, r.warmup), (Some(0.01), Some(Precision::Fp32), Some(0)));
    assert_eq!((r.data.max_seconds, r.data.min_seconds), (11.0, 0.5));
    assert_eq!((r.betas, r.eps, r.keep, r.save_every), (Some([0.9, 0.96]), Some(1e-8), 1, 1000));
    let schedule = r.schedule.unwrap();
    let of = (schedule.kind, schedule.per, schedule.period, schedule.growth);
    assert_eq!(of, (ScheduleKind::WarmRestarts, Per::Epoch, Some(2.0), None));
    assert!((schedule.floor - 0.2).abs() < 1e-12);
    for part in ["every clip once", "config.json does not say it"] {
        assert!(imported.notes.iter().any(|n| n.contains(part)), "{:?}", imported.notes);
    }
    assert!(said(&imported, "datasets").contains("--data finetune/voice"));
    assert_eq!(r.data.validation, RecipeValidation::File("metadata_eval.csv".into()));
    let folders = Folders { data: Some("clips".into()), ..Folders::default() };
    let named = import(&[Source::text("config.json", config())], &folders, &[&TRAINER]).unwrap();
    assert!(said(&named, "datasets").contains("--data names the folder"));
    assert!(said(&imported, "model_args.gpt_layers").contains("own folder"));
}

#[test]
fn other_schedules_and_optimizers_are_taken_or_asked_about() {
    let with = |name: &str, arguments: &str| {
        let text = config()
            .replace("CosineAnnealingWarmRestarts", name)
            .replace("\"T_0\": 2,\n  \"T_mult\": 1,\n  \"eta_min\": 1e-06,\n  \"last_epoch\": -1", arguments);
        assert!(text.contains(arguments), "{text}");
        let imported = read("config.json", &text);
        (recipe(&imported).schedule.map(|s| s.to_string()).unwrap(), said(&imported, "lr_scheduler"))
    };
    for (name, arguments, want) in [
        ("MultiStepLR", "\"milestones\": [3, 6], \"gamma\": 0.5", "milestones,gamma=0.5,at=3,at=6,per=epoch"),
        ("StepLR", "\"step_size\": 4", "milestones,gamma=0.1,at=4,at=8,per=epoch"),
        ("StepLR", "\"step_size\": 30", "constant"),
        ("ExponentialLR", "\"gamma\": 0.5", "exponential,gamma=0.5,per=epoch"),
        ("CosineAnnealingLR", "\"T_max\": 10", "warm-restarts,period=10,per=epoch"),
    ] {
        let (schedule, said) = with(name, arguments);
        assert_eq!(schedule, want);
        assert!(said.starts_with("used: schedule"), "{said}");
    }
    for (name, arguments, part) in [
        ("CyclicLR", "\"max_lr\": 0.1, \"mode\": \"triangular\"", "there is no CyclicLR"),
        ("CosineAnnealingLR", "\"T_max\": 3", "rises again"),
        ("MultiStepLR", "\"milestones\": [3], \"strange\": 2", "has no strange"),
        ("CosineAnnealingWarmRestarts", "\"T_mult\": 1", "T_0"),
    ] {
        let (schedule, said) = with(name, arguments);
        assert!(
            schedule == "constant" && said.starts_with("asks: ") && said.contains(part),
            "{schedule}: {said}"
        );
    }
    // Groups of weight decay are the family's; without them, all parameters decay.
    assert_eq!(recipe(&read("config.json", &config())).no_decay, None);
    let all =
        config().replace("\"optimizer_wd_only_on_weights\": true", "\"optimizer_wd_only_on_weights\": false");
    assert_eq!(recipe(&read("config.json", &all)).no_decay, Some(Vec::new()));
    let none = config().replace("\"CosineAnnealingWarmRestarts\"", "null");
    assert_eq!(recipe(&read("config.json", &none)).schedule.unwrap().kind, ScheduleKind::Constant);
    let sgd = read("config.json", &config().replace("AdamW", "SGD"));
    assert!(said(&sgd, "optimizer").contains("the optimizers are") && recipe(&sgd).weight_decay.is_none());
    let bad = config().replace("0.96", "1.96");
    let why = import(&[Source::text("config.json", bad)], &Folders::default(), &[&TRAINER]).unwrap_err();
    assert!(why.to_string().contains("optimizer_params: betas is none that AdamW takes"), "{why}");
}

/// As its trainer is called, in flags.
#[test]
fn the_settings_of_the_page_are_read() {
    let imported = read(
        "settings.sh",
        "--language en --num_epochs 12 --batch_size 4 --grad_acumm 2 --train_csv a.csv --eval_csv b.csv --learning_rate 1e-5 \
         --model_to_train xttsv2_2.0.3 --continue_run False --disable_shared_memory True --learning_rate_scheduler ExponentialLR \
         --optimizer AdamW --num_workers 8 --warm_up True --max_audio_length 255995",
    );
    let r = recipe(&imported);
    assert_eq!((r.epochs, r.batch, r.learning_rate), (Some(12.0), Some(Batch::Clips(8)), Some(1e-5)));
    assert!((r.data.max_seconds - 11.61).abs() < 0.01);
    assert!(said(&imported, "warm_up").contains("write `warmup:`"));
    assert!(said(&imported, "learning_rate_scheduler").contains("gamma is not there"));
    let unknown = imported.rows.iter().find(|r| matches!(r.verdict, Verdict::Unknown(_)));
    assert!(unknown.is_none(), "{imported}");
}
