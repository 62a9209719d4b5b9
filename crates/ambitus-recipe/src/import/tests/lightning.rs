//! Lightning's keys as dotted flags and as sections of a file, of a trainer with two optimizers.

use super::*;

const TRAINER: Trainer = Trainer {
    signs: &["model.learning_rate_d"],
    has_length: true,
    keys: &[
        ("lightning.rate", &["model.learning_rate"]),
        ("lightning.rate.other", &["model.learning_rate_d"]),
        ("lightning.betas", &["model.betas"]),
        ("lightning.continued", &["ckpt_path"]),
        ("lightning.epochs", &["trainer.max_epochs"]),
        ("lightning.steps", &["trainer.max_steps"]),
        ("lightning.precision", &["trainer.precision"]),
        ("lightning.devices", &["trainer.devices"]),
        ("lightning.nodes", &["trainer.num_nodes"]),
        ("lightning.strategy", &["trainer.strategy"]),
        ("lightning.gamma", &["model.lr_decay"]),
    ],
    nothing: &[("it is another's", &["trainer.callbacks."])],
    lightning: Some(Lightning {
        manual: true,
        clips: Some(4),
        epochs: Some(7),
        adamw: (1e-3, [0.8, 0.9]),
        other: Some(("d", 2e-3, [0.5, 0.6])),
        gamma: Some(0.5),
        validation: 0.25,
        tf32: false,
        stated: &[],
        lost: &[],
        scratch: &[],
        parts: Some(("parts", "half")),
        speakers: Some("speakers"),
        words: &[],
    }),
    ..Trainer::PLAIN
};

fn own(name: &str, text: &str) -> Result<Imported, RecipeError> {
    import(&[Source::text(name, text)], &Folders::default(), &[&TRAINER])
}

#[track_caller]
fn flags(rest: &str) -> (Imported, Recipe) {
    let imported = own("run.sh", &format!("python -m t fit --model.learning_rate_d 3e-3 {rest}")).unwrap();
    let recipe =
        Recipe::parse(&imported.recipe, "r.yaml").unwrap_or_else(|e| panic!("{}\n{e}", imported.recipe)).0;
    (imported, recipe)
}

#[test]
fn flags_with_dots_say_what_sections_say() {
    let text = "model:\n  learning_rate_d: 3e-3\n  betas: [0.7, 0.8]\ntrainer:\n  max_epochs: 9\n  callbacks.every: 3\n";
    let of_file = own("config.yaml", text).unwrap();
    let (of_flags, recipe) =
        flags("--model.betas '[0.7, 0.8]' --trainer.max_epochs=9 --trainer.callbacks.every 3");
    let told = |i: &Imported| {
        let mut all: Vec<_> = i.rows.iter().map(|r| (r.key.clone(), r.verdict.to_string())).collect();
        all.sort();
        all
    };
    assert_eq!(told(&of_file), told(&of_flags));
    assert!(said(&of_flags, "trainer.callbacks.every").contains("it is another's"));
    assert_eq!(
        (recipe.learning_rate, recipe.betas, recipe.epochs),
        (Some(1e-3), Some([0.7, 0.8]), Some(9.0))
    );
    let d = &recipe.players["d"];
    assert_eq!((d.learning_rate, d.betas), (Some(3e-3), Some([0.5, 0.6])));
    assert_eq!(recipe.schedule.unwrap().to_string(), "exponential,gamma=0.5,per=epoch");
    assert_eq!((recipe.clip, recipe.warmup, recipe.batch), (Some(1e9), Some(0), None));
}

#[test]
fn the_length_is_counted_from_the_checkpoints() {
    for (rest, epochs, updates, part) in [
        ("--ckpt_path a/epoch=4-step=100.ckpt --trainer.max_epochs 9", Some(4.0), None, "what is left of 9"),
        ("--ckpt_path a/epoch=9.ckpt --trainer.max_epochs 9", None, None, "ends at once"),
        ("--ckpt_path last.ckpt --trainer.max_epochs 9", Some(9.0), None, "its name does not say"),
        ("--ckpt_path $A --trainer.max_epochs 9", Some(9.0), None, "its name does not say"),
        ("--trainer.max_epochs -1", None, None, "until it is stopped"),
        ("--trainer.max_epochs $N", None, None, "code"),
        ("--trainer.max_steps 300 --trainer.max_epochs 9", None, Some(150), "comes first"),
        (
            "--ckpt_path a/epoch=4-step=100.ckpt --trainer.max_steps 300 --trainer.max_epochs 9",
            None,
            Some(100),
            "first",
        ),
        ("--trainer.max_steps -1 --trainer.max_epochs 3", Some(3.0), None, "epochs: 3"),
    ] {
        let (imported, recipe) = flags(rest);
        assert_eq!((recipe.epochs, recipe.updates), (epochs, updates), "{rest}\n{imported}");
        let said = said(&imported, "trainer.max_epochs");
        assert!(said.contains(part), "{rest}: {said}");
    }
    assert_eq!(flags("").1.epochs, Some(7.0));
}

#[test]
fn devices_are_ranks_that_hold_all() {
    for (rest, ranks) in [
        ("--trainer.devices 2 --trainer.num_nodes 3", Some(6)),
        ("--trainer.devices 0,1", Some(2)),
        ("--trainer.devices 1", Some(1)),
        ("--trainer.devices auto", None),
        ("--trainer.devices=-1", None),
    ] {
        let (imported, recipe) = flags(rest);
        assert_eq!(recipe.ranks, ranks, "{rest}\n{imported}");
        let strategy = ranks.filter(|n| *n > 1).map(|_| Strategy::None);
        assert_eq!(recipe.sharding.map(|s| s.strategy), strategy, "{rest}");
    }
    let batch = flags("--trainer.devices 2").1.batch;
    assert_eq!(batch, Some(crate::recipe::Batch::Clips(8)));
    let (asked, _) = flags("--trainer.devices 2 --trainer.strategy fsdp");
    assert!(said(&asked, "trainer.strategy").starts_with("asks: "));
}

#[test]
fn other_values_are_refused_at_their_place() {
    for (rest, part) in [
        ("--trainer.precision 64", "`64` is not 32, 16-mixed, bf16-mixed or bf16-true"),
        ("--model.betas '[0.5]'", "[0.5] is not two numbers from 0 to below 1"),
        ("--model.learning_rate 2", "2 is not above 0 and at most 1"),
        ("--model.lr_decay 1.5", "1.5 is not above 0 and at most 1"),
        ("--trainer.devices 0,", ""),
        ("--trainer.num_nodes 0", "0 is not between 1"),
    ] {
        let found = own("run.sh", &format!("python -m t fit --model.learning_rate_d 3e-3 {rest}"));
        match part {
            "" => assert!(found.is_ok()),
            part => {
                let why = found.map(|i| i.recipe).expect_err(rest).to_string();
                assert!(why.contains(part), "{why}");
            }
        }
    }
}
