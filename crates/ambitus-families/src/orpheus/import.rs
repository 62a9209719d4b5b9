//! Configurations of Orpheus' official scripts, for `ambitus import`.

use ambitus_recipe::import::Trainer;
use ambitus_recipe::recipe::Precision;

/// `finetune/config.yaml`, with what `finetune/train.py` sets in addition to it.
pub(super) const TRAINER: Trainer = Trainer {
    signs: &["TTS_dataset"],
    precision: Some((Precision::Bf16Mixed, "bf16=True in Orpheus' finetune/train.py")),
    ..Trainer::PLAIN
};

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_recipe::import::{Folders, Imported, Source, import};
    use ambitus_recipe::recipe::Recipe;
    use std::path::Path;

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

    /// Orpheus' finetune/config.yaml, as its script reads it.
    #[test]
    fn orpheus_own_configuration() {
        let text = "# Datasets\nTTS_dataset: canopylabs/zac-sample-dataset\n\nmodel_name: canopylabs/orpheus-tts-0.1-pretrained\n\n\
                    # Training Args\nepochs: 1\nbatch_size: 1\nnumber_processes: 1\npad_token: 128263\nsave_steps: 5000\n\
                    learning_rate: 5.0e-5\n\n# Naming and paths\nsave_folder: checkpoints\nproject_name: tuning-orpheus\n\
                    run_name: 5e5-0\n";
        let imported = good(text);
        let never = "no effect, because finetune/train.py reads it and never uses it";
        assert_eq!(
            (said(&imported, "number_processes"), said(&imported, "pad_token")),
            (never.into(), never.into())
        );
        assert_eq!(
            said(&imported, "batch_size"),
            "used: batch: {clips: 1}; what of it is computed at once, the plan chooses"
        );
        assert!(
            said(&imported, "TTS_dataset")
                .starts_with("asks: `canopylabs/zac-sample-dataset` is not downloaded")
        );
        assert!(imported.notes.iter().any(|n| n.contains("--model DIR")), "{:?}", imported.notes);
        let recipe = recipe(&imported);
        assert_eq!((recipe.epochs, recipe.save_every, recipe.learning_rate), (Some(1.0), 5000, Some(5e-5)));
        assert_eq!((recipe.precision, recipe.ranks), (Some(Precision::Bf16Mixed), None));
        let folders = Folders { model: Some("m: #x".into()), data: Some("d".into()) };
        let with = import(&[Source::text("config.yaml", text)], &folders, &[&TRAINER]).unwrap();
        assert_eq!(said(&with, "model_name"), "no effect, because --model names the folder");
        assert_eq!(Recipe::parse(&with.recipe, "r").unwrap().0.model.dir, Path::new("m: #x"));
    }
}
