//! Configurations of F5-TTS's trainer, for `ambitus import`.

use ambitus_recipe::import::Trainer;

/// Its YAML (`src/f5_tts/configs`).
pub(super) const TRAINER: Trainer = Trainer {
    signs: &["datasets.", "batch_size_per_gpu", "batch_size_type"],
    counts_frames: true,
    has_length: true,
    ..Trainer::PLAIN
};

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_recipe::import::{Folders, Imported, Source, Verdict, import};
    use ambitus_recipe::recipe::{Batch, Recipe};

    fn good(text: &str) -> Imported {
        import(&[Source::text("config.yaml", text)], &Folders::default(), &[&TRAINER])
            .unwrap_or_else(|e| panic!("{e}"))
    }

    fn said(imported: &Imported, key: &str) -> String {
        imported.rows.iter().find(|r| r.key == key).expect(key).verdict.to_string()
    }

    fn recipe(imported: &Imported) -> Recipe {
        Recipe::parse(&imported.recipe, "r.yaml").expect(&imported.recipe).0
    }

    #[test]
    fn frames_and_samples_of_f5() {
        let config = |kind: &str, n: u32| {
            format!(
                "datasets:\n  name: voice\n  batch_size_per_gpu: {n}\n  batch_size_type: {kind}\n  max_samples: 64\n  num_workers: 16\n\
                 optim:\n  epochs: 11\n  learning_rate: 7.5e-5\n  num_warmup_updates: 20000\n  grad_accumulation_steps: 2\n  \
                 max_grad_norm: 1.0\n  bnb_optimizer: True\nmodel:\n  name: F5TTS_v1_Base\n  tokenizer: pinyin\n  arch:\n    \
                 dim: 1024\n    checkpoint_activations: True\nckpts:\n  save_per_updates: 50000\n  keep_last_n_checkpoints: -1\n"
            )
        };
        let frames = good(&config("frame", 3200));
        assert!(frames.rows.iter().all(|r| !matches!(r.verdict, Verdict::Unknown(_))), "{frames}");
        assert_eq!(said(&frames, "model.arch.checkpoint_activations"), "used: checkpoint: all");
        assert!(said(&frames, "datasets.num_workers").contains("loader threads, not data parallel"));
        let recipe = recipe(&frames);
        assert_eq!(
            (recipe.batch, recipe.epochs, recipe.warmup),
            (Some(Batch::Frames(6400)), Some(11.0), Some(20000))
        );
        let asks = |text: &str| {
            let imported = good(text);
            imported.notes.iter().any(|n| n.contains("is `warmup: 20000` meant?"))
        };
        let of_frames = config("frame", 3200);
        assert!(
            asks(&of_frames)
                && !asks(&of_frames.replace("num_warmup_updates: 20000", "num_warmup_updates: 200"))
        );
        let samples = good(&config("sample", 3200));
        let asked = said(&samples, "datasets.batch_size_per_gpu");
        assert!(asked.starts_with("asks: 3200 clips at once on one device: were frames meant?"), "{asked}");
        assert!(
            asked.contains("`batch: {frames: 6400}`") && samples.recipe.contains("were frames meant"),
            "{asked}"
        );
        let few = good(&config("sample", 8));
        assert!(said(&few, "datasets.batch_size_per_gpu").starts_with("used: batch: {clips: 16}"));
        let wrong = [Source::text("config.yaml", config("frams", 8))];
        let refused = import(&wrong, &Folders::default(), &[&TRAINER]).expect_err("frams").to_string();
        assert!(refused.contains("datasets.batch_size_type: `frams` is not frame or sample"), "{refused}");
    }
}
